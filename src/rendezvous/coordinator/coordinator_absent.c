/* Nodes of the last world that were lost without a word: until when their workers may run. One that comes back has
 * ended them. Private to the rules of the rounds (coordinator.c). */
#include <string.h>

#include "rendezvous/coordinator/coordinator_impl.h"

static void forget(struct coordinator *c, size_t i) {
    c->absent[i] = c->absent[--c->absent_count];
}

void coordinator_absent_note(struct coordinator *c, const struct coordinator_member *member) {
    if (c->absent_count == COORDINATOR_ABSENT_MAX) { /* of more it is not known who comes back */
        size_t first = 0;
        for (size_t i = 1; i < c->absent_count; i++) {
            first = c->absent[i].works_until_ms < c->absent[first].works_until_ms ? i : first;
        }
        c->stopped_ms =
            c->absent[first].works_until_ms > c->stopped_ms ? c->absent[first].works_until_ms : c->stopped_ms;
        forget(c, first);
    }
    struct coordinator_absent *absent = &c->absent[c->absent_count++];
    memcpy(absent->identity, member->identity, sizeof absent->identity);
    absent->works_until_ms = member->works_until_ms;
}

void coordinator_absent_returned(struct coordinator *c, const struct coordinator_node *node) {
    for (size_t i = c->absent_count; i-- > 0;) {
        if (memcmp(c->absent[i].identity, node->identity, sizeof node->identity) == 0) {
            forget(c, i);
        }
    }
}

int64_t coordinator_absent_stopped_ms(const struct coordinator *c) {
    int64_t stopped_ms = c->stopped_ms;
    for (size_t i = 0; i < c->absent_count; i++) {
        stopped_ms = c->absent[i].works_until_ms > stopped_ms ? c->absent[i].works_until_ms : stopped_ms;
    }
    return stopped_ms;
}
