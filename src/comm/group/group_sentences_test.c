/* What each rank reads when a call of a group fails: the group and the call by name, whether the ranks share memory or
 * talk over TCP, and whichever rank found it out. */
#include <muster/collective.h>
#include <muster/group.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/mark.h"
#include "comm/group/ranks_test_support.h"

enum { SIZE = 4, VICTIM = 1, COUNT = 4, ROOM = 64 };

/* ---- where ranks run ---- */

static const uint32_t separate[] = {0, 1, 2, 3}, pairs[] = {0, 0, 1, 1}, crossed[] = {0, 1, 0, 1};
struct layout {
    const char *name;
    struct ranks_options options;
    bool without_memory; /* all on one host, but nothing shared */
};
static const struct layout layouts[] = {
    {"one host", {.host_of = NULL}, false},         {"one host over TCP", {.host_of = NULL}, true},
    {"hosts of one", {.host_of = separate}, false}, {"hosts of two", {.host_of = pairs}, false},
    {"crossed hosts", {.host_of = crossed}, false},
};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

/* ---- calls of which one is another on rank 1 ---- */

static float from[ROOM], to[ROOM];

static int call_barrier(struct muster_group *group) {
    return muster_barrier(group, NULL);
}
static int call_reduce_4(struct muster_group *group) {
    return muster_all_reduce(group, from, to, 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}
static int call_reduce_5(struct muster_group *group) {
    return muster_all_reduce(group, from, to, 5, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}
static int call_scan(struct muster_group *group) {
    return muster_scan(group, from, to, COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}
static int call_exscan(struct muster_group *group) {
    return muster_exscan(group, from, to, COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}
static int call_gather_to_0(struct muster_group *group) {
    return muster_gather(group, from, to, COUNT, MUSTER_FLOAT32, 0, NULL);
}
static int call_broadcast_from_0(struct muster_group *group) {
    return muster_broadcast(group, to, COUNT, MUSTER_FLOAT32, 0, NULL);
}
static int call_broadcast_from_1(struct muster_group *group) {
    return muster_broadcast(group, to, COUNT, MUSTER_FLOAT32, 1, NULL);
}
static int exchange_blocks(struct muster_group *group, size_t count) {
    size_t counts[SIZE];
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        counts[rank] = count;
    }
    return muster_all_to_all_v(group, from, counts, to, counts, MUSTER_FLOAT32, NULL);
}
static int call_blocks_of_2(struct muster_group *group) {
    return exchange_blocks(group, 2);
}
static int call_blocks_of_3(struct muster_group *group) {
    return exchange_blocks(group, 3);
}
/* Of equal counts per rank, and about different units. The mark that holds when a call is posted is the one that
 * counts. */
static int scatter_unit(struct muster_group *group, uint32_t unit) {
    const size_t counts[SIZE] = {3, 0, 2, 4};
    struct muster_work *work = NULL;
    group_mark_unit(group, unit);
    int code = muster_reduce_scatter_v(group, from, to, counts, MUSTER_FLOAT32, MUSTER_OP_SUM, &work);
    group_mark_unit(group, GROUP_NO_UNIT);
    return code ? code : muster_work_wait(&work);
}
static int call_scatter_of_unit_3(struct muster_group *group) {
    return scatter_unit(group, 3);
}
static int call_scatter_of_unit_4(struct muster_group *group) {
    return scatter_unit(group, 4);
}
static int scatter_counts(struct muster_group *group, size_t first) {
    const size_t counts[SIZE] = {first, 0, 2, 4 - first};
    return muster_reduce_scatter_v(group, from, to, counts, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}
static int call_scatter_of_1_3(struct muster_group *group) {
    return scatter_counts(group, 1);
}
static int call_scatter_of_3_1(struct muster_group *group) {
    return scatter_counts(group, 3);
}
static int gather_unit(struct muster_group *group, uint32_t unit) {
    group_mark_unit(group, unit);
    int code = muster_all_gather(group, from, to, COUNT, MUSTER_FLOAT32, NULL);
    group_mark_unit(group, GROUP_NO_UNIT);
    return code;
}
static int reduce_unit(struct muster_group *group, uint32_t unit) {
    group_mark_unit(group, unit);
    int code = muster_all_reduce(group, from, to, COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
    group_mark_unit(group, GROUP_NO_UNIT);
    return code;
}
static int call_reduce_of_unit_3(struct muster_group *group) {
    return reduce_unit(group, 3);
}
static int call_reduce_of_unit_40000(struct muster_group *group) {
    return reduce_unit(group, 40000);
}
static int call_gather_of_unit_0(struct muster_group *group) {
    return gather_unit(group, 0);
}
static int call_gather_of_no_unit(struct muster_group *group) {
    return gather_unit(group, GROUP_NO_UNIT);
}

struct plan {
    const char *name;
    int (*others)(struct muster_group *group);
    int (*victims)(struct muster_group *group); /* NULL: it dies instead */
    int expected;
    const char *words[3];
    bool in_part; /* of ranks 1 to 3 in reverse, where the numbers differ from those of the root group */
    const struct layout *layout;
};

static const struct plan plans[] = {
    {"counts",
     call_reduce_4,
     call_reduce_5,
     MUSTER_EMISMATCH,
     {"all_reduce of 4 float32, sum", "all_reduce of 5 float32, sum", "rank 1"},
     false,
     NULL},
    {"operations",
     call_reduce_4,
     call_barrier,
     MUSTER_EMISMATCH,
     {"all_reduce of 4 float32, sum", "barrier", "rank 1"},
     false,
     NULL},
    {"roots",
     call_broadcast_from_0,
     call_broadcast_from_1,
     MUSTER_EMISMATCH,
     {"broadcast of 4 float32, root 0", "broadcast of 4 float32, root 1", "rank 1"},
     false,
     NULL},
    {"who waits for each other",
     call_gather_to_0,
     call_broadcast_from_0,
     MUSTER_EMISMATCH,
     {"gather of 4 float32, root 0", "broadcast of 4 float32, root 0", "rank 1"},
     false,
     NULL},
    {"blocks",
     call_blocks_of_2,
     call_blocks_of_3,
     MUSTER_EMISMATCH,
     {"all_to_all_v of float32", "rank 1", "which sends"},
     false,
     NULL},
    {"units",
     call_scatter_of_unit_3,
     call_scatter_of_unit_4,
     MUSTER_EMISMATCH,
     {"sum, unit 3", "sum, unit 4", "rank 1"},
     false,
     NULL},
    {"counts per rank",
     call_scatter_of_1_3,
     call_scatter_of_3_1,
     MUSTER_EMISMATCH,
     {"reduce_scatter_v of float32, sum on rank ", "their counts differ: give the same on every rank", "rank 1"},
     false,
     NULL},
    {"units that are reduced",
     call_reduce_of_unit_3,
     call_reduce_of_unit_40000,
     MUSTER_EMISMATCH,
     {"all_reduce of 4 float32, sum, unit 3", "all_reduce of 4 float32, sum, unit 32767", "rank 1"},
     false,
     NULL},
    {"a unit and none",
     call_gather_of_unit_0,
     call_gather_of_no_unit,
     MUSTER_EMISMATCH,
     {"all_gather of 4 float32, unit 0", "all_gather of 4 float32 ", "rank 1"},
     false,
     NULL},
    {"prefixes",
     call_scan,
     call_exscan,
     MUSTER_EMISMATCH,
     {"scan of 4 float32, sum", "exscan of 4 float32, sum", "rank 1"},
     false,
     NULL},
    {"a death before a scan", call_scan, NULL, MUSTER_EPEER, {"rank 1"}, false, NULL},
    {"a death", call_reduce_4, NULL, MUSTER_EPEER, {"rank 1"}, false, NULL},
    {"counts in a part",
     call_reduce_4,
     call_reduce_5,
     MUSTER_EMISMATCH,
     {"all_reduce of 4 float32, sum", "all_reduce of 5 float32, sum", "rank 2 (root rank 1)"},
     true,
     NULL},
};

/* Call 1 is a barrier, 2 the one that goes wrong. A rank may hear of that while it is still in the first, or after its
 * own part of the second. */
static int call_until_it_fails(struct rank *rank, const struct plan *plan, struct muster_group *group) {
    int code = muster_barrier(group, NULL);
    int (*call)(struct muster_group *) = rank->rank == VICTIM ? plan->victims : plan->others;
    if (!call) {
        return raise(SIGKILL);
    }
    code = code ? code : call(group);
    for (int barrier = 0; code == 0 && barrier < 2; barrier++) {
        code = muster_barrier(group, NULL);
    }
    return code;
}

static int make_the_call(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    char report[RANKS_REPORT_BYTES];
    if (plan->layout->without_memory) {
        (void)setenv("MUSTER_SHM", "0", 1);
    }
    struct muster_group *world = rank_group(rank, NULL), *part = NULL;
    if (plan->in_part) {
        rank_check_code(rank, muster_group_split(world, rank->rank > 0, -(int32_t)rank->rank, NULL, &part), 0);
    }
    if (!plan->in_part || rank->rank > 0) {
        struct muster_group *group = plan->in_part ? part : world;
        int code = call_until_it_fails(rank, plan, group);
        (void)snprintf(report, sizeof report, "%s|%s", muster_group_name(group), muster_detail());
        rank_report(rank, report);
        rank_check_code(rank, code, plan->expected);
    }
    muster_group_free(part);
    muster_group_free(world);
    return 0;
}

/* ---- what they are told ---- */

/* Of a report "GROUP|sentence". A death may be seen before the second call, or, by who needs nobody in that, after. */
static bool names_the_call(const struct plan *plan, const char *report) {
    char call[128], name[128];
    const char *bar = strchr(report, '|');
    int length = bar ? (int)(bar - report) : 0;
    (void)snprintf(call, sizeof call, "call 2 of group '%.*s'", length, report);
    (void)snprintf(name, sizeof name, "group '%.*s'", length, report);
    return bar && (plan->victims ? strstr(bar, call) != NULL : strstr(bar, name) && strstr(bar, "call "));
}

static bool tells_all(const struct plan *plan, const char *report) {
    bool all = names_the_call(plan, report);
    for (size_t i = 0; all && i < sizeof plan->words / sizeof *plan->words && plan->words[i]; i++) {
        all = strstr(report, plan->words[i]) != NULL;
    }
    return all;
}

static void check_sentences(struct ranks *ranks, const struct plan *plan) {
    bool all = true;
    for (uint32_t rank = plan->in_part ? 1 : 0; rank < SIZE; rank++) {
        if (rank == VICTIM && !plan->victims) {
            continue;
        }
        int result = ranks_wait(ranks, rank);
        if (result != 0 || !tells_all(plan, ranks_report(ranks, rank))) {
            print_error("%s, %s: rank %u ended with %d: '%s'\n", plan->name, plan->layout->name, rank, result,
                        ranks_report(ranks, rank));
            all = false;
        }
    }
    assert_true(all);
}

static void every_rank_reads_which_call_of_which_group(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
            struct plan plan = plans[i];
            plan.layout = &layouts[layout];
            struct ranks *ranks = ranks_start(SIZE, make_the_call, &plan, &plan.layout->options);
            check_sentences(ranks, &plan);
            ranks_free(ranks);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_reads_which_call_of_which_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
