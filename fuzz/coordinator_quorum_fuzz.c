/* A coordinator with rivals, and nodes that say anything in any order: join with whatever they have heard of, accept
 * what was proposed or something else, go, come back. After each step its account of who is here, and who has accepted,
 * is what counting anew gives, and a world is told to those alone who have accepted it. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/coordinator/coordinator_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES = 6, MAX_NODES = 4, STEP_BYTES = 2, ENDPOINTS = 77, AUTHOR = 4 };
enum action { JOIN, ACCEPT, ACCEPT_ANY, LOSE, END, LEAVE, FAIL, FINISH, PASS, NOTE, RESTART, HEAR, ACTIONS };

struct node {
    struct coordinator_member *member;
    uint64_t life;
    uint64_t round, author;
    uint32_t size, rank, host_rank;
    struct coordinator_proposal proposal;
    uint64_t accepted_round;
    size_t past_count;
    struct coordinator_past pasts[COORDINATOR_PASTS_MAX];
    bool is_refused;
};

static struct node nodes[NODES];

static void on_send(void *ctx, void *session, const struct coordinator_message *message) {
    struct node *node = session;
    (void)ctx;
    switch (message->kind) {
    case COORDINATOR_PROPOSE:
        node->proposal = message->proposal;
        break;
    case COORDINATOR_WORLD:
        assert(message->world.round > node->round && message->world.round == node->accepted_round);
        node->round = message->world.round;
        node->author = message->world.author;
        node->size = message->world.group_world_size;
        node->rank = message->world.group_rank;
        node->host_rank = message->world.host_rank;
        node->past_count = 0;
        break;
    case COORDINATOR_REFUSED:
        node->is_refused = true;
        break;
    default:
        break;
    }
}

/* ---- what has to hold ---- */

static void check_prior_world(const struct coordinator *c, const struct coordinator_prior_world *p) {
    const struct coordinator_past *first = &c->prior.list[0].past;
    uint32_t here = 0, accepted = 0, unaware = 0, unaware_accepted = 0;
    bool is_apart = false;
    for (size_t place = 0; place < COORDINATOR_OUT; place++) {
        for (const struct coordinator_member *m = c->places[place].first; m; m = m->next) {
            here += coordinator_has_part(m, &p->past);
            accepted += coordinator_has_part(m, &p->past) && coordinator_has_accepted(c, m);
            unaware += coordinator_is_unaware(m, &p->past, first);
            unaware_accepted += coordinator_is_unaware(m, &p->past, first) && coordinator_has_accepted(c, m);
            is_apart |= coordinator_knows(m, &p->past) && !coordinator_knows(m, first);
        }
    }
    assert(p->here_count == here && p->unaware_count == unaware && (p->is_apart || !is_apart));
    assert(c->proposed_round == 0 || p->accepted_count == accepted);
    assert(c->proposed_round == 0 || p->unaware_accepted_count == unaware_accepted);
}

static void check(const struct coordinator *c) {
    size_t accepted = 0, returning = 0, spares = 0;
    const struct coordinator_prior_worlds *b = &c->prior;
    for (const struct coordinator_member *m = c->places[COORDINATOR_JOINED].first; m; m = m->next) {
        accepted += coordinator_has_accepted(c, m);
        returning += m->is_returning;
    }
    for (const struct coordinator_member *m = c->places[COORDINATOR_SPARED].first; m; m = m->next) {
        spares += coordinator_has_accepted(c, m);
    }
    assert(c->returning_count == returning);
    assert(c->proposed_round == 0 || (c->accepted_count == accepted && c->accepted_spare_count == spares));
    assert(c->places[COORDINATOR_ACTIVE].count <= MAX_NODES);
    assert(b->count < COORDINATOR_PASTS_MAX);
    for (size_t i = 0; i < b->count; i++) {
        assert(i == 0 || coordinator_wire_compare_pasts(&b->list[i - 1].past, &b->list[i].past) < 0);
        check_prior_world(c, &b->list[i]);
    }
}

/* ---- what nodes do ---- */

static struct coordinator_node introduce(const struct node *node, uint8_t number) {
    uint64_t index = (uint64_t)(node - nodes);
    struct coordinator_node said = {.run_id = kv_slice_text("job"),
                                    .addr = kv_slice_text("10.0.0.1"),
                                    .role = kv_slice_text("default"),
                                    .pid = 1 + (int64_t)index,
                                    .identity = {index, node->life},
                                    .min_nodes = 1,
                                    .max_nodes = MAX_NODES,
                                    .local_world_size = 1,
                                    .store_port = 29500,
                                    .endpoints = ENDPOINTS,
                                    .last_round = node->round,
                                    .last_author = node->author,
                                    .last_world_size = node->size,
                                    .last_group_rank = node->rank,
                                    .last_host_rank = node->host_rank,
                                    .is_host = index == 0,
                                    .is_done = node->round > 0 && number % 8 == 7,
                                    .past_count = node->past_count};
    said.fate = node->round > 0 ? (enum coordinator_fate)(number % 4) : COORDINATOR_UNKNOWN;
    memcpy(said.pasts, node->pasts, sizeof said.pasts);
    return said;
}

