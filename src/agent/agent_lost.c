/* With --survivors=continue: tells the workers of this node's world that one of them is lost.
 *
 * Ranks that have met see a loss by themselves. Those that have not would wait, until their group's time-out, for one
 * that never comes; and the lost node waits for them to begin the next round. So the word goes where they meet: into
 * the workers' store, by each agent that knows of a loss, under a name of this round (MUSTER_LOST_KEY). It is a help:
 * where the store cannot be reached, the time-out ends the wait. */
#include "agent/agent_impl.h"
#include "base/log.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "store/client/kv_client.h"

#include <muster/status.h>

static void close_client(struct agent *a) {
    kv_client_close(a->lost_client);
    a->lost_client = NULL;
}

static void on_told(void *ctx, const struct kv_reply *reply) {
    (void)reply;
    close_client(ctx);
}

static void on_state(void *ctx, int status) {
    if (status != MUSTER_OK) {
        close_client(ctx);
    }
}

static void tell(struct agent *a, const char *who) {
    enum { PATIENCE_MS = 5000 };
    struct net_addresses where;
    char key[ENVIRONMENT_LOST_KEY_MAX];
    if (!a->config->survivors_continue || a->has_told_lost) {
        return;
    }
    a->has_told_lost = true;
    int rc = net_resolve_numeric(a->world.master_addr, a->world.master_port, &where);
    rc = rc ? rc
            : kv_client_create(&a->loop, (const struct sockaddr *)&where.list[0].sockaddr, PATIENCE_MS, on_state, a,
                               &a->lost_client);
    rc = rc ? rc /* the first one counts: others fail because of it */
            : kv_client_compare_set(a->lost_client, environment_lost_key(a->world.round, key), kv_slice_text(""),
                                    kv_slice_text(who), on_told, a);
    if (rc != MUSTER_OK) {
        log_info("workers that wait for a lost one are not told: %s", muster_detail());
    }
}

/* Static nodes that start again, or are replaced, come back to the same store, where the others rightly wait for them.
 */
static bool comes_back(const struct agent *a) {
    return a->config->rdzv.backend == RDZV_BACKEND_STATIC && a->config->rdzv.max_nodes > 1;
}

void agent_lost_tell_node(struct agent *a, const char *why) {
    if (!comes_back(a)) {
        tell(a, why);
    }
}

void agent_lost_tell_worker(struct agent *a, uint32_t local_rank) {
    char who[REPORT_HOST_SIZE + 64], host[REPORT_HOST_SIZE];
    if (comes_back(a) && a->machine.restarts_left > 0) {
        return;
    }
    report_host(host);
    (void)str_format(who, sizeof who, "rank %u (pid %d on host %s) has ended", a->world.base_global_rank + local_rank,
                     (int)a->workers[local_rank].pid, host);
    tell(a, who);
}

void agent_lost_forget(struct agent *a) {
    close_client(a);
    a->has_told_lost = false;
}
