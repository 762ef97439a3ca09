/* The guardian with a preload server, honest and not: workers are its forks or started as usual, and never missing. */
#include "proc_harness.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian_preload.h"

#include <muster/status.h>

enum { WORKERS = 4 };

static void start_server(struct harness *h, const char *mode) {
    const char *argv[] = {PRELOAD_STUB_PATH, mode, NULL};
    struct guardian_spawn spawn = {.argv = argv, .envp = h->envp, .stdout_fd = -1, .stderr_fd = -1};
    assert_int_equal(guardian_preload(h->guardian, &spawn), 0);
}

static void spawn(struct harness *h, uint32_t id, const char *mode, int number) {
    char text[16];
    (void)snprintf(text, sizeof text, "%d", number);
    const char *argv[] = {HOSTILE_PATH, mode, text, NULL};
    struct guardian_spawn order = {
        .argv = argv, .envp = h->envp, .stdout_fd = h->out_write, .stderr_fd = -1, .is_preloaded = true};
    assert_int_equal(guardian_spawn(h->guardian, id, &order), 0);
}

static unsigned news_of(const struct harness *h, enum guardian_preload_kind kind) {
    return h->preload_counts[kind];
}

/* Exit codes are the ids. */
static void run_workers(struct harness *h) {
    size_t before = h->exit_count;
    for (uint32_t id = 0; id < WORKERS; id++) {
        spawn(h, id, "exit", (int)id);
    }
    harness_until_exits(h, before + WORKERS);
    for (size_t i = before; i < before + WORKERS; i++) {
        assert_true(WIFEXITED(h->exits[i].wait_status));
        assert_int_equal(WEXITSTATUS(h->exits[i].wait_status), h->exits[i].id);
        assert_int_equal(h->exits[i].pid, h->pids[h->exits[i].id]);
    }
    assert_int_equal(h->spawned_count, before + WORKERS);
    assert_int_equal(h->failed_count, 0);
}

static void workers_are_forks(void **state) {
    struct harness *h = *state;
    start_server(h, "honest");
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_READY), 1);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
    pid_t server = h->preload.pid;
    (void)harness_kill_all(h);
    assert_int_equal(kill(server, 0), 0); /* it is left alone */
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_ENDED), 0);
}

static void hundreds_at_once(void **state) {
    enum { MANY = 300 };
    struct harness *h = *state;
    start_server(h, "honest");
    for (uint32_t id = 0; id < MANY; id++) {
        spawn(h, id, "exit", 5);
    }
    harness_until_exits(h, MANY);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
}

/* Longer for all of them than it may be silent. */
static void forks_that_take_long(void **state) {
    struct harness *h = *state;
    start_server(h, "steady");
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_ENDED), 0);
}

/* Without, before, beside and after a server. */
static void workers_without_a_server(void **state) {
    struct harness *h = *state;
    run_workers(h);
    start_server(h, "honest");
    harness_spawn(h, WORKERS, "exit", WORKERS);
    harness_until_exits(h, WORKERS + 1);
    assert_int_equal(guardian_dismiss(h->guardian, false), 0);
    harness_until(h, &h->gone_count, 1);
    h->exit_count = 0;
    h->spawned_count = 0;
    run_workers(h);
}

static void signals_reach_forks(void **state) {
    struct harness *h = *state;
    start_server(h, "honest");
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_READY], 1);
    for (uint32_t id = 0; id < WORKERS; id++) {
        spawn(h, id, "sleep", 0);
    }
    assert_int_equal(guardian_signal(h->guardian, SIGTERM), 0); /* before they are there */
    harness_until_exits(h, WORKERS);
    for (size_t i = 0; i < WORKERS; i++) {
        assert_true(WIFSIGNALED(h->exits[i].wait_status));
        assert_int_equal(WTERMSIG(h->exits[i].wait_status), SIGTERM);
    }
}

