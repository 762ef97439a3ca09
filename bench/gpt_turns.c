/* What sharing costs in a step of the GPT of examples/gpt:
 *
 *     gpt_turns [--ranks P] [--batch N] [--shape CONTEXT,LAYERS,HEADS,WIDTH] [--rounds N] [--hosts N]
 *               [--virtual-ranks N]
 *
 * Starts P processes. Each has seven trainers of the same model: alone (nobody is told of the gradients), with ddp,
 * with fsdp, with each of these while the state is kept in memory that outlives the process, and with each over N
 * virtual ranks (P), a multiple of P that divides the batch of all ranks. In each round every trainer makes one step,
 * all ranks the same one at a time, in turning order. A step is a forward and a backward pass over N sequences a rank
 * and AdamW, without dropout and clipping. It begins with a barrier and lasts until the last rank is done. So what
 * disturbs the machine disturbs all of them.
 *
 * Prints medians of the steps, and the median (and quartiles) of the ratio of steps of one round: ddp by alone, fsdp by
 * ddp, kept by not, virtual ranks by ddp and by fsdp; the same of processor time, of all ranks and threads. The first
 * rounds touch memory and do not count. */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <muster/collective.h>

#include "fail.h"
#include "gpt.h"
#include "product.h"
#include "quantile.h"
#include "sharding.h"

enum way { ALONE, DDP, FSDP, DDP_KEPT, FSDP_KEPT, DDP_VIRTUAL, FSDP_VIRTUAL, WAYS };
enum { RANKS_MAX = 64, WARM_UP = 2, ROUNDS_MAX = 10000, VOCABULARY = 96 };
static const enum sharding_kind kinds[WAYS] = {
    [ALONE] = SHARDING_NONE,     [DDP] = SHARDING_DDP,         [FSDP] = SHARDING_FSDP,        [DDP_KEPT] = SHARDING_DDP,
    [FSDP_KEPT] = SHARDING_FSDP, [DDP_VIRTUAL] = SHARDING_DDP, [FSDP_VIRTUAL] = SHARDING_FSDP};
static const struct muster_snapshot_state no_extra = MUSTER_SNAPSHOT_STATE_INIT;

static bool is_virtual(int way) {
    return way == DDP_VIRTUAL || way == FSDP_VIRTUAL;
}

struct settings {
    struct gpt_shape shape;
    int batch;
    uint32_t ranks, rounds, hosts, virtual_ranks;
};

