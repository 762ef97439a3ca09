/* For rooms beside this one: snapshots of a state that no rank has whole (train/units/). It is saved from pieces that
 * come in the order of the file, and loaded by ranges of its tensors. What agreement of ranks it takes is here, too. */
#ifndef TRAIN_SNAPSHOT_PARTS_H
#define TRAIN_SNAPSHOT_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/snapshot.h>

/* ---- what the program gives ---- */

/* What a program of any version gives, as this version's structs. Strings and data stay borrowed. */
struct snapshot_state {
    struct muster_snapshot_state state;
    void *owned; /* a copy of the tensors, or NULL */
};
int snapshot_state_read(const struct muster_snapshot_state *given, struct snapshot_state *out);
/* Also after a failure. */
void snapshot_state_done(struct snapshot_state *state);

/* Could the state be saved? Names, types and sizes of tensors; names and memory of values. MUSTER_EINVAL,
 * MUSTER_ELIMIT, MUSTER_ENOMEM. */
int snapshot_state_check(const struct muster_snapshot_state *state);

/* ---- saving ---- */

/* A tensor with this address as data comes from the source. */
extern char snapshot_from_source[1];

struct snapshot_source {
    void *context;
    /* The next bytes of tensor number `tensor` of the state: at least one, at most `most`. They are borrowed until the
     * next call. Tensors are asked for in the order of the file: those with larger elements first, else in that of the
     * list. (checkpoint_save_parts() asks for a piece of each, in that order, then for the next piece of each.) A
     * failure is the save's. */
    int (*next)(void *context, size_t tensor, uint64_t most, const void **out, uint64_t *out_bytes);
    /* Asked before a file is begun, and before all of it gets valid, when what was written is on the disk. A failure is
     * the save's. NULL: nobody is asked. */
    int (*go_on)(void *context);
};
/* What go_on says. source: NULL is accepted. */
static inline int snapshot_source_goes_on(const struct snapshot_source *source) {
    return source && source->go_on ? source->go_on(source->context) : 0;
}

/* muster_snapshot_save() of this version's structs. stream: the caller's, where the options name none; NULL: the
 * default one. source: NULL if no tensor needs one. */
int snapshot_save_parts(const char *folder, int64_t step, const struct muster_snapshot_state *state,
                        const struct muster_snapshot_options *options, void *stream,
                        const struct snapshot_source *source);

/* ---- reading ---- */

/* A snapshot, open. */
struct snapshot_reader;

/* Opens the snapshot of `step` with that id (0: whatever lies there). checked: it was found whole a moment ago; else
 * all of it is read and checked first. `folder` is borrowed until the reader is closed. Errors: those of
 * muster_snapshot_load(). */
int snapshot_reader_open(const char *folder, int64_t step, uint64_t id, bool checked, struct snapshot_reader **out);
/* NULL is accepted. */
void snapshot_reader_close(struct snapshot_reader *reader);

/* Is all of the state in it, with the same types and shapes? MUSTER_EINVAL names what is not. */
int snapshot_reader_match(const struct snapshot_reader *reader, const struct muster_snapshot_state *state);
/* Reads the state, which matches, and checks each tensor against its checksum. stream: the caller's, whose work so far
 * comes before what is written to tensors on a GPU; NULL: the default one. MUSTER_ECORRUPT. */
int snapshot_reader_load(const struct snapshot_reader *reader, const struct muster_snapshot_state *state, void *stream);
/* Reads bytes [offset, offset + count) of a tensor that is in it. MUSTER_ECORRUPT: they cannot be read. */
int snapshot_reader_range(const struct snapshot_reader *reader, const char *tensor, uint64_t offset, void *out,
                          size_t count);

/* ---- agreement; collective, all of it ---- */

/* Every rank tells its result. When one is a failure, all get the code and the sentence of the lowest rank that failed.
 */
int snapshot_agree(struct muster_group *group, int code);

/* Do all describe the same names, types, shapes and kinds, and the same tensors on a GPU? MUSTER_EMISMATCH on every
 * rank if not. */
int snapshot_agree_on_description(struct muster_group *group, const struct muster_snapshot_state *state);

/* Which snapshot was chosen, and who has it. */
struct snapshot_choice {
    struct muster_snapshot_found found;
    uint32_t owner; /* the lowest rank that has found it whole */
    bool is_mine;   /* this rank has */
};

/* The newest whole snapshot that a rank finds in its folder; of those of one step, the one that the lowest rank has.
 * looks: this rank reads its folder; one rank at least must. readiness: a failure of this rank, of which all are to
 * hear, or 0. MUSTER_ENOENT, MUSTER_ECORRUPT as for muster_snapshot_find(), when no rank has one. */
int snapshot_choose(struct muster_group *group, bool looks, const char *folder, int readiness,
                    struct snapshot_choice *out);

/* The snapshot is not there, or not whole: reason enough to get it from another rank. */
static inline bool snapshot_is_lack(int code) {
    return code == MUSTER_ENOENT || code == MUSTER_ECORRUPT;
}

/* Does any rank lack the snapshot? lack: this rank's code, or 0. */
int snapshot_any_lack(struct muster_group *group, int lack, bool *out);

/* Could the group do what follows? Tensors on a GPU travel from there to there. Not collective; all are to agree on the
 * answer. MUSTER_EUNSUPPORTED. */
int snapshot_check_broadcast(const struct muster_group *group, const struct muster_snapshot_state *state);
/* Copies the state of rank `owner`, which all describe alike, to all others. */
int snapshot_broadcast_state(struct muster_group *group, const struct muster_snapshot_state *state, uint32_t owner);

#endif
