/* Encoders and decoders of the links' bytes; see wire.h. */
#include "comm/p2p/wire.h"

#include <assert.h>
#include <netinet/in.h>
#include <string.h>

#include "base/status.h"

static const uint8_t hello_magic[8] = {'M', 'U', 'S', 'T', 'E', 'R', 'h', WIRE_VERSION};
static const uint8_t answer_magic[8] = {'M', 'U', 'S', 'T', 'E', 'R', 'a', WIRE_VERSION};
static const uint8_t contact_magic[4] = {'M', 'C', 0, WIRE_CONTACT_VERSION}; /* the third is for flags */

enum { CONTACT_FLAGS_AT = 2, CONTACT_TLS = 1 };

/* Compilers make one load or store of each of these where the processor is little-endian. */
static uint16_t get_u16(const uint8_t *in) {
    return (uint16_t)(in[0] | in[1] << 8);
}

uint32_t wire_get_u32(const uint8_t *in) {
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

uint64_t wire_get_u64(const uint8_t *in) {
    return (uint64_t)wire_get_u32(in) | (uint64_t)wire_get_u32(in + 4) << 32;
}

static void put_u16(uint8_t *out, uint16_t value) {
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
}

void wire_put_u32(uint8_t *out, uint32_t value) {
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
    out[2] = (uint8_t)(value >> 16);
    out[3] = (uint8_t)(value >> 24);
}

void wire_put_u64(uint8_t *out, uint64_t value) {
    wire_put_u32(out, (uint32_t)value);
    wire_put_u32(out + 4, (uint32_t)(value >> 32));
}

/* ---- contact ----
 * magic 4 with flags in the third, secret 16, proof 16, host 8, port 2, count 2; then per address: family (4 or 6) 1,
 * bytes 4 or 16, and interface 1. */

enum { CONTACT_FIXED_BYTES = 48 };

static size_t address_encode(const struct net_address *address, uint8_t *out) {
    if (address->sockaddr.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address->sockaddr;
        out[0] = 4;
        memcpy(out + 1, &v4->sin_addr, 4);
        return 5;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address->sockaddr;
    out[0] = 6;
    memcpy(out + 1, &v6->sin6_addr, 16);
    return 17;
}

size_t wire_contact_encode(const struct wire_contact *contact, uint8_t out[WIRE_CONTACT_BYTES_MAX]) {
    assert(contact->address_count <= WIRE_ADDRESSES_MAX);
    memcpy(out, contact_magic, 4);
    out[CONTACT_FLAGS_AT] = contact->speaks_tls ? CONTACT_TLS : 0;
    memcpy(out + 4, contact->secret, WIRE_SECRET_BYTES);
    memcpy(out + 20, contact->proof, WIRE_SECRET_BYTES);
    wire_put_u64(out + 36, contact->host);
    put_u16(out + 44, contact->port);
    put_u16(out + 46, (uint16_t)contact->address_count);
    size_t at = CONTACT_FIXED_BYTES;
    for (uint32_t i = 0; i < contact->address_count; i++) {
        at += address_encode(&contact->addresses[i], out + at);
        out[at++] = contact->interfaces[i];
    }
    return at;
}

/* Returns the bytes used, 0 if they are no address. */
static size_t address_decode(const uint8_t *bytes, size_t len, uint16_t port, struct net_address *out) {
    memset(out, 0, sizeof *out);
    if (len >= 5 && bytes[0] == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&out->sockaddr;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        memcpy(&v4->sin_addr, bytes + 1, 4);
        out->len = sizeof *v4;
        return 5;
    }
    if (len >= 17 && bytes[0] == 6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out->sockaddr;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        memcpy(&v6->sin6_addr, bytes + 1, 16);
        out->len = sizeof *v6;
        return 17;
    }
    return 0;
}

int wire_contact_decode(const uint8_t *bytes, size_t len, struct wire_contact *out) {
    if (len < CONTACT_FIXED_BYTES || len > WIRE_CONTACT_BYTES_MAX || bytes[0] != contact_magic[0] ||
        bytes[1] != contact_magic[1] || bytes[CONTACT_FLAGS_AT] > CONTACT_TLS || bytes[3] != contact_magic[3]) {
        return status_fail(MUSTER_EPROTOCOL, "a rank's contact in the store is not one of this version of muster");
    }
    memset(out, 0, sizeof *out);
    memcpy(out->secret, bytes + 4, WIRE_SECRET_BYTES);
    memcpy(out->proof, bytes + 20, WIRE_SECRET_BYTES);
    out->speaks_tls = bytes[CONTACT_FLAGS_AT] == CONTACT_TLS;
    out->host = wire_get_u64(bytes + 36);
    out->port = get_u16(bytes + 44);
    out->address_count = get_u16(bytes + 46);
    if (out->address_count > WIRE_ADDRESSES_MAX || out->port == 0) {
        return status_fail(MUSTER_EPROTOCOL, "a rank's contact in the store has %u addresses and port %u",
                           (unsigned)out->address_count, (unsigned)out->port);
    }
    size_t at = CONTACT_FIXED_BYTES;
    for (uint32_t i = 0; i < out->address_count; i++) {
        size_t used = address_decode(bytes + at, len - at, out->port, &out->addresses[i]);
        if (used == 0 || at + used == len || bytes[at + used] >= WIRE_ADDRESSES_MAX) {
            return status_fail(MUSTER_EPROTOCOL, "address %u of a rank's contact in the store is damaged", (unsigned)i);
        }
        out->interfaces[i] = bytes[at + used];
        at += used + 1;
    }
    if (at != len) {
        return status_fail(MUSTER_EPROTOCOL, "a rank's contact in the store is %zu bytes too long", len - at);
    }
    return 0;
}

/* ---- handshake ----
 * hello: magic 8, secret 16, from 4, to 4, purpose 1, stream 1, stream_count 1, zeros; answer: magic 8, proof 16,
 * verdict 1, zeros. */

static bool all_zero(const uint8_t *bytes, size_t count) {
    uint8_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        seen |= bytes[i];
    }
    return seen == 0;
}

void wire_hello_encode(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES]) {
    memset(out, 0, WIRE_HELLO_BYTES);
    memcpy(out, hello_magic, 8);
    memcpy(out + 8, hello->secret, WIRE_SECRET_BYTES);
    wire_put_u32(out + 24, hello->from);
    wire_put_u32(out + 28, hello->to);
    out[32] = hello->purpose;
    out[33] = hello->stream;
    out[34] = hello->stream_count;
}

