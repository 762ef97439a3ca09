/* `muster bench`: times the collectives of libmuster over sizes, with the columns of nccl-tests. Under a launcher it is
 * one rank; started by hand it becomes `muster run` of itself. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/bench/bench_call.h"
#include "cli/bench/bench_plan.h"
#include "cli/bench/bench_tune.h"
#include "cli/bench/bench_tune_links.h"
#include "cli/command/cli.h"
#include "comm/mpi/mpi_world.h"

static const char program[] = "muster bench";

static const char help_text[] =
    "usage: muster bench [OPERATION ...] [options]\n"
    "       muster run --nproc-per-node=N --no-python muster bench [OPERATION ...] [options]\n"
    "\n"
    "Times collectives over sizes and checks their results, with the columns of nccl-tests.\n"
    "Started by hand it starts its ranks on this machine; under muster run (or torchrun) it\n"
    "is one rank, so that several hosts can be measured. With the engine mpi it may be started\n"
    "by mpirun or srun, too.\n"
    "\n"
    "OPERATION is all_reduce (the default), broadcast, reduce, all_gather, gather, scatter,\n"
    "reduce_scatter, all_to_all, sendrecv (to the next rank), barrier, or all.\n"
    "\n"
    "  --ranks N       ranks to start (default: as many as there are processors, 2 at least)\n"
    "  -b BYTES        smallest size, such as 8, 64K, 1M or 1G (default: 8)\n"
    "  -e BYTES        largest size (default: 64M)\n"
    "  -f FACTOR       from a size to the next (default: 4)\n"
    "  -i BYTES        the same by adding, instead of -f\n"
    "  -n COUNT        calls that are timed; 0: as many as take a tenth of a second\n"
    "                  (default: 0)\n"
    "  -w COUNT        calls before that, not timed (default: 5)\n"
    "  -c 0|1          check the results (default: 1)\n"
    "  -o REDUCTION    sum, prod, min, max, avg, band, bor or bxor (default: sum)\n"
    "  -d TYPE         int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16,\n"
    "                  bfloat16, float32 or float64 (default: float32)\n"
    "  -r RANK         root (default: 0)\n"
    "  --engine NAME   what carries the calls out: muster, mpi, nccl or auto (default:\n"
    "                  MUSTER_ENGINE, else auto)\n"
    "  --memory KIND   private: ordinary buffers; own: from muster_alloc(), which ranks of a\n"
    "                  host can read from each other (default: private)\n"
    "  --tune          measure the algorithms of the operations against each other, and\n"
    "                  print a table of the quickest for MUSTER_CHOICE_FILE\n"
    "  --tune=links    for each pair of hosts, measure which interfaces and how many\n"
    "                  connections pass messages of -e bytes best, and print lines for the\n"
    "                  same file\n"
    "  -h, --help      show this text\n"
    "\n"
    "The size is that of a rank's largest buffer, the count that of the elements of one\n"
    "block, the time that of a call: the median of a few series, of the slowest rank.\n"
    "algbw is size / time; busbw multiplies it so that it compares with the speed of a link,\n"
    "whatever the number of ranks (docs/profiling.md).\n"
    "The environment of libmuster counts: MUSTER_SHM=0 measures TCP on one host.\n";

struct bench {
    struct bench_options options;
    struct muster_group *group;
    void *first, *second; /* the buffers of all cases */
    uint64_t wrong_total;
    double bus_total;
    uint64_t bus_count;
};

/* A tenth of a second's worth of calls. */
static const double SECONDS_PER_CASE = 0.1;

/* ---- starting ranks ---- */

static bool wants_mpi(const struct bench_options *options) {
    const char *engine = options->engine ? options->engine : getenv("MUSTER_ENGINE");
    return engine && strcmp(engine, "mpi") == 0;
}

/* Are the ranks there already? mpirun's are when it is to be measured; else it may only have started this program. */
static bool is_rank(const struct bench_options *options) {
    return getenv("RANK") || (wants_mpi(options) && mpi_world_is_served());
}

