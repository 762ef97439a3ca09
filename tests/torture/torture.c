/* Runs a command again and again, failing its 1st, 2nd, 3rd ... allocation or system call, until a run is untouched.
 *
 *   torture [options] KIND COMMAND [argument ...]
 *     KIND           alloc, call, or names of functions (see fail_nth.c)
 *     argument       one that begins with TMPDIR/ lies in the run's TMPDIR
 *     -p FILE        the preload library (fail_nth.so)
 *     -f             forever: fail every call from the n-th on (default: the n-th alone)
 *     -l             fail calls that libraries make, too
 *     -q             quick: every n up to 50, from there on in steps of 10 % (for programs with many thousands)
 *     -j LANES       runs side by side for each processor (default 1; more where a run mostly waits)
 *     -t SECONDS     limit of one run (default 20)
 *     -m N           stop after n = N (default: only the untouched run stops it)
 *     -e STATUS      exit status of an untouched run (default 0)
 *     -o LINES       a run that ends with exit status 0 has printed so many lines on stdout
 *     -k NAME        files below TMPDIR/NAME* may stay, as what the program keeps on purpose; empty folders may not
 *
 * Each run must end by itself, without a signal, in time; leave no process (each lane is the subreaper of its runs) and
 * no file in its TMPDIR; and say something on stderr when its exit status is not 0, unless stderr was what failed.
 * Prints what broke these rules with the environment that repeats it, counts runs, places in the code and exit
 * statuses, and exits 1 when there was a fault. */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void) {
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void set_number(const char *name, unsigned long value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%lu", value);
    (void)setenv(name, text, 1);
}

static void redirect(const struct torture *t, const char *name, int to) {
    char path[TEXT_MAX];
    torture_path(t, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(fd, to) < 0) {
        torture_fail(path);
    }
    (void)close(fd);
}

/* In the child: the command, whose arguments that begin with TMPDIR/ lie there. */
static char **placed_command(const struct torture *t, const char *tmp) {
    static const char prefix[] = "TMPDIR/";
    size_t count = 0;
    while (t->command[count]) {
        count++;
    }
    char **placed = calloc(count + 1, sizeof *placed);
    for (size_t i = 0; placed && i < count; i++) {
        bool is_there = strncmp(t->command[i], prefix, sizeof prefix - 1) == 0;
        if (asprintf(&placed[i], "%s%s%s", is_there ? tmp : "", is_there ? "/" : "",
                     t->command[i] + (is_there ? sizeof prefix - 1 : 0)) < 0) {
            torture_fail(t->command[i]);
        }
    }
    return placed;
}

static pid_t start(const struct torture *t, unsigned long n) {
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    char path[TEXT_MAX];
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setpgid(0, 0);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) {
        torture_fail("/dev/null");
    }
    (void)close(null);
    redirect(t, "stdout", STDOUT_FILENO);
    redirect(t, "stderr", STDERR_FILENO);
    torture_path(t, "tmp", path);
    (void)setenv("TMPDIR", path, 1);
    char **command = placed_command(t, path);
    if (!command) {
        torture_fail("memory");
    }
    torture_path(t, "report", path);
    (void)setenv("FAIL_REPORT", path, 1);
    (void)setenv("FAIL_KIND", t->kind, 1);
    (void)setenv("FAIL_FOREVER", t->forever ? "1" : "0", 1);
    (void)setenv("FAIL_FROM", t->libraries ? "all" : "program", 1);
    (void)setenv("FAIL_SPEECH", t->forever ? "1" : "0", 1);
    set_number("FAIL_AT", n);
    (void)setenv("LD_PRELOAD", t->preload, 1);
    (void)execvp(command[0], command);
    torture_fail(t->command[0]);
    return -1;
}

/* Waits for a SIGCHLD or the deadline; false when the deadline has passed. */
static bool wait_for_child(int64_t deadline_ms) {
    int64_t left = deadline_ms - now_ms();
    if (left <= 0) {
        return false;
    }
    sigset_t child;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    struct timespec limit = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
    return sigtimedwait(&child, NULL, &limit) == SIGCHLD || errno == EINTR;
}

