/* See visited_test_support.h. */
#include "train/model/visited_test_support.h"

#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"

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

bool visited_add(struct visited *visited, const void *state) {
    size_t places = visited->room * PLACES_PER_STATE;
    uint64_t hash = fnv_bytes(FNV_BEGIN, state, visited->state_bytes);
    size_t at = (size_t)(hash ^ hash >> 32) % places;
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
