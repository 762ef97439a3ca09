/* Real crashes in child processes: the wait status stays true and the record tells what happened. */
#include <muster/record.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <execinfo.h>
#include <muster/status.h>

#include "base/held/read_only.h"

/* The sanitizers' own handlers would turn deaths by signal into exits. */
#define CRASHES __attribute__((noinline, visibility("default"), no_sanitize("address", "undefined")))
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "handle_segv=0:handle_abort=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:allow_user_segv_handler=1:"
           "use_sigaltstack=0";
}

/* ---- a backtrace() that can misbehave: the program's definition goes before the C library's ---- */

static enum { UNWIND_WELL, UNWIND_FOR_EVER, UNWIND_AND_CRASH } unwinding;

static int (*real_backtrace)(void **, int);

int backtrace(void **frames, int count) { /* NOLINT(readability-inconsistent-declaration-parameter-name) */
    if (!real_backtrace) {
        *(void **)&real_backtrace = dlsym(RTLD_NEXT, "backtrace");
    }
    while (unwinding == UNWIND_FOR_EVER) {
        (void)pause();
    }
    if (unwinding == UNWIND_AND_CRASH) {
        __builtin_trap();
    }
    return real_backtrace(frames, count);
}

/* ---- crashes ---- */

static volatile int zero;
static int *volatile nowhere;
static void (*volatile no_function)(void);
void crash_by_pointer(void);
void crash_by_division(void);
void crash_by_instruction(void);
void crash_by_abort(void);
void crash_by_truncated_map(void);
void crash_by_recursion(void);
void crash_by_call(void);
int recurse(int depth);

CRASHES void crash_by_pointer(void) {
    *nowhere = 1;
}

CRASHES void crash_by_division(void) {
    zero = 7 / zero;
}

CRASHES void crash_by_instruction(void) {
    __builtin_trap();
}

CRASHES void crash_by_abort(void) {
    abort();
}

CRASHES void crash_by_call(void) {
    no_function();
}

CRASHES void crash_by_truncated_map(void) {
    FILE *file = tmpfile();
    if (!file || ftruncate(fileno(file), 4096) != 0) {
        _exit(90);
    }
    volatile char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (ftruncate(fileno(file), 0) != 0) {
        _exit(90);
    }
    bytes[0] = 1;
}

CRASHES int recurse(int depth) {
    volatile char room[1024];
    room[0] = (char)depth;
    return zero == 0 ? recurse(depth + 1) + room[0] : 0; /* until there is no more stack */
}

CRASHES void crash_by_recursion(void) {
    zero = recurse(0);
}

/* ---- running one ---- */

static char folder[] = "/tmp/muster_record_test_XXXXXX";
static char file[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) {
        return -1;
    }
    (void)snprintf(file, sizeof file, "%s/error \xc3\xa9.json", folder);
    return setenv("TORCHELASTIC_ERROR_FILE", file, 1);
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails if anything was left */
}

/* The wait status of a child that calls `body`. */
static int run(void (*body)(void)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}; /* cmocka handles them */
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            (void)signal(numbers[i], SIG_DFL);
        }
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void (*crash)(void);

static void start_and_crash(void) {
    if (muster_record_start() != 0) {
        _exit(91);
    }
    crash();
}

/* Reads and removes the record; NULL when there is none. */
static json_t *take_record(void) {
    json_error_t error;
    json_t *root = json_load_file(file, 0, &error);
    if (!root) {
        assert_int_equal(access(file, F_OK), -1); /* if it is there, it must be whole */
        return NULL;
    }
    assert_int_equal(unlink(file), 0);
    return root;
}

/* The record says `message` and its stack mentions `in_stack`. */
static void assert_record(const char *message, const char *in_stack) {
    json_t *root = take_record();
    assert_non_null(root);
    json_t *inner = json_object_get(root, "message"), *extra = json_object_get(inner, "extraInfo");
    const char *found = json_string_value(json_object_get(inner, "message"));
    const char *stack = json_string_value(json_object_get(extra, "py_callstack"));
    const char *when = json_string_value(json_object_get(extra, "timestamp"));
    assert_non_null(found);
    assert_non_null(stack);
    assert_non_null(when);
    if (strncmp(found, message, strlen(message)) != 0 || !strstr(stack, in_stack)) {
        fail_msg("message: %s\nstack: %s", found, stack);
    }
    assert_true(strncmp(stack, found, strlen(found)) == 0 && stack[strlen(found)] == '\n');
    assert_true(strtoll(when, NULL, 10) > 1700000000);
    json_decref(root);
}

