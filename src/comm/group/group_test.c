/* Groups of real processes on one host: every collective in both forms, by every way to meet, and what a group says. */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/context/bootstrap.h"
#include "comm/group/ranks_test_support.h"
#include "comm/host/bell.h"
#include "comm/host/no_memfd_test_support.h"
#include "comm/schedule/choice.h"
#include "net/endpoint.h"
#include "net/port_test_support.h"

enum { COUNT = 1000, RANKS_MOST = 5 };

/* Element `i` that `rank` gives to `block`. Small whole numbers: sums are exact. */
static int32_t element(uint32_t rank, uint32_t block, size_t i) {
    return (int32_t)(rank * 1000 + block * 100 + i % 97);
}

struct buffers {
    int32_t send[RANKS_MOST * COUNT], receive[RANKS_MOST * COUNT];
};

static void fill(struct buffers *b, uint32_t rank, uint32_t size) {
    for (uint32_t block = 0; block < size; block++) {
        for (size_t i = 0; i < COUNT; i++) {
            b->send[block * COUNT + i] = element(rank, block, i);
        }
    }
    memset(b->receive, 0xEE, sizeof b->receive);
}

static void finish(struct rank *rank, int code, struct muster_work **work) {
    rank_check_code(rank, code, 0);
    if (work) {
        rank_check(rank, *work != NULL);
        rank_check_code(rank, muster_work_wait(work), 0);
        rank_check(rank, *work == NULL);
    }
}

static void check_reductions(struct rank *rank, struct muster_group *group, struct buffers *b,
                             struct muster_work **work) {
    uint32_t size = rank->size, root = size - 1;
    fill(b, rank->rank, size);
    finish(rank, muster_all_reduce(group, b->send, b->receive, COUNT, MUSTER_INT32, MUSTER_OP_MAX, work), work);
    for (size_t i = 0; i < COUNT; i++) {
        rank_check(rank, b->receive[i] == element(size - 1, 0, i));
    }
    finish(rank, muster_reduce(group, b->send, b->receive, COUNT, MUSTER_INT32, MUSTER_OP_MIN, root, work), work);
    for (size_t i = 0; i < COUNT && rank->rank == root; i++) {
        rank_check(rank, b->receive[i] == element(0, 0, i));
    }
    finish(rank, muster_reduce_scatter(group, b->send, b->receive, COUNT, MUSTER_INT32, MUSTER_OP_SUM, work), work);
    for (size_t i = 0; i < COUNT; i++) {
        int32_t sum = 0;
        for (uint32_t r = 0; r < size; r++) {
            sum += element(r, rank->rank, i);
        }
        rank_check(rank, b->receive[i] == sum);
    }
}

static void check_moves(struct rank *rank, struct muster_group *group, struct buffers *b, struct muster_work **work) {
    uint32_t size = rank->size, me = rank->rank;
    fill(b, me, size);
    finish(rank, muster_broadcast(group, b->send, COUNT, MUSTER_INT32, 0, work), work);
    rank_check(rank, b->send[3] == element(0, 0, 3));
    fill(b, me, size);
    finish(rank, muster_all_gather(group, b->send, b->receive, COUNT, MUSTER_INT32, work), work);
    for (uint32_t r = 0; r < size; r++) {
        rank_check(rank, b->receive[r * COUNT + 7] == element(r, 0, 7));
    }
    finish(rank, muster_gather(group, b->send, b->receive, COUNT, MUSTER_INT32, 0, work), work);
    finish(rank, muster_scatter(group, b->send, b->receive, COUNT, MUSTER_INT32, size - 1, work), work);
    rank_check(rank, b->receive[9] == element(size - 1, me, 9));
    finish(rank, muster_all_to_all(group, b->send, b->receive, COUNT, MUSTER_INT32, work), work);
    for (uint32_t r = 0; r < size; r++) {
        rank_check(rank, b->receive[r * COUNT + COUNT - 1] == element(r, me, COUNT - 1));
    }
    finish(rank, muster_barrier(group, work), work);
}

