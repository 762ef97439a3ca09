/* An LD_PRELOAD library that makes the n-th allocation or system call of a program fail, once or from then on.
 *
 *   FAIL_KIND     "alloc" (malloc, calloc, realloc, strdup ...) or "call" (socket, accept, bind, listen, open, read,
 *                 write, pipe, fork, epoll, ...); a comma-separated list of function names narrows it
 *   FAIL_AT       which one, counted from 1 in this process; 0 or absent: none
 *   FAIL_FOREVER  1: every one from there on (an interruption, EINTR, happens once all the same)
 *   FAIL_DEPTH    "main": only the process that the test started, not what it starts (default: every process, each
 *                 counting for itself)
 *   FAIL_FROM     "program" (default): only calls made by the executable itself; "all": those of its libraries too
 *   FAIL_SPEECH   1: writes to what is stderr at the start never fail, so that a program to which everything else
 *                 happens can be held to explaining itself
 *   FAIL_REPORT   a file to which each process appends "reached N: FUNCTION at +OFFSET in PROGRAM" when its failure is
 *                 dealt out; the offset of the caller in its program tells one call site from the other. Absent file
 *                 after a run: the program has no n-th call, the loop over n is done
 *
 * Calls before main() and after exit() began are let through: failures there are the C library's, not the program's.
 * Only calls through the dynamic symbol table are seen: calls inside the C library are not. A library that answers a
 * failure with abort() (libuv does, in places) ends the process with status 70 and "gave up" in the report. */
#undef _FORTIFY_SOURCE /* the checked headers hide under macros what is defined here */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* glibc declares addresses as transparent unions; plain pointers are the same to the linker. */
#pragma GCC diagnostic ignored "-Wpedantic"

enum kind { KIND_ALLOC, KIND_CALL };

/* Written once in the constructor, before main(); `counted` by any thread. */
static struct {
    bool armed;
    bool forever;
    bool main_only;
    bool by_name;       /* FAIL_KIND is a list of names */
    bool from_anywhere; /* FAIL_FROM=all */
    bool speech;        /* FAIL_SPEECH */
    dev_t stderr_device;
    ino_t stderr_file;
    uintptr_t program_start, program_end;
    enum kind kind;
    pid_t owner;
    unsigned long at;
    char names[256];
    char report[512];
} plan;
static atomic_ulong counted;
static atomic_bool over; /* exit() has begun */

/* No allocation and no stdio here: this runs inside malloc. */
static void report(const char *what, const char *function, const void *caller) {
    if (plan.report[0] == '\0') {
        return;
    }
    char line[640];
    char program[128] = "?";
    long from = syscall(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (from >= 0) {
        long n = syscall(SYS_read, (int)from, program, sizeof program - 1);
        program[n > 0 ? n - 1 : 0] = '\0';
        (void)syscall(SYS_close, (int)from);
    }
    bool own = (uintptr_t)caller >= plan.program_start && (uintptr_t)caller < plan.program_end;
    int n = snprintf(line, sizeof line, "%s %lu: %s at +0x%lx in %s\n", what, plan.at, function,
                     own ? (unsigned long)((uintptr_t)caller - plan.program_start) : 0UL, program);
    long to = syscall(SYS_openat, AT_FDCWD, plan.report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (to >= 0 && n > 0) {
        (void)syscall(SYS_write, (int)to, line, (size_t)n);
        (void)syscall(SYS_close, (int)to);
    }
}

static bool is_named(const char *function) {
    size_t length = strlen(function);
    for (const char *at = plan.names; (at = strstr(at, function)) != NULL; at += length) {
        bool begins = at == plan.names || at[-1] == ',';
        bool ends = at[length] == '\0' || at[length] == ',';
        if (begins && ends) {
            return true;
        }
    }
    return false;
}

static bool is_program(const void *address) {
    return (uintptr_t)address >= plan.program_start && (uintptr_t)address < plan.program_end;
}

/* The number of this call, counted from 1; 0 when it is none of those that are counted. errno is kept. */
static unsigned long number_of(enum kind kind, const char *function, const void *caller) {
    if (!plan.armed || atomic_load_explicit(&over, memory_order_relaxed)) {
        return 0;
    }
    if (!plan.from_anywhere && !is_program(caller)) {
        return 0;
    }
    if (plan.by_name ? !is_named(function) : kind != plan.kind) {
        return 0;
    }
    if (plan.main_only && getpid() != plan.owner) {
        return 0;
    }
    unsigned long number = atomic_fetch_add(&counted, 1) + 1;
    if (number == plan.at) {
        int saved = errno;
        report("reached", function, caller);
        errno = saved;
    }
    return number;
}

/* Is it this call's turn to fail? */
static bool must_fail(enum kind kind, const char *function, const void *caller) {
    unsigned long number = number_of(kind, function, caller);
    return number > 0 && (number == plan.at || (number > plan.at && plan.forever));
}

/* For failures that pass by themselves, such as EINTR: no kernel deals them out for ever. */
static bool must_fail_once(const char *function, const void *caller) {
    unsigned long number = number_of(KIND_CALL, function, caller);
    return number > 0 && number == plan.at;
}

/* Is this descriptor stderr, or the same file opened anew? */
static bool is_speech(int fd) {
    struct stat to;
    return plan.speech && fstat(fd, &to) == 0 && to.st_dev == plan.stderr_device && to.st_ino == plan.stderr_file;
}

/* Is this an eventfd? (Of the files that have no type it is the one that is written.) A write that wakes somebody has
 * room and takes no memory: no kernel refuses it. */
static bool is_wake(int fd) {
    struct stat to;
    return fstat(fd, &to) == 0 && (to.st_mode & S_IFMT) == 0;
}

static bool never(int fd) {
    (void)fd;
    return false;
}

static void note_exit(void) {
    atomic_store(&over, true);
}

/* The first object listed is the executable. */
static int find_program(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    plan.program_start = UINTPTR_MAX;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD) {
            uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
            plan.program_start = start < plan.program_start ? start : plan.program_start;
            plan.program_end = end > plan.program_end ? end : plan.program_end;
        }
    }
    return 1;
}

