/* What agent and guardian say to each other: kinds of frames and their bodies. Pure. */
#ifndef AGENT_GUARDIAN_WIRE_H
#define AGENT_GUARDIAN_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "agent/guardian/guardian.h"
#include "base/buf.h"

enum guardian_kind {
    /* agent to guardian */
    GUARDIAN_KIND_SPAWN =
        1,                  /* struct guardian_spawn_head, CPU set, argv, envp; stdout, stderr and given_fd beside it */
    GUARDIAN_KIND_SIGNAL,   /* struct guardian_signal_order */
    GUARDIAN_KIND_KILL_ALL, /* empty */
    GUARDIAN_KIND_LEFTOVER, /* struct guardian_leftover */
    GUARDIAN_KIND_DISMISS,  /* struct guardian_dismiss_order */
    GUARDIAN_KIND_OUTCOME,  /* struct guardian_outcome_order, path, job; neither is terminated */
    GUARDIAN_KIND_ERROR_FILE, /* uint32_t id, path, which is not terminated */
    GUARDIAN_KIND_PRELOAD,    /* as SPAWN: the preload server */
    GUARDIAN_KIND_COMPANION,  /* as SPAWN: what serves the workers of an attempt */
    /* guardian to agent */
    GUARDIAN_KIND_SPAWNED, /* struct guardian_spawned */
    GUARDIAN_KIND_SPAWN_FAILED,
    GUARDIAN_KIND_EXIT,         /* struct guardian_exit */
    GUARDIAN_KIND_GONE,         /* struct guardian_survivors */
    GUARDIAN_KIND_LINGERING,    /* struct guardian_lingering */
    GUARDIAN_KIND_DISMISSED,    /* empty */
    GUARDIAN_KIND_PRELOAD_NEWS, /* struct guardian_preload_news */
};

#define GUARDIAN_WHY_BYTES 512
#define GUARDIAN_LEFTOVER_BYTES 4096
#define GUARDIAN_CPUS_BYTES_MAX 8192 /* a mask of 65536 CPUs */

struct guardian_spawn_head {
    uint32_t id;
    uint32_t argv_count;
    uint32_t envp_count;
    uint32_t cpus_bytes;
    uint32_t has_stdout;
    uint32_t has_stderr;
    uint32_t has_given;
    uint32_t is_preloaded;
};

struct guardian_signal_order {
    int32_t signal_number;
    uint32_t only_one; /* the leader of worker `id` alone */
    uint32_t id;
};

struct guardian_dismiss_order {
    uint32_t leaves_detached;
};

struct guardian_outcome_order {
    uint32_t worker_count; /* 0 before the first world */
    uint32_t base_global_rank, base_role_rank;
    uint32_t path_bytes; /* 0: the agent has written it itself */
};

struct guardian_leftover {
    int32_t folder_levels; /* 0: a FIFO */
    char path[GUARDIAN_LEFTOVER_BYTES];
};

struct guardian_spawned {
    uint32_t id;
    int32_t pid;
};

struct guardian_spawn_failed {
    uint32_t id;
    int32_t error_number;
    char why[GUARDIAN_WHY_BYTES];
};

struct guardian_survivors {
    uint32_t count; /* processes that could not be killed; 0 as a rule */
    int32_t pid;    /* one of them */
};

/* A decoded spawn: pointers into the frame and two owned arrays. */
struct guardian_order {
    struct guardian_spawn_head head;
    char **argv;     /* owned array, NULL-terminated */
    char **envp;     /* owned array, NULL-terminated */
    cpu_set_t *cpus; /* owned copy, aligned; NULL = none */
};

/* Writes the body of a spawn frame into `out`. MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int guardian_wire_encode(uint32_t id, const struct guardian_spawn *spawn, struct buf *out);

/* Reads it back; `body` is borrowed while `out` is in use. MUSTER_EPROTOCOL, MUSTER_ENOMEM. */
int guardian_wire_decode(const uint8_t *body, size_t length, struct guardian_order *out);

void guardian_order_done(struct guardian_order *order);

#endif
