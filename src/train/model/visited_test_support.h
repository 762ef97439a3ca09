/* For tests that try all orders: the states that a search has come to, each once, in the order in which they came. */
#ifndef TRAIN_VISITED_TEST_SUPPORT_H
#define TRAIN_VISITED_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct visited {
    char *states;
    uint32_t *numbers; /* a hash table: number of a state, plus 1; 0: free */
    size_t state_bytes, room, count;
    bool is_full;
};

/* Room for so many states, of which all bytes count: those of padding are to be zero. False: no memory. */
bool visited_init(struct visited *visited, size_t state_bytes, size_t room);
void visited_done(struct visited *visited);

void visited_clear(struct visited *visited);

/* False: the state was there, or there is no room for it (is_full). */
bool visited_add(struct visited *visited, const void *state);

/* State number `number` of `count`. */
const void *visited_at(const struct visited *visited, size_t number);

#endif
