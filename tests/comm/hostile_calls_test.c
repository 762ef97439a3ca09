/* Calls that no correct program makes: wrong arguments, other calls than the other ranks', groups of another process,
 * groups that do not come together, and an environment full of rubbish. Nothing of it may crash, hang or harm others.
 */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>
#include <muster/trace.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"
#include "operations.h"

enum { PATIENCE_MS = 30000, SHORT_MS = 300 };

/* ---- arguments ---- */

/* Every call is refused, with a sentence, and harms nothing. */
static int pass_rubbish(struct rank *rank, void *argument) {
    (void)argument;
    const size_t huge = SIZE_MAX / 2, wraps = ((size_t)1 << 62) + 1; /* times 4 bytes: 4 */
    const size_t large[] = {(size_t)1 << 37, (size_t)1 << 38}, wrapping[] = {SIZE_MAX - 3, 4};
    const enum muster_type no_type = (enum muster_type)77, float32 = MUSTER_FLOAT32;
    const enum muster_reduction no_reduction = (enum muster_reduction)77, sum = MUSTER_OP_SUM;
    static float buffer[64];
    static const size_t ones[] = {1, 1};
    struct muster_group *group = rank_group(rank, NULL), *none = NULL, *made = NULL;
    void *memory = NULL;
    const uint32_t falling[] = {1, 0}, twice[] = {0, 0}, outside[] = {0, 2};
#define REFUSED(call) rank_check_code(rank, call, MUSTER_EINVAL)
    REFUSED(muster_barrier(none, NULL));
    REFUSED(muster_monitored_barrier(none, 1000));
    REFUSED(muster_monitored_barrier(group, 0));
    REFUSED(muster_monitored_barrier(group, INT64_MIN));
    REFUSED(muster_group_status(none));
    REFUSED(muster_alloc(none, 8, &memory));
    REFUSED(muster_coalesce_begin(none));
    REFUSED(muster_coalesce_end(none, NULL));
    REFUSED(muster_coalesce_end(group, NULL));
    REFUSED(muster_group_subset(none, twice, 1, NULL, &made));
    REFUSED(muster_group_subset(group, NULL, 1, NULL, &made));
    REFUSED(muster_group_subset(group, twice, 0, NULL, &made));
    REFUSED(muster_group_subset(group, twice, 2, NULL, &made));
    REFUSED(muster_group_subset(group, falling, 2, NULL, &made));
    REFUSED(muster_group_subset(group, outside, 2, NULL, &made));
    REFUSED(muster_group_subset(group, twice, UINT32_MAX, NULL, &made));
    REFUSED(muster_group_split(none, 0, 0, NULL, &made));
    REFUSED(muster_group_shrink(none, 1000, &made));
    REFUSED(muster_group_shrink(group, -1, &made));
    muster_group_abort(none, "no group");
    muster_free(none, buffer);
    REFUSED(muster_send(none, buffer, 1, float32, 1, 0, NULL));
    for (int i = 0; i < 4; i++) {
        static const struct {
            bool send, receive, count, type;
        } wrong[] = {{.send = true}, {.receive = true}, {.count = true}, {.type = true}};
        const void *send = wrong[i].send ? NULL : buffer;
        void *receive = wrong[i].receive ? NULL : buffer + 32;
        size_t count = wrong[i].count ? wraps : 1;
        enum muster_type type = wrong[i].type ? no_type : float32;
        uint32_t self = rank->rank, other = 1 - self;
        REFUSED(muster_all_reduce(group, send, receive, count, type, sum, NULL));
        REFUSED(muster_reduce(group, send, receive, count, type, sum, self, NULL));
        REFUSED(muster_all_gather(group, send, receive, count, type, NULL));
        REFUSED(muster_gather(group, send, receive, count, type, self, NULL));
        REFUSED(muster_scatter(group, send, receive, count, type, self, NULL));
        REFUSED(muster_reduce_scatter(group, send, receive, count, type, sum, NULL));
        REFUSED(muster_all_to_all(group, send, receive, count, type, NULL));
        const size_t *counts = wrong[i].count ? wrapping : ones;
        REFUSED(muster_all_gather_v(group, send, receive, counts, type, NULL));
        REFUSED(muster_gather_v(group, send, receive, counts, type, self, NULL));
        REFUSED(muster_scatter_v(group, send, receive, counts, type, self, NULL));
        REFUSED(muster_reduce_scatter_v(group, send, receive, counts, type, sum, NULL));
        REFUSED(muster_all_to_all_v(group, send, counts, receive, ones, type, NULL));
        REFUSED(muster_all_to_all_v(group, send, ones, receive, wrong[i].count ? large : counts + (i == 0),
                                    i == 0 ? no_type : type, NULL));
        if (!wrong[i].receive) {
            REFUSED(muster_broadcast(group, wrong[i].send ? NULL : receive, count, type, 0, NULL));
            REFUSED(muster_send(group, send, count, type, other, 0, NULL));
            REFUSED(muster_receive(group, wrong[i].send ? NULL : receive, count, type, other, 0, NULL, NULL));
        }
    }
    REFUSED(muster_all_reduce(group, buffer, buffer, huge, float32, sum, NULL));
    REFUSED(muster_all_gather(group, buffer, buffer, MUSTER_COLLECTIVE_BYTES_MAX / 4, float32, NULL)); /* twice that */
    REFUSED(muster_all_reduce(group, buffer, buffer, 1, float32, no_reduction, NULL));
    REFUSED(muster_all_reduce(group, buffer, buffer, 1, float32, MUSTER_OP_BIT_XOR, NULL));
    REFUSED(muster_all_gather_v(group, buffer, buffer, NULL, float32, NULL));
    REFUSED(muster_all_to_all_v(group, buffer, NULL, buffer, ones, float32, NULL));
    REFUSED(muster_all_to_all_v(group, buffer, ones, buffer, NULL, float32, NULL));
    REFUSED(muster_reduce(group, buffer, buffer, 1, float32, sum, 2, NULL));
    REFUSED(muster_broadcast(group, buffer, 1, float32, UINT32_MAX, NULL));
    REFUSED(muster_gather(group, buffer, buffer, 1, float32, 2, NULL));
    REFUSED(muster_scatter(group, buffer, buffer, 1, float32, 2, NULL));
    REFUSED(muster_gather_v(group, buffer, buffer, ones, float32, 2, NULL));
    REFUSED(muster_scatter_v(group, buffer, buffer, ones, float32, 2, NULL));
    REFUSED(muster_send(group, buffer, 1, float32, rank->rank, 0, NULL));
    REFUSED(muster_send(group, buffer, 1, float32, MUSTER_ANY_RANK, 0, NULL));
    REFUSED(muster_send(group, buffer, 1, float32, 1 - rank->rank, MUSTER_TAG_MAX + 1, NULL));
    REFUSED(muster_receive(group, buffer, 1, float32, 2, 0, NULL, NULL));
    rank_check(rank, muster_alloc(group, SIZE_MAX, &memory) < 0 && muster_alloc(group, huge, &memory) < 0);
    rank_check(rank, muster_alloc(group, (size_t)1 << 50, &memory) < 0);
#undef REFUSED
    rank_check_code(rank, muster_group_status(group), 0);
    buffer[0] = 1;
    rank_check_code(rank, muster_all_reduce(group, buffer, buffer, 1, float32, sum, NULL), 0);
    rank_check(rank, buffer[0] == 2.0F);
    muster_group_free(group);
    return 0;
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    ranks_run(2, pass_rubbish, NULL);
}

