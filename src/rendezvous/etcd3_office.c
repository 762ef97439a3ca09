/* Letters to the coordinator, and who has yet to write one; see etcd3_office.h. */
#include "rendezvous/etcd3_office.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

struct etcd3_office {
    struct coordinator *coordinator;
    struct etcd3_post post;
    size_t expected_count;
    bool has_read; /* everybody, once */
    void (*on_refused)(void *ctx, const char *identity, const char *why);
    void *ctx;
    char first_key[ETCD3_KEY_MAX], end_key[ETCD3_KEY_MAX];
};

static void send_message(void *ctx, void *session, const struct coordinator_message *message) {
    struct etcd3_office *office = ctx;
    etcd3_post_say(&office->post, session, message);
}

/* ---- who is there ---- */

/* One less has yet to speak. */
static void stop_expecting(struct etcd3_office *office, struct etcd3_box *box, int64_t now_ms) {
    if (box->is_expected) {
        box->is_expected = false;
        office->expected_count--;
        if (office->has_read) {
            coordinator_expect(office->coordinator, office->expected_count, now_ms);
        }
    }
}

static void lose_member(struct etcd3_office *office, struct etcd3_box *box, struct kv_slice why, int64_t now_ms) {
    struct coordinator_member *member = box->member;
    box->member = NULL;
    if (member) {
        coordinator_gone(office->coordinator, member, why, now_ms);
    }
}

/* Its key is gone: it has left, or its lease has expired. */
static void lose_box(struct etcd3_office *office, struct etcd3_box *box, int64_t now_ms) {
    etcd3_post_remove(&office->post, box);
    lose_member(office, box, kv_slice_text(""), now_ms);
    stop_expecting(office, box, now_ms);
}

/* ---- what agents say ---- */

static void refuse(struct etcd3_office *office, struct etcd3_box *box, int status, int64_t now_ms) {
    char why[MUSTER_DETAIL_MAX];
    (void)str_format(why, sizeof why, "%s", muster_detail());
    const struct coordinator_message message = {
        .kind = COORDINATOR_REFUSED, .status = status, .text = kv_slice_text(why)};
    if (office->on_refused) {
        office->on_refused(office->ctx, box->identity, why);
    }
    lose_member(office, box, kv_slice_text(why), now_ms);
    send_message(office, box, &message);
}

static void leave(struct etcd3_office *office, struct etcd3_box *box, struct kv_slice why, int64_t now_ms) {
    struct coordinator_member *member = box->member;
    box->member = NULL;
    coordinator_leave(office->coordinator, member, why.len > 0 ? why : kv_slice_text("without a reason"), now_ms);
}

/* For whom the open round waits. */
static void answer_alive(struct etcd3_office *office, struct etcd3_box *box, int64_t now_ms) {
    char waits[COORDINATOR_TEXT_BYTES_MAX];
    const struct coordinator_message heard = {.kind = COORDINATOR_HEARD,
                                              .text = coordinator_waits_for(office->coordinator, now_ms, waits)};
    send_message(office, box, &heard);
}

static void handle(struct etcd3_office *office, struct etcd3_box *box, const struct coordinator_message *message,
                   int64_t now_ms) {
    struct coordinator *c = office->coordinator;
    if (message->kind == COORDINATOR_JOIN) {
        box->member = coordinator_join(c, box->member, box, &message->node, now_ms);
        return;
    }
    if (!box->member) {
        return; /* it has been refused, or has left */
    }
    switch (message->kind) {
    case COORDINATOR_FAILED:
        coordinator_failed(c, box->member, message->text, now_ms);
        return;
    case COORDINATOR_LEAVE:
        leave(office, box, message->text, now_ms);
        return;
    case COORDINATOR_DONE:
        coordinator_done(c, box->member, now_ms);
        return;
    case COORDINATOR_PREEMPT:
        coordinator_preempt(c, box->member, message->grace_ms, message->text, now_ms);
        return;
    case COORDINATOR_CLOSE:
        coordinator_close(c, box->member, message->text);
        return;
    case COORDINATOR_ALIVE:
        answer_alive(office, box, now_ms);
        return;
    default:
        refuse(office, box,
               status_fail(MUSTER_EPROTOCOL, "%s is not served here", coordinator_kind_name(message->kind)), now_ms);
    }
}

static void read_letter(struct etcd3_office *office, struct etcd3_box *box, struct etcd3_letter *letter,
                        int64_t now_ms) {
    struct coordinator_message message;
    int status = etcd3_mail_receive(&box->mail, letter);
    while (status == MUSTER_OK && etcd3_mail_next(&box->mail, letter, &message, &status)) {
        handle(office, box, &message, now_ms);
    }
    if (status != MUSTER_OK) {
        refuse(office, box, status, now_ms);
    }
    stop_expecting(office, box, now_ms);
}

static int take_value(struct etcd3_office *office, struct kv_slice identity, struct kv_slice value, int64_t now_ms) {
    uint64_t epoch = (uint64_t)office->post.epoch;
    struct etcd3_letter letter;
    struct etcd3_box *box = etcd3_post_find(&office->post, identity);
    box = box ? box : etcd3_post_add(&office->post, identity);
    if (!box) {
        return status_fail(MUSTER_ENOMEM, "no memory for one more agent");
    }
    box->is_seen = true;
    if (etcd3_letter_open(value, &letter) != MUSTER_OK) {
        refuse(office, box, MUSTER_EPROTOCOL, now_ms);
    } else if (letter.epoch == epoch) {
        read_letter(office, box, &letter, now_ms);
    } else if (!box->member && !box->is_expected && letter.epoch < epoch) {
        box->is_expected = true;
        office->expected_count++;
    }
    return MUSTER_OK;
}

