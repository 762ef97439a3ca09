/* The barrier at the end of a job; see exit_barrier.h. */
#include "rendezvous/round/exit_barrier.h"

#include <assert.h>

#include "base/status.h"
#include "base/str.h"

static void key_of(const char *prefix, char out[EXIT_BARRIER_KEY_MAX], const char *name) {
    (void)str_format(out, EXIT_BARRIER_KEY_MAX, "%storchelastic/agent/terminal_state/%s", prefix, name);
}

void exit_barrier_count_key(const char *prefix, char out[EXIT_BARRIER_KEY_MAX]) {
    key_of(prefix, out, "num_members");
}

int exit_barrier_tell_all(struct kv_client *client, const char *prefix) {
    char key[EXIT_BARRIER_KEY_MAX];
    key_of(prefix, key, "last_member");
    return kv_client_set(client, key, kv_slice_text("<val_ignored>"), NULL, NULL);
}

int exit_barrier_ask_count(struct kv_client *client, const char *prefix, kv_reply_cb *cb, void *ctx) {
    char key[EXIT_BARRIER_KEY_MAX];
    exit_barrier_count_key(prefix, key);
    return kv_client_add(client, key, 0, cb, ctx);
}

static void over(struct exit_barrier *barrier, int status) {
    assert(barrier->is_active); /* it ends once */
    barrier->is_active = false;
    barrier->options.on_over(barrier->options.ctx, status);
}

static void on_last_member(void *ctx, const struct kv_reply *reply) {
    struct exit_barrier *barrier = ctx;
    if (barrier->is_active) {
        over(barrier, reply->status);
    }
}

static int wait_for_others(struct exit_barrier *barrier) {
    char key[EXIT_BARRIER_KEY_MAX];
    const char *keys[] = {key};
    key_of(barrier->prefix, key, "last_member");
    return kv_client_wait(barrier->options.waiter, keys, 1, barrier->options.timeout_ms, on_last_member, barrier);
}

static void on_counted(void *ctx, const struct kv_reply *reply) {
    struct exit_barrier *barrier = ctx;
    const struct exit_barrier_options *o = &barrier->options;
    int rc = reply->status;
    if (!barrier->is_active) {
        return; /* it is over already */
    }
    bool are_all_here = rc == MUSTER_OK && reply->number >= o->expected_count;
    barrier->is_counted = rc == MUSTER_OK;
    if (barrier->is_counted && o->on_counted) {
        o->on_counted(o->ctx);
    }
    if (!barrier->is_active) {
        return;
    }
    if (are_all_here) {
        rc = exit_barrier_tell_all(o->waiter, barrier->prefix);
    } else if (rc == MUSTER_OK && o->is_in_vain && o->is_in_vain(o->ctx)) {
        rc = status_fail(MUSTER_ECLOSED, "a node has left the job, or has closed it");
    }
    rc = rc ? rc : wait_for_others(barrier);
    if (rc != MUSTER_OK) {
        over(barrier, rc);
    }
}

int exit_barrier_begin(struct exit_barrier *barrier, const struct exit_barrier_options *options) {
    char key[EXIT_BARRIER_KEY_MAX];
    *barrier = (struct exit_barrier){.options = *options};
    if (!str_copy(barrier->prefix, sizeof barrier->prefix, options->prefix)) {
        return status_fail(MUSTER_ELIMIT, "the prefix of the exit barrier is too long");
    }
    barrier->options.prefix = barrier->prefix;
    exit_barrier_count_key(barrier->prefix, key);
    int rc = kv_client_add(options->client, key, 1, on_counted, barrier);
    barrier->is_active = rc == MUSTER_OK;
    return rc;
}

void exit_barrier_stop(struct exit_barrier *barrier) {
    barrier->is_active = false;
}

static void on_counted_again(void *ctx, const struct kv_reply *reply) {
    struct exit_barrier *barrier = ctx;
    if (barrier->is_active && reply->status == MUSTER_OK && reply->number >= barrier->options.expected_count) {
        (void)exit_barrier_tell_all(barrier->options.client, barrier->prefix);
    }
}

void exit_barrier_expect(struct exit_barrier *barrier, int64_t count) {
    if (barrier->is_active && count != barrier->options.expected_count) {
        barrier->options.expected_count = count;
        (void)exit_barrier_ask_count(barrier->options.client, barrier->prefix, on_counted_again, barrier);
    }
}
