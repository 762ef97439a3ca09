/* Handlers for the signals of a crash: record, then let the process die of the signal as it would have.
 *
 * Everything that runs in a handler is async-signal-safe, or (backtrace) has been called once before. A crash while
 * recording, and a backtrace that gets stuck, end in the same way, with the first, short record in the file. */
#include <muster/record.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/held/read_only.h"
#include "base/status.h"
#include "worker/record_impl.h"

#define FATAL_SIGNAL_TABLE(X)                                                                                          \
    X(SIGSEGV, "segmentation fault")                                                                                   \
    X(SIGBUS, "bus error")                                                                                             \
    X(SIGILL, "illegal instruction")                                                                                   \
    X(SIGFPE, "arithmetic error")                                                                                      \
    X(SIGABRT, "abort")

static const struct {
    int number;
    const char *name, *words;
} fatal_signals[] = {
#define FATAL_SIGNAL_ROW(number, words) {number, #number, words},
    FATAL_SIGNAL_TABLE(FATAL_SIGNAL_ROW)};

enum { FATAL_SIGNALS = sizeof fatal_signals / sizeof *fatal_signals, STACK_BYTES = 64 * 1024, STUCK_AFTER_S = 3 };

static struct sigaction previous[FATAL_SIGNALS];
static bool started;
static volatile sig_atomic_t being_recorded; /* the signal */
static volatile bool crash_recorded;         /* the first crash is the cause; others follow from it */

static size_t index_of(int number) {
    size_t i = 0;
    while (i + 1 < FATAL_SIGNALS && fatal_signals[i].number != number) {
        i++;
    }
    return i;
}

/* Puts the previous action back and sends the signal, with everything known about it, to this thread again: it arrives
 * when the handler returns, at the instruction that failed. */
static void pass_on(int number, siginfo_t *info) {
    (void)sigaction(number, &previous[index_of(number)], NULL);
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), number, info) != 0) {
        (void)raise(number);
    }
}

/* The end, without a handler's help. */
static void die_of(int number) {
    sigset_t set;
    (void)signal(number, SIG_DFL);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, number);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(number);
}

/* Unwinding waits for a lock that the crashed code holds, or walks in circles. */
static void on_stuck(int alarm_number) {
    (void)alarm_number;
    die_of(being_recorded);
}

struct stuck_guard {
    struct sigaction action;
    unsigned seconds_left;
};

static void guard_against_stuck(struct stuck_guard *before, int number) {
    struct sigaction action = {.sa_handler = on_stuck, .sa_flags = SA_ONSTACK};
    sigset_t set;
    being_recorded = number;
    (void)sigaction(SIGALRM, &action, &before->action);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGALRM);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    before->seconds_left = alarm(STUCK_AFTER_S);
}

static void guard_end(const struct stuck_guard *before) {
    (void)alarm(0);
    (void)sigaction(SIGALRM, &before->action, NULL);
    (void)alarm(before->seconds_left);
    being_recorded = 0;
}

static uintptr_t address_of_failure(const void *context) {
    const ucontext_t *user = context;
#if defined(__x86_64__)
    return (uintptr_t)user->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)user->uc_mcontext.pc;
#else
    (void)user;
    return 0;
#endif
}

/* What a forbidden address is, if it is one of ours. */
static void put_read_only(struct record_text *text, int number, const siginfo_t *info) {
    const char *words = number == SIGSEGV && info->si_code == SEGV_ACCERR ? read_only_words(info->si_addr) : NULL;
    if (words) {
        record_text_put(text, ", ");
        record_text_put(text, words);
    }
}

static void put_reason(struct record_text *text, int number, const siginfo_t *info) {
    size_t i = index_of(number);
    record_text_put(text, fatal_signals[i].name);
    record_text_put(text, ": ");
    record_text_put(text, fatal_signals[i].words);
    if (info->si_code == SI_USER && info->si_pid != getpid()) {
        record_text_put(text, ", sent by process ");
        record_text_put_decimal(text, info->si_pid);
    } else if (info->si_code > 0 && info->si_code != SI_KERNEL && number != SIGABRT) {
        record_text_put(text, number == SIGSEGV || number == SIGBUS ? " at address " : " in the instruction at ");
        record_text_put_hex(text, (uintptr_t)info->si_addr);
        put_read_only(text, number, info);
    }
}

static void record_crash(struct record *record, int number, const siginfo_t *info, const void *context) {
    uintptr_t failed_at = address_of_failure(context);
    struct stuck_guard before;
    guard_against_stuck(&before, number);
    put_reason(&record->message, number, info);
    record_text_put_bytes(&record->stack, record->message.bytes, record->message.length);
    record_text_put(&record->stack, "\n");
    (void)record_write(record); /* something stands there, whatever the unwinding meets */
    record_add_backtrace(record, failed_at, 3);
    (void)record_write(record);
    guard_end(&before);
}

static void on_fatal(int number, siginfo_t *info, void *context) {
    int saved = errno;
    struct record *record = record_has_file() ? record_take() : NULL;
    if (record) {
        bool explained = crash_recorded || (number == SIGABRT && record_was_reported);
        if (!explained) {
            record_crash(record, number, info, context);
            crash_recorded = true;
        }
        record_release(record);
    } else if (record_has_file() && being_recorded != 0) { /* recording a crash has crashed; tell of the first */
        die_of(being_recorded);
    }
    pass_on(number, info);
    errno = saved;
}

/* A stack overflow leaves no room for a handler on the stack itself. The memory is never given back. */
static int give_alternate_stack(void) {
    stack_t old, new = {.ss_size = STACK_BYTES};
    if (sigaltstack(NULL, &old) != 0) {
        return status_fail_errno(errno, "cannot ask for the alternate signal stack");
    }
    if (!(old.ss_flags & SS_DISABLE)) {
        return MUSTER_OK;
    }
    size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, guard + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return status_fail(MUSTER_ENOMEM, "no memory for an alternate signal stack");
    }
    (void)mprotect(memory, guard, PROT_NONE);
    new.ss_sp = memory + guard;
    if (sigaltstack(&new, NULL) != 0) {
        int error_number = errno;
        (void)munmap(memory, guard + STACK_BYTES);
        return status_fail_errno(error_number, "cannot install an alternate signal stack");
    }
    return MUSTER_OK;
}

int muster_record_start(void) {
    int code = started ? MUSTER_OK : record_find_file();
    if (code != 0 || started || !record_has_file()) {
        return code;
    }
    record_prime_backtrace();
    code = give_alternate_stack();
    if (code != 0) {
        return code;
    }
    for (size_t i = 0; i < FATAL_SIGNALS; i++) {
        struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        if (sigaction(fatal_signals[i].number, NULL, &previous[i]) == 0 && previous[i].sa_handler != SIG_IGN) {
            (void)sigaction(fatal_signals[i].number, &action, NULL);
        }
    }
    started = true;
    return MUSTER_OK;
}
