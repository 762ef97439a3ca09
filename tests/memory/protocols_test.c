/* The protocols on shared memory, instruction by instruction, on a machine that reorders as ARMv8 does: their promises
 * hold in every order. Then each order that the code asks for is weakened in turn. Either a promise is broken, or the
 * table here says that ARM would do with less. docs/memory-model.md argues the same in words.
 *
 * The programs are written from the code, by hand. Who changes an order there changes it here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "memory/machine.h"

enum { CHOICES_MAX = 12 };

/* An order that stands in the code, and a weaker one. For what is no order, a step that is there (FENCE_FULL) or is
 * left out (NO_FENCE). */
struct choice {
    const char *name;
    enum order written, weaker;
    bool is_needed; /* the weaker one breaks the promise */
};

struct protocol {
    const char *name;
    void (*build)(struct program *p, const enum order *orders);
    bool (*is_broken)(const struct outcome *outcome);
    struct choice choices[CHOICES_MAX];
};

/* Compilers make LDAPR of C's acquiring loads where the processor has it: that is the weaker one. */
static void weaken_loads(struct program *program) {
    for (int t = 0; t < program->thread_count; t++) {
        for (int i = 0; i < program->counts[t]; i++) {
            struct instruction *it = &program->threads[t][i];
            it->order = it->action == LOAD && it->order == ACQUIRE ? ACQUIRE_PC : it->order;
        }
    }
}

static struct exploration play(const struct protocol *protocol, const enum order *orders) {
    struct program program;
    memset(&program, 0, sizeof program);
    protocol->build(&program, orders);
    weaken_loads(&program);
    struct exploration found = explore(&program, protocol->is_broken);
    assert_false(found.is_full);
    return found;
}

static size_t written_orders(const struct protocol *protocol, enum order orders[CHOICES_MAX]) {
    size_t count = 0;
    for (; count < CHOICES_MAX && protocol->choices[count].name; count++) {
        orders[count] = protocol->choices[count].written;
    }
    return count;
}

/* A choice that is not weaker is not tried: the order stands there because the program needs one. */
static void check(const struct protocol *protocol) {
    enum order orders[CHOICES_MAX];
    size_t count = written_orders(protocol, orders), needed = 0, tried = 0;
    struct exploration found = play(protocol, orders);
    if (found.is_bad) {
        fail_msg("%s: the promise is broken", protocol->name);
    }
    assert_true(found.end_count > 0);
    for (size_t i = 0; i < count; i++) {
        const struct choice *choice = &protocol->choices[i];
        (void)written_orders(protocol, orders);
        orders[i] = choice->weaker;
        bool is_weaker = choice->weaker != choice->written;
        bool is_needed = is_weaker && play(protocol, orders).is_bad;
        if (is_needed != choice->is_needed) {
            fail_msg("%s, %s: a weaker order %s", protocol->name, choice->name,
                     is_needed ? "breaks the promise" : "would do");
        }
        needed += is_needed;
        tried += is_weaker;
    }
    (void)printf("%s: %zu states, %zu of %zu weaker orders break it\n", protocol->name, found.state_count, needed,
                 tried);
}

/* ---- a node's records: src/comm/node/node_step.c ---- */

/* A line that is used again: the next record waits until the reader has consumed the one before. */
static void build_record(struct program *p, const enum order *orders) {
    enum { DATA, STAMP, CONSUMED };
    for (int step = 1; step <= 2; step++) {
        if (step == 2) {
            await(p, 0, 0, CONSUMED, 1, orders[3]);
        }
        (void)store(p, 0, DATA, step, RELAXED);
        (void)store(p, 0, STAMP, step, orders[0]);
        await(p, 1, 2 * step, STAMP, step, orders[1]);
        (void)load(p, 1, 2 * step + 1, DATA, RELAXED);
        (void)store(p, 1, CONSUMED, step, orders[2]);
    }
}

static bool record_is_broken(const struct outcome *outcome) {
    return outcome->has_ended[1] && (outcome->registers[1][3] != 1 || outcome->registers[1][5] != 2);
}

static const struct protocol record = {
    .name = "a record in a line that is used again",
    .build = build_record,
    .is_broken = record_is_broken,
    .choices = {{"stamp is stored", RELEASE, RELAXED, true},
                {"stamp is loaded", ACQUIRE, RELAXED, true},
                {"consumed is stored", RELEASE, RELAXED, true},
                {"consumed is loaded", ACQUIRE, RELAXED, false}}, /* only stores follow, behind a branch */
};

/* The first record of the next call stands for `consumed`: nobody writes it who has not read all of the call before. */
static void build_next_call(struct program *p, const enum order *orders) {
    enum { DATA, STAMP, NEXT };
    (void)store(p, 0, DATA, 1, RELAXED);
    (void)store(p, 0, STAMP, 1, orders[0]);
    await(p, 0, 0, NEXT, 1, orders[2]);
    (void)store(p, 0, DATA, 2, RELAXED);
    await(p, 1, 0, STAMP, 1, orders[1]);
    (void)load(p, 1, 1, DATA, RELAXED);
    (void)store(p, 1, NEXT, 1, orders[3]);
}

static bool next_call_is_broken(const struct outcome *outcome) {
    return outcome->has_ended[1] && outcome->registers[1][1] != 1;
}

static const struct protocol next_call = {
    .name = "the first record of the next call says that all of the one before is consumed",
    .build = build_next_call,
    .is_broken = next_call_is_broken,
    .choices = {{"stamp is stored", RELEASE, RELAXED, true},
                {"stamp is loaded", ACQUIRE, RELAXED, true},
                {"next stamp is loaded", ACQUIRE, RELAXED, false}, /* only stores follow, behind a branch */
                {"next stamp is stored", RELEASE, RELAXED, true}},
};

