/* Takes the keys of old rounds out of the shared store, which would grow with every restart.
 *
 * When a world has formed, nobody asks for the keys of a round before the previous one: an agent that is late is in the
 * previous one at most, since this one could not form without it, or had dropped it. Each node deletes what it alone
 * reads or has written, and rank 0 what it has written for all; so the work is spread, and what PyTorch's agents write
 * stays theirs. An address is looked for in older rounds by those who find none in the newer ones (master_search.h):
 * it goes when this node has told its own in the two worlds since.
 *
 * Of stores behind a connection alone: a file only grows by what is deleted from it, and PyTorch's agents delete
 * nothing from an etcd. */
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

/* Without an answer that anybody waits for: a lost connection is noticed by other requests, and a key that stays does
 * no harm. */
static void forget(struct c10d *c, int64_t round, const char *name) {
    char key[2 * C10D_KEY_MAX];
    (void)str_format(key, sizeof key, "%s.%lld/%s", c->key, (long long)round, name);
    (void)kv_client_delete(c->client, key, NULL, NULL);
}

static void forget_numbered(struct c10d *c, const struct c10d_past *past, const char *name) {
    char text[64];
    (void)str_format(text, sizeof text, "torchelastic/%s/%u", name, past->rank);
    forget(c, past->round, text);
}

static void forget_round(struct c10d *c, const struct c10d_past *past, bool address_too) {
    /* A failure that is judged ends the job, so that no statements lie beside the record of an old round. */
    static const char *const of_rank_0[] = {"torchelastic/agent/terminal_state/num_members",
                                            "torchelastic/agent/terminal_state/last_member", "muster/failed"};
    static const char *const address[] = {"MASTER_ADDR", "MASTER_PORT", "MASTER_NODE"};
    if (!c->rdzv->options.identical_workers) {
        forget_numbered(c, past, "role_info");
        forget_numbered(c, past, "assigned_ranks");
    }
    for (size_t i = 0; past->rank == 0 && i < sizeof of_rank_0 / sizeof *of_rank_0; i++) {
        forget(c, past->round, of_rank_0[i]);
    }
    for (size_t i = 0; address_too && i < sizeof address / sizeof *address; i++) {
        forget(c, past->round, address[i]);
    }
}

void c10d_past_formed(struct c10d *c, uint32_t rank) {
    const struct c10d_past now = {.round = c->world.round, .rank = rank, .hosts = c->hosts_world, .is_set = true};
    const struct c10d_past *last = &c->past[0], *before = &c->past[1];
    if (before->is_set && before->round + 1 < now.round && c->link) {
        forget_round(c, before, before->hosts && last->hosts && now.hosts);
    }
    c->past[1] = *last;
    c->past[0] = now;
}