/* Rank r gives r + 1 elements, to whomever. */
static void check_counts_per_rank(struct rank *rank, struct muster_group *group, struct buffers *b,
                                  struct muster_work **work) {
    uint32_t size = rank->size, me = rank->rank;
    size_t counts[RANKS_MOST], send_counts[RANKS_MOST], at = 0;
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = r + 1;
        send_counts[r] = me + 1;
    }
    fill(b, me, size);
    finish(rank, muster_all_gather_v(group, b->send, b->receive, counts, MUSTER_INT32, work), work);
    for (uint32_t r = 0; r < size; at += counts[r++]) {
        rank_check(rank, b->receive[at + r] == element(r, 0, r));
    }
    finish(rank, muster_gather_v(group, b->send, b->receive, counts, MUSTER_INT32, 0, work), work);
    finish(rank, muster_scatter_v(group, b->send, b->receive, counts, MUSTER_INT32, 0, work), work);
    rank_check(rank, b->receive[0] == element(0, 0, (size_t)me * (me + 1) / 2));
    finish(rank, muster_reduce_scatter_v(group, b->send, b->receive, counts, MUSTER_INT32, MUSTER_OP_MAX, work), work);
    rank_check(rank, b->receive[0] == element(size - 1, 0, (size_t)me * (me + 1) / 2));
    finish(rank, muster_all_to_all_v(group, b->send, send_counts, b->receive, counts, MUSTER_INT32, work), work);
    at = 0;
    for (uint32_t r = 0; r < size; at += counts[r++]) {
        rank_check(rank, b->receive[at] == element(r, 0, (size_t)me * (r + 1)));
    }
}

static void check_all(struct rank *rank, struct muster_group *group) {
    struct buffers *b = malloc(sizeof *b);
    struct muster_work *work = NULL;
    rank_check(rank, b);
    for (int round = 0; round < 3; round++) {
        struct muster_work **form = round == 1 ? &work : NULL;
        check_reductions(rank, group, b, form);
        check_moves(rank, group, b, form);
        check_counts_per_rank(rank, group, b, form);
    }
    free(b);
}

static int all_collectives(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, muster_group_rank(group) == rank->rank);
    rank_check(rank, muster_group_size(group) == rank->size);
    rank_check(rank, strcmp(muster_group_name(group), "world") == 0);
    check_all(rank, group);
    rank_check_code(rank, muster_group_status(group), 0);
    muster_group_free(group);
    return 0;
}

static void every_collective_in_both_forms(void **state) {
    (void)state;
    for (uint32_t size = 1; size <= RANKS_MOST; size++) {
        ranks_run(size, all_collectives, NULL);
    }
}

static void over_a_store_on_tcp(void **state) {
    (void)state;
    struct ranks_options options = {.use_tcp = true};
    ranks_run_with(3, all_collectives, NULL, &options);
}

/* Hosts of one rank each, of two, uneven ones, and ranks that are no neighbours of those on their host. */
static void over_several_hosts(void **state) {
    (void)state;
    static const uint32_t mixed[] = {0, 1, 0, 2, 1}, uneven[] = {0, 1, 1, 1};
    struct ranks_options options = {.ranks_per_host = 1};
    for (uint32_t size = 2; size <= RANKS_MOST; size++) {
        ranks_run_with(size, all_collectives, NULL, &options);
    }
    options.ranks_per_host = 2;
    ranks_run_with(4, all_collectives, NULL, &options);
    ranks_run_with(5, all_collectives, NULL, &options);
    options.host_of = mixed;
    ranks_run_with(5, all_collectives, NULL, &options);
    options.host_of = uneven;
    ranks_run_with(4, all_collectives, NULL, &options);
}

