/* What calls of NCCL a collective consists of: every operation, roots, counts per rank, in place, types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "comm/nccl/nccl_abi.h"
#include "comm/nccl/nccl_plan.h"

enum { SIZE = 4 };

static char send[4096], receive[4096];
static struct nccl_step steps[2 * SIZE];

static struct comm_call call_of(enum comm_operation operation, enum muster_type type) {
    struct comm_call call = {
        .operation = operation, .type = type, .root = 1, .count = 10, .send = send, .receive = receive};
    comm_call_prepare(&call, SIZE);
    return call;
}

static void expect_step(size_t i, enum nccl_step_kind kind, const char *from, const char *to, size_t count, int rank) {
    assert_int_equal(steps[i].kind, kind);
    if (from) {
        assert_ptr_equal(steps[i].send, from);
    }
    if (to) {
        assert_ptr_equal(steps[i].receive, to);
    }
    assert_int_equal(steps[i].count, count);
    assert_int_equal(steps[i].rank, rank);
}

static void what_nccl_has_is_one_call(void **state) {
    (void)state;
    static const struct {
        enum comm_operation operation;
        enum nccl_step_kind kind;
        int root;
    } cases[] = {{COMM_ALL_REDUCE, NCCL_STEP_ALL_REDUCE, 0},
                 {COMM_REDUCE, NCCL_STEP_REDUCE, 1},
                 {COMM_BROADCAST, NCCL_STEP_BROADCAST, 1},
                 {COMM_ALL_GATHER, NCCL_STEP_ALL_GATHER, 0},
                 {COMM_REDUCE_SCATTER, NCCL_STEP_REDUCE_SCATTER, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm_call call = call_of(cases[i].operation, MUSTER_FLOAT32);
        call.reduction = MUSTER_OP_MAX;
        assert_int_equal(nccl_plan_make(&call, 2, SIZE, false, steps), 1);
        expect_step(0, cases[i].kind, send, receive, 10, cases[i].root);
        assert_int_equal(steps[0].type, NCCL_FLOAT32);
        assert_int_equal(steps[0].reduction, comm_has_reduction(call.operation) ? NCCL_MAX : NCCL_SUM);
    }
}

static void what_it_cannot_do_is_known(void **state) {
    (void)state;
    for (int type = 0; type < MUSTER_TYPE_COUNT; type++) {
        for (int reduction = 0; reduction < MUSTER_REDUCTION_COUNT; reduction++) {
            struct comm_call call = call_of(COMM_ALL_REDUCE, (enum muster_type)type);
            bool is_short = type == MUSTER_INT16 || type == MUSTER_UINT16, is_bits = reduction >= MUSTER_OP_BIT_AND;
            call.reduction = (enum muster_reduction)reduction;
            assert_int_equal(nccl_plan_is_possible(&call), !is_short && !is_bits);
            call.operation = COMM_REDUCE_SCATTER;
            assert_int_equal(nccl_plan_is_possible(&call), !is_short && !is_bits);
            call.operation = COMM_ALL_GATHER; /* moves it as bytes */
            assert_true(nccl_plan_is_possible(&call));
            call.operation = COMM_SCAN;
            assert_false(nccl_plan_is_possible(&call));
            call.operation = COMM_EXSCAN;
            assert_false(nccl_plan_is_possible(&call));
        }
    }
}

static void types_that_nccl_lacks_are_moved_as_bytes(void **state) {
    (void)state;
    struct comm_call call = call_of(COMM_BROADCAST, MUSTER_UINT16);
    assert_int_equal(nccl_plan_make(&call, 0, SIZE, false, steps), 1);
    assert_int_equal(steps[0].type, NCCL_UINT8);
    assert_int_equal(steps[0].count, 20);
}

