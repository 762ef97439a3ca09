/* The trainer of PyTorch's fault-tolerance tutorial, in C: a linear model learns a fixed linear function.
 *
 *     muster run --standalone --nproc-per-node=4 --max-restarts=3 --no-python build/examples/toy 50 10
 *
 * trains for 50 epochs and saves a snapshot every 10. Started again (by the launcher after a failure, with as many
 * workers or others, or by hand) it goes on after the last saved epoch. Asked to stop, because a node will be taken
 * away, it saves after the epoch that is under way and ends. The same job as examples/pytorch/multigpu_torchrun.py.
 *
 * What a program needs for that, in the order of main(): join the group, load the newest snapshot, share the samples
 * out, average the gradients, ask whether to stop, save. Nothing but libc and libmuster is needed. */
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/ddp.h>
#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/record.h>
#include <muster/sampler.h>
#include <muster/snapshot.h>
#include <muster/stop.h>

#include "curve.h"
#include "fail.h"
#include "seconds.h"

enum {
    SAMPLES = 2048,
    WIDTH = 20,
    BATCH_MAX = SAMPLES,
    TIMEOUT_MS = 300000, /* for any one call, and for all workers to come */
};

struct trainer {
    int64_t total_epochs, save_every;
    size_t batch_size; /* of this worker */
    const char *folder;
    struct muster_group *group;
    struct muster_ddp *ddp;
    struct muster_optimizer *optimizer;
    struct muster_sampler *sampler;
    int64_t epochs_done;
    struct curve curve; /* of rank 0's losses; the others have theirs */
    /* The model: prediction = weight . input + bias. */
    float weight[WIDTH], bias[1];
    float inputs[SAMPLES][WIDTH], targets[SAMPLES];
};

/* ---- Data ---- */

/* splitmix64 (Steele, Lea, Flood 2014), as a float in [0, 1). */
static float random_next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)((z ^ (z >> 31)) >> 40) / (1 << 24);
}

/* The same numbers in every worker and every attempt: inputs, and a linear function of them to be found. */
static void make_data(struct trainer *t) {
    uint64_t state = 0;
    float wanted[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        wanted[i] = random_next(&state);
        t->weight[i] = random_next(&state) - 0.5F;
    }
    for (int sample = 0; sample < SAMPLES; sample++) {
        for (int i = 0; i < WIDTH; i++) {
            t->inputs[sample][i] = random_next(&state);
            t->targets[sample] += wanted[i] * t->inputs[sample][i];
        }
    }
}

/* ---- Snapshots ---- */

enum { STATE_TENSORS = 3, STATE_VALUES = 1 + CURVE_VALUES };

