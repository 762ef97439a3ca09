/* Measuring the algorithms of each operation against each other.
 *
 * There is a group for every algorithm that an operation may have, all over the same ranks, each made with a table of
 * its own: in group t every operation runs by its t-th algorithm. So the algorithms are measured in turns, a few calls
 * each, and what disturbs the machine for a while disturbs all of them. */
#include "cli/bench/bench_tune.h"

#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>
#include <muster/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/bench/bench_call.h"
#include "comm/schedule/choice.h"

enum { TURNS_MAX = 8, ROUNDS = 7, CALLS_MAX = 10000 };

/* Of one algorithm in one round. */
static const double SECONDS_PER_TURN = 0.01;
/* An algorithm replaces that of the size before if it takes less than this part of its time. */
static const double WORTH_CHANGING = 0.9;

struct candidates {
    uint32_t count, algorithms[TURNS_MAX];
};

struct tune {
    const struct bench_options *options;
    uint32_t rank, ranks, parts; /* parts: who takes part in messages between hosts, or on one host */
    enum choice_medium medium;
    bool is_crowded;
    struct muster_store *store; /* owned */
    struct muster_group *plain; /* owned, with the built-in table; so are these: */
    struct muster_group *groups[TURNS_MAX];
    void *first[TURNS_MAX], *second[TURNS_MAX];
    uint32_t turn_count;
};

/* ---- algorithms ---- */

static bool comm_operation_of(enum bench_operation operation, enum comm_operation *out) {
    for (int i = COMM_BARRIER; i <= COMM_MONITORED_BARRIER; i++) {
        *out = (enum comm_operation)i;
        if (strcmp(comm_operation_name(*out), bench_operations[operation].name) == 0) {
            return true;
        }
    }
    return false; /* sendrecv */
}

static struct candidates candidates_of(enum comm_operation operation, enum choice_medium medium) {
    struct candidates found = {0};
    static const uint32_t all[] = {
#define ALGORITHM_ENTRY(name, value, text) name,
        CHOICE_ALGORITHM_TABLE(ALGORITHM_ENTRY)
#undef ALGORITHM_ENTRY
    };
    for (size_t i = 0; i < sizeof all / sizeof *all && found.count < TURNS_MAX; i++) {
        if (choice_is_possible(operation, medium, all[i])) {
            found.algorithms[found.count++] = all[i];
        }
    }
    return found;
}

/* ---- groups ---- */

/* The table of a turn, in a file without a name; its path in `path`. */
static int write_table(const struct tune *tune, uint32_t turn, char *path, size_t max, int *out_fd) {
    int fd = memfd_create("muster bench --tune", MFD_CLOEXEC);
    if (fd < 0) {
        return status_fail(MUSTER_ESYSTEM, "no memory for a file with a table");
    }
    for (int operation = COMM_BARRIER; operation <= COMM_MONITORED_BARRIER; operation++) {
        struct candidates found = candidates_of((enum comm_operation)operation, tune->medium);
        char line[128];
        if (found.count == 0) {
            continue;
        }
        const struct choice_rule rule = {.operation = (enum comm_operation)operation,
                                         .medium = tune->medium,
                                         .ranks_max = UINT32_MAX,
                                         .bytes_max = UINT64_MAX,
                                         .algorithm = found.algorithms[turn % found.count]};
        if (!choice_rule_format(&rule, line, sizeof line) || write(fd, line, strlen(line)) != (ssize_t)strlen(line)) {
            (void)close(fd);
            return status_fail(MUSTER_ESYSTEM, "a table cannot be written");
        }
    }
    (void)str_format(path, max, "/proc/self/fd/%d", fd);
    *out_fd = fd;
    return MUSTER_OK;
}

static int make_group(struct tune *tune, uint32_t turn) {
    char path[64], name[32];
    int fd = -1;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    int code = write_table(tune, turn, path, sizeof path, &fd);
    if (code) {
        return code;
    }
    (void)setenv("MUSTER_CHOICE_FILE", path, 1);
    (void)str_format(name, sizeof name, "tune %u", turn);
    options.name = name;
    options.engine = "muster"; /* whose algorithms they are */
    code = muster_group_create_store(tune->store, tune->rank, tune->ranks, &options, &tune->groups[turn]);
    (void)unsetenv("MUSTER_CHOICE_FILE");
    (void)close(fd);
    return code;
}

static int allocate(const struct tune *tune, uint32_t turn, void **out) {
    size_t bytes = (size_t)tune->options->end_bytes;
    if (tune->options->uses_own_memory) {
        return muster_alloc(tune->groups[turn], bytes, out);
    }
    return posix_memalign(out, 4096, bytes) == 0
               ? MUSTER_OK
               : status_fail(MUSTER_ENOMEM, "out of memory for a buffer of %zu bytes", bytes);
}

