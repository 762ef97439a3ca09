/* See sample.h. Each token costs a forward pass over all that the model can see: simple, and fast enough for a
 * page. */
#include "sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "random.h"

/* A token, with probability proportional to e^(logit / temperature); `drawn` is in (0, 1). */
static int32_t choose(const float *logits, int count, double temperature, double drawn) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    if (temperature == 0) {
        return best;
    }
    double sum = 0, so_far = 0;
    for (int i = 0; i < count; i++) {
        sum += exp((double)(logits[i] - logits[best]) / temperature);
    }
    for (int32_t i = 0; i < count; i++) {
        so_far += exp((double)(logits[i] - logits[best]) / temperature);
        if (so_far >= drawn * sum) {
            return i;
        }
    }
    return best; /* no number */
}

/* The tokens of the prompt; how many. */
static size_t read_prompt(const struct alphabet *alphabet, const char *prompt, int32_t *tokens) {
    size_t count = alphabet_encode(alphabet, (const uint8_t *)prompt, strlen(prompt), tokens);
    if (count == 0) {
        tokens[count++] = alphabet_first(alphabet);
    }
    return count;
}

static void write_text(const void *text, size_t count, FILE *out) {
    if (out != NULL) {
        (void)fwrite(text, 1, count, out);
        (void)fflush(out);
    }
}

void sample_write(struct gpt *model, const struct gpt_shape *shape, const struct alphabet *alphabet,
                  const struct sample_options *options, FILE *out) {
    size_t context = (size_t)shape->context, vocabulary = (size_t)shape->vocabulary;
    int32_t *tokens = allocate(strlen(options->prompt) + 1 + (size_t)options->count, sizeof *tokens);
    size_t count = read_prompt(alphabet, options->prompt, tokens);
    uint64_t key = random_mix(options->seed, RANDOM_SAMPLE);
    write_text(options->prompt, strlen(options->prompt), out);
    for (int i = 0; i < options->count; i++) {
        size_t length = count < context ? count : context;
        gpt_forward(model, tokens + count - length, 1, (int)length, NULL);
        tokens[count] = choose(gpt_logits(model) + (length - 1) * vocabulary, shape->vocabulary, options->temperature,
                               random_unit(random_mix(key, (uint64_t)i)));
        size_t size = 0;
        const uint8_t *bytes = alphabet_decode(alphabet, tokens[count], &size);
        write_text(bytes, size, out);
        count++;
    }
    write_text("\n", 1, out);
    free(tokens);
}
