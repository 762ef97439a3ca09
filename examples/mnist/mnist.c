/* Trains a small convolutional network on MNIST, data-parallel, and survives the loss of a worker.
 *
 *     muster run --standalone --nproc-per-node=2 --max-restarts=3 --no-python build/examples/mnist --snapshot=DIR
 *
 * The same job as examples/pytorch/mnist_ddp.py. Each worker computes the gradients of its share of each batch;
 * libmuster averages them while the backward pass is still running. Each epoch ends with a snapshot (--snapshot). A
 * restarted worker group, of the same size or another, goes on from the last one: the batch size does not depend on the
 * number of workers. Asked to stop, because a node will be taken away (muster run --preempt-signal), all workers do
 * after the same step, with a snapshot that the next start goes on from, in the middle of an epoch. With --shrink the
 * survivors of a loss go on by themselves. With --virtual-ranks the number of workers does not change a bit of the
 * result.
 *
 * Read from main() upwards, then trainer.c (group, optimizer, snapshots), net.c (the network) and, if you like, its
 * layers in conv.c and norm_pool.c. The command line is in options.c, the images are read in idx.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/record.h>
#include <muster/stop.h>
#include <muster/trace.h>
#include <muster/virtual_ranks.h>

#include "fail.h"
#include "memory.h"
#include "seconds.h"
#include "trainer.h"

/* ---- Training ---- */

/* The network has the gradient of a parameter: ddp may send it. */
static void gradient_ready(void *context, enum net_parameter parameter) {
    struct trainer *t = context;
    if (!t->broken) {
        (void)works(t, muster_ddp_ready(t->ddp, t->number[parameter]), "average gradients");
    }
}

/* Forward and backward of `count` images. Returns the mean loss. */
static double both_passes(struct trainer *t, size_t count) {
    struct net *net = t->net;
    image_set_gather(&t->train, t->indices, count, net->images, net->labels);
    muster_trace_begin("forward");
    net_forward(net, NET_TRAIN, (int)count);
    double loss = net_loss(net);
    muster_trace_end();
    muster_trace_begin("backward");
    net_backward(net);
    muster_trace_end();
    return loss;
}

/* A virtual rank without images: the epoch ends with this step, and others have the rest. */
static void no_pass(struct trainer *t) {
    (void)muster_ddp_zero_gradients(t->ddp);
    for (int i = NET_PARAMETER_COUNT - 1; i >= 0; i--) {
        if (t->net->parameters[i].count > 0) {
            gradient_ready(t, (enum net_parameter)i);
        }
    }
}

/* One part of a step. The gradients are added to those of earlier parts, by the network, or with virtual ranks by ddp.
 * Only the last part's are sent. Returns the mean loss. */
static double compute_part(struct trainer *t, size_t count, bool first, bool last) {
    struct net *net = t->net;
    bool sums_itself = t->options.virtual_ranks > 0;
    if (!works(t, last || sums_itself ? muster_ddp_begin(t->ddp) : muster_ddp_begin_no_sync(t->ddp), "begin a step")) {
        return 0;
    }
    for (size_t i = 0; i < t->parameter_count; i++) {
        t->parameters[i]->gradient = muster_ddp_gradient(t->ddp, i); /* in a bucket: never copied */
    }
    net->accumulate = !first && !sums_itself;
    net->ready = gradient_ready;
    net->ready_context = t;
    double loss = 0;
    if (count > 0) {
        loss = both_passes(t, count);
    } else {
        no_pass(t);
    }
    (void)works(t, muster_ddp_finish(t->ddp), "average gradients");
    return loss;
}

/* Images of the epoch that are still to come, on all workers together. */
static uint64_t images_left(const struct trainer *t) {
    if (t->options.virtual_ranks > 0) {
        return t->train.count - (uint64_t)t->progress.consumed;
    }
    return muster_sampler_left(t->samplers[0]);
}

/* Each virtual rank computes its images, and the loss is the mean over those of all. Its gradient, too: the average
 * over virtual ranks weighs them equally, so each gets a weight. *images: of all; 0 as in train_step(). */
static double virtual_parts(struct trainer *t, size_t *images) {
    double losses[PARTS_MAX] = {0}, loss = 0;
    uint64_t left = images_left(t), most = (uint64_t)t->part_count * (uint64_t)t->net->batch;
    double all = (double)(left < most ? left : most);
    for (uint32_t i = 0; left > 0 && i < t->parts && !t->broken; i++) {
        size_t count = muster_sampler_take(t->samplers[i], t->indices, (size_t)t->net->batch);
        t->net->weight = (double)count * t->part_count / all;
        losses[i] = compute_part(t, count, i == 0, i == t->parts - 1) * (double)count / all;
    }
    bool done =
        left > 0 && !t->broken &&
        works(t, muster_virtual_sum(t->group, t->part_count, losses, &loss, 1, MUSTER_FLOAT64), "add up the losses");
    *images = done ? (size_t)all : 0;
    return loss;
}

