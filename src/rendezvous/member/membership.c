/* What agents keep and say of their worlds; see membership.h. */
#include "rendezvous/member/membership.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

static const struct membership_past *find(const struct membership *m, uint64_t round, uint64_t author) {
    for (size_t i = 0; i < m->past_count; i++) {
        if (m->pasts[i].past.round == round && m->pasts[i].past.author == author) {
            return &m->pasts[i];
        }
    }
    return NULL;
}

struct coordinator_node membership_introduce(const struct membership *m, const struct rdzv_options *o, const char *addr,
                                             const uint64_t identity[2], uint16_t store_port) {
    const struct membership_past *last = find(m, m->last_round, m->last_author);
    struct coordinator_node node = {
        .run_id = kv_slice_text(o->run_id),
        .addr = kv_slice_text(addr),
        .role = kv_slice_text(o->role ? o->role : "default"),
        .topology = kv_slice_text(o->conf.topology),
        .host_name = kv_slice_text(o->local_addr  ? o->local_addr
                                   : o->host_name ? o->host_name
                                                  : ""),
        .wished_rank = o->has_wished_rank ? o->wished_rank : COORDINATOR_NO_RANK,
        .pid = getpid(),
        .identity = {identity[0], identity[1]},
        .min_nodes = o->min_nodes,
        .max_nodes = o->max_nodes,
        .local_world_size = o->local_world_size,
        .store_port = store_port,
        .uses_agent_store = o->share_store,
        .last_round = m->last_round,
        .last_author = m->last_author,
        .last_world_size = m->last_world_size,
        .last_group_rank = m->last_group_rank,
        .last_host_rank = m->last_host_rank,
        .fate = last ? last->past.fate : COORDINATOR_UNKNOWN,
        .charges = m->charges,
    };
    for (size_t i = 0; i < m->past_count; i++) {
        if (&m->pasts[i] != last) {
            node.pasts[node.past_count++] = m->pasts[i].past;
        }
    }
    return node;
}

void membership_report(struct rdzv *r, const char *where, const char *waits_for) {
    char nodes[RDZV_NODES_TEXT_SIZE], note[RDZV_WAIT_NOTE_SIZE];
    log_warning("still waiting for a world of %s in rendezvous '%s' (%s)%s%s%s", rdzv_nodes_text(&r->options, nodes),
                r->options.run_id, where, waits_for[0] ? ": " : "", waits_for,
                rdzv_wait_note(r, r->waits[RDZV_TIMER_WAKE].deadline_ms, "join_timeout", note));
}

int membership_late(const struct rdzv *r, const char *where, const char *waits_for) {
    char nodes[RDZV_NODES_TEXT_SIZE];
    return status_fail(MUSTER_ETIMEOUT,
                       "no world of %s within join_timeout (%llu s; %s)%s%s: are enough nodes started, with the same "
                       "--rdzv-id and endpoint?",
                       rdzv_nodes_text(&r->options, nodes),
                       (unsigned long long)(r->options.conf.join_timeout_ms / 1000), where, waits_for[0] ? ": " : "",
                       waits_for);
}

static void tell(struct rdzv *r, const struct coordinator_world *w) {
    struct exchange_result result = {.base_global_rank = w->base_global_rank,
                                     .global_world_size = w->global_world_size,
                                     .base_role_rank = w->base_role_rank,
                                     .role_world_size = w->role_world_size,
                                     .master_port = w->master_port};
    (void)str_format(result.master_addr, sizeof result.master_addr, "%.*s", (int)w->master_addr.len,
                     (const char *)w->master_addr.data);
    rdzv_tell_world(r, w->round, w->group_rank, w->group_world_size, &result);
    r->world.job_counts_restarts = true;
    r->world.restart_count = w->charges.failures;
    r->world.max_restarts = w->max_restarts;
}

void membership_enter(struct membership *m, struct rdzv *r, const struct coordinator_message *message) {
    const struct coordinator_world *w = &message->world;
    *m = (struct membership){.last_round = w->round,
                             .last_author = w->author,
                             .heard_author = w->author,
                             .last_world_size = w->group_world_size,
                             .last_group_rank = w->group_rank,
                             .last_host_rank = w->host_rank,
                             .charges = w->charges,
                             .past_count = 1,
                             .pasts = {{.past = {.round = w->round,
                                                 .author = w->author,
                                                 .size = w->group_world_size,
                                                 .group_rank = w->group_rank,
                                                 .host_rank = w->host_rank,
                                                 .is_confirmed = true}}}};
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_WAKE));
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_REPORT));
    if (message->text.len > 0) {
        log_warning("round %llu: %.*s", (unsigned long long)w->round, (int)message->text.len,
                    (const char *)message->text.data);
    }
    tell(r, w);
}

