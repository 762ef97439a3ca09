/* A model of a state that moves in memory while hosts come, go and are killed. Each host has one rank, which is its
 * row, and a part of the state's elements; memory lies under one of two names.
 *
 * A life of some hosts: all choose. If each has its part in place, they go on with it. Else each makes memory under a
 * name that is free, gets its elements from whoever has them, and labels them; when all have met, the old memory goes.
 * Without a state they begin anew. Then they make a step, as in commit_table_test. In any order of these actions, and
 * after any of them, all are killed, and hosts begin another life: the same ones, fewer, or more. Hosts that are not
 * in it keep their memory, and may come back.
 *
 * Contents carry the step and the life that have made them. Of every order is asked: what is chosen is whole, and of
 * one step and life; where all hosts of a life are in the next one, no committed step is lost; nobody reads memory that
 * is gone. Each rule that is taken out must be missed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/commit/commit_choose.h"
#include "train/model/visited_test_support.h"

enum { HOSTS = 3, NAMES = 2, ELEMENTS = 6, NOTHING = -1, LIFE = 8, STATES_MOST = 1 << 21 };

enum rule {
    KEEPS_THE_OLD,    /* new memory gets a name that the old one does not have */
    LABELS_LAST,      /* when all elements are there */
    MEETS,            /* before the old memory goes */
    ONE_CUT,          /* parts are taken from memory of one number of parts */
    NAMES_THE_LIFE,   /* labels do, beside the step */
    CARRIES_THE_LIFE, /* a step that is gone on from keeps the life that has made it */
    RULES,
    NONE_IS_MISSING = RULES
};

enum stage {
    OPENS,
    GETS_FIRST,
    GETS_REST,
    LABELS,
    MEETS_ALL,
    DROPS,
    BEGINS,
    TAKES_OFF,
    WRITES,
    WRITES_REST,
    COMMITS,
    ENDED
};

struct memory {
    int8_t exists, first, parts; /* the place */
    int8_t steps[COMMIT_COPIES], from, from_life, number;
    int8_t contents[COMMIT_COPIES][ELEMENTS]; /* step + LIFE * life */
};

struct host {
    struct memory names[NAMES];
    int8_t stage, name, current; /* where it is; the memory of this life, and the copy in it */
};

struct state {
    struct host hosts[HOSTS];
    int8_t world, life, restarts;                                /* world: a bit for each host */
    int8_t moves, step, step_life;                               /* what this life goes on from */
    int8_t from_host[HOSTS], from_name[HOSTS], from_copy[HOSTS]; /* of each part of the world before */
    int8_t from_parts;
    int8_t promised; /* the newest step that all had */
};

static struct {
    enum rule missing;
    int restarts_most;
    struct visited visited;
    const char *fault;
} search;

static bool has(enum rule rule) {
    return search.missing != rule;
}

static void fault(const char *what) {
    search.fault = search.fault ? search.fault : what;
}

/* ---- worlds ---- */

static bool is_in(const struct state *s, int host) {
    return s->world >> host & 1;
}

static int part_of(const struct state *s, int host) {
    return __builtin_popcount((unsigned)s->world & ((1u << host) - 1));
}

static int part_count(const struct state *s) {
    return __builtin_popcount((unsigned)s->world);
}

/* The part that has an element, of so many. */
static int owner_of(int element, int parts) {
    return element * parts / ELEMENTS;
}

/* ---- what is in memory ---- */

static struct commit_offer offer_of(const struct state *s, const struct memory *memory) {
    struct commit_offer offer = {.steps = {memory->steps[0], memory->steps[1]}};
    uint32_t parts = (uint32_t)(has(ONE_CUT) ? memory->parts : part_count(s));
    offer.place = (struct commit_place){(uint32_t)memory->first, parts, parts};
    offer.life.from = (int64_t)memory->from; /* NOLINT(bugprone-signed-char-misuse): NOTHING is COMMIT_NOTHING */
    offer.life.from_life = has(NAMES_THE_LIFE) ? (uint64_t)memory->from_life : 1;
    offer.life.number = has(NAMES_THE_LIFE) ? (uint64_t)memory->number : 1;
    return offer;
}

