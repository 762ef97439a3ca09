/* Fuzzes the reader of rendezvous states: what it accepts must survive a round trip through our writer. */
#include <assert.h>
#include <stdint.h>

#include "rendezvous/torch/pickle.h"

#include <muster/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rdzv_state state;
    struct rdzv_state again;
    struct buf text;
    rdzv_state_init(&state);
    rdzv_state_init(&again);
    buf_init(&text, PICKLE_BYTES_MAX);
    /* A leading 'T' says that the rest is the text of a pickle. */
    bool is_text = size > 0 && data[0] == 'T';
    int rc = is_text ? pickle_read_text(data + 1, size - 1, &state) : pickle_read(data, size, &state);
    if (rc == MUSTER_OK && pickle_write_text(&state, &text) == MUSTER_OK) {
        rc = pickle_read_text(buf_bytes(&text), text.len, &again);
        assert(rc == MUSTER_OK);
        assert(rdzv_state_equal(&state, &again));
    }
    buf_done(&text);
    rdzv_state_done(&again);
    rdzv_state_done(&state);
    return 0;
}