/* The agent whose key below from/ it is; empty: no agent's. */
static struct kv_slice identity_of(const struct etcd3_office *office, struct kv_slice key) {
    size_t before = strlen(office->first_key);
    return key.len == before + ETCD3_IDENTITY_CHARS ? kv_slice_of(key.data + before, ETCD3_IDENTITY_CHARS)
                                                    : kv_slice_of(NULL, 0);
}

static int take_pair(struct etcd3_office *office, const struct etcd3_pair *pair, int64_t now_ms) {
    struct kv_slice identity = identity_of(office, pair->key);
    if (identity.len == 0) {
        return MUSTER_OK; /* no agent has written it */
    }
    if (!pair->is_deleted) {
        return take_value(office, identity, pair->value, now_ms);
    }
    struct etcd3_box *box = etcd3_post_find(&office->post, identity);
    if (box) {
        lose_box(office, box, now_ms);
    }
    return MUSTER_OK;
}

int etcd3_office_hear(struct etcd3_office *office, const struct etcd3_pair *pairs, size_t count, int64_t now_ms) {
    int rc = MUSTER_OK;
    for (size_t i = 0; i < count && rc == MUSTER_OK; i++) {
        rc = take_pair(office, &pairs[i], now_ms);
    }
    return rc;
}

/* ---- all of them ---- */

static struct etcd3_box *first_unseen(const struct etcd3_office *office) {
    size_t bucket = 0;
    struct hash_node *node = NULL;
    while ((node = hash_next(&office->post.boxes, &bucket, node)) != NULL && ((struct etcd3_box *)node)->is_seen) {
    }
    return (struct etcd3_box *)node;
}

static void forget_seen(const struct etcd3_office *office) {
    size_t bucket = 0;
    struct hash_node *node = NULL;
    while ((node = hash_next(&office->post.boxes, &bucket, node)) != NULL) {
        ((struct etcd3_box *)node)->is_seen = false;
    }
}

int etcd3_office_read(struct etcd3_office *office, const struct etcd3_pair *pairs, size_t count, int64_t now_ms) {
    forget_seen(office);
    if (!office->has_read) { /* all, until it is known who has written for this leader */
        coordinator_expect(office->coordinator, count, now_ms);
    }
    int rc = etcd3_office_hear(office, pairs, count, now_ms);
    for (struct etcd3_box *box; rc == MUSTER_OK && (box = first_unseen(office)) != NULL;) {
        lose_box(office, box, now_ms);
    }
    office->has_read = true;
    coordinator_expect(office->coordinator, office->expected_count, now_ms);
    return rc;
}

struct etcd3_range etcd3_office_agents(const struct etcd3_office *office) {
    return (struct etcd3_range){.key = kv_slice_text(office->first_key), .end = kv_slice_text(office->end_key)};
}

/* ---- what they are told ---- */

int etcd3_office_write(struct etcd3_office *office, struct buf *out) {
    return etcd3_post_write(&office->post, out);
}

int etcd3_office_written(struct etcd3_office *office, bool has_succeeded, int64_t now_ms) {
    etcd3_post_written(&office->post);
    if (!has_succeeded) {
        return status_fail(MUSTER_ECLOSED, "another node leads the rendezvous now");
    }
    for (struct etcd3_box *box; (box = etcd3_post_next_written(&office->post)) != NULL;) {
        if (box->is_full) { /* a no-op for who is no member any more */
            lose_member(office, box, kv_slice_text("it does not read what it is told"), now_ms);
        }
    }
    return MUSTER_OK;
}

void etcd3_office_tick(struct etcd3_office *office, int64_t now_ms) {
    coordinator_tick(office->coordinator, now_ms);
}

int64_t etcd3_office_wake_ms(const struct etcd3_office *office) {
    return coordinator_wake_ms(office->coordinator);
}

bool etcd3_office_is_quiet(const struct etcd3_office *office) {
    struct coordinator_view view;
    coordinator_look(office->coordinator, &view);
    return etcd3_post_is_idle(&office->post) && (view.phase != COORDINATOR_OVER || office->post.boxes.count <= 1);
}

/* ---- life ---- */

int etcd3_office_create(const struct etcd3_office_settings *settings, struct etcd3_office **out) {
    struct etcd3_office *office = calloc(1, sizeof *office);
    if (!office) {
        return status_fail(MUSTER_ENOMEM, "no memory to lead the rendezvous");
    }
    int rc = coordinator_create(&settings->coordinator, send_message, office, &office->coordinator);
    if (rc != MUSTER_OK) {
        free(office);
        return rc;
    }
    etcd3_post_init(&office->post, settings->root, settings->epoch, settings->lease_id,
                    settings->coordinator.hash_seed);
    office->on_refused = settings->on_refused;
    office->ctx = settings->ctx;
    /* up to the byte after the slash */
    (void)str_format(office->first_key, sizeof office->first_key, "%s/from/", settings->root);
    (void)str_format(office->end_key, sizeof office->end_key, "%s/from0", settings->root);
    *out = office;
    return MUSTER_OK;
}

void etcd3_office_free(struct etcd3_office *office) {
    if (office) {
        coordinator_free(office->coordinator);
        etcd3_post_done(&office->post);
        free(office);
    }
}
