/* For tests: every collective as a function of the group, with buffers of its own. Rank 1 is the one that all, or rank
 * 0 at least, need: it is the root where data comes from a root. */
#ifndef COMM_GROUP_TEST_SUPPORT_H
#define COMM_GROUP_TEST_SUPPORT_H

#include <stdbool.h>

#include <muster/collective.h>

enum { TEST_COUNT = 4096 };
extern float test_send[8 * TEST_COUNT], test_receive[8 * TEST_COUNT];

struct test_collective {
    const char *name;
    int (*call)(struct muster_group *group, struct muster_work **work);
    bool needs_all; /* no rank can end it without rank 1; otherwise rank 0, at least, cannot */
};
enum { TEST_COLLECTIVE_COUNT = 11 };
extern const struct test_collective test_collectives[TEST_COLLECTIVE_COUNT];

/* For ranks_start(): calls the collective, its argument (a struct test_collective), until it fails with MUSTER_EPEER;
 * reports the sentence. TEST_MARK_READY: the group is there. */
enum { TEST_MARK_READY = 1 };
struct rank;
int test_call_for_ever(struct rank *rank, void *argument);
/* Calls every collective once, and leaves. */
int test_leave_in_good_order(struct rank *rank, void *argument);

int test_barrier(struct muster_group *group, struct muster_work **work);
int test_all_reduce(struct muster_group *group, struct muster_work **work);

#endif
