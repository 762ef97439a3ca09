/* The barrier at the end of a job, by a counter in the nodes' store: each node counts itself in, the last one tells the
 * others. Keys and contents are PyTorch's. Who is expected, and what the departure of a node means, its user decides
 * (job_end.h). */
#ifndef RENDEZVOUS_EXIT_BARRIER_H
#define RENDEZVOUS_EXIT_BARRIER_H

#include <stdbool.h>

#include "store/client/kv_client.h"

enum { EXIT_BARRIER_PREFIX_MAX = 512, EXIT_BARRIER_KEY_MAX = EXIT_BARRIER_PREFIX_MAX + 64 };

struct exit_barrier_options {
    struct kv_client *client; /* borrowed as long as it lives: is asked what is answered at once */
    struct kv_client *waiter; /* borrowed until exit_barrier_stop(): waits, and nobody else uses it. May be `client` */
    const char *prefix;       /* of the keys, "/" at its end if there is one; copied */
    int64_t expected_count;   /* nodes */
    uint64_t timeout_ms;      /* 0: none */
    /* This node has been counted. NULL accepted. */
    void (*on_counted)(void *ctx);
    /* Asked then: is it known already that not all will come? What becomes known later is for the user to act upon.
     * NULL accepted. */
    bool (*is_in_vain)(const void *ctx);
    /* status 0: all have come. MUSTER_ETIMEOUT, MUSTER_ECLOSED (in vain), or what has happened to the store; with
     * muster_detail(). Once; may stop the barrier. */
    void (*on_over)(void *ctx, int status);
    void *ctx;
};

/* Part of its user, who begins it once. */
struct exit_barrier {
    struct exit_barrier_options options;
    char prefix[EXIT_BARRIER_PREFIX_MAX];
    bool is_active; /* begun, not over, not stopped */
    bool is_counted;
};

/* Counts this node in and waits. MUSTER_ECLOSED, MUSTER_ENOMEM, MUSTER_ELIMIT. */
int exit_barrier_begin(struct exit_barrier *barrier, const struct exit_barrier_options *options);
/* on_over() does not come any more. Close the waiter first. */
void exit_barrier_stop(struct exit_barrier *barrier);

/* So many are expected now. */
void exit_barrier_expect(struct exit_barrier *barrier, int64_t count);

/* For those who wait: all that are expected have come, as the caller knows. */
int exit_barrier_tell_all(struct kv_client *client, const char *prefix);
/* How many have come? The answer's number. */
int exit_barrier_ask_count(struct kv_client *client, const char *prefix, kv_reply_cb *cb, void *ctx);

/* The key of the counter. */
void exit_barrier_count_key(const char *prefix, char out[EXIT_BARRIER_KEY_MAX]);

#endif
