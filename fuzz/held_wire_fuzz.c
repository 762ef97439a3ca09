/* Requests for held memory, and answers: what is read is written as it was, byte by byte. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/held/held_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct held_request request;
    enum held_verdict verdict;
    uint8_t again[HELD_REQUEST_BYTES];
    if (held_request_decode(data, size, &request)) {
        assert(held_name_is_valid(request.name));
        held_request_encode(&request, again);
        assert(size == sizeof again && memcmp(again, data, size) == 0);
    }
    if (held_answer_decode(data, size, &verdict)) {
        held_answer_encode(verdict, again);
        assert(size == HELD_ANSWER_BYTES && memcmp(again, data, size) == 0);
    }
    return 0;
}
