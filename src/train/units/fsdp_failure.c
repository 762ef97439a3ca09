/* A failure of an fsdp: remembered, and told to all ranks, in whatever group they wait. */
#include "base/status.h"
#include "base/str.h"
#include "train/units/fsdp_virtual.h"

/* Keeps the thread's detail. */
static void tell_mesh(const struct muster_fsdp *fsdp, int code) {
    char detail[MUSTER_DETAIL_MAX];
    (void)str_copy(detail, sizeof detail, muster_detail());
    mesh_abort(&fsdp->mesh, detail);
    fsdp_virtual_abort(fsdp, detail);
    (void)status_fail(code, "%s", detail);
}

/* A call that comes after the failure of its group says only that there is one: with which code did it fail? */
static int code_of_group(const struct muster_fsdp *fsdp) {
    const struct mesh *mesh = &fsdp->mesh;
    const struct fsdp_virtual *v = fsdp->virtual;
    struct muster_group *const groups[] = {v ? v->hosts_group : NULL,
                                           v ? v->members_group : NULL,
                                           mesh->column_group,
                                           mesh->row_group,
                                           mesh->shard,
                                           mesh->group};
    int code = MUSTER_OK;
    for (size_t i = 0; code == MUSTER_OK && i < sizeof groups / sizeof *groups; i++) {
        code = groups[i] ? muster_group_status(groups[i]) : MUSTER_OK;
    }
    return code ? code : MUSTER_EGROUP;
}

/* Another rank has told this one in a group of some ranks. The program's group, which has all of them, may know more.
 */
static int first_cause(const struct muster_fsdp *fsdp, int code) {
    char detail[MUSTER_DETAIL_MAX];
    (void)str_copy(detail, sizeof detail, muster_detail());
    code = code == MUSTER_EGROUP ? code_of_group(fsdp) : code;
    int cause = code == MUSTER_EABORTED ? muster_group_status(fsdp->mesh.group) : MUSTER_OK;
    return cause ? cause : status_fail(code, "%s", detail);
}

int fsdp_fail(struct muster_fsdp *fsdp, int code) {
    code = step_failure_set(&fsdp->failure, fsdp->mesh.group, first_cause(fsdp, code));
    tell_mesh(fsdp, code);
    return code;
}

int fsdp_fail_unagreed(struct muster_fsdp *fsdp, int code) {
    code = step_failure_set_unagreed(&fsdp->failure, fsdp->mesh.group, first_cause(fsdp, code));
    tell_mesh(fsdp, code);
    return code;
}
