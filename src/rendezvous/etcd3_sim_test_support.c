/* See etcd3_sim_test_support.h. */
#include "rendezvous/etcd3_sim_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"

struct sim sim;

/* ---- chance, and what is said of it ---- */

/* splitmix64 */
uint64_t sim_draw(uint64_t below) {
    uint64_t z = (sim.random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

int sim_number_of(const struct agent *agent) {
    return (int)(agent - sim.agents);
}

__attribute__((format(printf, 1, 2))) void sim_trace(const char *format, ...) {
    va_list list;
    if (sim.traces) {
        va_start(list, format);
        (void)vprintf(format, list);
        va_end(list);
        (void)printf("\n");
    }
}

__attribute__((format(printf, 1, 2), noreturn)) void sim_violate(const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)fprintf(stderr, "seed %llu: ", (unsigned long long)sim.seed);
    (void)vfprintf(stderr, format, list);
    (void)fprintf(stderr, "\n");
    va_end(list);
    exit(1);
}

/* ---- the judge ---- */

static void judge_world(struct agent *agent, const struct coordinator_world *world) {
    struct told *told = NULL;
    for (size_t i = 0; i < sim.told_count; i++) {
        struct told *t = &sim.told[i];
        if (t->epoch == agent->seat.epoch && t->generation == agent->generation && t->round == world->round) {
            told = t;
        }
    }
    if (!told) {
        if (sim.told_count == TOLD_MAX) {
            sim_violate("more worlds than can be judged");
        }
        told = &sim.told[sim.told_count++];
        *told = (struct told){agent->seat.epoch, agent->generation, world->round, world->group_world_size, 0};
        sim.worlds++;
    }
    if (told->size != world->group_world_size || world->group_rank >= told->size ||
        (told->ranks >> world->group_rank & 1)) {
        sim_violate("agent %d is told rank %u of %u in round %llu, which others were told otherwise",
                    sim_number_of(agent), world->group_rank, world->group_world_size, (unsigned long long)world->round);
    }
    if (world->round <= agent->last_round) {
        sim_violate("agent %d is told round %llu after round %llu", sim_number_of(agent),
                    (unsigned long long)world->round, (unsigned long long)agent->last_round);
    }
    told->ranks |= UINT64_C(1) << world->group_rank;
}

/* ---- requests ---- */

void sim_drop_request(struct request *request) {
    buf_done(&request->body);
    if (request->is_answered) {
        etcd3_reply_done(&request->reply);
    }
    *request = (struct request){.is_asked = false};
}

/* It may still be on its way to etcd. */
static void give_up(struct agent *agent, enum ask ask) {
    struct request *request = &agent->requests[ask];
    if (request->is_asked && !request->is_answered && sim.late_count < LATE_MAX && sim_draw(2) == 0) {
        sim.late_asks[sim.late_count] = ask;
        sim.late[sim.late_count++] = *request;
        *request = (struct request){.is_asked = false};
    } else {
        sim_drop_request(request);
    }
}

void sim_ask(struct agent *agent, enum ask ask) {
    struct request *request = &agent->requests[ask];
    if (request->is_asked) {
        sim_violate("agent %d asks twice (%d)", sim_number_of(agent), ask);
    }
    request->is_asked = true;
    request->lease_id = agent->seat.lease_id;
    request->epoch = agent->seat.epoch;
    buf_init(&request->body, BODY_BYTES_MAX);
}

bool sim_is_alive(int64_t lease_id) {
    return lease_id > 0 && sim.leases[lease_id];
}

static void put_letter(struct request *request) {
    if (sim_is_alive(request->lease_id)) {
        fake_etcd_put_body(&sim.etcd, &request->body);
    } else {
        request->status = MUSTER_ENOENT;
    }
}

/* If the leader's key is as expected (0: absent), keys are put, which hang to a lease: none is put without it. */
static void write_keys(struct request *request, int64_t expected) {
    const struct etcd3_pair *leader = fake_etcd_get(&sim.etcd, kv_slice_text(sim.agents[0].seat.keys.leader));
    bool holds = (leader ? leader->create_revision : 0) == expected;
    if (holds && !sim_is_alive(request->lease_id)) {
        request->status = MUSTER_ENOENT;
    } else {
        fake_etcd_transaction(&sim.etcd, &request->body, &request->reply);
    }
}

/* etcd has it. */
void sim_carry_out(struct request *request, enum ask ask) {
    int64_t revision = sim.etcd.revision;
    request->generation = sim.generation;
    request->status = MUSTER_OK;
    request->reply = (struct etcd3_reply){.revision = sim.etcd.revision};
    switch (ask) {
    case ASK_GRANT:
        if (sim.lease_count == LEASES_MAX - 1) {
            sim_violate("more leases than there are");
        }
        sim.leases[++sim.lease_count] = true;
        request->reply.lease_id = sim.lease_count;
        request->reply.ttl_s = 10;
        return;
    case ASK_BEAT:
        request->reply.ttl_s = sim_is_alive(request->lease_id) ? 10 : 0;
        return;
    case ASK_WRITE:
        put_letter(request);
        return;
    case ASK_STAND:
        write_keys(request, 0);
        sim.leaders += sim.etcd.revision > revision;
        return;
    case ASK_TELL:
        write_keys(request, request->epoch);
        return;
    case ASK_LOOK:
        fake_etcd_transaction(&sim.etcd, &request->body, &request->reply);
        return;
    case ASK_READ: /* read as it is when the answer is delivered: as good as any other time */
    case ASKS:
        return;
    }
}

/* ---- agents ---- */

void sim_send(struct agent *agent, const struct coordinator_message *message) {
    unsigned actions = 0;
    if (etcd3_seat_send(&agent->seat, message, &actions) == MUSTER_OK) {
        sim_act(agent, actions);
    }
}

void sim_send_join(struct agent *agent) {
    char addr[16];
    (void)str_format(addr, sizeof addr, "host%d", sim_number_of(agent));
    const struct coordinator_message join = {
        .kind = COORDINATOR_JOIN,
        .node = {.run_id = kv_slice_text("job"),
                 .addr = kv_slice_text(addr),
                 .role = kv_slice_text("default"),
                 .pid = (int64_t)agent->pid,
                 .identity = {agent->seat.identity[0], agent->seat.identity[1]},
                 .min_nodes = 1,
                 .max_nodes = AGENTS,
                 .local_world_size = 1,
                 .store_port = 1,
                 .last_round = agent->last_round,
                 .last_world_size = agent->last_round > 0 ? agent->size : 0,
                 .last_group_rank = agent->last_round > 0 ? agent->rank : 0,
                 .last_host_rank = agent->last_round > 0 ? COORDINATOR_NO_RANK : 0}};
    sim_trace("  agent %d joins, last round %llu", sim_number_of(agent), (unsigned long long)agent->last_round);
    sim_send(agent, &join);
}

static void hear(struct agent *agent, const struct coordinator_message *message) {
    sim_trace("  agent %d hears %s %.*s", sim_number_of(agent), coordinator_kind_name(message->kind),
              (int)message->text.len, (const char *)message->text.data);
    switch (message->kind) {
    case COORDINATOR_WORLD:
        if (agent->wants) {
            judge_world(agent, &message->world);
            agent->wants = false;
            agent->is_member = true;
            agent->last_round = message->world.round;
            agent->rank = message->world.group_rank;
            agent->size = message->world.group_world_size;
            agent->member_epoch = agent->seat.epoch;
        }
        return;
    case COORDINATOR_CHANGE:
        if (agent->is_member) {
            agent->is_member = false;
            agent->wants = true;
            sim_send_join(agent);
        }
        return;
    case COORDINATOR_REFUSED:
        sim_violate("agent %d is refused: %.*s", sim_number_of(agent), (int)message->text.len,
                    (const char *)message->text.data);
    default:
        return;
    }
}

void sim_hear_pair(struct agent *agent, const struct etcd3_pair *pair) {
    struct coordinator_message message;
    struct etcd3_letter letter;
    unsigned actions = etcd3_seat_hear(&agent->seat, pair, &letter);
    while (actions == 0 && letter.frames.len > 0 && etcd3_seat_next(&agent->seat, &letter, &message, &actions)) {
        hear(agent, &message);
    }
    sim_act(agent, actions);
}

static void drop_office(struct agent *agent) {
    etcd3_office_free(agent->office);
    agent->office = NULL;
    agent->office_watched = 0;
    give_up(agent, ASK_READ);
    give_up(agent, ASK_TELL);
}

static void lead(struct agent *agent) {
    const struct etcd3_office_settings settings = {
        .root = agent->seat.keys.root,
        .epoch = agent->seat.epoch,
        .lease_id = agent->seat.lease_id,
        .coordinator = {.run_id = "job", .min_nodes = 1, .max_nodes = AGENTS, .last_call_timeout_ms = LAST_CALL_MS}};
    assert_int_equal(etcd3_office_create(&settings, &agent->office), 0);
    sim_ask(agent, ASK_READ);
    sim_trace("  agent %d leads, epoch %lld", sim_number_of(agent), (long long)agent->seat.epoch);
}

void sim_settle_office(struct agent *agent) {
    struct buf body;
    buf_init(&body, BODY_BYTES_MAX);
    assert_int_equal(etcd3_office_write(agent->office, &body), 0);
    if (body.len > 0) {
        sim_ask(agent, ASK_TELL);
        agent->requests[ASK_TELL].body = body;
    } else {
        buf_done(&body);
    }
}

static void put_body(struct agent *agent, enum ask which) {
    struct buf value, *body = &agent->requests[which].body;
    if (which == ASK_STAND) {
        assert_int_equal(etcd3_keys_put_stand(&agent->seat.keys, agent->seat.lease_id, body), 0);
    } else if (which == ASK_LOOK) {
        assert_int_equal(etcd3_keys_put_look(&agent->seat.keys, agent->seat.epoch, body), 0);
    } else if (which == ASK_WRITE) {
        buf_init(&value, ETCD3_MAIL_BYTES_MAX);
        assert_int_equal(etcd3_mail_put(&agent->seat.mail, &value), 0);
        assert_int_equal(etcd3_keys_put_letter(&agent->seat.keys, kv_slice_of(buf_bytes(&value), value.len),
                                               agent->seat.lease_id, body),
                         0);
        buf_done(&value);
    }
}

static void drop(struct agent *agent, unsigned actions) {
    if (actions & ETCD3_SEAT_DROP_LEADER) {
        give_up(agent, ASK_GRANT);
        give_up(agent, ASK_STAND);
        give_up(agent, ASK_WRITE);
        drop_office(agent);
    }
    if (actions & ETCD3_SEAT_DROP_LEASE) {
        give_up(agent, ASK_BEAT);
        give_up(agent, ASK_LOOK);
        agent->watched[0] = agent->watched[1] = 0;
        agent->beats = false;
    }
}

static void lose(struct agent *agent) {
    sim_trace("  agent %d has lost it: %s", sim_number_of(agent), muster_detail());
    if (agent->seat.lost_status != MUSTER_ECLOSED) {
        sim_violate("agent %d fails: %s", sim_number_of(agent), muster_detail());
    }
    agent->is_member = false;
    agent->wants = true;
    sim_act(agent, etcd3_seat_want(&agent->seat));
}

void sim_act(struct agent *agent, unsigned actions) {
    static const struct {
        unsigned action;
        enum ask ask;
    } table[] = {{ETCD3_SEAT_GRANT, ASK_GRANT},
                 {ETCD3_SEAT_STAND, ASK_STAND},
                 {ETCD3_SEAT_LOOK, ASK_LOOK},
                 {ETCD3_SEAT_WRITE, ASK_WRITE}};
    drop(agent, actions);
    agent->beats = agent->beats || (actions & ETCD3_SEAT_BEAT);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (actions & table[i].action) {
            sim_ask(agent, table[i].ask);
            put_body(agent, table[i].ask);
        }
    }
    if (actions & ETCD3_SEAT_WATCH) {
        agent->watched[0] = agent->watched[1] = agent->seat.watch_revision;
    }
    if (actions & ETCD3_SEAT_LEAD) {
        lead(agent);
    }
    if ((actions & ETCD3_SEAT_OPENED) && agent->wants) {
        sim_send_join(agent);
    } else if (actions & ETCD3_SEAT_LOST) {
        lose(agent);
    }
}

void sim_begin_agent(struct agent *agent) {
    struct etcd3_keys keys;
    *agent = (struct agent){.pid = ++sim.pids, .wants = true};
    assert_int_equal(etcd3_keys_init(&keys, "/muster", "job"), 0);
    etcd3_seat_init(&agent->seat, &keys, 3000);
    sim_trace("agent %d begins, pid %llu", sim_number_of(agent), (unsigned long long)agent->pid);
    sim_act(agent, etcd3_seat_want(&agent->seat));
}

void sim_end_agent(struct agent *agent) {
    drop(agent, ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_DROP_LEASE);
    etcd3_seat_done(&agent->seat);
}