/* Reaps everything until `pid` has ended (pid > 0) or no descendant is left (pid 0). False at the deadline. */
static bool reap_until(pid_t pid, int64_t deadline_ms, int *status) {
    for (;;) {
        int this_status = 0;
        pid_t ended = waitpid(-1, &this_status, WNOHANG);
        if (ended > 0 && ended == pid) {
            *status = this_status;
            return true;
        }
        if (ended > 0) {
            continue;
        }
        if (ended < 0) {
            return pid == 0;
        }
        if (!wait_for_child(deadline_ms)) {
            return false;
        }
    }
}

/* Kills what is left, by asking the kernel for the children of this process, until there are none. */
static void kill_descendants(void) {
    char path[TEXT_MAX];
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    int status = 0;
    do {
        FILE *list = fopen(path, "r");
        int pid = 0;
        while (list && fscanf(list, "%d", &pid) == 1) { /* NOLINT(cert-err34-c): the kernel's own text */
            (void)kill(pid, SIGKILL);
        }
        if (list) {
            (void)fclose(list);
        }
    } while (!reap_until(0, now_ms() + 200, &status));
}

static void note_time(struct torture *t, int64_t took_ms) {
    unsigned long slowest = atomic_load(&t->tally->slowest_ms);
    while ((unsigned long)took_ms > slowest &&
           !atomic_compare_exchange_weak(&t->tally->slowest_ms, &slowest, (unsigned long)took_ms)) {
    }
}

static enum outcome run_once(struct torture *t, unsigned long n) {
    char path[TEXT_MAX];
    torture_path(t, "report", path);
    (void)unlink(path);
    int64_t start_ms = now_ms();
    pid_t pid = start(t, n);
    if (pid < 0) {
        torture_fail("fork");
    }
    int status = 0;
    bool ended = reap_until(pid, start_ms + t->limit_ms, &status);
    note_time(t, now_ms() - start_ms);
    int ignored = 0;
    if (ended && reap_until(0, now_ms() + LEFT_BEHIND_MS, &ignored)) {
        return torture_judge(t, n, status);
    }
    char found[TEXT_MAX] = "";
    torture_fault(t, n, ended ? "left a process behind" : "still runs at the time limit");
    kill_descendants();
    torture_empty_tmp(t, found); /* for the next run */
    return OUTCOME_FAULT;
}

static unsigned long next(const struct torture *t, unsigned long n) {
    return n + 1 + (t->quick && n > 50 ? n / 10 : 0);
}

/* Every lane counts alone, and stops at the first run that has no n-th call. */
static void lane_run(struct torture *t, unsigned lane) {
    char tmp[TEXT_MAX];
    (void)snprintf(t->folder, sizeof t->folder, "%s/%u", t->top, lane);
    torture_path(t, "tmp", tmp);
    if (mkdir(t->folder, 0700) != 0 || mkdir(tmp, 0700) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        torture_fail("set-up");
    }
    unsigned long index = 0;
    enum outcome outcome = OUTCOME_FINE;
    for (unsigned long n = 1; n <= t->last && atomic_load(&t->tally->faults) < FAULTS_MAX; n = next(t, n), index++) {
        if (index % t->lanes != lane) {
            continue;
        }
        outcome = run_once(t, n);
        if (outcome == OUTCOME_UNTOUCHED) {
            (void)atomic_fetch_add(&t->tally->untouched, 1);
            break;
        }
        (void)atomic_fetch_add(&t->tally->runs, 1);
    }
    (void)fflush(t->places);
}

static int compare_lines(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* How many different lines the file of places has. */
static size_t count_places(FILE *file) {
    char **lines = NULL;
    size_t count = 0, distinct = 0;
    char line[TEXT_MAX];
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        char **more = realloc(lines, (count + 1) * sizeof *lines);
        lines = more ? more : lines;
        if (!more || !(lines[count++] = strdup(line))) {
            torture_fail("count places");
        }
    }
    qsort(lines, count, sizeof *lines, compare_lines);
    for (size_t i = 0; i < count; i++) {
        distinct += i == 0 || strcmp(lines[i], lines[i - 1]) != 0;
    }
    for (size_t i = 0; i < count; i++) {
        free(lines[i]);
    }
    free(lines);
    return distinct;
}

