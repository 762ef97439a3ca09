/* Ends a rank of a sharded training at any instant, and looks at what all other ranks make of it.
 *
 *   fsdp_deaths [--count N] [--seed S] [--only I] [--stopped yes|no] [--verbose]
 *
 * Case I of N: three to six ranks on one host or more, fully or hybridly sharded, with gathers ahead or without, with
 * steps that only accumulate, in float32 or bfloat16. One rank is killed or stopped at any moment, or ends or leaves
 * after any of its calls: begin, acquire, release, finish, norm, step. Then every survivor must get the right code,
 * with a sentence that names a rank and the call, soon after a death and at the group's time-out after a stop; must be
 * told the same again; trains on with the others in a shrunken group; and has, when all is freed, as many descriptors
 * as before and no shared memory. The seed tells the whole run: `--only I` repeats a case, but for the moment of the
 * kill.
 *
 * Prints how long it took until the last survivor had heard. No limit is set on that: others may be using the machine.
 */
#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "fsdp_victim.h"

/* Where a rank is stopped, so long the others wait for it: more than a healthy rank ever needs. */
enum { DEADLINE_MS = 4000 };
enum { PAUSE_US_MAX = 6000, CALLS_MAX = 90 };

static const char *const harm_names[HARM_COUNT] = {"is killed", "is stopped", "ends", "leaves"};

/* ---- cases ---- */

static const struct layout {
    const char *name;
    uint32_t size, hosts;
    uint32_t host_of[FSDP_RANKS_MAX];
    enum muster_fsdp_sharding sharding;
} layouts[] = {
    {"one host", 3, 1, {0, 0, 0}, MUSTER_FSDP_FULL},
    {"two hosts", 4, 2, {0, 0, 1, 1}, MUSTER_FSDP_FULL},
    {"one host", 4, 1, {0, 0, 0, 0}, MUSTER_FSDP_FULL},
    {"two hosts, crossed", 4, 2, {0, 1, 0, 1}, MUSTER_FSDP_FULL},
    {"two hosts, hybrid", 4, 2, {0, 0, 1, 1}, MUSTER_FSDP_HYBRID},
    {"two hosts of three", 6, 2, {0, 0, 0, 1, 1, 1}, MUSTER_FSDP_FULL},
    {"a host a rank", 3, 3, {0, 1, 2}, MUSTER_FSDP_FULL},
    {"a host a rank, hybrid", 3, 3, {0, 1, 2}, MUSTER_FSDP_HYBRID},
    {"uneven hosts", 4, 2, {0, 0, 0, 1}, MUSTER_FSDP_FULL},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static uint64_t chance_state;

static uint32_t chance(uint32_t below) {
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 7;
    chance_state ^= chance_state << 17;
    return (uint32_t)((chance_state >> 16) % below);
}

static const struct layout *layout_of(const struct plan *plan) {
    return &layouts[plan->index % LAYOUTS];
}

/* Mostly kills: stops take as long as the time-out. */
static enum harm draw_harm(void) {
    static const enum harm harms[] = {HARM_KILL, HARM_KILL, HARM_KILL, HARM_KILL, HARM_STOP, HARM_EXIT, HARM_LEAVE};
    return harms[chance(sizeof harms / sizeof *harms)];
}

static void draw(struct plan *plan, uint64_t seed, uint32_t index) {
    static const size_t counts[] = {100, 5000, 40000};
    static const enum muster_fsdp_step_kind kinds[] = {MUSTER_FSDP_STEP, MUSTER_FSDP_NO_SYNC, MUSTER_FSDP_ACCUMULATE};
    chance_state = (seed + index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 4; i++) {
        (void)chance(2);
    }
    *plan = (struct plan){.index = index, .options = MUSTER_FSDP_OPTIONS_INIT};
    plan->size = layout_of(plan)->size;
    plan->hosts = layout_of(plan)->hosts;
    plan->host_of = layout_of(plan)->host_of;
    plan->options.sharding = layout_of(plan)->sharding;
    plan->options.prefetch = chance(3);
    plan->options.reshard_after_forward = chance(3) > 0;
    plan->options.find_unused = chance(3) == 0;
    plan->options.compute_type = chance(3) == 0 ? MUSTER_BFLOAT16 : MUSTER_FLOAT32;
    plan->options.reduce_type = chance(4) == 0 ? MUSTER_BFLOAT16 : MUSTER_FLOAT32;
    plan->before = kinds[chance(3)];
    plan->options.uneven_inputs = chance(4) == 0 && plan->before != MUSTER_FSDP_ACCUMULATE;
    if (chance(3) == 0) { /* which goes with none of these */
        plan->options.virtual_ranks = plan->size + chance(2 * plan->size);
        plan->options.uneven_inputs = false;
        plan->before = MUSTER_FSDP_STEP;
    }
    plan->count = counts[chance(3)];
    plan->victim = chance(plan->size);
    plan->harm = draw_harm();
    plan->calls_before = 1 + chance(CALLS_MAX);
    plan->steps_before = chance(4);
    plan->timeout_ms = plan->harm == HARM_STOP ? DEADLINE_MS : RANKS_PATIENCE_MS;
}

static void describe(const struct plan *p, char *out, size_t max) {
    char moment[48], virtual_ranks[40] = "";
    (void)snprintf(moment, sizeof moment, "after %u calls", p->calls_before);
    if (p->options.virtual_ranks > 0) {
        (void)snprintf(virtual_ranks, sizeof virtual_ranks, ", %zu virtual ranks", p->options.virtual_ranks);
    }
    (void)snprintf(out, max, "case %u: rank %u of %u %s %s, %s, units of 2 x %zu%s, prefetch %u%s%s%s%s", p->index,
                   p->victim, p->size, harm_names[p->harm],
                   p->harm == HARM_KILL || p->harm == HARM_STOP ? "any time" : moment, layout_of(p)->name, p->count,
                   p->options.compute_type == MUSTER_BFLOAT16 ? " bfloat16" : "", p->options.prefetch,
                   p->options.reshard_after_forward ? "" : ", kept", p->options.find_unused ? ", find_unused" : "",
                   p->options.uneven_inputs ? ", uneven_inputs" : "", virtual_ranks);
}

/* ---- what a case must give ---- */

enum { CALLS = 6 };
static const char *const call_names[CALLS] = {"begin", "acquire", "release", "finish", "squared_norm", "step"};

/* Of cases on one host, and on several; of each harm. */
static struct tally {
    uint32_t cases;
    int64_t longest_ns; /* until the last survivor had heard */
    char slowest[512];
} tallies[2][HARM_COUNT];
static uint32_t heard_in[CALLS], named_count, survivor_count, fault_count;

static void fault(const struct plan *plan, uint32_t rank, const char *what, const struct outcome *outcome) {
    char text[512];
    describe(plan, text, sizeof text);
    (void)fprintf(stderr, "FAULT in %s\n  rank %u: %s: %s: %s\n", text, rank, what, muster_strerror(outcome->code),
                  outcome->detail);
    fault_count++;
}

static bool names_victim(const struct plan *plan, const char *detail) {
    char name[32], root[32];
    (void)snprintf(name, sizeof name, "rank %u", plan->victim);
    (void)snprintf(root, sizeof root, "root rank %u", plan->victim);
    return strstr(detail, name) || strstr(detail, root);
}

static bool is_right_code(const struct plan *plan, int code) {
    /* Who waits for one that has heard hears from it. */
    return code == MUSTER_EABORTED || code == (plan->harm == HARM_STOP ? MUSTER_ETIMEOUT : MUSTER_EPEER);
}

static bool note_call(const char *detail) {
    for (size_t i = 0; i < CALLS; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "muster_fsdp_%s: ", call_names[i]);
        if (strncmp(detail, name, strlen(name)) == 0) {
            heard_in[i]++;
            return true;
        }
    }
    return false;
}

