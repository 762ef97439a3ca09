/* See machine.h. A state is what memory holds, and of each thread which instructions have executed and what they have
 * loaded; all orders are tried depth first, and each state once. */
#include "machine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/visited_test_support.h"

enum { STATES_MAX = 1 << 17 };

/* Of an instruction. HALF: an atomic operation has loaded and not stored, a thread sleeps, or a branch is guessed not
 * to be taken. GUESSED: it is guessed to be. */
enum progress { TO_COME, HALF, GUESSED, DONE };

struct thread {
    uint64_t progress; /* two bits each */
    int8_t registers[REGISTERS];
    uint8_t writes[REGISTERS]; /* which write each load has seen */
    uint8_t known;             /* bit per register */
    bool is_dead;
    uint8_t padding[6];
};

struct state {
    int8_t memory[PLACES];
    uint8_t writes[PLACES]; /* the one that memory has: thread * 32 + instruction + 1 */
    struct thread threads[THREADS_MAX];
};

_Static_assert(sizeof(struct thread) == 32 && sizeof(struct state) == 24 + THREADS_MAX * 32,
               "states are compared as bytes");
_Static_assert(INSTRUCTIONS_MAX * 2 == 64, "progress");
_Static_assert(THREADS_MAX *INSTRUCTIONS_MAX < UINT8_MAX, "writes");

struct search {
    const struct program *program;
    bool (*is_bad)(const struct outcome *outcome);
    struct visited visited;
    struct exploration result;
};

/* ---- what instructions are ---- */

static bool is_atomic(const struct instruction *it) {
    return it->action == ADD || it->action == EXCHANGE;
}

static bool is_branch(const struct instruction *it) {
    return it->action == SKIP_IF || it->action == ONLY_IF;
}

static bool loads(const struct instruction *it) {
    return it->action == LOAD || is_atomic(it);
}

static bool stores(const struct instruction *it) {
    return it->action == STORE || is_atomic(it);
}

static bool acquires(const struct instruction *it) {
    return loads(it) && (it->order == ACQUIRE || it->order == ACQUIRE_PC || it->order == ACQUIRE_RELEASE);
}

static bool waits_for_releases(const struct instruction *it) {
    return acquires(it) && it->order != ACQUIRE_PC;
}

static bool releases(const struct instruction *it) {
    return stores(it) && (it->order == RELEASE || it->order == ACQUIRE_RELEASE);
}

/* System calls, and what stands for them: nothing passes them. */
static bool is_wall(const struct instruction *it) {
    return it->action >= FUTEX_WAIT || (it->action == FENCE && it->order == FENCE_FULL);
}

/* ---- states ---- */

static enum progress progress_of(const struct thread *thread, int i) {
    return (enum progress)(thread->progress >> 2 * i & 3);
}

static void set_progress(struct thread *thread, int i, enum progress progress) {
    thread->progress = (thread->progress & ~(UINT64_C(3) << 2 * i)) | (uint64_t)progress << 2 * i;
}

static bool is_known(const struct thread *thread, int reg) {
    return reg == NO_REGISTER || (thread->known >> reg & 1);
}

static int value_of(const struct thread *thread, const struct instruction *it) {
    return it->value + (it->from == NO_REGISTER ? 0 : thread->registers[it->from]);
}

static bool is_complete(const struct instruction *it, enum progress progress) {
    return progress == DONE || (it->action == FENCE && it->order == NO_FENCE);
}

/* The instructions that this thread comes to, as far as its branches are known or guessed. */
struct path {
    int at[INSTRUCTIONS_MAX], count;
    bool is_whole;
};

static struct path path_of(const struct search *search, const struct state *state, int t) {
    const struct thread *thread = &state->threads[t];
    struct path path = {.is_whole = true};
    for (int i = 0; i < search->program->counts[t];) {
        const struct instruction *it = &search->program->threads[t][i];
        enum progress progress = progress_of(thread, i);
        path.at[path.count++] = i;
        if (it->action == SKIP_IF && progress == TO_COME) {
            path.is_whole = false;
            break;
        }
        bool is_taken = it->action == SKIP_IF &&
                        (progress == GUESSED || (progress == DONE && thread->registers[it->from] == it->value));
        i += is_taken ? 1 + it->skip : 1;
    }
    return path;
}

