/* Runs a command again and again, failing its 1st, 2nd, 3rd ... allocation or system call, until a run is untouched.
 *
 *   torture [options] KIND COMMAND [argument ...]
 *     KIND           alloc, call, or names of functions (see fail_nth.c)
 *     -p FILE        the preload library (fail_nth.so)
 *     -f             forever: fail every call from the n-th on (default: the n-th alone)
 *     -l             fail calls that libraries make, too
 *     -q             quick: every n up to 100, from there on in steps of 5 % (for programs with many thousands)
 *     -t SECONDS     limit of one run (default 20)
 *     -m N           stop after n = N (default: only the untouched run stops it)
 *
 * Each run must end by itself, without a signal, in time; leave no process (this program is the subreaper of all) and
 * no file in its TMPDIR; and say something on stderr when its exit status is not 0. Prints what broke these rules with
 * the environment that repeats it, and exits 1. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FAULTS_MAX = 10, LEFT_BEHIND_MS = 5000, TEXT_MAX = 512 };

struct torture {
    const char *kind;
    char preload[PATH_MAX];
    bool forever;
    bool libraries;
    bool quick;
    unsigned long last;
    int64_t limit_ms;
    char *const *command;
    char folder[64]; /* holds tmp/, report, stdout, stderr */
    int faults;
};

enum outcome { OUTCOME_FINE, OUTCOME_UNTOUCHED, OUTCOME_FAULT };

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static int64_t now_ms(void) {
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void path_in(const struct torture *t, const char *name, char out[TEXT_MAX]) {
    if (snprintf(out, TEXT_MAX, "%s/%s", t->folder, name) >= TEXT_MAX) {
        errno = ENAMETOOLONG;
        fail(name);
    }
}

static void set_number(const char *name, unsigned long value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%lu", value);
    (void)setenv(name, text, 1);
}

static void redirect(const struct torture *t, const char *name, int to) {
    char path[TEXT_MAX];
    path_in(t, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(fd, to) < 0) {
        fail(path);
    }
    (void)close(fd);
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
        fail("/dev/null");
    }
    (void)close(null);
    redirect(t, "stdout", STDOUT_FILENO);
    redirect(t, "stderr", STDERR_FILENO);
    path_in(t, "tmp", path);
    (void)setenv("TMPDIR", path, 1);
    path_in(t, "report", path);
    (void)setenv("FAIL_REPORT", path, 1);
    (void)setenv("FAIL_KIND", t->kind, 1);
    (void)setenv("FAIL_FOREVER", t->forever ? "1" : "0", 1);
    (void)setenv("FAIL_FROM", t->libraries ? "all" : "program", 1);
    set_number("FAIL_AT", n);
    (void)setenv("LD_PRELOAD", t->preload, 1);
    (void)execvp(t->command[0], t->command);
    fail(t->command[0]);
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

/* The size of a file of the run, and its first bytes in `text`. */
static size_t read_text(const struct torture *t, const char *name, char text[TEXT_MAX]) {
    char path[TEXT_MAX];
    path_in(t, name, path);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, TEXT_MAX - 1, file) : 0;
    text[n] = '\0';
    if (file) {
        (void)fclose(file);
    }
    return n;
}

static void fault(struct torture *t, unsigned long n, const char *what) {
    char report[TEXT_MAX], error[TEXT_MAX];
    (void)read_text(t, "report", report);
    (void)read_text(t, "stderr", error);
    (void)printf("FAULT at n = %lu: %s\n  %s  stderr begins: %s\n", n, what, report[0] ? report : "\n", error);
    (void)printf("  again: FAIL_KIND=%s FAIL_AT=%lu FAIL_FOREVER=%d FAIL_FROM=%s LD_PRELOAD=%s", t->kind, n, t->forever,
                 t->libraries ? "all" : "program", t->preload);
    for (char *const *word = t->command; *word; word++) {
        (void)printf(" %s", *word);
    }
    (void)printf("\n");
    (void)fflush(stdout);
    t->faults++;
}

/* Empties a folder; writes the name of something that was in it to `found`. */
static void empty_folder(const char *path, char found[TEXT_MAX]) {
    DIR *folder = opendir(path);
    if (!folder) {
        return;
    }
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        char inner[TEXT_MAX];
        char ignored[TEXT_MAX];
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner) {
            continue;
        }
        (void)snprintf(found, TEXT_MAX, "%s", inner);
        if (unlink(inner) != 0) {
            empty_folder(inner, ignored);
            (void)rmdir(inner);
        }
    }
    (void)closedir(folder);
}