static void judge(const struct plan *plan, uint32_t rank, struct outcome *outcome, int result) {
    survivor_count++;
    named_count += names_victim(plan, outcome->detail);
    if (result != 0) {
        (void)snprintf(outcome->problem, sizeof outcome->problem, "it ended with %d", result);
        fault(plan, rank, outcome->problem, outcome);
    } else if (outcome->problem[0]) {
        fault(plan, rank, outcome->problem, outcome);
    } else if (!is_right_code(plan, outcome->code)) {
        fault(plan, rank, "wrong code", outcome);
    } else if (!note_call(outcome->detail)) {
        fault(plan, rank, "the sentence does not name the call", outcome);
    } else if (plan->harm == HARM_STOP ? !strstr(outcome->detail, "rank") : !names_victim(plan, outcome->detail)) {
        /* At a time-out who waits for one that waits may be first. */
        fault(plan, rank, "the sentence does not name the rank", outcome);
    }
}

static void keep_time(const struct plan *plan, int64_t took_ns) {
    struct tally *tally = &tallies[plan->hosts > 1][plan->harm];
    tally->cases++;
    if (took_ns > tally->longest_ns) {
        tally->longest_ns = took_ns;
        describe(plan, tally->slowest, sizeof tally->slowest);
    }
}

/* ---- a case ---- */

