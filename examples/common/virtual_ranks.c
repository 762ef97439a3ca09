/* See virtual_ranks.h. */
#include "virtual_ranks.h"

#include <inttypes.h>
#include <stdio.h>

#include "fail.h"

enum { WORDS = 64 };

static const char *words_of(int64_t number, char words[WORDS]) {
    if (number > 0) {
        (void)snprintf(words, WORDS, "--virtual-ranks=%" PRId64, number);
    } else {
        (void)snprintf(words, WORDS, "no --virtual-ranks");
    }
    return words;
}

void check_virtual_ranks(int64_t saved, int64_t own, bool may_change) {
    char before[WORDS], now[WORDS];
    if (saved != own && !may_change) {
        fail("this training has had %s, and now there is %s: its bits would change. Go on with %s, or say "
             "--change-virtual-ranks",
             words_of(saved, before), words_of(own, now), before);
    }
}
