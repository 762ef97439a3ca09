/* Does something to a rank in the middle of every operation, and looks at what all other ranks make of it.
 *
 *   failures [--count N] [--seed S] [--only I] [--stopped yes|no] [--at-once N] [--verbose]
 *
 * Case I of N: an operation (each in turn) on 2 to 5 ranks of one to five "hosts", with buffers of 4 B to 4 MiB a rank,
 * private or shared, blocking or with a handle, called again and again; one rank is killed, stopped, exits, or aborts,
 * before it calls or at any moment. Then every survivor must get the right code, with a sentence that names the rank;
 * must find the group failed; goes on with the others in a shrunken group that computes correctly; and has, when all is
 * freed, as many descriptors as before and no memory of a group. The seed tells the whole run: `--only I` repeats a
 * case, but for the moment of the kill. Those in which a rank is stopped mostly wait: several go at once, and the
 * machine should have nothing else to do.
 *
 * Prints how long survivors needed to hear of a death. No limit is set on that: others may be using the machine. */
#include <muster/collective.h>
#include <muster/group.h>

#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/group/ranks_test_support.h"
#include "operations.h"

enum harm { HARM_KILL_BEFORE, HARM_KILL_WHILE, HARM_STOP, HARM_EXIT, HARM_ABORT, HARM_COUNT };
static const char *const harm_names[HARM_COUNT] = {"killed before", "killed while", "stopped", "exits", "aborts"};

/* Where a rank is stopped, so long the others wait for it: more than a healthy rank ever needs beside other tests, or
 * it is given up with the stopped one. */
enum { DEADLINE_MS = 4000 };

enum {
    MARK_READY = 1,   /* in the group */
    MARK_SETTLED = 2, /* the survivors have their group */
    SIGNAL_GO = 1,    /* for the victim that waits */
    EXIT_CODE = 7,
    PAUSE_US_MAX = 3000,
};

struct plan {
    uint32_t index;
    const struct operation *operation;
    enum harm harm;
    uint32_t size, ranks_per_host, victim, root, calls_before;
    size_t count;
    bool is_shared, with_handle, use_tcp;
};

/* What a rank tells the program. */
struct outcome {
    int code;
    int64_t ended_ns;
    char detail[MUSTER_DETAIL_MAX];
    char problem[MUSTER_DETAIL_MAX + 128];
};

struct board {
    struct plan plan;
    struct outcome outcomes[OPERATION_RANKS_MAX];
};

/* ---- chance ---- */

static uint64_t chance_state;

static uint32_t chance(uint32_t below) {
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 7;
    chance_state ^= chance_state << 17;
    return (uint32_t)((chance_state >> 16) % below);
}

static void draw(struct plan *plan, uint64_t seed, uint32_t index) {
    static const size_t counts[] = {1, 16384, 1048576};
    chance_state = (seed + index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 4; i++) {
        (void)chance(2);
    }
    plan->index = index;
    plan->operation = &operations[index % OPERATION_COUNT];
    plan->harm = index / OPERATION_COUNT % HARM_COUNT;
    plan->size = 2 + chance(OPERATION_RANKS_MAX - 1);
    plan->ranks_per_host = chance(2) ? 0 : 1 + chance(2);
    plan->victim = chance(plan->size);
    plan->root = chance(plan->size);
    plan->calls_before = chance(10);
    plan->count = counts[chance(plan->size > 3 ? 2 : 3)];
    plan->is_shared = chance(2);
    plan->with_handle = chance(2);
    plan->use_tcp = chance(2);
}

static void describe(const struct plan *p, char *out, size_t max) {
    (void)snprintf(out, max, "case %u: rank %u of %u %s, %s (%d) of %zu floats, root %u, %s, %s buffers, %u a host%s",
                   p->index, p->victim, p->size, harm_names[p->harm], p->operation->name,
                   (int)(p->operation - operations), p->count, p->root, p->with_handle ? "handle" : "blocking",
                   p->is_shared ? "shared" : "private", p->ranks_per_host, p->use_tcp ? ", store over TCP" : "");
}

