/* The engine of one rank: every collective gives what it was given, also with counts, in place, and of nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/engine/engine_solo.h"
#include "comm/host/memory.h"

static struct memory *memory;
static struct engine *engine;

static int make(void **state) {
    (void)state;
    int32_t pid = (int32_t)getpid();
    return memory_create(NULL, 0, &pid, 1, &memory) || engine_solo_create(memory, &engine);
}

static int unmake(void **state) {
    (void)state;
    engine_free(engine);
    memory_free(memory);
    return 0;
}

static int run(struct comm_call call) {
    comm_call_prepare(&call, 1);
    return engine->table->start(engine, &call, 1, INT64_MAX);
}

static const enum comm_operation operations[] = {COMM_ALL_REDUCE, COMM_REDUCE,  COMM_BROADCAST,      COMM_ALL_GATHER,
                                                 COMM_GATHER,     COMM_SCATTER, COMM_REDUCE_SCATTER, COMM_ALL_TO_ALL};

static void every_operation_copies(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        float send[3] = {1.5F, -2.0F, 3.0F}, receive[4] = {9, 9, 9, 9};
        assert_int_equal(run((struct comm_call){.operation = operations[i],
                                                .type = MUSTER_FLOAT32,
                                                .reduction = MUSTER_OP_AVERAGE,
                                                .count = 3,
                                                .send = send,
                                                .receive = receive}),
                         ENGINE_DONE);
        assert_memory_equal(send, receive, sizeof send);
        assert_true(receive[3] == 9);
    }
}

static void counts_of_one_rank_are_its_own(void **state) {
    (void)state;
    static const size_t counts[] = {2};
    for (size_t i = 3; i < sizeof operations / sizeof *operations; i++) {
        int32_t send[3] = {1, 2, 3}, receive[3] = {9, 9, 9};
        bool sends = operations[i] == COMM_SCATTER || operations[i] == COMM_ALL_TO_ALL;
        bool receives = operations[i] != COMM_SCATTER;
        assert_int_equal(run((struct comm_call){.operation = operations[i],
                                                .type = MUSTER_INT32,
                                                .send = send,
                                                .receive = receive,
                                                .send_counts = sends ? counts : NULL,
                                                .receive_counts = receives ? counts : NULL}),
                         ENGINE_DONE);
        assert_int_equal(receive[0], 1);
        assert_int_equal(receive[1], 2);
        assert_int_equal(receive[2], 9);
    }
}

static void nothing_is_done_in_place_and_of_nothing(void **state) {
    (void)state;
    double values[2] = {1, 2};
    struct comm_call call = {.operation = COMM_BROADCAST, .type = MUSTER_FLOAT64, .count = 2};
    call.send = call.receive = values;
    assert_int_equal(run(call), ENGINE_DONE);
    assert_true(values[0] == 1 && values[1] == 2);
    assert_int_equal(run((struct comm_call){.operation = COMM_BARRIER}), ENGINE_DONE);
    assert_int_equal(run((struct comm_call){.operation = COMM_ALL_GATHER, .type = MUSTER_INT8}), ENGINE_DONE);
}

static void memory_is_the_contexts(void **state) {
    (void)state;
    void *block = NULL;
    assert_int_equal(engine->table->allocate(engine, 100, &block), 0);
    assert_int_equal((uintptr_t)block % 64, 0);
    memory_release(memory, block); /* another group of the context may give it back */
    assert_int_equal(engine->table->allocate(engine, 100, &block), 0);
    engine->table->release(engine, block);
    engine->table->release(engine, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_copies),
        cmocka_unit_test(counts_of_one_rank_are_its_own),
        cmocka_unit_test(nothing_is_done_in_place_and_of_nothing),
        cmocka_unit_test(memory_is_the_contexts),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
