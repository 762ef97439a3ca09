/* Common ground of the process tests: a loop with a guardian whose events are recorded, and the search for survivors
 * by a mark in their environment. */
#ifndef TESTS_PROC_HARNESS_H
#define TESTS_PROC_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include <cmocka.h> /* after the four that it needs */

#include "agent/guardian/guardian.h"

enum { HARNESS_EXITS_MAX = 512, HARNESS_LINE_BYTES = 512 };

struct harness {
    uv_loop_t loop;
    struct guardian *guardian;
    char mark[96]; /* "MUSTER_TEST_MARK=..." of every process started here */
    const char *envp[4];
    int out_read, out_write; /* the workers' stdout */
    unsigned spawned_count, failed_count, gone_count, lost_count;
    unsigned orphan_count; /* workers among those that fell to this process */
    int orphan_status;     /* of the last */
    size_t exit_count;
    struct guardian_exit exits[HARNESS_EXITS_MAX];
    pid_t pids[HARNESS_EXITS_MAX]; /* by id */
    unsigned lingering_count;
    struct guardian_lingering lingering; /* the last */
    int failed_errno;
    char failed_why[HARNESS_LINE_BYTES];
    uint32_t failed_id;
    struct guardian_preload_news preload; /* the last, but those of a worker */
    unsigned preload_counts[GUARDIAN_PRELOAD_AS_USUAL + 1];
    char preload_why[GUARDIAN_PRELOAD_TEXT_BYTES]; /* the last worker was started as usual */
    char preload_refusal[GUARDIAN_PRELOAD_TEXT_BYTES];
};

/* cmocka setup and teardown: a guardian on a loop; the teardown asserts that nothing survived. */
int harness_setup(void **state);
int harness_teardown(void **state);

/* The pieces of the two, for tests that do more between them. */
void harness_open(struct harness *h);
void harness_close(struct harness *h);

/* Starts `hostile MODE NUMBER` with its stdout in the harness's pipe. */
void harness_spawn(struct harness *h, uint32_t id, const char *mode, int number);
void harness_spawn_argv(struct harness *h, uint32_t id, const char *const *argv);

/* Runs the loop until *counter reaches `value`; fails the test after a minute. */
void harness_until(struct harness *h, const unsigned *counter, unsigned value);
void harness_until_exits(struct harness *h, size_t value);

/* Reads `count` "ready" lines from the workers. */
void harness_ready(struct harness *h, unsigned count);

/* guardian_kill_all() and its answer; returns the milliseconds between. */
double harness_kill_all(struct harness *h);

/* Living processes whose environment has `mark`. */
unsigned survivors_count(const char *mark);

/* Waits until there are none; returns how many there still are after `limit_ms`. */
unsigned survivors_wait(const char *mark, int limit_ms);

void mark_make(char *out, size_t size);

/* Sends a signal to every process with the mark (a test's own clean-up). */
void survivors_kill(const char *mark);

#endif
