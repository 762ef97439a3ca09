/* Messages and coalesced calls, between ranks of one host and of several. */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"

enum { LARGE = 300000, MARK_READY = 1 };

/* One host, every rank a host, two hosts of two. */
static const struct ranks_options layouts[] = {{.ranks_per_host = 0}, {.ranks_per_host = 1}, {.ranks_per_host = 2}};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

static void run_everywhere(uint32_t size, rank_function *function) {
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        ranks_run_with(size, function, NULL, &layouts[i]);
    }
}

/* ---- messages ---- */

/* As many messages as a sender may have at the other side that nobody has asked for, in a part of the group that is
 * freed then: there is room for those of the group again. */
static int leave_messages_behind(struct rank *rank, void *argument) {
    enum { MESSAGES = 8192 };
    (void)argument;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = 20000;
    struct muster_group *group = rank_group(rank, &options), *part = NULL;
    static const uint32_t both[] = {0, 1};
    int32_t value = 7;
    rank_check_code(rank, muster_group_subset(group, both, 2, NULL, &part), 0);
    for (int i = 0, code = 0; rank->rank == 0 && code == 0 && i < MESSAGES; i++) {
        code = muster_send(part, NULL, 0, MUSTER_INT32, 1, 0, NULL);
        rank_check(rank, code == 0 || code == MUSTER_EPEER); /* the other one may have left by now */
    }
    muster_group_free(part);
    if (rank->rank == 0) {
        rank_check_code(rank, muster_send(group, &value, 1, MUSTER_INT32, 1, 1, NULL), 0);
    } else {
        value = 0;
        rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT32, 0, 1, NULL, NULL), 0);
        rank_check(rank, value == 7);
    }
    muster_group_free(group);
    return 0;
}

static void messages_of_a_freed_group_take_no_room(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_run_with(2, leave_messages_behind, NULL, &layouts[i]);
    }
}

/* Out of memory from muster_alloc(), from its middle, with and without a handle, again after it was given back. */
static int send_shared(struct rank *rank, void *argument) {
    static const size_t counts[] = {1000, 32768, 40001, 3500000}; /* below and above all limits */
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t round = 0; round < 8; round++) {
        size_t count = counts[round / 2];
        bool by_handle = round % 2, is_shared = rank->rank == 0 || round % 4 < 2;
        struct muster_work *work = NULL;
        int32_t *buffer = NULL;
        void *all = NULL;
        if (is_shared) {
            rank_check_code(rank, muster_alloc(group, (count + 3) * sizeof *buffer, &all), 0);
            buffer = (int32_t *)all + 3;
        } else {
            buffer = all = calloc(count, sizeof *buffer);
        }
        for (size_t i = 0; rank->rank == 0 && i < count; i++) {
            buffer[i] = (int32_t)(i * 3 + round);
        }
        if (rank->rank == 0) {
            rank_check_code(rank, muster_send(group, buffer, count, MUSTER_INT32, 1, 1, by_handle ? &work : NULL), 0);
        } else {
            rank_check_code(
                rank, muster_receive(group, buffer, count, MUSTER_INT32, 0, 1, NULL, by_handle ? &work : NULL), 0);
        }
        rank_check_code(rank, muster_work_wait(&work), 0);
        for (size_t i = 0; i < count; i++) {
            rank_check(rank, buffer[i] == (int32_t)(i * 3 + round));
        }
        if (is_shared) {
            muster_free(group, all);
        } else {
            free(all);
        }
    }
    muster_group_free(group);
    return 0;
}

static void messages_come_out_of_shared_memory(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_run_with(2, send_shared, NULL, &layouts[i]);
    }
}

/* Round the ring, short and long, blocking where the ranks take turns. */
static int send_round(struct rank *rank, void *argument) {
    (void)argument;
    static int32_t out[LARGE], in[LARGE];
    struct muster_group *group = rank_group(rank, NULL);
    uint32_t size = rank->size, next = (rank->rank + 1) % size, previous = (rank->rank + size - 1) % size;
    static const size_t counts[] = {0, 1, 1000, LARGE};
    for (uint32_t c = 0; c < 4; c++) {
        struct muster_message message = {0};
        for (size_t i = 0; i < counts[c]; i++) {
            out[i] = (int32_t)(rank->rank * 7 + i);
        }
        if (rank->rank == 0) {
            rank_check_code(rank, muster_send(group, out, counts[c], MUSTER_INT32, next, c, NULL), 0);
        }
        rank_check_code(rank, muster_receive(group, in, LARGE, MUSTER_INT32, previous, c, &message, NULL), 0);
        rank_check(rank, message.rank == previous && message.tag == c && message.count == counts[c]);
        for (size_t i = 0; i < counts[c]; i++) {
            rank_check(rank, in[i] == (int32_t)(previous * 7 + i));
        }
        if (rank->rank != 0) {
            rank_check_code(rank, muster_send(group, out, counts[c], MUSTER_INT32, next, c, NULL), 0);
        }
    }
    muster_group_free(group);
    return 0;
}

