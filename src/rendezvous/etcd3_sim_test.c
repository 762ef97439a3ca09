/* Agents of one job on an etcd in memory, under a hostile network: etcd3_sim_test [SEED [COUNT [trace]]].
 *
 * The real seats (etcd3_seat.h) and offices (etcd3_office.h); requests that are carried out late, twice, or after they
 * were given up; answers and events that come when they like; histories that are compacted; leases that expire unheard;
 * agents that die and come back; an etcd that loses its data. Whenever a world is told, all who are told it must agree
 * about it; once the trouble ends, all who live must find themselves in one world. A violation prints the seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/etcd3_sim_test_support.h"

enum { STEPS = 4000, SWEEPS_MAX = 300, SWEEP_MS = 1000, SEEDS = 1000 };

/* ---- what happens ---- */

static unsigned take_answer(struct agent *agent, enum ask which, int status, const struct etcd3_reply *reply) {
    const uint64_t identity[2] = {agent->pid, ++agent->identity_count};
    switch (which) {
    case ASK_GRANT:
        return etcd3_seat_granted(&agent->seat, status, reply, identity);
    case ASK_STAND:
        return etcd3_seat_stood(&agent->seat, status, reply);
    case ASK_LOOK:
        return etcd3_seat_looked(&agent->seat, status, reply);
    case ASK_BEAT:
        return etcd3_seat_beaten(&agent->seat, status, reply);
    case ASK_WRITE:
        return etcd3_seat_written(&agent->seat, status, true);
    default:
        return 0;
    }
}

static void read_all(struct agent *agent) {
    size_t count = fake_etcd_read(&sim.etcd, etcd3_office_agents(agent->office), sim.pairs);
    assert_int_equal(etcd3_office_read(agent->office, sim.pairs, count, sim.now_ms), 0);
    agent->office_watched = sim.etcd.revision + 1;
    sim_settle_office(agent);
}

static void take_told(struct agent *agent, const struct request *answer) {
    int status = answer->status == MUSTER_ENOENT
                     ? MUSTER_ECLOSED
                     : etcd3_office_written(agent->office, answer->reply.has_succeeded, sim.now_ms);
    if (status == MUSTER_OK) {
        sim_settle_office(agent);
    } else {
        sim_act(agent, etcd3_seat_deposed(&agent->seat, status));
    }
}

static void deliver(struct agent *agent, enum ask which) {
    struct request answer = agent->requests[which];
    agent->requests[which] = (struct request){.is_asked = false};
    sim_trace("agent %d: answer %d, status %d", sim_number_of(agent), which, answer.status);
    if (which == ASK_READ) {
        read_all(agent);
    } else if (which == ASK_TELL) {
        take_told(agent, &answer);
    } else {
        agent->generation = which == ASK_STAND ? answer.generation : agent->generation;
        sim_act(agent, take_answer(agent, which, answer.status, answer.status ? NULL : &answer.reply));
        for (size_t i = 0; which == ASK_LOOK && answer.reply.has_succeeded && i < answer.reply.pair_count; i++) {
            sim_hear_pair(agent, &answer.reply.pairs[i]);
        }
    }
    sim_drop_request(&answer);
}

/* A step of a request; `can_repeat`: its answer may be lost, and it is carried out again. */
static void advance(struct agent *agent, enum ask which, bool can_repeat) {
    struct request *request = &agent->requests[which];
    if (!request->is_asked) {
        return;
    }
    if (request->is_answered) {
        deliver(agent, which);
        return;
    }
    sim_carry_out(request, which);
    request->is_answered = true;
    if (can_repeat && sim_draw(8) == 0) {
        etcd3_reply_done(&request->reply);
        request->is_answered = false;
    }
}

/* The first of its requests from a random one on. */
static void advance_one(struct agent *agent) {
    size_t from = sim_draw(ASKS);
    for (size_t i = 0; i < ASKS; i++) {
        enum ask which = (enum ask)((from + i) % ASKS);
        if (agent->requests[which].is_asked) {
            advance(agent, which, true);
            return;
        }
    }
}