struct finds {
    struct commit_offer all[HOSTS * NAMES], rows[HOSTS];
    int hosts[HOSTS * NAMES], names[HOSTS * NAMES], own[HOSTS]; /* own: a name, or NOTHING */
    size_t count, row_count;
};

static void find_own(const struct state *s, int host, struct finds *finds) {
    const struct commit_place place = {(uint32_t)part_of(s, host), (uint32_t)part_count(s), (uint32_t)part_count(s)};
    struct commit_offer *row = &finds->rows[finds->row_count++];
    *row = (struct commit_offer){.steps = {COMMIT_NOTHING, COMMIT_NOTHING}, .place = place};
    finds->own[host] = NOTHING;
    for (int name = 0; name < NAMES; name++) {
        const struct memory *memory = &s->hosts[host].names[name];
        struct commit_offer offer = offer_of(s, memory);
        struct commit_label label = commit_newest(&offer, 1), before = commit_newest(row, 1);
        if (memory->exists && memory->parts == part_count(s) && commit_place_equals(&offer.place, &place) &&
            (finds->own[host] == NOTHING || commit_label_is_newer(&label, &before))) {
            *row = offer;
            finds->own[host] = name;
        }
    }
}

static void look(const struct state *s, struct finds *finds) {
    memset(finds, 0, sizeof *finds);
    for (int host = 0; host < HOSTS; host++) {
        for (int name = 0; is_in(s, host) && name < NAMES; name++) {
            const struct memory *memory = &s->hosts[host].names[name];
            if (memory->exists && (has(ONE_CUT) || memory->first < part_count(s))) {
                finds->hosts[finds->count] = host;
                finds->names[finds->count] = name;
                finds->all[finds->count++] = offer_of(s, memory);
            }
        }
        if (is_in(s, host)) {
            find_own(s, host, finds);
        }
    }
}

/* ---- a life ---- */

/* What an element of that part is now, in memory that is gone on from. */
static int8_t *source_of(struct state *s, int element) {
    int part = owner_of(element, s->from_parts);
    struct memory *memory = &s->hosts[s->from_host[part]].names[s->from_name[part]];
    if (!memory->exists || (has(ONE_CUT) && (memory->first != part || memory->parts != s->from_parts))) {
        fault("memory is gone before all have moved");
    }
    return &memory->contents[s->from_copy[part]][element];
}

static void note_sources(struct state *s, const struct finds *finds, const struct commit_way *way) {
    s->from_parts = (int8_t)way->part_count;
    for (uint32_t part = 0; part < way->part_count; part++) {
        size_t i = commit_owner_of(finds->all, finds->count, &way->label, way->part_count, part);
        s->from_host[part] = (int8_t)finds->hosts[i];
        s->from_name[part] = (int8_t)finds->names[i];
        s->from_copy[part] = (int8_t)commit_offer_copy(&finds->all[i], &way->label);
    }
}

static void check_whole(int8_t content, int8_t *first, int step) {
    *first = *first == NOTHING ? content : *first;
    if (content != *first || content % LIFE != step) {
        fault("old and new are mixed");
    }
}

/* All that is chosen is of one step and life. */
static void check_choice(struct state *s, const struct finds *finds, const struct commit_way *way) {
    int8_t first = NOTHING;
    for (int element = 0; element < ELEMENTS && !search.fault; element++) {
        if (way->moves) {
            check_whole(*source_of(s, element), &first, s->step);
            continue;
        }
        for (int host = 0; host < HOSTS; host++) {
            if (is_in(s, host) && part_of(s, host) == owner_of(element, part_count(s))) {
                const struct memory *memory = &s->hosts[host].names[finds->own[host]];
                check_whole(memory->contents[memory->steps[0] == s->step ? 0 : 1][element], &first, s->step);
            }
        }
    }
    s->step_life = (int8_t)(first / LIFE);
}

