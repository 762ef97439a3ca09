/* Reads the rendezvous state from a pickle, as data: base/formats/unpickle.c makes a tree of it, in which only five
 * classes may be named, and pickle_state.c a state of the tree. */
#include <assert.h>

#include "base/base64.h"
#include "base/status.h"
#include "rendezvous/torch/pickle.h"
#include "rendezvous/torch/pickle_impl.h"

/* A writer needs at most ten memo slots a node, and twelve items of dicts and tuples. */
enum { PICKLE_VALUES_MAX = 16 * RDZV_NODES_MAX + 64 };

static const struct unpickle_class classes[] = {
    {PICKLE_MODULE, "_RendezvousState", PICKLE_STATE, 0}, {PICKLE_MODULE, "_NodeDesc", PICKLE_NODE, 0},
    {"datetime", "datetime", PICKLE_DATETIME, 0},         {"datetime", "timezone", PICKLE_TIMEZONE, 0},
    {"datetime", "timedelta", PICKLE_TIMEDELTA, 0},
};

int pickle_read(const uint8_t *bytes, size_t len, struct rdzv_state *out) {
    if (len > PICKLE_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a rendezvous state of %zu bytes is refused", len);
    }
    assert(bytes || len == 0);
    struct unpickled tree = {.item_count = 0};
    struct rdzv_state state;
    rdzv_state_init(&state);
    int rc = unpickle(bytes, len, (struct unpickle_classes){.list = classes, .count = sizeof classes / sizeof *classes},
                      PICKLE_VALUES_MAX, &tree);
    rc = rc ? status_prefix(rc, "the rendezvous state is no such pickle") : pickle_tree_state(&tree, &state);
    unpickled_done(&tree);
    if (rc != MUSTER_OK) {
        rdzv_state_done(&state);
        return rc;
    }
    rdzv_state_done(out);
    *out = state;
    return MUSTER_OK;
}

int pickle_read_text(const uint8_t *text, size_t len, struct rdzv_state *out) {
    struct buf pickle;
    buf_init(&pickle, PICKLE_BYTES_MAX);
    int rc = base64_decode(text, len, &pickle);
    if (rc == MUSTER_OK) {
        rc = pickle_read(buf_bytes(&pickle), pickle.len, out);
    }
    buf_done(&pickle);
    return rc;
}