static void print_tally(const struct torture *t) {
    (void)printf("%lu runs with failures (%s%s), at %zu places in the code; exit statuses",
                 atomic_load(&t->tally->runs), t->kind, t->forever ? ", from there on" : "", count_places(t->places));
    for (int i = 0; i < STATUS_COUNT; i++) {
        unsigned long count = atomic_load(&t->tally->statuses[i]);
        if (count > 0) {
            (void)printf(" %d (%lu times)", i, count);
        }
    }
    (void)printf("; %lu ended by a library's abort(); the slowest run took %lu ms; %d faults%s\n",
                 atomic_load(&t->tally->gave_up), atomic_load(&t->tally->slowest_ms), atomic_load(&t->tally->faults),
                 atomic_load(&t->tally->untouched) == (int)t->lanes ? "" : "; stopped before a run was untouched");
}

static void usage(void) {
    (void)fputs(
        "usage: torture -p PRELOAD [-f] [-l] [-q] [-j LANES] [-t SECONDS] [-m N] [-e STATUS] [-o LINES] [-k NAME] "
        "KIND COMMAND [argument ...]\n",
        stderr);
    exit(2);
}

static void read_options(struct torture *t, int argc, char **argv) {
    *t = (struct torture){.last = ULONG_MAX, .limit_ms = 20000, .lanes = 1, .top = "/tmp/muster-torture-XXXXXX"};
    int option = 0;
    while ((option = getopt(argc, argv, "+p:flqj:t:m:e:o:k:")) != -1) {
        switch (option) {
        case 'p':
            if (!realpath(optarg, t->preload)) {
                torture_fail(optarg);
            }
            break;
        case 'f':
            t->forever = true;
            break;
        case 'l':
            t->libraries = true;
            break;
        case 'q':
            t->quick = true;
            break;
        case 'j':
            t->lanes = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 't':
            t->limit_ms = strtol(optarg, NULL, 10) * 1000;
            break;
        case 'm':
            t->last = strtoul(optarg, NULL, 10);
            break;
        case 'e':
            t->status = (int)strtol(optarg, NULL, 10);
            break;
        case 'o':
            t->lines = strtoul(optarg, NULL, 10);
            break;
        case 'k':
            t->kept = optarg;
            break;
        default:
            usage();
        }
    }
    if (argc - optind < 2 || !t->preload[0] || t->lanes == 0 || t->lanes > LANES_MAX) {
        usage();
    }
    t->lanes *= (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    t->lanes = t->lanes > LANES_MAX ? LANES_MAX : t->lanes;
    t->kind = argv[optind];
    t->command = argv + optind + 1;
}

static void set_up(struct torture *t) {
    sigset_t child;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    t->tally = mmap(NULL, sizeof *t->tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t->tally == MAP_FAILED || !mkdtemp(t->top) || sigprocmask(SIG_BLOCK, &child, NULL) != 0) {
        torture_fail("set-up");
    }
    char path[TEXT_MAX];
    (void)snprintf(path, sizeof path, "%s/places", t->top);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    t->places = fd >= 0 ? fdopen(fd, "a+") : NULL;
    if (!t->places) {
        torture_fail(path);
    }
}

int main(int argc, char **argv) {
    struct torture t;
    char ignored[TEXT_MAX] = "";
    read_options(&t, argc, argv);
    set_up(&t);
    for (unsigned lane = 0; lane < t.lanes; lane++) {
        pid_t pid = fork();
        if (pid < 0) {
            torture_fail("fork");
        }
        if (pid == 0) {
            lane_run(&t, lane);
            _exit(0);
        }
    }
    int status = 0;
    bool broken = false;
    while (wait(&status) > 0) {
        broken = broken || status != 0;
    }
    print_tally(&t);
    (void)torture_empty_folder(t.top, false, ignored);
    (void)rmdir(t.top);
    if (atomic_load(&t.tally->runs) == 0) {
        (void)printf("nothing was failed: is the preload library in force?\n");
    }
    return broken || atomic_load(&t.tally->faults) > 0 || atomic_load(&t.tally->runs) == 0;
}
