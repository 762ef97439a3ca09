/* See options.h. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "Trains a small GPT on the characters of a text, and writes text like it.\n"
    "\n"
    "The model (defaults: minGPT's gpt-mini)\n"
    "  --n-layer N          blocks (6)\n"
    "  --n-head N           heads of each (6)\n"
    "  --n-embd N           width of a token's vector, a multiple of the heads (192)\n"
    "  --block-size N       characters that the model sees (128)\n"
    "  --tied               the head shares its weight with the embedding, as in GPT-2\n"
    "  --embd-pdrop P, --resid-pdrop P, --attn-pdrop P\n"
    "                       dropout after the embedding, before each addition, of the attention (0.1)\n"
    "  --dropout P          all three\n"
    "\n"
    "Training\n"
    "  --data FILE          the text (Macbeth, in examples/data)\n"
    "  --batch N            sequences a step (16)\n"
    "  --steps N            (1000)\n"
    "  --lr RATE            highest learning rate (0.0005); it falls along a cosine to a tenth of it\n"
    "  --warm-up N          steps in which the rate rises (100)\n"
    "  --weight-decay W     of the matrices of linear layers (0.1)\n"
    "  --beta1 B, --beta2 B of AdamW (0.9, 0.95)\n"
    "  --clip NORM          limit of the norm of all gradients (1)\n"
    "  --checkpoint         keep less between the passes, and compute it again\n"
    "  --seed N             of first weights, batches, dropout and samples (0)\n"
    "  --snapshot DIR       save there, and go on from the newest\n"
    "  --report-every N, --evaluate-every N, --save-every N\n"
    "                       steps between two (10, 200, 200); 0: at the end alone\n"
    "\n"
    "Text\n"
    "  --sample N           characters to write at the end (500)\n"
    "  --sample-only        write text alone, with the model in --snapshot\n"
    "  --prompt TEXT        what it begins with\n"
    "  --temperature T      below 1: more of what is likely; 0: nothing else (1)\n"
    "\n"
    "  --check FILE, --check-out DIR, --vocab-size N\n"
    "                       read parameters and a batch from a safetensors file, and write logits, loss and gradients\n"
    "  --help\n";

/* Where a number goes, and what is accepted. */
struct number_option {
    const char *name;
    int *small; /* one of these three */
    int64_t *whole;
    double *real;
    float *rate;
    double least, most; /* both accepted */
};

static void usage_error(const char *name, const char *text, double least, double most) {
    (void)fprintf(stderr, "gpt: --%s %s: not a number from %g to %g (see --help)\n", name, text, least, most);
    exit(2);
}

static void set_number(const struct number_option *option, const char *text) {
    char *end = NULL;
    errno = 0;
    double number = strtod(text, &end);
    bool is_whole = option->small != NULL || option->whole != NULL;
    if (errno != 0 || end == text || *end != '\0' || !(number >= option->least && number <= option->most) ||
        (is_whole && number != floor(number))) {
        usage_error(option->name, text, option->least, option->most);
    }
    if (option->small != NULL) {
        *option->small = (int)number;
    } else if (option->whole != NULL) {
        *option->whole = (int64_t)number;
    } else if (option->real != NULL) {
        *option->real = number;
    } else {
        *option->rate = (float)number;
    }
}

/* The options with a number; false: `name` is none of them. */
static bool read_number(struct options *o, const char *name, const char *text) {
    struct gpt_shape *shape = &o->shape;
    double dropout = 0;
    const double many = 1e9, below_one = 0.99;
    const struct number_option options[] = {
        {"n-layer", &shape->layers, NULL, NULL, NULL, 1, 1000},
        {"n-head", &shape->heads, NULL, NULL, NULL, 1, 1000},
        {"n-embd", &shape->width, NULL, NULL, NULL, 1, 65536},
        {"block-size", &shape->context, NULL, NULL, NULL, 1, 65536},
        {"vocab-size", &shape->vocabulary, NULL, NULL, NULL, 1, 1e6},
        {"embd-pdrop", NULL, NULL, NULL, &shape->embedding_dropout, 0, below_one},
        {"resid-pdrop", NULL, NULL, NULL, &shape->residual_dropout, 0, below_one},
        {"attn-pdrop", NULL, NULL, NULL, &shape->attention_dropout, 0, below_one},
        {"dropout", NULL, NULL, &dropout, NULL, 0, below_one},
        {"batch", &o->batch, NULL, NULL, NULL, 1, OPTIONS_BATCH_MAX},
        {"steps", NULL, &o->steps, NULL, NULL, 0, many},
        {"warm-up", NULL, &o->warm_up, NULL, NULL, 0, many},
        {"report-every", NULL, &o->report_every, NULL, NULL, 0, many},
        {"evaluate-every", NULL, &o->evaluate_every, NULL, NULL, 0, many},
        {"save-every", NULL, &o->save_every, NULL, NULL, 0, many},
        {"seed", NULL, &o->seed, NULL, NULL, 0, 0x1p52},
        {"lr", NULL, NULL, &o->learning_rate, NULL, 0, 1000},
        {"weight-decay", NULL, NULL, &o->weight_decay, NULL, 0, 1000},
        {"beta1", NULL, NULL, &o->beta1, NULL, 0, below_one},
        {"beta2", NULL, NULL, &o->beta2, NULL, 0, 0.999999},
        {"clip", NULL, NULL, &o->clip, NULL, 1e-9, 1e9},
        {"sample", &o->sample, NULL, NULL, NULL, 0, 1e6},
        {"temperature", NULL, NULL, &o->temperature, NULL, 0, 1000},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strcmp(options[i].name, name) == 0) {
            set_number(&options[i], text);
            if (options[i].real == &dropout) {
                shape->embedding_dropout = shape->residual_dropout = shape->attention_dropout = (float)dropout;
            }
            return true;
        }
    }
    return false;
}

