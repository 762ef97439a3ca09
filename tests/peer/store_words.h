/* Requests and answers of store_peer and agent_store_peer as lines of words: the C half of test_store.py.
 *
 * Words are separated by tabs. A word is a key (it may be empty) or number as it is, or a value: "=" and its bytes in
 * hex, or "*COUNT:XX" for COUNT times the byte XX. An answer is "0" and words, or a negative code and its detail. */
#ifndef TESTS_PEER_STORE_WORDS_H
#define TESTS_PEER_STORE_WORDS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "store/wire/slice.h"

enum { WORDS_MAX = 4096 };

struct words {
    char *list[WORDS_MAX];
    size_t count;
};

/* Cuts `line` into words, in place. False: too many. */
bool words_split(char *line, struct words *out);

/* The bytes of a value word, decoded in place or, for a run, in an allocation that is kept until the program ends.
 * Exits with a message when the word is no value: the test itself is wrong then. */
struct kv_slice words_value(char *word);
int64_t words_number(const char *word);

void words_print_value(struct kv_slice value);
/* The detail of a failed call, or "0" for success, without the end of the line. */
void words_print_status(int code);

#endif
