/* Memory that one rank lacks while it gathers: it must not go on, since it would choose other slots than its
 * neighbours, and nobody waits for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include <muster/fsdp.h>

#include "comm/group/ranks_test_support.h"

enum { UNITS = 3, LACKING = 1 /* the rank */ };

/* Of the thread that acquires: 1 fails its next call, 2 the one after; 0: none. */
static _Thread_local int calls_to_failure;

void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) {
    if (calls_to_failure > 0 && --calls_to_failure == 0) {
        return NULL;
    }
    return __real_realloc(memory, bytes);
}

static int use_all(struct muster_fsdp *fsdp) {
    int status = muster_fsdp_begin(fsdp, MUSTER_FSDP_EVALUATE);
    for (size_t unit = 0; status == 0 && unit < UNITS; unit++) {
        struct muster_fsdp_view view;
        status = muster_fsdp_acquire(fsdp, unit, MUSTER_FSDP_FORWARD, &view);
        status = status ? status : muster_fsdp_release(fsdp, unit, MUSTER_FSDP_FORWARD);
    }
    return status ? status : muster_fsdp_finish(fsdp);
}

static int lack_memory(struct rank *rank, void *argument) {
    static const struct muster_fsdp_parameter parameters[UNITS] = {
        {.name = "a", .count = 64}, {.name = "b", .count = 64}, {.name = "c", .count = 64}};
    static const struct muster_fsdp_unit units[UNITS] = {
        {"first", &parameters[0], 1}, {"second", &parameters[1], 1}, {"third", &parameters[2], 1}};
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    rank_check_code(rank, muster_fsdp_create(group, units, UNITS, NULL, &fsdp), 0);
    if (rank->rank == LACKING) {
        calls_to_failure = *(const int *)argument;
        rank_check_code(rank, use_all(fsdp), MUSTER_ENOMEM);
        rank_check(rank, calls_to_failure == 0);
    } else {
        rank_check(rank, use_all(fsdp) != 0);
    }
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

/* The list of slots, and the order of units. */
static void all_hear_of_memory_that_one_rank_lacks(void **state) {
    (void)state;
    const struct ranks_options own_hosts = {.ranks_per_host = 1};
    for (int call = 1; call <= 2; call++) {
        ranks_run_with(2, lack_memory, &call, &own_hosts);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_hear_of_memory_that_one_rank_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
