/* What agents and the coordinator of the native rendezvous send each other: the first byte says whose side (its lowest
 * bit), the rest is a stream of frames. What is accepted is within range: written again, it gives the very same bytes.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/wire/coordinator_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct coordinator_message *message, const uint8_t *frame, size_t len) {
    struct buf again;
    assert(len <= COORDINATOR_FRAME_BYTES_MAX);
    buf_init(&again, COORDINATOR_FRAME_BYTES_MAX);
    int code = coordinator_wire_put(&again, message);
    assert(code == 0 && again.len == len && memcmp(buf_bytes(&again), frame, len) == 0);
    buf_done(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct coordinator_message message;
    bool from_agent = size > 0 && data[0] % 2 == 0;
    size_t used = 0;
    for (size_t at = size > 0; at < size; at += used) {
        if (coordinator_wire_get(data + at, size - at, from_agent, &message, &used) != COORDINATOR_COMPLETE) {
            break;
        }
        assert(used > 0 && used <= size - at);
        check(&message, data + at, used);
    }
    return 0;
}
