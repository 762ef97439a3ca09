/* What must hold of a job; see sim_judge.h. */
#include "sim_judge.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include <muster/status.h>

#include "base/str.h"
#include "sim_memory.h"

enum { ROUNDS_FIRST = 16, RENDEZVOUS_PORT = 29400, STALE_MS = 3000 };

static void must(bool holds, const char *what) {
    if (!holds) {
        sim_violated(what);
    }
}

static struct sim_judge_agent *account(struct sim_judge *judge, const struct sim_agent *agent) {
    return &judge->agents[agent->host->index];
}

void sim_judge_begin(struct sim_judge *judge, struct sim_agent *players, size_t count) {
    judge->agents = sim_memory_take(count * sizeof *judge->agents);
    judge->players = players;
    judge->agent_count = count;
}

void sim_judge_done(struct sim_judge *judge) {
    for (size_t i = 0; i < judge->round_count; i++) {
        sim_memory_give(judge->rounds[i].seats);
    }
    sim_memory_give(judge->rounds);
    sim_memory_give(judge->agents);
}

/* ---- worlds ---- */

/* The process that has told the agent something last; the last one known if it has no connection. With one endpoint
 * that is the one of its last connection, which has ended before the agent sees the world if more came with it, the
 * end of the job for one. (With several endpoints that one may have been a question only.) */
static int server_of(const struct sim_judge *judge, struct sim_judge_agent *mine, const struct sim_host *host) {
    int64_t heard_us = -1;
    if (judge->server_count == 1 && host->left.port == RENDEZVOUS_PORT) {
        mine->server = host->left.process;
    }
    for (const struct sim_file *file = host->files; file; file = file->next) {
        if (file->kind == SIM_STREAM && file->remote.port == RENDEZVOUS_PORT && file->peer &&
            file->heard_us > heard_us) {
            heard_us = file->heard_us;
            mine->server = sim_file_process(file->peer);
        }
    }
    return mine->server;
}

static struct sim_judge_round *round_of(struct sim_judge *judge, uint64_t number, int server) {
    for (size_t i = judge->round_count; i > 0; i--) {
        if (judge->rounds[i - 1].round == number && judge->rounds[i - 1].server == server) {
            return &judge->rounds[i - 1];
        }
    }
    return NULL;
}

/* Restarts that another process has charged, which one who was told of them has brought along. */
static bool are_brought_along(const struct sim_judge *judge, uint32_t count, int server) {
    for (size_t i = 0; i < judge->agent_count; i++) {
        const struct sim_judge_agent *its = &judge->agents[i];
        if (judge->players[i].runs && its->server != server && its->told_restarts >= count) {
            return true;
        }
    }
    return false;
}

/* Where the job counts: a world that a failure has ended costs one, every other one nothing. */
static void check_charge(const struct sim_judge *judge, const struct sim_judge_round *before,
                         const struct rdzv_world *world) {
    uint32_t charged = world->restart_count - before->world.restart_count;
    if (charged > 0 && !before->has_failed && are_brought_along(judge, world->restart_count, before->server)) {
        return;
    }
    must(charged <= 1, "more than one restart is charged for a world");
    must(charged == 0 || before->has_failed, "a restart is charged, and no worker has failed");
    must(charged == 1 || !before->has_failed || before->has_other_cause, "a failure is not charged");
    must(judge->has_window || world->restart_count <= judge->max_restarts, "more restarts than allowed");
}

/* Is there, from the first, somebody else or something else than a failure that can end it? */
static bool may_end_otherwise(const struct sim_judge *judge, const struct rdzv_world *world) {
    size_t count = 0;
    bool is_disturbed = false, is_leaving = false;
    for (size_t i = 0; i < judge->agent_count; i++) {
        const struct sim_agent *player = &judge->players[i];
        count += player->runs;
        /* It may have been counted in before its LEAVE arrived; why it goes was noted when nobody knew this world. */
        const struct agent_machine *m = &player->machine;
        bool gave_up = m->state == AGENT_STATE_DRAINING && m->outcome == AGENT_OUTCOME_RDZV_LOST;
        is_leaving = is_leaving || (player->runs && (m->state == AGENT_STATE_CLOSING || gave_up));
        const struct sim_judge_agent *its = &judge->agents[i];
        bool is_missed = its->died_us > 0 && its->died_us + judge->silence_us > sim_kernel.now_us;
        bool is_off = its->disturbed_until_us > 0 && its->disturbed_until_us + judge->silence_us > sim_kernel.now_us;
        is_disturbed = is_disturbed || is_missed || is_off;
    }
    return is_disturbed || is_leaving || count != world->group_world_size;
}