/* When the harm was done. */
static int64_t harm_it(struct ranks *ranks, const struct plan *plan) {
    if (plan->harm == HARM_EXIT || plan->harm == HARM_LEAVE) {
        ranks_await(ranks, plan->victim, MARK_ENDED);
        return ranks_mark_time_ns(ranks, plan->victim, MARK_ENDED);
    }
    ranks_await(ranks, plan->victim, MARK_GOES);
    struct timespec pause = {.tv_nsec = (long)chance(PAUSE_US_MAX) * 1000};
    (void)nanosleep(&pause, NULL); /* any moment will do */
    int64_t now_ns = clock_monotonic_ns();
    if (plan->harm == HARM_STOP) {
        ranks_stop(ranks, plan->victim);
    } else {
        ranks_kill(ranks, plan->victim);
    }
    return now_ns;
}

static uint32_t shared_files(void) {
    DIR *folder = opendir("/dev/shm");
    uint32_t count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        count += strstr(entry->d_name, "muster") != NULL;
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

static void run_case(struct board *board, bool verbose) {
    const struct plan *plan = &board->plan;
    struct ranks_options options = {.host_of = plan->host_of};
    uint32_t files = shared_files();
    struct ranks *ranks = ranks_start(plan->size, fsdp_live, board, &options);
    int64_t harmed_ns = harm_it(ranks, plan), last_ns = harmed_ns;
    for (uint32_t rank = 0; rank < plan->size; rank++) {
        if (rank != plan->victim) {
            struct outcome *outcome = &board->outcomes[rank];
            judge(plan, rank, outcome, ranks_wait(ranks, rank));
            last_ns = outcome->ended_ns > last_ns ? outcome->ended_ns : last_ns;
        }
    }
    keep_time(plan, last_ns - harmed_ns);
    if (shared_files() != files) {
        fault(plan, plan->victim, "something is left in /dev/shm", &board->outcomes[plan->victim]);
    }
    if (verbose) {
        char text[512];
        describe(plan, text, sizeof text);
        (void)printf("%s: %.3f ms\n", text, (double)(last_ns - harmed_ns) / 1e6);
        for (uint32_t rank = 0; rank < plan->size; rank++) {
            (void)printf("  %u: %s\n", rank, rank == plan->victim ? "" : board->outcomes[rank].detail);
        }
        (void)fflush(stdout);
    }
    ranks_free(ranks);
}

/* ---- the program ---- */

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

static void print_tally(const char *where, enum harm harm, const struct tally *tally) {
    if (tally->cases > 0) {
        (void)printf("%s, a rank %s: %u cases, the last survivor has heard after %.3f ms at most", where,
                     harm_names[harm], tally->cases, (double)tally->longest_ns / 1e6);
        (void)printf("%s\n  (%s)\n", harm == HARM_STOP ? ", the time-out included" : "", tally->slowest);
    }
}

static void print_result(void) {
    for (enum harm harm = HARM_KILL; harm < HARM_COUNT; harm++) {
        print_tally("one host", harm, &tallies[0][harm]);
        print_tally("several hosts", harm, &tallies[1][harm]);
    }
    (void)printf("%u survivors, %u of them were told its rank; heard in", survivor_count, named_count);
    for (size_t i = 0; i < CALLS; i++) {
        (void)printf("%s %s %u", i > 0 ? "," : "", call_names[i], heard_in[i]);
    }
    (void)printf("\n%u faults\n", fault_count);
}

struct selection {
    uint32_t first, count;
    uint64_t seed;
    const char *stopped; /* "yes", "no" or NULL: both */
    bool verbose;
};

static int run_all(const struct selection *selection) {
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    owner = getpid();
    for (uint32_t i = selection->first; i < selection->first + selection->count; i++) {
        memset(board, 0, sizeof *board);
        draw(&board->plan, selection->seed, i);
        bool is_stop = board->plan.harm == HARM_STOP;
        if (!selection->stopped || is_stop == (strcmp(selection->stopped, "yes") == 0)) {
            running = board;
            run_case(board, selection->verbose);
        }
    }
    running = NULL;
    print_result();
    (void)munmap(board, sizeof *board);
    return fault_count > 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"count", required_argument, NULL, 'c'}, {"seed", required_argument, NULL, 's'},
        {"only", required_argument, NULL, 'o'},  {"stopped", required_argument, NULL, 't'},
        {"verbose", no_argument, NULL, 'v'},     {NULL, 0, NULL, 0}};
    struct selection selection = {.count = 60, .seed = 1};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'c':
            selection.count = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 's':
            selection.seed = strtoull(optarg, NULL, 10);
            break;
        case 'o':
            selection.first = (uint32_t)strtoul(optarg, NULL, 10);
            selection.count = 1;
            break;
        case 't':
            selection.stopped = optarg;
            break;
        case 'v':
            selection.verbose = true;
            break;
        default:
            return 2;
        }
    }
    (void)atexit(tell_running);
    return run_all(&selection);
}