static void messages_go_round(void **state) {
    (void)state;
    run_everywhere(4, send_round);
}

/* Handles, tags out of order, receives from anybody; collectives in between are not disturbed. */
static int use_handles(struct rank *rank, void *argument) {
    (void)argument;
    enum { TAGS = 20 };
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *works[TAGS];
    int64_t values[TAGS];
    if (rank->rank == 0) {
        for (uint32_t tag = 0; tag < TAGS; tag++) {
            rank_check_code(rank, muster_receive(group, &values[tag], 1, MUSTER_INT64, 1, tag, NULL, &works[tag]), 0);
        }
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank == 1) {
        for (uint32_t tag = TAGS; tag-- > 0;) {
            values[tag] = 100 + tag;
            rank_check_code(rank, muster_send(group, &values[tag], 1, MUSTER_INT64, 0, tag, &works[tag]), 0);
        }
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    for (uint32_t tag = 0; tag < TAGS && rank->rank < 2; tag++) {
        rank_check_code(rank, muster_work_wait(&works[tag]), 0);
        rank_check(rank, values[tag] == 100 + tag);
    }
    bool seen[8] = {false};
    for (uint32_t i = 1; i < rank->size && rank->rank == 0; i++) {
        struct muster_message message;
        int64_t value = 0;
        rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT64, MUSTER_ANY_RANK, 5, &message, NULL), 0);
        rank_check(rank, message.rank == (uint32_t)value && !seen[message.rank]);
        seen[message.rank] = true;
    }
    if (rank->rank != 0) {
        int64_t value = rank->rank;
        rank_check_code(rank, muster_send(group, &value, 1, MUSTER_INT64, 0, 5, NULL), 0);
    }
    muster_group_free(group);
    return 0;
}

static void handles_tags_and_any_rank(void **state) {
    (void)state;
    run_everywhere(4, use_handles);
}

/* A long message is posted, and the sender goes into a barrier that the receiver comes to only afterwards: whoever
 * waits for anything brings messages forward. */
static int send_while_in_a_barrier(struct rank *rank, void *argument) {
    (void)argument;
    static int32_t data[LARGE];
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *work = NULL;
    if (rank->rank == 0) {
        data[LARGE - 1] = 77;
        rank_check_code(rank, muster_send(group, data, LARGE, MUSTER_INT32, 1, 0, &work), 0);
    } else if (rank->rank == 1) {
        rank_check_code(rank, muster_receive(group, data, LARGE, MUSTER_INT32, 0, 0, NULL, NULL), 0);
        rank_check(rank, data[LARGE - 1] == 77);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, muster_work_wait(&work), 0);
    muster_group_free(group);
    return 0;
}

static void a_barrier_brings_messages_forward(void **state) {
    (void)state;
    run_everywhere(4, send_while_in_a_barrier);
}