/* As the coordinator tells it, and with what this node alone knows. */
static struct membership_past recall(const struct membership *m, const struct coordinator_past *told) {
    const struct membership_past *known = find(m, told->round, told->author);
    struct membership_past past = known ? *known : (struct membership_past){.past = *told};
    past.past.is_confirmed |= told->is_confirmed;
    past.past.fate = told->fate > past.past.fate ? told->fate : past.past.fate;
    return past;
}

void membership_propose(struct membership *m, const struct coordinator_proposal *proposal) {
    struct membership_past pasts[COORDINATOR_PASTS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < proposal->past_count && count + 1 < COORDINATOR_PASTS_MAX; i++) {
        pasts[count++] = recall(m, &proposal->pasts[i]);
    }
    pasts[count++] = (struct membership_past){.past = proposal->world};
    memcpy(m->pasts, pasts, count * sizeof *pasts);
    m->past_count = count;
    m->heard_author = proposal->world.author;
}

static bool is_served_at(const struct membership_past *past, size_t place, size_t count) {
    return (past->past.round - 1) % count == place; /* coordinator_quorum_next_round() */
}

void membership_lose(struct membership *m, size_t place, size_t count, unsigned asked_count, uint64_t in_office_ms) {
    for (size_t i = 0; i < m->past_count; i++) {
        struct membership_past *past = &m->pasts[i];
        if (is_served_at(past, place, count) && past->past.author == m->heard_author && !past->is_lost) {
            past->is_lost = true;
            past->asked_count = asked_count;
            past->in_office_ms = in_office_ms;
            past->past.fate = past->past.fate > COORDINATOR_SILENT ? past->past.fate : COORDINATOR_SILENT;
        }
    }
    m->heard_author = 0;
}

void membership_move(struct membership *m, size_t place, size_t count) {
    for (size_t i = 0; i < m->past_count; i++) {
        m->pasts[i].is_elsewhere |= is_served_at(&m->pasts[i], place, count);
    }
}

bool membership_declare_dead(struct membership *m, size_t place, size_t count, unsigned asked_count, uint64_t now_ms) {
    bool is_news = false;
    for (size_t i = 0; i < m->past_count; i++) {
        struct membership_past *past = &m->pasts[i];
        if (is_served_at(past, place, count) && past->is_lost && !past->is_elsewhere &&
            past->asked_count < asked_count && past->past.fate < COORDINATOR_GONE) {
            past->past.fate = now_ms < past->in_office_ms ? COORDINATOR_DEAD : COORDINATOR_GONE;
            is_news = true;
        }
    }
    return is_news;
}

void membership_change(struct membership *m, struct rdzv *r, const struct coordinator_message *message) {
    m->has_changed = true;
    rdzv_tell_change(r, message->change == COORDINATOR_NODE_ARRIVED ? RDZV_NODE_ARRIVED : RDZV_NODE_LEFT, "%.*s",
                     (int)message->text.len, (const char *)message->text.data);
}

void membership_note_stop(struct membership *m, const struct rdzv *r, uint64_t grace_ms) {
    uint64_t by_ms = uv_now(r->loop) + (grace_ms > 0 ? grace_ms : 1);
    m->stop_by_ms = m->stop_by_ms == 0 || by_ms < m->stop_by_ms ? by_ms : m->stop_by_ms;
}

void membership_stop(struct membership *m, struct rdzv *r, const struct coordinator_message *message) {
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_REPORT));
    membership_note_stop(m, r, message->grace_ms);
    if (!m->is_stop_heard) {
        m->is_stop_heard = true;
        rdzv_tell_stop(r, message->grace_ms, "%.*s", (int)message->text.len, (const char *)message->text.data);
    }
}

uint64_t membership_stop_left_ms(const struct membership *m, const struct rdzv *r) {
    uint64_t now_ms = uv_now(r->loop);
    bool is_known = m->stop_by_ms > 0 && m->last_round > 0;
    return !is_known ? 0 : m->stop_by_ms > now_ms ? m->stop_by_ms - now_ms : 1;
}
