/* Trains a small convolutional network on MNIST, data-parallel, and survives the loss of a worker.
 *
 *     muster run --standalone --nproc-per-node=2 --max-restarts=3 --no-python build/examples/mnist --snapshot=DIR
 *
 * The same job as examples/pytorch/mnist_ddp.py. Each worker computes the gradients of its share of each batch;
 * libmuster averages them while the backward pass is still running. Each epoch ends with a snapshot (--snapshot). A
 * restarted worker group, of the same size or another, goes on from the last one: the batch size does not depend on the
 * number of workers.
 *
 * Read from main() upwards. The network is in net.c, the images in idx.c, the command line in options.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/ddp.h>
#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/record.h>
#include <muster/sampler.h>
#include <muster/snapshot.h>
#include <muster/store.h>
#include <muster/trace.h>

#include "curve.h"
#include "fail.h"
#include "idx.h"
#include "net.h"
#include "options.h"

enum {
    TIMEOUT_MS = 300000,   /* for any one call, and for all workers to come */
    OPTIMIZER_TENSORS = 2, /* remembered of a parameter, at most; and one more in all */
    TENSORS_MAX = NET_PARAMETER_COUNT * (1 + OPTIMIZER_TENSORS) + NET_BUFFER_COUNT + 2,
};

/* How far training has come: what a snapshot holds beside tensors of the model. */
struct progress {
    int64_t epoch;    /* whole epochs done */
    int64_t consumed; /* images of the epoch after them that have been dealt out, to all workers together */
    int64_t steps;
    double accuracy; /* of the last test, 0 to 1 */
    struct curve curve;
};

struct trainer {
    struct options options;
    struct muster_store *store; /* of a process without a launcher; else NULL */
    struct muster_group *group;
    uint32_t rank, world;
    struct image_set train, test;
    struct net *net;
    size_t parameter_count;                             /* of this network: those with a count above 0 */
    struct net_tensor *parameters[NET_PARAMETER_COUNT]; /* by their number in ddp and optimizer */
    size_t number[NET_PARAMETER_COUNT];                 /* the other way round */
    struct muster_ddp *ddp;
    struct muster_optimizer *optimizer;
    struct muster_sampler *samplers[MICRO_BATCHES_MAX]; /* one for each micro-batch of a step */
    uint64_t *indices;                                  /* of a micro-batch's images */
    struct progress progress;
};

static double seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- Setting up ---- */

/* Under a launcher (muster run, torchrun) the job's group. Without one, a group of this process alone. */
static void join_group(struct trainer *t) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    if (getenv("WORLD_SIZE") != NULL) {
        check(muster_group_create_env(&options, &t->group), "join the group");
    } else {
        struct muster_store_options own = MUSTER_STORE_OPTIONS_INIT;
        own.host = own.bind_host = "127.0.0.1";
        own.is_host = true;
        check(muster_store_open_tcp(&own, &t->store), "make a store");
        check(muster_group_create_store(t->store, 0, 1, &options, &t->group), "make a group of one");
    }
    t->rank = muster_group_rank(t->group);
    t->world = muster_group_size(t->group);
}

/* Adds up over the workers, for --sync-batch-norm. The calls lie in the same order among ddp's on every worker. */
static void join_numbers(void *context, double *numbers, size_t count) {
    struct trainer *t = context;
    check(muster_all_reduce(t->group, numbers, numbers, count, MUSTER_FLOAT64, MUSTER_SUM, NULL),
          "add up the statistics of batch normalisation");
}

/* The data and the network; each worker gets 1/world of a batch, in micro_batches parts. The order of the images is
 * that of a job with world * micro_batches workers. */
static void make_model(struct trainer *t) {
    const struct options *o = &t->options;
    uint32_t parts = t->world * (uint32_t)o->micro_batches;
    int batch = o->batch / (int)parts > 0 ? o->batch / (int)parts : 1;
    image_set_read(o->data, "train", &t->train);
    image_set_read(o->data, "t10k", &t->test);
    for (int i = 0; i < o->micro_batches; i++) {
        struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
        options.sample_count = t->train.count;
        options.rank = t->rank * (uint32_t)o->micro_batches + (uint32_t)i;
        options.world_size = parts;
        options.seed = o->seed;
        check(muster_sampler_create(&options, &t->samplers[i]), "make a sampler");
    }
    t->indices = allocate((size_t)batch, sizeof *t->indices);
    t->net = net_create(batch, o->normalise, o->seed);
    if (o->synchronise) {
        net_synchronise(t->net, join_numbers, t);
    }
    for (int i = 0; i < NET_PARAMETER_COUNT; i++) {
        if (t->net->parameters[i].count > 0) {
            t->number[i] = t->parameter_count;
            t->parameters[t->parameter_count++] = &t->net->parameters[i];
        }
    }
}