static struct sim_judge_round *new_round(struct sim_judge *judge, const struct rdzv_world *world, int server) {
    if (judge->round_count == judge->round_capacity) {
        judge->round_capacity = judge->round_capacity ? 2 * judge->round_capacity : ROUNDS_FIRST;
        judge->rounds = sim_memory_resize(judge->rounds, judge->round_capacity * sizeof *judge->rounds);
    }
    const struct sim_judge_round *before = round_of(judge, world->round - 1, server);
    if (world->job_counts_restarts && before) {
        check_charge(judge, before, world);
    }
    struct sim_judge_round *round = &judge->rounds[judge->round_count++];
    *round = (struct sim_judge_round){.round = world->round,
                                      .server = server,
                                      .world = *world,
                                      .first_told_us = sim_kernel.now_us,
                                      .has_other_cause = may_end_otherwise(judge, world),
                                      .seats = sim_memory_take(world->group_world_size * sizeof *round->seats)};
    (void)str_copy(round->master_addr, sizeof round->master_addr, world->master_addr);
    must(judge->stopped_server == 0 || judge->stopped_server != server, "a world after the one that was told to stop");
    must(world->group_world_size >= judge->min_nodes, "a world of fewer than the minimum");
    must(world->group_world_size <= judge->max_nodes, "a world of more than the maximum");
    return round;
}

static bool is_same_world(const struct sim_judge_round *round, const struct rdzv_world *world) {
    return round->world.group_world_size == world->group_world_size &&
           round->world.global_world_size == world->global_world_size &&
           round->world.master_port == world->master_port && strcmp(round->master_addr, world->master_addr) == 0;
}

/* All have been told: ranks must follow each other, in the order of group ranks. */
static void check_ranks(const struct sim_judge *judge, const struct sim_judge_round *round) {
    uint32_t global = 0, of_role[SIM_JUDGE_ROLE_COUNT] = {0};
    for (uint32_t rank = 0; rank < round->world.group_world_size; rank++) {
        const struct sim_judge_seat *seat = &round->seats[rank];
        int role = judge->roles[seat->agent];
        must(seat->base_global == global, "global ranks are not dense");
        must(seat->base_role == of_role[role], "role ranks are not dense");
        global += judge->workers[seat->agent];
        of_role[role] += judge->workers[seat->agent];
    }
    must(global == round->world.global_world_size, "the world's size is not the sum of its workers");
}

/* The workers meet at the first member: its own address, and a port that its process listens on. */
static void check_master(const struct sim_agent *agent, const struct rdzv_world *world) {
    struct in_addr addr;
    if (world->group_rank != 0 || !world->use_agent_store) {
        return;
    }
    must(inet_pton(AF_INET, world->master_addr, &addr) == 1 && ntohl(addr.s_addr) == agent->host->addr,
         "the workers meet at another host than that of rank 0");
    for (const struct sim_file *file = agent->host->listeners; file; file = file->next_listener) {
        if (file->local.port == world->master_port) {
            return;
        }
    }
    sim_violated("nobody listens where the workers meet");
}

/* ---- who must have noticed ---- */

/* The token of a promise: to whom, in which life, in which world, and who has to tell it (itself: nobody else). */
static uint64_t promise(const struct sim_judge *judge, const struct sim_agent *to, const struct sim_agent *teller,
                        uint64_t round) {
    return (uint64_t)(to - judge->players) << 48 | (uint64_t)(teller - judge->players) << 32 |
           (uint64_t)(to->life & 0xff) << 24 | (round & 0xffffff);
}

static void later(int64_t *at_us, int64_t candidate_us) {
    *at_us = candidate_us > *at_us ? candidate_us : *at_us;
}

/* A node that serves has ended, and was done: nobody can tell the others anything, if it was their coordinator. A new
 * process in its place serves others. */
static bool is_served_by_done(const struct sim_judge *judge, size_t index) {
    if (judge->server_count == 1 && judge->done_server != 0 && judge->agents[index].server == judge->done_server) {
        return true;
    }
    bool is_one = false;
    for (size_t i = 0; i < judge->server_count; i++) {
        const struct sim_agent *host = &judge->players[i];
        is_one |= !host->runs && host->machine.outcome == AGENT_OUTCOME_SUCCESS;
    }
    return is_one && (judge->server_count == 1 || judge->min_nodes == judge->max_nodes);
}

