/* Messages between two hosts over one network interface, and over several:
 *
 *     interfaces_bench [--rates 1gbit,1gbit] [--mib N] [--rounds N] [--pause-ms MS] [--zero-copy SETTING]
 *
 * Two processes become hosts (network namespaces), joined by a virtual cable for each rate, which tc's token bucket
 * limits. They make a group that may use the first interface alone, and one that may use all, and pass a message of
 * --mib MiB (32) in each, in turns. Before each it does nothing for a while (--pause-ms, 0), as a program does
 * that computes in between. It prints the median rates of both over the rounds (5), and their ratio. A rate of `none`
 * is no limit. With --zero-copy both groups may use all interfaces, and the second has MUSTER_TCP_ZERO_COPY=SETTING;
 * the sender's time of the processor is printed, too.
 *
 * Needs root, `ip` and `tc`: else it says so and exits with 77. Namespaces and cables end with the processes. */
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <muster/muster.h>

#include "quantile.h"

enum { CABLES_MAX = 4, ROUNDS_MAX = 100, PATIENCE_S = 300, SKIPPED = 77, WORDS_MAX = 24 };

struct settings {
    char *rates[CABLES_MAX];
    uint32_t cable_count, rounds;
    long pause_ms;
    size_t bytes;
    const char *zero_copy; /* NULL: one interface and all are compared */
};

static char meeting_path[64]; /* a file that both processes see */

_Noreturn static void fail(const char *what) {
    (void)fprintf(stderr, "interfaces_bench: %s: %s\n", what, *muster_detail() ? muster_detail() : strerror(errno));
    exit(1);
}

/* Runs a command of words separated by blanks. */
static bool run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool run(const char *format, ...) {
    char words[256], *arguments[WORDS_MAX], *rest = NULL;
    size_t count = 0;
    va_list given;
    va_start(given, format);
    (void)vsnprintf(words, sizeof words, format, given);
    va_end(given);
    for (char *word = strtok_r(words, " ", &rest); word && count + 1 < WORDS_MAX; word = strtok_r(NULL, " ", &rest)) {
        arguments[count++] = word;
    }
    arguments[count] = NULL;
    pid_t pid = count > 0 ? fork() : -1;
    if (pid == 0) {
        (void)execvp(arguments[0], arguments);
        _exit(127);
    }
    int status = 1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* ---- one host ---- */

/* A group, and the store that it borrows. */
struct meeting {
    struct muster_store *store;
    struct muster_group *group;
};

static struct meeting make_group(const char *name, const char *interfaces, uint32_t rank) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct meeting meeting = {NULL, NULL};
    options.name = name;
    (void)setenv("MUSTER_SHM", "0", 1);
    (void)setenv("MUSTER_SOCKET_IFNAME", interfaces, 1);
    if (muster_store_open_file(meeting_path, 0, MUSTER_STORE_DEFAULT, &meeting.store) != MUSTER_OK ||
        muster_group_create_store(meeting.store, rank, 2, &options, &meeting.group) != MUSTER_OK) {
        fail("make a group");
    }
    return meeting;
}

static void leave(struct meeting *meeting) {
    muster_group_free(meeting->group);
    muster_store_close(meeting->store);
}

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Seconds for a message to rank 1, and its answer. */
static double pass(struct muster_group *group, uint32_t rank, void *buffer, size_t bytes) {
    double begin_s = now_s();
    char answer = 0;
    int code = rank == 0 ? muster_send(group, buffer, bytes, MUSTER_UINT8, 1, 0, NULL)
                         : muster_receive(group, buffer, bytes, MUSTER_UINT8, 0, 0, NULL, NULL);
    code = code        ? code
           : rank == 0 ? muster_receive(group, &answer, 1, MUSTER_UINT8, 1, 1, NULL, NULL)
                       : muster_send(group, &answer, 1, MUSTER_UINT8, 0, 1, NULL);
    if (code != MUSTER_OK) {
        fail("pass a message");
    }
    return now_s() - begin_s;
}

static void set_up_cables(const struct settings *settings, uint32_t rank) {
    for (uint32_t cable = 0; cable < settings->cable_count; cable++) {
        bool is_limited = strcmp(settings->rates[cable], "none") != 0;
        if (!run("ip addr add 10.98.%u.%u/24 dev cable%u", cable, rank + 1, cable) ||
            !run("ip link set cable%u up", cable) ||
            (is_limited && !run("tc qdisc add dev cable%u root tbf rate %s burst 256kb latency 20ms", cable,
                                settings->rates[cable]))) {
            fail("set up a cable");
        }
    }
}

static double processor_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void print(const struct settings *settings, double one_s[], double all_s[], const double processor[2]) {
    double mbit = (double)settings->bytes * 8 / 1e6, one_median_s = quantile(one_s, settings->rounds, 0.5),
           all_median_s = quantile(all_s, settings->rounds, 0.5);
    if (settings->zero_copy) {
        printf("zero-copy: %.0f Mbit/s; usual: %.0f Mbit/s; ratio %.2f; the sender's processor: %.2f times the usual\n",
               mbit / all_median_s, mbit / one_median_s, one_median_s / all_median_s, processor[1] / processor[0]);
    } else {
        printf("%u interfaces: %.0f Mbit/s; the first alone: %.0f Mbit/s; ratio %.2f\n", settings->cable_count,
               mbit / all_median_s, mbit / one_median_s, one_median_s / all_median_s);
    }
}

