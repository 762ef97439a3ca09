/* NCCL, opened at run time: what is refused, with which sentence, and which one is taken. On a double; the real library
 * is asked in nccl_real_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/nccl/nccl_library.h"

static void expect_refusal(const char *part) {
    struct nccl_library library;
    memset(&library, 0x55, sizeof library);
    assert_int_equal(nccl_library_open(&library), MUSTER_EUNSUPPORTED);
    if (!strstr(muster_detail(), part)) {
        fail_msg("'%s' lacks '%s'", muster_detail(), part);
    }
    for (size_t i = 0; i < sizeof library; i++) { /* nothing half opened */
        assert_int_equal(((unsigned char *)&library)[i], 0x55);
    }
}

static void without_nccl_the_sentence_says_what_to_install(void **state) {
    (void)state;
    (void)setenv("MUSTER_NCCL_LIBRARY", "libno-such-nccl.so.2", 1);
    expect_refusal("groups of GPUs need NCCL, which cannot be opened (libno-such-nccl.so.2");
    expect_refusal("nvidia-nccl-cu12");
}

static void a_library_that_is_not_nccl_is_refused(void **state) {
    (void)state;
    (void)setenv("MUSTER_NCCL_LIBRARY", "libm.so.6", 1);
    expect_refusal("libm.so.6 is not NCCL");
}

static void one_that_is_too_old_is_refused_with_its_version(void **state) {
    (void)state;
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE, 1);
    (void)setenv("MUSTER_DOUBLE_NCCL_VERSION", "21705", 1);
    expect_refusal("groups of GPUs need NCCL 2.18 or newer; ");
    expect_refusal(" is 2.17");
    (void)setenv("MUSTER_DOUBLE_NCCL_VERSION", "2708", 1); /* 2.7.8, as versions were counted then */
    expect_refusal(" is 2.7");
    (void)unsetenv("MUSTER_DOUBLE_NCCL_VERSION");
}

static void the_named_one_is_taken(void **state) {
    (void)state;
    struct nccl_library library;
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE, 1);
    assert_int_equal(nccl_library_open(&library), 0);
    assert_int_equal(library.version, 22902);
    assert_string_equal(library.name, NCCL_DOUBLE);
    assert_non_null(library.all_reduce);
    assert_non_null(library.comm_shrink);
    assert_non_null(library.comm_revoke);
    assert_non_null(library.all_to_all);
}

static void an_older_one_has_less(void **state) {
    (void)state;
    struct nccl_library library;
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE_2_27, 1);
    assert_int_equal(nccl_library_open(&library), 0);
    assert_int_equal(library.version, 22703);
    assert_non_null(library.comm_shrink);
    assert_true(!library.comm_revoke && !library.all_to_all && !library.gather && !library.scatter);
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE_2_18, 1);
    assert_int_equal(nccl_library_open(&library), 0);
    assert_int_equal(library.version, 21805);
    assert_non_null(library.comm_split);
    assert_true(!library.comm_shrink && !library.memory_allocate && !library.comm_register);
}

/* In a process of its own, in which nothing is open. */
static void one_that_the_process_has_is_taken(void **state) {
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct nccl_library library;
        (void)unsetenv("MUSTER_NCCL_LIBRARY");
        (void)unsetenv("LD_LIBRARY_PATH");
        void *theirs = dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL); /* as PyTorch does with its own, by path */
        bool is_theirs = theirs && nccl_library_open(&library) == 0 && library.version == 22902 &&
                         dlsym(theirs, "ncclAllReduce") == (void *)(uintptr_t)library.all_reduce;
        _exit(is_theirs ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void it_is_opened_once(void **state) {
    (void)state;
    (void)setenv("MUSTER_NCCL_LIBRARY", "libno-such-nccl.so.2", 1);
    assert_null(nccl_library()); /* a failure is not kept */
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE, 1);
    const struct nccl_library *nccl = nccl_library();
    assert_non_null(nccl);
    (void)setenv("MUSTER_NCCL_LIBRARY", "libno-such-nccl.so.2", 1);
    assert_ptr_equal(nccl_library(), nccl);
    (void)setenv("MUSTER_NCCL_LIBRARY", NCCL_DOUBLE, 1);
}

static void errors_have_codes_and_words_of_nccl(void **state) {
    (void)state;
    const struct nccl_library *nccl = nccl_library();
    unsigned long ended = nccl->group_end(); /* none is open */
    assert_int_equal(ended, NCCL_INVALID_USAGE);
    assert_int_equal(nccl_fail(nccl, NCCL_INVALID_USAGE, NULL, "begin"), MUSTER_ESYSTEM);
    assert_string_equal(muster_detail(), "begin: NCCL: invalid usage (the double says: no group is open)");
    assert_int_equal(nccl_fail(nccl, NCCL_REMOTE_ERROR, NULL, "wait"), MUSTER_EPEER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_nccl_the_sentence_says_what_to_install),
        cmocka_unit_test(a_library_that_is_not_nccl_is_refused),
        cmocka_unit_test(one_that_is_too_old_is_refused_with_its_version),
        cmocka_unit_test(the_named_one_is_taken),
        cmocka_unit_test(an_older_one_has_less),
        cmocka_unit_test(one_that_the_process_has_is_taken),
        cmocka_unit_test(it_is_opened_once),
        cmocka_unit_test(errors_have_codes_and_words_of_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