/* A static node whose connection to the host has ended, or has another host at its end, hears nothing any more. */
static bool is_static_deaf(const struct sim_judge *judge, size_t index) {
    const struct sim_judge_agent *host = &judge->agents[0];
    bool has_lost_host = judge->server_suffered || judge->any_preempted || host->was_signalled;
    return judge->is_static && (has_lost_host || judge->agents[index].disturbed_until_us > 0);
}

/* Over static, what a node says is lost with a connection that is reset just then; it does not say it again. And once a
 * node is done each restarts alone: the host may have heard of that first. A final failure it tells in any case. */
static bool is_static_untold(const struct sim_judge *judge, const struct sim_agent *teller, enum agent_state state) {
    bool is_alone = judge->any_done && teller->machine.outcome != AGENT_OUTCOME_FAILED;
    bool is_lost = judge->agents[teller - judge->players].was_reset;
    return judge->is_static && state == AGENT_STATE_RUNNING && (is_lost || is_alone);
}

/* Done with one world. Another process that serves the only endpoint counts its rounds anew. */
static bool is_done_with(const struct sim_judge *judge, const struct sim_agent *agent, const struct sim_agent *other) {
    bool is_same_server = judge->agents[agent - judge->players].server == judge->agents[other - judge->players].server;
    return (is_same_server || judge->server_count > 1) && agent->world.round == other->world.round &&
           agent->machine.state >= AGENT_STATE_BARRIER && agent->machine.outcome == AGENT_OUTCOME_SUCCESS;
}

/* The one of whom it was promised that it would not be in `state` any more; NULL: it is not, or need not be yet. */
static const struct sim_agent *find_late(struct sim_judge *judge, uint64_t token, enum agent_state state,
                                         sim_event_fn *again) {
    const struct sim_agent *agent = &judge->players[token >> 48];
    size_t teller_index = token >> 32 & 0xffff;
    const struct sim_judge_agent *teller = &judge->agents[teller_index];
    bool is_still_there = agent->runs && (agent->life & 0xff) == (token >> 24 & 0xff) &&
                          agent->machine.state == state && (agent->world.round & 0xffffff) == (token & 0xffffff);
    if (!is_still_there || is_served_by_done(judge, token >> 48) || is_static_deaf(judge, token >> 48) ||
        is_static_untold(judge, &judge->players[teller_index], state)) {
        return NULL;
    }
    int64_t disturbed_us = judge->agents[token >> 48].disturbed_until_us;
    for (size_t i = 0; i < judge->server_count; i++) {
        later(&disturbed_us, judge->agents[i].disturbed_until_us);
    }
    /* Over c10d a node that has a failure tells it by leaving the round, after it has stopped its workers. If it is
     * disturbed or dies before that, it is no more than a member that has fallen silent, and is noticed as one. In the
     * exit barrier whoever is counted last tells the others, once it has read the count: that may be any of them. With
     * each backend its word that it is done may be held back with its network. */
    for (size_t i = 0; i < judge->agent_count; i++) {
        if ((judge->is_c10d && &judge->agents[i] == teller) ||
            (state == AGENT_STATE_BARRIER && is_done_with(judge, &judge->players[i], agent))) {
            later(&disturbed_us, judge->agents[i].disturbed_until_us);
            later(&disturbed_us, judge->agents[i].died_us);
        }
    }
    if (disturbed_us > 0 && disturbed_us + judge->silence_us + judge->notice_us > sim_kernel.now_us) {
        sim_post(disturbed_us + judge->silence_us + judge->notice_us, again, judge, token);
        return NULL;
    }
    return agent;
}

/* By now this member must have heard that its world has ended, unless something disturbed it on the way. */
static void on_promised(void *subject, uint64_t token) {
    const struct sim_agent *agent = find_late(subject, token, AGENT_STATE_RUNNING, on_promised);
    if (agent) {
        sim_trace("agent %u is still in round %llu", agent->host->index, (unsigned long long)agent->world.round);
        sim_violated("a member was not told in time that its world has ended");
    }
}

/* Who was disturbed may have been given up, and is certainly back then: TCP repeats the first message of a connection
 * after 1, 2, 4 ... s, so when the way is free again it waits for as long as the way was not. */
static int64_t back_us(const struct sim_judge *judge, size_t index) {
    enum { CONNECTS_S = 64 };
    int64_t until_us = judge->agents[index].disturbed_until_us;
    return until_us > 0 ? until_us + CONNECTS_S * SIM_S + judge->silence_us + judge->notice_us : 0;
}