static void a_gather_is_messages_and_a_copy(void **state) {
    (void)state;
    struct comm_call call = call_of(COMM_GATHER, MUSTER_FLOAT64);
    assert_int_equal(nccl_plan_make(&call, 3, SIZE, false, steps), 1);
    expect_step(0, NCCL_STEP_SEND, send, NULL, 10, 1);
    assert_int_equal(nccl_plan_make(&call, 1, SIZE, false, steps), 4);
    expect_step(0, NCCL_STEP_COPY, send, receive + 80, 80, 1);
    expect_step(1, NCCL_STEP_RECEIVE, NULL, receive, 10, 0);
    expect_step(2, NCCL_STEP_RECEIVE, NULL, receive + 160, 10, 2);
    expect_step(3, NCCL_STEP_RECEIVE, NULL, receive + 240, 10, 3);
    call.send = receive + 80; /* in place */
    assert_int_equal(nccl_plan_make(&call, 1, SIZE, false, steps), 3);
}

static void a_scatter_with_counts_skips_those_who_get_nothing(void **state) {
    (void)state;
    const size_t counts[SIZE] = {3, 0, 0, 5};
    struct comm_call call = call_of(COMM_SCATTER, MUSTER_INT32);
    call.send_counts = counts;
    assert_int_equal(nccl_plan_make(&call, 1, SIZE, false, steps), 2); /* the root, which gets nothing */
    expect_step(0, NCCL_STEP_SEND, send, NULL, 3, 0);
    expect_step(1, NCCL_STEP_SEND, send + 12, NULL, 5, 3);
    assert_int_equal(nccl_plan_make(&call, 2, SIZE, false, steps), 0);
    assert_int_equal(nccl_plan_make(&call, 3, SIZE, false, steps), 1);
    expect_step(0, NCCL_STEP_RECEIVE, NULL, receive, 5, 1);
    assert_true(nccl_plan_may_be_idle(&call, SIZE));
}

static void counts_per_rank_are_a_call_for_each(void **state) {
    (void)state;
    const size_t counts[SIZE] = {3, 0, 1, 5};
    struct comm_call call = call_of(COMM_ALL_GATHER, MUSTER_INT32);
    call.receive_counts = counts;
    assert_int_equal(nccl_plan_make(&call, 2, SIZE, false, steps), 3);
    expect_step(0, NCCL_STEP_BROADCAST, receive, receive, 3, 0);
    expect_step(1, NCCL_STEP_BROADCAST, send, receive + 12, 1, 2);
    expect_step(2, NCCL_STEP_BROADCAST, receive + 16, receive + 16, 5, 3);
    call.operation = COMM_REDUCE_SCATTER;
    assert_int_equal(nccl_plan_make(&call, 3, SIZE, false, steps), 3);
    expect_step(0, NCCL_STEP_REDUCE, send, NULL, 3, 0);
    expect_step(1, NCCL_STEP_REDUCE, send + 12, NULL, 1, 2);
    expect_step(2, NCCL_STEP_REDUCE, send + 16, receive, 5, 3);
    assert_false(nccl_plan_may_be_idle(&call, SIZE));
}

static void an_all_to_all_is_a_message_to_and_from_each(void **state) {
    (void)state;
    struct comm_call call = call_of(COMM_ALL_TO_ALL, MUSTER_INT16);
    assert_int_equal(nccl_plan_make(&call, 0, SIZE, false, steps), 7);
    expect_step(0, NCCL_STEP_COPY, send, receive, 20, 0);
    for (int rank = 1; rank < SIZE; rank++) {
        expect_step((size_t)rank * 2 - 1, NCCL_STEP_SEND, send + rank * 20, NULL, 20, rank);
        expect_step((size_t)rank * 2, NCCL_STEP_RECEIVE, NULL, receive + rank * 20, 20, rank);
    }
    assert_false(nccl_plan_needs_copy(&call));
    assert_false(nccl_plan_may_be_idle(&call, SIZE));
    call.receive = send;
    assert_true(nccl_plan_needs_copy(&call));
}

static void an_all_to_all_with_counts_has_each_ranks_own(void **state) {
    (void)state;
    const size_t sent[SIZE] = {2, 1, 0, 4}, received[SIZE] = {0, 1, 3, 0};
    struct comm_call call = call_of(COMM_ALL_TO_ALL, MUSTER_UINT8);
    call.send_counts = sent;
    call.receive_counts = received;
    assert_int_equal(nccl_plan_make(&call, 1, SIZE, false, steps), 4);
    expect_step(0, NCCL_STEP_COPY, send + 2, receive, 1, 1);
    expect_step(1, NCCL_STEP_SEND, send, NULL, 2, 0);
    expect_step(2, NCCL_STEP_RECEIVE, NULL, receive + 1, 3, 2);
    expect_step(3, NCCL_STEP_SEND, send + 3, NULL, 4, 3);
    assert_true(nccl_plan_may_be_idle(&call, SIZE));
}

