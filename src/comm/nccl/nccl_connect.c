/* How ranks connect their GPUs, and agree through the inner engine; see engine_nccl_impl.h. */
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/nccl/engine_nccl_impl.h"

enum { AGREED_BYTES = 512 };

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

/* What rank 0 tells: the id, or why there is none. */
struct invitation {
    int32_t code;
    struct nccl_id id;
    char sentence[AGREED_BYTES];
};

static void invite(struct nccl_engine *n, struct invitation *out) {
    unsigned result = n->nccl->get_id(&out->id);
    out->code = result == NCCL_OK ? 0 : nccl_fail(n->nccl, result, NULL, "make an id");
    if (out->code) {
        (void)str_format(out->sentence, sizeof out->sentence, "%s", muster_detail());
    }
}

static int take_invitation(struct nccl_engine *n, struct comm_call *part, struct invitation *invitation,
                           int64_t deadline_ns) {
    *part = (struct comm_call){.operation = COMM_BROADCAST,
                               .type = MUSTER_UINT8,
                               .count = sizeof *invitation,
                               .send = invitation,
                               .receive = invitation};
    if (n->rank == 0) {
        invite(n, invitation);
    }
    int code = nccl_run_inner(n, part, NULL, 0, deadline_ns);
    if (code == 0 && invitation->code) {
        invitation->sentence[sizeof invitation->sentence - 1] = '\0';
        code = status_fail(invitation->code, "%s%s", n->rank == 0 ? "" : "rank 0: ", invitation->sentence);
    }
    return code;
}

/* When all have a communicator. A rank that has none does not come, and fails the group. `first`: of the same number.
 */
static int meet(struct nccl_engine *n, const struct comm_call *first, int64_t deadline_ns) {
    struct comm_call part = {.operation = COMM_BARRIER};
    return nccl_run_inner(n, &part, first, 0, deadline_ns);
}

int nccl_connect(struct engine *engine, int64_t deadline_ns) {
    struct nccl_engine *n = nccl_of(engine);
    struct invitation invitation = {0};
    struct comm_call first;
    struct CUctx_st *previous = NULL;
    int code = take_invitation(n, &first, &invitation, deadline_ns);
    if (code) {
        return code;
    }
    code = device_enter(&n->device, &previous);
    if (code == 0) {
        code = nccl_comm_make(n, &invitation.id, deadline_ns);
        device_leave(&n->device, previous);
    }
    return code ? code : meet(n, &first, deadline_ns);
}