/* Whoever is silent keeps its place as long as there would be no world without it: with one endpoint, where nobody can
 * go on elsewhere. `count`: of the others. */
static bool is_needed(const struct sim_judge *judge, uint32_t count) {
    return !judge->is_c10d && !judge->is_static && judge->server_count == 1 && count < judge->min_nodes;
}

static void on_silence_promised(void *subject, uint64_t token) {
    struct sim_judge *judge = subject;
    uint32_t running = 0, there = 0;
    int64_t all_back_us = 0;
    for (size_t i = 0; i < judge->agent_count; i++) {
        if (judge->players[i].runs) {
            running++;
            there += back_us(judge, i) <= sim_kernel.now_us;
            later(&all_back_us, back_us(judge, i));
        }
    }
    if (is_needed(judge, running)) {
        return;
    }
    if (is_needed(judge, there)) {
        sim_post(all_back_us, on_silence_promised, judge, token);
    } else {
        on_promised(judge, token);
    }
}

static void on_barrier_promised(void *subject, uint64_t token) {
    if (find_late(subject, token, AGENT_STATE_BARRIER, on_barrier_promised)) {
        sim_violated("all members are done, and one still waits for the others");
    }
}

/* Nothing but failures and successes of workers has happened. */
static bool is_quiet(const struct sim_judge *judge) {
    return !judge->had_trouble && !judge->any_death && !judge->any_signalled && !judge->any_preempted;
}

/* All nodes that there are, without those that are done with this one's last world, make none. */
static bool needs_the_done(const struct sim_judge *judge, const struct sim_agent *agent) {
    size_t done_count = 0;
    for (size_t i = 0; i < judge->agent_count; i++) {
        done_count += is_done_with(judge, &judge->players[i], agent);
    }
    return done_count > 0 && judge->agent_count - done_count < judge->min_nodes;
}

/* Nobody who has succeeded is waited for. */
static void on_round_promised(void *subject, uint64_t token) {
    const struct sim_judge *judge = subject;
    const struct sim_agent *agent = find_late(subject, token, AGENT_STATE_JOINING, on_round_promised);
    if (agent && is_quiet(judge) && needs_the_done(judge, agent)) {
        sim_violated("a member waits for a round that needs nodes that are done");
    }
}

static void expect_no_wait(struct sim_judge *judge, const struct sim_agent *agent) {
    if (!judge->is_c10d && !judge->is_static && agent->world.round > 0 && needs_the_done(judge, agent)) {
        sim_post(sim_kernel.now_us + judge->notice_us, on_round_promised, judge,
                 promise(judge, agent, agent, agent->world.round));
    }
}

/* One more has come to the exit barrier: perhaps the last. */
static void expect_barrier(struct sim_judge *judge, const struct sim_agent *agent) {
    uint32_t count = 0;
    for (size_t i = 0; i < judge->agent_count; i++) {
        count += is_done_with(judge, &judge->players[i], agent);
    }
    for (size_t i = 0; count >= agent->world.group_world_size && i < judge->agent_count; i++) {
        const struct sim_agent *other = &judge->players[i];
        if (other->machine.state == AGENT_STATE_BARRIER && is_done_with(judge, other, agent)) {
            sim_post(sim_kernel.now_us + judge->notice_us, on_barrier_promised, judge,
                     promise(judge, other, other, other->world.round));
        }
    }
}

/* A static node minds no departure, and once one is done each restarts alone. */
static bool is_told_by_static(const struct sim_judge *judge, const struct sim_agent *cause, bool must_tell) {
    return must_tell && !judge->any_done && judge->agents[cause - judge->players].disturbed_until_us == 0;
}

/* The world of `cause` has ended. `must_tell`: the others learn it from itself, not from its end or its silence. */
static void expect_notice(struct sim_judge *judge, const struct sim_agent *cause, bool must_tell, bool silently,
                          int64_t within_us) {
    if (judge->is_static && !is_told_by_static(judge, cause, must_tell)) {
        return;
    }
    for (size_t i = 0; i < judge->agent_count; i++) {
        const struct sim_agent *other = &judge->players[i];
        if (other != cause && other->runs && other->machine.state == AGENT_STATE_RUNNING &&
            other->world.round == cause->world.round &&
            judge->agents[i].server == judge->agents[cause->host->index].server) {
            sim_post(sim_kernel.now_us + within_us, silently ? on_silence_promised : on_promised, judge,
                     promise(judge, other, must_tell ? cause : other, other->world.round));
        }
    }
}

