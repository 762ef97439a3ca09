/* What an etcd says over HTTP: a stream of answers, cut into objects, each read; and the values that agents write
 * there. The first byte says which (its lowest bit). Objects end at the same places however the stream comes in pieces.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/etcd/etcd3_wire.h"
#include "rendezvous/finder/lease_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_object(const uint8_t *text, size_t len) {
    struct etcd3_reply reply;
    if (etcd3_wire_get(text, len, &reply) != 0) {
        return;
    }
    assert(strlen(reply.error_text) < sizeof reply.error_text && strlen(reply.token) < sizeof reply.token);
    for (size_t i = 0; i < reply.pair_count; i++) {
        assert(reply.pairs[i].key.len + reply.pairs[i].value.len <= len);
    }
    etcd3_reply_done(&reply);
}

/* As it comes in pieces of `piece` bytes; the sum of where objects end. */
static size_t read_stream(const uint8_t *text, size_t len, size_t piece, int reads) {
    struct etcd3_splitter splitter = {.seen = 0};
    size_t at = 0, sum = 0, used = 0;
    enum etcd3_split split = ETCD3_MORE;
    for (size_t have = 0; have < len && split != ETCD3_MALFORMED;) {
        have = len - have > piece ? have + piece : len;
        while ((split = etcd3_wire_split(&splitter, text + at, have - at, &used)) == ETCD3_COMPLETE) {
            assert(used > 0 && used <= have - at);
            if (reads) {
                read_object(text + at, used);
            }
            at += used;
            sum += at;
            splitter = (struct etcd3_splitter){.seen = 0};
        }
    }
    return sum;
}

/* What is read is written as the same again. */
static void read_value(const uint8_t *bytes, size_t len) {
    struct lease_leader leader, leader_again;
    struct lease_world world, world_again;
    struct buf out;
    buf_init(&out, LEASE_VALUE_MAX);
    if (lease_leader_get(kv_slice_of(bytes, len), &leader) == 0) {
        assert(lease_leader_put(&leader, &out) == 0);
        assert(lease_leader_get(kv_slice_of(buf_bytes(&out), out.len), &leader_again) == 0);
        assert(leader.identity[1] == leader_again.identity[1] && leader.place.port == leader_again.place.port);
    }
    buf_clear(&out);
    if (lease_world_get(kv_slice_of(bytes, len), &world) == 0) {
        assert(lease_world_put(&world, &out) == 0);
        assert(lease_world_get(kv_slice_of(buf_bytes(&out), out.len), &world_again) == 0);
        assert(world.record.round == world_again.record.round && world.record.size == world_again.record.size);
    }
    buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    if (data[0] % 2 == 0) {
        size_t whole = read_stream(data + 1, size - 1, size, 1);
        size_t piecewise = read_stream(data + 1, size - 1, 1 + data[0] / 2, 0);
        assert(whole == piecewise);
        read_object(data + 1, size - 1);
    } else {
        read_value(data + 1, size - 1);
    }
    return 0;
}