/* ---- a rank ---- */

static int open_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

/* Is memory of a group mapped? Writes the line. */
static bool group_memory(char *out, size_t max) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        found = strstr(line, "/memfd:") != NULL;
    }
    if (maps) {
        (void)fclose(maps);
    }
    if (found) {
        (void)snprintf(out, max, "%s", line);
    }
    return found;
}

#define PROBLEM(outcome, ...)                                                                                          \
    do {                                                                                                               \
        if ((outcome)->problem[0] == '\0') {                                                                           \
            (void)snprintf((outcome)->problem, sizeof(outcome)->problem, __VA_ARGS__);                                 \
        }                                                                                                              \
    } while (0)

/* The victim's own end of it; does not return where the harm is its own. */
static void suffer(struct rank *rank, struct operands *operands, const struct plan *plan) {
    if (plan->harm == HARM_KILL_BEFORE) {
        rank_await_signal(rank, SIGNAL_GO + 1); /* which nobody gives */
    } else if (plan->harm == HARM_EXIT || plan->harm == HARM_ABORT) {
        for (uint32_t i = 0; i < plan->calls_before; i++) {
            (void)plan->operation->run(operands);
        }
        if (plan->harm == HARM_EXIT) {
            _exit(EXIT_CODE);
        }
        muster_group_abort(operands->group, "out of spite");
    }
}

/* The call that found the failure may have put its own name before the sentence. */
static bool ends_with(const char *text, const char *end) {
    size_t len = strlen(text), end_len = strlen(end);
    return end_len > 0 && end_len <= len && strcmp(text + len - end_len, end) == 0;
}

static void check_failed_group(struct outcome *outcome, struct muster_group *group) {
    int status = muster_group_status(group), again = muster_barrier(group, NULL);
    if (status != outcome->code) {
        PROBLEM(outcome, "the group's status is '%s'", muster_strerror(status));
    } else if (again != MUSTER_EGROUP) {
        PROBLEM(outcome, "the next call gave '%s'", muster_strerror(again));
    } else if (!ends_with(outcome->detail, muster_detail())) {
        PROBLEM(outcome, "the next call said '%s'", muster_detail());
    }
}

/* Goes on without the victim. */
static void go_on(struct rank *rank, struct outcome *outcome, struct muster_group *failed, const struct plan *plan) {
    struct muster_group *group = NULL;
    bool all = plan->harm == HARM_ABORT;
    uint32_t size = all ? plan->size : plan->size - 1;
    int code = muster_group_shrink(failed, plan->harm == HARM_STOP ? DEADLINE_MS : RANKS_PATIENCE_MS, &group);
    muster_group_free(failed);
    if (code) {
        PROBLEM(outcome, "shrink gave '%s': %s", muster_strerror(code), muster_detail());
        return;
    }
    if (muster_group_size(group) != size) {
        PROBLEM(outcome, "%u ranks are left, not %u", muster_group_size(group), size);
    }
    for (int i = 0; i < 3; i++) {
        int64_t sum = rank->rank + 1, expected = (int64_t)plan->size * (plan->size + 1) / 2;
        code = muster_all_reduce(group, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL);
        if (code || sum != expected - (all ? 0 : plan->victim + 1)) {
            PROBLEM(outcome, "the sum of those left is %" PRId64 ", '%s': %s", sum, muster_strerror(code),
                    code ? muster_detail() : "");
        }
    }
    muster_group_free(group);
}

