/* For tests and the benchmark of nodes: the members of one host without a group above them, as processes or as threads
 * of one (so that the thread sanitizer sees them all). */
#ifndef COMM_NODE_TEST_SUPPORT_H
#define COMM_NODE_TEST_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/node/node.h"

enum { CREW_MAX = 64, CREW_TEXT_BYTES = 1024 };

/* A member, in its own process or thread. */
struct crew_member {
    uint32_t index, size;
    struct node *node;
    struct call_line *line;
    uint64_t number; /* of its last call */
    struct memory *memory;
    struct comm_waiter waiter;
    struct crew *crew;
    void *argument;
};

typedef int crew_function(struct crew_member *member);

struct crew_options {
    bool threads;
    bool no_peer_reads;
    const struct choice *choice; /* NULL: the built-in one */
};

/* Runs `function` in `size` members. It returns when all are at its end; what member i returned is results[i], or
 * -1000 - signal for one that was killed. */
struct crew *crew_start(uint32_t size, crew_function *function, void *argument, const struct crew_options *options);
void crew_wait(struct crew *crew, int *results);

/* Prepares and books the member's next call, and runs it. */
int crew_call(struct crew_member *member, const struct comm_call *call, int64_t deadline_ns);

const struct call_line *crew_line(const struct crew *crew, uint32_t member);

/* Of a crew of processes. */
pid_t crew_pid(const struct crew *crew, uint32_t member);

/* Waits for the end of one member of a crew of processes, before crew_wait(). */
void crew_await_end(struct crew *crew, uint32_t member);

/* Numbers that members and test share, to tell each other where they are. */
void crew_mark(struct crew *crew, uint32_t which, uint64_t value);
uint64_t crew_marked(const struct crew *crew, uint32_t which);
void crew_await_mark(struct crew *crew, uint32_t which, uint64_t at_least);

/* Sets the alarm of every member: their stopped() then says MUSTER_EPEER, "a member is gone". */
void crew_raise_alarm(struct crew *crew);

/* Remembers what went wrong in a member, for the test to print; returns 1. */
int crew_fail(struct crew_member *member, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *crew_failure(const struct crew *crew);

void crew_free(struct crew *crew);

#endif