static void a_newer_nccl_has_them_as_calls(void **state) {
    (void)state;
    static const struct {
        enum comm_operation operation;
        enum nccl_step_kind kind;
        int root;
    } cases[] = {{COMM_GATHER, NCCL_STEP_GATHER, 1},
                 {COMM_SCATTER, NCCL_STEP_SCATTER, 1},
                 {COMM_ALL_TO_ALL, NCCL_STEP_ALL_TO_ALL, 0}};
    const size_t counts[SIZE] = {3, 0, 0, 5};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm_call call = call_of(cases[i].operation, MUSTER_INT16);
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            assert_int_equal(nccl_plan_make(&call, rank, SIZE, true, steps), 1);
            expect_step(0, cases[i].kind, send, receive, 20, cases[i].root);
            assert_int_equal(steps[0].type, NCCL_UINT8);
        }
        call.send_counts = cases[i].operation == COMM_GATHER ? NULL : counts;
        call.receive_counts = cases[i].operation == COMM_SCATTER ? NULL : counts;
        (void)nccl_plan_make(&call, 1, SIZE, true, steps); /* with counts they are messages, as before */
        assert_true(steps[0].kind != cases[i].kind && steps[1].kind != cases[i].kind);
        call.count = 0;
        call.send_counts = call.receive_counts = NULL;
        assert_int_equal(nccl_plan_make(&call, 1, SIZE, true, steps), 0);
    }
    struct comm_call other = call_of(COMM_ALL_GATHER, MUSTER_INT32);
    assert_int_equal(nccl_plan_make(&other, 1, SIZE, true, steps), 1);
    expect_step(0, NCCL_STEP_ALL_GATHER, send, receive, 10, 0);
}

static void buffers_have_the_sizes_of_the_calls(void **state) {
    (void)state;
    static const struct {
        enum comm_operation operation;
        size_t sent[2], received[2]; /* at the root (rank 1), and at rank 2 */
    } cases[] = {{COMM_ALL_REDUCE, {10, 10}, {10, 10}},     {COMM_REDUCE, {10, 10}, {10, 0}},
                 {COMM_BROADCAST, {10, 0}, {10, 10}},       {COMM_ALL_GATHER, {10, 10}, {40, 40}},
                 {COMM_GATHER, {10, 10}, {40, 0}},          {COMM_SCATTER, {40, 0}, {10, 10}},
                 {COMM_REDUCE_SCATTER, {40, 40}, {10, 10}}, {COMM_ALL_TO_ALL, {40, 40}, {40, 40}},
                 {COMM_SCAN, {10, 10}, {10, 10}},           {COMM_EXSCAN, {10, 10}, {10, 10}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm_call call = call_of(cases[i].operation, MUSTER_INT8);
        for (uint32_t at = 0; at < 2; at++) {
            assert_int_equal(nccl_plan_send_count(&call, 1 + at, SIZE), cases[i].sent[at]);
            assert_int_equal(nccl_plan_receive_count(&call, 1 + at, SIZE), cases[i].received[at]);
        }
    }
    struct comm_call first = call_of(COMM_EXSCAN, MUSTER_INT8);
    assert_int_equal(nccl_plan_receive_count(&first, 0, SIZE), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nccl_has_is_one_call),
        cmocka_unit_test(what_it_cannot_do_is_known),
        cmocka_unit_test(types_that_nccl_lacks_are_moved_as_bytes),
        cmocka_unit_test(a_gather_is_messages_and_a_copy),
        cmocka_unit_test(a_scatter_with_counts_skips_those_who_get_nothing),
        cmocka_unit_test(counts_per_rank_are_a_call_for_each),
        cmocka_unit_test(an_all_to_all_is_a_message_to_and_from_each),
        cmocka_unit_test(an_all_to_all_with_counts_has_each_ranks_own),
        cmocka_unit_test(a_newer_nccl_has_them_as_calls),
        cmocka_unit_test(buffers_have_the_sizes_of_the_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