/* ---- a world is told ---- */

/* Over c10d the state that says that a round is complete is the state that a silent member is struck from: whoever sees
 * it late sees a smaller world. All must hear soon that it has ended. */
static bool may_be_torn(const struct sim_judge *judge, const struct sim_judge_round *round,
                        const struct rdzv_world *world) {
    return judge->is_c10d && round->world.group_world_size != world->group_world_size;
}

static void expect_torn_to_end(struct sim_judge *judge, const struct sim_judge_round *round) {
    for (uint32_t rank = 0; rank < round->world.group_world_size; rank++) {
        const struct sim_judge_seat *seat = &round->seats[rank];
        const struct sim_agent *member = &judge->players[seat->agent];
        if (seat->is_taken && member->life == seat->life) {
            sim_post(sim_kernel.now_us + judge->silence_us + judge->notice_us, on_promised, judge,
                     promise(judge, member, member, round->round));
        }
    }
}

static bool has_workers(const struct sim_agent *agent) {
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        if (agent->workers[i].runs) {
            return true;
        }
    }
    return false;
}

/* A process that gets no time cannot end its workers. When it has had none for longer than a node's silence may last,
 * the others go on without it. It learns so when it wakes, and then gives its workers the time to stop that they always
 * have. */
static bool could_end_workers(const struct sim_judge *judge, const struct sim_host *host) {
    if (host->stalled_until_us <= sim_kernel.now_us - judge->stop_us) {
        return true;
    }
    bool is_stalled = host->stalled_until_us > sim_kernel.now_us;
    return !is_stalled && host->stalled_until_us - host->stalled_since_us <= judge->patience_us;
}

/* Where several endpoints can serve the job: whoever has told another world is not to be believed as long as workers of
 * the one before can still run. */
static void check_alone(const struct sim_judge *judge, const struct sim_agent *agent, int server) {
    for (size_t i = 0; judge->server_count > 1 && i < judge->agent_count; i++) {
        const struct sim_agent *other = &judge->players[i];
        bool runs_another = other->runs && other != agent && has_workers(other) && judge->agents[i].server != server;
        if (runs_another && could_end_workers(judge, other->host)) {
            sim_trace("agent %u still runs workers of round %llu", other->host->index,
                      (unsigned long long)other->world.round);
            sim_violated("two coordinators' worlds run at the same time");
        }
    }
}

void sim_judge_world(struct sim_judge *judge, const struct sim_agent *agent, const struct rdzv_world *world) {
    struct sim_judge_agent *mine = account(judge, agent);
    if (judge->is_static && judge->any_done) {
        return; /* each restarts alone: there is no world of all */
    }
    int before = mine->server, server = server_of(judge, mine, agent->host);
    struct sim_judge_round *round = round_of(judge, world->round, server);
    for (size_t i = 0; !round && judge->server_count > 1 && i < judge->round_count; i++) {
        /* A connection that has ended since does not say any more who served it. */
        bool is_it = judge->rounds[i].round == world->round && is_same_world(&judge->rounds[i], world);
        round = is_it ? &judge->rounds[i] : NULL;
    }
    if (!round) {
        check_alone(judge, agent, server);
        round = new_round(judge, world, server);
    }
    round->is_torn = round->is_torn || may_be_torn(judge, round, world);
    must(round->is_torn || is_same_world(round, world), "two members are told different worlds for one round");
    must(world->group_rank < round->world.group_world_size, "a rank outside of its world");
    must(before != server || mine->last_round < world->round || mine->last_round == 0,
         "a member is told a round that is not newer than its last");
    mine->last_round = world->round;
    mine->told_restarts = world->job_counts_restarts ? world->restart_count : 0;
    for (uint32_t rank = 0; sim_kernel.host_count <= SIM_LINKED_HOSTS_MAX && rank < round->world.group_world_size;
         rank++) {
        must(!round->seats[rank].is_taken || round->seats[rank].agent != agent->host->index,
             "a node has two places in a world");
    }
    if (world->group_rank < round->world.group_world_size) {
        struct sim_judge_seat *seat = &round->seats[world->group_rank];
        bool may_be_taken = judge->is_static && !judge->promises.one_of_a_rank; /* by the one that was replaced */
        must(!seat->is_taken || may_be_taken, "two members have one rank");
        round->told_count -= seat->is_taken;
        *seat = (struct sim_judge_seat){.agent = agent->host->index,
                                        .life = agent->life,
                                        .is_taken = true,
                                        .base_global = world->base_global_rank,
                                        .base_role = world->base_role_rank};
    }
    check_master(agent, world);
    round->last_told_us = sim_kernel.now_us;
    if (++round->told_count == round->world.group_world_size && !round->is_torn && !sim_kernel.violation) {
        check_ranks(judge, round);
    }
    if (round->is_torn) {
        expect_torn_to_end(judge, round);
    }
}