/* The next events of one of its two keys, which may be ahead of the other. */
static void watch_agent(struct agent *agent, size_t which) {
    const struct etcd3_range range = {.key = kv_slice_text(which == 0 ? agent->seat.keys.leader : agent->seat.keys.to)};
    if (agent->watched[which] == 0) {
        return;
    }
    size_t count = fake_etcd_watch(&sim.etcd, range, &agent->watched[which], sim.pairs);
    struct etcd3_pair few[8];
    size_t few_count = count < 8 ? count : 8;
    memcpy(few, sim.pairs, few_count * sizeof *few);
    if (few_count < count) {
        agent->watched[which] = few[few_count - 1].mod_revision + 1;
    }
    for (size_t i = 0; i < few_count; i++) {
        sim_hear_pair(agent, &few[i]);
    }
}

static void watch_office(struct agent *agent) {
    if (agent->office && agent->office_watched > 0) {
        size_t count =
            fake_etcd_watch(&sim.etcd, etcd3_office_agents(agent->office), &agent->office_watched, sim.pairs);
        assert_int_equal(etcd3_office_hear(agent->office, sim.pairs, count, sim.now_ms), 0);
        sim_settle_office(agent);
    }
}

static void tick(struct agent *agent) {
    if (agent->office && etcd3_office_wake_ms(agent->office) <= sim.now_ms) {
        etcd3_office_tick(agent->office, sim.now_ms);
        sim_settle_office(agent);
    }
}

static void beat(struct agent *agent) {
    if (agent->beats && !agent->requests[ASK_BEAT].is_asked) {
        sim_ask(agent, ASK_BEAT);
    }
}

/* As an agent that has waited for long: a letter that got lost on its way is written again. */
static void ask_who_is_missing(struct agent *agent) {
    const struct coordinator_message alive = {.kind = COORDINATOR_ALIVE};
    if (agent->wants) {
        sim_send(agent, &alive);
    }
}

/* ---- trouble ---- */

static void expire(struct agent *agent) {
    int64_t lease_id = agent->seat.lease_id;
    if (sim_is_alive(lease_id)) {
        sim_trace("the lease of agent %d expires", sim_number_of(agent));
        sim.leases[lease_id] = false;
        fake_etcd_expire(&sim.etcd, lease_id);
    }
}

static void compact(struct agent *agent) {
    if (agent->watched[0] > 0 && !agent->requests[ASK_LOOK].is_asked) {
        sim_trace("the watch of agent %d is compacted away", sim_number_of(agent));
        agent->watched[0] = agent->watched[1] = 0;
        sim_act(agent, etcd3_seat_miss(&agent->seat));
    }
    if (agent->office_watched > 0 && !agent->requests[ASK_READ].is_asked) {
        agent->office_watched = 0;
        sim_ask(agent, ASK_READ);
    }
}

static void lose_data(void) {
    sim_trace("etcd loses its data");
    sim.generation++;
    memset(sim.leases, 0, sizeof sim.leases);
    fake_etcd_lose_data(&sim.etcd, (int64_t)sim_draw(50));
}

static void restart(struct agent *agent) {
    sim_trace("agent %d dies", sim_number_of(agent));
    int64_t lease_id = agent->seat.lease_id;
    sim_end_agent(agent);
    if (lease_id > 0 && sim_draw(2) == 0) { /* else later, or never heard of */
        sim.leases[lease_id] = false;
        fake_etcd_expire(&sim.etcd, lease_id);
    }
    sim_begin_agent(agent);
}

static void fail_worker(struct agent *agent) {
    const struct coordinator_message failed = {.kind = COORDINATOR_FAILED, .text = kv_slice_text("a worker")};
    if (agent->is_member) {
        agent->is_member = false;
        agent->wants = true;
        sim_send(agent, &failed);
        sim_send_join(agent);
    }
}

static void carry_out_late(void) {
    if (sim.late_count > 0) {
        size_t i = sim_draw(sim.late_count);
        sim_trace("a request that was given up is carried out (%d)", sim.late_asks[i]);
        sim_carry_out(&sim.late[i], sim.late_asks[i]);
        etcd3_reply_done(&sim.late[i].reply);
        buf_done(&sim.late[i].body);
        sim.late_count--;
        sim.late[i] = sim.late[sim.late_count];
        sim.late_asks[i] = sim.late_asks[sim.late_count];
    }
}

static void make_trouble(struct agent *agent) {
    switch (sim_draw(12)) {
    case 0:
        expire(agent);
        return;
    case 1:
        compact(agent);
        return;
    case 2:
        restart(agent);
        return;
    case 3:
        if (sim_draw(10) == 0) {
            lose_data();
        }
        return;
    case 4:
    case 5:
    case 6:
        carry_out_late();
        return;
    default:
        fail_worker(agent);
    }
}

