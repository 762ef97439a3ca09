/* Opening MPI libraries that are whole, and that are not: each has its sentence, and nothing of it stays. The libraries
 * are doubles (mpi_double_test_support.c), in the folder MPI_DOUBLES. See mpi_library.h. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/status.h"
#include "comm/mpi/mpi_library_impl.h"

#define DOUBLE(name) MPI_DOUBLES "/" name ".so"

/* The allocation that fails, counted from 1; 0: none. */
static int failing;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size) {
    return failing > 0 && --failing == 0 ? NULL : __real_calloc(count, size);
}

static int open_named(const char *path, struct mpi **out) {
    struct mpi_candidate candidate = {MPI_PLACE_NAMED, path};
    return mpi_library_open(&candidate, 1, out);
}

static bool is_loaded(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library) {
        dlclose(library);
    }
    return library != NULL;
}

static struct mpi *open_well(const char *path) {
    struct mpi *mpi = NULL;
    if (open_named(path, &mpi) != 0) {
        fail_msg("%s: %s", path, muster_detail());
    }
    return mpi;
}

/* The sentence begins with MUSTER_MPI_LIBRARY=path and has all of these. */
static void check_refused(const char *path, int code, const char *first, const char *second) {
    struct mpi *mpi = NULL;
    char begin[1024];
    assert_int_equal(open_named(path, &mpi), code);
    snprintf(begin, sizeof begin, "MUSTER_MPI_LIBRARY=%s", path);
    if (strncmp(muster_detail(), begin, strlen(begin)) != 0 || !strstr(muster_detail(), first) ||
        !strstr(muster_detail(), second)) {
        fail_msg("not \"%s\" and \"%s\": %s", first, second, muster_detail());
    }
    assert_null(mpi);
    assert_false(is_loaded(path));
}

static void one_of_each_abi_is_opened(void **state) {
    (void)state;
    struct mpi *mpi = open_well(DOUBLE("mpi_double_mpich"));
    assert_true(mpi->abi == MPI_ABI_MPICH && mpi->comm_world == 0x44000000);
    assert_string_equal(mpi->abi_name, "MPICH");
    assert_string_equal(mpi->version, "MPICH 3.9.1");
    assert_string_equal(mpi->path, DOUBLE("mpi_double_mpich"));
    assert_true(mpi->major == 3 && mpi->minor == 1 && mpi->has_large_counts && mpi->short_count_max == INT_MAX);
    assert_int_equal(mpi->calls->barrier(mpi, mpi->comm_world), 0);
    mpi_library_close(mpi);
    assert_false(is_loaded(DOUBLE("mpi_double_mpich")));

    mpi = open_well(DOUBLE("mpi_double_open_mpi"));
    void *library = dlopen(DOUBLE("mpi_double_open_mpi"), RTLD_NOW | RTLD_NOLOAD);
    assert_true(mpi->abi == MPI_ABI_OPEN_MPI && mpi->comm_world == (uintptr_t)dlsym(library, "ompi_mpi_comm_world"));
    assert_string_equal(mpi->version, "Open MPI v3.1.0");
    assert_false(mpi->has_large_counts);
    dlclose(library);
    mpi_library_close(mpi);

    mpi = open_well(DOUBLE("mpi_double_standard"));
    assert_true(mpi->abi == MPI_ABI_STANDARD && mpi->comm_world == 0x101 && mpi->major == 5);
    assert_string_equal(mpi->version, "Intel(R) MPI Library 2030.1 for Linux* OS");
    mpi_library_close(mpi);
    mpi_library_close(NULL);
}

/* MPICH 5 and Open MPI 6 have the standard's question in their own ABI, too; the standard ABI of Open MPI has Open
 * MPI's variables. */
static void what_the_library_answers_decides_on_the_abi(void **state) {
    (void)state;
    struct mpi *mpi = open_well(DOUBLE("mpi_double_own_abi"));
    assert_true(mpi->abi == MPI_ABI_MPICH && mpi->major == 5);
    mpi_library_close(mpi);
    mpi = open_well(DOUBLE("mpi_double_standard_over_open_mpi"));
    assert_true(mpi->abi == MPI_ABI_STANDARD);
    mpi_library_close(mpi);
}