static bool has_ended(const struct search *search, const struct state *state, int t) {
    struct path path = path_of(search, state, t);
    bool all = path.is_whole;
    for (int i = 0; i < path.count && all; i++) {
        all = is_complete(&search->program->threads[t][path.at[i]], progress_of(&state->threads[t], path.at[i]));
    }
    return all;
}

/* All that has executed comes before all that has not. */
static bool is_between_instructions(const struct search *search, const struct state *state, int t) {
    struct path path = path_of(search, state, t);
    bool has_gap = false;
    for (int i = 0; i < path.count; i++) {
        const struct instruction *it = &search->program->threads[t][path.at[i]];
        enum progress progress = progress_of(&state->threads[t], path.at[i]);
        bool sleeps = it->action == FUTEX_WAIT && progress == HALF;
        if (is_branch(it) && progress != DONE) { /* a guess is forgotten */
            has_gap = true;
        } else if (!is_complete(it, progress) && !sleeps) {
            if (progress == HALF) {
                return false;
            }
            has_gap = true;
        } else if (has_gap && !(it->action == FENCE && it->order == NO_FENCE)) {
            return false;
        }
    }
    return true;
}

/* ---- what may execute ---- */

/* May instruction `it` load before the earlier `other` has executed? */
static bool may_load_before(const struct instruction *it, const struct instruction *other, enum progress progress) {
    if (is_wall(other) || (other->action == FENCE && other->order == FENCE_LOADS)) {
        return false;
    }
    if (acquires(other) && progress == TO_COME) {
        return false;
    }
    return !(waits_for_releases(it) && releases(other));
}

/* The same of its store. */
static bool may_store_before(const struct thread *thread, const struct instruction *it, const struct instruction *other,
                             enum progress progress) {
    if (is_wall(other) || other->action == FENCE || is_branch(other)) {
        return false;
    }
    if ((acquires(other) && progress == TO_COME) || !is_known(thread, other->after)) {
        return false;
    }
    if (releases(it) && other->order != STREAMING) {
        return false;
    }
    return other->place != it->place;
}

/* Of its own store that memory does not have: does the load know its value? */
static bool can_forward(const struct thread *thread, const struct instruction *it, const struct instruction *other,
                        enum progress progress) {
    bool is_ready = is_known(thread, other->from) && is_known(thread, other->after);
    return is_atomic(other) ? progress == HALF && !acquires(it) : is_ready;
}

/* What a store, or the second half of an atomic operation, will write. */
static int written_by(const struct thread *thread, const struct instruction *it) {
    int value = value_of(thread, it);
    return it->action == ADD ? thread->registers[it->into] + it->value : value;
}

/* Where a load finds its value: an earlier store on the path, or memory (-1). False: it has to wait. */
static bool find_source(const struct search *search, const struct state *state, int t, const struct path *path, int at,
                        int *out) {
    const struct thread *thread = &state->threads[t];
    const struct instruction *it = &search->program->threads[t][path->at[at]];
    *out = -1;
    for (int i = 0; i < at; i++) {
        const struct instruction *other = &search->program->threads[t][path->at[i]];
        enum progress progress = progress_of(thread, path->at[i]);
        if (is_complete(other, progress)) {
            continue;
        }
        if (!may_load_before(it, other, progress)) {
            return false;
        }
        if (stores(other) && other->place == it->place) {
            if (is_atomic(it) || !can_forward(thread, it, other, progress)) {
                return false;
            }
            *out = path->at[i];
        }
    }
    return true;
}

static bool may_store(const struct search *search, const struct state *state, int t, const struct path *path, int at) {
    const struct thread *thread = &state->threads[t];
    const struct instruction *it = &search->program->threads[t][path->at[at]];
    for (int i = 0; i < at; i++) {
        const struct instruction *other = &search->program->threads[t][path->at[i]];
        enum progress progress = progress_of(thread, path->at[i]);
        if (!is_complete(other, progress) && !may_store_before(thread, it, other, progress)) {
            return false;
        }
    }
    return true;
}

