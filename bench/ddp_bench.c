/* What communication adds to a step of data parallel training:
 *
 *     ddp_bench [--model mnist|dense] [--ranks P] [--compute-ms MS] [--pairs N] [--bucket-kib K] [--first-kib K]
 * [--own]
 *               [--hook bfloat16|float16]
 *
 * Starts P processes that train a model whose layers compute nothing of use: each layer takes its share of the given
 * time (calibrated once, then a fixed amount of work), writes its gradients and hands them to ddp. Steps with and
 * without synchronisation take turns, each begun by a barrier and timed until the last rank has finished; so what
 * disturbs the machine disturbs both. --own: gradients in private memory, copied in and out of the buckets.
 *
 * Prints medians of both, the median (and quartiles) of the ratio of neighbouring steps, the same ratio of processor
 * time (of all ranks and threads: it suffers less from what else runs on the machine, but cannot see waiting that
 * sleeps), and the share of time that ddp's own count calls exposed. */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <muster/ddp.h>

#include "quantile.h"

enum { LAYERS_MAX = 16, PAIRS_MAX = 10000, RANKS_MAX = 64, WORK_FLOATS = 4096, WARM_UP = 5 };

/* A weight and a bias; `share` of the computing time, in thousandths. */
struct layer {
    size_t weight_count, bias_count, share;
};

struct bench_model {
    const char *name;
    size_t layer_count;
    struct layer layers[LAYERS_MAX];
};

/* examples/mnist without its batch norms' 192 parameters, and ten million parameters in twelve layers. */
#define DENSE                                                                                                          \
    { 912 * 912, 912, 83 }
static const struct bench_model bench_models[] = {
    {"mnist", 4, {{288 + 32, 64, 200}, {18432 + 64, 128, 650}, {204800, 128, 140}, {1280, 10, 10}}},
    {"dense", 12, {DENSE, DENSE, DENSE, DENSE, DENSE, DENSE, DENSE, DENSE, DENSE, DENSE, DENSE, DENSE}},
};

struct settings {
    const struct bench_model *model;
    uint32_t ranks, pairs;
    double compute_ms;
    size_t bucket_kib, first_kib;
    const struct muster_ddp_hook *hook;
    bool own;
};

static void check(int status, const char *what) {
    if (status != MUSTER_OK) {
        (void)fprintf(stderr, "ddp_bench: %s: %s: %s\n", what, muster_strerror(status), muster_detail());
        _exit(1);
    }
}

static double read_ms(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double now_ms(void) {
    return read_ms(CLOCK_MONOTONIC);
}

/* ---- computing ---- */

static float work[WORK_FLOATS];

static void compute(size_t passes) {
    for (size_t pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < WORK_FLOATS; i++) {
            work[i] = work[i] * 0.999F + 0.001F;
        }
        __asm__ volatile("" ::: "memory");
    }
}

/* Passes that take a millisecond, from the fastest of several tries. */
static double calibrate(void) {
    double best_ms = 1e9;
    for (int try = 0; try < 20; try++) {
        double begin_ms = now_ms();
        compute(2000);
        double took_ms = now_ms() - begin_ms;
        best_ms = took_ms < best_ms ? took_ms : best_ms;
    }
    return 2000 / best_ms;
}

/* ---- one rank ---- */

/* Two neighbouring steps: without [0] and with [1] synchronisation. */
struct sample {
    double wall_ms[2], cpu_ms[2];
};

struct trainer {
    const struct settings *settings;
    struct muster_group *group;
    struct muster_ddp *ddp;
    double passes_per_ms;
    float *data, *gradients; /* of all layers; gradients with --own */
    struct sample *samples;  /* of this rank, then of all: pairs each */
};

static void make_ddp(struct trainer *t) {
    const struct bench_model *model = t->settings->model;
    struct muster_ddp_parameter parameters[2 * LAYERS_MAX];
    char names[2 * LAYERS_MAX][32];
    size_t at = 0;
    for (size_t i = 0; i < 2 * model->layer_count; i++) {
        const struct layer *layer = &model->layers[i / 2];
        size_t count = i % 2 == 0 ? layer->weight_count : layer->bias_count;
        (void)snprintf(names[i], sizeof names[i], "layer%zu.%s", i / 2, i % 2 == 0 ? "weight" : "bias");
        parameters[i] = (struct muster_ddp_parameter){names[i], MUSTER_FLOAT32, count, t->data + at,
                                                      t->settings->own ? t->gradients + at : NULL};
        at += count;
    }
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    options.bucket_bytes = t->settings->bucket_kib << 10;
    options.first_bucket_bytes = t->settings->first_kib << 10;
    options.hook = t->settings->hook;
    check(muster_ddp_create(t->group, parameters, 2 * model->layer_count, NULL, 0, &options, &t->ddp), "create");
}