static char folder[] = "/tmp/muster-mpi-test-XXXXXX";

static int make_folder(void **state) {
    memset(folder + sizeof folder - 7, 'X', 6);
    *state = mkdtemp(folder);
    return *state ? 0 : -1;
}

static int remove_folder(void **state) {
    return folder_remove(*state) == 0 ? 0 : -1;
}

static void write_file(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void what_cannot_be_loaded_is_refused(void **state) {
    char path[512];
    unsigned char other_class[4096] = {0x7f, 'E', 'L', 'F', 1 /* 32 bits */, 1, 1};
    other_class[16] = 3; /* a shared library, */
    other_class[18] = 3; /* for i386 */
    other_class[20] = 1;
    check_refused("/no/such/libmpi.so", MUSTER_ENOENT, "there is no such file", "path of an MPI library");
    check_refused("libno-such-mpi.so.1", MUSTER_ENOENT, "there is no such file", "libmpi.so.40");
    snprintf(path, sizeof path, "%s/libmpi.so", (const char *)*state);
    write_file(path, "INPUT(libmpi.so.12)\n", 20); /* as linkers read it, in the wheels of MPICH */
    check_refused(path, MUSTER_EUNSUPPORTED, path, "must be the path of an MPI library for this machine");
    write_file(path, other_class, sizeof other_class);
    check_refused(path, MUSTER_EUNSUPPORTED, "ELFCLASS32", "for this machine");
    assert_int_equal(unlink(path), 0);
    check_refused(DOUBLE("mpi_double_needy"), MUSTER_EUNSUPPORTED, "libmuster-absent.so.1", "with all that it needs");
}

static void what_is_no_mpi_is_refused(void **state) {
    (void)state;
    struct mpi *mpi = NULL;
    assert_int_equal(open_named("libm.so.6", &mpi), MUSTER_EUNSUPPORTED);
    assert_non_null(
        strstr(muster_detail(), "MUSTER_MPI_LIBRARY=libm.so.6 is no MPI library: it has no MPI_Init_thread"));
    assert_non_null(strstr(muster_detail(), "libopenmpi3"));
    assert_null(mpi);
}

static void an_mpi_that_is_too_old_or_not_whole_is_refused(void **state) {
    (void)state;
    check_refused(DOUBLE("mpi_double_old"), MUSTER_EUNSUPPORTED,
                  "is too old: it follows MPI 2.2 and has no MPI_Ibarrier;",
                  "MPI 3.0 is needed (Open MPI 1.8, MPICH 3.1");
    check_refused(DOUBLE("mpi_double_nameless"), MUSTER_EUNSUPPORTED, "is too old: it follows MPI 2.1",
                  "has no MPI_Comm_create_group");
    check_refused(DOUBLE("mpi_double_without_improbe"), MUSTER_EUNSUPPORTED,
                  "is not complete: it says that it follows MPI 3.1, and has no MPI_Improbe", "install it anew");
    check_refused(DOUBLE("mpi_double_without_variable"), MUSTER_EUNSUPPORTED, "and has no ompi_mpi_op_bxor", "MPI 3.1");
}

static void an_mpi_of_unknown_abi_is_refused(void **state) {
    (void)state;
    check_refused(DOUBLE("mpi_double_unknown"), MUSTER_EUNSUPPORTED,
                  "is an MPI that Muster does not know (\"Quick MPI 7\")", "Open MPI, MPICH and its family");
    check_refused(DOUBLE("mpi_double_draft"), MUSTER_EUNSUPPORTED, "has a draft of MPI's standard ABI, of MPI 4.1",
                  "libmpi.so.12");
    check_refused(DOUBLE("libmpi_abi.double"), MUSTER_EUNSUPPORTED, "(MPICH 3.9.1) has a draft", "MUSTER_MPI_LIBRARY");
}

static void without_memory_nothing_stays(void **state) {
    (void)state;
    struct mpi *mpi = NULL;
    for (int n = 1; n <= 2; n++) {
        failing = n;
        assert_int_equal(open_named(DOUBLE("mpi_double_mpich"), &mpi), MUSTER_ENOMEM);
        failing = 0;
        assert_null(mpi);
        assert_false(is_loaded(DOUBLE("mpi_double_mpich")));
    }
}

static void the_first_that_can_be_loaded_decides(void **state) {
    struct mpi *mpi = NULL;
    char text[512];
    snprintf(text, sizeof text, "%s/libmpi.so", (const char *)*state);
    struct mpi_candidate candidates[] = {{MPI_PLACE_IN_USE, NULL},
                                         {MPI_PLACE_LOADED, DOUBLE("mpi_double_mpich")},
                                         {MPI_PLACE_NAME, "libno-such-mpi.so.1"},
                                         {MPI_PLACE_NAME, text},
                                         {MPI_PLACE_NAME, DOUBLE("mpi_double_mpich")},
                                         {MPI_PLACE_NAME, DOUBLE("mpi_double_unknown")}};
    write_file(text, "INPUT(libmpi.so.12)\n", 20);
    assert_int_equal(mpi_library_open(candidates, 6, &mpi), 0);
    assert_int_equal(mpi->abi, MPI_ABI_MPICH);
    mpi_library_close(mpi);
    mpi = NULL;
    /* Without the good one: the last one, by its path. */
    candidates[4] = candidates[5];
    assert_int_equal(mpi_library_open(candidates, 5, &mpi), MUSTER_EUNSUPPORTED);
    assert_ptr_equal(strstr(muster_detail(), DOUBLE("mpi_double_unknown") " is an MPI that Muster does not know"),
                     muster_detail());
    /* What was wrong with the one that is there; or, with nothing there, what has been looked for. */
    assert_int_equal(mpi_library_open(candidates, 4, &mpi), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "no MPI library can be loaded: "));
    assert_non_null(strstr(muster_detail(), text));
    candidates[1].name = "libno-such-mpi.so.2";
    candidates[3].name = "libno-such-mpi.so.3";
    assert_int_equal(mpi_library_open(candidates, 4, &mpi), MUSTER_ENOENT);
    assert_non_null(strstr(muster_detail(),
                           "no MPI library found (looked for libno-such-mpi.so.1, libno-such-mpi.so.3): "
                           "install Open MPI or MPICH (Debian: libopenmpi3 or libmpich12), or set "
                           "MUSTER_MPI_LIBRARY=path"));
    assert_null(mpi);
    assert_int_equal(unlink(text), 0);
}