int wire_hello_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *out) {
    if (memcmp(in, hello_magic, 8) != 0) {
        return status_fail(MUSTER_EPROTOCOL, "not the greeting of a rank of this version of muster");
    }
    memcpy(out->secret, in + 8, WIRE_SECRET_BYTES);
    out->from = wire_get_u32(in + 24);
    out->to = wire_get_u32(in + 28);
    out->purpose = in[32];
    out->stream = in[33];
    out->stream_count = in[34];
    if (out->purpose > WIRE_PURPOSE_WATCH || out->stream >= out->stream_count || !all_zero(in + 35, 13)) {
        return status_fail(MUSTER_EPROTOCOL, "the greeting of a rank contradicts itself");
    }
    return 0;
}

void wire_answer_encode(const struct wire_answer *answer, uint8_t out[WIRE_HELLO_BYTES]) {
    memset(out, 0, WIRE_HELLO_BYTES);
    memcpy(out, answer_magic, 8);
    memcpy(out + 8, answer->proof, WIRE_SECRET_BYTES);
    out[24] = answer->verdict;
}

int wire_answer_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_answer *out) {
    if (memcmp(in, answer_magic, 8) != 0 || in[24] > WIRE_USE_MINE || !all_zero(in + 25, 23)) {
        return status_fail(MUSTER_EPROTOCOL, "not the answer of a rank of this version of muster");
    }
    memcpy(out->proof, in + 8, WIRE_SECRET_BYTES);
    out->verdict = in[24];
    return 0;
}