static void be_host(const struct settings *settings, uint32_t rank) {
    static double one_s[ROUNDS_MAX], all_s[ROUNDS_MAX];
    double processor[2] = {0, 0};
    set_up_cables(settings, rank);
    struct meeting first = make_group("one", settings->zero_copy ? "cable" : "=cable0", rank);
    (void)setenv("MUSTER_TCP_ZERO_COPY", settings->zero_copy ? settings->zero_copy : "0", 1);
    struct meeting both = make_group("all", "cable", rank);
    struct muster_group *one = first.group, *all = both.group;
    void *buffer = calloc(1, settings->bytes);
    if (!buffer) {
        fail("memory");
    }
    (void)pass(one, rank, buffer, settings->bytes); /* connections are made, and rates found out */
    (void)pass(all, rank, buffer, settings->bytes);
    for (uint32_t round = 0; round < settings->rounds; round++) {
        const struct timespec pause = {settings->pause_ms / 1000, settings->pause_ms % 1000 * 1000000};
        (void)nanosleep(&pause, NULL);
        double begin_s = processor_s();
        one_s[round] = pass(one, rank, buffer, settings->bytes);
        processor[0] += processor_s() - begin_s;
        (void)nanosleep(&pause, NULL);
        begin_s = processor_s();
        all_s[round] = pass(all, rank, buffer, settings->bytes);
        processor[1] += processor_s() - begin_s;
    }
    if (rank == 0) {
        print(settings, one_s, all_s, processor);
    }
    free(buffer);
    leave(&first);
    leave(&both);
}

/* ---- both ---- */

/* A process in a network namespace of its own that goes on when a byte comes. */
static pid_t start_host(const struct settings *settings, uint32_t rank, int go[2], int apart[2]) {
    pid_t pid = fork();
    if (pid == 0) {
        char byte = 0;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)alarm(PATIENCE_S);
        byte = unshare(CLONE_NEWNET) == 0 ? 1 : 0;
        (void)!write(apart[1], &byte, 1);
        if (byte && read(go[0], &byte, 1) == 1) {
            be_host(settings, rank);
        }
        exit(0);
    }
    return pid;
}

static bool await_hosts(int apart) {
    char good[2] = {0};
    return read(apart, &good[0], 1) == 1 && read(apart, &good[1], 1) == 1 && good[0] && good[1];
}

static bool lay_cables(const struct settings *settings, const pid_t pids[2]) {
    bool good = true;
    for (uint32_t cable = 0; good && cable < settings->cable_count; cable++) {
        good = run("ip link add cable%u netns %d type veth peer name cable%u netns %d", cable, (int)pids[0], cable,
                   (int)pids[1]);
    }
    return good;
}

static struct settings parse(int argc, char **argv) {
    static const struct option options[] = {
        {"rates", required_argument, NULL, 'r'},     {"mib", required_argument, NULL, 'm'},
        {"rounds", required_argument, NULL, 'n'},    {"pause-ms", required_argument, NULL, 'p'},
        {"zero-copy", required_argument, NULL, 'z'}, {NULL, 0, NULL, 0}};
    static char usual[] = "1gbit,1gbit";
    struct settings settings = {.rounds = 5, .bytes = (size_t)32 << 20};
    char *rates = usual, *rest = NULL;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'r':
            rates = optarg;
            break;
        case 'm':
            settings.bytes = (size_t)strtoul(optarg, NULL, 10) << 20;
            break;
        case 'n':
            settings.rounds = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'p':
            settings.pause_ms = strtol(optarg, NULL, 10);
            break;
        case 'z':
            settings.zero_copy = optarg;
            break;
        default:
            exit(2);
        }
    }
    for (char *rate = strtok_r(rates, ",", &rest); rate && settings.cable_count < CABLES_MAX;
         rate = strtok_r(NULL, ",", &rest)) {
        settings.rates[settings.cable_count++] = rate;
    }
    if (settings.rounds < 1 || settings.rounds > ROUNDS_MAX || settings.bytes == 0 || settings.cable_count == 0) {
        (void)fprintf(stderr, "interfaces_bench: --rounds takes 1 to %d, --mib 1 or more\n", ROUNDS_MAX);
        exit(2);
    }
    return settings;
}

int main(int argc, char **argv) {
    struct settings settings = parse(argc, argv);
    int go[2], apart[2], status[2] = {1, 1}, file = memfd_create("interfaces-store", MFD_CLOEXEC);
    pid_t pids[2];
    if (file < 0 || pipe(go) != 0 || pipe(apart) != 0) {
        fail("files");
    }
    (void)snprintf(meeting_path, sizeof meeting_path, "/proc/%d/fd/%d", (int)getpid(), file);
    for (uint32_t rank = 0; rank < 2; rank++) {
        pids[rank] = start_host(&settings, rank, go, apart);
    }
    bool good = await_hosts(apart[0]) && lay_cables(&settings, pids);
    (void)!write(go[1], "gg", good ? 2 : 0);
    (void)close(go[1]);
    for (uint32_t rank = 0; rank < 2; rank++) {
        if (!good && pids[rank] > 0) {
            (void)kill(pids[rank], SIGKILL);
        }
        (void)waitpid(pids[rank], &status[rank], 0);
    }
    if (!good) {
        (void)fprintf(stderr, "SKIPPED: no right to make network namespaces with virtual cables, or no `ip` or `tc`\n");
        return SKIPPED;
    }
    return status[0] == 0 && status[1] == 0 ? 0 : 1;
}