static int live(struct rank *rank, void *argument) {
    struct board *board = argument;
    const struct plan *plan = &board->plan;
    struct outcome *outcome = &board->outcomes[rank->rank];
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct operands operands = {.count = plan->count, .root = plan->root, .with_handle = plan->with_handle};
    struct muster_store *store = rank_store(rank);
    char line[512];
    int descriptors = open_descriptors();
    operands.timeout_ms = plan->harm == HARM_STOP ? DEADLINE_MS : RANKS_PATIENCE_MS;
    options.timeout_ms = RANKS_PATIENCE_MS;
    rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, &options, &operands.group), 0);
    rank_check_code(rank, operands_allocate(&operands, plan->is_shared), 0);
    rank_check_code(rank, muster_barrier(operands.group, NULL), 0);
    rank_hurry(operands.group, operands.timeout_ms); /* now that all are here */
    rank_mark(rank, MARK_READY);
    if (rank->rank == plan->victim) {
        for (uint32_t other = 0; other < rank->size; other++) { /* its end may not spoil the barrier */
            rank_await(rank, other, MARK_READY);
        }
        suffer(rank, &operands, plan);
    }
    do {
        outcome->code = plan->operation->run(&operands);
    } while (outcome->code == 0);
    outcome->ended_ns = clock_monotonic_ns();
    (void)snprintf(outcome->detail, sizeof outcome->detail, "%s", muster_detail());
    check_failed_group(outcome, operands.group);
    operands_free(&operands, plan->is_shared);
    if (rank->rank == plan->victim && plan->harm == HARM_STOP) { /* it is too late, and may not come at all */
        muster_group_free(operands.group);
    } else {
        go_on(rank, outcome, operands.group, plan);
        rank_mark(rank, MARK_SETTLED);
    }
    int left = open_descriptors();
    if (left != descriptors) {
        PROBLEM(outcome, "%d descriptors before, %d afterwards", descriptors, left);
    }
    if (group_memory(line, sizeof line)) {
        PROBLEM(outcome, "still mapped: %s", line);
    }
    return 0;
}

/* ---- what a case must give ---- */

static int64_t samples[1 << 20], slowest_ns;
static size_t sample_count;
static char slowest[512]; /* its case */
static uint32_t fault_count;

static void fault(const struct plan *plan, uint32_t rank, const char *what, const struct outcome *outcome) {
    char text[512];
    describe(plan, text, sizeof text);
    (void)fprintf(stderr, "FAULT in %s\n  rank %u: %s: %s: %s\n", text, rank, what, muster_strerror(outcome->code),
                  outcome->detail);
    fault_count++;
}

static bool on_its_host(const struct plan *plan, uint32_t rank) {
    return plan->ranks_per_host == 0 || rank / plan->ranks_per_host == plan->victim / plan->ranks_per_host;
}

/* "rank 5: rank 4: ...": who has told whom comes first. */
static bool is_told_from_elsewhere(const struct plan *plan, const char *detail) {
    unsigned teller;
    int end = 0;
    while (sscanf(detail, "rank %u: %n", &teller, &end) == 1 && end > 0) {
        if (!on_its_host(plan, teller)) {
            return true;
        }
        detail += end;
        end = 0;
    }
    return false;
}

/* Where a rank was stopped, its neighbours must name it, wherever in a call it was, unless it is another host that told
 * them. Elsewhere, who waits for one of those that wait may hear of them first; and who was stopped inside the call had
 * come. */
static bool names_absent(const struct plan *plan, uint32_t rank, const char *detail) {
    if (on_its_host(plan, rank) && !is_told_from_elsewhere(plan, detail)) {
        return false;
    }
    return strstr(detail, "did not come") || strstr(detail, "all ranks have begun it") ||
           (strcmp(plan->operation->name, "receive") == 0 && strstr(detail, "no message with tag"));
}