/* Fences, and what nothing passes, wait for what is before them. */
static bool may_pass(const struct search *search, const struct state *state, int t, const struct path *path, int at) {
    const struct thread *thread = &state->threads[t];
    const struct instruction *it = &search->program->threads[t][path->at[at]];
    for (int i = 0; i < at; i++) {
        const struct instruction *other = &search->program->threads[t][path->at[i]];
        enum progress progress = progress_of(thread, path->at[i]);
        if (is_complete(other, progress)) {
            continue;
        }
        bool is_before = is_wall(it) || (it->order == FENCE_LOADS && loads(other) && progress == TO_COME) ||
                         (it->order == FENCE_STORES && stores(other)) || is_wall(other);
        if (is_before) {
            return false;
        }
    }
    return true;
}

/* ---- execution; false: this cannot happen ---- */

/* Loads of one place see its writes in order: a later one that has gone first must have seen the same. */
static bool is_coherent(const struct search *search, const struct state *state, int t, const struct path *path, int at,
                        uint8_t write) {
    const struct instruction *code = search->program->threads[t], *it = &code[path->at[at]];
    for (int i = at + 1; i < path->count; i++) {
        const struct instruction *later = &code[path->at[i]];
        bool is_same = later->place == it->place;
        if (is_same && stores(later) && !loads(later)) {
            return true;
        }
        if (is_same && loads(later) && progress_of(&state->threads[t], path->at[i]) != TO_COME) {
            return state->threads[t].writes[later->into] == write;
        }
        if (is_same && is_atomic(later)) {
            return true;
        }
    }
    return true;
}

static bool do_load(const struct search *search, struct state *state, int t, const struct path *path, int at,
                    int source) {
    struct thread *thread = &state->threads[t];
    const struct instruction *it = &search->program->threads[t][path->at[at]];
    int8_t value = state->memory[it->place];
    uint8_t write = state->writes[it->place];
    if (source >= 0) {
        value = (int8_t)written_by(thread, &search->program->threads[t][source]);
        write = (uint8_t)(t * INSTRUCTIONS_MAX + source + 1);
    }
    if (!is_coherent(search, state, t, path, at, write)) {
        return false;
    }
    thread->registers[it->into] = value;
    thread->writes[it->into] = write;
    thread->known |= (uint8_t)(1U << it->into);
    set_progress(thread, path->at[at], is_atomic(it) ? HALF : DONE);
    return true;
}

static bool do_store(const struct search *search, struct state *state, int t, int i) {
    struct thread *thread = &state->threads[t];
    const struct instruction *it = &search->program->threads[t][i];
    for (int other = 0; other < search->program->thread_count; other++) {
        bool counts = other != t && !state->threads[other].is_dead;
        for (int k = 0; counts && k < search->program->counts[other]; k++) {
            const struct instruction *theirs = &search->program->threads[other][k];
            if (is_atomic(theirs) && theirs->place == it->place && progress_of(&state->threads[other], k) == HALF) {
                return false; /* its store fails, and it loads again: as if it had not loaded yet */
            }
        }
    }
    state->memory[it->place] = (int8_t)written_by(thread, it);
    state->writes[it->place] = (uint8_t)(t * INSTRUCTIONS_MAX + i + 1);
    set_progress(thread, i, DONE);
    return true;
}

static void wake(const struct search *search, struct state *state, int place) {
    for (int t = 0; t < search->program->thread_count; t++) {
        for (int i = 0; i < search->program->counts[t]; i++) {
            const struct instruction *it = &search->program->threads[t][i];
            if (it->action == FUTEX_WAIT && it->place == place && progress_of(&state->threads[t], i) == HALF) {
                set_progress(&state->threads[t], i, DONE);
            }
        }
    }
}

/* System calls. */
static bool do_call(const struct search *search, struct state *state, int t, int i) {
    struct thread *thread = &state->threads[t];
    const struct instruction *it = &search->program->threads[t][i];
    enum progress after = DONE;
    if (it->action == FUTEX_WAIT && state->memory[it->place] == thread->registers[it->from]) {
        after = HALF;
    } else if (it->action == FUTEX_WAKE) {
        wake(search, state, it->place);
    } else if (it->action == STOP || it->action == AWAIT_DEATH) {
        if (it->action == AWAIT_DEATH && !is_between_instructions(search, state, it->value)) {
            return false;
        }
        state->threads[it->value].is_dead = true;
    }
    for (int other = 0; it->action == ALL_BARRIERS && other < search->program->thread_count; other++) {
        if (other != t && !is_between_instructions(search, state, other)) {
            return false;
        }
    }
    set_progress(thread, i, after);
    return true;
}

