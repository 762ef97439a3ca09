/* Pure: the attempts of a static job; see static_round.h. */
#include "rendezvous/torch/static_round.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

void static_round_init(struct static_round *r, enum static_node_state *nodes, uint32_t count, bool are_alone) {
    *r = (struct static_round){.phase = are_alone ? STATIC_ALONE : STATIC_FORMING, .nodes = nodes, .count = count};
    r->in_state[STATIC_ABSENT] = count;
}

static void set_state(struct static_round *r, uint32_t rank, enum static_node_state state) {
    r->in_state[r->nodes[rank]]--;
    r->in_state[state]++;
    r->nodes[rank] = state;
}

void static_round_came(struct static_round *r, uint32_t rank) {
    if (rank < r->count) {
        set_state(r, rank, STATIC_RUNS);
    }
}

void static_round_is_mixed(struct static_round *r) {
    r->phase = STATIC_ALONE;
}

/* A node that is done comes to no further attempt: the others cannot be complete again. They go on as they would under
 * torchrun, where workers that need nobody else still end well. */
static void form_next(struct static_round *r, uint32_t rank) {
    if (r->is_one_done) {
        r->phase = STATIC_ALONE;
    } else {
        r->phase = STATIC_FORMING;
        r->round++;
        r->broken_by = rank;
    }
}

void static_round_broke(struct static_round *r, uint32_t rank, uint64_t round) {
    if (rank < r->count && r->phase == STATIC_RUNNING && round == r->round) {
        form_next(r, rank);
    }
}

void static_round_ready(struct static_round *r, uint32_t rank, uint64_t round) {
    if (round > 0) {
        static_round_broke(r, rank, round - 1);
    }
    if (rank < r->count && r->phase == STATIC_FORMING && round == r->round) {
        set_state(r, rank, STATIC_READY);
    }
}

void static_round_done(struct static_round *r, uint32_t rank) {
    if (rank < r->count) {
        set_state(r, rank, STATIC_DONE);
        r->is_one_done = true;
        r->phase = r->phase == STATIC_FORMING ? STATIC_ALONE : r->phase;
    }
}

void static_round_lost(struct static_round *r, uint32_t rank) {
    if (rank < r->count && r->nodes[rank] != STATIC_DONE) {
        set_state(r, rank, STATIC_GONE);
    }
}

bool static_round_is_complete(const struct static_round *r) {
    return r->phase == STATIC_FORMING && r->in_state[STATIC_READY] == r->count;
}

void static_round_go(struct static_round *r) {
    assert(static_round_is_complete(r));
    r->phase = STATIC_RUNNING;
    for (uint32_t i = 0; i < r->count; i++) {
        set_state(r, i, STATIC_RUNS);
    }
}

bool static_round_is_over(const struct static_round *r) {
    return r->in_state[STATIC_DONE] + r->in_state[STATIC_GONE] == r->count;
}

bool static_round_is_alone(const struct static_round *r, uint32_t rank) {
    enum static_node_state own = r->nodes[rank];
    uint32_t here = r->in_state[STATIC_RUNS] + r->in_state[STATIC_READY];
    return here == (own == STATIC_RUNS || own == STATIC_READY);
}

bool static_round_knows_all(const struct static_round *r) {
    return r->in_state[STATIC_ABSENT] == 0;
}

const char *static_round_word(const struct static_round *r, char out[STATIC_WORD_SIZE]) {
    if (r->phase == STATIC_ALONE) {
        (void)str_format(out, STATIC_WORD_SIZE, "alone");
    } else {
        (void)str_format(out, STATIC_WORD_SIZE, "%s %llu %u", r->phase == STATIC_FORMING ? "form" : "run",
                         (unsigned long long)r->round, r->broken_by);
    }
    return out;
}

/* A number up to the next blank, or the end. */
static bool read_number(const char **text, int64_t *out) {
    char digits[24];
    size_t len = strcspn(*text, " ");
    if (len == 0 || len >= sizeof digits) {
        return false;
    }
    memcpy(digits, *text, len);
    digits[len] = '\0';
    *text += len + ((*text)[len] == ' ');
    return str_parse_i64(digits, out) && *out >= 0;
}

/* Where " ask 2" begins, else the end. */
static size_t before_asked(const char *text, size_t len) {
    const char *ask = memmem(text, len, " ask ", strlen(" ask "));
    return ask ? (size_t)(ask - text) : len;
}

uint64_t static_round_read_asked(const char *text, size_t len) {
    char digits[24] = "";
    int64_t number = 0;
    size_t skipped = before_asked(text, len) + strlen(" ask ");
    if (skipped >= len || len - skipped >= sizeof digits) {
        return 0;
    }
    memcpy(digits, text + skipped, len - skipped);
    return str_parse_i64(digits, &number) && number > 0 ? (uint64_t)number : 0;
}

bool static_round_read_word(const char *text, size_t len, struct static_word *out) {
    char word[STATIC_WORD_SIZE] = "";
    int64_t round = 0, rank = 0;
    len = before_asked(text, len);
    if (len >= sizeof word) {
        return false;
    }
    memcpy(word, text, len);
    bool forms = strncmp(word, "form ", 5) == 0, runs = strncmp(word, "run ", 4) == 0;
    const char *numbers = word + (forms ? 5 : 4);
    if (!forms && !runs) {
        *out = (struct static_word){.phase = STATIC_ALONE};
        return strcmp(word, "alone") == 0;
    }
    if (!read_number(&numbers, &round) || !read_number(&numbers, &rank) || rank > UINT32_MAX) {
        return false;
    }
    *out = (struct static_word){
        .phase = forms ? STATIC_FORMING : STATIC_RUNNING, .round = (uint64_t)round, .broken_by = (uint32_t)rank};
    return true;
}

/* Where nobody waits for all to be ready, whoever is here has come. */
static bool is_missing(const struct static_round *r, enum static_node_state state) {
    bool has_come = r->phase == STATIC_FORMING ? state == STATIC_READY : state == STATIC_RUNS || state == STATIC_DONE;
    return !has_come;
}

uint32_t static_round_missing(const struct static_round *r, char out[STATIC_MISSING_SIZE]) {
    enum { NAMED_MAX = 8 };
    uint32_t missing = 0;
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < r->count; i++) {
        missing += is_missing(r, r->nodes[i]);
    }
    for (uint32_t i = 0, named = 0; i < r->count && named < NAMED_MAX; i++) {
        if (is_missing(r, r->nodes[i])) {
            const char *before = named > 0 ? ", " : missing == 1 ? "node rank " : "node ranks ";
            used += (size_t)snprintf(out + used, STATIC_MISSING_SIZE - used, "%s%u", before, i);
            named++;
        }
    }
    if (missing > NAMED_MAX) {
        (void)snprintf(out + used, STATIC_MISSING_SIZE - used, " and %u more", missing - NAMED_MAX);
    }
    return missing;
}