static void judge_rank(const struct plan *plan, uint32_t rank, struct outcome *outcome, int result) {
    static const int codes[HARM_COUNT] = {MUSTER_EPEER, MUSTER_EPEER, MUSTER_ETIMEOUT, MUSTER_EPEER, MUSTER_EABORTED};
    char name[32];
    (void)snprintf(name, sizeof name, "rank %u", plan->victim);
    if (result != 0) {
        (void)snprintf(outcome->problem, sizeof outcome->problem, "it ended with %d", result);
        fault(plan, rank, outcome->problem, outcome);
    } else if (rank == plan->victim && plan->harm == HARM_STOP) {
        return; /* whatever it was told */
    } else if (outcome->problem[0]) {
        fault(plan, rank, outcome->problem, outcome);
    } else if (outcome->code != codes[plan->harm]) {
        fault(plan, rank, "wrong code", outcome);
    } else if (!strstr(outcome->detail, name) &&
               (plan->harm != HARM_STOP || !names_absent(plan, rank, outcome->detail))) {
        fault(plan, rank, "the sentence does not name the rank", outcome);
    } else if (!strstr(outcome->detail, plan->operation->name) && plan->harm != HARM_ABORT &&
               !strstr(outcome->detail, "send of") &&
               !strstr(outcome->detail, "after call")) { /* found out between two calls, or before a message */
        fault(plan, rank, "the sentence does not name the operation", outcome);
    } else if (!strstr(outcome->detail, "host") && plan->harm != HARM_ABORT && plan->harm != HARM_STOP) {
        fault(plan, rank, "the sentence does not name the host", outcome);
    }
}

/* How long a survivor needed to hear of a death. */
static void keep_time(const struct plan *plan, int64_t took_ns) {
    if (sample_count < sizeof samples / sizeof *samples) {
        samples[sample_count++] = took_ns;
    }
    if (took_ns > slowest_ns) {
        slowest_ns = took_ns;
        describe(plan, slowest, sizeof slowest);
    }
}

static void pause_us(uint32_t us) {
    struct timespec pause = {.tv_nsec = (long)us * 1000};
    (void)nanosleep(&pause, NULL);
}

static void run_case(struct board *board, bool verbose) {
    const struct plan *plan = &board->plan;
    struct ranks_options options = {.ranks_per_host = plan->ranks_per_host, .use_tcp = plan->use_tcp};
    struct ranks *ranks = ranks_start(plan->size, live, board, &options);
    int64_t killed_ns = 0;
    for (uint32_t rank = 0; rank < plan->size && plan->harm != HARM_EXIT && plan->harm != HARM_ABORT; rank++) {
        ranks_await(ranks, rank, MARK_READY);
    }
    pause_us(chance(PAUSE_US_MAX)); /* any moment will do */
    if (plan->harm == HARM_STOP) {
        ranks_stop(ranks, plan->victim);
    } else if (plan->harm == HARM_KILL_BEFORE || plan->harm == HARM_KILL_WHILE) {
        killed_ns = clock_monotonic_ns();
        ranks_kill(ranks, plan->victim);
    }
    for (uint32_t rank = 0; rank < plan->size; rank++) {
        if (rank != plan->victim) {
            judge_rank(plan, rank, &board->outcomes[rank], ranks_wait(ranks, rank));
            if (killed_ns) {
                keep_time(plan, board->outcomes[rank].ended_ns - killed_ns);
            }
        }
    }
    if (plan->harm == HARM_STOP) {
        ranks_continue(ranks, plan->victim);
    }
    if (plan->harm == HARM_STOP || plan->harm == HARM_ABORT) {
        judge_rank(plan, plan->victim, &board->outcomes[plan->victim], ranks_wait(ranks, plan->victim));
    }
    if (verbose) {
        char text[512];
        describe(plan, text, sizeof text);
        (void)printf("%s\n  %s\n", text, board->outcomes[plan->victim == 0].detail);
        (void)fflush(stdout);
    }
    ranks_free(ranks);
}

/* ---- the program ---- */

/* Which cases there are. */
struct selection {
    uint32_t first, count, at_once;
    uint64_t seed;
    const char *stopped; /* "yes", "no" or NULL: both */
    bool verbose;
};

static const struct board *running; /* NULL: all is over */
static pid_t owner;

