/* The bytes of links between processes: the handshake of a connection, the header of a frame, the contact that a
 * process leaves in the store. Encoders and decoders side by side; pure. docs/formats/wire.md describes them.
 *
 * All numbers are little-endian. Every length is checked here, before anybody takes memory for it. */
#ifndef COMM_WIRE_H
#define COMM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/endpoint.h"

#define WIRE_VERSION 1u
#define WIRE_CONTACT_VERSION 2u /* 1 had no interfaces */
#define WIRE_SECRET_BYTES 16u
#define WIRE_HELLO_BYTES 48u  /* also of the answer */
#define WIRE_HEADER_BYTES 48u /* of a frame */
#define WIRE_NOTICE_BYTES_MAX 512u
#define WIRE_PIECE_BYTES_MAX ((uint32_t)1 << 20) /* payload of one frame */
#define WIRE_ALIGNMENT 8u                        /* pieces of a message begin at multiples */
#define WIRE_MESSAGE_BYTES_MAX ((uint64_t)1 << 40)
#define WIRE_ADDRESSES_MAX 8u
#define WIRE_CONTACT_BYTES_MAX 512u

/* ---- contact: how a process is reached ---- */

struct wire_contact {
    uint8_t secret[WIRE_SECRET_BYTES]; /* what a caller presents */
    uint8_t proof[WIRE_SECRET_BYTES];  /* what the process answers, so that the caller knows whom it reached */
    uint64_t host;                     /* equal for processes that share a loopback interface */
    bool speaks_tls;
    uint16_t port;
    uint32_t address_count;
    struct net_address addresses[WIRE_ADDRESSES_MAX]; /* with the port */
    uint8_t interfaces[WIRE_ADDRESSES_MAX];           /* of each: which of the process's it is, numbered from 0 */
};

size_t wire_contact_encode(const struct wire_contact *contact, uint8_t out[WIRE_CONTACT_BYTES_MAX]);
/* MUSTER_EPROTOCOL */
int wire_contact_decode(const uint8_t *bytes, size_t len, struct wire_contact *out);

/* ---- handshake ---- */

enum wire_purpose { WIRE_PURPOSE_STREAM = 0, WIRE_PURPOSE_WATCH = 1 };

struct wire_hello {
    uint8_t secret[WIRE_SECRET_BYTES];
    uint32_t from, to; /* root ranks */
    uint8_t purpose;
    uint8_t stream; /* of stream_count */
    uint8_t stream_count;
};

void wire_hello_encode(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES]);
/* MUSTER_EPROTOCOL: not ours, or another version. */
int wire_hello_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *out);

enum wire_verdict {
    WIRE_WELCOME = 0,
    WIRE_USE_MINE = 1 /* both sides connected at the same time: that of the lower rank stays */
};

struct wire_answer {
    uint8_t proof[WIRE_SECRET_BYTES];
    uint8_t verdict;
};

void wire_answer_encode(const struct wire_answer *answer, uint8_t out[WIRE_HELLO_BYTES]);
int wire_answer_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_answer *out);

/* Takes the same time wherever the bytes differ. */
bool wire_secret_equal(const uint8_t a[WIRE_SECRET_BYTES], const uint8_t b[WIRE_SECRET_BYTES]);

/* ---- frames ---- */

#define WIRE_FRAME_TABLE(X)                                                                                            \
    X(WIRE_BEGIN, 1, "begin")       /* a message: its envelope, and as much of it as goes at once */                   \
    X(WIRE_CLEAR, 2, "clear")       /* the receiver is ready for the rest */                                           \
    X(WIRE_DATA, 3, "data")         /* a piece of the rest */                                                          \
    X(WIRE_FINISHED, 4, "finished") /* the receiver has read the rest out of the sender's memory */                    \
    X(WIRE_CREDIT, 5, "credit")     /* nothing but the credit that every header carries */                             \
    X(WIRE_NOTICE, 6, "notice")     /* a death or a failed group, for everybody */                                     \
    X(WIRE_GOODBYE, 7, "goodbye")   /* the last frame of a stream */                                                   \
    X(WIRE_CALL, 8, "call")         /* which call the sender is in, waiting for the receiver */                        \
    X(WIRE_LEFT, 9, "left")         /* the sender has freed a group: nothing more of it comes */

enum wire_kind {
#define WIRE_FRAME_ENUM(name, value, text) name = (value),
    WIRE_FRAME_TABLE(WIRE_FRAME_ENUM)
#undef WIRE_FRAME_ENUM
};

/* Which fields count depends on the kind; the others are 0. */
struct wire_frame {
    uint8_t kind;
    uint8_t lane;         /* which the credit is for, too */
    uint8_t flags;        /* WIRE_READABLE, WIRE_SHARED, WIRE_AWAITED */
    uint8_t reserved;     /* 0 */
    uint32_t payload;     /* bytes that follow the header */
    uint32_t group;       /* BEGIN, NOTICE: subject */
    uint32_t credit;      /* bytes of this lane that the sender of the frame has taken in since the link began */
    uint64_t tag;         /* BEGIN; DATA, CLEAR: offset; NOTICE: origin, code */
    uint64_t fingerprint; /* BEGIN; CLEAR: the clearing side's number of the message */
    uint64_t bytes;       /* BEGIN: of the whole message; NOTICE: kind */
    uint64_t number;      /* BEGIN: the sender's number of the message (low half), with WIRE_READABLE see below;
                           * CLEAR, FINISHED: that number; DATA: the receiver's */
};

/* BEGIN between processes of one host: the payload begins with the address (8 bytes) of the message in the sender's
 * memory and the sender's count of withdrawn messages (8 bytes), and the receiver may read it there. */
#define WIRE_READABLE 1u
#define WIRE_READABLE_BYTES 16u
/* Beside WIRE_READABLE: it lies in memory that the two share. In the address's place stands the offset in an
 * allocation, and behind the count which allocation that is: its number and generation (4 bytes each). */
#define WIRE_SHARED 2u
#define WIRE_SHARED_BYTES 24u

/* DATA: the sender's kernel reads the payload where it lies until the receiver's has acknowledged it, and more of the
 * message waits for that: without delay, please. */
#define WIRE_AWAITED 4u

void wire_frame_encode(const struct wire_frame *frame, uint8_t out[WIRE_HEADER_BYTES]);
/* Checks kind, lane, flags, and lengths that contradict each other. MUSTER_EPROTOCOL. */
int wire_frame_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_frame *out);
const char *wire_kind_name(uint8_t kind);

uint32_t wire_get_u32(const uint8_t *in);
void wire_put_u32(uint8_t *out, uint32_t value);
uint64_t wire_get_u64(const uint8_t *in);
void wire_put_u64(uint8_t *out, uint64_t value);

#endif