static int tell_places(struct rank *rank, void *argument) {
    static const uint32_t hosts[] = {0, 1, 0, 2, 1}, locals[] = {0, 0, 1, 0, 1}, sizes[] = {2, 2, 2, 1, 2};
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, muster_group_host_count(group) == 3);
    for (uint32_t r = 0; r < rank->size; r++) {
        rank_check(rank, muster_group_host_of(group, r) == hosts[r]);
        rank_check(rank, muster_group_root_rank(group, r) == r);
    }
    rank_check(rank, muster_group_local_rank(group) == locals[rank->rank]);
    rank_check(rank, muster_group_local_size(group) == sizes[rank->rank]);
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* all have made it, before the first leaves */
    muster_group_free(group);
    return 0;
}

static void places_are_told(void **state) {
    (void)state;
    static const uint32_t host_of[] = {7, 3, 7, 5, 3};
    struct ranks_options options = {.host_of = host_of};
    ranks_run_with(5, tell_places, NULL, &options);
}

static int use_no_shared_memory(struct rank *rank, void *argument) {
    rank_check(rank, setenv("MUSTER_SHM", "0", 1) == 0);
    return all_collectives(rank, argument);
}

static int be_refused_memfd(struct rank *rank, void *argument) {
    forbid_memfd();
    return all_collectives(rank, argument);
}

static void without_shared_memory(void **state) {
    (void)state;
    ranks_run(3, use_no_shared_memory, NULL);
    ranks_run(2, be_refused_memfd, NULL);
}

/* ---- who can connect ---- */

/* The sockets on which this process listens: how many, and how many of them beyond loopback. */
static void count_listeners(struct rank *rank, unsigned *out_all, unsigned *out_beyond) {
    *out_all = *out_beyond = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage address;
        socklen_t len = sizeof address, size = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens) {
            continue;
        }
        rank_check(rank, getsockname(fd, (struct sockaddr *)&address, &len) == 0);
        *out_all += 1;
        *out_beyond += !net_address_is_loopback((const struct sockaddr *)&address);
    }
}