__attribute__((constructor)) static void read_plan(void) {
    const char *kind = getenv("FAIL_KIND"), *at = getenv("FAIL_AT"), *forever = getenv("FAIL_FOREVER");
    const char *depth = getenv("FAIL_DEPTH"), *from = getenv("FAIL_FROM"), *file = getenv("FAIL_REPORT");
    if (!kind || !at) {
        return;
    }
    plan.at = strtoul(at, NULL, 10);
    plan.forever = forever && strcmp(forever, "1") == 0;
    plan.main_only = depth && strcmp(depth, "main") == 0;
    plan.from_anywhere = from && strcmp(from, "all") == 0;
    const char *speech = getenv("FAIL_SPEECH");
    struct stat err;
    if (speech && strcmp(speech, "1") == 0 && fstat(STDERR_FILENO, &err) == 0) {
        plan.speech = true;
        plan.stderr_device = err.st_dev;
        plan.stderr_file = err.st_ino;
    }
    (void)dl_iterate_phdr(find_program, NULL);
    plan.owner = getpid();
    plan.kind = strcmp(kind, "alloc") == 0 ? KIND_ALLOC : KIND_CALL;
    plan.by_name = strcmp(kind, "alloc") != 0 && strcmp(kind, "call") != 0;
    (void)snprintf(plan.names, sizeof plan.names, "%s", kind);
    (void)snprintf(plan.report, sizeof plan.report, "%s", file ? file : "");
    if (plan.main_only) {
        /* A child that executes something is a process of its own, and no longer the owner. */
        (void)unsetenv("FAIL_KIND");
    }
    /* Registered last before main(), so it runs first at exit. */
    (void)atexit(note_exit);
    plan.armed = plan.at > 0;
}

/* dlsym() may allocate before malloc() is known: those few bytes come from here and are never freed. */
static _Alignas(16) char early[4096];
static size_t early_used;

static void *early_alloc(size_t size) {
    size_t start = (early_used + 15) & ~(size_t)15;
    if (size > sizeof early - start) {
        return NULL;
    }
    early_used = start + size;
    return early + start;
}

static bool is_early(const void *pointer) {
    return (const char *)pointer >= early && (const char *)pointer < early + sizeof early;
}