bool wire_secret_equal(const uint8_t a[WIRE_SECRET_BYTES], const uint8_t b[WIRE_SECRET_BYTES]) {
    uint8_t different = 0;
    for (size_t i = 0; i < WIRE_SECRET_BYTES; i++) {
        different |= (uint8_t)(a[i] ^ b[i]);
    }
    return different == 0;
}

/* ---- frames ---- */

void wire_frame_encode(const struct wire_frame *frame, uint8_t out[WIRE_HEADER_BYTES]) {
    out[0] = frame->kind;
    out[1] = frame->lane;
    out[2] = frame->flags;
    out[3] = 0;
    wire_put_u32(out + 4, frame->payload);
    wire_put_u32(out + 8, frame->group);
    wire_put_u32(out + 12, frame->credit);
    wire_put_u64(out + 16, frame->tag);
    wire_put_u64(out + 24, frame->fingerprint);
    wire_put_u64(out + 32, frame->bytes);
    wire_put_u64(out + 40, frame->number);
}

/* Do the lengths fit each other, and the limits? */
static bool lengths_are_sound(const struct wire_frame *frame) {
    switch (frame->kind) {
    case WIRE_BEGIN:
        if (frame->flags & WIRE_READABLE) {
            return frame->payload == (frame->flags & WIRE_SHARED ? WIRE_SHARED_BYTES : WIRE_READABLE_BYTES) &&
                   frame->bytes <= WIRE_MESSAGE_BYTES_MAX;
        }
        return frame->payload <= WIRE_PIECE_BYTES_MAX && frame->payload <= frame->bytes &&
               (frame->payload == frame->bytes || frame->payload % WIRE_ALIGNMENT == 0) &&
               frame->bytes <= WIRE_MESSAGE_BYTES_MAX;
    case WIRE_DATA:
        return frame->payload > 0 && frame->payload <= WIRE_PIECE_BYTES_MAX && frame->tag <= WIRE_MESSAGE_BYTES_MAX &&
               frame->tag % WIRE_ALIGNMENT == 0;
    case WIRE_CLEAR:
        return frame->payload == 0 && frame->tag <= WIRE_MESSAGE_BYTES_MAX && frame->tag % WIRE_ALIGNMENT == 0;
    case WIRE_NOTICE:
        return frame->payload <= WIRE_NOTICE_BYTES_MAX;
    default:
        return frame->payload == 0;
    }
}

static unsigned flags_of(uint8_t kind) {
    return kind == WIRE_BEGIN ? WIRE_READABLE | WIRE_SHARED : kind == WIRE_DATA ? WIRE_AWAITED : 0;
}

int wire_frame_decode(const uint8_t in[WIRE_HEADER_BYTES], struct wire_frame *out) {
    out->kind = in[0];
    out->lane = in[1];
    out->flags = in[2];
    out->reserved = in[3];
    out->payload = wire_get_u32(in + 4);
    out->group = wire_get_u32(in + 8);
    out->credit = wire_get_u32(in + 12);
    out->tag = wire_get_u64(in + 16);
    out->fingerprint = wire_get_u64(in + 24);
    out->bytes = wire_get_u64(in + 32);
    out->number = wire_get_u64(in + 40);
    if (out->kind < WIRE_BEGIN || out->kind > WIRE_LEFT || out->lane > 1 || out->reserved != 0 ||
        (out->flags & ~flags_of(out->kind)) != 0 || out->flags == WIRE_SHARED) {
        return status_fail(MUSTER_EPROTOCOL, "a frame of kind %u, lane %u, flags %u", out->kind, out->lane, out->flags);
    }
    if (!lengths_are_sound(out)) {
        return status_fail(MUSTER_EPROTOCOL, "a frame '%s' of %u bytes, message of %llu", wire_kind_name(out->kind),
                           (unsigned)out->payload, (unsigned long long)out->bytes);
    }
    return 0;
}

const char *wire_kind_name(uint8_t kind) {
    switch (kind) {
#define WIRE_FRAME_CASE(name, value, text)                                                                             \
    case name:                                                                                                         \
        return text;
        WIRE_FRAME_TABLE(WIRE_FRAME_CASE)
#undef WIRE_FRAME_CASE
    default:
        return "unknown";
    }
}
