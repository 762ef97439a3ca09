/* An agent's search for the coordinator among several endpoints: whom to ask, what the answers say, where to go. Pure:
 * no I/O, no clock. The caller asks (PROBE), tells the answers, and calls native_search_tick() when it wants that.
 *
 * Rules (docs/rendezvous.md, "When the host dies"): all endpoints are asked at once. The best is one where a world
 * runs, or has ended and a majority of it waits for the next; then the next in the list's order after the one that told
 * the latest round anybody knows, from the first when there was none. So all survivors of a world, and newcomers, go to
 * the same place, whatever the order in which they come, and those who could not reach it follow when they can. */
#ifndef RENDEZVOUS_NATIVE_SEARCH_H
#define RENDEZVOUS_NATIVE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/endpoint.h"
#include "rendezvous/wire/coordinator_wire.h"

enum {
    NATIVE_SEARCH_GRACE_MS = 250,     /* some have answered: the others get no more */
    NATIVE_SEARCH_PATIENCE_MS = 1000, /* who has not answered by then is silent */
    NATIVE_SEARCH_PAUSE_MIN_MS = 100, /* between two rounds of asking; doubles */
    NATIVE_SEARCH_PAUSE_MAX_MS = 5000,
};

enum native_answer {
    NATIVE_NOT_ASKED,
    NATIVE_REFUSED,   /* its machine says that nobody serves there */
    NATIVE_SILENT,    /* no answer */
    NATIVE_STRANGER,  /* something else, or another job */
    NATIVE_STANDS_BY, /* a coordinator, and nobody has joined it */
    NATIVE_SERVES,
};

struct native_search_place {
    enum native_answer answer; /* the last one */
    struct coordinator_service service;
    bool is_awaited; /* asked, and not answered */
};

struct native_search {
    size_t count;
    struct native_search_place places[NET_ENDPOINTS_MAX];
    uint64_t last_round; /* of this node's last world; 0: none */
    bool is_asking;      /* a round of asking is not complete */
    bool is_decided;     /* of it, NATIVE_SEARCH_DECIDE has been said */
    int64_t asked_ms;
    unsigned pause_count; /* since the last hurry */
};

void native_search_init(struct native_search *search, size_t count);
/* A world was told. */
void native_search_served(struct native_search *search, uint64_t round);

/* Asks all: begins a round of asking. Bit i: place i is to be asked; whoever is still awaited is asked anew. */
uint32_t native_search_begin(struct native_search *search, int64_t now_ms);

enum native_search_result {
    NATIVE_SEARCH_DECIDE = 1,   /* native_search_best() is as good as it will be for now; once a round of asking */
    NATIVE_SEARCH_COMPLETE = 2, /* all have answered, or are silent */
};

/* What these return: the bits above. `service` for NATIVE_SERVES and NATIVE_STANDS_BY. */
unsigned native_search_answered(struct native_search *search, size_t place, enum native_answer answer,
                                const struct coordinator_service *service, int64_t now_ms);
unsigned native_search_tick(struct native_search *search, int64_t now_ms);
/* When to call it; INT64_MAX: not. */
int64_t native_search_wake_ms(const struct native_search *search);

/* The pause before the next round of asking: grows until native_search_hurry(). */
int64_t native_search_pause_ms(struct native_search *search);
void native_search_hurry(struct native_search *search);

/* It has answered, in this round of asking, and is a coordinator. */
bool native_search_can_join(const struct native_search *search, size_t place);
/* The place to join; -1: none has answered that could be joined. */
int native_search_best(const struct native_search *search);
/* Is a session with `at` to be left for the best place, which may be the same? `is_stuck`: it was begun before this
 * round of asking, and is not connected yet. Its first message was lost then, and the kernel may not repeat it for half
 * a minute, while a new connection has got through. */
bool native_search_leaves(const struct native_search *search, size_t at, bool is_stuck);
/* Of all places but this one it is known that no job is served there. */
bool native_search_is_alone(const struct native_search *search, size_t place);
/* The highest round that anybody has told. */
uint64_t native_search_known_round(const struct native_search *search);

/* For the list in a JOIN: equal for equal lists; 0 for a list of one. */
uint64_t native_search_digest(const struct net_endpoint_list *list);

#endif