static void release(const struct tune *tune, uint32_t turn, void *memory) {
    if (tune->options->uses_own_memory) {
        muster_free(tune->groups[turn], memory);
    } else {
        free(memory);
    }
}

/* What all ranks must agree on: is the most crowded host more than full? */
static int ask_load(struct tune *tune) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int32_t is_crowded = (long)muster_group_local_size(tune->plain) > processors;
    int code = muster_all_reduce(tune->plain, &is_crowded, &is_crowded, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL);
    tune->is_crowded = is_crowded > 0;
    return code;
}

int bench_tune_meet(uint32_t *out_rank, uint32_t *out_ranks, struct muster_store **store) {
    int64_t rank = 0, ranks = 0;
    if (!getenv("RANK") || !getenv("WORLD_SIZE") || !str_parse_i64(getenv("RANK"), &rank) ||
        !str_parse_i64(getenv("WORLD_SIZE"), &ranks) || rank < 0 || ranks < 1 || ranks > BENCH_RANKS_MAX) {
        return status_fail(MUSTER_EINVAL, "RANK and WORLD_SIZE must be numbers");
    }
    *out_rank = (uint32_t)rank;
    *out_ranks = (uint32_t)ranks;
    return muster_store_open_env(MUSTER_STORE_DEFAULT, store);
}

static int begin(struct tune *tune) {
    int code = bench_tune_meet(&tune->rank, &tune->ranks, &tune->store);
    code = code ? code : muster_group_create_store(tune->store, tune->rank, tune->ranks, NULL, &tune->plain);
    code = code ? code : ask_load(tune);
    if (code) {
        return code;
    }
    uint32_t hosts = muster_group_host_count(tune->plain);
    tune->medium = hosts > 1 ? CHOICE_MESSAGES : tune->options->uses_own_memory ? CHOICE_SHARED : CHOICE_PRIVATE;
    tune->parts = hosts > 1 ? hosts : tune->ranks;
    for (int operation = COMM_BARRIER; operation <= COMM_MONITORED_BARRIER; operation++) {
        uint32_t count = candidates_of((enum comm_operation)operation, tune->medium).count;
        tune->turn_count = count > tune->turn_count ? count : tune->turn_count;
    }
    for (uint32_t turn = 0; turn < tune->turn_count && code == MUSTER_OK; turn++) {
        code = make_group(tune, turn);
        code = code ? code : allocate(tune, turn, &tune->first[turn]);
        code = code ? code : allocate(tune, turn, &tune->second[turn]);
    }
    return code;
}

static void end(struct tune *tune) {
    for (uint32_t turn = 0; turn < tune->turn_count; turn++) {
        if (tune->groups[turn]) {
            release(tune, turn, tune->second[turn]);
            release(tune, turn, tune->first[turn]);
            muster_group_free(tune->groups[turn]);
        }
    }
    muster_group_free(tune->plain);
    muster_store_close(tune->store);
}

/* ---- measuring ---- */

static int largest(const struct tune *tune, double *value) {
    return muster_all_reduce(tune->plain, value, value, 1, MUSTER_FLOAT64, MUSTER_OP_MAX, NULL);
}

/* Seconds of a call, on the slowest rank. */
static int time_calls(const struct tune *tune, const struct bench_case *c, uint32_t calls, double *out_s) {
    int code = muster_barrier(tune->plain, NULL);
    int64_t from_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < calls && code == MUSTER_OK; i++) {
        code = bench_case_call(c);
    }
    *out_s = (double)(clock_monotonic_ns() - from_ns) / 1e9 / calls;
    return code ? code : largest(tune, out_s);
}

/* The best round of each candidate: what else the machine does only adds, and not to all alike. */
static int measure(const struct tune *tune, struct bench_case *c, uint32_t candidate_count, double *out_s) {
    double call_s;
    uint32_t calls[TURNS_MAX];
    int code = MUSTER_OK;
    for (int round = -1; round < ROUNDS; round++) { /* the first one warms up, and tells how long a call takes */
        for (uint32_t turn = 0; turn < candidate_count && code == MUSTER_OK; turn++) {
            c->group = tune->groups[turn];
            c->first = tune->first[turn];
            c->second = tune->second[turn];
            code = time_calls(tune, c, round < 0 ? 3 : calls[turn], &call_s);
            if (round < 0) {
                double wanted = call_s > 0 ? SECONDS_PER_TURN / call_s : CALLS_MAX;
                calls[turn] = wanted < 1 ? 1 : wanted > CALLS_MAX ? CALLS_MAX : (uint32_t)wanted;
            }
            out_s[turn] = round > 0 && out_s[turn] < call_s ? out_s[turn] : call_s;
        }
    }
    return code;
}

