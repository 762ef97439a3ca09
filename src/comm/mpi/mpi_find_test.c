/* The order in which MPI libraries are looked for; see mpi_find.h. */
#include "comm/mpi/mpi_find.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The value of any variable that is in the list of names. */
static const char *find(void *context, const char *name) {
    for (const char *const *entry = context; *entry; entry++) {
        if (strncmp(*entry, name, strlen(name)) == 0 && (*entry)[strlen(name)] == '=') {
            return *entry + strlen(name) + 1;
        }
    }
    return NULL;
}

#define ENVIRONMENT(...)                                                                                               \
    (void *)(const char *const[]) {                                                                                    \
        __VA_ARGS__, NULL                                                                                              \
    }

/* "in-use loaded:NAME ... NAME ..." */
static void check_order(void *environment, const char *want) {
    struct mpi_candidate candidates[MPI_CANDIDATES_MAX];
    size_t count = mpi_find_order(find, environment, candidates), used = 0;
    char text[1024] = "";
    static const char *const places[] = {"named:", "in-use", "loaded:", ""};
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", used ? " " : "",
                                 places[candidates[i].place], candidates[i].name ? candidates[i].name : "");
    }
    assert_string_equal(text, want);
}

#define OPEN_MPI_FIRST                                                                                                 \
    "in-use loaded:libmpi.so.40 loaded:libmpi_abi.so.1 loaded:libmpi.so.12 loaded:libmpich.so.12 loaded:libmpi.so "    \
    "libmpi.so.40 libmpi_abi.so.1 libmpi.so.12 libmpich.so.12 libmpi.so"
#define MPICH_FIRST                                                                                                    \
    "in-use loaded:libmpi.so.12 loaded:libmpich.so.12 loaded:libmpi_abi.so.1 loaded:libmpi.so.40 loaded:libmpi.so "    \
    "libmpi.so.12 libmpich.so.12 libmpi_abi.so.1 libmpi.so.40 libmpi.so"

static void what_the_user_names_is_the_only_one(void **state) {
    (void)state;
    check_order(ENVIRONMENT("MUSTER_MPI_LIBRARY=/opt/libmpi.so", "PMI_RANK=0"), "named:/opt/libmpi.so");
    check_order(ENVIRONMENT("MUSTER_MPI_LIBRARY="), OPEN_MPI_FIRST);
}

static void the_family_of_the_starter_comes_first(void **state) {
    (void)state;
    check_order(ENVIRONMENT("HOME=/"), OPEN_MPI_FIRST);
    check_order(ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=1"), OPEN_MPI_FIRST);
    check_order(ENVIRONMENT("PMIX_RANK=1"), OPEN_MPI_FIRST);
    check_order(ENVIRONMENT("PMI_RANK=1"), MPICH_FIRST);
    check_order(ENVIRONMENT("PMI_FD=7"), MPICH_FIRST);
    check_order(ENVIRONMENT("PMI_PORT=host:1"), MPICH_FIRST);
    check_order(ENVIRONMENT("OMPI_COMM_WORLD_RANK=1", "PMI_RANK=1"), OPEN_MPI_FIRST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_user_names_is_the_only_one),
        cmocka_unit_test(the_family_of_the_starter_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