/* Branches whose register is known are decided at once. False: one was guessed wrong, or the thread is not looked at.
 */
static bool settle(const struct search *search, struct state *state) {
    for (int t = 0; t < search->program->thread_count; t++) {
        struct thread *thread = &state->threads[t];
        for (bool again = true; again;) {
            again = false;
            struct path path = path_of(search, state, t);
            for (int i = 0; i < path.count && !again; i++) {
                const struct instruction *it = &search->program->threads[t][path.at[i]];
                enum progress progress = progress_of(thread, path.at[i]);
                if (!is_branch(it) || progress == DONE || !is_known(thread, it->from)) {
                    continue;
                }
                bool holds = thread->registers[it->from] == it->value;
                if ((it->action == ONLY_IF && !holds) || (progress == HALF && holds) ||
                    (progress == GUESSED && !holds)) {
                    return false;
                }
                set_progress(thread, path.at[i], DONE);
                again = true; /* the path may be longer now */
            }
        }
    }
    return true;
}

/* ---- the search ---- */

static void visit(struct search *search, struct state state) {
    if (settle(search, &state)) {
        (void)visited_add(&search->visited, &state);
    }
}

/* What instruction number `at` of the path can do next. */
static void try_instruction(struct search *search, const struct state *state, int t, const struct path *path, int at) {
    const struct instruction *it = &search->program->threads[t][path->at[at]];
    const struct thread *thread = &state->threads[t];
    enum progress progress = progress_of(thread, path->at[at]);
    struct state next = *state;
    int source;
    if (is_complete(it, progress) || it->action == ONLY_IF || (it->action == FUTEX_WAIT && progress == HALF)) {
        return;
    }
    if (it->action == SKIP_IF) {
        for (enum progress guess = HALF; progress == TO_COME && guess <= GUESSED; guess++) {
            next = *state;
            set_progress(&next.threads[t], path->at[at], guess);
            visit(search, next);
        }
        return;
    }
    if (!is_known(thread, it->from) || !is_known(thread, it->after)) {
        return;
    }
    if (loads(it) && progress == TO_COME) {
        if (find_source(search, state, t, path, at, &source) && do_load(search, &next, t, path, at, source)) {
            visit(search, next);
        }
    } else if (stores(it)) {
        if (may_store(search, state, t, path, at) && do_store(search, &next, t, path->at[at])) {
            visit(search, next);
        }
    } else if (may_pass(search, state, t, path, at)) {
        if (it->action == FENCE) {
            set_progress(&next.threads[t], path->at[at], DONE);
            visit(search, next);
        } else if (do_call(search, &next, t, path->at[at])) {
            visit(search, next);
        }
    }
}

static void judge(struct search *search, const struct state *state, bool is_stuck) {
    struct outcome outcome = {.is_stuck = is_stuck};
    memcpy(outcome.memory, state->memory, sizeof outcome.memory);
    for (int t = 0; t < search->program->thread_count; t++) {
        memcpy(outcome.registers[t], state->threads[t].registers, sizeof outcome.registers[t]);
        outcome.has_ended[t] = has_ended(search, state, t);
        for (int i = 0; i < search->program->counts[t]; i++) {
            outcome.is_asleep[t] |=
                search->program->threads[t][i].action == FUTEX_WAIT && progress_of(&state->threads[t], i) == HALF;
        }
    }
    search->result.is_bad = search->is_bad(&outcome);
}

/* Nothing can go on for good, if nothing could in this state, whatever it comes to. */
static void expand(struct search *search, const struct state *state) {
    bool all_ended = true;
    for (int t = 0; t < search->program->thread_count; t++) {
        if (state->threads[t].is_dead) {
            continue;
        }
        struct path path = path_of(search, state, t);
        bool sleeps = false;
        for (int at = 0; at < path.count; at++) {
            sleeps |= search->program->threads[t][path.at[at]].action == FUTEX_WAIT &&
                      progress_of(&state->threads[t], path.at[at]) == HALF;
            try_instruction(search, state, t, &path, at);
        }
        all_ended &= sleeps || has_ended(search, state, t);
    }
    search->result.end_count += all_ended;
    judge(search, state, all_ended);
}

