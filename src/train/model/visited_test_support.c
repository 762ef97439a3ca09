/* See visited_test_support.h. */
#include "train/model/visited_test_support.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES_PER_STATE = 2 };

bool visited_init(struct visited *visited, size_t state_bytes, size_t room) {
    *visited = (struct visited){.state_bytes = state_bytes, .room = room};
    visited->states = calloc(room, state_bytes);
    visited->numbers = calloc(room * PLACES_PER_STATE, sizeof *visited->numbers);
    return visited->states && visited->numbers;
}

void visited_done(struct visited *visited) {
    free(visited->states);
    free(visited->numbers);
    *visited = (struct visited){.states = NULL};
}

void visited_clear(struct visited *visited) {
    memset(visited->numbers, 0, visited->room * PLACES_PER_STATE * sizeof *visited->numbers);
    visited->count = 0;
    visited->is_full = false;
}

const void *visited_at(const struct visited *visited, size_t number) {
    return visited->states + number * visited->state_bytes;
}

/* Of eight bytes at a time: the tests spend most of their time here. */
static uint64_t hash_of(const char *state, size_t bytes) {
    uint64_t hash = bytes;
    for (size_t at = 0; at < bytes; at += sizeof hash) {
        uint64_t word = 0;
        memcpy(&word, state + at, bytes - at < sizeof word ? bytes - at : sizeof word);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

bool visited_add(struct visited *visited, const void *state) {
    size_t places = visited->room * PLACES_PER_STATE;
    size_t at = (size_t)hash_of(state, visited->state_bytes) % places;
    for (; visited->numbers[at] != 0; at = (at + 1) % places) {
        if (memcmp(visited_at(visited, visited->numbers[at] - 1), state, visited->state_bytes) == 0) {
            return false;
        }
    }
    if (visited->count == visited->room) {
        visited->is_full = true;
        return false;
    }
    memcpy(visited->states + visited->count * visited->state_bytes, state, visited->state_bytes);
    visited->numbers[at] = (uint32_t)++visited->count;
    return true;
}