static void make_optimizer(struct trainer *t) {
    const struct options *o = &t->options;
    struct muster_optimizer_parameter list[NET_PARAMETER_COUNT];
    for (size_t i = 0; i < t->parameter_count; i++) {
        const struct net_tensor *p = t->parameters[i];
        list[i] = (struct muster_optimizer_parameter){p->name, p->value, p->count};
    }
    int status = MUSTER_OK;
    if (strcmp(o->optimizer, "sgd") == 0) {
        struct muster_sgd_options options = MUSTER_SGD_OPTIONS_INIT;
        options.learning_rate = o->lr > 0 ? o->lr : 0.01;
        options.momentum = 0.9;
        status = muster_optimizer_create_sgd(list, t->parameter_count, &options, &t->optimizer);
    } else if (strcmp(o->optimizer, "adamw") == 0) {
        struct muster_adamw_options options = MUSTER_ADAMW_OPTIONS_INIT;
        options.learning_rate = o->lr > 0 ? o->lr : 0.001;
        status = muster_optimizer_create_adamw(list, t->parameter_count, &options, &t->optimizer);
    } else {
        struct muster_adadelta_options options = MUSTER_ADADELTA_OPTIONS_INIT;
        options.learning_rate = o->lr > 0 ? o->lr : 0.3;
        status = muster_optimizer_create_adadelta(list, t->parameter_count, &options, &t->optimizer);
    }
    check(status, "make an optimizer");
}

/* Checks that all workers have the same model, and copies rank 0's parameters and buffers to them. */
static void make_ddp(struct trainer *t) {
    struct muster_ddp_parameter list[NET_PARAMETER_COUNT];
    struct muster_ddp_buffer buffers[NET_BUFFER_COUNT];
    for (size_t i = 0; i < t->parameter_count; i++) {
        const struct net_tensor *p = t->parameters[i];
        list[i] = (struct muster_ddp_parameter){p->name, MUSTER_FLOAT32, p->count, p->value, NULL};
    }
    for (size_t i = 0; i < NET_BUFFER_COUNT; i++) {
        const struct net_tensor *b = &t->net->buffers[i];
        buffers[i] = (struct muster_ddp_buffer){b->name, MUSTER_FLOAT32, b->count, b->value};
    }
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    /* dense1 makes up nine tenths of the model and is ready early: its bucket travels while the convolutions are still
     * at work. */
    options.first_bucket_bytes = (size_t)512 << 10;
    check(muster_ddp_create(t->group, list, t->parameter_count, buffers, t->options.normalise ? NET_BUFFER_COUNT : 0,
                            &options, &t->ddp),
          "agree on the model");
}

/* ---- Snapshots ---- */

static struct muster_tensor float_tensor(const struct net_tensor *from) {
    struct muster_tensor tensor = {.name = from->name, .type = MUSTER_FLOAT32, .data = from->value};
    tensor.dim_count = (uint32_t)from->shape_count;
    for (size_t i = 0; i < from->shape_count; i++) {
        tensor.shape[i] = from->shape[i];
    }
    return tensor;
}

/* Everything that training goes on from, in `tensors` and `values`. */
#define SNAPSHOT_VALUES 8
static struct muster_snapshot_state describe_state(struct trainer *t, struct muster_tensor tensors[TENSORS_MAX],
                                                   struct muster_value values[SNAPSHOT_VALUES]) {
    struct progress *p = &t->progress;
    size_t count = 0;
    for (size_t i = 0; i < t->parameter_count; i++) {
        tensors[count++] = float_tensor(t->parameters[i]);
    }
    for (size_t i = 0; t->options.normalise && i < NET_BUFFER_COUNT; i++) {
        tensors[count++] = float_tensor(&t->net->buffers[i]);
    }
    muster_optimizer_tensors(t->optimizer, tensors + count);
    count += muster_optimizer_tensor_count(t->optimizer);
    tensors[count++] = (struct muster_tensor){.name = "curve.points",
                                              .type = MUSTER_FLOAT64,
                                              .dim_count = 1,
                                              .shape = {CURVE_POINTS},
                                              .data = p->curve.points};
    values[0] = muster_value_integer("epoch", &p->epoch);
    values[1] = muster_value_integer("consumed", &p->consumed);
    values[2] = muster_value_integer("steps", &p->steps);
    values[3] = muster_value_real("accuracy", &p->accuracy);
    values[4] = muster_value_integer("curve.point_count", &p->curve.point_count);
    values[5] = muster_value_integer("curve.steps_per_point", &p->curve.steps_per_point);
    values[6] = muster_value_real("curve.open_sum", &p->curve.open_sum);
    values[7] = muster_value_integer("curve.open_count", &p->curve.open_count);
    return (struct muster_snapshot_state){tensors, count, values, SNAPSHOT_VALUES};
}