static struct muster_snapshot_state describe_state(struct trainer *t, struct muster_tensor tensors[STATE_TENSORS],
                                                   struct muster_value values[STATE_VALUES]) {
    tensors[0] = (struct muster_tensor){
        .name = "weight", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {1, WIDTH}, .data = t->weight};
    tensors[1] =
        (struct muster_tensor){.name = "bias", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {1}, .data = t->bias};
    values[0] = muster_value_integer("epochs_done", &t->epochs_done);
    curve_describe(&t->curve, &tensors[2], values + 1);
    return (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(tensors, STATE_TENSORS, values, STATE_VALUES);
}

/* The newest whole snapshot that any worker sees, on all of them. */
static void load_snapshot(struct trainer *t) {
    struct muster_tensor tensors[STATE_TENSORS];
    struct muster_value values[STATE_VALUES];
    struct muster_snapshot_found found;
    struct muster_snapshot_state state = describe_state(t, tensors, values);
    int status = muster_snapshot_load_group(t->group, t->folder, &state, &found);
    if (status == MUSTER_ENOENT) {
        return; /* the first start */
    }
    check(status, "load the newest snapshot");
    if (muster_group_rank(t->group) == 0) {
        printf("%s%sgoing on from the snapshot of epoch %" PRId64 " in %s\n", found.note,
               found.passed_over > 0 ? "\n" : "", t->epochs_done, t->folder);
    }
}

/* Rank 0 saves; all have the same state, and wait until it is on the disk. */
static void save_snapshot(struct trainer *t) {
    struct muster_tensor tensors[STATE_TENSORS];
    struct muster_value values[STATE_VALUES];
    struct muster_snapshot_state state = describe_state(t, tensors, values);
    bool saves = muster_group_rank(t->group) == 0;
    check(muster_snapshot_save_group(t->group, saves, t->folder, t->epochs_done, &state, NULL), "save a snapshot");
    if (saves) {
        printf("epoch %" PRId64 ": snapshot saved in %s\n", t->epochs_done, t->folder);
    }
}

/* ---- Training ---- */

enum { WEIGHT, BIAS, PARAMETERS };

static void make_trainer(struct trainer *t) {
    const struct muster_ddp_parameter model[PARAMETERS] = {{"weight", MUSTER_FLOAT32, WIDTH, t->weight, NULL},
                                                           {"bias", MUSTER_FLOAT32, 1, t->bias, NULL}};
    check(muster_ddp_create(t->group, model, PARAMETERS, NULL, 0, NULL, &t->ddp), "agree on the model");

    const struct muster_optimizer_parameter trained[PARAMETERS] = {{"weight", t->weight, WIDTH}, {"bias", t->bias, 1}};
    struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    sgd.learning_rate = 0.01;
    check(muster_optimizer_create_sgd(trained, PARAMETERS, &sgd, &t->optimizer), "make an optimizer");

    struct muster_sampler_options samples = MUSTER_SAMPLER_OPTIONS_INIT;
    samples.sample_count = SAMPLES;
    samples.rank = muster_group_rank(t->group);
    samples.world_size = muster_group_size(t->group);
    check(muster_sampler_create(&samples, &t->sampler), "make a sampler");
}

/* Forward and backward: the mean squared error of the predictions, and its gradients,
 *     dloss/dprediction = 2 (prediction - target) / count. */
static double compute(struct trainer *t, const uint64_t *samples, size_t count, float *dweight, float *dbias) {
    double loss = 0;
    memset(dweight, 0, sizeof t->weight);
    *dbias = 0;
    for (size_t i = 0; i < count; i++) {
        const float *input = t->inputs[samples[i]];
        float prediction = t->bias[0];
        for (int j = 0; j < WIDTH; j++) {
            prediction += t->weight[j] * input[j];
        }
        float error = prediction - t->targets[samples[i]], gradient = 2 * error / (float)count;
        for (int j = 0; j < WIDTH; j++) {
            dweight[j] += gradient * input[j];
        }
        *dbias += gradient;
        loss += (double)(error * error) / (double)count;
    }
    return loss;
}

/* The gradients are averaged over the workers before the optimizer sees them. Returns this worker's loss. */
static double train_step(struct trainer *t, const uint64_t *samples, size_t count) {
    check(muster_ddp_begin(t->ddp), "begin a step");
    float *gradients[PARAMETERS] = {muster_ddp_gradient(t->ddp, WEIGHT), muster_ddp_gradient(t->ddp, BIAS)};
    double loss = compute(t, samples, count, gradients[WEIGHT], gradients[BIAS]);
    check(muster_ddp_ready(t->ddp, BIAS), "average gradients");
    check(muster_ddp_ready(t->ddp, WEIGHT), "average gradients");
    check(muster_ddp_finish(t->ddp), "average gradients");
    muster_optimizer_step(t->optimizer, (const float *const[PARAMETERS]){gradients[WEIGHT], gradients[BIAS]});
    return loss;
}

/* One line: how far, how well, how fast (all workers together: their shares are of one size), and how much of the time
 * this worker spent in ddp, which computing did not hide. */
static void report(const struct trainer *t, size_t steps, double loss, double elapsed, double communicating) {
    double samples = (double)muster_sampler_consumed(t->sampler);
    printf("[rank %u] epoch %" PRId64 ": %zu steps of %zu, loss %.5f, %.0f samples/s, %.1f %% of the time in "
           "communication\n",
           muster_group_rank(t->group), t->epochs_done, steps, t->batch_size, loss, samples / elapsed,
           100 * communicating / elapsed);
}

static double run_epoch(struct trainer *t) {
    static uint64_t samples[BATCH_MAX];
    struct muster_ddp_statistics before, after;
    size_t count = 0, steps = 0;
    double loss = 0, began = seconds();
    muster_ddp_statistics(t->ddp, &before);
    muster_sampler_set_epoch(t->sampler, t->epochs_done);
    while ((count = muster_sampler_take(t->sampler, samples, t->batch_size)) > 0) {
        loss = train_step(t, samples, count);
        curve_add(&t->curve, loss);
        steps++;
    }
    t->epochs_done++;
    muster_ddp_statistics(t->ddp, &after);
    report(t, steps, loss, seconds() - began, (double)(after.communication_ns - before.communication_ns) * 1e-9);
    return loss;
}

/* Will a node be taken away? All workers get the same answer, after the same epoch. */
static bool is_to_stop(const struct trainer *t) {
    bool stop = false;
    check(muster_stop_requested(t->group, &stop), "ask whether to stop");
    if (stop) {
        printf("[rank %u] asked to stop: stopping after epoch %" PRId64 "\n", muster_group_rank(t->group),
               t->epochs_done);
    }
    return stop;
}

/* The loss of the last batch; -1 when there was nothing left to train. */
static double train(struct trainer *t) {
    double loss = -1;
    bool stop = false;
    while (!stop && t->epochs_done < t->total_epochs) {
        loss = run_epoch(t);
        stop = is_to_stop(t);
        if (stop || t->epochs_done % t->save_every == 0) {
            save_snapshot(t);
        }
    }
    check(muster_barrier(t->group, NULL), "wait for the others"); /* nobody leaves while another still computes */
    return loss;
}

/* ---- Command line ---- */

static const char HELP[] = "Trains a linear model data-parallel, with snapshots: the tutorial's trainer.\n"
                           "\n"
                           "    muster run [OPTION...] --no-python toy TOTAL_EPOCHS SAVE_EVERY [OPTION...]\n"
                           "\n"
                           "  --batch-size N    samples a step on each worker (32)\n"
                           "  --snapshot DIR    folder to save to and to go on from (toy_snapshots)\n"
                           "  --help\n";

static int64_t whole_number(const char *what, const char *text, int64_t max) {
    char *end = NULL;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || number < 1 || number > max) {
        (void)fprintf(stderr, "toy: %s '%s' is not a whole number from 1 to %" PRId64 " (see --help)\n", what, text,
                      max);
        exit(2);
    }
    return number;
}

