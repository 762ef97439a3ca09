/* The order of units with uneven inputs between hosts. Ranks choose slots by the units that they acquire and hold. One
 * that is out of data would choose others than its neighbours, unless these go through the list as it does. */
#include "base/status.h"
#include "train/units/fsdp_impl.h"

static bool is_kept(const struct muster_fsdp *fsdp) {
    return fsdp->options.uneven_inputs && fsdp_gathers(fsdp) && fsdp->kind != MUSTER_FSDP_EVALUATE;
}

/* By induction a look at the neighbour is enough. */
static bool is_turn(const struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass) {
    const struct fsdp_unit *it = &fsdp->units[unit];
    bool is_last = unit + 1 == fsdp->unit_count;
    if (pass == MUSTER_FSDP_FORWARD) {
        return it->forward_count == 0 && (unit == 0 || (it[-1].forward_count == 1 && it[-1].held == 0));
    }
    bool is_next = is_last ? it->forward_count == 1 : it[1].backward_count == 1 && it[1].held == 0;
    return is_next && it->backward_count == 0 && it->held == 0;
}

int fsdp_order_check_use(const struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass) {
    if (!is_kept(fsdp) || is_turn(fsdp, unit, pass)) {
        return MUSTER_OK;
    }
    return status_fail(MUSTER_EINVAL,
                       "with uneven_inputs between hosts units are used in the order of the list, one at a time, and "
                       "backwards: it is not the turn of unit %u (%s) in the %s pass",
                       unit, fsdp->units[unit].name, pass == MUSTER_FSDP_FORWARD ? "forward" : "backward");
}

int fsdp_order_check_end(const struct muster_fsdp *fsdp) {
    if (!is_kept(fsdp) || fsdp->units[0].backward_count == 1) {
        return MUSTER_OK;
    }
    return status_fail(MUSTER_EINVAL,
                       "with uneven_inputs between hosts every unit is used in both passes, also one that is frozen: "
                       "unit 0 (%s) was not used in the backward pass",
                       fsdp->units[0].name);
}
