/* Boxes, the queue, and batches; see etcd3_post.h. */
#include "rendezvous/etcd3_post.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

static void free_box(struct etcd3_box *box) {
    etcd3_mail_done(&box->mail);
    free(box);
}

/* ---- boxes ---- */

struct etcd3_box *etcd3_post_find(const struct etcd3_post *post, struct kv_slice identity) {
    return (struct etcd3_box *)hash_find(&post->boxes, identity, hash_of(&post->boxes, identity));
}

struct etcd3_box *etcd3_post_add(struct etcd3_post *post, struct kv_slice identity) {
    struct etcd3_box *box = post->boxes.count < ETCD3_BOXES_MAX ? calloc(1, sizeof *box) : NULL;
    assert(identity.len == ETCD3_IDENTITY_CHARS);
    if (box) {
        memcpy(box->identity, identity.data, identity.len);
        box->node = (struct hash_node){.hash = hash_of(&post->boxes, identity), .key_len = (uint32_t)identity.len};
        etcd3_mail_init(&box->mail, (uint64_t)post->epoch, false);
        hash_insert(&post->boxes, &box->node);
    }
    return box;
}

static void put_in_queue(struct etcd3_post *post, struct etcd3_box *box) {
    if (!box->is_dirty) {
        box->is_dirty = true;
        box->next_dirty = NULL;
        *(post->last_dirty ? &post->last_dirty->next_dirty : &post->first_dirty) = box;
        post->last_dirty = box;
    }
}

static struct etcd3_box *take_from_queue(struct etcd3_post *post) {
    struct etcd3_box *box = post->first_dirty;
    post->first_dirty = box->next_dirty;
    post->last_dirty = post->first_dirty ? post->last_dirty : NULL;
    box->is_dirty = false;
    return box;
}

void etcd3_post_remove(struct etcd3_post *post, struct etcd3_box *box) {
    hash_remove(&post->boxes, &box->node);
    box->is_gone = true;
    put_in_queue(post, box);
}

void etcd3_post_say(struct etcd3_post *post, struct etcd3_box *box, const struct coordinator_message *message) {
    box->is_full = etcd3_mail_add(&box->mail, message) != MUSTER_OK || box->is_full;
    put_in_queue(post, box);
}

bool etcd3_post_is_idle(const struct etcd3_post *post) {
    return !post->first_dirty && !post->is_writing;
}

/* ---- batches ---- */

/* The key below to/, in `bytes`, which have room. */
static struct kv_slice put_key(const struct etcd3_post *post, const struct etcd3_box *box, struct buf *bytes) {
    size_t before = bytes->len;
    int rc = buf_printf(bytes, "%s/to/%s", post->root, box->identity);
    assert(rc == MUSTER_OK);
    return kv_slice_of(buf_bytes(bytes) + before, bytes->len - before);
}

/* Takes one from the queue into the batch. MUSTER_ENOMEM. */
static int batch_one(struct etcd3_post *post, struct buf *bytes, struct etcd3_operation *operation) {
    struct etcd3_box *box = take_from_queue(post);
    post->batch[post->batch_count++] = box;
    struct kv_slice key = put_key(post, box, bytes);
    *operation = (struct etcd3_operation){
        .kind = box->is_gone ? ETCD3_DELETE : ETCD3_PUT, .range = {.key = key}, .lease_id = post->lease_id};
    size_t before = bytes->len;
    int rc = box->is_gone ? MUSTER_OK : etcd3_mail_put(&box->mail, bytes);
    operation->value = kv_slice_of(buf_bytes(bytes) + before, bytes->len - before);
    box->is_written = true;
    return rc;
}

/* All that fits. Slices point into `bytes`, which does not move. */
static int fill_batch(struct etcd3_post *post, struct buf *bytes, struct etcd3_operation operations[ETCD3_BATCH_MAX]) {
    int rc = buf_reserve(bytes, bytes->max) ? MUSTER_OK : MUSTER_ENOMEM;
    while (rc == MUSTER_OK && post->first_dirty && post->batch_count < ETCD3_BATCH_MAX &&
           bytes->len < ETCD3_BATCH_BYTES_MAX) {
        if (post->first_dirty->is_gone && !post->first_dirty->is_written) { /* nobody has to know */
            free_box(take_from_queue(post));
        } else {
            rc = batch_one(post, bytes, &operations[post->batch_count]);
        }
    }
    return rc;
}

static int put_batch(const struct etcd3_post *post, const struct etcd3_operation *operations, struct buf *out) {
    char key[ETCD3_KEY_MAX];
    (void)str_format(key, sizeof key, "%s/leader", post->root);
    const struct etcd3_transaction transaction = {.key = kv_slice_text(key),
                                                  .create_revision = post->epoch,
                                                  .success = operations,
                                                  .success_count = post->batch_count};
    return etcd3_wire_put_transaction(out, &transaction);
}

int etcd3_post_write(struct etcd3_post *post, struct buf *out) {
    struct etcd3_operation operations[ETCD3_BATCH_MAX];
    struct buf bytes;
    if (post->is_writing || !post->first_dirty) {
        return MUSTER_OK;
    }
    buf_init(&bytes, ETCD3_BATCH_BYTES_MAX + ETCD3_MAIL_BYTES_MAX + (size_t)ETCD3_BATCH_MAX * ETCD3_KEY_MAX);
    int rc = fill_batch(post, &bytes, operations);
    post->is_writing = post->batch_count > 0;
    rc = rc == MUSTER_OK && post->is_writing ? put_batch(post, operations, out) : rc;
    buf_done(&bytes);
    return rc;
}

void etcd3_post_written(struct etcd3_post *post) {
    assert(post->is_writing);
    post->is_writing = false;
}

struct etcd3_box *etcd3_post_next_written(struct etcd3_post *post) {
    assert(!post->is_writing);
    while (post->batch_count > 0) {
        struct etcd3_box *box = post->batch[--post->batch_count];
        if (!box->is_gone) {
            return box;
        }
        if (!box->is_dirty) { /* else its key is still to be removed */
            free_box(box);
        }
    }
    return NULL;
}

/* ---- life ---- */

void etcd3_post_init(struct etcd3_post *post, const char *root, int64_t epoch, int64_t lease_id,
                     const uint64_t hash_seed[2]) {
    *post = (struct etcd3_post){.epoch = epoch, .lease_id = lease_id};
    bool fits = str_copy(post->root, sizeof post->root, root);
    assert(fits);
    hash_init(&post->boxes, hash_seed, offsetof(struct etcd3_box, identity));
}

void etcd3_post_done(struct etcd3_post *post) {
    post->is_writing = false;
    while (etcd3_post_next_written(post)) { /* those who live are in the table */
    }
    while (post->first_dirty) {
        struct etcd3_box *box = take_from_queue(post);
        if (box->is_gone) {
            free_box(box);
        }
    }
    size_t bucket = 0;
    for (struct hash_node *node; (node = hash_next(&post->boxes, &bucket, NULL)) != NULL; bucket = 0) {
        hash_remove(&post->boxes, node);
        free_box((struct etcd3_box *)node);
    }
    hash_done(&post->boxes);
}