/* ---- the table ---- */

static void print_times(const struct candidates *found, const double *times_s, uint64_t bytes) {
    (void)printf("# %10llu:", (unsigned long long)bytes);
    for (uint32_t turn = 0; turn < found->count; turn++) {
        (void)printf("%s %s %.2f", turn > 0 ? "," : "", choice_algorithm_name(found->algorithms[turn]),
                     times_s[turn] * 1e6);
    }
    (void)printf(" us\n");
    (void)fflush(stdout);
}

static void print_rule(const struct tune *tune, const struct choice_rule *rule) {
    char line[128];
    if (tune->rank == 0 && choice_rule_format(rule, line, sizeof line)) {
        (void)fputs(line, stdout);
    }
}

/* The limit between two sizes is their geometric mean. By halving, not by sqrt(): the program, and so each agent, would
 * carry the C library's mathematics in memory for it. */
static uint64_t between(uint64_t smaller, uint64_t larger) {
    double square = (double)smaller * (double)larger;
    uint64_t least = smaller, most = larger; /* the mean is at least the one, and at most the other */
    while (least < most) {
        uint64_t middle = most - (most - least) / 2;
        if ((double)middle * (double)middle <= square) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    return least;
}

static int tune_operation(const struct tune *tune, enum bench_operation operation, enum comm_operation its) {
    const struct bench_options *options = tune->options;
    struct candidates found = candidates_of(its, tune->medium);
    struct choice_rule rule = {.operation = its,
                               .medium = tune->medium,
                               .ranks_min = tune->parts,
                               .ranks_max = tune->parts,
                               .load = tune->is_crowded ? CHOICE_CROWDED : CHOICE_FITS,
                               .bytes_max = UINT64_MAX};
    uint32_t chosen = TURNS_MAX;
    uint64_t before = 0;
    for (uint64_t bytes = options->begin_bytes; bytes > 0; bytes = bench_next(options, bytes)) {
        double times_s[TURNS_MAX];
        struct bench_case c = {.operation = operation,
                               .type = options->type,
                               .reduction = options->reduction,
                               .root = options->root,
                               .is_in_place = !bench_has_place(operation, false),
                               .count = bench_count(operation, bytes, muster_type_bytes(options->type), tune->ranks)};
        if (c.count == 0) {
            continue;
        }
        int code = measure(tune, &c, found.count, times_s);
        if (code) {
            return status_prefix(code, "%s of %llu bytes", bench_operations[operation].name, (unsigned long long)bytes);
        }
        uint32_t best = chosen < TURNS_MAX ? chosen : 0;
        double limit = chosen < TURNS_MAX ? WORTH_CHANGING : 1;
        for (uint32_t turn = 0; turn < found.count; turn++) {
            bool is_better = times_s[turn] < times_s[best] * (best == chosen ? limit : 1);
            best = is_better ? turn : best;
        }
        if (tune->rank == 0) {
            print_times(&found, times_s, bytes);
        }
        if (chosen < TURNS_MAX && best != chosen) {
            rule.bytes_max = between(before, bytes);
            print_rule(tune, &rule);
            rule.bytes_min = rule.bytes_max + 1;
            rule.bytes_max = UINT64_MAX;
        }
        chosen = best;
        rule.algorithm = found.algorithms[chosen];
        before = bytes;
    }
    if (chosen < TURNS_MAX) {
        print_rule(tune, &rule);
    }
    return MUSTER_OK;
}

static int tune_all(const struct tune *tune) {
    if (tune->rank == 0) {
        (void)printf(
            "# muster bench --tune: %u ranks on %u host%s, %s of %s; times of a call, the best of several rounds\n",
            tune->ranks, muster_group_host_count(tune->plain), muster_group_host_count(tune->plain) > 1 ? "s" : "",
            muster_reduction_name(tune->options->reduction), muster_type_name(tune->options->type));
    }
    int code = MUSTER_OK;
    for (int i = 0; i < BENCH_OPERATION_COUNT && code == MUSTER_OK; i++) {
        enum comm_operation operation;
        if (tune->options->operations[i] && comm_operation_of((enum bench_operation)i, &operation) &&
            candidates_of(operation, tune->medium).count > 1) {
            code = tune_operation(tune, (enum bench_operation)i, operation);
        }
    }
    return code;
}

int bench_tune_run(const struct bench_options *options) {
    struct tune tune = {.options = options};
    int code = begin(&tune);
    if (code == MUSTER_OK && options->root >= tune.ranks) {
        code = status_fail(MUSTER_EINVAL, "-r %u: there are %u ranks", options->root, tune.ranks);
    }
    code = code ? code : tune_all(&tune);
    end(&tune);
    return code;
}