/* An offer that came to nothing. The line may hold anything before: here the number that is waited for. */
static void build_offer(struct program *p, const enum order *orders) {
    enum { STAGED, STAMP, PAYLOAD };
    p->initial[STAGED] = 5;
    (void)store(p, 0, STAGED, 0, RELAXED);
    (void)store(p, 0, STAMP, 5, orders[0]);
    (void)store(p, 0, PAYLOAD, 1, RELAXED);
    (void)store(p, 0, STAGED, 5, orders[1]);
    await(p, 1, 0, STAMP, 5, orders[2]);
    await(p, 1, 1, STAGED, 5, orders[3]);
    (void)load(p, 1, 2, PAYLOAD, RELAXED);
}

static bool offer_is_broken(const struct outcome *outcome) {
    return outcome->has_ended[1] && outcome->registers[1][2] != 1;
}

static const struct protocol offer = {
    .name = "the rest of a record after an offer",
    .build = build_offer,
    .is_broken = offer_is_broken,
    .choices = {{"stamp is stored", RELEASE, RELAXED, true},
                {"staged is stored", RELEASE, RELAXED, true},
                {"stamp is loaded", ACQUIRE, RELAXED, true},
                {"staged is loaded", ACQUIRE, RELAXED, true}},
};

/* Bytes for others, past the caches: a leader hands the news on, as in a barrier of two stages. What follows the fence
 * in the same kernel are ordinary stores. */
static void build_meeting(struct program *p, const enum order *orders) {
    enum { MANY, LAST, STAMP, LEADER };
    (void)store(p, 0, MANY, 1, STREAMING);
    fence(p, 0, orders[0]);
    (void)store(p, 0, LAST, 1, RELAXED);
    (void)store(p, 0, STAMP, 1, orders[1]);
    await(p, 1, 0, STAMP, 1, orders[2]);
    (void)store(p, 1, LEADER, 1, orders[3]);
    await(p, 2, 0, LEADER, 1, orders[4]);
    (void)load(p, 2, 1, MANY, RELAXED);
    (void)load(p, 2, 2, LAST, RELAXED);
}

static bool meeting_is_broken(const struct outcome *outcome) {
    return outcome->has_ended[2] && (outcome->registers[2][1] != 1 || outcome->registers[2][2] != 1);
}

static const struct protocol meeting = {
    .name = "a meeting after stores past the caches",
    .build = build_meeting,
    .is_broken = meeting_is_broken,
    .choices = {{"fence of the kernel", FENCE_STORES, NO_FENCE, true},
                {"stamp is stored", RELEASE, RELAXED, true},
                {"stamp is loaded by the leader", ACQUIRE, RELAXED, false}, /* only a store follows, behind a branch */
                {"stamp of the leader is stored", RELEASE, RELAXED, false}, /* and only that load is before it */
                {"stamp of the leader is loaded", ACQUIRE, RELAXED, true}},
};

/* ---- the bell: src/comm/host/bell.h ---- */

enum { BELL_RINGS, BELL_SLEEPERS, BELL_FLAG, BELL_DATA };

/* Where ringers are so cheap because the sleeper executes their barrier (`barriers`), they only load `sleepers`. */
static void build_ringer(struct program *p, int thread, bool barriers, int round, const enum order *orders) {
    (void)store(p, thread, BELL_FLAG, round, orders[0]);
    if (barriers) {
        (void)load(p, thread, 2 * round, BELL_SLEEPERS, RELAXED);
    } else {
        (void)add(p, thread, 2 * round, BELL_SLEEPERS, 0, orders[1]);
    }
    skip_if(p, thread, 2 * round, 0, 2);
    (void)add(p, thread, 2 * round + 1, BELL_RINGS, 1, orders[2]);
    futex_wake(p, thread, BELL_RINGS);
}

/* Sleeps once, unless the flag has `round` already. */
static void build_sleeper(struct program *p, bool barriers, int round, const enum order *orders) {
    int first = round == 1 ? 0 : 4;
    (void)add(p, 1, first, BELL_SLEEPERS, 1, orders[3]);
    if (barriers && orders[6] == FENCE_FULL) {
        act(p, 1, ALL_BARRIERS, 0);
    }
    (void)load(p, 1, first + 1, BELL_RINGS, orders[4]);
    (void)load(p, 1, first + 2, BELL_FLAG, orders[5]);
    if (round == 1) {
        skip_if(p, 1, first + 2, 1, 2);
    } else {
        skip_if(p, 1, first + 2, 2, 1);
    }
    if (round == 1) {
        skip_if(p, 1, first + 2, 2, 1);
    }
    futex_wait(p, 1, BELL_RINGS, first + 1);
    (void)add(p, 1, first + 3, BELL_SLEEPERS, -1, RELAXED);
}

static void build_bell(struct program *p, const enum order *orders) {
    (void)store(p, 0, BELL_DATA, 1, RELAXED);
    build_ringer(p, 0, false, 1, orders);
    build_sleeper(p, false, 1, orders);
    (void)load(p, 1, 4, BELL_FLAG, orders[5]); /* awake again */
    (void)load(p, 1, 5, BELL_DATA, RELAXED);
}