/* ---- lives ---- */

/* A node comes or goes, or does not work as it should: any world of now may end of it. */
static void note_cause(struct sim_judge *judge) {
    for (size_t i = 0; i < judge->round_count; i++) {
        judge->rounds[i].has_other_cause = true;
    }
}

void sim_judge_start(struct sim_judge *judge, const struct sim_agent *agent) {
    struct sim_judge_agent *mine = account(judge, agent);
    note_cause(judge);
    *mine = (struct sim_judge_agent){.life = agent->life,
                                     .disturbed_until_us = mine->disturbed_until_us,
                                     .died_us = mine->died_us,
                                     .was_reset = mine->was_reset};
}

static bool is_restart(enum agent_outcome outcome) {
    return outcome == AGENT_OUTCOME_RESTART_FAILURE || outcome == AGENT_OUTCOME_RESTART_CHANGE;
}

static void check_budget(struct sim_judge *judge, const struct sim_agent *agent) {
    const struct sim_judge_agent *mine = account(judge, agent);
    const struct agent_machine *m = &agent->machine;
    if (m->job_counts) {
        must(m->outcome != AGENT_OUTCOME_FAILED || mine->lost_workers, "given up without a failure");
    } else if (m->outcome == AGENT_OUTCOME_RESTART_FAILURE) {
        must(mine->failures <= judge->max_restarts, "an attempt more than the budget has");
    } else if (m->outcome == AGENT_OUTCOME_FAILED) {
        must(mine->failures == judge->max_restarts + 1, "given up with restarts left");
    }
}

/* A sign of life and its answer took the time that silence is allowed: most of what is silent then is the network. It
 * takes one of the two ways half of that (sim_world.c), which few settings are short enough for. */
static bool is_network_slow(const struct sim_judge *judge) {
    int64_t until_us = sim_kernel.slow_until_us;
    return until_us > 0 && until_us + judge->silence_us > sim_kernel.now_us;
}

void sim_judge_step(struct sim_judge *judge, const struct sim_agent *agent, enum agent_state before,
                    const struct agent_event *event) {
    struct sim_judge_agent *mine = account(judge, agent);
    const struct agent_machine *m = &agent->machine;
    if (event->kind == AGENT_EVENT_SIGNAL) {
        note_cause(judge);
        mine->was_signalled = judge->any_signalled = true;
    }
    if (event->kind == AGENT_EVENT_RDZV_FAILED) {
        note_cause(judge);
    }
    if (event->kind == AGENT_EVENT_PREEMPT) {
        judge->any_preempted = true;
        note_cause(judge);
        if (before == AGENT_STATE_RUNNING && !judge->is_c10d && !judge->is_static) { /* there nobody can be told */
            expect_notice(judge, agent, true, false, judge->notice_us);
        }
    }
    /* With several endpoints another coordinator may not have heard of it. */
    if (event->kind == AGENT_EVENT_STOP && before > AGENT_STATE_JOINING && judge->server_count == 1) {
        judge->stopped_server = mine->server;
    }
    if (before == AGENT_STATE_RUNNING && event->kind == AGENT_EVENT_WORKER_FAILED) {
        mine->failures++;
        mine->lost_workers = true;
        struct sim_judge_round *round = round_of(judge, agent->world.round, mine->server);
        if (round) { /* else one that is not judged */
            round->has_failed = true;
        }
        check_budget(judge, agent);
        expect_notice(judge, agent, true, false, judge->notice_us);
    }
    bool has_changed = event->kind == AGENT_EVENT_WORLD_CHANGED || event->kind == AGENT_EVENT_CUT_OFF;
    if (before == AGENT_STATE_RUNNING && has_changed) {
        const struct sim_judge_round *round = round_of(judge, agent->world.round, mine->server);
        bool is_late = judge->server_count > 1 && is_network_slow(judge); /* for the lease, which is not moved on */
        must(!judge->was_paused || !judge->has_pauses || is_late, "a pause has cost a restart");
        judge->has_pauses = false; /* coordinators may pass a node on to each other when they begin */
        if (is_network_slow(judge)) {
            note_cause(judge);
        }
        must(judge->is_c10d || judge->server_count > 1 || !round || round->has_failed || round->has_other_cause,
             "a world ends without a reason");
    }
    if (before == AGENT_STATE_JOINING && event->kind == AGENT_EVENT_WORLD) {
        mine->lost_workers = false;
        uint32_t used = agent_machine_restart_count(m);
        must(m->job_counts || used == mine->failures, "the restarts that were charged are not the failures");
        must(m->job_counts || used <= judge->max_restarts, "more restarts than allowed");
    }
    if (m->state == AGENT_STATE_JOINING && before != AGENT_STATE_JOINING) {
        must(is_restart(m->outcome), "joins again without a reason");
        expect_no_wait(judge, agent);
    }
    if (m->state == AGENT_STATE_BARRIER && before != AGENT_STATE_BARRIER) {
        judge->any_done = true;
        expect_barrier(judge, agent);
    }
    if (m->state == AGENT_STATE_CLOSING && m->outcome != AGENT_OUTCOME_SIGNALLED &&
        m->outcome != AGENT_OUTCOME_RDZV_LOST) {
        judge->any_ended_job = true;
    }
    judge->any_ended_job |=
        m->outcome == AGENT_OUTCOME_FAILED; /* the others hear of it before its workers have ended */
}

