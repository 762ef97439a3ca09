/* The leader's post: what it knows of each agent's two keys, and the transactions that write those it writes
 * (docs/formats/etcd-v3.md). Pure.
 *
 * What is said waits in a queue, and is written in batches: one transaction at a time, so that an agent's key never
 * goes back to an older value. What is said while one is on its way goes with the next. */
#ifndef RENDEZVOUS_ETCD3_POST_H
#define RENDEZVOUS_ETCD3_POST_H

#include "rendezvous/coordinator.h"
#include "rendezvous/etcd3_keys.h"
#include "rendezvous/etcd3_mail.h"
#include "rendezvous/etcd3_wire.h"
#include "store/hash.h"

enum {
    ETCD3_BATCH_MAX = 100, /* writes in a transaction: etcd takes 128 */
    ETCD3_BOXES_MAX = 1 << 20,
};

#define ETCD3_BATCH_BYTES_MAX ((size_t)512 * 1024) /* of their values */
#define ETCD3_TRANSACTION_BYTES_MAX                                                                                    \
    (2 * (ETCD3_BATCH_BYTES_MAX + ETCD3_MAIL_BYTES_MAX) + (size_t)ETCD3_BATCH_MAX * 2 * ETCD3_KEY_MAX)

/* One agent, from when its key below from/ is seen until its key below to/ is removed. */
struct etcd3_box {
    struct hash_node node; /* key: `identity` */
    char identity[ETCD3_IDENTITY_CHARS + 1];
    struct etcd3_box *next_dirty;
    struct etcd3_mail mail;
    struct coordinator_member *member; /* the office's, like the next three */
    bool is_expected;                  /* it has written for an earlier leader, and not for this one */
    bool is_seen;                      /* while all are read anew */
    bool is_full;                      /* what it was told does not fit: it reads nothing */
    bool is_dirty;                     /* in the queue */
    bool is_written;                   /* its key below to/ exists */
    bool is_gone;                      /* its own key does not any more: it is in the queue, or being written */
};

struct etcd3_post {
    struct hash boxes; /* of agents who live */
    struct etcd3_box *first_dirty, *last_dirty;
    struct etcd3_box *batch[ETCD3_BATCH_MAX]; /* being written */
    size_t batch_count;
    bool is_writing;
    int64_t epoch, lease_id;
    char root[ETCD3_ROOT_MAX];
};

/* `root` is copied. Must not be moved afterwards. */
void etcd3_post_init(struct etcd3_post *post, const char *root, int64_t epoch, int64_t lease_id,
                     const uint64_t hash_seed[2]);
void etcd3_post_done(struct etcd3_post *post);

struct etcd3_box *etcd3_post_find(const struct etcd3_post *post, struct kv_slice identity);
/* The identity, of ETCD3_IDENTITY_CHARS bytes, must be new. NULL without memory, or when there are too many. */
struct etcd3_box *etcd3_post_add(struct etcd3_post *post, struct kv_slice identity);
/* Its agent is gone: it is found no more, its key below to/ is removed, and it is freed. */
void etcd3_post_remove(struct etcd3_post *post, struct etcd3_box *box);

void etcd3_post_say(struct etcd3_post *post, struct etcd3_box *box, const struct coordinator_message *message);

/* Nothing waits, nothing is being written. */
bool etcd3_post_is_idle(const struct etcd3_post *post);

/* Appends the next transaction's body to `out`, which has room for ETCD3_TRANSACTION_BYTES_MAX: nothing if nothing
 * waits, or one is on its way. MUSTER_ENOMEM, MUSTER_ELIMIT; the post is of no use then. */
int etcd3_post_write(struct etcd3_post *post, struct buf *out);

/* The transaction has been carried out. Then etcd3_post_next_written() until NULL: those it was for, who live. */
void etcd3_post_written(struct etcd3_post *post);
struct etcd3_box *etcd3_post_next_written(struct etcd3_post *post);

#endif