/* Short messages do not wait for their receiver, even if that one has never asked for any and sleeps in a barrier. */
static int send_ahead_of_a_barrier(struct rank *rank, void *argument) {
    (void)argument;
    enum { AHEAD = 400 };
    static int32_t data[500];
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = 60000;
    struct muster_group *group = rank_group(rank, &options);
    for (uint32_t i = 0; i < AHEAD && rank->rank == 0; i++) {
        rank_check_code(rank, muster_send(group, data, 500, MUSTER_INT32, 1, i, NULL), 0);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    for (uint32_t i = 0; i < AHEAD && rank->rank == 1; i++) {
        rank_check_code(rank, muster_receive(group, data, 500, MUSTER_INT32, 0, i, NULL, NULL), 0);
    }
    muster_group_free(group);
    return 0;
}

static void short_messages_wait_for_nobody(void **state) {
    (void)state;
    run_everywhere(2, send_ahead_of_a_barrier);
}

/* A long message between hosts, when the sender sleeps in its host's memory, where no socket wakes it by itself: on two
 * hosts of two ranks, neither the sender nor the receiver is the one that talks to the other host in the barrier. */
static int send_asleep_in_a_barrier(struct rank *rank, void *argument) {
    (void)argument;
    static int32_t data[LARGE];
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = 60000; /* what it comes to if nobody wakes the sender */
    options.engine = "muster";  /* MPI's ranks do not sleep on a bell */
    struct muster_group *group = rank_group(rank, &options);
    struct muster_work *work = NULL;
    if (rank->rank == 1) {
        data[LARGE - 1] = 77;
        rank_check_code(rank, muster_send(group, data, LARGE, MUSTER_INT32, 3, 0, &work), 0);
        rank_mark(rank, MARK_READY);
    } else if (rank->rank == 0) {
        struct context *context = group->context;
        const struct comm_bell *bell = &context->lines[context_local_of(context, 1)].bell;
        rank_await(rank, 1, MARK_READY);
        while (atomic_load(&bell->sleepers) == 0) {
            (void)sched_yield();
        }
        rank_mark(rank, MARK_READY);
        rank_await(rank, 3, MARK_READY); /* until then nobody rings for rank 1 */
    } else if (rank->rank == 3) {
        rank_await(rank, 0, MARK_READY);
        rank_check_code(rank, muster_receive(group, data, LARGE, MUSTER_INT32, 1, 0, NULL, NULL), 0);
        rank_check(rank, data[LARGE - 1] == 77);
        rank_mark(rank, MARK_READY);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, muster_work_wait(&work), 0);
    muster_group_free(group);
    return 0;
}

static void sockets_wake_who_sleeps_in_a_barrier(void **state) {
    (void)state;
    ranks_run_with(4, send_asleep_in_a_barrier, NULL, &layouts[2]);
}

static int send_what_does_not_fit(struct rank *rank, void *which) {
    struct muster_group *group = rank_group(rank, NULL);
    float values[8] = {0};
    rank_check_code(rank, muster_send(group, values, 1, MUSTER_FLOAT32, rank->rank, 0, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "is this rank, and a rank has no messages with itself"));
    rank_check_code(rank, muster_receive(group, values, 1, MUSTER_FLOAT32, rank->rank, 0, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "is this rank, and a rank has no messages with itself"));
    rank_check_code(rank, muster_send(group, values, 1, MUSTER_FLOAT32, rank->size, 0, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "there is no rank 2: group 'world' has ranks 0 to 1"));
    rank_check_code(rank, muster_send(group, values, 1, MUSTER_FLOAT32, 1 - rank->rank, UINT32_MAX, NULL),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_receive(group, NULL, 1, MUSTER_FLOAT32, 1 - rank->rank, 0, NULL, NULL), MUSTER_EINVAL);
    if (rank->rank == 0) { /* a short one: the sender hears of it in its next call */
        (void)muster_send(group, values, 8, MUSTER_FLOAT32, 1, 3, NULL);
        rank_await(rank, 1, MARK_READY);
        rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EMISMATCH);
        rank_check(rank, strstr(muster_detail(), "rank 0 sends "));
    } else {
        bool by_type = *(int *)which == 1;
        rank_check_code(
            rank,
            muster_receive(group, values, by_type ? 8 : 4, by_type ? MUSTER_INT32 : MUSTER_FLOAT32, 0, 3, NULL, NULL),
            MUSTER_EMISMATCH);
        rank_report(rank, muster_detail());
        rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EGROUP);
    }
    rank_mark(rank, MARK_READY);
    rank_await(rank, 1 - rank->rank, MARK_READY);
    muster_group_free(group);
    return 0;
}

static void messages_that_do_not_fit_are_mismatches(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct ranks *ranks = ranks_start(2, send_what_does_not_fit, &which, NULL);
        assert_int_equal(ranks_wait(ranks, 0), 0);
        assert_int_equal(ranks_wait(ranks, 1), 0);
        assert_non_null(strstr(ranks_report(ranks, 1), "from rank 0, tag 3 (group 'world'"));
        assert_non_null(strstr(ranks_report(ranks, 1),
                               which == 1 ? "rank 0 sends elements of float32, rank 1 expects elements of int32"
                                          : "rank 0 sends a message of 32 bytes, rank 1 has room for 16"));
        ranks_free(ranks);
    }
}

/* Another tag than the receive's: both sentences say what the other side would have to do. */
static int send_with_another_tag(struct rank *rank, void *argument) {
    (void)argument;
    static int32_t data[LARGE];
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, muster_group_set_timeout(group, 500), 0);
    int code = rank->rank == 0 ? muster_send(group, data, LARGE, MUSTER_INT32, 1, 7, NULL)
                               : muster_receive(group, data, LARGE, MUSTER_INT32, 0, 8, NULL, NULL);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_ETIMEOUT);
    muster_group_free(group);
    return 0;
}

