/* See proc_harness.h. */
#include "proc_harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LIMIT_MS = 60000, ENVIRON_BYTES = 256 * 1024 };

void mark_make(char *out, size_t size) {
    static unsigned serial;
    (void)snprintf(out, size, "MUSTER_TEST_MARK=%d.%u.%lld", (int)getpid(), serial++, (long long)clock_monotonic_ns());
}

static bool environ_has(const char *pid, const char *mark) {
    static char text[ENVIRON_BYTES];
    char path[300];
    (void)snprintf(path, sizeof path, "/proc/%s/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, text, sizeof text);
    (void)close(fd);
    return n > 0 && memmem(text, (size_t)n, mark, strlen(mark) + 1) != NULL;
}

/* Calls kill(pid, number) for each; number 0 only counts. */
static unsigned survivors_each(const char *mark, int number) {
    unsigned count = 0;
    DIR *folder = opendir("/proc");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (*end == '\0' && pid > 0 && environ_has(entry->d_name, mark)) {
            (void)kill((pid_t)pid, number);
            count++;
        }
    }
    (void)closedir(folder);
    return count;
}

unsigned survivors_count(const char *mark) {
    return survivors_each(mark, 0);
}

void survivors_kill(const char *mark) {
    (void)survivors_each(mark, SIGKILL);
}

unsigned survivors_wait(const char *mark, int limit_ms) {
    int64_t end_ns = clock_monotonic_ns() + limit_ms * CLOCK_NS_PER_MS;
    unsigned count;
    while ((count = survivors_count(mark)) > 0 && clock_monotonic_ns() < end_ns) {
        (void)poll(NULL, 0, 1);
    }
    return count;
}

static void on_spawned(void *ctx, uint32_t id, pid_t pid) {
    struct harness *h = ctx;
    assert_in_range(id, 0, HARNESS_EXITS_MAX - 1);
    assert_true(pid > 0);
    h->pids[id] = pid;
    h->spawned_count++;
}

static void on_spawn_failed(void *ctx, uint32_t id, int error_number, const char *why) {
    struct harness *h = ctx;
    h->failed_count++;
    h->failed_id = id;
    h->failed_errno = error_number;
    (void)snprintf(h->failed_why, sizeof h->failed_why, "%s", why);
}

static void on_exit_seen(void *ctx, const struct guardian_exit *exit) {
    struct harness *h = ctx;
    assert_true(h->exit_count < HARNESS_EXITS_MAX);
    h->exits[h->exit_count++] = *exit;
}

static void on_gone(void *ctx) {
    ((struct harness *)ctx)->gone_count++;
}

static void on_lost(void *ctx) {
    ((struct harness *)ctx)->lost_count++;
}

static void on_lingering(void *ctx, const struct guardian_lingering *lingering) {
    struct harness *h = ctx;
    h->lingering_count++;
    h->lingering = *lingering;
}

static void on_orphan(void *ctx, pid_t pid, int wait_status) {
    struct harness *h = ctx;
    for (size_t i = 0; i < HARNESS_EXITS_MAX; i++) {
        if (h->pids[i] == pid) {
            h->orphan_count++;
            h->orphan_status = wait_status;
        }
    }
}

static void on_preload(void *ctx, const struct guardian_preload_news *news) {
    struct harness *h = ctx;
    assert_in_range(news->kind, 0, GUARDIAN_PRELOAD_AS_USUAL);
    h->preload_counts[news->kind]++;
    if (news->kind == GUARDIAN_PRELOAD_AS_USUAL) {
        (void)snprintf(h->preload_why, sizeof h->preload_why, "%s", news->text);
    } else {
        h->preload = *news;
    }
    if (news->kind == GUARDIAN_PRELOAD_REFUSED) {
        (void)snprintf(h->preload_refusal, sizeof h->preload_refusal, "%s", news->text);
    }
}

void harness_open(struct harness *h) {
    static const struct guardian_callbacks callbacks = {on_spawned, on_spawn_failed, on_exit_seen, on_gone,
                                                        on_lost,    on_lingering,    on_orphan,    on_preload};
    int pair[2];
    *h = (struct harness){0};
    mark_make(h->mark, sizeof h->mark);
    h->envp[0] = h->mark;
    h->envp[1] = "PATH=/usr/bin:/bin";
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    h->out_read = pair[0];
    h->out_write = pair[1];
    assert_int_equal(uv_loop_init(&h->loop), 0);
    assert_int_equal(guardian_create(&h->loop, &callbacks, h, &h->guardian), 0);
}