/* Nobody is started only to be told to end: an interpreter that starts may lose a signal. */
static void told_to_end_before_it_has_imported(void **state) {
    struct harness *h = *state;
    for (unsigned turn = 1; turn <= 2; turn++) {
        start_server(h, "importing");
        for (uint32_t id = 0; id < WORKERS; id++) {
            spawn(h, id, "sleep", 0);
        }
        if (turn == 1) {
            assert_int_equal(guardian_signal(h->guardian, SIGINT), 0);
            harness_until(h, &h->failed_count, WORKERS);
        }
        (void)harness_kill_all(h);
        assert_int_equal(h->failed_count, turn * WORKERS);
        assert_int_equal(h->failed_errno, ECANCELED);
        assert_int_equal(h->spawned_count + h->exit_count, 0);
    }
}

/* Workers that wait for it are started as usual, and later ones at once. */
static void an_import_that_hangs(void **state) {
    struct harness *h = *state;
    start_server(h, "importing");
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), WORKERS);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_REFUSED), 1);
    assert_non_null(strstr(h->preload_refusal, "the import of its first module has made no progress for 1 s"));
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_ENDED], 1);
    assert_int_equal(WTERMSIG(h->preload.wait_status), SIGKILL);
    run_workers(h);
}

/* It says what it imports for longer than one import may take. */
static void imports_that_take_long(void **state) {
    struct harness *h = *state;
    start_server(h, "slow");
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_READY), 1);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_LEFT_OUT), 1);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
}

static bool reads(const char *name, pid_t pid, char *out, size_t size) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/%s", (int)pid, (int)pid, name);
    FILE *text = fopen(path, "r");
    bool has_read = text && fgets(out, (int)size, text);
    if (text) {
        (void)fclose(text);
    }
    return has_read;
}

/* The guardian's only child, when it runs its program. */
static pid_t stub_of(pid_t guardian) {
    char text[64];
    pid_t child = 0;
    do {
        child = reads("children", guardian, text, sizeof text) ? (pid_t)strtol(text, NULL, 10) : 0;
    } while (child == 0 || !reads("comm", child, text, sizeof text) || strcmp(text, "preload_stub\n") != 0);
    return child;
}

/* All are stopped for longer than an import may take. The guardian does not count the time in which it was away itself.
 */
static void everybody_is_stopped_while_it_imports(void **state) {
    enum { SPAWNED_MS = 20, AWAY_MS = 3000 };
    struct harness *h = *state;
    pid_t guardian = guardian_pid(h->guardian);
    start_server(h, "slow");
    pid_t server = stub_of(guardian);
    assert_int_equal(kill(server, SIGSTOP), 0);
    (void)poll(NULL, 0, SPAWNED_MS);
    assert_int_equal(kill(guardian, SIGSTOP), 0);
    (void)poll(NULL, 0, AWAY_MS);
    assert_int_equal(kill(guardian, SIGCONT), 0);
    assert_int_equal(kill(server, SIGCONT), 0);
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_READY), 1);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
}

static int impatient_setup(void **state) {
    (void)setenv(GUARDIAN_PRELOAD_TIMEOUT_VARIABLE, "1", 1);
    int status = harness_setup(state);
    (void)unsetenv(GUARDIAN_PRELOAD_TIMEOUT_VARIABLE); /* the guardian has read it, or has a copy */
    return status;
}

static void as_usual(struct harness *h, const char *mode, const char *why) {
    start_server(h, mode);
    run_workers(h);
    assert_true(news_of(h, GUARDIAN_PRELOAD_AS_USUAL) > 0);
    assert_non_null(strstr(h->preload_why, why));
}

/* It may come before the workers are asked for, and then nothing is said of them. */
static void refused(struct harness *h, const char *mode, const char *why) {
    start_server(h, mode);
    run_workers(h);
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_ENDED], 1);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_REFUSED), 1);
    assert_string_equal(h->preload_refusal, why);
}

static void a_refusal(void **state) {
    refused(*state, "refuse", "not today");
}

static void another_language(void **state) {
    refused(*state, "noise", "it does not speak as it should");
}

static void it_ends(void **state) {
    struct harness *h = *state;
    as_usual(h, "ends", ""); /* the end of a fork, of the server, or a socket that is closed: whichever is seen first */
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_ENDED], 1);
    assert_int_equal(WEXITSTATUS(h->preload.wait_status), 3);
    start_server(h, "honest"); /* another one */
    h->preload_counts[GUARDIAN_PRELOAD_AS_USUAL] = 0;
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 0);
}