/* The name for new memory: none that has something of what moves. */
static int8_t free_name(const struct state *s, int host) {
    bool is_needed = false;
    for (int part = 0; s->moves && has(KEEPS_THE_OLD) && part < s->from_parts; part++) {
        is_needed = is_needed || (s->from_host[part] == host && s->from_name[part] == 0);
    }
    return is_needed;
}

static void begin_life(struct state *s, int world) {
    struct finds finds;
    bool are_all_there = (world & s->world) == s->world;
    s->world = (int8_t)world;
    s->life++;
    s->restarts++;
    look(s, &finds);
    struct commit_way way = commit_choose(finds.all, finds.count, finds.rows, finds.row_count, false);
    if (are_all_there && way.label.step < s->promised) {
        fault("a committed step is lost");
        return;
    }
    s->moves = way.moves;
    s->step = (int8_t)way.label.step;
    memset(s->from_host, 0, sizeof s->from_host);
    memset(s->from_name, 0, sizeof s->from_name);
    memset(s->from_copy, 0, sizeof s->from_copy);
    s->from_parts = s->step_life = 0;
    if (way.moves) {
        note_sources(s, &finds, &way);
    }
    if (way.label.step >= 0) {
        check_choice(s, &finds, &way);
    }
    s->promised = s->step;
    for (int host = 0; host < HOSTS; host++) {
        struct host *h = &s->hosts[host];
        h->stage = (int8_t)(is_in(s, host) ? OPENS : ENDED);
        h->name = free_name(s, host);
        h->current = 0;
        if (is_in(s, host) && !way.moves && way.label.step >= 0 &&
            finds.own[host] != 0) { /* it is put to the first name */
            h->names[0] = h->names[finds.own[host]];
        }
    }
}

/* In place: the table is renewed. Else new memory is made; without a state all old memory goes first. */
static void open_memory(struct state *s, int host) {
    struct host *h = &s->hosts[host];
    struct memory *memory = &h->names[h->name];
    bool is_found = s->step >= 0 && !s->moves;
    if (s->step < 0) {
        memset(h->names, 0, sizeof h->names);
    }
    if (is_found) {
        h->current = (int8_t)(memory->steps[0] == s->step ? 0 : 1);
    } else {
        *memory = (struct memory){.exists = 1, .first = (int8_t)part_of(s, host), .parts = (int8_t)part_count(s)};
        memory->steps[0] = memory->steps[1] = NOTHING;
        memset(memory->contents, NOTHING, sizeof memory->contents);
    }
    memory->from = s->step;
    memory->from_life = has(CARRIES_THE_LIFE) ? s->step_life : s->life;
    memory->number = s->life;
    memory->steps[h->current] = (int8_t)(is_found || !has(LABELS_LAST) ? s->step : NOTHING);
    memory->steps[1 - h->current] = NOTHING;
    h->stage = (int8_t)(is_found ? MEETS_ALL : GETS_FIRST);
}

static void get(struct state *s, int host, bool is_first) {
    struct host *h = &s->hosts[host];
    int8_t *contents = h->names[h->name].contents[h->current];
    bool takes = true;
    for (int element = 0; element < ELEMENTS; element++) {
        if (owner_of(element, part_count(s)) == part_of(s, host)) {
            if (takes == is_first) { /* every other one */
                contents[element] = s->step >= 0 ? *source_of(s, element) : (int8_t)(LIFE * s->life);
            }
            takes = !takes;
        }
    }
    h->stage++;
}

static bool all_have_come_to(const struct state *s, int stage) {
    bool all = true;
    for (int host = 0; host < HOSTS; host++) {
        all = all && (!is_in(s, host) || s->hosts[host].stage >= stage);
    }
    return all;
}

static void write_half(struct state *s, int host, bool is_first) {
    struct host *h = &s->hosts[host];
    struct memory *memory = &h->names[h->name];
    int step = (s->step < 0 ? 0 : s->step) + 1;
    for (int element = is_first ? 0 : 1; element < ELEMENTS; element += 2) {
        memory->contents[1 - h->current][element] = (int8_t)(step + LIFE * s->life);
    }
    h->stage++;
}

