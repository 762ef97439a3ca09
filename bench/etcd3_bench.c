/* etcd3_bench ENDPOINT RUN_ID AGENTS: so many agents of one job meet at an etcd by its v3 API (--rdzv-backend=etcd-v3).
 *
 * Prints the milliseconds until the last one has its ranks, until the last one knows that a worker of the first has
 * failed, and until the last one has its ranks again. Each agent is whole, with connections, a lease and a workers'
 * store of its own; they share a process and its loop, as the leader and etcd share the machine. */
#include <stdio.h>
#include <stdlib.h>

#include <muster/status.h>

#include "base/clock.h"
#include "base/str.h"
#include "rendezvous/rdzv.h"

enum { AGENTS_MAX = 1024 };

enum stage { STAGE_RANKED, STAGE_TOLD, STAGE_AGAIN, STAGE_ENDING, STAGES };

struct job {
    uv_loop_t loop;
    struct rdzv *agents[AGENTS_MAX];
    size_t count, arrived;
    enum stage stage;
    int64_t began_ns;
    double took_ms[STAGES];
    int exit_code;
};

static void begin(struct job *job, enum stage stage) {
    job->stage = stage;
    job->arrived = 0;
    job->began_ns = clock_monotonic_ns();
}

static void on_ended(void *ctx) {
    struct job *job = ctx;
    if (++job->arrived < job->count) {
        return;
    }
    for (size_t i = 0; i < job->count; i++) {
        rdzv_free(job->agents[i]);
    }
}

static void end(struct job *job) {
    begin(job, STAGE_ENDING);
    for (size_t i = 0; i < job->count; i++) {
        rdzv_shutdown(job->agents[i], true, on_ended);
    }
}

/* One more agent has come so far; the last one begins what is next. */
static void arrive(struct job *job, size_t wanted) {
    if (++job->arrived < wanted) {
        return;
    }
    job->took_ms[job->stage] = (double)(clock_monotonic_ns() - job->began_ns) / 1e6;
    if (job->stage == STAGE_RANKED && job->count > 1) {
        begin(job, STAGE_TOLD);
        rdzv_worker_failed(job->agents[0],
                           &(struct rdzv_cause){.pid = 1, .wait_status = 1 << 8, .how = "exited with code 1"});
    } else if (job->stage == STAGE_TOLD) {
        begin(job, STAGE_AGAIN);
        for (size_t i = 0; i < job->count; i++) {
            rdzv_join(job->agents[i]);
        }
    } else {
        end(job);
    }
}

static void on_world(void *ctx, const struct rdzv_world *world) {
    struct job *job = ctx;
    (void)world;
    arrive(job, job->count);
}

static void on_change(void *ctx, enum rdzv_change change, const char *why) {
    struct job *job = ctx;
    (void)change;
    (void)why;
    arrive(job, job->count - 1); /* the one that has failed knows */
}

static void on_failed(void *ctx, int status, const char *why) {
    struct job *job = ctx;
    (void)status;
    if (job->stage != STAGE_ENDING) {
        (void)fprintf(stderr, "etcd3_bench: %s\n", why);
        exit(1);
    }
}

static void start(struct job *job, const char *endpoint, const char *run_id) {
    static const struct rdzv_callbacks callbacks = {
        .on_world = on_world, .on_change = on_change, .on_failed = on_failed};
    struct rdzv_options options = {.backend = RDZV_BACKEND_ETCD_V3,
                                   .run_id = run_id,
                                   .endpoint = endpoint,
                                   .local_addr = "127.0.0.1",
                                   .min_nodes = (uint32_t)job->count,
                                   .max_nodes = (uint32_t)job->count,
                                   .local_world_size = 1,
                                   .max_restarts = RDZV_UNLIMITED,
                                   .share_store = true};
    rdzv_conf_init(&options.conf);
    (void)str_copy(options.conf.etcd.prefix, sizeof options.conf.etcd.prefix, "/muster");
    begin(job, STAGE_RANKED);
    for (size_t i = 0; i < job->count; i++) {
        if (rdzv_create(&job->loop, &options, &callbacks, job, &job->agents[i]) != 0) {
            (void)fprintf(stderr, "etcd3_bench: %s\n", muster_detail());
            exit(1);
        }
        rdzv_join(job->agents[i]);
    }
}

int main(int argc, char **argv) {
    static struct job job;
    int64_t count = 0;
    if (argc != 4 || !str_parse_i64(argv[3], &count) || count < 1 || count > AGENTS_MAX) {
        (void)fprintf(stderr, "usage: etcd3_bench ENDPOINT RUN_ID AGENTS\n");
        return 1;
    }
    job.count = (size_t)count;
    (void)uv_loop_init(&job.loop);
    start(&job, argv[1], argv[2]);
    (void)uv_run(&job.loop, UV_RUN_DEFAULT);
    (void)printf("%.2f %.2f %.2f\n", job.took_ms[STAGE_RANKED], job.took_ms[STAGE_TOLD], job.took_ms[STAGE_AGAIN]);
    return uv_loop_close(&job.loop) == 0 ? 0 : 1;
}
