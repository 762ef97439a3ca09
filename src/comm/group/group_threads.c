/* Two threads that use one group at the same time: a mistake of the program, which would otherwise show as calls that
 * do not fit together, or as a time-out that blames other ranks. See group_impl.h. */
#include "comm/group/group_impl.h"

#include "base/status.h"
#include "base/str.h"

static const char advice[] = "give each thread a group of its own (muster_group_split())";

/* Nothing has been begun: the other thread's call goes on. */
int group_refuse_thread(const struct muster_group *group, const char *operation) {
    return status_fail(MUSTER_EINVAL,
                       "%s: another thread is in a call on group '%s'; one thread at a time may use a group: %s",
                       operation, group->name, advice);
}

/* Both calls have run in each other's way. */
int group_blame_threads(struct muster_group *group) {
    char sentence[MUSTER_GROUP_NAME_MAX + 160];
    (void)str_format(sentence, sizeof sentence, "rank %u: two threads were in calls on group '%s' at the same time: %s",
                     group->rank, group->name, advice);
    (void)group_fail(group, MUSTER_EINVAL, sentence, NULL);
    return failure_tell(&group->failure);
}