/* Rank 0 saves; all ranks have the same state, the running statistics included (share_buffers()). */
static void save_snapshot(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    if (t->options.snapshot != NULL) {
        struct muster_snapshot_state state = describe_state(t, tensors, values);
        check(muster_snapshot_save_group(t->group, t->rank == 0, t->options.snapshot, t->progress.steps, &state, NULL),
              "save a snapshot");
    }
}

/* The newest whole snapshot that any worker sees, if there is one, on all workers. */
static void load_snapshot(struct trainer *t) {
    struct muster_tensor tensors[TENSORS_MAX];
    struct muster_value values[SNAPSHOT_VALUES];
    struct muster_snapshot_found found = {.step = 0};
    int status = MUSTER_ENOENT;
    if (t->options.snapshot != NULL) {
        struct muster_snapshot_state state = describe_state(t, tensors, values);
        status = muster_snapshot_load_group(t->group, t->options.snapshot, &state, &found);
    }
    if (status != MUSTER_ENOENT) {
        check(status, "load the newest snapshot");
    }
    if (t->rank == 0) {
        if (status == MUSTER_ENOENT) {
            printf("from scratch: ");
        } else {
            if (found.passed_over > 0) {
                printf("%s\n", found.note);
            }
            printf("from the snapshot of epoch %" PRId64 ", step %" PRId64 ": ", t->progress.epoch, t->progress.steps);
        }
        printf("%zu images to train on, %zu to test\n", t->train.count, t->test.count);
    }
}

/* ---- Training ---- */

/* The network has the gradient of a parameter: ddp may send it. */
static void gradient_ready(void *context, enum net_parameter parameter) {
    struct trainer *t = context;
    check(muster_ddp_ready(t->ddp, t->number[parameter]), "average gradients");
}

/* Forward and backward of `count` images; the gradients are added to those of earlier micro-batches of the step. Only
 * the last one's are sent. Returns the mean loss. */
static double micro_batch(struct trainer *t, size_t count, bool first, bool last) {
    struct net *net = t->net;
    check(last ? muster_ddp_begin(t->ddp) : muster_ddp_begin_no_sync(t->ddp), "begin a step");
    for (size_t i = 0; i < t->parameter_count; i++) {
        t->parameters[i]->gradient = muster_ddp_gradient(t->ddp, i); /* in a bucket: never copied */
    }
    net->accumulate = !first;
    net->ready = gradient_ready;
    net->ready_context = t;
    image_set_gather(&t->train, t->indices, count, net->images, net->labels);
    muster_trace_begin("forward");
    net_forward(net, NET_TRAIN, (int)count);
    double loss = net_loss(net);
    muster_trace_end();
    muster_trace_begin("backward");
    net_backward(net);
    muster_trace_end();
    check(muster_ddp_finish(t->ddp), "average gradients");
    return loss;
}

/* One step of the optimizer. *images: how many this worker computed; 0: the epoch is over. Returns the mean loss. */
static double train_step(struct trainer *t, size_t *images) {
    int parts = t->options.micro_batches;
    double loss = 0;
    *images = 0;
    for (int i = 0; i < parts; i++) {
        size_t count = muster_sampler_take(t->samplers[i], t->indices, (size_t)t->net->batch);
        if (count == 0) { /* so it is for all parts and workers: they have equally many images */
            return 0;
        }
        loss += micro_batch(t, count, i == 0, i == parts - 1) / parts;
        *images += count;
    }
    const float *gradients[NET_PARAMETER_COUNT];
    for (size_t i = 0; i < t->parameter_count; i++) {
        struct net_tensor *p = t->parameters[i];
        for (size_t j = 0; parts > 1 && j < p->count; j++) {
            p->gradient[j] /= (float)parts;
        }
        gradients[i] = p->gradient;
    }
    muster_trace_begin("optimizer");
    muster_optimizer_step(t->optimizer, gradients);
    muster_trace_end();
    return loss;
}

static bool all_steps_done(const struct trainer *t) {
    return t->options.steps > 0 && t->progress.steps >= t->options.steps;
}

/* What an epoch came to, on one worker, then on all. */
struct sums {
    double loss, images, right; /* loss: that of an image, added up */
};

