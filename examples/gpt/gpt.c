/* Trains a small GPT on the characters of a text, and writes text like it. In one process, or in several that share
 * each batch; these survive the loss of a rank, and nodes may join and leave.
 *
 *     build/examples/gpt --steps=500 --snapshot=DIR
 *     build/examples/gpt --sample-only --snapshot=DIR --prompt="KING "
 *     muster run --standalone --nproc-per-node=2 --max-restarts=3 --no-python build/examples/gpt --snapshot=DIR
 *
 * A restarted group, of the same size or another, goes on from the newest snapshot: neither batches nor dropout depend
 * on the number of ranks. With --virtual-ranks no bit does. Asked to stop, because a node will be taken away (muster
 * run --preempt-signal), all ranks do after the same step, with a snapshot.
 *
 * Read from main() upwards, then trainer.c (a step, the schedule, the optimizer), sharding.c (how ranks share the
 * model), model.c (the passes over all blocks), block.c and the layers: layer_norm.c, linear.c, attention.c, gelu.c,
 * embedding.c, dropout.c, loss.c. The list of parameters is in parameters.c, the command line in options.c. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/record.h>
#include <muster/stop.h>
#include <muster/trace.h>

#include "check.h"
#include "fail.h"
#include "memory.h"
#include "product.h"
#include "sample.h"
#include "seconds.h"
#include "trainer.h"

/* ---- What it says ---- */

/* Seconds of the last steps, for the median. */
enum { STEP_TIMES = 4096 };
struct step_times {
    double seconds[STEP_TIMES];
    size_t count; /* of all steps */
};

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(struct step_times *times) {
    size_t count = times->count < STEP_TIMES ? times->count : STEP_TIMES;
    qsort(times->seconds, count, sizeof *times->seconds, compare);
    return times->seconds[count / 2];
}

/* Steps since the last report. */
struct interval {
    double steps, seconds;
    double waited; /* sharding_waited() at its beginning */
};

/* Tokens are those of all ranks, communication and memory this one's. */
static void report(const struct trainer *t, double loss, double norm, const struct interval *interval) {
    double each = interval->seconds / interval->steps, waited = sharding_waited(&t->sharding) - interval->waited;
    double tokens = (double)t->options.batch * t->options.shape.context;
    int64_t left = (int64_t)(each * (double)(t->options.steps - t->step));
    printf("step %" PRId64 "/%" PRId64 ": loss %.4f, norm %.3f, %.1f ms, %.0f tokens/s, ", t->step, t->options.steps,
           loss, norm, 1e3 * each, tokens / each);
    if (t->world > 1) {
        printf("%.1f %% of the time in communication, ", 100 * waited / interval->seconds);
    }
    printf("%.0f MiB, %" PRId64 ":%02" PRId64 ":%02" PRId64 " to go\n", memory_now_mib(), left / 3600, left / 60 % 60,
           left % 60);
}

static void say_start(const struct trainer *t) {
    const struct options *o = &t->options;
    if (t->found.passed_over > 0) {
        printf("%s\n", t->found.note);
    }
    if (t->from_memory) {
        printf("from step %" PRId64 ", which was in memory: ", t->step);
    } else if (t->step > 0) {
        printf("from the snapshot of step %" PRId64 ": ", t->step);
    } else {
        printf("from %s: ", o->weights != NULL ? o->weights : "scratch");
    }
    printf(t->alphabet.bpe == NULL ? "%zu characters, %d of them distinct; " : "%zu tokens of %d possible ones; ",
           t->text.count, t->alphabet.count);
    printf("%zu parameters in %d units\n", t->parameters->parameter_count, t->parameters->unit_count);
    if (t->sharding.is_kept) {
        printf("kept in memory for restarts: %.1f MiB more %s\n", (double)sharding_kept_bytes(&t->sharding) / (1 << 20),
               t->sharding.fsdp != NULL ? "on each host" : "for each rank");
    }
    if (o->sharding.virtual_ranks > 0) {
        printf("%d virtual ranks on %u rank%s\n", o->sharding.virtual_ranks, t->world, t->world > 1 ? "s" : "");
    } else if (t->world > (uint32_t)o->batch) {
        printf("%u of %u ranks have nothing to do: a batch has only %d sequences\n", t->world - (uint32_t)o->batch,
               t->world, o->batch);
    } else if ((uint32_t)o->batch % t->world != 0) {
        printf("%d sequences on %u ranks: some have one more than others, who wait for them\n", o->batch, t->world);
    }
}

static void say_result(struct trainer *t, struct step_times *times) {
    const char *plot = t->options.plot;
    curve_print(&t->curve, stdout);
    if (plot != NULL && curve_save_svg(&t->curve, plot) != 0) {
        fail("cannot write %s: %s", plot, strerror(errno));
    }
    if (times->count > 0) {
        printf("median step: %.1f ms, peak memory %.1f MiB\n", 1e3 * median(times), memory_peak_mib());
    }
    struct muster_background_statistics saves;
    if (sharding_saves(&t->sharding, &saves)) {
        printf("checkpoints while training went on: %" PRIu64 " complete, %" PRIu64 " skipped, %" PRIu64
               " failed; the optimizer waited %.1f ms for them\n",
               saves.completed, saves.skipped, saves.failed + saves.given_up, 1e-6 * (double)saves.waited_ns);
    }
}