static void assert_crash(void (*body)(void), int signal_number, const char *message, const char *in_stack) {
    crash = body;
    int status = run(start_and_crash);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal_number) {
        fail_msg("%s expected, wait status is 0x%x", message, (unsigned)status);
    }
    assert_record(message, in_stack);
}

static void every_way_to_crash_is_recorded(void **state) {
    (void)state;
    assert_crash(crash_by_pointer, SIGSEGV, "SIGSEGV: segmentation fault at address 0x0", "crash_by_pointer");
    assert_crash(crash_by_call, SIGSEGV, "SIGSEGV: segmentation fault at address 0x0", "Backtrace");
    assert_crash(crash_by_abort, SIGABRT, "SIGABRT: abort", "crash_by_abort");
    assert_crash(crash_by_truncated_map, SIGBUS, "SIGBUS: bus error at address 0x", "crash_by_truncated_map");
    assert_crash(crash_by_recursion, SIGSEGV, "SIGSEGV: segmentation fault at address 0x", "recurse");
#if defined(__x86_64__)
    assert_crash(crash_by_division, SIGFPE, "SIGFPE: arithmetic error in the instruction at 0x", "crash_by_division");
    assert_crash(crash_by_instruction, SIGILL, "SIGILL: illegal instruction in the instruction at 0x",
                 "crash_by_instruction");
#endif
}

static void crash_by_writing(void) {
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    read_only_note(pages, bytes, "in a page before");
    read_only_forget(pages);
    read_only_note(pages + bytes, bytes, "in a page that is for readers");
    *(volatile char *)(pages + 2 * bytes - 1) = 1;
}

static void crash_beside_it(void) {
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    read_only_note(pages + bytes, bytes, "in a page that is for readers");
    *(volatile char *)(pages + bytes - 1) = 1;
}

/* A write to memory that is read-only on purpose says what that is. */
/* Programs that have an alternate stack of their own keep it, and Rust's has 8 KiB; the frame of a signal is larger on
 * some processors. */