/* Trains to the end of the epoch, or of --steps. */
static void train_epoch(struct trainer *t, struct sums *sums) {
    struct progress *p = &t->progress;
    for (int i = 0; i < t->options.micro_batches; i++) {
        muster_sampler_resume(t->samplers[i], p->epoch, (uint64_t)p->consumed);
    }
    while (!all_steps_done(t)) {
        size_t images = 0;
        muster_trace_begin("step");
        double loss = train_step(t, &images);
        muster_trace_end();
        if (images == 0) {
            break;
        }
        p->steps++;
        curve_add(&p->curve, loss);
        sums->loss += loss * (double)images;
        sums->images += (double)images;
    }
    p->consumed = (int64_t)muster_sampler_consumed(t->samplers[0]);
    if (muster_sampler_left(t->samplers[0]) == 0) {
        p->epoch++;
        p->consumed = 0;
    }
}

/* Each worker judges its share of the test images. Running statistics are rank 0's from here on, also in the snapshot.
 */
static void test_share(struct trainer *t, struct sums *sums) {
    struct net *net = t->net;
    for (size_t next = t->rank; next < t->test.count;) {
        size_t count = 0;
        for (; count < (size_t)net->batch && next < t->test.count; next += t->world) {
            t->indices[count++] = next;
        }
        image_set_gather(&t->test, t->indices, count, net->images, net->labels);
        net_forward(net, NET_TEST, (int)count);
        sums->right += net_right(net);
    }
}

static void share_buffers(struct trainer *t) {
    for (size_t i = 0; t->options.normalise && i < NET_BUFFER_COUNT; i++) {
        struct net_tensor *b = &t->net->buffers[i];
        check(muster_broadcast(t->group, b->value, b->count, MUSTER_FLOAT32, 0, NULL), "share the running statistics");
    }
}

/* Trains and tests one epoch, saves it, and says how it went. */
static void run_epoch(struct trainer *t) {
    struct muster_ddp_statistics before, after;
    struct sums sums = {0, 0, 0};
    int64_t epoch = t->progress.epoch + 1;
    muster_ddp_statistics(t->ddp, &before);
    double began = seconds();
    train_epoch(t, &sums);
    double duration = seconds() - began;
    muster_ddp_statistics(t->ddp, &after);
    double communication = (double)(after.communication_ns - before.communication_ns) * 1e-9;

    share_buffers(t);
    test_share(t, &sums);
    check(muster_all_reduce(t->group, &sums, &sums, sizeof sums / sizeof(double), MUSTER_FLOAT64, MUSTER_SUM, NULL),
          "add up the results");
    t->progress.accuracy = sums.right / (double)t->test.count;
    save_snapshot(t);
    if (t->rank == 0) {
        printf("epoch %" PRId64 "/%" PRId64 ": loss %.4f, test accuracy %.2f %%, %.0f images/s, %.1f %% of the time in "
               "communication, %u worker%s\n",
               epoch, t->options.epochs, sums.loss / sums.images, 100 * t->progress.accuracy, sums.images / duration,
               100 * communication / duration, t->world, t->world > 1 ? "s" : "");
    }
}

static void say_result(struct trainer *t) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    if (t->rank != 0) {
        return;
    }
    curve_print(&t->progress.curve, stdout);
    if (t->options.plot != NULL && curve_save_svg(&t->progress.curve, t->options.plot) != 0) {
        fail("cannot write %s: %s", t->options.plot, strerror(errno));
    }
    printf("final test accuracy: %.2f %%, peak memory %.1f MiB\n", 100 * t->progress.accuracy,
           (double)usage.ru_maxrss / 1024);
}

static void trainer_free(struct trainer *t) {
    muster_ddp_free(t->ddp);
    muster_optimizer_free(t->optimizer);
    for (int i = 0; i < t->options.micro_batches; i++) {
        muster_sampler_free(t->samplers[i]);
    }
    muster_group_free(t->group);
    muster_store_close(t->store);
    net_free(t->net);
    image_set_free(&t->train);
    image_set_free(&t->test);
    free(t->indices);
}

int main(int argc, char **argv) {
    static struct trainer trainer; /* zeroed */
    struct trainer *t = &trainer;
    options_read(&t->options, argc, argv);
    (void)muster_record_start(); /* without it a crash leaves no record; the program works all the same */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);

    join_group(t);
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    printf("rank %u of %u: pid %d, restart %s\n", t->rank, t->world, (int)getpid(), restart != NULL ? restart : "0");
    t->progress.curve = (struct curve)CURVE_INIT;
    make_model(t);
    make_optimizer(t);
    load_snapshot(t);
    make_ddp(t);

    while (t->progress.epoch < t->options.epochs && !all_steps_done(t)) {
        run_epoch(t);
    }
    check(muster_barrier(t->group, NULL), "wait for the others"); /* nobody leaves while another still computes */
    say_result(t);
    trainer_free(t);
    return EXIT_SUCCESS;
}