/* ---- Training ---- */

/* Whether step number `step` is one of every `period`, or the last. */
static bool is_due(const struct trainer *t, int64_t period) {
    return t->step == t->options.steps || (period > 0 && t->step % period == 0);
}

static void evaluate(struct trainer *t) {
    double loss = trainer_evaluate(t);
    if (t->rank == 0) {
        printf("step %" PRId64 ": test loss %.4f\n", t->step, loss);
    }
}

/* What is due after a step, whose state is committed by then. */
static void finish_step(struct trainer *t) {
    if (is_due(t, t->options.evaluate_every)) {
        evaluate(t);
    }
    if (is_due(t, t->options.save_every)) {
        trainer_save(t, t->step == t->options.steps);
    }
}

/* One step and what is due after it. Returns its seconds. */
static double step(struct trainer *t, struct interval *interval) {
    double norm = 0, began = seconds();
    muster_trace_begin("step");
    double loss = trainer_step(t, &norm);
    muster_trace_end();
    double took = seconds() - began;
    interval->steps++;
    interval->seconds += took;
    if (is_due(t, t->options.report_every)) {
        if (t->rank == 0) {
            report(t, loss, norm, interval);
        }
        *interval = (struct interval){0, 0, sharding_waited(&t->sharding)};
    }
    finish_step(t);
    return took;
}

/* Asked together: one answer for all. What is left is for the next start. */
static bool is_to_stop(struct trainer *t) {
    bool stop = false;
    check(muster_stop_requested(t->group, &stop), "ask whether to stop");
    if (stop && t->step < t->options.steps) {
        trainer_save(t, true);
        if (t->rank == 0) {
            printf("asked to stop: stopping after step %" PRId64 "\n", t->step);
        }
    }
    return stop;
}

/* ---- Leaving ---- */

static volatile sig_atomic_t has_to_leave; /* the launcher ends this node's workers, for whatever reason */

static void note_end(int number) {
    (void)number;
    has_to_leave = 1;
}

/* Where hosts have copies of each other's parts, a host that leaves sees to it that they are of the last step. SIGTERM
 * leaves time for that (the shutdown timeout). */
static void handle_ends(const struct trainer *t, bool handles) {
    struct sigaction action = {.sa_handler = handles ? note_end : SIG_DFL, .sa_flags = SA_RESTART};
    if (sharding_makes_copies(&t->sharding)) {
        (void)sigaction(SIGTERM, &action, NULL);
    }
}

/* Asked together, too. Those that were told to end do so; the others will miss them, and be started again. */
static void leave_if_told(struct trainer *t) {
    int32_t leaves = has_to_leave, any = 0;
    if (!sharding_makes_copies(&t->sharding)) {
        return;
    }
    check(muster_all_reduce(t->group, &leaves, &any, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL), "ask who is to leave");
    if (any != 0) {
        sharding_hand_over(&t->sharding);
    }
    if (leaves != 0) {
        handle_ends(t, false);
        (void)raise(SIGTERM);
    }
}

/* To the last step, or until the launcher asks to stop: then false. */
static bool train(struct trainer *t) {
    static struct step_times times;
    struct interval interval = {0, 0, 0};
    bool stop = false;
    if (t->from_memory && t->step > 0) { /* the workers before may have been killed in the middle of that */
        finish_step(t);
    }
    handle_ends(t, true);
    while (t->step < t->options.steps && !stop) {
        times.seconds[times.count++ % STEP_TIMES] = step(t, &interval);
        stop = is_to_stop(t);
        leave_if_told(t);
    }
    handle_ends(t, false);
    bool done = t->step >= t->options.steps;
    if (done && t->rank == 0) {
        say_result(t, &times);
    }
    return done;
}

/* ---- Main ---- */

/* Every rank computes the same text, since each may have a part of the model; rank 0 prints it. */
static void write_sample(struct trainer *t) {
    const struct options *o = &t->options;
    struct sample_options sample = {o->prompt, o->sample, o->temperature, (uint64_t)o->seed};
    if (o->sample > 0) {
        sharding_begin_evaluation(&t->sharding);
        sample_write(t->model, &o->shape, &t->alphabet, &sample, t->rank == 0 ? stdout : NULL);
        sharding_finish_evaluation(&t->sharding);
    }
}

static bool learn(struct trainer *t) {
    const char *restart = getenv("TORCHELASTIC_RESTART_COUNT");
    if (restart != NULL) { /* under a launcher */
        printf("rank %u of %u: pid %d, restart %s\n", t->rank, t->world, (int)getpid(), restart);
    }
    if (t->rank == 0) {
        say_start(t);
    }
    return train(t);
}

int main(int argc, char **argv) {
    static struct trainer t; /* zeroed */
    options_read(&t.options, argc, argv);
    product_set_threads(t.options.sharding.virtual_ranks > 0);
    (void)muster_record_start(); /* without it a crash leaves no record; the program works all the same */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (t.options.check != NULL) {
        check_write(&t.options);
        return EXIT_SUCCESS;
    }
    trainer_create(&t);
    if (t.options.samples_only || learn(&t)) {
        write_sample(&t);
    }
    check(muster_barrier(t.group, NULL), "wait for the others"); /* nobody leaves while another still computes */
    trainer_free(&t);
    return EXIT_SUCCESS;
}
