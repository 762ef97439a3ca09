/* What the files of committed copies share: copies_layout.c says where they lie, copies_find.c finds memory of
 * earlier lives and chooses, copies.c opens it and commits. */
#ifndef TRAIN_COPIES_IMPL_H
#define TRAIN_COPIES_IMPL_H

#include "train/commit/commit_choose.h"
#include "train/commit/copies.h"
#include "train/memory/held_finds.h"

/* ---- copies_layout.c ---- */

struct copies_layout {
    char *bases[COMMIT_COPIES]; /* where copies are written */
    size_t stride;              /* bytes of a copy with its extra room, whole pages */
    size_t extra_offset;        /* in it */
};

/* Of memory with a table of that room. */
void copies_lay_out(void *memory, const struct commit_kind *kind, uint32_t room, struct copies_layout *out);
/* All bytes, of memory for so many writers. */
size_t copies_region_bytes(const struct commit_kind *kind, uint32_t writer_count);

/* ---- copies_find.c ---- */

/* What comes of what the ranks have found. */
struct copies_choice {
    struct commit_way way;
    uint32_t makers; /* ranks of this host that are to make memory */
    uint32_t failures;
    int64_t given_up_step; /* that is not used again; COMMIT_NOTHING: there is none */
    uint64_t number;       /* of the life that begins */
    uint64_t given_up;     /* see struct commit_life */
};

/* Memory that a rank has found: what it offers, and where it has it. */
struct copies_found {
    struct commit_offer offer;
    uint32_t rank;
    uint32_t is_own; /* its row may go on with it, where it is */
    size_t find;     /* the rank's own number of it */
};

struct copies_search {
    struct holder *holder;
    char role[HELD_FIND_NAME_BYTES];
    uint32_t counted;        /* ranks of this launcher, if each is a row */
    struct held_finds finds; /* of this rank */
    struct copies_found *own;
    size_t own_count;
    struct copies_found *all; /* of all ranks, in their order */
    size_t all_count;
    struct copies_choice choice;
};

/* What was found goes; name: but for the row's memory of that name. NULL: that too. */
int copies_search_drop(const struct copies_search *search, const char *name);
/* There is no room for what moves: nothing has been found, then. */
void copies_search_forgo(struct copies_search *search);

/* Is this the rank that finds and makes the row's memory? */
static inline bool copies_is_first(const struct copies_options *o) {
    return !o->row || muster_group_rank(o->row) == 0;
}
/* Does it hold the row's memory, for its agent or for itself? Who does also looks. */
bool copies_holds(const struct copies_options *o, const struct holder *holder);

/* Looks. Not collective. */
int copies_search_begin(struct copies_search *search, const struct copies_options *o, uint32_t writer_count);
/* All learn what each has found, and choose. Collective. */
int copies_search_choose(struct copies_search *search, const struct copies_options *o);
/* The descriptor of the row's own memory with the chosen label, which is the caller's now; -1: this rank has none. */
int copies_search_take_own(struct copies_search *search);
/* What the agent says of the workers before these; 0: nothing. */
uint64_t copies_hear(void);
/* Also after a failure, and zeroed. */
void copies_search_done(struct copies_search *search);

#endif