static void long_names_are_cut(void **state) {
    (void)state;
    struct mpi *mpi = NULL;
    char name[200];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    struct mpi_candidate candidates[MPI_CANDIDATES_MAX];
    for (size_t i = 0; i < MPI_CANDIDATES_MAX; i++) {
        candidates[i] = (struct mpi_candidate){MPI_PLACE_NAME, name};
    }
    assert_int_equal(mpi_library_open(candidates, MPI_CANDIDATES_MAX, &mpi), MUSTER_ENOENT);
    assert_non_null(strstr(muster_detail(), "xxx): install Open MPI"));
}

/* Visible to all, as a program that is linked with MPI has it, or not, as a module of Python's has it. */
static void what_the_program_has_loaded_is_taken(void **state) {
    (void)state;
    struct mpi *mpi = NULL;
    struct mpi_candidate candidates[] = {{MPI_PLACE_IN_USE, NULL}, {MPI_PLACE_LOADED, DOUBLE("mpi_double_mpich")}};
    void *library = dlopen(DOUBLE("mpi_double_mpich"), RTLD_NOW | RTLD_LOCAL);
    assert_int_equal(mpi_library_open(candidates, 2, &mpi), 0);
    assert_ptr_equal(mpi->library, library);
    mpi_library_close(mpi);
    dlclose(library);
    assert_false(is_loaded(DOUBLE("mpi_double_mpich")));

    library = dlopen(DOUBLE("mpi_double_mpich"), RTLD_NOW | RTLD_GLOBAL);
    assert_int_equal(mpi_library_open(candidates, 2, &mpi), 0);
    assert_null(mpi->library);
    assert_string_equal(mpi->path, DOUBLE("mpi_double_mpich"));
    mpi_library_close(mpi);
    mpi = open_well(DOUBLE("mpi_double_mpich")); /* the same by name */
    mpi_library_close(mpi);
    check_refused(DOUBLE("mpi_double_open_mpi"), MUSTER_EUNSUPPORTED, "the program has loaded another MPI already",
                  "unset MUSTER_MPI_LIBRARY");
    dlclose(library);
}

