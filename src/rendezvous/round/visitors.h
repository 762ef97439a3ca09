/* Agents that have come to the same address and cannot meet there, since their options differ: what each side says of
 * itself in the store, and what this node knows of the other one, for people who wait. Pure.
 *
 * The host of a store leaves a card in it. Who connects reads that, and leaves a card of its own if they differ. Agents
 * of PyTorch's leave none: the keys that they write tell their backend and run id. */
#ifndef RENDEZVOUS_VISITORS_H
#define RENDEZVOUS_VISITORS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/formats/protocol.h"
#include "store/wire/slice.h"

#define VISITORS_KEY_HOST "muster/host"   /* the host's card */
#define VISITORS_KEY_VISIT "muster/visit" /* of whoever came last and differs */

enum { VISITORS_MAX = 3, VISITORS_CARD_SIZE = 512, VISITORS_TEXT_SIZE = 1024 };

struct visitors_card {
    char backend[16];
    char run_id[96];   /* the beginning of it */
    char nnodes[24];   /* "" where it is not known, and so is the name */
    char name[112];    /* "host-b (pid 12)" */
    char protocol[12]; /* of Muster's agents (base/formats/protocol.h); "" in PyTorch's keys */
};

struct visitors {
    struct visitors_card self;
    struct visitors_card host; /* of the store that this node uses; backend "": not known, or as this node's */
    struct visitors_card seen[VISITORS_MAX];
    size_t count;
};

void visitors_init(struct visitors *v, const char *backend, const char *run_id, const char *nnodes, const char *name);
/* This node's card, as a value of a key. Returns `out`. */
const char *visitors_card(const struct visitors *v, char out[VISITORS_CARD_SIZE]);
/* The card of the store's host. True: they differ, so that this node leaves its own. */
bool visitors_read_host(struct visitors *v, struct kv_slice value);
/* Somebody has written this into the store that this node hosts; the key as on the wire. True: there is news. */
bool visitors_heard(struct visitors *v, struct kv_slice key, struct kv_slice value);
/* Somebody with these options has asked; "" where they are not known. True: there is news. */
bool visitors_note(struct visitors *v, const char *backend, const char *run_id, const char *nnodes, const char *name);
/* The host of the store is Muster's and has left no card: it is from before there were any. */
void visitors_host_is_old(struct visitors *v);
/* An agent of this job speaks the protocol of this number; 0: it is from before there were any. True: there is news. */
bool visitors_note_protocol(struct visitors *v, const char *name, struct kv_slice number);
/* The owner of the card, `who`, speaks another protocol than this node: both numbers, for people. NULL: it does not. */
const char *visitors_protocol(const struct visitors *v, const struct visitors_card *card, const char *who,
                              char out[PROTOCOL_SENTENCE_SIZE]);

/* "; the store's host has --rdzv-backend=c10d, this node static", or "". Returns `out`. */
const char *visitors_text(const struct visitors *v, char out[VISITORS_TEXT_SIZE]);

#endif