static void it_does_not_answer(void **state) {
    struct harness *h = *state;
    as_usual(h, "silent", "does not answer");
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_ENDED], 1);
    assert_int_equal(WTERMSIG(h->preload.wait_status), SIGKILL);
}

static void children_without_a_word(void **state) {
    as_usual(*state, "mute", "has ended before");
}

static void another_processs_number(void **state) {
    as_usual(*state, "liar", "has ended before");
}

static void a_reason_for_each(void **state) {
    as_usual(*state, "decline", "it is not my day");
}

static void a_program_that_is_missing(void **state) {
    struct harness *h = *state;
    const char *argv[] = {"/no/such/server", NULL};
    struct guardian_spawn order = {.argv = argv, .envp = h->envp, .stdout_fd = -1, .stderr_fd = -1};
    assert_int_equal(guardian_preload(h->guardian, &order), 0);
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_REFUSED), 1);
    assert_non_null(strstr(h->preload.text, "/no/such/server"));
}

static void a_stopped_server(void **state) {
    struct harness *h = *state;
    start_server(h, "honest");
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_READY], 1);
    assert_int_equal(kill(h->preload.pid, SIGSTOP), 0);
    run_workers(h);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), WORKERS);
}

/* It ends with the guardian: the teardown looks for survivors. */
static void the_guardian_is_killed(void **state) {
    struct harness *h = *state;
    start_server(h, "honest");
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_READY], 1);
    spawn(h, 0, "sleep", 0);
    harness_until(h, &h->spawned_count, 1);
    assert_int_equal(kill(guardian_pid(h->guardian), SIGKILL), 0);
    harness_until(h, &h->lost_count, 1);
}

static void a_new_one_takes_its_place(void **state) {
    struct harness *h = *state;
    start_server(h, "importing");
    spawn(h, 0, "exit", 0);
    start_server(h, "honest");
    harness_until_exits(h, 1);
    assert_int_equal(news_of(h, GUARDIAN_PRELOAD_AS_USUAL), 1);
    harness_until(h, &h->preload_counts[GUARDIAN_PRELOAD_READY], 1);
}

/* Orders that wait hold descriptors: those that the guardian cannot hold are started as usual at once. */
static void few_descriptors(void **state) {
    enum { MANY = 100 };
    struct harness h;
    struct rlimit before;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit limit = {192, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    harness_open(&h);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    start_server(&h, "importing");
    for (uint32_t id = 0; id < MANY; id++) {
        spawn(&h, id, "exit", 5);
    }
    harness_until(&h, &h.spawned_count, 1); /* the first that need not wait */
    (void)harness_kill_all(&h);
    assert_int_equal(h.exit_count + h.failed_count, MANY);
    assert_in_range(h.failed_count, 1, MANY - 1); /* those that waited */
    harness_close(&h);
    assert_int_equal(survivors_count(h.mark), 0);
}

#define GUARDIAN_TEST(name) cmocka_unit_test_setup_teardown(name, harness_setup, harness_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        GUARDIAN_TEST(workers_are_forks),
        GUARDIAN_TEST(hundreds_at_once),
        GUARDIAN_TEST(forks_that_take_long),
        GUARDIAN_TEST(workers_without_a_server),
        GUARDIAN_TEST(signals_reach_forks),
        GUARDIAN_TEST(told_to_end_before_it_has_imported),
        cmocka_unit_test_setup_teardown(an_import_that_hangs, impatient_setup, harness_teardown),
        cmocka_unit_test_setup_teardown(imports_that_take_long, impatient_setup, harness_teardown),
        cmocka_unit_test_setup_teardown(everybody_is_stopped_while_it_imports, impatient_setup, harness_teardown),
        GUARDIAN_TEST(a_refusal),
        GUARDIAN_TEST(another_language),
        GUARDIAN_TEST(it_ends),
        GUARDIAN_TEST(it_does_not_answer),
        GUARDIAN_TEST(children_without_a_word),
        GUARDIAN_TEST(another_processs_number),
        GUARDIAN_TEST(a_reason_for_each),
        GUARDIAN_TEST(a_program_that_is_missing),
        GUARDIAN_TEST(a_stopped_server),
        GUARDIAN_TEST(the_guardian_is_killed),
        GUARDIAN_TEST(a_new_one_takes_its_place),
        cmocka_unit_test(few_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