/* Nobody sleeps for ever, and who sees the flag sees what was published. */
static bool bell_is_broken(const struct outcome *outcome) {
    bool is_lost = outcome->is_stuck && outcome->is_asleep[1];
    return is_lost || (outcome->has_ended[1] && outcome->registers[1][4] == 1 && outcome->registers[1][5] != 1);
}

static const struct protocol bell = {
    .name = "a bell whose ringers add 0",
    .build = build_bell,
    .is_broken = bell_is_broken,
    .choices = {{"flag is stored", RELEASE, RELAXED, true},
                {"ringer adds 0 to sleepers", ACQUIRE_RELEASE, RELAXED, true},
                {"rings is raised", RELEASE, RELAXED, false}, /* adding 0 acquires, which waits for the flag */
                {"sleepers is raised", ACQUIRE_RELEASE, RELAXED, true},
                {"rings is loaded", ACQUIRE, RELAXED, true},
                {"flag is loaded", ACQUIRE, RELAXED, true}},
};

/* What of seq_cst is needed. */
static const struct protocol bell_halves = {
    .name = "a bell whose ringers add 0, half orders",
    .build = build_bell,
    .is_broken = bell_is_broken,
    .choices = {{"flag is stored", RELEASE, RELEASE, false},
                {"ringer adds 0 to sleepers", RELEASE, ACQUIRE_PC, true},
                {"rings is raised", RELEASE, RELAXED, true},
                {"sleepers is raised", ACQUIRE, RELEASE, true},
                {"rings is loaded", ACQUIRE, ACQUIRE, false},
                {"flag is loaded", ACQUIRE, ACQUIRE, false}},
};

static void build_bell_with_barriers(struct program *p, const enum order *orders) {
    (void)store(p, 0, BELL_DATA, 1, RELAXED);
    build_ringer(p, 0, true, 1, orders);
    build_sleeper(p, true, 1, orders);
    (void)load(p, 1, 4, BELL_FLAG, orders[5]);
    (void)load(p, 1, 5, BELL_DATA, RELAXED);
}

static const struct protocol bell_with_barriers = {
    .name = "a bell whose sleeper executes the ringers' barriers",
    .build = build_bell_with_barriers,
    .is_broken = bell_is_broken,
    .choices = {{"flag is stored", RELEASE, RELAXED, true},
                {"(not used)", RELAXED, RELAXED, false},
                {"rings is raised", RELEASE, RELAXED, true},
                {"sleepers is raised", ACQUIRE_RELEASE, RELAXED, false}, /* the system call is a fence */
                {"rings is loaded", ACQUIRE, RELAXED, true},
                {"flag is loaded", ACQUIRE, RELAXED, true},
                {"membarrier", FENCE_FULL, NO_FENCE, true}},
};

/* Two sleeps, for two rings. */
static void build_bell_twice(struct program *p, const enum order *orders) {
    build_ringer(p, 0, false, 1, orders);
    build_ringer(p, 0, false, 2, orders);
    build_sleeper(p, false, 1, orders);
    build_sleeper(p, false, 2, orders);
}

static bool bell_twice_is_broken(const struct outcome *outcome) {
    return outcome->is_stuck && outcome->is_asleep[1];
}

static const struct protocol bell_twice = {
    .name = "two rings for two sleeps",
    .build = build_bell_twice,
    .is_broken = bell_twice_is_broken,
    .choices = {{"flag is stored", RELEASE, RELEASE, false},
                {"ringer adds 0 to sleepers", ACQUIRE_RELEASE, RELAXED, true},
                {"rings is raised", RELEASE, RELAXED, false},
                {"sleepers is raised", ACQUIRE_RELEASE, RELEASE, true},
                {"rings is loaded", ACQUIRE, RELAXED, true},
                {"flag is loaded", ACQUIRE, RELAXED, false}}, /* here nothing is read behind it */
};

/* Two threads sleep on sockets (src/comm/p2p/p2p_progress.c), on a descriptor that stays readable until one has emptied
 * it. The one that is awake must not take what was for the other, which has come meanwhile. System calls on the
 * descriptor take a lock of the kernel's. */
static void build_event(struct program *p, const enum order *orders) {
    enum { RINGS, SLEEPERS, FLAG, EVENT, ZERO };
    p->initial[SLEEPERS] = p->initial[EVENT] = 1;
    (void)load(p, 0, 0, SLEEPERS, orders[0]); /* awake, by some ring of before */
    skip_if(p, 0, 0, 2, 9);
    fence(p, 0, FENCE_FULL);
    (void)exchange(p, 0, 1, EVENT, 0, RELAXED);
    fence(p, 0, FENCE_FULL);
    (void)load(p, 0, 2, SLEEPERS, orders[1]);
    skip_if(p, 0, 2, 1, 4);
    if (orders[2] == FENCE_FULL) {
        (void)add(p, 0, 3, EVENT, 1, RELAXED);
    } else {
        fence(p, 0, NO_FENCE);
    }
    fence(p, 0, FENCE_FULL);
    futex_wake(p, 0, EVENT);
    fence(p, 0, NO_FENCE);
    fence(p, 0, NO_FENCE);
    (void)add(p, 1, 0, SLEEPERS, 1, ACQUIRE_RELEASE);
    (void)load(p, 1, 1, RINGS, ACQUIRE);
    (void)load(p, 1, 2, FLAG, ACQUIRE);
    skip_if(p, 1, 2, 1, 4);
    (void)load(p, 1, 3, RINGS, orders[3]); /* has it rung since? */
    skip_if(p, 1, 3, 1, 2);
    (void)load(p, 1, 4, ZERO, RELAXED);
    futex_wait(p, 1, EVENT, 4);
    (void)store(p, 2, FLAG, 1, RELEASE);
    (void)add(p, 2, 0, SLEEPERS, 0, ACQUIRE_RELEASE);
    (void)add(p, 2, 1, RINGS, 1, RELEASE);
    fence(p, 2, FENCE_FULL);
    (void)add(p, 2, 2, EVENT, 1, RELAXED);
    futex_wake(p, 2, EVENT);
}