static void step(void) {
    struct agent *agent = &sim.agents[sim_draw(AGENTS)];
    uint64_t what = sim_draw(sim.calm);
    if (what < 60) {
        advance_one(agent);
    } else if (what < 75) {
        watch_agent(agent, sim_draw(2));
    } else if (what < 85) {
        watch_office(agent);
    } else if (what < 90) {
        sim.now_ms += (int64_t)sim_draw(3000);
        tick(agent);
    } else if (what < 94) {
        beat(agent);
    } else if (what < 95) {
        ask_who_is_missing(agent);
    } else if (what < 98) {
        make_trouble(agent);
    } else {
        advance_one(agent);
    }
}

/* ---- peace ---- */

static bool is_one_world(void) {
    const struct agent *first = &sim.agents[0];
    for (size_t i = 0; i < AGENTS; i++) {
        const struct agent *agent = &sim.agents[i];
        bool is_same = agent->is_member && agent->last_round == first->last_round && agent->size == AGENTS &&
                       agent->member_epoch == first->member_epoch;
        if (!is_same) {
            return false;
        }
    }
    return true;
}

static void sweep(void) {
    sim.now_ms += SWEEP_MS;
    for (size_t i = 0; i < AGENTS; i++) {
        struct agent *agent = &sim.agents[i];
        beat(agent);
        for (int which = 0; which < ASKS; which++) {
            advance(agent, (enum ask)which, false);
            advance(agent, (enum ask)which, false);
        }
        watch_agent(agent, 0);
        watch_agent(agent, 1);
        watch_office(agent);
        tick(agent);
    }
}

/* Leases of agents that are no more expire, too. */
static void end_trouble(void) {
    while (sim.late_count > 0) {
        carry_out_late();
    }
    for (int64_t lease = 1; lease <= sim.lease_count; lease++) {
        bool is_held = false;
        for (size_t i = 0; i < AGENTS; i++) {
            bool is_coming = sim.agents[i].requests[ASK_GRANT].is_answered &&
                             sim.agents[i].requests[ASK_GRANT].reply.lease_id == lease;
            is_held = is_held || sim.agents[i].seat.lease_id == lease || is_coming;
        }
        if (sim.leases[lease] && !is_held) {
            sim.leases[lease] = false;
            fake_etcd_expire(&sim.etcd, lease);
        }
    }
}

static void make_peace(void) {
    sim_trace("peace");
    end_trouble();
    for (int i = 0; i < SWEEPS_MAX; i++) {
        sweep();
        if (i % 30 == 29) {
            for (size_t a = 0; a < AGENTS; a++) {
                ask_who_is_missing(&sim.agents[a]);
            }
        }
        if (is_one_world()) {
            return;
        }
    }
    for (size_t i = 0; i < AGENTS; i++) {
        const struct agent *agent = &sim.agents[i];
        (void)fprintf(stderr, "agent %zu: state %d, epoch %lld, leads %d, member %d, round %llu of %u\n", i,
                      agent->seat.state, (long long)agent->seat.epoch, agent->seat.leads, agent->is_member,
                      (unsigned long long)agent->last_round, agent->size);
    }
    sim_violate("not all are in one world");
}

static void run(uint64_t seed) {
    sim.seed = sim.random = seed;
    sim.calm = 100 + sim_draw(1000);
    sim.now_ms = 1000;
    sim.generation = sim.lease_count = 0;
    sim.told_count = sim.late_count = 0;
    memset(sim.leases, 0, sizeof sim.leases);
    fake_etcd_begin(&sim.etcd, 10);
    for (size_t i = 0; i < AGENTS; i++) {
        sim_begin_agent(&sim.agents[i]);
    }
    for (int i = 0; i < STEPS; i++) {
        step();
    }
    make_peace();
    for (size_t i = 0; i < AGENTS; i++) {
        sim_end_agent(&sim.agents[i]);
    }
    end_trouble();
    fake_etcd_end(&sim.etcd);
}

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : SEEDS;
    sim.traces = argc > 3;
    for (uint64_t seed = first; seed < first + count; seed++) {
        run(seed);
    }
    (void)printf("%llu jobs, %llu worlds, %llu leaders: all in order\n", (unsigned long long)count, sim.worlds,
                 sim.leaders);
    return 0;
}