static int listen_no_farther_than_needed(struct rank *rank, void *without_memory) {
    unsigned all, beyond;
    rank_check(rank, unsetenv("MUSTER_SOCKET_IFNAME") == 0 && setenv("MUSTER_SHM", without_memory ? "0" : "1", 1) == 0);
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.engine = "muster"; /* an MPI listens where it likes */
    struct muster_group *group = rank_group(rank, &options);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    count_listeners(rank, &all, &beyond);
    rank_check(rank, all == (without_memory ? 1 : 0));
    rank_check(rank, beyond == 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void nobody_else_can_connect(void **state) {
    (void)state;
    int yes = 1;
    ranks_run(2, listen_no_farther_than_needed, NULL);
    ranks_run(2, listen_no_farther_than_needed, &yes);
}

/* ---- ways to meet ---- */

static int meet_in_file(struct rank *rank, void *path) {
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.name = "filed";
    rank_check_code(rank, muster_group_create_file(path, rank->rank, rank->size, &options, &group), 0);
    rank_check(rank, strcmp(muster_group_name(group), "filed") == 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void the_file_is_removed_by_the_last(void **state) {
    (void)state;
    char folder[] = "/tmp/muster-group-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/meet", folder);
    ranks_run(3, meet_in_file, path);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- meeting by addresses ---- */

static int meet_at_an_address(struct rank *rank, void *port) {
    struct muster_group *group = NULL;
    rank_check_code(rank, muster_group_create_tcp("127.0.0.1", *(uint16_t *)port, rank->rank, rank->size, NULL, &group),
                    0);
    check_all(rank, group);
    muster_group_free(group);
    return 0;
}

/* Rank 0 serves the store. */
static void an_address_is_enough(void **state) {
    (void)state;
    uint16_t port = 0;
    int fd = port_hold(&port);
    ranks_run(3, meet_at_an_address, &port);
    assert_int_equal(close(fd), 0);
}

static int meet_by_environment(struct rank *rank, void *port) {
    struct muster_group *group = NULL;
    char number[16];
    (void)snprintf(number, sizeof number, "%u", rank->rank);
    rank_check(rank, setenv("RANK", number, 1) == 0 && setenv("WORLD_SIZE", "3", 1) == 0);
    (void)snprintf(number, sizeof number, "%u", *(uint16_t *)port);
    rank_check(rank, setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 && setenv("MASTER_PORT", number, 1) == 0);
    rank_check_code(rank, muster_group_create_env(NULL, &group), 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    rank_check(rank, unsetenv("RANK") == 0);
    rank_check_code(rank, muster_group_create_env(NULL, &group), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "RANK"));
    return 0;
}

static void the_environment_is_enough(void **state) {
    (void)state;
    uint16_t port = 0;
    int fd = port_hold(&port);
    ranks_run(3, meet_by_environment, &port);
    assert_int_equal(close(fd), 0);
}

struct launched {
    uint16_t port;
};

/* As a launcher's worker: again and again, also while the first group is there. */
static int meet_again(struct rank *rank, void *argument) {
    const struct launched *launched = argument;
    struct muster_group *first = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    char number[16];
    options.timeout_ms = RANKS_PATIENCE_MS;
    (void)snprintf(number, sizeof number, "%u", rank->rank);
    rank_check(rank, setenv("RANK", number, 1) == 0);
    (void)snprintf(number, sizeof number, "%u", rank->size);
    rank_check(rank, setenv("WORLD_SIZE", number, 1) == 0);
    (void)snprintf(number, sizeof number, "%u", launched->port);
    rank_check(rank, setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 && setenv("MASTER_PORT", number, 1) == 0);
    rank_check(rank, setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1) == 0);
    (void)snprintf(number, sizeof number, "%u", 7 * rank->rank); /* each node counts its own */
    rank_check(rank, setenv("TORCHELASTIC_RESTART_COUNT", number, 1) == 0);
    rank_check_code(rank, muster_group_create_env(&options, &first), 0);
    for (int i = 0; i < 2; i++) {
        struct muster_group *group = NULL;
        rank_check_code(rank, muster_group_create_env(&options, &group), 0);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        muster_group_free(group);
    }
    rank_check_code(rank, muster_barrier(first, NULL), 0);
    muster_group_free(first);
    return 0;
}

/* Makes groups of ever new names, and two of one name at a time; the store has as many keys at the end as before. */
static int leave_no_keys(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_store *store = rank_store(rank);
    int64_t keys_before = 0, keys_after = 0;
    rank_check_code(rank, muster_store_num_keys(store, &keys_before), 0);
    for (int turn = 0; turn < 20; turn++) {
        char name[16];
        struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
        struct muster_group *first = NULL, *second = NULL;
        (void)snprintf(name, sizeof name, "turn %d", turn);
        options.name = name;
        rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, &options, &first), 0);
        rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, &options, &second), 0);
        rank_check_code(rank, muster_barrier(second, NULL), 0);
        muster_group_free(second);
        rank_check_code(rank, muster_barrier(first, NULL), 0);
        if (turn == 19 && rank->rank == 0) { /* nobody counts itself into a group meanwhile */
            rank_check_code(rank, muster_store_num_keys(store, &keys_after), 0);
            rank_check(rank, keys_after <= keys_before);
        }
        rank_check_code(rank, muster_barrier(first, NULL), 0);
        muster_group_free(first);
    }
    muster_store_close(store);
    return 0;
}

static void groups_leave_no_keys_in_the_store(void **state) {
    (void)state;
    const struct ranks_options over_tcp = {.use_tcp = true};
    ranks_run(1, leave_no_keys, NULL);
    ranks_run(3, leave_no_keys, NULL);
    ranks_run_with(3, leave_no_keys, NULL, &over_tcp);
}

