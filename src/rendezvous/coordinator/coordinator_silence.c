/* Members of which nothing is heard, though no word has come of their end; see coordinator_server_impl.h. */
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator/coordinator_server_impl.h"

enum { TELL_MS = 60000, MS_PER_S = 1000 };

static void defer(struct coordinator_server *server, struct agent *agent, int64_t deadline_ms) {
    coordinator_agents_take_out(&server->joined, agent);
    agent->deadline_ms = deadline_ms;
    coordinator_agents_insert(&server->joined, agent);
}

/* Its workers run on for as long as it was told that its place is kept. */
static void keep_silent(struct coordinator_server *server, struct agent *agent, int64_t now_ms, int64_t end_ms) {
    char name[COORDINATOR_NAME_BYTES_MAX + 32];
    log_warning("no sign of life from node %s for %lld s; it keeps its place, and its workers may run, for %lld s more",
                coordinator_member_name(agent->member, name, sizeof name),
                (long long)((now_ms - agent->heard_ms) / MS_PER_S), (long long)((end_ms - now_ms) / MS_PER_S));
    agent->is_silent = true;
    defer(server, agent, end_ms - now_ms < TELL_MS ? end_ms : now_ms + TELL_MS);
}

void coordinator_silence_heard(struct coordinator_server *server, struct agent *agent) {
    char name[COORDINATOR_NAME_BYTES_MAX + 32];
    if (agent->is_silent) {
        log_warning("node %s answers again after %lld s", coordinator_member_name(agent->member, name, sizeof name),
                    (long long)((coordinator_server_awake_ms(server) - agent->heard_ms) / MS_PER_S));
        agent->is_silent = false;
        defer(server, agent, agent->heard_ms + server->silence_ms);
    }
}

int64_t coordinator_silence_works_until_ms(const struct coordinator_server *server, const struct agent *agent) {
    bool is_held = agent->lease_ms > server->silence_ms; /* it asks its workers to end, else it kills them */
    return agent->granted_ms + agent->lease_ms + (is_held && !server->has_rivals ? server->stop_ms : 0);
}

static void drop_silent(struct coordinator_server *server, struct agent *agent, int64_t now_ms) {
    char why[64];
    struct coordinator_member *member = agent->member;
    agent->is_silent = false;
    coordinator_knock_stop(agent);
    agent->member = NULL;
    (void)status_fail(MUSTER_ETIMEOUT, "its agent has been silent for %lld ms", (long long)(now_ms - agent->heard_ms));
    if (agent->connection) {
        defer(server, agent, INT64_MAX); /* it is being ended */
        kv_guest_drop(agent->connection);
    }
    if (member) {
        (void)str_format(why, sizeof why, "nothing was heard of it for %lld ms", (long long)(now_ms - agent->heard_ms));
        coordinator_works_until(member, coordinator_silence_works_until_ms(server, agent));
        coordinator_gone(server->coordinator, member, kv_slice_text(why), coordinator_server_now_ms(server));
    }
    if (!agent->connection) {
        coordinator_agents_forget(server, agent);
    }
}

void coordinator_silence_judge(struct coordinator_server *server, struct agent *agent) {
    int64_t now_ms = coordinator_server_awake_ms(server), end_ms = agent->heard_ms + agent->lease_ms;
    if (agent->member && now_ms < end_ms) {
        keep_silent(server, agent, now_ms, end_ms);
    } else {
        drop_silent(server, agent, now_ms);
    }
}

void coordinator_silence_told(struct agent *agent, uint64_t lease_ms) {
    agent->told_lease_ms = (int64_t)lease_ms;
    agent->lease_ms = agent->told_lease_ms > agent->lease_ms ? agent->told_lease_ms : agent->lease_ms;
}

void coordinator_silence_acknowledged(struct agent *agent, uint64_t lease_ms) {
    if ((int64_t)lease_ms == agent->told_lease_ms) {
        agent->lease_ms = agent->told_lease_ms;
    }
}