static void another_tag_is_told(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct ranks *ranks = ranks_start(2, send_with_another_tag, NULL, &layouts[i]);
        (void)ranks_wait(ranks, 0);
        (void)ranks_wait(ranks, 1);
        const char *sender = ranks_report(ranks, 0), *receiver = ranks_report(ranks, 1);
        const char *lacks = "no message with tag 8 has come";
        if (!strstr(sender, "takes a receive from rank 0 with tag 7") && !strstr(sender, lacks)) {
            fail_msg("the sender: '%s'", sender);
        }
        if (!strstr(receiver, lacks) && !strstr(receiver, "takes a receive from rank 0 with tag 7")) {
            fail_msg("the receiver: '%s'", receiver);
        }
        if (!ranks_use_engine("mpi") && strstr(receiver, lacks) &&
            !strstr(receiver, "; what waits for a receive: tag 7 from rank 0")) {
            fail_msg("the receiver: '%s'", receiver);
        }
        ranks_free(ranks);
    }
}

/* ---- coalesced ---- */

static int coalesce(struct rank *rank, void *argument) {
    (void)argument;
    static int32_t out[LARGE], in[LARGE];
    struct muster_group *group = rank_group(rank, NULL);
    uint32_t size = rank->size, next = (rank->rank + 1) % size, previous = (rank->rank + size - 1) % size;
    for (int round = 0; round < 3; round++) {
        struct muster_work *work = NULL;
        struct muster_message message = {0};
        int32_t small[3][5], sums[3][5], most = (int32_t)rank->rank, root = (int32_t)rank->rank;
        size_t counts[8], gathered[8];
        for (int i = 0; i < 15; i++) {
            small[i / 5][i % 5] = (int32_t)rank->rank + i;
        }
        for (size_t i = 0; i < LARGE; i++) {
            out[i] = (int32_t)(rank->rank + i);
        }
        rank_check_code(rank, muster_coalesce_begin(group), 0);
        rank_check_code(rank, muster_coalesce_begin(group), MUSTER_EINVAL);
        /* Everybody sends before receiving, and more than fits anywhere. */
        rank_check_code(rank, muster_send(group, out, LARGE, MUSTER_INT32, next, 0, NULL), 0);
        for (int i = 0; i < 3; i++) {
            rank_check_code(rank, muster_all_reduce(group, small[i], sums[i], 5, MUSTER_INT32, MUSTER_OP_SUM, NULL), 0);
        }
        rank_check_code(rank, muster_all_reduce(group, &most, &most, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL), 0);
        rank_check_code(rank, muster_receive(group, in, LARGE, MUSTER_INT32, previous, 0, &message, NULL), 0);
        for (uint32_t r = 0; r < size; r++) {
            counts[r] = 1;
        }
        size_t own = rank->rank;
        rank_check_code(rank, muster_all_gather_v(group, &own, gathered, counts, MUSTER_INT64, NULL), 0);
        memset(counts, 0xFF, sizeof counts); /* they were copied */
        rank_check_code(rank, muster_broadcast(group, &root, 1, MUSTER_INT32, 1, NULL), 0);
        rank_check(rank, most == (int32_t)rank->rank); /* nothing has run */
        rank_check_code(rank, muster_coalesce_end(group, round == 1 ? &work : NULL), 0);
        rank_check_code(rank, muster_work_wait(&work), 0);
        for (int i = 0; i < 15; i++) {
            rank_check(rank, sums[i / 5][i % 5] == (int32_t)(size * (size - 1) / 2 + size * (uint32_t)i));
        }
        rank_check(rank, most == (int32_t)size - 1 && root == 1 && gathered[size - 1] == size - 1);
        rank_check(rank, message.count == LARGE && in[LARGE - 1] == (int32_t)(previous + LARGE - 1));
    }
    rank_check_code(rank, muster_coalesce_end(group, NULL), MUSTER_EINVAL);
    muster_group_free(group);
    return 0;
}

static void coalesced_calls_run_together(void **state) {
    (void)state;
    run_everywhere(4, coalesce);
}

static int coalesce_too_many(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    static int32_t values[MUSTER_COALESCED_MAX + 1];
    rank_check_code(rank, muster_coalesce_begin(group), 0);
    for (uint32_t i = 0; i <= MUSTER_COALESCED_MAX; i++) {
        values[i] = 1;
        rank_check_code(rank, muster_all_reduce(group, &values[i], &values[i], 1, MUSTER_INT32, MUSTER_OP_SUM, NULL),
                        i < MUSTER_COALESCED_MAX ? 0 : MUSTER_ELIMIT);
    }
    rank_check_code(rank, muster_coalesce_end(group, NULL), 0);
    for (uint32_t i = 0; i < MUSTER_COALESCED_MAX; i++) {
        rank_check(rank, values[i] == (int32_t)rank->size);
    }
    rank_check_code(rank, muster_coalesce_begin(group), 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group); /* in the middle */
    return 0;
}

