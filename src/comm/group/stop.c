/* Whether the launcher wants this job to stop, as all ranks agree; see muster/stop.h. */
#include <muster/stop.h>

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <muster/collective.h>

#include "base/status.h"

int muster_stop_requested(struct muster_group *group, bool *stop) {
    if (!stop) {
        return status_fail_null("muster_stop_requested", "stop");
    }
    const char *path = getenv("MUSTER_STOP_PATH");
    int32_t asked = path != NULL && path[0] != '\0' && access(path, F_OK) == 0;
    int status = MUSTER_OK;
    if (group != NULL) {
        status = muster_all_reduce(group, &asked, &asked, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL);
    }
    if (status == MUSTER_OK) {
        *stop = asked != 0;
    }
    return status;
}