static void set(struct options *o, const char *name, const char *text) {
    if (strcmp(name, "help") == 0) {
        (void)fputs(HELP, stdout);
        exit(EXIT_SUCCESS);
    } else if (strcmp(name, "tied") == 0) {
        o->shape.tied = true;
    } else if (strcmp(name, "checkpoint") == 0) {
        o->shape.checkpoint = true;
    } else if (strcmp(name, "sample-only") == 0) {
        o->samples_only = true;
    } else if (strcmp(name, "data") == 0) {
        o->data = text;
    } else if (strcmp(name, "snapshot") == 0) {
        o->snapshot = text;
    } else if (strcmp(name, "prompt") == 0) {
        o->prompt = text;
    } else if (strcmp(name, "check") == 0) {
        o->check = text;
    } else if (strcmp(name, "check-out") == 0) {
        o->check_out = text;
    } else {
        (void)read_number(o, name, text);
    }
}

static const struct option KNOWN[] = {{"n-layer", required_argument, NULL, 0},
                                      {"n-head", required_argument, NULL, 0},
                                      {"n-embd", required_argument, NULL, 0},
                                      {"block-size", required_argument, NULL, 0},
                                      {"vocab-size", required_argument, NULL, 0},
                                      {"embd-pdrop", required_argument, NULL, 0},
                                      {"resid-pdrop", required_argument, NULL, 0},
                                      {"attn-pdrop", required_argument, NULL, 0},
                                      {"dropout", required_argument, NULL, 0},
                                      {"batch", required_argument, NULL, 0},
                                      {"steps", required_argument, NULL, 0},
                                      {"warm-up", required_argument, NULL, 0},
                                      {"report-every", required_argument, NULL, 0},
                                      {"evaluate-every", required_argument, NULL, 0},
                                      {"save-every", required_argument, NULL, 0},
                                      {"seed", required_argument, NULL, 0},
                                      {"lr", required_argument, NULL, 0},
                                      {"weight-decay", required_argument, NULL, 0},
                                      {"beta1", required_argument, NULL, 0},
                                      {"beta2", required_argument, NULL, 0},
                                      {"clip", required_argument, NULL, 0},
                                      {"sample", required_argument, NULL, 0},
                                      {"temperature", required_argument, NULL, 0},
                                      {"data", required_argument, NULL, 0},
                                      {"snapshot", required_argument, NULL, 0},
                                      {"prompt", required_argument, NULL, 0},
                                      {"check", required_argument, NULL, 0},
                                      {"check-out", required_argument, NULL, 0},
                                      {"tied", no_argument, NULL, 0},
                                      {"checkpoint", no_argument, NULL, 0},
                                      {"sample-only", no_argument, NULL, 0},
                                      {"help", no_argument, NULL, 0},
                                      {NULL, 0, NULL, 0}};

static void refuse(const char *why) {
    (void)fprintf(stderr, "gpt: %s (see --help)\n", why);
    exit(2);
}

static void check_together(const struct options *o) {
    if (o->shape.width % o->shape.heads != 0) {
        refuse("--n-embd is not a multiple of --n-head");
    }
    if ((o->check == NULL) != (o->check_out == NULL)) {
        refuse("--check and --check-out go together");
    }
    if (o->check != NULL && o->shape.vocabulary == 0) {
        refuse("--check needs --vocab-size");
    }
    if (o->samples_only && o->snapshot == NULL) {
        refuse("--sample-only needs --snapshot: a folder with a trained model");
    }
}

void options_read(struct options *options, int argc, char **argv) {
    *options = (struct options){
        .shape = {.context = 128,
                  .layers = 6,
                  .heads = 6,
                  .width = 192,
                  .embedding_dropout = 0.1F,
                  .residual_dropout = 0.1F,
                  .attention_dropout = 0.1F},
        .data = MUSTER_EXAMPLE_DATA "/macbeth.txt",
        .batch = 16,
        .steps = 1000,
        .warm_up = 100,
        .evaluate_every = 200,
        .save_every = 200,
        .report_every = 10,
        .learning_rate = 5e-4,
        .weight_decay = 0.1,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .clip = 1,
        .sample = 500,
        .prompt = "",
        .temperature = 1,
    };
    int found = 0, index = 0;
    while ((found = getopt_long(argc, argv, "", KNOWN, &index)) != -1) {
        if (found != 0) {
            (void)fputs("(see --help)\n", stderr); /* getopt has said why */
            exit(2);
        }
        set(options, KNOWN[index].name, optarg);
    }
    if (optind < argc) {
        (void)fprintf(stderr, "gpt: what is '%s'? (see --help)\n", argv[optind]);
        exit(2);
    }
    check_together(options);
}