static const struct protocol event = {
    .name = "two threads that sleep on sockets",
    .build = build_event,
    .is_broken = bell_twice_is_broken,
    .choices = {{"sleepers is loaded", ACQUIRE, RELAXED, false}, /* the system calls order it */
                {"sleepers is loaded again", ACQUIRE, RELAXED, false},
                {"the ring is given back", FENCE_FULL, NO_FENCE, true},
                {"rings is loaded again", ACQUIRE, RELAXED, false}}, /* the descriptor tells, too */
};

/* ---- messages between neighbours: src/comm/p2p ---- */

/* A ring with room for one byte, and two bytes to send. */
static void build_ring(struct program *p, const enum order *orders) {
    enum { CELL, WRITTEN, READ };
    for (int n = 1; n <= 2; n++) {
        if (n == 2) {
            await(p, 0, 0, READ, 1, orders[3]);
        }
        (void)store(p, 0, CELL, n, RELAXED);
        (void)store(p, 0, WRITTEN, n, orders[0]);
        await(p, 1, 2 * n, WRITTEN, n, orders[1]);
        (void)load(p, 1, 2 * n + 1, CELL, RELAXED);
        (void)store(p, 1, READ, n, orders[2]);
    }
}

static const struct protocol ring = {
    .name = "a ring of one byte",
    .build = build_ring,
    .is_broken = record_is_broken,
    .choices = {{"written is stored", RELEASE, RELAXED, true},
                {"written is loaded", ACQUIRE, RELAXED, true},
                {"read is stored", RELEASE, RELAXED, true},
                {"read is loaded", ACQUIRE, RELAXED, false}}, /* only stores follow, behind a branch */
};

/* A box of one slot, two messages: the slot's number is its flag. */
static void build_slots(struct program *p, const enum order *orders) {
    enum { ENVELOPE, DATA, NUMBER, TAKEN };
    for (int n = 1; n <= 2; n++) {
        if (n == 2) {
            await(p, 0, 0, TAKEN, 1, orders[3]);
        }
        (void)store(p, 0, ENVELOPE, n, RELAXED);
        (void)store(p, 0, DATA, n, RELAXED);
        (void)store(p, 0, NUMBER, n, orders[0]);
        await(p, 1, 3 * n - 3, NUMBER, n, orders[1]);
        (void)load(p, 1, 3 * n - 2, ENVELOPE, RELAXED);
        (void)load(p, 1, 3 * n - 1, DATA, RELAXED);
        (void)store(p, 1, TAKEN, n, orders[2]);
    }
}

static bool slots_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && (got[1] != 1 || got[2] != 1 || got[4] != 2 || got[5] != 2);
}

static const struct protocol slots = {
    .name = "short messages in a slot that is used again",
    .build = build_slots,
    .is_broken = slots_is_broken,
    .choices = {{"number is stored", RELEASE, RELAXED, true},
                {"number is loaded", ACQUIRE, RELAXED, true},
                {"taken is stored", RELEASE, RELAXED, true},
                {"taken is loaded", ACQUIRE, RELAXED, false}}, /* only stores follow, behind a branch */
};

/* A message in the ring says how many are in the box before it. Whoever has it finds them there. */
static void build_box_and_ring(struct program *p, const enum order *orders) {
    enum { DATA, NUMBER, CELL, WRITTEN };
    (void)store(p, 0, DATA, 1, RELAXED);
    (void)store(p, 0, NUMBER, 1, orders[0]);
    (void)store(p, 0, CELL, 1, RELAXED);
    (void)store(p, 0, WRITTEN, 1, orders[1]);
    await(p, 1, 0, WRITTEN, 1, orders[2]);
    (void)load(p, 1, 1, CELL, RELAXED);
    (void)load(p, 1, 2, NUMBER, orders[3]);
    (void)load(p, 1, 3, DATA, RELAXED);
}

static bool box_and_ring_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && (got[1] != 1 || got[2] != 1 || got[3] != 1);
}

static const struct protocol box_and_ring = {
    .name = "short messages before one in the ring",
    .build = build_box_and_ring,
    .is_broken = box_and_ring_is_broken,
    .choices = {{"number is stored", RELEASE, RELAXED, false}, /* `written` stands for it here */
                {"written is stored", RELEASE, RELAXED, true},
                {"written is loaded", ACQUIRE, RELAXED, true},
                {"number is loaded", ACQUIRE, RELAXED, false}},
};

/* A message that is read out of its sender's memory, and taken back meanwhile: then its memory may hold anything. */
static void build_withdrawal(struct program *p, const enum order *orders) {
    enum { BUFFER, WITHDRAWN };
    p->initial[BUFFER] = 1;
    (void)add(p, 0, 0, WITHDRAWN, 1, orders[0]);
    fence(p, 0, orders[1]);
    (void)store(p, 0, BUFFER, 9, RELAXED);
    (void)load(p, 1, 0, BUFFER, RELAXED);
    fence(p, 1, orders[2]);
    (void)load(p, 1, 1, WITHDRAWN, orders[3]);
}