static enum outcome judge(struct torture *t, unsigned long n, int status) {
    char text[TEXT_MAX], tmp[TEXT_MAX], found[TEXT_MAX] = "", what[2 * TEXT_MAX];
    path_in(t, "tmp", tmp);
    empty_folder(tmp, found);
    bool touched = read_text(t, "report", text) > 0;
    bool gave_up = strstr(text, "gave up") != NULL;
    int faults = t->faults;
    if (WIFSIGNALED(status)) {
        (void)snprintf(what, sizeof what, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        fault(t, n, what);
    } else if (found[0] && !gave_up) {
        (void)snprintf(what, sizeof what, "left %s behind (exit status %d)", found, WEXITSTATUS(status));
        fault(t, n, what);
    } else if (WEXITSTATUS(status) != 0 && !gave_up && read_text(t, "stderr", text) == 0) {
        /* The message itself may be what was made to fail. */
        (void)read_text(t, "report", text);
        if (!t->forever && !strstr(text, "write")) {
            (void)snprintf(what, sizeof what, "exit status %d without a word", WEXITSTATUS(status));
            fault(t, n, what);
        }
    }
    (void)read_text(t, "stdout", text);
    if (strstr(text, "Test failed with exception")) { /* cmocka catches the signal */
        fault(t, n, text);
    }
    if (t->faults > faults) {
        return OUTCOME_FAULT;
    }
    if (!touched && status != 0) {
        fault(t, n, "fails without any failure dealt out");
        return OUTCOME_UNTOUCHED;
    }
    return touched ? OUTCOME_FINE : OUTCOME_UNTOUCHED;
}

static enum outcome run_once(struct torture *t, unsigned long n) {
    char path[TEXT_MAX];
    path_in(t, "report", path);
    (void)unlink(path);
    (void)fflush(stdout);
    pid_t pid = start(t, n);
    if (pid < 0) {
        fail("fork");
    }
    int status = 0;
    if (!reap_until(pid, now_ms() + t->limit_ms, &status)) {
        fault(t, n, "still runs at the time limit");
        kill_descendants();
        return OUTCOME_FAULT;
    }
    if (!reap_until(0, now_ms() + LEFT_BEHIND_MS, &status)) {
        fault(t, n, "left a process behind");
        kill_descendants();
        return OUTCOME_FAULT;
    }
    return judge(t, n, status);
}

static unsigned long next(const struct torture *t, unsigned long n) {
    return n + 1 + (t->quick && n > 100 ? n / 20 : 0);
}

static void usage(void) {
    (void)fputs("usage: torture -p PRELOAD [-f] [-l] [-q] [-t SECONDS] [-m N] KIND COMMAND [argument ...]\n", stderr);
    exit(2);
}

static void read_options(struct torture *t, int argc, char **argv) {
    *t = (struct torture){.last = ULONG_MAX, .limit_ms = 20000, .folder = "/tmp/muster-torture-XXXXXX"};
    int option = 0;
    while ((option = getopt(argc, argv, "+p:flqt:m:")) != -1) {
        switch (option) {
        case 'p':
            if (!realpath(optarg, t->preload)) {
                fail(optarg);
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
        case 't':
            t->limit_ms = strtol(optarg, NULL, 10) * 1000;
            break;
        case 'm':
            t->last = strtoul(optarg, NULL, 10);
            break;
        default:
            usage();
        }
    }
    if (argc - optind < 2 || !t->preload[0]) {
        usage();
    }
    t->kind = argv[optind];
    t->command = argv + optind + 1;
}

int main(int argc, char **argv) {
    struct torture t;
    read_options(&t, argc, argv);
    char tmp[TEXT_MAX], ignored[TEXT_MAX];
    if (!mkdtemp(t.folder)) {
        fail(t.folder);
    }
    path_in(&t, "tmp", tmp);
    sigset_t child;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    if (mkdir(tmp, 0700) != 0 || sigprocmask(SIG_BLOCK, &child, NULL) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        fail("set-up");
    }
    unsigned long dealt = 0;
    enum outcome outcome = OUTCOME_FINE;
    for (unsigned long n = 1; n <= t.last && outcome != OUTCOME_UNTOUCHED && t.faults < FAULTS_MAX; n = next(&t, n)) {
        outcome = run_once(&t, n);
        dealt += outcome != OUTCOME_UNTOUCHED;
    }
    empty_folder(t.folder, ignored);
    (void)rmdir(t.folder);
    (void)printf("%lu failures dealt out (%s%s), %d faults%s\n", dealt, t.kind, t.forever ? ", from there on" : "",
                 t.faults, outcome == OUTCOME_UNTOUCHED ? "" : "; stopped before a run was untouched");
    if (dealt == 0) {
        (void)printf("nothing was failed: is the preload library in force?\n");
    }
    return t.faults > 0 || dealt == 0;
}