static double now_ms(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* ---- a rank ---- */

struct trainer {
    struct sharding sharding;
    struct gpt *model;
    struct muster_optimizer *optimizer;
    int64_t steps;
};

struct sample {
    double wall_ms[WAYS], cpu_ms[WAYS];
};

struct rank {
    const struct settings *settings;
    struct muster_group *group, *alone;
    struct gpt_parameters *parameters;
    struct trainer trainers[WAYS];
    int32_t *tokens, *targets;
    struct sample *samples;
};

static void make_trainer(struct rank *rank, int way) {
    struct trainer *t = &rank->trainers[way];
    struct muster_adamw_options decays = MUSTER_ADAMW_OPTIONS_INIT, keeps = MUSTER_ADAMW_OPTIONS_INIT;
    int virtual_ranks = (int)rank->settings->virtual_ranks;
    keeps.weight_decay = 0;
    const struct muster_optimizer_group groups[SHARDING_GROUPS] = {
        [SHARDING_DECAYS] = {.adamw = &decays}, [SHARDING_KEEPS] = {.adamw = &keeps}};
    sharding_init(&t->sharding,
                  &(struct sharding_choice){.kind = kinds[way], .virtual_ranks = is_virtual(way) ? virtual_ranks : 0},
                  kinds[way] == SHARDING_NONE ? rank->alone : rank->group, rank->parameters,
                  &(struct first_values){NULL, 0});
    struct gpt_memory memory = sharding_memory(&t->sharding);
    t->model = gpt_create(&rank->settings->shape, rank->parameters, rank->settings->batch, &memory);
    sharding_make_optimizer(&t->sharding, groups, &t->optimizer);
    if (way == DDP_KEPT || way == FSDP_KEPT) {
        (void)sharding_keep(&t->sharding, t->optimizer, &no_extra);
        sharding_commit(&t->sharding, t->steps, &no_extra);
    }
    sharding_start(&t->sharding);
}

static void step(struct rank *rank, int way, struct sample *sample) {
    struct trainer *t = &rank->trainers[way];
    int passes = is_virtual(way) ? (int)(rank->settings->virtual_ranks / rank->settings->ranks) : 1;
    int sequences = rank->settings->batch / passes, length = rank->settings->shape.context;
    check(muster_barrier(rank->group, NULL), "begin together");
    double began_ms = now_ms(CLOCK_MONOTONIC), began_cpu_ms = now_ms(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < passes; i++) {
        size_t first = (size_t)i * (size_t)sequences * (size_t)length;
        sharding_begin(&t->sharding);
        gpt_forward(t->model, rank->tokens + first, sequences, length, NULL);
        (void)gpt_loss(t->model, rank->targets + first);
        gpt_backward(t->model, 1);
        sharding_finish(&t->sharding);
    }
    sharding_step(&t->sharding, t->optimizer, 1);
    sharding_commit(&t->sharding, ++t->steps, &no_extra);
    sample->wall_ms[way] = now_ms(CLOCK_MONOTONIC) - began_ms;
    sample->cpu_ms[way] = now_ms(CLOCK_PROCESS_CPUTIME_ID) - began_cpu_ms;
}

static void make_rank(struct rank *rank, uint32_t number) {
    const struct settings *s = rank->settings;
    size_t count = (size_t)s->batch * (size_t)s->shape.context;
    check(muster_group_split(rank->group, (int32_t)number, 0, NULL, &rank->alone), "make a group of one");
    rank->parameters = gpt_parameters_create(&s->shape);
    rank->tokens = allocate(count, sizeof *rank->tokens);
    rank->targets = allocate(count, sizeof *rank->targets);
    rank->samples = allocate((size_t)s->rounds * (s->ranks + 1), sizeof *rank->samples);
    for (size_t i = 0; i < count; i++) {
        rank->tokens[i] = (int32_t)(((i * 2654435761U + number * 97U) >> 8) % VOCABULARY);
        rank->targets[i] = (rank->tokens[i] * 7 + 3) % VOCABULARY;
    }
    for (int way = 0; way < WAYS; way++) {
        make_trainer(rank, way);
    }
}

static void free_rank(struct rank *rank) {
    for (int way = 0; way < WAYS; way++) {
        gpt_free(rank->trainers[way].model);
        muster_optimizer_free(rank->trainers[way].optimizer);
        sharding_done(&rank->trainers[way].sharding);
    }
    gpt_parameters_free(rank->parameters);
    free(rank->tokens);
    free(rank->targets);
    free(rank->samples);
    muster_group_free(rank->alone);
    muster_group_free(rank->group);
}

/* ---- the report ---- */

/* A step lasts until the last rank is done, and costs what all of them spend. */
static struct sample of_all_ranks(const struct rank *rank, uint32_t round) {
    const struct settings *s = rank->settings;
    struct sample all = {{0}, {0}};
    for (uint32_t other = 0; other < s->ranks; other++) {
        const struct sample *sample = &rank->samples[(size_t)s->rounds * (other + 1) + round];
        for (int way = 0; way < WAYS; way++) {
            all.wall_ms[way] = sample->wall_ms[way] > all.wall_ms[way] ? sample->wall_ms[way] : all.wall_ms[way];
            all.cpu_ms[way] += sample->cpu_ms[way];
        }
    }
    return all;
}

static void print_ratio(const char *name, const struct sample *all, uint32_t rounds, int way, int by) {
    double *wall = allocate(rounds, sizeof *wall), *cpu = allocate(rounds, sizeof *cpu);
    for (uint32_t i = 0; i < rounds; i++) {
        wall[i] = all[i].wall_ms[way] / all[i].wall_ms[by];
        cpu[i] = all[i].cpu_ms[way] / all[i].cpu_ms[by];
    }
    printf("%s: %.4f (%.4f to %.4f), of processor time %.4f\n", name, quantile(wall, rounds, 0.5),
           quantile(wall, rounds, 0.25), quantile(wall, rounds, 0.75), quantile(cpu, rounds, 0.5));
    free(wall);
    free(cpu);
}

static void report(const struct rank *rank) {
    static const char *const names[WAYS] = {
        "alone", "ddp", "fsdp", "ddp kept", "fsdp kept", "virtual ranks, ddp", "virtual ranks, fsdp"};
    uint32_t rounds = rank->settings->rounds;
    struct sample *all = allocate(rounds, sizeof *all);
    double *times = allocate(rounds, sizeof *times);
    char name[40];
    for (uint32_t i = 0; i < rounds; i++) {
        all[i] = of_all_ranks(rank, i);
    }
    printf("%u ranks on %u hosts, %zu parameters, %d sequences a rank:", rank->settings->ranks,
           muster_group_host_count(rank->group), rank->parameters->parameter_count, rank->settings->batch);
    for (int way = 0; way < WAYS; way++) {
        for (uint32_t i = 0; i < rounds; i++) {
            times[i] = all[i].wall_ms[way];
        }
        printf(" %s %.1f ms%s", names[way], quantile(times, rounds, 0.5), way + 1 < WAYS ? "," : "\n");
    }
    print_ratio("ddp by alone", all, rounds, DDP, ALONE);
    print_ratio("fsdp by ddp", all, rounds, FSDP, DDP);
    print_ratio("ddp kept by not", all, rounds, DDP_KEPT, DDP);
    print_ratio("fsdp kept by not", all, rounds, FSDP_KEPT, FSDP);
    (void)snprintf(name, sizeof name, "%u virtual ranks by ddp", rank->settings->virtual_ranks);
    print_ratio(name, all, rounds, DDP_VIRTUAL, DDP);
    (void)snprintf(name, sizeof name, "%u virtual ranks by fsdp", rank->settings->virtual_ranks);
    print_ratio(name, all, rounds, FSDP_VIRTUAL, FSDP);
    free(times);
    free(all);
}

static void run_rank(const struct settings *settings, const char *path, uint32_t number) {
    struct rank rank = {.settings = settings};
    char host[16];
    (void)snprintf(host, sizeof host, "%u", number * settings->hosts / settings->ranks);
    if (settings->hosts > 1 && setenv("MUSTER_HOST_ID", host, 1) != 0) {
        fail("no memory for an environment");
    }
    check(muster_group_create_file(path, number, settings->ranks, NULL, &rank.group), "create a group");
    make_rank(&rank, number);
    struct sample warm;
    for (uint32_t round = 0; round < settings->rounds + WARM_UP; round++) {
        for (uint32_t i = 0; i < WAYS; i++) { /* none always comes first */
            step(&rank, (int)((i + round) % WAYS), round < WARM_UP ? &warm : &rank.samples[round - WARM_UP]);
        }
    }
    check(muster_all_gather(rank.group, rank.samples, rank.samples + settings->rounds,
                            settings->rounds * sizeof *rank.samples, MUSTER_UINT8, NULL),
          "gather times");
    if (number == 0) {
        report(&rank);
    }
    check(muster_barrier(rank.group, NULL), "end together");
    free_rank(&rank);
}

/* ---- the program ---- */

static int usage(void) {
    (void)fputs("usage: gpt_turns [--ranks P] [--batch N] [--shape CONTEXT,LAYERS,HEADS,WIDTH] [--rounds N] "
                "[--hosts N] [--virtual-ranks N]\n",
                stderr);
    return 2;
}

static bool read_count(const char *text, uint32_t most, uint32_t *out) {
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    *out = (uint32_t)value;
    return *text != '\0' && *end == '\0' && value >= 1 && value <= most;
}

static bool read_shape(const char *text, struct gpt_shape *shape) {
    int used = 0; /* NOLINTNEXTLINE(cert-err34-c): too large ones are refused below */
    int found = sscanf(text, "%d,%d,%d,%d%n", &shape->context, &shape->layers, &shape->heads, &shape->width, &used);
    return found == 4 && text[used] == '\0' && shape->context > 0 && shape->context <= 4096 && shape->layers > 0 &&
           shape->layers <= 256 && shape->heads > 0 && shape->width > 0 && shape->width <= 8192 &&
           shape->width % shape->heads == 0;
}

static bool read_options(int argc, char **argv, struct settings *s) {
    static const struct option options[] = {{"ranks", required_argument, NULL, 'r'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"shape", required_argument, NULL, 's'},
                                            {"rounds", required_argument, NULL, 'n'},
                                            {"hosts", required_argument, NULL, 'h'},
                                            {"virtual-ranks", required_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    uint32_t batch = (uint32_t)s->batch;
    bool is_good = true;
    for (int option; is_good && (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        is_good = option == 'r'   ? read_count(optarg, RANKS_MAX, &s->ranks)
                  : option == 'b' ? read_count(optarg, 4096, &batch)
                  : option == 's' ? read_shape(optarg, &s->shape)
                  : option == 'n' ? read_count(optarg, ROUNDS_MAX, &s->rounds)
                  : option == 'h' ? read_count(optarg, RANKS_MAX, &s->hosts)
                  : option == 'v' ? read_count(optarg, 4096, &s->virtual_ranks)
                                  : false;
    }
    s->batch = (int)batch;
    s->virtual_ranks = s->virtual_ranks > 0 ? s->virtual_ranks : s->ranks;
    return is_good && optind == argc && s->hosts <= s->ranks && s->virtual_ranks % s->ranks == 0 &&
           batch % (s->virtual_ranks / s->ranks) == 0;
}

int main(int argc, char **argv) {
    struct settings settings = {
        .shape = {VOCABULARY, 256, 6, 6, 384, false, false, 0, 0, 0}, .batch = 2, .ranks = 2, .rounds = 15, .hosts = 1};
    char folder[] = "/tmp/gpt_turns.XXXXXX", path[sizeof folder + 8];
    if (!read_options(argc, argv, &settings)) {
        return usage();
    }
    if (!mkdtemp(folder)) {
        fail("no folder in /tmp");
    }
    (void)snprintf(path, sizeof path, "%s/store", folder);
    product_set_threads(false);
    for (uint32_t rank = 0; rank < settings.ranks; rank++) {
        if (fork() == 0) {
            run_rank(&settings, path, rank);
            (void)fflush(stdout);
            _exit(0);
        }
    }
    bool is_good = true;
    for (int status = 0; wait(&status) > 0;) {
        is_good = is_good && status == 0;
    }
    (void)unlink(path);
    (void)rmdir(folder);
    return is_good ? 0 : 1;
}
