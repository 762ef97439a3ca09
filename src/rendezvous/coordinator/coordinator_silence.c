/* Members of which nothing is heard, though their connections stand; see coordinator_server_impl.h. */
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator/coordinator_server_impl.h"

static void set_silent(struct coordinator_server *server, struct agent *agent, bool is_silent) {
    server->silent_count = server->silent_count - agent->is_silent + is_silent;
    agent->is_silent = is_silent;
}

static void defer(struct coordinator_server *server, struct agent *agent, int64_t deadline_ms) {
    coordinator_agents_take_out(&server->joined, agent);
    agent->deadline_ms = deadline_ms;
    coordinator_agents_insert(&server->joined, agent);
}

/* Without it there would be no world: nothing is gained by ending the one that is (docs/adr/0012). Its connection
 * stands, so its machine lives; it is looked at again. */
static void keep_silent(struct coordinator_server *server, struct agent *agent) {
    char name[COORDINATOR_NAME_BYTES_MAX + 32];
    if (!agent->is_silent) {
        log_warning("no sign of life from node %s for %lld ms; it keeps its place, since there would be no world "
                    "without it",
                    coordinator_member_name(agent->member, name, sizeof name), (long long)server->silence_ms);
    }
    agent->kept_ms = agent->is_silent ? agent->kept_ms : coordinator_server_awake_ms(server);
    set_silent(server, agent, true);
    defer(server, agent, coordinator_server_awake_ms(server) + server->silence_ms);
}

void coordinator_silence_heard(struct coordinator_server *server, struct agent *agent) {
    char name[COORDINATOR_NAME_BYTES_MAX + 32];
    if (agent->is_silent) {
        log_warning("node %s answers again", coordinator_member_name(agent->member, name, sizeof name));
        set_silent(server, agent, false);
    }
}

/* The connection stands, but nobody is at work behind it: a stopped agent, or a machine that hangs. */
static void drop_silent(struct coordinator_server *server, struct agent *agent) {
    char why[64];
    struct coordinator_member *member = agent->member;
    set_silent(server, agent, false);
    defer(server, agent, INT64_MAX); /* it is being ended */
    agent->member = NULL;
    (void)status_fail(MUSTER_ETIMEOUT, "its agent has been silent for %lld ms", (long long)server->silence_ms);
    kv_guest_drop(agent->connection);
    if (member) {
        (void)str_format(why, sizeof why, "nothing was heard of it for %lld ms", (long long)server->silence_ms);
        coordinator_works_until(member, agent->granted_ms + server->silence_ms);
        coordinator_gone(server->coordinator, member, kv_slice_text(why), coordinator_server_now_ms(server));
    }
}

static bool keeps_place(struct coordinator_server *server, const struct agent *agent) {
    bool has_time = !agent->is_silent || coordinator_server_awake_ms(server) - agent->kept_ms < server->needed_ms;
    return has_time && agent->member && coordinator_needs(server->coordinator, agent->member);
}

void coordinator_silence_judge(struct coordinator_server *server, struct agent *agent) {
    if (keeps_place(server, agent)) {
        keep_silent(server, agent);
    } else {
        drop_silent(server, agent);
    }
}

void coordinator_silence_returned(struct coordinator_server *server, const struct coordinator_node *node) {
    for (struct agent *agent = server->joined.first; agent && server->silent_count > 0; agent = agent->next) {
        if (agent->is_silent && coordinator_member_is(agent->member, node)) {
            drop_silent(server, agent);
            return;
        }
    }
}

void coordinator_silence_joined(struct coordinator_server *server) {
    for (struct agent *agent = server->joined.first, *next; agent && server->silent_count > 0; agent = next) {
        next = agent->next;
        if (agent->is_silent && !keeps_place(server, agent)) {
            drop_silent(server, agent);
        }
    }
}

void coordinator_silence_ended(struct coordinator_server *server, struct agent *agent) {
    set_silent(server, agent, false);
}