static void crash_on_a_small_stack(void) {
    enum { OURS_BYTES = 5120 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = getauxval(AT_MINSIGSTKSZ) + OURS_BYTES;
    bytes = bytes > 8192 ? bytes : 8192;
    size_t whole = (bytes + page - 1) / page * page;
    char *memory = mmap(NULL, page + whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t small = {.ss_sp = memory + page, .ss_size = bytes};
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0 || sigaltstack(&small, NULL) != 0) {
        _exit(90);
    }
    start_and_crash();
}

static void a_small_stack_is_enough(void **state) {
    (void)state;
    crash = crash_by_recursion;
    int status = run(crash_on_a_small_stack);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_record("SIGSEGV: segmentation fault at address 0x", "SIGSEGV");
}

static void read_only_memory_is_named(void **state) {
    (void)state;
    crash = crash_by_writing;
    assert_int_equal(WTERMSIG(run(start_and_crash)), SIGSEGV);
    json_t *root = take_record();
    assert_non_null(root);
    const char *words = json_string_value(json_object_get(json_object_get(root, "message"), "message"));
    assert_true(strstr(words, "fff, in a page that is for readers") != NULL);
    json_decref(root);
    crash = crash_beside_it;
    assert_int_equal(WTERMSIG(run(start_and_crash)), SIGSEGV);
    root = take_record();
    assert_non_null(root);
    assert_null(strstr(json_string_value(json_object_get(json_object_get(root, "message"), "message")), ", in a page"));
    json_decref(root);
}

/* The first line of the backtrace is the function that failed, not the handler's. */
static void the_backtrace_begins_where_it_happened(void **state) {
    (void)state;
    crash = crash_by_pointer;
    assert_int_equal(WTERMSIG(run(start_and_crash)), SIGSEGV);
    json_t *root = take_record();
    const char *stack = json_string_value(
        json_object_get(json_object_get(json_object_get(root, "message"), "extraInfo"), "py_callstack"));
    const char *header = strstr(stack, "Backtrace (most recent call first):\n");
    assert_non_null(header);
    const char *first = strchr(header, '\n') + 1, *end = strchr(first, '\n');
    const char *found = strstr(first, "crash_by_pointer");
    assert_true(found && found < end);
    json_decref(root);
}

static void crash_sent(void) {
    pid_t victim = getpid(), sender = fork();
    if (sender == 0) {
        (void)kill(victim, SIGSEGV);
        _exit(0);
    }
    for (;;) {
        (void)pause();
    }
}

static void a_signal_from_outside_names_its_sender(void **state) {
    (void)state;
    assert_crash(crash_sent, SIGSEGV, "SIGSEGV: segmentation fault, sent by process ", "Backtrace");
}

/* ---- threads ---- */

static void *crash_thread(void *argument) {
    (void)argument;
    crash_by_pointer();
    return NULL;
}

static void crash_in_thread(void) {
    pthread_t thread;
    (void)pthread_create(&thread, NULL, crash_thread, NULL);
    (void)pthread_join(thread, NULL);
}

static void crash_in_many_threads(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        (void)pthread_create(&threads[i], NULL, crash_thread, NULL);
    }
    for (int i = 0; i < 8; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

static void threads_crash_too(void **state) {
    (void)state;
    assert_crash(crash_in_thread, SIGSEGV, "SIGSEGV: segmentation fault at address 0x0", "crash_by_pointer");
    for (int i = 0; i < 20; i++) {
        assert_crash(crash_in_many_threads, SIGSEGV, "SIGSEGV: segmentation fault at address 0x0", "");
    }
}

/* ---- other handlers ---- */

static void earlier_handler(int number, siginfo_t *info, void *context) {
    (void)context;
    if (number != SIGSEGV || info->si_addr != NULL || info->si_code != SEGV_MAPERR || access(file, R_OK) != 0) {
        _exit(80);
    }
    _exit(55);
}

static void start_after_another_handler(void) {
    struct sigaction action = {.sa_sigaction = earlier_handler, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGSEGV, &action, NULL);
    start_and_crash();
}

static sigjmp_buf back;

static void recovering_handler(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static void start_and_recover(void) {
    (void)signal(SIGSEGV, recovering_handler);
    if (muster_record_start() != 0) {
        _exit(91);
    }
    if (sigsetjmp(back, 1) == 0) {
        crash_by_pointer();
    }
    _exit(56);
}

static void start_with_abort_ignored(void) {
    (void)signal(SIGABRT, SIG_IGN);
    if (muster_record_start() != 0) {
        _exit(91);
    }
    (void)raise(SIGABRT);
    _exit(57);
}

static void earlier_handlers_get_the_signal(void **state) {
    (void)state;
    crash = crash_by_pointer;
    int status = run(start_after_another_handler);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 55);
    assert_record("SIGSEGV: segmentation fault at address 0x0", "crash_by_pointer");
    status = run(start_and_recover);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 56);
    assert_record("SIGSEGV: segmentation fault at address 0x0", "crash_by_pointer");
    status = run(start_with_abort_ignored);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 57);
    assert_null(take_record());
}

/* ---- recording that fails ---- */

static void stuck_unwinding(void) {
    if (muster_record_start() != 0) {
        _exit(91);
    }
    unwinding = UNWIND_FOR_EVER;
    crash_by_pointer();
}

static void crashing_unwinding(void) {
    if (muster_record_start() != 0) {
        _exit(91);
    }
    unwinding = UNWIND_AND_CRASH;
    crash_by_pointer();
}

static void a_crash_or_a_lock_in_the_unwinder_changes_nothing(void **state) {
    (void)state;
    void (*const bodies[])(void) = {stuck_unwinding, crashing_unwinding};
    for (int i = 0; i < 2; i++) {
        int status = run(bodies[i]);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGSEGV);
        assert_record("SIGSEGV: segmentation fault at address 0x0", "segmentation fault");
    }
}

static void crash_with_no_descriptors(void) {
    struct rlimit few = {3, 3};
    (void)syscall(SYS_close_range, 3, ~0u, 0);
    (void)setrlimit(RLIMIT_NOFILE, &few);
    crash_by_pointer();
}

static void a_file_that_cannot_be_written_changes_nothing(void **state) {
    (void)state;
    crash = crash_with_no_descriptors;
    assert_int_equal(WTERMSIG(run(start_and_crash)), SIGSEGV);
    assert_null(take_record());
    crash = crash_by_pointer;
    const char *const places[] = {"/nonexistent/folder/e.json", "/dev/full", "/dev/null", ""};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", places[i], 1), 0);
        assert_int_equal(WTERMSIG(run(start_and_crash)), SIGSEGV);
    }
    struct stat st;
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(unsetenv("TORCHELASTIC_ERROR_FILE"), 0);
    assert_int_equal(WTERMSIG(run(start_and_crash)), SIGSEGV);
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", file, 1), 0);
}

