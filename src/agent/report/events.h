/* --event-log-handler console: torchelastic's events, one JSON object a line.
 *
 * Pure: what happened comes in, a line of text comes out; the caller writes it to stderr. */
#ifndef AGENT_EVENTS_H
#define AGENT_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum event_source { EVENT_SOURCE_AGENT, EVENT_SOURCE_WORKER };

struct event { /* strings are borrowed; NULL is null in the line */
    enum event_source source;
    const char *state; /* "RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED", "FAILED", "TERMINATED" */
    const char *run_id;
    const char *role;
    const char *host;
    const char *backend;
    const char *entry_point;
    const char *raw_error;     /* JSON text of a worker's error file, or what went wrong in the agent */
    uint32_t group_world_size; /* 0 before the first world: null */
    bool has_group_rank;
    uint32_t group_rank;
    uint64_t total_run_time_s;
    uint32_t restart_count;
    bool has_duration;
    double duration_ms;
    struct { /* source WORKER only */
        uint32_t global_rank, local_rank, role_rank, role_world_size;
        int64_t pid;
        bool failed; /* exit_code and the pid in the inner metadata are given for failed workers only */
        int exit_code;
    } worker;
};

/* Appends the line, '\n' included. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int event_format(const struct event *event, struct buf *out);

#endif