static int create_with_rubbish(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_store *store = rank_store(rank);
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    char name[2 * MUSTER_GROUP_NAME_MAX];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    rank_check_code(rank, muster_group_create_store(store, 0, 0, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_store(store, 1, 1, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_store(store, 0, MUSTER_GROUP_SIZE_MAX + 1, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_store(NULL, 0, 1, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_store(store, 0, 1, NULL, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_file(NULL, 0, 1, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_tcp(NULL, 1, 1, 2, NULL, &group), MUSTER_EINVAL);
    rank_check(rank, muster_group_create_file("/nowhere/at/all", 0, 1, NULL, &group) < 0);
    options.timeout_ms = 0;
    rank_check_code(rank, muster_group_create_store(store, 0, 1, &options, &group), MUSTER_EINVAL);
    options.timeout_ms = 1000;
    options.name = name;
    rank_check_code(rank, muster_group_create_store(store, 0, 1, &options, &group), MUSTER_EINVAL);
    options.name = "";
    int code = muster_group_create_store(store, 0, 1, &options, &group);
    rank_check(rank, code == MUSTER_EINVAL || code == 0);
    muster_group_free(group);
    return 0;
}

static void groups_are_not_made_of_rubbish(void **state) {
    (void)state;
    ranks_run(1, create_with_rubbish, NULL);
}

/* ---- every pair of different calls ---- */

static int call_otherwise(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t both[] = {0, 1};
    static float send[256], receive[256];
    struct muster_group *world = rank_group(rank, NULL);
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = PATIENCE_MS;
    for (int a = 0; a < OPERATION_COUNT - 2; a++) { /* messages correspond to no collective */
        for (int b = 0; b < OPERATION_COUNT - 2; b++) {
            /* On different hosts, two ranks that wait for each other's data find out at the deadline. */
            int64_t timeout_ms = a != b && muster_group_host_count(world) > 1 ? SHORT_MS : PATIENCE_MS;
            struct operands o = {.send = send, .receive = receive, .count = 16, .root = 0, .timeout_ms = timeout_ms};
            const struct operation *operation = &operations[rank->rank == 0 ? a : b];
            rank_check_code(rank, muster_group_subset(world, both, 2, &options, &o.group), 0);
            rank_hurry(o.group, timeout_ms); /* now that both are here, however busy the machine is */
            int code = operation->run(&o);
            code = code ? code : muster_barrier(o.group, NULL); /* its part was done: the next call tells */
            bool twins = strcmp(operations[a].name, operations[b].name) == 0;
            if (a == b ? code != 0 : code != MUSTER_EMISMATCH && !twins) {
                (void)fprintf(stderr, "rank %u: %s (%d) with %s (%d): %s: %s\n", rank->rank, operations[a].name, a,
                              operations[b].name, b, muster_strerror(code), muster_detail());
                rank_check(rank, !"the right code");
            }
            muster_group_free(o.group);
            rank_check_code(rank, muster_barrier(world, NULL), 0); /* nothing has happened to the parent */
        }
    }
    muster_group_free(world);
    return 0;
}

static void every_pair_of_calls_is_told_apart(void **state) {
    (void)state;
    struct ranks_options two_hosts = {.ranks_per_host = 1};
    print_message("on one host\n");
    ranks_run(2, call_otherwise, NULL);
    print_message("on two hosts\n");
    ranks_run_with(2, call_otherwise, NULL, &two_hosts);
}

/* ---- the group of a parent ---- */

static int fork_off(struct rank *rank, void *argument) {
    (void)argument;
    static float buffer[8];
    struct muster_group *group = rank_group(rank, NULL), *made = NULL;
    void *memory = NULL;
    int status = -1;
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        rank_check_code(rank, muster_all_reduce(group, buffer, buffer, 8, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                        MUSTER_EINVAL);
        rank_check_code(rank, muster_send(group, buffer, 8, MUSTER_FLOAT32, 1 - rank->rank, 0, NULL), MUSTER_EINVAL);
        rank_check_code(rank, muster_alloc(group, 64, &memory), MUSTER_EINVAL);
        rank_check_code(rank, muster_group_status(group), MUSTER_EINVAL);
        rank_check_code(rank, muster_coalesce_begin(group), MUSTER_EINVAL);
        rank_check_code(rank, muster_group_split(group, 0, 0, NULL, &made), MUSTER_EINVAL);
        rank_check_code(rank, muster_group_shrink(group, SHORT_MS, &made), MUSTER_EINVAL);
        muster_group_abort(group, "a child's");
        muster_group_free(group);
        _exit(0);
    }
    rank_check(rank, child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 100; i++) {
        rank_check_code(rank, muster_all_reduce(group, buffer, buffer, 8, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    }
    muster_group_free(group);
    return 0;
}

static void a_child_has_no_groups(void **state) {
    (void)state;
    struct ranks_options two_hosts = {.ranks_per_host = 1};
    ranks_run(2, fork_off, NULL);
    ranks_run_with(2, fork_off, NULL, &two_hosts);
}

/* ---- ranks that do not come together ---- */

/* Rank 1 believes in a larger world. */
static int disagree(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = 1000;
    int code = muster_group_create_store(rank_store(rank), rank->rank, rank->rank == 1 ? 3 : 2, &options, &group);
    rank_check(rank, code < 0 && group == NULL);
    rank_report(rank, muster_detail());
    return 0;
}

static void worlds_of_different_size_are_told(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, disagree, NULL, NULL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
        assert_int_not_equal(strlen(ranks_report(ranks, rank)), 0);
    }
    if (!strstr(ranks_report(ranks, 0), "3") && !strstr(ranks_report(ranks, 1), "3")) {
        fail_msg("'%s' and '%s'", ranks_report(ranks, 0), ranks_report(ranks, 1));
    }
    ranks_free(ranks);
}

/* ---- limits and rubbish around ---- */

/* Every possible number of descriptors: the group is made, or an error that says why; afterwards nothing is open. */
static int lack_descriptors(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_store *store = rank_store(rank);
    struct rlimit limit;
    int made = 0;
    rank_check(rank, getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int first = dup(0);
    (void)close(first);
    for (int room = 0; made < 2; room++) {
        struct muster_group *group = NULL;
        struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
        char name[24];
        (void)snprintf(name, sizeof name, "room-%d", room);
        options.name = name;
        options.timeout_ms = PATIENCE_MS;
        rank_check(rank, room < 40);
        struct rlimit tight = {(rlim_t)(first + room), limit.rlim_max};
        rank_check(rank, setrlimit(RLIMIT_NOFILE, &tight) == 0);
        int code = muster_group_create_store(store, rank->rank, rank->size, &options, &group);
        if (code == 0) {
            code = muster_barrier(group, NULL);
            made += code == 0;
        }
        rank_check(rank, code == 0 || muster_detail()[0] != '\0');
        muster_group_free(group);
        rank_check(rank, setrlimit(RLIMIT_NOFILE, &limit) == 0);
        int next = dup(0);
        (void)close(next);
        rank_check(rank, next == first); /* nothing was left open */
    }
    return 0;
}

static void any_lack_of_descriptors_is_survived(void **state) {
    (void)state;
    ranks_run(1, lack_descriptors, NULL);
}

static int live_among_rubbish(struct rank *rank, void *argument) {
    const char *const *variable = argument;
    struct muster_group *group = NULL;
    rank_check(rank, setenv(variable[0], variable[1], 1) == 0);
    int code = muster_group_create_store(rank_store(rank), rank->rank, rank->size, NULL, &group);
    if (code == 0) {
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        muster_trace_begin("rubbish");
        muster_trace_end();
    } else {
        rank_check(rank, strstr(muster_detail(), variable[0]) || strstr(muster_detail(), variable[1]));
    }
    muster_group_free(group);
    return 0;
}

/* Either it does no harm, or both ranks are told which variable it was. */
static void rubbish_in_the_environment_is_survived(void **state) {
    (void)state;
    static char long_text[5000];
    memset(long_text, 'y', sizeof long_text - 1);
    const char *const variables[][2] = {
        {"MUSTER_SHM", "perhaps"},
        {"MUSTER_CMA", ""},
        {"MUSTER_HOST_ID", ""},
        {"MUSTER_HOST_ID", "a\nb\tc"},
        {"MUSTER_HOST_ID", long_text},
        {"MUSTER_CHOICE_FILE", "/nowhere/at/all"},
        {"MUSTER_CHOICE_FILE", "/dev/zero"},
        {"MUSTER_CHOICE_FILE", "/"},
        {"MUSTER_SOCKET_IFNAME", "nosuch0"},
        {"MUSTER_SOCKET_IFNAME", ",,,^=,"},
        {"MUSTER_SOCKET_IFNAME", long_text},
        {"MUSTER_SOCKET_FAMILY", "AF_PARTY"},
        {"MUSTER_DEBUG", "EVERYTHING"},
        {"MUSTER_TRACE", "/proc/nowhere"},
        {"MUSTER_TRACE", "/dev/null"},
        {"MUSTER_TRACE", ""},
        {"TORCHELASTIC_ERROR_FILE", "/proc/nowhere/error.json"},
        {"TORCHELASTIC_ERROR_FILE", long_text},
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        print_message("%s=%.40s\n", variables[i][0], variables[i][1]);
        ranks_run(2, live_among_rubbish, (void *)(uintptr_t)variables[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(groups_are_not_made_of_rubbish),
        cmocka_unit_test(every_pair_of_calls_is_told_apart),
        cmocka_unit_test(a_child_has_no_groups),
        cmocka_unit_test(worlds_of_different_size_are_told),
        cmocka_unit_test(any_lack_of_descriptors_is_survived),
        cmocka_unit_test(rubbish_in_the_environment_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