/* The micro-batches of this worker. Returns the mean loss; *images as in train_step(). */
static double own_parts(struct trainer *t, size_t *images) {
    double loss = 0;
    for (uint32_t i = 0; i < t->parts; i++) {
        size_t count = muster_sampler_take(t->samplers[i], t->indices, (size_t)t->net->batch);
        if (count == 0) { /* so it is for all parts and workers: they have equally many images */
            return 0;
        }
        loss += compute_part(t, count, i == 0, i == t->parts - 1) / t->parts;
        *images += count;
        if (t->broken) {
            *images = 0;
            return 0;
        }
    }
    for (size_t i = 0; t->parts > 1 && i < t->parameter_count; i++) {
        struct net_tensor *p = t->parameters[i];
        for (size_t j = 0; j < p->count; j++) {
            p->gradient[j] /= (float)t->parts;
        }
    }
    return loss;
}

/* One step of the optimizer. *images: how many this worker computed, or with virtual ranks all together; 0: the epoch
 * is over, or the group broken and the step not done. Returns the mean loss. */
static double train_step(struct trainer *t, size_t *images) {
    *images = 0;
    double loss = t->options.virtual_ranks > 0 ? virtual_parts(t, images) : own_parts(t, images);
    if (*images == 0) {
        return 0;
    }
    const float *gradients[NET_PARAMETER_COUNT];
    for (size_t i = 0; i < t->parameter_count; i++) {
        gradients[i] = t->parameters[i]->gradient;
    }
    muster_trace_begin("optimizer");
    if (t->state != NULL) {
        check(muster_state_step(t->state, gradients, NULL), "change the parameters");
    } else {
        muster_optimizer_step(t->optimizer, gradients);
    }
    muster_trace_end();
    return loss;
}

static bool all_steps_done(const struct trainer *t) {
    return t->options.steps > 0 && t->progress.steps >= t->options.steps;
}

enum { STOP_ASK_STEPS = 10 }; /* a question costs a message to all workers, and there is time */

/* Asked together: one answer for all. At the end of an epoch nobody asks: that is tested and saved first. */
static bool is_to_stop(struct trainer *t) {
    bool stop = false;
    return t->progress.steps % STOP_ASK_STEPS == 0 && images_left(t) > 0 &&
           works(t, muster_stop_requested(t->group, &stop), "ask whether to stop") && stop;
}

/* Trains to the end of the epoch, or of --steps, or until the launcher asks to stop. */
static void train_epoch(struct trainer *t) {
    struct progress *p = &t->progress;
    for (uint32_t i = 0; i < t->parts; i++) {
        muster_sampler_resume(t->samplers[i], p->epoch, (uint64_t)p->consumed);
    }
    while (!all_steps_done(t) && !t->stops && !t->broken) {
        size_t images = 0;
        muster_trace_begin("step");
        double loss = train_step(t, &images);
        muster_trace_end();
        if (images == 0) {
            break;
        }
        p->steps++;
        bool is_of_all = t->options.virtual_ranks > 0;
        p->consumed = is_of_all ? p->consumed + (int64_t)images : (int64_t)muster_sampler_consumed(t->samplers[0]);
        curve_add(&p->curve, loss);
        if (!is_of_all || t->rank == 0) {
            t->sums.loss += loss * (double)images;
            t->sums.images += (double)images;
        }
        trainer_commit(t);
        t->stops = is_to_stop(t);
    }
}

/* train_epoch(), timed. */
static bool time_epoch(struct trainer *t) {
    struct muster_ddp_statistics before, after;
    muster_ddp_statistics(t->ddp, &before);
    double began = seconds();
    train_epoch(t);
    t->seconds += seconds() - began;
    muster_ddp_statistics(t->ddp, &after);
    t->communication += (double)(after.communication_ns - before.communication_ns) * 1e-9;
    return !t->broken;
}

/* Judges image number `first` of the test images, and each that is a multiple of `stride` further. */
static void test_some(struct trainer *t, size_t first, size_t stride) {
    struct net *net = t->net;
    for (size_t next = first; next < t->test.count;) {
        size_t count = 0;
        for (; count < (size_t)net->batch && next < t->test.count; next += stride) {
            t->indices[count++] = next;
        }
        image_set_gather(&t->test, t->indices, count, net->images, net->labels);
        net_forward(net, NET_TEST, (int)count);
        t->sums.right += net_right(net);
    }
}

/* Each worker judges its share of the test images. Running statistics are rank 0's from here on, also in the snapshot.
 */
static void test_share(struct trainer *t) {
    t->sums.right = 0;
    if (t->options.virtual_ranks == 0) {
        test_some(t, t->rank, t->world);
        return;
    }
    for (uint32_t i = 0; i < t->parts; i++) {
        test_some(t, t->first_part + i, t->part_count);
    }
}

