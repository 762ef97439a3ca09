/* Trains a small GPT on the characters of a text, and writes text like it.
 *
 *     build/examples/gpt --steps=500 --snapshot=DIR
 *     build/examples/gpt --sample-only --snapshot=DIR --prompt="KING "
 *
 * Read from main() upwards, then trainer.c (a step, the schedule, the optimizer), model.c (the passes over all blocks),
 * block.c and the layers: layer_norm.c, linear.c, attention.c, gelu.c, embedding.c, dropout.c, loss.c. The list of
 * parameters is in parameters.c, the command line in options.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <muster/collective.h>

#include "check.h"
#include "fail.h"
#include "product.h"
#include "sample.h"
#include "seconds.h"
#include "trainer.h"

/* ---- Training ---- */

/* Seconds of each step, for the median. */
struct step_times {
    double *seconds;
    size_t count;
};

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(struct step_times *times) {
    qsort(times->seconds, times->count, sizeof *times->seconds, compare);
    return times->seconds[times->count / 2];
}

static double peak_mib(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static void report(const struct trainer *t, double loss, double norm, double seconds_per_step) {
    int64_t left = (int64_t)(seconds_per_step * (double)(t->options.steps - t->step));
    double tokens = (double)t->options.batch * t->options.shape.context;
    printf("step %" PRId64 "/%" PRId64 ": loss %.4f, norm %.3f, %.1f ms, %.0f tokens/s, %" PRId64 ":%02" PRId64
           ":%02" PRId64 " to go\n",
           t->step, t->options.steps, loss, norm, 1e3 * seconds_per_step, tokens / seconds_per_step, left / 3600,
           left / 60 % 60, left % 60);
    (void)fflush(stdout);
}

/* Whether step number `step` is one of every `period`, or the last. */
static bool is_due(const struct trainer *t, int64_t period) {
    return t->step == t->options.steps || (period > 0 && t->step % period == 0);
}

static void train(struct trainer *t) {
    int64_t left = t->options.steps - t->step;
    struct step_times times = {calloc((size_t)(left > 0 ? left : 1), sizeof(double)), 0};
    while (t->step < t->options.steps && times.seconds != NULL) {
        double norm = 0, began = seconds();
        double loss = trainer_step(t, &norm);
        times.seconds[times.count++] = seconds() - began;
        if (t->rank == 0 && is_due(t, t->options.report_every)) {
            report(t, loss, norm, times.seconds[times.count - 1]);
        }
        if (is_due(t, t->options.evaluate_every)) {
            double test = trainer_evaluate(t);
            if (t->rank == 0) {
                printf("step %" PRId64 ": test loss %.4f\n", t->step, test);
            }
        }
        if (is_due(t, t->options.save_every)) {
            trainer_save(t);
        }
    }
    if (t->rank == 0 && times.count > 0) {
        printf("median step: %.1f ms, peak memory %.1f MiB\n", 1e3 * median(&times), peak_mib());
    }
    free(times.seconds);
}

/* ---- Main ---- */

/* Every rank computes the same text, since each may have a part of the model; rank 0 prints it. */
static void write_sample(struct trainer *t) {
    const struct options *o = &t->options;
    const struct sample_options sample = {o->prompt, o->sample, o->temperature, (uint64_t)o->seed};
    FILE *out = t->rank == 0 ? stdout : fopen("/dev/null", "w");
    if (o->sample > 0 && out != NULL) {
        sharding_begin_evaluation(&t->sharding);
        sample_write(t->model, &o->shape, &t->alphabet, &sample, out);
        sharding_finish_evaluation(&t->sharding);
    }
    if (out != NULL && out != stdout) {
        (void)fclose(out);
    }
}

int main(int argc, char **argv) {
    struct trainer t = {.step = 0};
    options_read(&t.options, argc, argv);
    product_set_threads();
    if (t.options.check != NULL) {
        check_write(&t.options);
        return EXIT_SUCCESS;
    }
    trainer_create(&t);
    if (!t.options.samples_only && t.rank == 0) {
        printf("%zu characters, %d of them distinct; %zu parameters in %d units\n", t.text.count, t.alphabet.count,
               t.parameters->parameter_count, t.parameters->unit_count);
    }
    if (!t.options.samples_only) {
        train(&t);
    }
    write_sample(&t);
    check(muster_barrier(t.group, NULL), "wait for the others"); /* nobody leaves while another still computes */
    trainer_free(&t);
    return EXIT_SUCCESS;
}
