/* Every collective as a function; see group_test_support.h. */
#include "comm/group/group_test_support.h"

#include "comm/group/ranks_test_support.h"

float test_send[8 * TEST_COUNT], test_receive[8 * TEST_COUNT];

int test_barrier(struct muster_group *g, struct muster_work **w) {
    return muster_barrier(g, w);
}
static int do_monitored_barrier(struct muster_group *g, struct muster_work **w) {
    (void)w;
    return muster_monitored_barrier(g, RANKS_PATIENCE_MS);
}
int test_all_reduce(struct muster_group *g, struct muster_work **w) {
    return muster_all_reduce(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, w);
}
static int do_large_all_reduce(struct muster_group *g, struct muster_work **w) {
    return muster_all_reduce(g, test_send, test_receive, 8 * TEST_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, w);
}
static int do_reduce(struct muster_group *g, struct muster_work **w) {
    return muster_reduce(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, 0, w);
}
static int do_broadcast_from_victim(struct muster_group *g, struct muster_work **w) {
    return muster_broadcast(g, test_send, TEST_COUNT, MUSTER_FLOAT32, 1, w);
}
static int do_all_gather(struct muster_group *g, struct muster_work **w) {
    return muster_all_gather(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, w);
}
static int do_gather(struct muster_group *g, struct muster_work **w) {
    return muster_gather(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, 0, w);
}
static int do_scatter_from_victim(struct muster_group *g, struct muster_work **w) {
    return muster_scatter(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, 1, w);
}
static int do_reduce_scatter(struct muster_group *g, struct muster_work **w) {
    return muster_reduce_scatter(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, w);
}
static int do_all_to_all(struct muster_group *g, struct muster_work **w) {
    return muster_all_to_all(g, test_send, test_receive, TEST_COUNT, MUSTER_FLOAT32, w);
}

const struct test_collective test_collectives[TEST_COLLECTIVE_COUNT] = {
    {"barrier", test_barrier, true},
    {"monitored_barrier", do_monitored_barrier, true},
    {"all_reduce", test_all_reduce, true},
    {"all_reduce", do_large_all_reduce, true},
    {"reduce", do_reduce, false},
    {"broadcast", do_broadcast_from_victim, true},
    {"all_gather", do_all_gather, true},
    {"gather", do_gather, false},
    {"scatter", do_scatter_from_victim, true},
    {"reduce_scatter", do_reduce_scatter, true},
    {"all_to_all", do_all_to_all, true},
};

int test_call_for_ever(struct rank *rank, void *argument) {
    const struct test_collective *collective = argument;
    struct muster_group *group = rank_group(rank, NULL);
    int code = 0;
    rank_mark(rank, TEST_MARK_READY);
    while (code == 0) {
        code = collective->call(group, NULL);
    }
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EPEER);
    muster_group_free(group);
    return 0;
}

int test_leave_in_good_order(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (int i = 0; i < TEST_COLLECTIVE_COUNT; i++) {
        rank_check_code(rank, test_collectives[i].call(group, NULL), 0);
    }
    muster_group_free(group);
    return 0;
}