static bool withdrawal_is_broken(const struct outcome *outcome) {
    return outcome->has_ended[1] && outcome->registers[1][0] != 1 && outcome->registers[1][1] == 0;
}

static const struct protocol withdrawal = {
    .name = "a message that is taken back while it is read",
    .build = build_withdrawal,
    .is_broken = withdrawal_is_broken,
    .choices = {{"withdrawn is raised", ACQUIRE_RELEASE, RELAXED, false}, /* the fence orders it */
                {"fence of the sender", FENCE_FULL, NO_FENCE, true},
                {"fence of the reader", FENCE_FULL, NO_FENCE, true},
                {"withdrawn is loaded", ACQUIRE, RELAXED, false}}, /* so does the reader's */
};

static const struct protocol withdrawal_weaker = {
    .name = "a message that is taken back, with the weakest fences",
    .build = build_withdrawal,
    .is_broken = withdrawal_is_broken,
    .choices = {{"withdrawn is raised", RELAXED, RELAXED, false},
                {"fence of the sender", FENCE_STORES, FENCE_LOADS, true},
                {"fence of the reader", FENCE_LOADS, FENCE_STORES, true},
                {"withdrawn is loaded", RELAXED, RELAXED, false}},
};

/* ---- names of allocations: src/comm/host/memory.c ---- */

enum { NAME_GENERATION, NAME_FD, NAME_COOKIE, NAME_LOCK, NAME_READER_LOCK };

/* The owner gives an allocation back and puts another in its place, with its lock in both; locks are taken and let go
 * between. */
static void build_owner(struct program *p, const enum order *orders) {
    p->initial[NAME_GENERATION] = 1;
    p->initial[NAME_FD] = p->initial[NAME_COOKIE] = 1;
    p->initial[NAME_LOCK] = p->initial[NAME_READER_LOCK] = 1;
    (void)add(p, 0, 0, NAME_GENERATION, 1, orders[0]);
    (void)store(p, 0, NAME_LOCK, 0, orders[1]);
    (void)exchange(p, 0, 1, NAME_LOCK, 1, orders[2]);
    (void)store(p, 0, NAME_FD, 2, RELAXED);
    (void)store(p, 0, NAME_COOKIE, 2, RELAXED);
    (void)add(p, 0, 2, NAME_GENERATION, 1, orders[3]);
}

static void build_names(struct program *p, const enum order *orders) {
    build_owner(p, orders);
    (void)load(p, 1, 0, NAME_GENERATION, orders[4]);
    (void)load(p, 1, 1, NAME_FD, RELAXED);
    (void)load(p, 1, 2, NAME_COOKIE, RELAXED);
    (void)store(p, 1, NAME_READER_LOCK, 0, orders[5]); /* while the kernel maps */
    (void)exchange(p, 1, 3, NAME_READER_LOCK, 1, orders[6]);
    (void)load(p, 1, 4, NAME_GENERATION, orders[7]);
}

static bool names_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    int wanted = got[0] == 1 ? 1 : 2;
    return outcome->has_ended[1] && got[0] % 2 == 1 && got[0] == got[4] && (got[1] != wanted || got[2] != wanted);
}

static const struct protocol names = {
    .name = "the name of an allocation whose place is used again",
    .build = build_names,
    .is_broken = names_is_broken,
    .choices = {{"generation is raised before", RELEASE, RELAXED, false}, /* the owner's lock orders it */
                {"owner lets go its lock", RELEASE, RELAXED, false},      /* and the other way round */
                {"owner takes its lock", ACQUIRE, RELAXED, true},
                {"generation is raised after", RELEASE, RELAXED, true},
                {"generation is loaded before", ACQUIRE, RELAXED, true},
                {"reader lets go its lock", RELEASE, RELAXED, true},
                {"reader takes its lock", ACQUIRE, RELAXED, true},
                {"generation is loaded after", ACQUIRE, RELAXED, false}}, /* the lock orders it */
};

static const struct protocol names_by_lock = {
    .name = "the same, ordered by the locks alone",
    .build = build_names,
    .is_broken = names_is_broken,
    .choices = {{"generation is raised before", RELAXED, RELAXED, false},
                {"owner lets go its lock", RELEASE, RELAXED, true},
                {"owner takes its lock", ACQUIRE, RELAXED, true},
                {"generation is raised after", RELEASE, RELEASE, false},
                {"generation is loaded before", ACQUIRE, ACQUIRE, false},
                {"reader lets go its lock", RELEASE, RELAXED, true},
                {"reader takes its lock", ACQUIRE, RELAXED, true},
                {"generation is loaded after", RELAXED, RELAXED, false}},
};

/* ---- where members are: src/comm/engine/call_line.h, src/comm/group ---- */

/* A history of two calls. The other member goes on to call 4 while its calls 1 and 2 are compared. */
static void build_calls(struct program *p, const enum order *orders) {
    enum { BEGUN, PLACES_OF_CALLS };
    p->initial[BEGUN] = 1;
    p->initial[PLACES_OF_CALLS + 1] = 1;
    for (int number = 2; number <= 4; number++) {
        (void)store(p, 0, PLACES_OF_CALLS + number % 2, number, orders[0]);
        (void)store(p, 0, BEGUN, number, orders[1]);
    }
    (void)load(p, 1, 0, BEGUN, orders[2]);
    (void)load(p, 1, 1, PLACES_OF_CALLS + 1, orders[3]);
    (void)load(p, 1, 2, PLACES_OF_CALLS, orders[3]);
    if (orders[4] == FENCE_FULL) {
        (void)load(p, 1, 3, BEGUN, RELAXED);
    }
}

