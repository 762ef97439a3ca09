/* What the nodes of a round tell each other of their failures where they meet in a store, and which of these counts:
 * c10d, etcd-v2, etcd and static. (The native backends have a coordinator for it.)
 *
 *   <key>          the failure that counts, a record (round/cause.h): the first one for good, and before there is any
 *                  the first one with restarts left
 *   <key>/said     how many statements there are (not with two nodes)
 *   <key>/said/1   the first statement: a record, or "none"
 *
 * The node that writes the first failure for good judges: it may have been the victims' node, on a busy machine. It
 * tells its record at once, but not that it is complete ("told"), for which every report waits. All others that learn
 * of it state what has failed on them, if anything, and state it again with the last words. The judge compares the ages
 * when it hears them (round/hearing.h), for 300 ms at most, puts the oldest death under the key, and says that it is
 * told. A failure with restarts left is not judged: nobody reports it, and no restart is to wait. */
#ifndef RENDEZVOUS_FAILURES_H
#define RENDEZVOUS_FAILURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/round/hearing.h"
#include "store/client/kv_client.h"

struct rdzv;

struct failures_options {
    struct kv_client *client; /* borrowed until failures_stop(): requests that are answered at once */
    const char *key;          /* copied */
    uint32_t other_count;     /* nodes of the round beside this one */
    bool only_final;          /* failures with restarts left are told in another way */
    /* One more connection to the same store, for waits. */
    int (*connect)(void *ctx, struct kv_client **out);
    /* A record of this node's has been written, or could not be. NULL accepted. */
    void (*on_written)(void *ctx);
    /* This node judges: failures_excuse() for those that are known not to state anything. NULL accepted. */
    void (*on_judging)(void *ctx);
    void *ctx;
};

/* Part of struct rdzv. Zero: no round, nothing is told. */
struct failures {
    struct rdzv *rdzv;
    struct failures_options options;
    char *key;             /* owned; NULL: no round */
    struct rdzv_cause own; /* of this node, if it has_own */
    int64_t own_died_us;   /* by clock_monotonic_ns() */
    bool has_own;          /* a worker of this node has failed */
    char *text;            /* the record that this node wrote last, owned; NULL: none */
    char *found;           /* what stood under the key when the store answered last, owned; NULL: nothing */
    bool is_writing;       /* and the store has not answered */
    bool writes_final;     /* that record is of a failure for good */
    bool is_changed;       /* there is more to write, since then */
    bool is_ours;          /* `text` stands under the key */
    bool is_others_final;  /* another node has failed for good, and judges */
    bool is_counting;      /* a statement of this node's is about to be made */
    int64_t sent_us;       /* when the last record was, or the last number was asked for */
    int64_t trip_us;       /* how long that took */
    bool has_answered;     /* it has said all, once */
    int64_t stated_count;  /* with two nodes: its statements */
    bool is_judging;       /* until it has told */
    bool awaits_culprit;   /* all that has been heard of in time is victims */
    bool has_judged;
    struct hearing hearing;
    struct kv_client *waiter; /* of the judge, owned */
    unsigned heard_count;     /* statements */
    unsigned unanswered;      /* requests of this round, whose answers come in order */
    unsigned stale;           /* and of earlier rounds: their answers come first, and count no more */
};

/* This node is in a round of several. Forgets the one before, and what its requests are answered. MUSTER_ENOMEM:
 * nothing will be told. */
int failures_begin(struct failures *failures, struct rdzv *rdzv, const struct failures_options *options);
/* The client is about to go. Frees what there is. */
void failures_stop(struct failures *failures);
/* It is lost: this node counts on what it knows. */
void failures_lost(struct failures *failures);

/* A worker of this node has failed; or the same again with more words. */
void failures_tell(struct failures *failures, const struct rdzv_cause *cause);
/* The key has been read: this node answers, if it is for others to judge. */
void failures_read(struct failures *failures, struct kv_slice text);
/* A record is on its way to the key. */
bool failures_is_writing(const struct failures *failures);
/* What has failed on this node, as it is to be told now. */
bool failures_own(const struct failures *failures, struct rdzv_cause *out);
/* So many of the others state nothing: they are done, or agents of PyTorch's. */
void failures_excuse(struct failures *failures, uint32_t count);

#endif