static void make_trainer(struct trainer *t) {
    size_t count = 1; /* of no use but to the analyser: never 0 */
    for (size_t i = 0; i < t->settings->model->layer_count; i++) {
        count += t->settings->model->layers[i].weight_count + t->settings->model->layers[i].bias_count;
    }
    t->data = calloc(count, sizeof *t->data);
    t->gradients = calloc(count, sizeof *t->gradients);
    t->samples = calloc((size_t)t->settings->pairs * (t->settings->ranks + 1), sizeof *t->samples);
    if (!t->data || !t->gradients || !t->samples) {
        (void)fprintf(stderr, "ddp_bench: out of memory\n");
        _exit(1);
    }
    t->passes_per_ms = calibrate();
    check(muster_all_reduce(t->group, &t->passes_per_ms, &t->passes_per_ms, 1, MUSTER_FLOAT64, MUSTER_OP_MAX, NULL),
          "calibrate");
    make_ddp(t);
}

static void write_gradient(struct trainer *t, size_t parameter, size_t count, float value) {
    float *gradient = muster_ddp_gradient(t->ddp, parameter);
    for (size_t i = 0; i < count; i++) {
        gradient[i] = value;
    }
    check(muster_ddp_ready(t->ddp, parameter), "ready");
}

/* A third of the time is the forward pass. */
static void step(struct trainer *t, bool synchronised, struct sample *sample) {
    const struct bench_model *model = t->settings->model;
    double passes = t->settings->compute_ms * t->passes_per_ms;
    check(muster_barrier(t->group, NULL), "barrier");
    double begin_ms = now_ms(), begin_cpu_ms = read_ms(CLOCK_PROCESS_CPUTIME_ID);
    check((synchronised ? muster_ddp_begin : muster_ddp_begin_no_sync)(t->ddp), "begin");
    compute((size_t)(passes / 3));
    for (size_t i = model->layer_count; i-- > 0;) {
        const struct layer *layer = &model->layers[i];
        compute((size_t)(passes * 2 / 3 * (double)layer->share / 1000));
        write_gradient(t, 2 * i + 1, layer->bias_count, (float)i);
        write_gradient(t, 2 * i, layer->weight_count, (float)i + work[i]);
    }
    check(muster_ddp_finish(t->ddp), "finish");
    sample->wall_ms[synchronised] = now_ms() - begin_ms;
    sample->cpu_ms[synchronised] = read_ms(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ms;
}

/* A step lasts until the last rank is done, and costs what all of them spend. */
static struct sample of_all_ranks(const struct trainer *t, uint32_t pair) {
    const struct sample *all = t->samples + t->settings->pairs;
    struct sample sum = {{0}, {0}};
    for (uint32_t rank = 0; rank < t->settings->ranks; rank++) {
        const struct sample *sample = &all[(size_t)rank * t->settings->pairs + pair];
        for (int kind = 0; kind < 2; kind++) {
            sum.wall_ms[kind] = sample->wall_ms[kind] > sum.wall_ms[kind] ? sample->wall_ms[kind] : sum.wall_ms[kind];
            sum.cpu_ms[kind] += sample->cpu_ms[kind];
        }
    }
    return sum;
}

static void report(struct trainer *t, const struct muster_ddp_statistics *used) {
    uint32_t pairs = t->settings->pairs;
    double *with = calloc(4 * (size_t)pairs, sizeof *with);
    if (!with) {
        _exit(1);
    }
    double *without = with + pairs, *ratios = without + pairs, *cpu_ratios = ratios + pairs;
    for (uint32_t pair = 0; pair < pairs; pair++) {
        struct sample sample = of_all_ranks(t, pair);
        without[pair] = sample.wall_ms[0];
        with[pair] = sample.wall_ms[1];
        ratios[pair] = with[pair] / without[pair];
        cpu_ratios[pair] = sample.cpu_ms[1] / sample.cpu_ms[0];
    }
    const struct settings *settings = t->settings;
    printf("%s, %u ranks, %u buckets, %s gradients%s%s: %.2f ms with, %.2f ms without; ratio %.4f (%.4f - %.4f), "
           "of processor time %.4f; exposed %.2f %%\n",
           settings->model->name, settings->ranks, used->bucket_count, settings->own ? "private" : "shared",
           settings->hook ? ", " : "", settings->hook ? settings->hook->name : "", quantile(with, pairs, 0.5),
           quantile(without, pairs, 0.5), quantile(ratios, pairs, 0.5), quantile(ratios, pairs, 0.25),
           quantile(ratios, pairs, 0.75), quantile(cpu_ratios, pairs, 0.5),
           (double)used->communication_ns / 1e6 / (quantile(with, pairs, 0.5) * pairs) * 100);
    free(with);
}

static int run_rank(const struct settings *settings, const char *path, uint32_t rank) {
    struct trainer t = {.settings = settings};
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = 60000;
    check(muster_group_create_file(path, rank, settings->ranks, &options, &t.group), "create a group");
    make_trainer(&t);
    struct muster_ddp_statistics before, after;
    for (uint32_t i = 0; i < WARM_UP; i++) {
        step(&t, true, &t.samples[0]);
    }
    muster_ddp_statistics(t.ddp, &before);
    for (uint32_t pair = 0; pair < settings->pairs; pair++) {
        bool first = pair % 2 == 0; /* neither kind always comes first */
        step(&t, first, &t.samples[pair]);
        step(&t, !first, &t.samples[pair]);
    }
    muster_ddp_statistics(t.ddp, &after);
    after.communication_ns -= before.communication_ns;
    check(muster_all_gather(t.group, t.samples, t.samples + settings->pairs, settings->pairs * sizeof *t.samples,
                            MUSTER_UINT8, NULL),
          "gather times");
    if (rank == 0) {
        report(&t, &after);
    }
    muster_ddp_free(t.ddp);
    muster_group_free(t.group);
    free(t.data);
    free(t.gradients);
    free(t.samples);
    return 0;
}

/* ---- the program ---- */

static int usage(void) {
    (void)fprintf(stderr, "usage: ddp_bench [--model mnist|dense] [--ranks P] [--compute-ms MS] [--pairs N] "
                          "[--bucket-kib K] [--first-kib K] [--own] [--hook bfloat16|float16]\n");
    return 2;
}

static int read_options(int argc, char **argv, struct settings *settings) {
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"ranks", required_argument, NULL, 'r'},
        {"compute-ms", required_argument, NULL, 'c'},
        {"pairs", required_argument, NULL, 'p'},
        {"bucket-kib", required_argument, NULL, 'b'},
        {"first-kib", required_argument, NULL, 'f'},
        {"own", no_argument, NULL, 'o'},
        {"hook", required_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool is_mnist = true;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'm':
            is_mnist = strcmp(optarg, "mnist") == 0;
            settings->model = &bench_models[is_mnist ? 0 : 1];
            break;
        case 'r':
            settings->ranks = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'c':
            settings->compute_ms = strtod(optarg, NULL);
            break;
        case 'p':
            settings->pairs = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'b':
            settings->bucket_kib = strtoul(optarg, NULL, 10);
            break;
        case 'f':
            settings->first_kib = strtoul(optarg, NULL, 10);
            break;
        case 'o':
            settings->own = true;
            break;
        case 'h':
            settings->hook = strcmp(optarg, "float16") == 0 ? muster_ddp_hook_float16() : muster_ddp_hook_bfloat16();
            break;
        default:
            return usage();
        }
    }
    bool is_good = settings->ranks >= 1 && settings->ranks <= RANKS_MAX && settings->pairs >= 1 &&
                   settings->pairs <= PAIRS_MAX && optind == argc;
    return is_good ? 0 : usage();
}

int main(int argc, char **argv) {
    struct settings settings = {.model = &bench_models[0],
                                .ranks = 2,
                                .pairs = 100,
                                .compute_ms = 10,
                                .bucket_kib = MUSTER_DDP_BUCKET_BYTES >> 10,
                                .first_kib = MUSTER_DDP_FIRST_BUCKET_BYTES >> 10};
    if (read_options(argc, argv, &settings) != 0) {
        return 2;
    }
    char folder[] = "/tmp/ddp_bench.XXXXXX", path[64];
    if (!mkdtemp(folder)) {
        perror("ddp_bench: mkdtemp");
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/store", folder);
    pid_t pids[RANKS_MAX];
    for (uint32_t rank = 0; rank < settings.ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            int result = run_rank(&settings, path, rank);
            (void)fflush(stdout);
            _exit(result);
        }
    }
    int failed = 0;
    for (uint32_t rank = 0; rank < settings.ranks; rank++) {
        int how = 0;
        failed |= pids[rank] < 0 || waitpid(pids[rank], &how, 0) < 0 || how != 0;
    }
    (void)unlink(path);
    (void)rmdir(folder);
    return failed;
}
