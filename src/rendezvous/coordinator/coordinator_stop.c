/* The stop of the whole job, because a node will be taken away: who is told, and who is waited for. It outlives the
 * coordinator that has told it, as the members of the world that it ended bring it along to the next one, where it
 * reaches those that have not heard of it. Pure. */
#include "rendezvous/coordinator/coordinator_impl.h"

/* What those who take part are told. Valid until the next call; `out` is its room. */
static struct coordinator_message word_stop(const struct coordinator *c, int64_t now_ms,
                                            char out[COORDINATOR_TEXT_BYTES_MAX]) {
    return (struct coordinator_message){.kind = COORDINATOR_STOP,
                                        .grace_ms = c->stop_by_ms > now_ms ? (uint64_t)(c->stop_by_ms - now_ms) : 0,
                                        .text = coordinator_news_text(&c->news, out)};
}

static void tell_all(const struct coordinator *c, enum coordinator_place place,
                     const struct coordinator_message *message) {
    for (struct coordinator_member *m = c->places[place].first; m; m = m->next) {
        c->send(c->send_ctx, m->session, message);
    }
}

/* Those without workers can go. A spare ends as the job does, which has not succeeded. */
void coordinator_stop_begin(struct coordinator *c, uint64_t grace_ms, int64_t now_ms) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    c->is_stopping = true;
    c->stop_by_ms = now_ms + (int64_t)grace_ms;
    const struct coordinator_message stop = word_stop(c, now_ms, text);
    tell_all(c, COORDINATOR_ACTIVE, &stop);
    tell_all(c, COORDINATOR_DONE_WAITS, &stop);
    while (c->places[COORDINATOR_JOINED].first) {
        coordinator_let_go(c, c->places[COORDINATOR_JOINED].first, &stop);
    }
    while (c->places[COORDINATOR_SPARED].first) {
        coordinator_let_go(c, c->places[COORDINATOR_SPARED].first, &stop);
    }
}

bool coordinator_stop_concerns(const struct coordinator *c, const struct coordinator_node *node) {
    return c->is_stopping ? node->last_round > 0
                          : coordinator_has_rivals(c) && node->stop_ms > 0 && node->last_round >= c->round &&
                                c->phase != COORDINATOR_OVER;
}

/* Members that have been told have workers, and are waited for; the others wait for a world. */
static enum coordinator_place choose_place(const struct coordinator_node *node) {
    return node->is_done ? COORDINATOR_DONE_WAITS : node->stop_ms > 0 ? COORDINATOR_ACTIVE : COORDINATOR_JOINED;
}

void coordinator_stop_join(struct coordinator *c, struct coordinator_member *member,
                           const struct coordinator_node *node, int64_t now_ms) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    const struct coordinator_message stop = word_stop(c, now_ms, text);
    enum coordinator_place place = choose_place(node);
    if (c->phase == COORDINATOR_OVER) {
        const struct coordinator_message change = {.kind = COORDINATOR_CHANGE, .change = COORDINATOR_NODE_LEFT};
        c->send(c->send_ctx, member->session, place == COORDINATOR_JOINED ? &stop : &change);
        return;
    }
    coordinator_member_move(c, member, place);
    coordinator_quorum_learn(c, member, node, true, now_ms);
    if (!c->is_stopping) {
        coordinator_news_add(&c->news, member, "says that the job stops", (struct kv_slice){.len = 0});
        coordinator_stop_begin(c, node->stop_ms, now_ms);
    } else if (place == COORDINATOR_JOINED) {
        coordinator_let_go(c, member, &stop);
    } else {
        c->send(c->send_ctx, member->session, &stop);
    }
}

bool coordinator_stop_is_over(const struct coordinator *c, int64_t now_ms) {
    return c->places[COORDINATOR_ACTIVE].count == 0 && coordinator_quorum_awaited(c, now_ms) == 0;
}