static void label(struct state *s, int host, int copy, int step) {
    struct host *h = &s->hosts[host];
    h->names[h->name].steps[copy] = (int8_t)step;
    h->stage++;
}

static void promise(struct state *s) {
    if (all_have_come_to(s, ENDED)) {
        s->promised = (int8_t)((s->step < 0 ? 0 : s->step) + 1);
    } else if (all_have_come_to(s, MEETS_ALL) && s->promised < 0) {
        s->promised = 0;
    }
}

static bool act(struct state *s, int host) {
    struct host *h = &s->hosts[host];
    int step = s->step < 0 ? 0 : s->step;
    switch (h->stage) {
    case OPENS:
        open_memory(s, host);
        return true;
    case GETS_FIRST:
    case GETS_REST:
        get(s, host, h->stage == GETS_FIRST);
        return true;
    case LABELS:
        label(s, host, h->current, step);
        return true;
    case MEETS_ALL:
        h->stage = (int8_t)(h->stage + (all_have_come_to(s, MEETS_ALL) || !has(MEETS)));
        return h->stage != MEETS_ALL;
    case DROPS:
        memset(&h->names[1 - h->name], 0, sizeof h->names[0]);
        h->stage++;
        return true;
    case BEGINS: /* meets the others in its first step */
        h->stage = (int8_t)(h->stage + all_have_come_to(s, BEGINS));
        return h->stage != BEGINS;
    case TAKES_OFF:
        label(s, host, 1 - h->current, NOTHING);
        return true;
    case WRITES:
    case WRITES_REST:
        write_half(s, host, h->stage == WRITES);
        return true;
    case COMMITS:
        label(s, host, 1 - h->current, step + 1);
        return true;
    default:
        return false;
    }
}

/* ---- all orders ---- */

static void take(const struct state *s) {
    (void)visited_add(&search.visited, s);
    if (search.visited.is_full) {
        fault("too many states");
    }
}

static bool is_over(const struct state *s) {
    return all_have_come_to(s, ENDED);
}

static void explore_from(const struct state *s) {
    bool any = false;
    for (int host = 0; host < HOSTS; host++) {
        struct state next;
        memcpy(&next, s, sizeof next);
        if (is_in(s, host) && act(&next, host)) {
            promise(&next);
            take(&next);
            any = true;
        }
    }
    if (!any && !is_over(s)) {
        fault("all wait for ever");
    }
    for (int world = 1; s->restarts < search.restarts_most && world < 1 << HOSTS; world++) {
        struct state next;
        memcpy(&next, s, sizeof next);
        begin_life(&next, world);
        take(&next);
    }
}

static const char *search_without(enum rule missing, int restarts) {
    static const int first_world = 3;
    struct state first;
    memset(&first, 0, sizeof first);
    search.missing = missing;
    search.restarts_most = restarts;
    search.fault = NULL;
    visited_clear(&search.visited);
    first.promised = NOTHING;
    first.restarts = -1;
    begin_life(&first, first_world);
    take(&first);
    for (size_t at = 0; at < search.visited.count && !search.fault; at++) {
        explore_from(visited_at(&search.visited, at));
    }
    return search.fault;
}

/* ---- tests ---- */

static int set_up(void **state) {
    (void)state;
    return visited_init(&search.visited, sizeof(struct state), STATES_MOST) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    visited_done(&search.visited);
    return 0;
}

static void no_order_does_harm(void **state) {
    (void)state;
    const char *found = search_without(NONE_IS_MISSING, 2);
    print_message("%zu states\n", search.visited.count);
    if (found) {
        fail_msg("%s", found);
    }
    assert_true(search.visited.count > 10000);
}

static void each_rule_is_needed(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        const char *found = search_without((enum rule)rule, 3);
        print_message("without rule %d: %s, after %zu states\n", rule, found ? found : "nothing", search.visited.count);
        assert_non_null(found);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_does_harm),
        cmocka_unit_test(each_rule_is_needed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