static bool calls_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    int8_t begun = got[0], after = got[3] != 0 ? got[3] : begun;
    return outcome->has_ended[1] && ((after <= 1 && got[1] != 1) || (begun >= 2 && after <= 2 && got[2] != 2));
}

static const struct protocol calls = {
    .name = "a member's calls are compared while it goes on",
    .build = build_calls,
    .is_broken = calls_is_broken,
    .choices = {{"fingerprint is stored", RELEASE, RELAXED, true}, /* the next one, before `begun` of this one */
                {"begun is stored", RELEASE, RELAXED, true},
                {"begun is loaded", ACQUIRE, RELAXED, true},
                {"fingerprints are loaded", ACQUIRE, RELAXED, true}, /* before `begun` is loaded again */
                {"begun is loaded again", FENCE_FULL, NO_FENCE, true}},
};

/* When a member began a call, for traces: the place is used again for a later call. */
static void build_trace(struct program *p, const enum order *orders) {
    enum { SEQUENCE, TIME };
    p->initial[SEQUENCE] = p->initial[TIME] = 1;
    if (orders[4] == FENCE_FULL) {
        (void)store(p, 0, SEQUENCE, 0, RELAXED);
    }
    (void)store(p, 0, TIME, 2, orders[0]);
    (void)store(p, 0, SEQUENCE, 2, orders[1]);
    (void)load(p, 1, 0, SEQUENCE, orders[2]);
    (void)load(p, 1, 1, TIME, orders[3]);
    (void)load(p, 1, 2, SEQUENCE, RELAXED);
}

static bool trace_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && got[0] > 0 && got[0] == got[2] && got[0] != got[1];
}

static const struct protocol trace = {
    .name = "when a call was begun, in a place that is used again",
    .build = build_trace,
    .is_broken = trace_is_broken,
    .choices = {{"time is stored", RELEASE, RELAXED, true}, /* after the sequence is cleared */
                {"sequence is stored", RELEASE, RELAXED, true},
                {"sequence is loaded", ACQUIRE, RELAXED, true},
                {"time is loaded", ACQUIRE, RELAXED, true}, /* before the sequence is loaded again */
                {"sequence is cleared first", FENCE_FULL, NO_FENCE, true}},
};

/* Two threads have something to say, and raise the alarm. Whoever looks lowers it first. In C a store by the second
 * ends the release sequence of the first; all processors that Muster runs on order by coherence, too. */
static void build_alarm(struct program *p, const enum order *orders) {
    enum { FIRST, SECOND, ALARM };
    (void)store(p, 0, FIRST, 1, RELAXED);
    (void)store(p, 0, ALARM, 1, orders[0]);
    (void)store(p, 1, SECOND, 1, RELAXED);
    (void)store(p, 1, ALARM, 1, orders[0]);
    (void)exchange(p, 2, 0, ALARM, 0, orders[1]);
    (void)load(p, 2, 1, FIRST, RELAXED);
    (void)load(p, 2, 2, SECOND, RELAXED);
}

static bool alarm_is_broken(const struct outcome *outcome) {
    enum { ALARM = 2 };
    const int8_t *got = outcome->registers[2];
    return outcome->is_stuck && outcome->memory[ALARM] == 0 && (got[1] == 0 || got[2] == 0);
}

static const struct protocol alarm_protocol = {
    .name = "an alarm that two raise and one lowers",
    .build = build_alarm,
    .is_broken = alarm_is_broken,
    .choices = {{"alarm is raised", RELEASE, RELAXED, true}, {"alarm is lowered", ACQUIRE_RELEASE, RELEASE, true}},
};

/* A member fails the group: a sentence, the code, and then the news. */
static void build_failure(struct program *p, const enum order *orders) {
    enum { SENTENCE, FAILED, NEWS };
    (void)store(p, 0, SENTENCE, 1, RELAXED);
    (void)store(p, 0, FAILED, 1, orders[0]);
    (void)add(p, 0, 0, NEWS, 1, orders[1]);
    (void)load(p, 1, 0, NEWS, orders[2]);
    (void)load(p, 1, 1, FAILED, orders[3]);
    (void)load(p, 1, 2, SENTENCE, RELAXED);
}

static bool failure_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && ((got[0] == 1 && got[1] == 0) || (got[1] == 1 && got[2] == 0));
}

static const struct protocol failure = {
    .name = "news of a failure",
    .build = build_failure,
    .is_broken = failure_is_broken,
    .choices = {{"failed is stored", RELEASE, RELAXED, true},
                {"news is raised", RELEASE, RELAXED, true},
                {"news is loaded", ACQUIRE, RELAXED, true},
                {"failed is loaded", ACQUIRE, RELAXED, true}},
};

/* A queued call has run. One thread waits for it and runs the next itself; another only looks whether any is queued. */
static void build_work(struct program *p, const enum order *orders) {
    enum { RESULT, QUEUED, IS_DONE };
    p->initial[QUEUED] = 1;
    (void)store(p, 0, RESULT, 1, RELAXED);
    (void)add(p, 0, 0, QUEUED, -1, orders[0]);
    (void)store(p, 0, IS_DONE, 1, orders[1]);
    await(p, 1, 0, IS_DONE, 1, orders[2]);
    (void)load(p, 1, 1, QUEUED, orders[3]);
    (void)load(p, 1, 2, RESULT, RELAXED);
    (void)load(p, 2, 0, QUEUED, orders[3]);
    (void)load(p, 2, 1, RESULT, RELAXED);
}