/* One that only its own loader sees, under a known name. */
static void a_second_mpi_is_refused(void **state) {
    (void)state;
    void *library = dlopen(DOUBLE("mpi_double_soname"), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    check_refused(DOUBLE("mpi_double_mpich"), MUSTER_EUNSUPPORTED, "the program has loaded libmpi.so.12 already",
                  "a process can have one MPI only");
    struct mpi *mpi = open_well(DOUBLE("mpi_double_soname"));
    mpi_library_close(mpi);
    dlclose(library);
}

struct opener {
    pthread_barrier_t *barrier;
    struct mpi const *mpi;
    int code;
    char detail[MUSTER_DETAIL_MAX];
};

static void *open_in_thread(void *argument) {
    struct opener *opener = argument;
    pthread_barrier_wait(opener->barrier);
    opener->code = mpi_open(&opener->mpi);
    snprintf(opener->detail, sizeof opener->detail, "%s", muster_detail());
    return NULL;
}

/* In a process of its own, since what mpi_open() finds stays. Exit status 0: all threads got the same. */
static int open_in_threads(const char *path, int code) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    pthread_barrier_t barrier;
    struct opener openers[THREADS] = {{NULL, NULL, 0, ""}};
    bool is_same = true;
    setenv("MUSTER_MPI_LIBRARY", path, 1);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        openers[i].barrier = &barrier;
        if (pthread_create(&threads[i], NULL, open_in_thread, &openers[i]) != 0) {
            return 2;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        is_same = is_same && openers[i].code == code && openers[i].mpi == openers[0].mpi &&
                  strcmp(openers[i].detail, openers[0].detail) == 0;
    }
    pthread_barrier_destroy(&barrier);
    setenv("MUSTER_MPI_LIBRARY", "libno-such-mpi.so.1", 1); /* too late */
    struct mpi const *again = NULL;
    is_same = is_same && mpi_open(&again) == code && again == openers[0].mpi && (code == 0) == (again != NULL);
    is_same = is_same && (code == 0 || strcmp(muster_detail(), openers[0].detail) == 0);
    return is_same ? 0 : 1;
}

static void all_threads_get_the_same(void **state) {
    static const struct {
        const char *path;
        int code;
    } cases[] = {{DOUBLE("mpi_double_mpich"), 0}, {DOUBLE("mpi_double_unknown"), MUSTER_EUNSUPPORTED}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        int status = 0;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            _exit(open_in_threads(cases[i].path, cases[i].code));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_each_abi_is_opened),
        cmocka_unit_test(what_the_library_answers_decides_on_the_abi),
        cmocka_unit_test_setup_teardown(what_cannot_be_loaded_is_refused, make_folder, remove_folder),
        cmocka_unit_test(what_is_no_mpi_is_refused),
        cmocka_unit_test(an_mpi_that_is_too_old_or_not_whole_is_refused),
        cmocka_unit_test(an_mpi_of_unknown_abi_is_refused),
        cmocka_unit_test(without_memory_nothing_stays),
        cmocka_unit_test_setup_teardown(the_first_that_can_be_loaded_decides, make_folder, remove_folder),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(a_second_mpi_is_refused),
        cmocka_unit_test(all_threads_get_the_same),
        cmocka_unit_test(what_the_program_has_loaded_is_taken), /* the last one, since it stays */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
