/* The smallest agent: a guardian and workers of several kinds, for tests that kill it.
 *
 * Usage: agent_stub PHASE HOSTILE [MODE NUMBER]... It writes one byte to descriptor 3, if that is open, when it
 * enters its phase:
 *   spawn  's' before the guardian exists; then starts the workers and runs on
 *   run    'r' when every worker has been started; then runs on
 *   signal 'g' after asking for SIGTERM to every group; then runs on
 *   stop   'k' after asking to kill everything; then starts over, for ever
 *   end    closes the guardian when all have been started, and exits 0
 *   abort  dies of SIGABRT when all have been started
 *   lost   runs on; exits 7 when the guardian was lost */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "agent/guardian/guardian.h"

enum { PHASE_FD = 3, WORKERS_MAX = 64 };

extern char **environ;

struct stub {
    uv_loop_t loop;
    struct guardian *guardian;
    const char *phase;
    const char *argv[WORKERS_MAX][4];
    uint32_t worker_count;
    uint32_t started_count;
    int exit_code;
};

static void phase_tell(char what) {
    if (write(PHASE_FD, &what, 1) < 0) {
        return; /* nobody listens */
    }
}

static void workers_start(struct stub *s) {
    s->started_count = 0;
    for (uint32_t id = 0; id < s->worker_count; id++) {
        struct guardian_spawn spawn = {
            .argv = s->argv[id], .envp = (const char *const *)environ, .stdout_fd = -1, .stderr_fd = -1};
        if (guardian_spawn(s->guardian, id, &spawn) != 0) {
            s->exit_code = 3;
            uv_stop(&s->loop);
        }
    }
}

static void all_started(struct stub *s) {
    if (strcmp(s->phase, "run") == 0) {
        phase_tell('r');
    } else if (strcmp(s->phase, "signal") == 0) {
        (void)guardian_signal(s->guardian, SIGTERM);
        phase_tell('g');
    } else if (strcmp(s->phase, "stop") == 0) {
        (void)guardian_kill_all(s->guardian);
        phase_tell('k');
    } else if (strcmp(s->phase, "end") == 0) {
        uv_stop(&s->loop);
    } else if (strcmp(s->phase, "abort") == 0) {
        abort();
    } else if (strcmp(s->phase, "lost") == 0) {
        pid_t guardian = guardian_pid(s->guardian);
        if (write(PHASE_FD, &guardian, sizeof guardian) < 0) {
            abort();
        }
    }
}

static void on_spawned(void *ctx, uint32_t id, pid_t pid) {
    struct stub *s = ctx;
    (void)id;
    (void)pid;
    if (++s->started_count == s->worker_count) {
        all_started(s);
    }
}

static void on_spawn_failed(void *ctx, uint32_t id, int error_number, const char *why) {
    struct stub *s = ctx;
    (void)id;
    (void)error_number;
    (void)fprintf(stderr, "%s\n", why);
    s->exit_code = 4;
    uv_stop(&s->loop);
}

static void on_worker_exit(void *ctx, const struct guardian_exit *exit) {
    (void)ctx;
    (void)exit;
}

static void on_gone(void *ctx) {
    workers_start(ctx);
}

static void on_lost(void *ctx) {
    struct stub *s = ctx;
    s->exit_code = 7;
    uv_stop(&s->loop);
}

int main(int argc, char **argv) {
    static const struct guardian_callbacks callbacks = {
        on_spawned, on_spawn_failed, on_worker_exit, on_gone, on_lost, NULL, NULL, NULL};
    static struct stub stub;
    if (argc < 5 || uv_loop_init(&stub.loop) != 0) {
        return 2;
    }
    stub.phase = argv[1];
    for (int i = 3; i + 1 < argc && stub.worker_count < WORKERS_MAX; i += 2) {
        const char *worker[4] = {argv[2], argv[i], argv[i + 1], NULL};
        memcpy(stub.argv[stub.worker_count++], worker, sizeof worker);
    }
    if (strcmp(stub.phase, "spawn") == 0) {
        phase_tell('s');
    }
    if (guardian_create(&stub.loop, &callbacks, &stub, &stub.guardian) != 0) {
        return 2;
    }
    workers_start(&stub);
    (void)uv_run(&stub.loop, UV_RUN_DEFAULT);
    guardian_close(stub.guardian);
    (void)uv_run(&stub.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&stub.loop);
    return stub.exit_code;
}
