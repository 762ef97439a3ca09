/* The barrier at the end of a job; see exit_barrier.h. */
#include "rendezvous/exit_barrier.h"

#include <stdlib.h>

#include "base/status.h"
#include "base/str.h"

enum { PREFIX_MAX = 512, KEY_MAX = PREFIX_MAX + 64 };

struct exit_barrier {
    struct kv_client *client;
    char prefix[PREFIX_MAX];
    uint32_t count;
    uint64_t timeout_ms;
    exit_barrier_in_vain *in_vain;
    exit_barrier_cb *cb;
    void *ctx;
};

static void key_of(const struct exit_barrier *barrier, char out[KEY_MAX], const char *name) {
    (void)str_format(out, KEY_MAX, "%storchelastic/agent/terminal_state/%s", barrier->prefix, name);
}

static void on_last_member(void *ctx, const struct kv_reply *reply) {
    struct exit_barrier *barrier = ctx;
    barrier->cb(barrier->ctx, reply->status == MUSTER_OK);
}

static void on_counted(void *ctx, const struct kv_reply *reply) {
    struct exit_barrier *barrier = ctx;
    char key[KEY_MAX];
    const char *keys[] = {key};
    int rc = reply->status;
    bool are_all_here = rc == MUSTER_OK && reply->number >= (int64_t)barrier->count;
    key_of(barrier, key, "last_member");
    if (are_all_here) {
        rc = kv_client_set(barrier->client, key, kv_slice_text("<val_ignored>"), NULL, NULL);
    } else if (rc == MUSTER_OK && barrier->in_vain(barrier->ctx)) {
        rc = status_fail(MUSTER_ECLOSED, "a node has left the job, or has closed it");
    }
    rc = rc ? rc : kv_client_wait(barrier->client, keys, 1, barrier->timeout_ms, on_last_member, barrier);
    if (rc != MUSTER_OK) {
        barrier->cb(barrier->ctx, false);
    }
}

int exit_barrier_start(struct kv_client *client, const char *prefix, uint32_t count, uint64_t timeout_ms,
                       exit_barrier_in_vain *in_vain, exit_barrier_cb *cb, void *ctx, struct exit_barrier **out) {
    char key[KEY_MAX];
    struct exit_barrier *barrier = calloc(1, sizeof *barrier);
    if (!barrier) {
        return status_fail(MUSTER_ENOMEM, "no memory for the exit barrier");
    }
    *barrier = (struct exit_barrier){
        .client = client, .count = count, .timeout_ms = timeout_ms, .in_vain = in_vain, .cb = cb, .ctx = ctx};
    int rc = str_copy(barrier->prefix, sizeof barrier->prefix, prefix)
                 ? MUSTER_OK
                 : status_fail(MUSTER_ELIMIT, "the prefix of the exit barrier is too long");
    key_of(barrier, key, "num_members");
    rc = rc ? rc : kv_client_add(client, key, 1, on_counted, barrier);
    if (rc != MUSTER_OK) {
        free(barrier);
        return rc;
    }
    *out = barrier;
    return MUSTER_OK;
}

void exit_barrier_close(struct exit_barrier *barrier) {
    free(barrier);
}