/* Rank 0 of an attempt whose rank 1 never came. */
static int only_begin(struct rank *rank, void *argument) {
    const struct launched *launched = argument;
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL, *prefixed = NULL;
    struct bootstrap bootstrap;
    options.host = "127.0.0.1";
    options.port = launched->port;
    rank_check_code(rank, muster_store_open_tcp(&options, &store), 0);
    rank_check_code(rank, muster_store_prefix(store, "muster/world/2-ranks", &prefixed), 0);
    struct comm_kv kv = comm_kv_of_store(prefixed);
    const struct bootstrap_terms terms = {.choice_hash = choice_hash(NULL)};
    int64_t soon_ns = clock_monotonic_ns();
    rank_check_code(rank, bootstrap_run(&kv, 0, 2, &terms, soon_ns, &bootstrap), MUSTER_ETIMEOUT);
    muster_store_close(prefixed);
    muster_store_close(store);
    return 0;
}

/* One store for all attempts, as torchrun has it: what those before have left there does no harm, and neither does it
 * that nodes have restarted differently often. */
static void a_store_serves_many_attempts(void **state) {
    (void)state;
    struct ranks_store store;
    ranks_store_start(&store);
    struct launched launched = {store.port};
    ranks_run(2, meet_again, &launched);
    ranks_run(3, meet_again, &launched); /* a node has joined */
    ranks_run(2, meet_again, &launched);
    ranks_run(1, only_begin, &launched);
    ranks_run(2, meet_again, &launched);
    ranks_store_stop(&store);
}

/* ---- arguments ---- */

