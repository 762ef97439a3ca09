/* Messages of coordinator_wire.h as values of keys: a key has one writer and one reader, who may see some of its
 * values and not others. So a value holds all messages that the other side has not said it has
 * (docs/formats/etcd-v3.md).
 *
 * Each side has one `struct etcd3_mail` for the pair of keys: what it writes goes into the one, what it reads comes
 * from the other. Pure. */
#ifndef RENDEZVOUS_ETCD3_MAIL_H
#define RENDEZVOUS_ETCD3_MAIL_H

#include "rendezvous/coordinator_wire.h"

/* A value; far below the 1.5 MiB that etcd takes. Nobody has more than a handful of messages to say in a row. */
#define ETCD3_MAIL_BYTES_MAX ((size_t)64 * 1024)

struct etcd3_mail {
    uint64_t epoch;    /* of the leader: its key's create_revision. Letters of another one are not taken */
    uint64_t taken;    /* number of the last message that was read */
    uint64_t first;    /* number of the first in `frames` */
    struct buf frames; /* written, and perhaps not read yet */
    bool from_agent;   /* the side that writes with this */
};

void etcd3_mail_init(struct etcd3_mail *mail, uint64_t epoch, bool from_agent);
void etcd3_mail_done(struct etcd3_mail *mail);

/* MUSTER_ELIMIT (the other side reads nothing), and what coordinator_wire_put() says. */
int etcd3_mail_add(struct etcd3_mail *mail, const struct coordinator_message *message);

/* Appends the value to be written now. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int etcd3_mail_put(const struct etcd3_mail *mail, struct buf *out);

/* A value that was read, opened. Points into the value. */
struct etcd3_letter {
    uint64_t epoch, taken, first;
    struct kv_slice frames;
};
/* MUSTER_EPROTOCOL. */
int etcd3_letter_open(struct kv_slice value, struct etcd3_letter *out);

/* Forgets what the other side has. MUSTER_EPROTOCOL: messages are missing between the last one taken and these, or it
 * has taken what was never written. Only for letters of the mail's epoch. */
int etcd3_mail_receive(struct etcd3_mail *mail, const struct etcd3_letter *letter);
/* The next message that has not been taken yet: true, and *out points into the letter. False with *status 0 when there
 * is none, or MUSTER_EPROTOCOL. */
bool etcd3_mail_next(struct etcd3_mail *mail, struct etcd3_letter *letter, struct coordinator_message *out,
                     int *status);

#endif