static bool share_buffers(struct trainer *t) {
    for (size_t i = 0; !t->broken && t->options.normalise && i < NET_BUFFER_COUNT; i++) {
        struct net_tensor *b = &t->net->buffers[i];
        (void)works(t, muster_broadcast(t->group, b->value, b->count, MUSTER_FLOAT32, 0, NULL),
                    "share the running statistics");
    }
    return !t->broken;
}

/* What all workers did, from what each did. */
static bool add_up(struct trainer *t, struct sums *all) {
    test_share(t);
    return works(
        t,
        muster_all_reduce(t->group, &t->sums, all, sizeof *all / sizeof(double), MUSTER_FLOAT64, MUSTER_OP_SUM, NULL),
        "add up the results");
}

/* What is left of the epoch is for the next start. */
static void stop_here(struct trainer *t) {
    trainer_save(t);
    if (t->rank == 0) {
        printf("asked to stop: stopping in epoch %" PRId64 ", after step %" PRId64 "\n", t->progress.epoch + 1,
               t->progress.steps);
    }
}

/* After a restart nothing may be left of the epoch but its test. */
static void say_epoch(const struct trainer *t, int64_t epoch, const struct sums *all) {
    const char *plural = t->world > 1 ? "s" : "";
    printf("epoch %" PRId64 "/%" PRId64 ": ", epoch, t->options.epochs);
    if (all->images > 0) {
        printf("loss %.4f, test accuracy %.2f %%, %.0f images/s, %.1f %% of the time in communication, %u worker%s\n",
               all->loss / all->images, 100 * t->progress.accuracy, all->images / t->seconds,
               100 * t->communication / t->seconds, t->world, plural);
    } else {
        printf("trained before, test accuracy %.2f %%, %u worker%s\n", 100 * t->progress.accuracy, t->world, plural);
    }
}

/* Trains and tests one epoch, or what is left of it, saves it, and says how it went. */
static void run_epoch(struct trainer *t) {
    struct progress *p = &t->progress;
    struct sums all;
    int64_t epoch = p->epoch + 1;
    if (!time_epoch(t) || !share_buffers(t)) {
        return;
    }
    if (t->stops) {
        stop_here(t);
        return;
    }
    if (!add_up(t, &all)) {
        return;
    }
    p->accuracy = all.right / (double)t->test.count;
    if (images_left(t) == 0) { /* else --steps has ended it */
        p->epoch++;
        p->consumed = 0;
    }
    trainer_save(t);
    t->is_unsaved = false;
    if (t->rank == 0) {
        say_epoch(t, epoch, &all);
    }
    t->sums = (struct sums){0, 0, 0};
    t->seconds = t->communication = 0;
}

static void say_result(struct trainer *t) {
    if (t->rank != 0) {
        return;
    }
    curve_print(&t->progress.curve, stdout);
    if (t->options.plot != NULL && curve_save_svg(&t->progress.curve, t->options.plot) != 0) {
        fail("cannot write %s: %s", t->options.plot, strerror(errno));
    }
    printf("final test accuracy: %.2f %%, peak memory %.1f MiB\n", 100 * t->progress.accuracy, memory_peak_mib());
}

/* oneDNN would take all processors, in every worker. Several processors are better used by several workers. */
#ifdef _OPENMP
extern void omp_set_num_threads(int count); /* omp.h belongs to a compiler, not to oneDNN */
#endif
static void use_one_thread(bool always) {
#ifdef _OPENMP
    if (always || getenv("OMP_NUM_THREADS") == NULL) {
        omp_set_num_threads(1);
    }
#else
    (void)always;
#endif
}

int main(int argc, char **argv) {
    static struct trainer trainer; /* zeroed */
    struct trainer *t = &trainer;
    options_read(&t->options, argc, argv);
    use_one_thread(t->options.virtual_ranks > 0); /* bits depend on the number of threads */
    (void)muster_record_start(); /* without it a crash leaves no record; the program works all the same */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);

    trainer_create(t);
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    printf("rank %u of %u: pid %d, restart %s\n", t->rank, t->world, (int)getpid(), restart != NULL ? restart : "0");
    trainer_resume(t);

    bool done = false;
    while (!done) {
        bool is_left = !all_steps_done(t) || t->is_unsaved;
        if (t->progress.epoch < t->options.epochs && is_left && !t->stops) {
            run_epoch(t);
        } else { /* nobody leaves while another still computes */
            done = works(t, muster_barrier(t->group, NULL), "wait for the others");
        }
        while (t->broken) { /* another one may be lost meanwhile */
            trainer_shrink(t);
        }
    }
    if (!t->stops) {
        say_result(t);
    }
    trainer_free(t);
    return EXIT_SUCCESS;
}