/* With a group of two: every call by both ranks, two elements a block. What is refused has reached nobody. */
static int overlapping_buffers(struct rank *rank, void *argument) {
    (void)argument;
    const enum muster_type type = MUSTER_INT32;
    const size_t counts[2] = {2, 2};
    struct muster_group *group = rank_group(rank, NULL);
    int32_t all[8] = {0}, *own = all + 2 * rank->rank, *other = all + 2 * (1 - rank->rank);
    rank_check_code(rank, muster_all_reduce(group, all, all + 1, 2, type, MUSTER_OP_SUM, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "all_reduce: send and receive overlap; they must lie apart") != NULL);
    rank_check_code(rank, muster_all_gather(group, other, all, 2, type, NULL), MUSTER_EINVAL);
    rank_check(rank,
               strstr(muster_detail(), rank->rank == 0 ? "receive + 0 elements" : "receive + 2 elements") != NULL);
    rank_check_code(rank, muster_all_gather_v(group, other, all, counts, type, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_reduce_scatter(group, all, other, 2, type, MUSTER_OP_SUM, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_reduce_scatter_v(group, all, other, counts, type, MUSTER_OP_SUM, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_all_to_all(group, all, all + 1, 2, type, NULL), MUSTER_EINVAL);
    if (rank->rank == 0) { /* the root alone has both buffers */
        rank_check_code(rank, muster_reduce(group, all, all + 1, 2, type, MUSTER_OP_SUM, 0, NULL), MUSTER_EINVAL);
        rank_check_code(rank, muster_gather(group, other, all, 2, type, 0, NULL), MUSTER_EINVAL);
        rank_check_code(rank, muster_gather_v(group, other, all, counts, type, 0, NULL), MUSTER_EINVAL);
        rank_check_code(rank, muster_scatter(group, all, other, 2, type, 0, NULL), MUSTER_EINVAL);
        rank_check_code(rank, muster_scatter_v(group, all, other, counts, type, 0, NULL), MUSTER_EINVAL);
    }
    rank_check_code(rank, muster_reduce(group, all, rank->rank == 0 ? all : all + 1, 2, type, MUSTER_OP_SUM, 0, NULL),
                    0);
    rank_check_code(rank, muster_all_gather_v(group, own, all, counts, type, NULL), 0);
    rank_check_code(rank, muster_scatter(group, all, rank->rank == 0 ? own : other, 2, type, 0, NULL), 0);
    rank_check_code(rank, muster_reduce_scatter_v(group, all, own, counts, type, MUSTER_OP_SUM, NULL), 0);
    rank_check_code(rank, muster_all_to_all(group, all, all, 2, type, NULL), 0);
    rank_check_code(rank, muster_all_reduce(group, all, all + 2, 2, type, MUSTER_OP_SUM, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void buffers_that_overlap_are_refused(void **state) {
    (void)state;
    ranks_run(2, overlapping_buffers, NULL);
}

static int wrong_arguments(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL, *other = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_store *store = rank_store(rank);
    float value = 1, result = 0;
    size_t counts[2] = {SIZE_MAX / 2, SIZE_MAX / 2};
    options.timeout_ms = 0;
    rank_check_code(rank, muster_group_create_store(store, 0, 1, &options, &other), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_store(store, 2, 2, NULL, &other), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_create_store(store, 0, 0, NULL, &other), MUSTER_EINVAL);
    options = (struct muster_group_options)MUSTER_GROUP_OPTIONS_INIT;
    options.name = "";
    rank_check_code(rank, muster_group_create_store(store, 0, 1, &options, &other), MUSTER_EINVAL);
    rank_check(rank, other == NULL);
    rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, NULL, &group), 0);
    rank_check_code(rank, muster_all_reduce(group, NULL, &result, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_all_reduce(group, &value, NULL, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_all_reduce(group, &value, &result, 1, (enum muster_type)99, MUSTER_OP_SUM, NULL),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_all_reduce(group, &value, &result, 1, MUSTER_FLOAT32, MUSTER_OP_BIT_AND, NULL),
                    MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "'bit and' is for integers, not for float32") != NULL);
    rank_check_code(rank, muster_all_reduce(group, &value, &result, 1, MUSTER_FLOAT32, (enum muster_reduction)99, NULL),
                    MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "99 is no reduction") != NULL);
    rank_check_code(rank, muster_all_reduce(group, &value, &result, SIZE_MAX, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_broadcast(group, &value, 1, MUSTER_FLOAT32, rank->size, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_all_gather_v(group, &value, &result, counts, MUSTER_FLOAT32, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_all_gather_v(group, &value, &result, NULL, MUSTER_FLOAT32, NULL), MUSTER_EINVAL);
    float many[8] = {0}; /* each rank sends two to each: 4 in all */
    const size_t twos[2] = {2, 2};
    rank_check_code(rank, muster_all_to_all_v(group, many, twos, many, twos, MUSTER_FLOAT32, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_all_to_all_v(group, many, twos, many + 3, twos, MUSTER_FLOAT32, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "all_to_all_v: send and receive overlap") != NULL);
    rank_check_code(rank, muster_all_to_all_v(group, many + 3, twos, many, twos, MUSTER_FLOAT32, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_all_to_all_v(group, many, twos, many + 4, twos, MUSTER_FLOAT32, NULL), 0);
    /* None of it failed the group; nothing may be NULL when the count is 0. */
    rank_check_code(rank, muster_all_reduce(group, NULL, NULL, 0, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    rank_check_code(rank, muster_all_reduce(group, &value, &value, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    rank_check(rank, value == (float)rank->size);
    muster_group_free(group);
    muster_store_close(store);
    return 0;
}

static void wrong_arguments_fail_the_call_alone(void **state) {
    (void)state;
    ranks_run(2, wrong_arguments, NULL);
}

/* ---- handles ---- */

/* Many calls under way, blocking ones among them: all run in order. */
static int many_handles(struct rank *rank, void *argument) {
    (void)argument;
    enum { CALLS = 300 };
    static int64_t values[CALLS];
    static struct muster_work *works[CALLS];
    struct muster_group *group = rank_group(rank, NULL);
    for (int i = 0; i < CALLS; i++) {
        values[i] = i;
        rank_check_code(rank,
                        muster_all_reduce(group, &values[i], &values[i], 1, MUSTER_INT64, MUSTER_OP_SUM,
                                          i % 10 == 9 ? NULL : &works[i]),
                        0);
        if (i % 10 == 9) {
            rank_check(rank, values[i] == (int64_t)i * rank->size);
            rank_check(rank, muster_work_done(works[i - 1])); /* it came before */
        }
    }
    for (int i = CALLS; i-- > 0;) {
        rank_check_code(rank, muster_work_wait(&works[i]), 0);
        rank_check(rank, values[i] == (int64_t)i * rank->size);
    }
    muster_group_free(group);
    return 0;
}

static void handles_run_in_order(void **state) {
    (void)state;
    ranks_run(3, many_handles, NULL);
}

/* ---- memory ---- */

static int shared_memory(struct rank *rank, void *argument) {
    (void)argument;
    enum { ELEMENTS = 300000 };
    struct muster_group *group = rank_group(rank, NULL);
    void *memory = NULL;
    rank_check_code(rank, muster_alloc(group, ELEMENTS * sizeof(float), &memory), 0);
    float *values = memory;
    for (int i = 0; i < ELEMENTS; i++) {
        rank_check(rank, values[i] == 0);
        values[i] = (float)(rank->rank + (uint32_t)i % 5);
    }
    rank_check_code(rank, muster_all_reduce(group, values, values, ELEMENTS, MUSTER_FLOAT32, MUSTER_OP_AVERAGE, NULL),
                    0);
    for (int i = 0; i < ELEMENTS; i++) {
        rank_check(rank, values[i] == (float)(rank->size - 1) / 2 + (float)(i % 5));
    }
    muster_free(group, memory);
    muster_free(group, NULL);
    muster_group_free(group);
    muster_group_free(NULL);
    return 0;
}

static void memory_that_neighbours_read(void **state) {
    (void)state;
    ranks_run(3, shared_memory, NULL);
}

/* ---- fork ---- */

static int forks(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *work = NULL;
    int64_t one = 1;
    rank_check_code(rank, muster_all_reduce(group, &one, &one, 1, MUSTER_INT64, MUSTER_OP_SUM, &work), 0);
    rank_check_code(rank, muster_work_wait(&work), 0); /* there is a progress thread, too */
    pid_t child = fork();
    rank_check(rank, child >= 0);
    if (child == 0) {
        bool right = muster_barrier(group, NULL) == MUSTER_EINVAL && strstr(muster_detail(), "forked");
        muster_group_abort(group, "not mine");
        muster_group_free(group);
        exit(right ? 0 : 1); /* through atexit handlers, too */
    }
    int status = -1;
    rank_check(rank, waitpid(child, &status, 0) == child && status == 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void a_forked_child_does_no_harm(void **state) {
    (void)state;
    ranks_run(2, forks, NULL);
}

/* ---- how a group is made ---- */

static int early_threads; /* of this process: begun before it was registered for barriers */

int __real_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    early_threads += atomic_load(&comm_bell_barriers_reach) == 0;
    return __real_pthread_create(out, attributes, run, argument);
}

static int count_early_threads(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, atomic_load(&comm_bell_barriers_reach) != 0 && early_threads == 0);
    muster_group_free(group);
    return 0;
}

/* To register takes the kernel more than 10 ms in a process that has threads. */
static void no_thread_is_begun_before_barriers_are_settled(void **state) {
    (void)state;
    ranks_run(2, count_early_threads, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_thread_is_begun_before_barriers_are_settled),
        cmocka_unit_test(every_collective_in_both_forms),
        cmocka_unit_test(over_a_store_on_tcp),
        cmocka_unit_test(over_several_hosts),
        cmocka_unit_test(places_are_told),
        cmocka_unit_test(without_shared_memory),
        cmocka_unit_test(nobody_else_can_connect),
        cmocka_unit_test(the_file_is_removed_by_the_last),
        cmocka_unit_test(an_address_is_enough),
        cmocka_unit_test(the_environment_is_enough),
        cmocka_unit_test(a_store_serves_many_attempts),
        cmocka_unit_test(groups_leave_no_keys_in_the_store),
        cmocka_unit_test(wrong_arguments_fail_the_call_alone),
        cmocka_unit_test(buffers_that_overlap_are_refused),
        cmocka_unit_test(handles_run_in_order),
        cmocka_unit_test(memory_that_neighbours_read),
        cmocka_unit_test(a_forked_child_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
