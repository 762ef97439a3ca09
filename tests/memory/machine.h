/* A machine that reorders: small programs of several threads run on it in every order that ARMv8's memory model allows,
 * and each state is judged.
 *
 * There is one memory (ARMv8 is other-multi-copy atomic: a store is seen by all other threads at once). Each thread has
 * a straight program with branches forward. Its instructions execute in any order, unless
 *   - one needs what an earlier one has loaded (as a value, or for its address);
 *   - both are of the same place, and coherence asks for the order; a load may take the value of an earlier store of
 *     its own thread that memory does not have yet;
 *   - the earlier one is an acquiring load, or the later one a releasing store; and an acquiring load waits for earlier
 *     releasing stores (LDAR, not LDAPR);
 *   - a fence stands between them;
 *   - the later one is a store, and the earlier one a branch, or an address, that is not known yet.
 * Branches are guessed: what a wrong guess would load comes to nothing. An atomic operation is a load and a store
 * (LDXR, STXR) with no other thread's store to that place in between; its own thread's other instructions may come
 * between. With one instruction (LDADD), fewer orders are possible.
 *
 * Left out: loads of different bytes of one place, and dependencies through memory of an atomic operation on a place
 * that the same thread has just stored to (it waits for that store). Addresses are constants, so an address that
 * depends on a load is written as one that waits for it (`after`).
 *
 * Stores past the caches are not ARM's: x86 has them, and its release stores do not order them. They are stores that
 * only a fence orders. */
#ifndef TESTS_MEMORY_MACHINE_H
#define TESTS_MEMORY_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { THREADS_MAX = 4, INSTRUCTIONS_MAX = 32, REGISTERS = 8, PLACES = 12 };
enum { NO_REGISTER = -1 };

enum order {
    RELAXED,
    ACQUIRE,    /* LDAR, or the load of an atomic operation */
    ACQUIRE_PC, /* LDAPR: does not wait for earlier releasing stores */
    RELEASE,
    ACQUIRE_RELEASE, /* atomic operations; C's seq_cst is no more on a processor without LDADD */
    STREAMING,       /* a store past the caches */
    /* Of fences. */
    NO_FENCE,
    FENCE_LOADS,  /* DMB ISHLD: C's acquire fence */
    FENCE_STORES, /* DMB ISHST, x86's sfence */
    FENCE_FULL,   /* DMB ISH: C's release and seq_cst fences */
};

enum action {
    LOAD,
    STORE,
    ADD,      /* atomic; `into` gets what was there */
    EXCHANGE, /* likewise */
    FENCE,
    SKIP_IF,      /* goes on `skip` instructions further if the register is `value` */
    ONLY_IF,      /* the thread is only looked at if the register is `value`: what a waiting loop ends with */
    FUTEX_WAIT,   /* sleeps if the place has what the register has */
    FUTEX_WAKE,   /* wakes those who sleep on the place */
    ALL_BARRIERS, /* membarrier(2): this thread, and all others wherever they are, execute a full fence */
    AWAIT_DEATH,  /* thread `value` is killed by a signal between two of its instructions, and that is waited for */
    STOP,         /* thread `value` does nothing from now on, whatever it has not finished */
};

struct instruction {
    enum action action;
    int place;
    int value; /* a constant, added to the register below */
    int from;  /* register */
    int into;  /* register; no two instructions of a thread load into the same */
    int after; /* register: the address depends on it */
    enum order order;
    int skip;
};

struct program {
    struct instruction threads[THREADS_MAX][INSTRUCTIONS_MAX];
    int counts[THREADS_MAX], thread_count;
    int8_t initial[PLACES];
};

/* What is judged. */
struct outcome {
    int8_t memory[PLACES];
    int8_t registers[THREADS_MAX][REGISTERS]; /* 0 before they are loaded */
    bool has_ended[THREADS_MAX];
    bool is_asleep[THREADS_MAX];
    bool is_stuck; /* no thread can go on */
};

struct exploration {
    size_t state_count;
    size_t end_count; /* states in which no thread can go on */
    bool is_bad;      /* a state is */
    bool is_full;     /* it had no room for all of them */
};

/* Judges every state that the program can come to, until one is bad. */
struct exploration explore(const struct program *program, bool (*is_bad)(const struct outcome *outcome));

/* ---- to write programs with; each adds an instruction to the thread and returns it, for what it does not ask ---- */

struct instruction *load(struct program *program, int thread, int into, int place, enum order order);
struct instruction *store(struct program *program, int thread, int place, int value, enum order order);
struct instruction *store_from(struct program *program, int thread, int place, int from, enum order order);
struct instruction *add(struct program *program, int thread, int into, int place, int value, enum order order);
struct instruction *exchange(struct program *program, int thread, int into, int place, int value, enum order order);
void fence(struct program *program, int thread, enum order order);
void only_if(struct program *program, int thread, int from, int value);
void skip_if(struct program *program, int thread, int from, int value, int skip);
/* A waiting loop: load, and only_if. */
void await(struct program *program, int thread, int into, int place, int value, enum order order);
/* What needs no more than an action and a number. */
void act(struct program *program, int thread, enum action action, int value);
void futex_wait(struct program *program, int thread, int place, int from);
void futex_wake(struct program *program, int thread, int place);

#endif