static bool work_is_broken(const struct outcome *outcome) {
    const int8_t *waiter = outcome->registers[1], *other = outcome->registers[2];
    return (outcome->has_ended[1] && (waiter[1] != 0 || waiter[2] != 1)) ||
           (outcome->has_ended[2] && other[0] == 0 && other[1] == 0);
}

static const struct protocol work = {
    .name = "a queued call is done",
    .build = build_work,
    .is_broken = work_is_broken,
    .choices = {{"queued is lowered", RELEASE, RELAXED, true},
                {"done is stored", RELEASE, RELAXED, true},
                {"done is loaded", ACQUIRE, RELAXED, true},
                {"queued is loaded", ACQUIRE, RELAXED, true}},
};

/* ---- what outlives a process ---- */

/* An entry of the recorder: call 2 takes the place of call 1. It is read when its writer is dead. */
static void build_recorder(struct program *p, const enum order *orders) {
    enum { NUMBER, SEQUENCE, STATE };
    p->initial[NUMBER] = p->initial[SEQUENCE] = p->initial[STATE] = 1;
    if (orders[0] == FENCE_FULL) {
        (void)store(p, 0, NUMBER, 0, RELAXED);
    }
    (void)store(p, 0, SEQUENCE, 2, RELAXED);
    (void)store(p, 0, STATE, 2, RELAXED);
    if (orders[0] != FENCE_FULL) {
        (void)store(p, 0, NUMBER, 0, RELAXED);
    }
    (void)store(p, 0, NUMBER, 2, orders[1]);
    if (orders[2] == FENCE_FULL) {
        act(p, 1, AWAIT_DEATH, 0);
    }
    (void)load(p, 1, 0, NUMBER, RELAXED);
    (void)load(p, 1, 1, SEQUENCE, RELAXED);
    (void)load(p, 1, 2, STATE, RELAXED);
}

static bool recorder_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && got[0] != 0 && (got[1] != got[0] || got[2] != got[0]);
}

static const struct protocol recorder = {
    .name = "the record of a process that was killed",
    .build = build_recorder,
    .is_broken = recorder_is_broken,
    .choices = {{"the compiler keeps the 0 before the rest", FENCE_FULL, NO_FENCE, true},
                {"number is stored", RELEASE, RELAXED, false}, /* of a dead writer, nothing is out of order */
                {"the reader waits for the death", FENCE_FULL, NO_FENCE, true}},
};

/* Of a table of two copies. */
enum { LABEL, COPY = 2, OTHERS_LABEL = 4, OTHERS_COPY = 6, MET = 8 };

static void build_label(struct program *p, int thread, int place, int step, const enum order *orders) {
    fence(p, thread, orders[0]);
    (void)store(p, thread, place, step, orders[1]);
    fence(p, thread, orders[2]);
}

/* One step: the label off the copy, its new contents (the optimizer's go past the caches), the label. */
static void build_step(struct program *p, int thread, int writer, int copy, int step, const enum order *orders) {
    int label = (writer == 0 ? LABEL : OTHERS_LABEL) + copy, place = (writer == 0 ? COPY : OTHERS_COPY) + copy;
    build_label(p, thread, label, -1, orders);
    (void)store(p, thread, place, step, STREAMING);
    build_label(p, thread, label, step, orders);
}

/* The writer stops at any point, with anything under way. */
static void build_commit(struct program *p, const enum order *orders) {
    p->initial[LABEL] = p->initial[COPY] = 7;
    p->initial[LABEL + 1] = p->initial[COPY + 1] = 6;
    build_step(p, 0, 0, 1, 8, orders);
    build_step(p, 0, 0, 0, 9, orders);
    act(p, 1, STOP, 0);
    for (int copy = 0; copy < 2; copy++) {
        (void)load(p, 1, copy, LABEL + copy, ACQUIRE);
        (void)load(p, 1, 2 + copy, COPY + copy, RELAXED);
    }
}

static bool commit_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] &&
           ((got[0] >= 0 && got[2] != got[0]) || (got[1] >= 0 && got[3] != got[1]) || (got[0] < 0 && got[1] < 0));
}

static const struct protocol commit = {
    .name = "a label and its copy, of a writer that stops at any point",
    .build = build_commit,
    .is_broken = commit_is_broken,
    .choices = {{"fence before a label", FENCE_FULL, NO_FENCE, true},
                {"label is stored", RELEASE, RELAXED, false}, /* the fences order it */
                {"fence after a label", FENCE_FULL, NO_FENCE, true}},
};

static const struct protocol commit_weaker = {
    .name = "a label and its copy, with the weakest fences",
    .build = build_commit,
    .is_broken = commit_is_broken,
    .choices = {{"fence before a label", FENCE_STORES, FENCE_LOADS, true},
                {"label is stored", RELAXED, RELAXED, false},
                {"fence after a label", FENCE_STORES, FENCE_LOADS, true}},
};

/* Two writers that meet between steps, and stop at any point: one copy is always whole. */
static void build_two_writers(struct program *p, const enum order *orders) {
    for (int writer = 0; writer < 2; writer++) {
        int labels = writer == 0 ? LABEL : OTHERS_LABEL, copies = writer == 0 ? COPY : OTHERS_COPY;
        p->initial[labels] = p->initial[copies] = 7;
        p->initial[labels + 1] = p->initial[copies + 1] = 6;
        build_step(p, writer, writer, 1, 8, orders);
        (void)store(p, writer, MET + writer, 1, RELEASE);
        if (orders[3] == FENCE_FULL) {
            await(p, writer, 0, MET + 1 - writer, 1, ACQUIRE);
        }
        build_step(p, writer, writer, 0, 9, orders);
    }
    act(p, 2, STOP, 0);
    act(p, 2, STOP, 1);
    for (int place = 0; place < 8; place++) {
        (void)load(p, 2, place, place, RELAXED);
    }
}