static void check_program(const struct program *program) {
    for (int t = 0; t < program->thread_count; t++) {
        unsigned loaded = 0;
        for (int i = 0; i < program->counts[t]; i++) {
            const struct instruction *it = &program->threads[t][i];
            assert(it->place >= 0 && it->place < PLACES);
            assert(i + it->skip < program->counts[t]);
            if (loads(it)) {
                assert(it->into >= 0 && it->into < REGISTERS && !(loaded >> it->into & 1));
                loaded |= 1U << it->into;
            }
        }
    }
}

struct exploration explore(const struct program *program, bool (*is_bad)(const struct outcome *outcome)) {
    struct search search = {.program = program, .is_bad = is_bad};
    struct state first;
    check_program(program);
    memset(&first, 0, sizeof first); /* padding, too */
    memcpy(first.memory, program->initial, sizeof first.memory);
    if (!visited_init(&search.visited, sizeof first, STATES_MAX)) {
        visited_done(&search.visited);
        return (struct exploration){.is_full = true};
    }
    (void)visited_add(&search.visited, &first);
    for (size_t at = 0; at < search.visited.count && !search.result.is_bad && !search.visited.is_full; at++) {
        struct state state;
        memcpy(&state, visited_at(&search.visited, at), sizeof state);
        expand(&search, &state);
    }
    search.result.state_count = search.visited.count;
    search.result.is_full = search.visited.is_full;
    visited_done(&search.visited);
    return search.result;
}

/* ---- to write programs with ---- */

static struct instruction *append(struct program *program, int thread, struct instruction instruction) {
    assert(thread < THREADS_MAX && program->counts[thread] < INSTRUCTIONS_MAX);
    program->thread_count = thread >= program->thread_count ? thread + 1 : program->thread_count;
    struct instruction *it = &program->threads[thread][program->counts[thread]++];
    *it = instruction;
    it->after = NO_REGISTER;
    return it;
}

struct instruction *load(struct program *program, int thread, int into, int place, enum order order) {
    return append(
        program, thread,
        (struct instruction){.action = LOAD, .place = place, .from = NO_REGISTER, .into = into, .order = order});
}

struct instruction *store(struct program *program, int thread, int place, int value, enum order order) {
    return append(
        program, thread,
        (struct instruction){.action = STORE, .place = place, .value = value, .from = NO_REGISTER, .order = order});
}

struct instruction *store_from(struct program *program, int thread, int place, int from, enum order order) {
    struct instruction *it = store(program, thread, place, 0, order);
    it->from = from;
    return it;
}

struct instruction *add(struct program *program, int thread, int into, int place, int value, enum order order) {
    struct instruction *it = store(program, thread, place, value, order);
    it->action = ADD;
    it->into = into;
    return it;
}

struct instruction *exchange(struct program *program, int thread, int into, int place, int value, enum order order) {
    struct instruction *it = add(program, thread, into, place, value, order);
    it->action = EXCHANGE;
    return it;
}

void fence(struct program *program, int thread, enum order order) {
    (void)append(program, thread, (struct instruction){.action = FENCE, .from = NO_REGISTER, .order = order});
}

void only_if(struct program *program, int thread, int from, int value) {
    (void)append(program, thread, (struct instruction){.action = ONLY_IF, .from = from, .value = value});
}

void skip_if(struct program *program, int thread, int from, int value, int skip) {
    (void)append(program, thread, (struct instruction){.action = SKIP_IF, .from = from, .value = value, .skip = skip});
}

void await(struct program *program, int thread, int into, int place, int value, enum order order) {
    (void)load(program, thread, into, place, order);
    only_if(program, thread, into, value);
}

void act(struct program *program, int thread, enum action action, int value) {
    (void)append(program, thread, (struct instruction){.action = action, .from = NO_REGISTER, .value = value});
}

void futex_wait(struct program *program, int thread, int place, int from) {
    (void)append(program, thread, (struct instruction){.action = FUTEX_WAIT, .place = place, .from = from});
}

void futex_wake(struct program *program, int thread, int place) {
    (void)append(program, thread, (struct instruction){.action = FUTEX_WAKE, .place = place, .from = NO_REGISTER});
}
