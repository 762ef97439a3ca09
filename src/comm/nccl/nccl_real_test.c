/* The real NCCL, where there is one: it opens, has every function, and says in words what it lacks on a machine without
 * a GPU. On one with a GPU, a group of one rank makes every call. MUSTER_NCCL_HOME: the folder with lib/libnccl.so.2
 * (an unpacked nvidia-nccl-cu12: nvidia/nccl). Without it this is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "comm/device/cuda_library.h"
#include "comm/nccl/device_matrix_test_support.h"
#include "comm/nccl/engine_nccl.h"
#include "comm/nccl/nccl_library.h"

static const struct nccl_library *nccl;

static void it_has_every_function(void **state) {
    (void)state;
    nccl = nccl_library();
    if (!nccl) {
        fail_msg("%s", muster_detail());
    }
    print_message("NCCL %d\n", nccl->version);
    assert_true(nccl->version >= NCCL_LEAST_VERSION);
    assert_int_equal(nccl->memory_allocate != NULL, nccl->version >= 21900);
    assert_int_equal(nccl->comm_register != NULL, nccl->version >= 21900);
    assert_int_equal(nccl->comm_shrink != NULL, nccl->version >= 22700);
    assert_int_equal(nccl->all_to_all != NULL, nccl->version >= 22800);
    assert_int_equal(nccl->gather != NULL, nccl->version >= 22800);
    assert_int_equal(nccl->scatter != NULL, nccl->version >= 22800);
    assert_int_equal(nccl->comm_revoke != NULL, nccl->version >= 22900);
}

static void its_errors_have_words(void **state) {
    (void)state;
    for (unsigned result = NCCL_OK; result <= NCCL_IN_PROGRESS; result++) {
        assert_true(strlen(nccl->error_string(result)) > 3);
    }
    assert_string_not_equal(nccl->error_string(NCCL_OK), nccl->error_string(NCCL_REMOTE_ERROR));
    assert_non_null(nccl->last_error(NULL));
}

static void a_group_call_of_nothing_works(void **state) {
    (void)state;
    assert_int_equal(nccl->group_start(), NCCL_OK);
    assert_int_equal(nccl->group_end(), NCCL_OK);
}

/* On a machine with a GPU: a group of one rank makes every call on it. In a process of its own, since a fork of one
 * that has begun CUDA cannot use it. */
static int gpu_body(struct rank *rank, void *argument) {
    struct device_rank d;
    (void)argument;
    if (!cuda_library()) {
        print_message("no GPU: %s\n", muster_detail());
        return 0;
    }
    device_rank_start(rank, &d);
    device_matrix_run(&d, 20241001, 1);
    device_rank_end(&d);
    print_message("a group of one rank on a GPU: every collective, type and reduction\n");
    return 0;
}

static void a_group_works_where_there_is_a_gpu(void **state) {
    (void)state;
    ranks_run(1, gpu_body, NULL);
}

static void without_a_gpu_a_communicator_is_a_sentence(void **state) {
    (void)state;
    struct nccl_id id;
    struct ncclComm *comm = NULL;
    struct nccl_config config = NCCL_CONFIG_INIT;
    if (cuda_library()) {
        return;
    }
    unsigned result = nccl->get_id(&id);
    if (result == NCCL_OK) {
        result = nccl->comm_init_config(&comm, 1, id, 0, &config);
    }
    assert_int_not_equal(result, NCCL_OK);
    assert_int_equal(nccl_fail(nccl, result, NULL, "make a communicator"), MUSTER_ESYSTEM);
    print_message("%s\n", muster_detail());
    assert_non_null(strstr(muster_detail(), "make a communicator: NCCL: "));
}

static void the_engine_names_the_driver_first(void **state) {
    (void)state;
    struct engine *engine = NULL;
    struct engine_nccl_config config = {.size = 2, .name = "world"};
    if (cuda_library()) {
        return;
    }
    assert_int_equal(engine_nccl_create(&config, &engine), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "NVIDIA's driver"));
}

int main(void) {
    const char *home = getenv("MUSTER_NCCL_HOME");
    char path[4096];
    if (!home || !*home) {
        print_message("SKIP: MUSTER_NCCL_HOME names no NCCL\n");
        return 77;
    }
    (void)snprintf(path, sizeof path, "%s/lib/libnccl.so.2", home);
    (void)setenv("MUSTER_NCCL_LIBRARY", path, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_works_where_there_is_a_gpu), /* before this process knows of one */
        cmocka_unit_test(it_has_every_function),
        cmocka_unit_test(its_errors_have_words),
        cmocka_unit_test(a_group_call_of_nothing_works),
        cmocka_unit_test(without_a_gpu_a_communicator_is_a_sentence),
        cmocka_unit_test(the_engine_names_the_driver_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