static bool two_writers_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[2];
    bool has_whole = false, has_wrong = false;
    for (int copy = 0; copy < 2; copy++) {
        bool is_whole = got[LABEL + copy] >= 0 && got[LABEL + copy] == got[OTHERS_LABEL + copy];
        has_whole |= is_whole;
        has_wrong |=
            is_whole && (got[COPY + copy] != got[LABEL + copy] || got[OTHERS_COPY + copy] != got[LABEL + copy]);
    }
    return outcome->has_ended[2] && (!has_whole || has_wrong);
}

static const struct protocol two_writers = {
    .name = "two writers of a table that stop at any point",
    .build = build_two_writers,
    .is_broken = two_writers_is_broken,
    .choices = {{"fence before a label", FENCE_FULL, NO_FENCE, true},
                {"label is stored", RELEASE, RELAXED, false},
                {"fence after a label", FENCE_FULL, NO_FENCE, true},
                {"they meet", FENCE_FULL, NO_FENCE, true}},
};

/* A new life: another list of labels, which one store makes the one that counts. */
static void build_renewal(struct program *p, const enum order *orders) {
    enum { ACTIVE, COUNT, STEP };
    (void)store(p, 0, STEP, 7, RELAXED);
    (void)store(p, 0, COUNT, 2, RELAXED);
    (void)store(p, 0, ACTIVE, 1, orders[0]);
    if (orders[2] == FENCE_FULL) {
        act(p, 1, STOP, 0);
    }
    (void)load(p, 1, 0, ACTIVE, orders[1]);
    load(p, 1, 1, COUNT, RELAXED)->after = 0;
    load(p, 1, 2, STEP, RELAXED)->after = 0;
}

static bool renewal_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && got[0] == 1 && (got[1] != 2 || got[2] != 7);
}

static const struct protocol renewal = {
    .name = "a new life of a table, by a writer that stops at any point",
    .build = build_renewal,
    .is_broken = renewal_is_broken,
    .choices = {{"active is stored", RELEASE, RELAXED, true},
                {"active is loaded", ACQUIRE, RELAXED, false},                  /* the addresses depend on it */
                {"the reader waits for the end", FENCE_FULL, NO_FENCE, false}}, /* a living writer may be read, too */
};

/* A slot of a peer's memory: what stands in it counts while it has a step. */
static void build_peer_slot(struct program *p, const enum order *orders) {
    enum { STEP, PARTS, SHARE };
    p->initial[STEP] = p->initial[PARTS] = p->initial[SHARE] = 1;
    (void)store(p, 0, STEP, -1, RELAXED);
    fence(p, 0, orders[0]);
    (void)store(p, 0, PARTS, 3, RELAXED);
    (void)store(p, 0, SHARE, 3, STREAMING);
    fence(p, 0, orders[1]);
    (void)store(p, 0, STEP, 3, orders[2]);
    act(p, 1, STOP, 0);
    (void)load(p, 1, 0, STEP, RELAXED);
    (void)load(p, 1, 1, PARTS, RELAXED);
    (void)load(p, 1, 2, SHARE, RELAXED);
}

static bool peer_slot_is_broken(const struct outcome *outcome) {
    const int8_t *got = outcome->registers[1];
    return outcome->has_ended[1] && got[0] >= 0 && (got[1] != got[0] || got[2] != got[0]);
}

static const struct protocol peer_slot = {
    .name = "a slot of a peer's copy, of a writer that stops at any point",
    .build = build_peer_slot,
    .is_broken = peer_slot_is_broken,
    .choices = {{"fence after the step is taken off", FENCE_FULL, NO_FENCE, true},
                {"fence before the step", FENCE_FULL, NO_FENCE, true},
                {"step is stored", RELEASE, RELAXED, false}}, /* the fence orders it */
};

/* ---- tests ---- */

static void protocols_of_nodes(void **state) {
    (void)state;
    check(&record);
    check(&next_call);
    check(&offer);
    check(&meeting);
}

static void bells_lose_no_wake_up(void **state) {
    (void)state;
    check(&bell);
    check(&bell_halves);
    check(&bell_with_barriers);
    check(&bell_twice);
    check(&event);
}

static void protocols_of_messages(void **state) {
    (void)state;
    check(&ring);
    check(&slots);
    check(&box_and_ring);
    check(&withdrawal);
    check(&withdrawal_weaker);
}

static void names_of_allocations(void **state) {
    (void)state;
    check(&names);
    check(&names_by_lock);
}

static void protocols_of_groups(void **state) {
    (void)state;
    check(&calls);
    check(&trace);
    check(&alarm_protocol);
    check(&failure);
    check(&work);
}

static void what_outlives_a_process(void **state) {
    (void)state;
    check(&recorder);
    check(&commit);
    check(&commit_weaker);
    check(&two_writers);
    check(&renewal);
    check(&peer_slot);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(protocols_of_nodes),    cmocka_unit_test(bells_lose_no_wake_up),
        cmocka_unit_test(protocols_of_messages), cmocka_unit_test(names_of_allocations),
        cmocka_unit_test(protocols_of_groups),   cmocka_unit_test(what_outlives_a_process),
    };
    return cmocka_run_group_tests_name("memory/protocols", tests, NULL, NULL);
}
