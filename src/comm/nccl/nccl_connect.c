/* How ranks connect their GPUs, and agree through the inner engine; see engine_nccl_impl.h. */
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/nccl/engine_nccl_impl.h"

int nccl_run_inner(struct nccl_engine *n, struct comm_call *part, const struct comm_call *whole, uint64_t number,
                   int64_t deadline_ns) {
    comm_call_prepare(part, n->size);
    part->fingerprint = whole ? whole->fingerprint : part->fingerprint;
    int code = n->host->table->start(n->host, part, number, deadline_ns);
    while (code == ENGINE_UNDER_WAY && clock_monotonic_ns() < deadline_ns) {
        code = n->host->table->test(n->host, CLOCK_NS_PER_MS);
    }
    return code == ENGINE_UNDER_WAY ? status_fail(MUSTER_ETIMEOUT, "the ranks did not agree in time") : code;
}

/* ---- talk, while the group's members connect ---- */

struct inner_talk {
    struct nccl_engine *n;
    const struct comm_call *whole; /* all of it has one number, and so one fingerprint */
    int64_t deadline_ns;
};

static int inner_greatest(void *context, int32_t own, int32_t *out) {
    const struct inner_talk *talk = context;
    struct comm_call part = {.operation = COMM_ALL_REDUCE,
                             .type = MUSTER_INT32,
                             .reduction = MUSTER_OP_MAX,
                             .count = 1,
                             .send = &own,
                             .receive = out};
    return nccl_run_inner(talk->n, &part, talk->whole, 0, talk->deadline_ns);
}

static int inner_tell(void *context, void *bytes, size_t count) {
    const struct inner_talk *talk = context;
    struct comm_call part = {
        .operation = COMM_BROADCAST, .type = MUSTER_UINT8, .count = count, .send = bytes, .receive = bytes};
    return nccl_run_inner(talk->n, &part, talk->whole, 0, talk->deadline_ns);
}

/* ---- connecting ---- */

/* Until all have a communicator. A rank that has none does not come, and fails the group. */
static int connect_anew(struct nccl_engine *n, const struct engine_talk *talk, int64_t deadline_ns) {
    struct nccl_id id;
    int32_t unused = 0;
    int code = nccl_share_id(n, talk, &id);
    code = code ? code : nccl_comm_make(n, &id, deadline_ns);
    return code ? code : talk->greatest(talk->context, 0, &unused);
}

/* Shrinking has half of the time, so that the other way has some, too. */
static int connect_now(struct nccl_engine *n, const struct engine_talk *talk, int64_t deadline_ns) {
    int64_t now_ns = clock_monotonic_ns();
    int code = n->failed ? nccl_shrink(n, talk, now_ns + (deadline_ns - now_ns) / 2) : 0;
    return code || n->comm ? code : connect_anew(n, talk, deadline_ns);
}

int nccl_connect(struct engine *engine, int64_t deadline_ns) {
    struct nccl_engine *n = nccl_of(engine);
    struct comm_call whole = {.operation = COMM_BARRIER};
    struct inner_talk inner = {n, &whole, deadline_ns};
    const struct engine_talk talk = {inner_greatest, inner_tell, &inner};
    struct CUctx_st *previous = NULL;
    if (n->comm) { /* derived: all have theirs */
        return 0;
    }
    comm_call_prepare(&whole, n->size);
    int code = device_enter(&n->device, &previous);
    if (code == 0) {
        code = connect_now(n, &talk, deadline_ns);
        device_leave(&n->device, previous);
    }
    /* Who aborts the group has it, and so has seen all come: the program hears of it in its first call. The links may
     * know of the abort before the group does. */
    return code == MUSTER_EABORTED && n->comm ? 0 : code;
}