/* The last world has ended in a way that the job had nothing left for. */
static bool is_budget_spent(const struct sim_judge *judge, int server) {
    const struct sim_judge_round *last = NULL;
    for (size_t i = 0; i < judge->round_count; i++) {
        bool is_its = server == 0 || judge->rounds[i].server == server || judge->rounds[i].server == 0;
        last = is_its ? &judge->rounds[i] : last;
    }
    return last && last->world.job_counts_restarts &&
           ((last->has_failed && (judge->has_window || last->world.restart_count == judge->max_restarts)) ||
            (last->has_other_cause && judge->limits_changes));
}

/* Where the job has failed of its workers, each node's report names the first of them. */
static void check_cause(const struct sim_judge *judge, const struct sim_agent *agent) {
    bool is_of_workers = strstr(agent->failed_why, "the job has failed: its budget is spent") != NULL &&
                         is_quiet(judge) && !judge->limits_changes;
    must(!is_of_workers || rdzv_cause(agent->rdzv) != NULL, "the job has failed of a worker, and a node knows none");
}

/* Why it cannot go on must have happened. */
static void check_loss(const struct sim_judge *judge, const struct sim_agent *agent) {
    sim_trace("agent %u: has lost the rendezvous: %s", agent->host->index, agent->failed_why);
    must(agent->failed_status != 0, "an agent gives up without having been told why");
    check_cause(judge, agent);
    if (agent->failed_status == MUSTER_ELIMIT && judge->max_nodes == 1 && agent->machine.world_count == 0) {
        return; /* the second agent of a job of one node */
    }
    if (agent->failed_status == MUSTER_ECLOSED) {
        must(judge->any_ended_job || judge->server_suffered || judge->any_signalled || judge->any_preempted ||
                 judge->any_done || (judge->is_static && judge->takes_places) ||
                 is_budget_spent(judge, judge->agents[agent->host->index].server),
             "closed, and nobody has closed it");
    } else {
        /* Whoever comes when the job has ended of its budget may find that its server has gone already. */
        must(judge->had_trouble || judge->any_ended_job || ((judge->is_c10d || judge->is_static) && judge->any_done) ||
                 is_budget_spent(judge, judge->agents[agent->host->index].server),
             "the rendezvous is lost, and nothing has happened to it");
    }
}

/* All that report a failure of a worker name the same one. A node that has missed a round since names the failure
 * because of which it wanted that one. */
void sim_judge_report(struct sim_judge *judge, const struct sim_agent *agent) {
    const struct rdzv_cause *cause = rdzv_cause(agent->rdzv);
    if (!cause) {
        return;
    }
    sim_trace("agent %u: reports rank %u of round %llu%s", agent->host->index, cause->rank,
              (unsigned long long)agent->world.round, cause->is_told ? "" : ", without its last words");
    if (!judge->has_reported) {
        judge->has_reported = true;
        judge->reported = *cause;
        judge->reported_round = agent->world.round;
    }
    bool is_same_round = judge->reported_round == agent->world.round;
    must(!is_quiet(judge) || !is_same_round || judge->reported.rank == cause->rank,
         "two nodes report different causes");
}