/* At exit: the case in which the harness gave up waiting. */
static void tell_running(void) {
    if (running && getpid() == owner) { /* the ranks, too, come here */
        char text[512];
        describe(&running->plan, text, sizeof text);
        (void)fprintf(stderr, "HANG in %s\n", text);
    }
}

static int compare_times(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static void print_times(void) {
    if (sample_count == 0) {
        return;
    }
    qsort(samples, sample_count, sizeof *samples, compare_times);
    size_t middle = sample_count / 2, late = sample_count * 99 / 100;
    int64_t median_ns = samples[middle], p99_ns = samples[late];
    (void)printf("kill to error, %zu survivors: median %.3f ms, p99 %.3f ms, max %.3f ms\n", sample_count,
                 (double)median_ns / 1e6, (double)p99_ns / 1e6, (double)slowest_ns / 1e6);
    (void)printf("slowest: %s\n", slowest);
}

/* Every `at_once`th of the cases, from the `part`th on. The exit code. */
static int run_part(const struct selection *selection, uint32_t part) {
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    uint32_t matching = 0, count = 0;
    owner = getpid();
    for (uint32_t i = selection->first; i < selection->first + selection->count; i++) {
        memset(board, 0, sizeof *board);
        draw(&board->plan, selection->seed, i);
        if (selection->stopped && (strcmp(selection->stopped, "yes") == 0) != (board->plan.harm == HARM_STOP)) {
            continue;
        }
        if (matching++ % selection->at_once == part) {
            running = board;
            run_case(board, selection->verbose);
            count++;
        }
    }
    running = NULL;
    print_times();
    (void)printf("%u cases, %u faults\n", count, fault_count);
    return fault_count ? 1 : 0;
}

/* All parts, each in a process of its own, which ends with this one. */
static int run_parts(const struct selection *selection) {
    for (uint32_t part = 0; part < selection->at_once; part++) {
        pid_t child = fork();
        if (child == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(run_part(selection, part));
        }
        if (child < 0) {
            perror("fork");
            return 2;
        }
    }
    int code = 0, status = 0;
    while (wait(&status) > 0) {
        code |= WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    }
    return code;
}

static bool select_cases(int argc, char **argv, struct selection *selection) {
    static const struct option options[] = {
        {"count", required_argument, NULL, 'c'},
        {"seed", required_argument, NULL, 's'},
        {"only", required_argument, NULL, 'o'},
        {"stopped", required_argument, NULL, 'S'},
        {"at-once", required_argument, NULL, 'a'},
        {"verbose", no_argument, NULL, 'v'},
        {0},
    };
    for (int option; (option = getopt_long(argc, argv, "c:s:o:S:a:v", options, NULL)) != -1;) {
        switch (option) {
        case 'c':
            selection->count = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 's':
            selection->seed = strtoull(optarg, NULL, 10);
            break;
        case 'o':
            selection->first = (uint32_t)strtoul(optarg, NULL, 10);
            selection->count = 1;
            break;
        case 'S':
            selection->stopped = optarg;
            break;
        case 'a':
            selection->at_once = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'v':
            selection->verbose = true;
            break;
        default:
            return false;
        }
    }
    return selection->at_once > 0;
}

int main(int argc, char **argv) {
    struct selection selection = {
        .count = OPERATION_COUNT * HARM_COUNT, .at_once = 1, .seed = (uint64_t)clock_monotonic_ns()};
    if (!select_cases(argc, argv, &selection)) {
        (void)fprintf(stderr,
                      "usage: %s [--count N] [--seed S] [--only I] [--stopped yes|no] [--at-once N] [--verbose]\n",
                      argv[0]);
        return 2;
    }
    (void)printf("seed %" PRIu64 "\n", selection.seed);
    (void)fflush(stdout);
    (void)atexit(tell_running);
    return selection.at_once == 1 ? run_part(&selection, 0) : run_parts(&selection);
}