/* real(type, name): the next definition of `name`, looked up once. */
#define REAL(result, name, ...)                                                                                        \
    static result (*real)(__VA_ARGS__);                                                                                \
    if (!real) {                                                                                                       \
        void *found = dlsym(RTLD_NEXT, #name);                                                                         \
        memcpy(&real, &found, sizeof real);                                                                            \
    }

#define EXPORT __attribute__((visibility("default")))

/* The C library's names for its parameters are reserved ones. NOLINTBEGIN(readability-inconsistent-*) */

static _Thread_local bool inside_lookup;

EXPORT void *malloc(size_t size) {
    static void *(*real)(size_t);
    if (!real) {
        if (inside_lookup) {
            return early_alloc(size);
        }
        inside_lookup = true;
        void *found = dlsym(RTLD_NEXT, "malloc");
        memcpy(&real, &found, sizeof real);
        inside_lookup = false;
    }
    if (must_fail(KIND_ALLOC, "malloc", __builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return real(size);
}

EXPORT void *calloc(size_t count, size_t size) {
    static void *(*real)(size_t, size_t);
    if (!real) {
        if (inside_lookup) {
            return early_alloc(count * size); /* static memory is zero */
        }
        inside_lookup = true;
        void *found = dlsym(RTLD_NEXT, "calloc");
        memcpy(&real, &found, sizeof real);
        inside_lookup = false;
    }
    if (must_fail(KIND_ALLOC, "calloc", __builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return real(count, size);
}

EXPORT void *realloc(void *pointer, size_t size) {
    REAL(void *, realloc, void *, size_t)
    if (must_fail(KIND_ALLOC, "realloc", __builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return real(pointer, size);
}

EXPORT void free(void *pointer) {
    REAL(void, free, void *)
    if (!is_early(pointer)) {
        real(pointer);
    }
}

/* dlsym() frees what the last failed dlopen() has left: it would call free() again and again. */
static __attribute__((constructor)) void look_free_up_first(void) {
    void *volatile nothing = NULL; /* or the compiler leaves the call out */
    free(nothing);
}

EXPORT char *strdup(const char *text) {
    REAL(char *, strdup, const char *)
    if (must_fail(KIND_ALLOC, "strdup", __builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return real(text);
}

EXPORT char *strndup(const char *text, size_t size) {
    REAL(char *, strndup, const char *, size_t)
    if (must_fail(KIND_ALLOC, "strndup", __builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return real(text, size);
}

static int format_or_fail(const char *function, const void *caller, char **out, const char *format, va_list args) {
    REAL(int, vasprintf, char **, const char *, va_list)
    if (must_fail(KIND_ALLOC, function, caller)) {
        errno = ENOMEM;
        return -1;
    }
    return real(out, format, args);
}

EXPORT int vasprintf(char **out, const char *format, va_list args) {
    return format_or_fail("vasprintf", __builtin_return_address(0), out, format, args);
}

EXPORT int asprintf(char **out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = format_or_fail("asprintf", __builtin_return_address(0), out, format, args);
    va_end(args);
    return n;
}

/* What the two are called in programs built with checked libc calls; no header declares them. */
int __vasprintf_chk(char **out, int flag, const char *format, va_list args);
int __asprintf_chk(char **out, int flag, const char *format, ...);

EXPORT int __vasprintf_chk(char **out, int flag, const char *format, va_list args) {
    (void)flag;
    return format_or_fail("vasprintf", __builtin_return_address(0), out, format, args);
}

EXPORT int __asprintf_chk(char **out, int flag, const char *format, ...) {
    (void)flag;
    va_list args;
    va_start(args, format);
    int n = format_or_fail("asprintf", __builtin_return_address(0), out, format, args);
    va_end(args);
    return n;
}

EXPORT __attribute__((noreturn)) void abort(void) {
    if (!is_program(__builtin_return_address(0))) {
        report("gave up", "abort", __builtin_return_address(0));
        _exit(70);
    }
    (void)signal(SIGABRT, SIG_DFL);
    (void)raise(SIGABRT);
    _exit(127);
}

/* CALL(result, name, error, (parameters), (arguments)): fails with -1 and `error`. CALL_BUT: not where the first
 * argument is a descriptor that `spares` says must work. */
/* NOLINTBEGIN(bugprone-macro-parentheses): parameter lists and types */
#define CALL(result, name, error, parameters, arguments) CALL_BUT(result, name, error, never(-1), parameters, arguments)
#define CALL_BUT(result, name, error, spared, parameters, arguments)                                                   \
    EXPORT result name parameters {                                                                                    \
        static result(*real) parameters;                                                                               \
        if (!real) {                                                                                                   \
            void *found = dlsym(RTLD_NEXT, #name);                                                                     \
            memcpy(&real, &found, sizeof real);                                                                        \
        }                                                                                                              \
        if (!(spared) && must_fail(KIND_CALL, #name, __builtin_return_address(0))) {                                   \
            errno = (error);                                                                                           \
            return (result)-1;                                                                                         \
        }                                                                                                              \
        return real arguments;                                                                                         \
    }

/* NOLINTEND(bugprone-macro-parentheses) */
CALL(int, socket, EMFILE, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, socketpair, EMFILE, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds))
CALL(int, bind, EADDRINUSE, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size))
CALL(int, listen, EADDRINUSE, (int fd, int backlog), (fd, backlog))
CALL(int, accept, EMFILE, (int fd, struct sockaddr *restrict address, socklen_t *restrict size), (fd, address, size))
CALL(int, accept4, EMFILE, (int fd, struct sockaddr *restrict address, socklen_t *restrict size, int flags),
     (fd, address, size, flags))
CALL(int, connect, ENETUNREACH, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size))
CALL(int, getsockname, ENOBUFS, (int fd, struct sockaddr *restrict address, socklen_t *restrict size),
     (fd, address, size))
CALL(int, setsockopt, ENOPROTOOPT, (int fd, int level, int option, const void *value, socklen_t size),
     (fd, level, option, value, size))
CALL(pid_t, fork, EAGAIN, (void), ())
CALL(int, pipe, EMFILE, (int fds[2]), (fds))
CALL(int, pipe2, EMFILE, (int fds[2], int flags), (fds, flags))
CALL(ssize_t, read, EIO, (int fd, void *bytes, size_t size), (fd, bytes, size))
CALL_BUT(ssize_t, write, ENOSPC, is_speech(fd) || is_wake(fd), (int fd, const void *bytes, size_t size),
         (fd, bytes, size))
CALL(ssize_t, readv, EIO, (int fd, const struct iovec *parts, int count), (fd, parts, count))
CALL_BUT(ssize_t, writev, ENOSPC, is_speech(fd), (int fd, const struct iovec *parts, int count), (fd, parts, count))
CALL(ssize_t, send, ECONNRESET, (int fd, const void *bytes, size_t size, int flags), (fd, bytes, size, flags))
CALL(ssize_t, recv, ECONNRESET, (int fd, void *bytes, size_t size, int flags), (fd, bytes, size, flags))
CALL(ssize_t, sendmsg, ECONNRESET, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
CALL(ssize_t, recvmsg, ECONNRESET, (int fd, struct msghdr *message, int flags), (fd, message, flags))
CALL(int, epoll_create1, EMFILE, (int flags), (flags))
CALL(int, epoll_ctl, ENOMEM, (int epoll, int operation, int fd, struct epoll_event *event),
     (epoll, operation, fd, event))
CALL(int, eventfd, EMFILE, (unsigned value, int flags), (value, flags))
CALL(int, timerfd_create, EMFILE, (int clock, int flags), (clock, flags))
CALL(int, signalfd, EMFILE, (int fd, const sigset_t *set, int flags), (fd, set, flags))
CALL(int, mkdir, ENOSPC, (const char *path, mode_t mode), (path, mode))
CALL(int, dup, EMFILE, (int fd), (fd))
CALL(int, dup2, EMFILE, (int from, int to), (from, to))
CALL(int, dup3, EMFILE, (int from, int to, int flags), (from, to, flags))
CALL(int, rename, ENOSPC, (const char *from, const char *to), (from, to))
CALL(int, inotify_init1, EMFILE, (int flags), (flags))
CALL(int, inotify_add_watch, ENOSPC, (int fd, const char *path, uint32_t mask), (fd, path, mask))
CALL(int, flock, ENOLCK, (int fd, int operation), (fd, operation))
CALL(int, mkostemp, ENOSPC, (char *path, int flags), (path, flags))
CALL(ssize_t, pwrite, ENOSPC, (int fd, const void *bytes, size_t size, off_t at), (fd, bytes, size, at))
CALL(int, mkfifo, ENOSPC, (const char *path, mode_t mode), (path, mode))
CALL(ssize_t, readlink, EACCES, (const char *restrict path, char *restrict target, size_t size), (path, target, size))
CALL(ssize_t, pread, EIO, (int fd, void *bytes, size_t size, off_t at), (fd, bytes, size, at))
CALL(ssize_t, getrandom, EAGAIN, (void *bytes, size_t size, unsigned flags), (bytes, size, flags))
CALL(int, ftruncate, ENOSPC, (int fd, off_t size), (fd, size))
CALL(int, fsync, EIO, (int fd), (fd))
CALL(int, memfd_create, EMFILE, (const char *name, unsigned flags), (name, flags))
CALL(int, timerfd_settime, EINVAL, (int fd, int flags, const struct itimerspec *new, struct itimerspec *old),
     (fd, flags, new, old))
CALL(int, getpeername, ENOBUFS, (int fd, struct sockaddr *restrict address, socklen_t *restrict size),
     (fd, address, size))
CALL(int, getsockopt, ENOBUFS, (int fd, int level, int option, void *restrict value, socklen_t *restrict size),
     (fd, level, option, value, size))
CALL(int, getifaddrs, ENOMEM, (struct ifaddrs * *list), (list))
CALL(ssize_t, process_vm_readv, EPERM,
     (pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from, unsigned long from_count,
      unsigned long flags),
     (pid, to, to_count, from, from_count, flags))

/* These give their errors as results. */
EXPORT int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(int, posix_fallocate, int, off_t, off_t)
    return must_fail(KIND_CALL, "posix_fallocate", __builtin_return_address(0)) ? ENOSPC : real(fd, at, size);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size) {
    REAL(int, posix_memalign, void **, size_t, size_t)
    return must_fail(KIND_ALLOC, "posix_memalign", __builtin_return_address(0)) ? ENOMEM : real(out, alignment, size);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) {
    REAL(void *, aligned_alloc, size_t, size_t)
    if (must_fail(KIND_ALLOC, "aligned_alloc", __builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return real(alignment, size);
}

EXPORT int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*run)(void *),
                          void *restrict argument) {
    REAL(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)
    if (must_fail(KIND_CALL, "pthread_create", __builtin_return_address(0))) {
        return EAGAIN;
    }
    return real(thread, attributes, run, argument);
}

EXPORT int open(const char *path, int flags, ...) {
    REAL(int, open, const char *, int, ...)
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (must_fail(KIND_CALL, "open", __builtin_return_address(0))) {
        errno = EMFILE;
        return -1;
    }
    return real(path, flags, mode);
}

EXPORT int openat(int folder, const char *path, int flags, ...) {
    REAL(int, openat, int, const char *, int, ...)
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (must_fail(KIND_CALL, "openat", __builtin_return_address(0))) {
        errno = EMFILE;
        return -1;
    }
    return real(folder, path, flags, mode);
}

/* What starts the workers. */
EXPORT int clone(int (*run)(void *), void *stack, int flags, void *argument, ...) {
    REAL(int, clone, int (*)(void *), void *, int, void *, ...)
    if (must_fail(KIND_CALL, "clone", __builtin_return_address(0))) {
        errno = EAGAIN;
        return -1;
    }
    return real(run, stack, flags, argument);
}

/* Only where it makes a descriptor. */
EXPORT int fcntl(int fd, int command, ...) {
    REAL(int, fcntl, int, int, ...)
    va_list args;
    va_start(args, command);
    void *argument = va_arg(args, void *); /* whatever it is, it goes on as it came */
    va_end(args);
    bool makes = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
    if (makes && must_fail(KIND_CALL, "fcntl", __builtin_return_address(0))) {
        errno = EMFILE;
        return -1;
    }
    return real(fd, command, argument);
}

EXPORT DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *)
    if (must_fail(KIND_CALL, "opendir", __builtin_return_address(0))) {
        errno = EMFILE;
        return NULL;
    }
    return real(path);
}

EXPORT FILE *fopen(const char *restrict path, const char *restrict mode) {
    REAL(FILE *, fopen, const char *, const char *)
    if (must_fail(KIND_CALL, "fopen", __builtin_return_address(0))) {
        errno = EMFILE;
        return NULL;
    }
    return real(path, mode);
}

EXPORT void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    REAL(void *, mmap, void *, size_t, int, int, int, off_t)
    if (must_fail(KIND_CALL, "mmap", __builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real(at, size, protection, flags, fd, offset);
}

/* Calls that a correct program sees interrupted, and nothing worse. */
EXPORT int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms) {
    REAL(int, epoll_wait, int, struct epoll_event *, int, int)
    if (must_fail_once("epoll_wait", __builtin_return_address(0))) {
        errno = EINTR;
        return -1;
    }
    return real(epoll, events, count, timeout_ms);
}

EXPORT int epoll_pwait(int epoll, struct epoll_event *events, int count, int timeout_ms, const sigset_t *mask) {
    REAL(int, epoll_pwait, int, struct epoll_event *, int, int, const sigset_t *)
    if (must_fail_once("epoll_pwait", __builtin_return_address(0))) {
        errno = EINTR;
        return -1;
    }
    return real(epoll, events, count, timeout_ms, mask);
}

EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    REAL(int, poll, struct pollfd *, nfds_t, int)
    if (must_fail_once("poll", __builtin_return_address(0))) {
        errno = EINTR;
        return -1;
    }
    return real(fds, count, timeout_ms);
}

EXPORT pid_t waitpid(pid_t pid, int *status, int options) {
    REAL(pid_t, waitpid, pid_t, int *, int)
    if (must_fail_once("waitpid", __builtin_return_address(0))) {
        errno = EINTR;
        return -1;
    }
    return real(pid, status, options);
}
/* NOLINTEND(readability-inconsistent-*) */