static void join(struct coordinator *c, struct node *node, uint8_t number, int64_t now_ms) {
    const struct coordinator_node said = introduce(node, number);
    node->is_refused = false;
    node->member = coordinator_join(c, node->member, node, &said, now_ms);
    assert(node->member || node->is_refused);
}

/* As an agent would keep it; see membership_propose(). */
static void accept(struct coordinator *c, struct node *node, int64_t now_ms) {
    const struct coordinator_proposal *p = &node->proposal;
    if (p->world.round == 0) {
        return;
    }
    node->past_count = 0;
    for (size_t i = 0; i < p->past_count; i++) {
        if (p->pasts[i].round != node->round || p->pasts[i].author != node->author) {
            node->pasts[node->past_count++] = p->pasts[i];
        }
    }
    node->pasts[node->past_count++] = p->world;
    node->accepted_round = p->world.round;
    coordinator_accepted(c, node->member, p->world.round, now_ms);
}

/* Of a world of somebody else's. */
static void hear(struct node *node, uint8_t number) {
    const struct coordinator_past *before = node->past_count > 0 ? &node->pasts[node->past_count - 1] : NULL;
    uint64_t last = before ? before->round : node->round, author = before ? before->author : node->author;
    if (node->past_count < COORDINATOR_PASTS_MAX) {
        uint32_t part = number % 4;
        node->pasts[node->past_count++] = (struct coordinator_past){.round = last + 1 + number % 3,
                                                                    .author = number % 5, /* 4: this coordinator's */
                                                                    .size = 4,
                                                                    .group_rank = part ? part : COORDINATOR_NO_RANK,
                                                                    .host_rank = number % 2 ? 1 : COORDINATOR_NO_RANK,
                                                                    .base_round = number & 16 ? last : 0,
                                                                    .base_author = number & 16 ? author : 0,
                                                                    .base_count = number & 16 ? number % 5 : 0,
                                                                    .is_confirmed = number & 32};
    }
}

static void lose(struct coordinator *c, struct node *node, bool for_good, int64_t now_ms) {
    if (for_good) {
        coordinator_never_returns(node->member);
    } else {
        coordinator_works_until(node->member, now_ms + 500);
    }
    coordinator_gone(c, node->member, kv_slice_of(NULL, 0), now_ms);
    node->member = NULL;
}

static void act_as_member(struct coordinator *c, struct node *node, enum action action, uint8_t number,
                          int64_t now_ms) {
    const struct kv_slice why = kv_slice_text("so it is");
    const struct coordinator_failure failure = {.why = why, .is_final = number % 8 == 7};
    switch (action) {
    case ACCEPT:
        accept(c, node, now_ms);
        break;
    case ACCEPT_ANY:
        node->accepted_round = number == node->proposal.world.round ? number : node->accepted_round;
        coordinator_accepted(c, node->member, number, now_ms);
        break;
    case LOSE:
    case END:
        lose(c, node, action == END, now_ms);
        break;
    case LEAVE:
        coordinator_never_returns(node->member);
        coordinator_leave(c, node->member, why, now_ms);
        node->member = NULL;
        break;
    case FAIL:
        coordinator_failed(c, node->member, &failure, now_ms);
        break;
    default:
        coordinator_done(c, node->member, now_ms);
    }
}

static void act(struct coordinator *c, struct node *node, enum action action, uint8_t number, int64_t *now_ms) {
    switch (action) {
    case JOIN:
        join(c, node, number, *now_ms);
        break;
    case PASS:
        *now_ms += number * INT64_C(500);
        coordinator_tick(c, *now_ms);
        break;
    case NOTE:
        coordinator_note_others(c, number % 2, *now_ms);
        break;
    case HEAR:
        hear(node, number);
        break;
    case RESTART:
        if (node->member) {
            lose(c, node, number % 2, *now_ms);
        }
        *node = (struct node){.life = node->life + 1};
        break;
    default:
        if (node->member) {
            act_as_member(c, node, action, number, *now_ms);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct coordinator_settings settings = {.run_id = "job",
                                                  .min_nodes = 1,
                                                  .max_nodes = MAX_NODES,
                                                  .last_call_timeout_ms = 1000,
                                                  .places = {.place = 1,
                                                             .count = 3,
                                                             .endpoints = ENDPOINTS,
                                                             .author = AUTHOR,
                                                             .spare_nodes = 1,
                                                             .silence_ms = 3000,
                                                             .stop_ms = 1000},
                                                  .hash_seed = {1, 2}};
    struct coordinator *c = NULL;
    int64_t now_ms = 1000;
    int code = coordinator_create(&settings, on_send, NULL, &c);
    assert(code == 0);
    memset(nodes, 0, sizeof nodes);
    for (; size >= STEP_BYTES; data += STEP_BYTES, size -= STEP_BYTES) {
        act(c, &nodes[data[0] % NODES], (enum action)(data[0] / NODES % ACTIONS), data[1], &now_ms);
        check(c);
    }
    coordinator_free(c);
    return 0;
}