static void read_arguments(struct trainer *t, int argc, char **argv) {
    static const struct option known[] = {{"batch-size", required_argument, NULL, 'b'},
                                          {"batch_size", required_argument, NULL, 'b'}, /* the tutorial's spelling */
                                          {"snapshot", required_argument, NULL, 's'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    t->batch_size = 32;
    t->folder = "toy_snapshots";
    for (int letter = 0; (letter = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        if (letter == 'b') {
            t->batch_size = (size_t)whole_number("batch size", optarg, BATCH_MAX);
        } else if (letter == 's') {
            t->folder = optarg;
        } else {
            (void)fputs(HELP, letter == 'h' ? stdout : stderr);
            exit(letter == 'h' ? EXIT_SUCCESS : 2);
        }
    }
    if (argc - optind != 2) {
        (void)fputs(HELP, stderr);
        exit(2);
    }
    t->total_epochs = whole_number("TOTAL_EPOCHS", argv[optind], INT32_MAX);
    t->save_every = whole_number("SAVE_EVERY", argv[optind + 1], INT32_MAX);
}

int main(int argc, char **argv) {
    static struct trainer trainer; /* zeroed */
    struct trainer *t = &trainer;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    read_arguments(t, argc, argv);
    (void)muster_record_start(); /* without it a crash leaves no record; the program works all the same */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);

    check(muster_group_create_env(&options, &t->group), "join the group");
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    printf("rank %u of %u: pid %d, restart %s\n", muster_group_rank(t->group), muster_group_size(t->group),
           (int)getpid(), restart != NULL ? restart : "0");
    make_data(t);
    t->curve = (struct curve)CURVE_INIT;
    load_snapshot(t);
    make_trainer(t);
    double loss = train(t);
    if (muster_group_rank(t->group) == 0 && loss >= 0) {
        curve_print(&t->curve, stdout);
        printf("%s loss: %.5f\n", t->epochs_done < t->total_epochs ? "last" : "final", loss);
    }
    muster_sampler_free(t->sampler);
    muster_optimizer_free(t->optimizer);
    muster_ddp_free(t->ddp);
    muster_group_free(t->group);
    return EXIT_SUCCESS;
}