static void note_done_server(struct sim_judge *judge, const struct sim_agent *agent) {
    if (agent->host->index < judge->server_count && agent->machine.outcome == AGENT_OUTCOME_SUCCESS) {
        judge->done_server = (int)(agent->host->index << 16) | agent->host->pid;
    }
}

void sim_judge_exit(struct sim_judge *judge, const struct sim_agent *agent, int code) {
    if (agent->host->index < judge->server_count) { /* it may have served the others */
        note_cause(judge);
        account(judge, agent)->died_us = sim_kernel.now_us;
    }
    note_done_server(judge, agent);
    const struct sim_judge_agent *mine = account(judge, agent);
    enum agent_outcome outcome = agent->machine.outcome;
    must(!judge->has_pauses || code == 0, "a pause has ended an agent badly");
    if (code != 0) {
        sim_judge_bad_end(judge);
    }
    must((code == 0) == (outcome == AGENT_OUTCOME_SUCCESS || outcome == AGENT_OUTCOME_SPARE) &&
             (code == AGENT_EXIT_PREEMPTED) == (outcome == AGENT_OUTCOME_PREEMPTED),
         "a wrong exit code");
    switch (outcome) {
    case AGENT_OUTCOME_SUCCESS:
        must(!mine->lost_workers, "success, and a worker has failed");
        break;
    case AGENT_OUTCOME_SPARE:
        must(judge->any_ended_job || judge->server_suffered || judge->any_preempted ||
                 is_budget_spent(judge, mine->server),
             "a spare is released from a job that goes on");
        must(!is_quiet(judge) || judge->any_done, "a spare ends well in a job that has failed");
        break;
    case AGENT_OUTCOME_SIGNALLED:
        must(mine->was_signalled, "ended by a signal that nobody sent");
        break;
    case AGENT_OUTCOME_PREEMPTED:
        must(judge->any_preempted, "stopped for a pre-emption that nobody has announced");
        break;
    case AGENT_OUTCOME_FAILED:
        check_budget(judge, agent);
        break;
    case AGENT_OUTCOME_RDZV_LOST:
        check_loss(judge, agent);
        break;
    default:
        sim_violated("an end without a reason");
        break;
    }
}

/* Whoever is done with its workers is not missed. */
static bool is_in_its_world(const struct sim_agent *agent) {
    enum agent_state state = agent->machine.state;
    return state == AGENT_STATE_RUNNING || (state > AGENT_STATE_RUNNING && state < AGENT_STATE_BARRIER &&
                                            agent->machine.outcome != AGENT_OUTCOME_SUCCESS);
}

void sim_judge_death(struct sim_judge *judge, const struct sim_agent *agent, bool silently) {
    struct sim_judge_agent *mine = account(judge, agent);
    mine->died_us = sim_kernel.now_us;
    judge->any_death = true;
    note_done_server(judge, agent);
    note_cause(judge);
    if (agent->host->index < judge->server_count) {
        judge->server_suffered = true;
        mine->disturbed_until_us =
            sim_kernel.now_us > mine->disturbed_until_us ? sim_kernel.now_us : mine->disturbed_until_us;
    }
    silently = silently || mine->is_unheard;
    if (is_in_its_world(agent)) {
        expect_notice(judge, agent, false, silently,
                      silently ? judge->silence_us + judge->notice_us : judge->notice_us);
    }
}

void sim_judge_disturbed(struct sim_judge *judge, const struct sim_host *host, int64_t until_us) {
    struct sim_judge_agent *its = &judge->agents[host->index];
    its->disturbed_until_us = until_us > its->disturbed_until_us ? until_us : its->disturbed_until_us;
    judge->had_trouble = true;
    note_cause(judge);
    judge->server_suffered = judge->server_suffered || host->index < judge->server_count;
}

void sim_judge_reset(struct sim_judge *judge, const struct sim_host *host) {
    sim_judge_disturbed(judge, host, sim_kernel.now_us);
    judge->agents[host->index].was_reset = true;
}

void sim_judge_end(struct sim_judge *judge) {
    for (size_t i = 0; i < judge->agent_count; i++) {
        must(!judge->players[i].runs, "the job does not end");
    }
    bool are_all_gone = true;
    for (size_t i = 0; i < judge->agent_count; i++) {
        are_all_gone = are_all_gone && !judge->players[i].runs;
    }
    if (!sim_kernel.violation && are_all_gone) {
        must(sim_memory_live() == 0, "memory is not given back");
    }
}