void harness_close(struct harness *h) {
    guardian_close(h->guardian);
    assert_int_equal(uv_run(&h->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    (void)close(h->out_read);
    (void)close(h->out_write);
}

int harness_setup(void **state) {
    struct harness *h = malloc(sizeof *h);
    assert_non_null(h);
    harness_open(h);
    *state = h;
    return 0;
}

int harness_teardown(void **state) {
    struct harness *h = *state;
    harness_close(h);
    assert_int_equal(survivors_count(h->mark), 0);
    free(h);
    return 0;
}

void harness_spawn_argv(struct harness *h, uint32_t id, const char *const *argv) {
    struct guardian_spawn spawn = {.argv = argv, .envp = h->envp, .stdout_fd = h->out_write, .stderr_fd = -1};
    assert_int_equal(guardian_spawn(h->guardian, id, &spawn), 0);
}

void harness_spawn(struct harness *h, uint32_t id, const char *mode, int number) {
    char text[16];
    (void)snprintf(text, sizeof text, "%d", number);
    const char *argv[] = {HOSTILE_PATH, mode, text, NULL};
    harness_spawn_argv(h, id, argv);
}

static void on_limit(uv_timer_t *timer) {
    *(bool *)timer->data = true;
}

struct wanted {
    struct harness *h;
    bool (*done)(const struct harness *h, const void *what);
    const void *what;
};

/* A turn runs timers first and then waits for an event, whatever the timers have done. */
static void look_before_waiting(uv_prepare_t *prepare) {
    const struct wanted *wanted = prepare->data;
    if (wanted->done(wanted->h, wanted->what)) {
        uv_stop(prepare->loop);
    }
}

/* Turns of the loop until the test's condition holds; a timer keeps a broken guardian from hanging the test. */
static void loop_until(struct harness *h, bool (*done)(const struct harness *h, const void *what), const void *what) {
    struct wanted wanted = {h, done, what};
    bool expired = false;
    uv_timer_t limit;
    uv_prepare_t look;
    assert_int_equal(uv_prepare_init(&h->loop, &look), 0);
    look.data = &wanted;
    assert_int_equal(uv_prepare_start(&look, look_before_waiting), 0);
    assert_int_equal(uv_timer_init(&h->loop, &limit), 0);
    limit.data = &expired;
    assert_int_equal(uv_timer_start(&limit, on_limit, LIMIT_MS, 0), 0);
    while (!done(h, what) && !expired) {
        (void)uv_run(&h->loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&limit, NULL);
    uv_close((uv_handle_t *)&look, NULL);
    (void)uv_run(&h->loop, UV_RUN_NOWAIT);
    if (expired) {
        print_error(
            "in vain; until then: spawned %u, failed %u, exits %zu, gone %u, lost %u, orphans %u, survivors %u\n",
            h->spawned_count, h->failed_count, h->exit_count, h->gone_count, h->lost_count, h->orphan_count,
            survivors_count(h->mark));
        survivors_kill(h->mark);
    }
    assert_false(expired);
}

struct counter_wanted {
    const unsigned *counter;
    unsigned value;
};

static bool counter_reached(const struct harness *h, const void *what) {
    const struct counter_wanted *wanted = what;
    (void)h;
    return *wanted->counter >= wanted->value;
}

static bool exits_reached(const struct harness *h, const void *what) {
    return h->exit_count >= *(const size_t *)what;
}

void harness_until(struct harness *h, const unsigned *counter, unsigned value) {
    struct counter_wanted wanted = {counter, value};
    loop_until(h, counter_reached, &wanted);
}

void harness_until_exits(struct harness *h, size_t value) {
    loop_until(h, exits_reached, &value);
}

void harness_ready(struct harness *h, unsigned count) {
    while (count > 0) {
        char text[4096];
        struct pollfd wait = {.fd = h->out_read, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, LIMIT_MS), 1);
        ssize_t n = read(h->out_read, text, sizeof text);
        assert_true(n > 0);
        for (ssize_t i = 0; i < n; i++) {
            count -= text[i] == '\n' && count > 0;
        }
    }
}

double harness_kill_all(struct harness *h) {
    int64_t start_ns = clock_monotonic_ns();
    unsigned before = h->gone_count;
    assert_int_equal(guardian_kill_all(h->guardian), 0);
    harness_until(h, &h->gone_count, before + 1);
    return (double)(clock_monotonic_ns() - start_ns) / 1e6;
}