/* Becomes `muster run ... muster bench ...`; returns only when that fails. */
static int start_ranks(const struct bench_options *options, int argc, char **argv) {
    enum { WORDS_BEFORE = 7 };
    char self[PATH_MAX], count[64];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t ranks = options->ranks > 0 ? options->ranks : processors > 2 ? (uint32_t)processors : 2;
    if (options->root >= ranks) {
        return status_fail(MUSTER_EINVAL, "-r %u: with %u ranks the root is one of 0 to %u", options->root, ranks,
                           ranks - 1);
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char **words = calloc((size_t)argc + WORDS_BEFORE + 1, sizeof *words);
    if (n <= 0 || words == NULL) {
        free(words);
        return status_fail(MUSTER_ESYSTEM, "this program cannot be started again");
    }
    self[n] = '\0';
    (void)str_format(count, sizeof count, "--nproc-per-node=%u", ranks);
    char run[] = "run", standalone[] = "--standalone", no_python[] = "--no-python", mpi[32];
    (void)str_format(mpi, sizeof mpi, "--mpi=%s", wants_mpi(options) ? "auto" : "none");
    char *before[WORDS_BEFORE] = {self, run, standalone, mpi, count, no_python, self};
    memcpy(words, before, sizeof before);
    memcpy(words + WORDS_BEFORE, argv, (size_t)argc * sizeof *argv);
    (void)setenv("OMP_NUM_THREADS", "1", 0); /* or the launcher says that it sets it */
    (void)execv(self, words);
    int code = status_fail_errno(errno, "%.300s", self);
    free(words);
    return code;
}

/* ---- what ranks tell each other ---- */

static int largest(struct bench *b, double *value) {
    return muster_all_reduce(b->group, value, value, 1, MUSTER_FLOAT64, MUSTER_OP_MAX, NULL);
}

static int add_up(struct bench *b, uint64_t *value) {
    return muster_all_reduce(b->group, value, value, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL);
}

static bool is_first(const struct bench *b) {
    return muster_group_rank(b->group) == 0;
}

static int print_ranks(struct bench *b) {
    enum { NAME_BYTES = 128 };
    uint32_t ranks = muster_group_size(b->group);
    char own[NAME_BYTES] = "", host[64] = "unknown";
    char *names = calloc(ranks, NAME_BYTES);
    if (names == NULL) {
        return status_fail(MUSTER_ENOMEM, "out of memory for the names of %u ranks", ranks);
    }
    (void)gethostname(host, sizeof host - 1);
    (void)str_format(own, sizeof own, "process %d on %s", (int)getpid(), host);
    int code = muster_gather(b->group, own, names, NAME_BYTES, MUSTER_UINT8, 0, NULL);
    for (uint32_t i = 0; i < ranks && code == MUSTER_OK && is_first(b); i++) {
        (void)printf("# rank %4u: host %u, %.*s\n", i, muster_group_host_of(b->group, i), NAME_BYTES - 1,
                     names + (size_t)i * NAME_BYTES);
    }
    free(names);
    return code;
}

/* ---- one case ---- */

static int compare_times(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Seconds of a call: the calls are timed in a few series, whose median the slowest rank gives; a machine that is busy
 * with something else for a moment does not count. */
static int time_calls(struct bench *b, const struct bench_case *c, uint32_t iterations, double *out_s) {
    enum { SERIES_MAX = 11 };
    double series_s[SERIES_MAX];
    uint32_t series_count = iterations < SERIES_MAX ? iterations : SERIES_MAX;
    int code = muster_barrier(b->group, NULL);
    for (uint32_t i = 0; i < series_count; i++) {
        uint32_t calls = iterations / series_count;
        int64_t from_ns = clock_monotonic_ns();
        for (uint32_t k = 0; k < calls && code == MUSTER_OK; k++) {
            code = bench_case_call(c);
        }
        series_s[i] = (double)(clock_monotonic_ns() - from_ns) / 1e9 / calls;
    }
    qsort(series_s, series_count, sizeof *series_s, compare_times);
    *out_s = series_s[series_count / 2];
    return code ? code : largest(b, out_s);
}

/* How many calls to time: what was asked for, or what fills the time. Equal on all ranks. */
static int choose_iterations(struct bench *b, const struct bench_case *c, uint32_t *out) {
    *out = b->options.iterations;
    double call_s = 0;
    for (uint32_t tried = 1; *out == 0; tried *= 10) {
        int code = time_calls(b, c, tried, &call_s);
        if (code) {
            return code;
        }
        double wanted = call_s > 0 ? SECONDS_PER_CASE / call_s : BENCH_ITERATIONS_MAX;
        if (wanted <= 10.0 * tried || tried >= BENCH_ITERATIONS_MAX / 10) {
            *out = wanted < 3 ? 3 : wanted > BENCH_ITERATIONS_MAX ? BENCH_ITERATIONS_MAX : (uint32_t)wanted;
        }
    }
    return MUSTER_OK;
}

static int check_case(struct bench *b, const struct bench_case *c, uint64_t *out_wrong) {
    *out_wrong = 0;
    bench_case_fill(c);
    int code = bench_case_call(c);
    if (code || !b->options.checks) {
        return code;
    }
    *out_wrong = bench_case_wrong(c);
    return add_up(b, out_wrong);
}

static void print_time(double us) {
    (void)printf(us < 100 ? " %8.2f" : us < 10000 ? " %8.1f" : " %8.0f", us);
}

/* The four columns of one place. */
static int measure_place(struct bench *b, const struct bench_case *c, uint64_t bytes) {
    uint64_t wrong;
    uint32_t iterations;
    double call_s = 0;
    int code = check_case(b, c, &wrong);
    for (uint32_t i = 0; i < b->options.warm_up && code == MUSTER_OK; i++) {
        code = bench_case_call(c);
    }
    code = code ? code : choose_iterations(b, c, &iterations);
    code = code ? code : time_calls(b, c, iterations, &call_s);
    if (code) {
        return code;
    }
    b->wrong_total += wrong;
    double rate = call_s > 0 ? (double)bytes / call_s / 1e9 : 0;
    double bus = rate * bench_bus_factor(c->operation, muster_group_size(b->group));
    b->bus_total += bus;
    b->bus_count++;
    if (is_first(b)) {
        print_time(call_s * 1e6);
        (void)printf(" %7.2f %7.2f", rate, bus);
        (void)printf(b->options.checks ? " %6" PRIu64 : "    N/A", wrong);
    }
    return MUSTER_OK;
}

static int measure_size(struct bench *b, enum bench_operation operation, uint64_t asked_bytes) {
    const struct bench_options *options = &b->options;
    const struct bench_operation_info *info = &bench_operations[operation];
    uint32_t ranks = muster_group_size(b->group);
    size_t element_bytes = muster_type_bytes(options->type);
    uint64_t count = bench_count(operation, asked_bytes, element_bytes, ranks);
    uint64_t bytes = operation == BENCH_BARRIER ? 0 : bench_bytes(operation, count, element_bytes, ranks);
    struct bench_case c = {.group = b->group,
                           .operation = operation,
                           .type = options->type,
                           .reduction = options->reduction,
                           .root = options->root,
                           .count = count,
                           .first = b->first,
                           .second = b->second};
    int code = MUSTER_OK;
    if (count == 0) {
        return MUSTER_OK; /* fewer elements than ranks */
    }
    if (is_first(b)) {
        char root[16] = "-1";
        if (info->has_root) {
            (void)str_format(root, sizeof root, "%u", options->root);
        }
        (void)printf("%12" PRIu64 " %12" PRIu64 " %9s %7s %5s", bytes, bytes > 0 ? count : 0,
                     muster_type_name(options->type),
                     info->reduces ? muster_reduction_name(options->reduction) : "none", root);
    }
    for (int place = 0; place < 2 && code == MUSTER_OK; place++) {
        c.is_in_place = place == 1;
        if (bench_has_place(operation, c.is_in_place)) {
            code = measure_place(b, &c, bytes);
        } else if (is_first(b)) {
            (void)printf(" %8s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
        }
    }
    if (is_first(b)) {
        (void)printf("\n");
        (void)fflush(stdout);
    }
    return code;
}

static void print_head(const struct bench *b, const char *name) {
    (void)printf("#\n# %s, %u rank%s on %u host%s, %s buffers, engine %s (%s)\n#\n", name, muster_group_size(b->group),
                 muster_group_size(b->group) == 1 ? "" : "s", muster_group_host_count(b->group),
                 muster_group_host_count(b->group) == 1 ? "" : "s",
                 b->options.uses_own_memory ? "muster_alloc()" : "private", muster_group_engine(b->group),
                 muster_group_engine_reason(b->group));
    (void)printf("# %-48s %20s %32s\n", "", "out of place", "in place");
    (void)printf("# %10s %12s %9s %7s %5s", "size", "count", "type", "redop", "root");
    for (int place = 0; place < 2; place++) {
        (void)printf(" %8s %7s %7s %6s", "time", "algbw", "busbw", "#wrong");
    }
    (void)printf("\n# %10s %12s %9s %7s %5s", "(B)", "(elements)", "", "", "");
    for (int place = 0; place < 2; place++) {
        (void)printf(" %8s %7s %7s %6s", "(us)", "(GB/s)", "(GB/s)", "");
    }
    (void)printf("\n");
}

/* ---- the rank ---- */

static int measure_all(struct bench *b) {
    int code = print_ranks(b);
    for (int i = 0; i < BENCH_OPERATION_COUNT && code == MUSTER_OK; i++) {
        if (!b->options.operations[i]) {
            continue;
        }
        if (is_first(b)) {
            print_head(b, bench_operations[i].name);
        }
        for (uint64_t bytes = b->options.begin_bytes; bytes > 0 && code == MUSTER_OK;) {
            code = measure_size(b, (enum bench_operation)i, bytes);
            bytes = i == BENCH_BARRIER ? 0 : bench_next(&b->options, bytes);
        }
    }
    if (code == MUSTER_OK && is_first(b)) {
        (void)printf("#\n# wrong elements: %" PRIu64 "%s\n", b->wrong_total, b->options.checks ? "" : " (not checked)");
        (void)printf("# mean busbw: %.3f GB/s\n", b->bus_count > 0 ? b->bus_total / (double)b->bus_count : 0);
    }
    return code;
}

static int allocate(struct bench *b, void **out) {
    size_t bytes = (size_t)b->options.end_bytes;
    if (b->options.uses_own_memory) {
        return muster_alloc(b->group, bytes, out);
    }
    return posix_memalign(out, 4096, bytes) == 0
               ? MUSTER_OK
               : status_fail(MUSTER_ENOMEM, "out of memory for a buffer of %zu bytes", bytes);
}

static void release(struct bench *b, void *buffer) {
    if (b->options.uses_own_memory) {
        muster_free(b->group, buffer);
    } else {
        free(buffer);
    }
}

static int run_rank(struct bench *b) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.engine = b->options.engine;
    int code = muster_group_create_env(&options, &b->group);
    if (code) {
        return code;
    }
    if (b->options.root >= muster_group_size(b->group)) {
        code = status_fail(MUSTER_EINVAL, "-r %u: there are %u ranks", b->options.root, muster_group_size(b->group));
    }
    code = code ? code : allocate(b, &b->first);
    code = code ? code : allocate(b, &b->second);
    code = code ? code : measure_all(b);
    if (code == MUSTER_OK && b->wrong_total > 0) {
        code = status_fail(MUSTER_ECORRUPT, "%" PRIu64 " elements were wrong", b->wrong_total);
    }
    release(b, b->second);
    release(b, b->first);
    muster_group_free(b->group);
    return code;
}

int cmd_bench(int argc, char **argv) {
    static struct bench bench;
    if (bench_options_parse(argc, argv, &bench.options)) {
        cli_error(program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    if (bench.options.wants_help) {
        return cli_print(help_text);
    }
    bool is_one = is_rank(&bench.options);
    int code = !is_one                     ? start_ranks(&bench.options, argc, argv)
               : bench.options.tunes       ? bench_tune_run(&bench.options)
               : bench.options.tunes_links ? bench_tune_links_run(&bench.options)
                                           : run_rank(&bench);
    if (code) {
        bool is_usage = !is_one && code == MUSTER_EINVAL;
        cli_error(program, is_usage, muster_detail());
        return is_usage ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        cli_error(program, false, "the results could not be written to stdout");
        return CLI_EXIT_FAILURE;
    }
    return CLI_EXIT_OK;
}