static void a_name_that_is_too_long_is_refused(void **state) {
    (void)state;
    char *name = malloc(PATH_MAX + 100);
    memset(name, 'n', PATH_MAX + 99);
    name[PATH_MAX + 99] = '\0';
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", name, 1), 0);
    assert_int_equal(muster_record_start(), MUSTER_ELIMIT);
    assert_int_equal(muster_record_error("x"), MUSTER_ELIMIT);
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", file, 1), 0);
    free(name);
}

static void crash_in_fork(void) {
    pid_t pid = fork();
    if (pid == 0) {
        crash_by_pointer();
    }
    int status;
    (void)waitpid(pid, &status, 0);
    _exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 58 : 92);
}

static void a_forked_helper_does_not_write_the_workers_record(void **state) {
    (void)state;
    crash = crash_in_fork;
    int status = run(start_and_crash);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 58);
    assert_null(take_record());
}

/* ---- reported errors ---- */

void report_an_error(void);
CRASHES void report_an_error(void) {
    if (muster_record_error("cannot read \"%s\"\n\ttab \x01 caf\xc3\xa9 \xf0\x9f\x98\x80 \xff", "shard\\7") != 0) {
        _exit(93);
    }
    _exit(3);
}

static void report_and_abort(void) {
    (void)muster_record_start();
    (void)muster_record_error("bad input");
    abort();
}

static void report_and_crash(void) {
    (void)muster_record_start();
    (void)muster_record_error("bad input");
    crash_by_pointer();
}

static void report_twice(void) {
    (void)muster_record_error("first");
    (void)muster_record_error("second");
    _exit(0);
}

static void report_at_length(void) {
    char *text = malloc(100000);
    memset(text, 1, 99999); /* the longest escapes */
    text[99999] = '\0';
    _exit(muster_record_error("%s", text) == 0 ? 0 : 93);
}

static void reported_errors_are_recorded(void **state) {
    (void)state;
    int status = run(report_an_error);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_record("cannot read \"shard\\7\"\n\ttab \x01 caf\xc3\xa9 \xf0\x9f\x98\x80 \xef\xbf\xbd", "report_an_error");
    assert_int_equal(WTERMSIG(run(report_and_abort)), SIGABRT);
    assert_record("bad input", "Backtrace");
    assert_int_equal(WTERMSIG(run(report_and_crash)), SIGSEGV);
    assert_record("SIGSEGV", "crash_by_pointer");
    assert_int_equal(run(report_twice), 0);
    assert_record("second", "");
    assert_int_equal(run(report_at_length), 0);
    json_t *root = take_record();
    assert_non_null(root);
    assert_int_equal(json_string_length(json_object_get(json_object_get(root, "message"), "message")),
                     MUSTER_RECORD_MESSAGE_MAX - 1);
    json_decref(root);
}

static void without_a_launcher_reporting_does_nothing(void **state) {
    (void)state;
    assert_int_equal(unsetenv("TORCHELASTIC_ERROR_FILE"), 0);
    assert_int_equal(muster_record_start(), 0);
    assert_int_equal(muster_record_error("nobody listens"), 0);
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", "/nonexistent/folder/e.json", 1), 0);
    assert_int_equal(muster_record_error("nowhere"), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "/nonexistent/folder/e.json"));
    assert_int_equal(setenv("TORCHELASTIC_ERROR_FILE", file, 1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_crash_is_recorded),
        cmocka_unit_test(a_small_stack_is_enough),
        cmocka_unit_test(read_only_memory_is_named),
        cmocka_unit_test(the_backtrace_begins_where_it_happened),
        cmocka_unit_test(a_signal_from_outside_names_its_sender),
        cmocka_unit_test(threads_crash_too),
        cmocka_unit_test(earlier_handlers_get_the_signal),
        cmocka_unit_test(a_crash_or_a_lock_in_the_unwinder_changes_nothing),
        cmocka_unit_test(a_file_that_cannot_be_written_changes_nothing),
        cmocka_unit_test(a_name_that_is_too_long_is_refused),
        cmocka_unit_test(a_forked_helper_does_not_write_the_workers_record),
        cmocka_unit_test(reported_errors_are_recorded),
        cmocka_unit_test(without_a_launcher_reporting_does_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