static void coalescing_has_a_limit(void **state) {
    (void)state;
    ranks_run(2, coalesce_too_many, NULL);
}

static int refuse_memory(struct engine *engine, size_t bytes, void **out) {
    (void)engine;
    (void)out;
    return status_fail(MUSTER_ENOMEM, "the test gives no %zu bytes", bytes);
}

/* Rank 1 has no memory to put its calls together, while all wait for each other's messages. */
static int lack_memory(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    uint32_t next = (rank->rank + 1) % rank->size, previous = (rank->rank + rank->size - 1) % rank->size;
    int32_t values[2] = {1, 1}, got = 0;
    struct engine_table table = *group->engine->table;
    table.allocate = refuse_memory;
    if (rank->rank == 1) {
        group->engine->table = &table;
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, muster_coalesce_begin(group), 0);
    rank_check_code(rank, muster_receive(group, &got, 1, MUSTER_INT32, previous, 0, NULL, NULL), 0);
    if (rank->rank != 0) { /* so that rank 1 waits in vain */
        rank_check_code(rank, muster_send(group, &values[0], 1, MUSTER_INT32, next, 0, NULL), 0);
    }
    for (int i = 0; i < 2; i++) {
        rank_check_code(rank, muster_all_reduce(group, &values[i], &values[i], 1, MUSTER_INT32, MUSTER_OP_SUM, NULL),
                        0);
    }
    rank_mark(rank, MARK_READY);
    for (uint32_t other = 0; rank->rank == 1 && other < rank->size; other++) {
        rank_await(rank, other, MARK_READY); /* else its failure may meet them in the barrier */
    }
    rank_check_code(rank, muster_coalesce_end(group, NULL), MUSTER_ENOMEM);
    rank_check(rank, strstr(muster_detail(), "the test gives no "));
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EGROUP);
    muster_group_free(group);
    return 0;
}

static void a_lack_of_memory_ends_coalesced_calls_everywhere(void **state) {
    (void)state;
    run_everywhere(3, lack_memory);
}

/* ---- deaths ---- */

static int lose_the_other_side(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    int32_t value = 0;
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_mark(rank, MARK_READY);
    if (rank->rank == 1) {
        rank_await(rank, 0, MARK_READY);
        rank_await(rank, 2, MARK_READY);
        (void)raise(SIGKILL);
    }
    uint32_t from = rank->rank == 0 ? 1 : MUSTER_ANY_RANK;
    rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT32, from, 0, NULL, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    rank_check_code(rank, muster_send(group, &value, 1, MUSTER_INT32, rank->rank == 0 ? 2 : 0, 0, NULL), MUSTER_EGROUP);
    muster_group_free(group);
    return 0;
}

static void a_death_ends_waits_for_messages(void **state) {
    (void)state;
    for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
        struct ranks *ranks = ranks_start(3, lose_the_other_side, NULL, &layouts[layout]);
        assert_int_equal(ranks_wait(ranks, 1), RANKS_KILLED - SIGKILL);
        for (uint32_t rank = 0; rank < 3; rank += 2) {
            if (ranks_wait(ranks, rank) != 0 || !strstr(ranks_report(ranks, rank), "rank 1 ")) {
                fail_msg("layout %d: rank %u ended with %d: '%s'", layout, rank, ranks_wait(ranks, rank),
                         ranks_report(ranks, rank));
            }
        }
        ranks_free(ranks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_go_round),
        cmocka_unit_test(messages_come_out_of_shared_memory),
        cmocka_unit_test(handles_tags_and_any_rank),
        cmocka_unit_test(messages_of_a_freed_group_take_no_room),
        cmocka_unit_test(a_barrier_brings_messages_forward),
        cmocka_unit_test(short_messages_wait_for_nobody),
        cmocka_unit_test(sockets_wake_who_sleeps_in_a_barrier),
        cmocka_unit_test(messages_that_do_not_fit_are_mismatches),
        cmocka_unit_test(another_tag_is_told),
        cmocka_unit_test(coalesced_calls_run_together),
        cmocka_unit_test(coalescing_has_a_limit),
        cmocka_unit_test(a_lack_of_memory_ends_coalesced_calls_everywhere),
        cmocka_unit_test(a_death_ends_waits_for_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
