/* See options.h. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "Trains a small GPT on the characters of a text, in one process or several, and writes text like it.\n"
    "\n"
    "    muster run --standalone --nproc-per-node=2 --max-restarts=3 --no-python gpt [OPTION...]\n"
    "\n"
    "Without a launcher it trains in one process. A rank uses one thread, unless OMP_NUM_THREADS says otherwise.\n"
    "\n"
    "The model (defaults: minGPT's gpt-mini)\n"
    "  --n-layer N          blocks (6)\n"
    "  --n-head N           heads of each (6)\n"
    "  --n-embd N           width of a token's vector, a multiple of the heads (192)\n"
    "  --block-size N       tokens that the model sees (128)\n"
    "  --tied               the head shares its weight with the embedding, as in GPT-2\n"
    "  --embd-pdrop P, --resid-pdrop P, --attn-pdrop P\n"
    "                       dropout after the embedding, before each addition, of the attention (0.1)\n"
    "  --dropout P          all three\n"
    "\n"
    "Training\n"
    "  --data FILE          the text (Macbeth, in examples/data)\n"
    "  --vocabulary DIR     tokens are GPT-2's, not characters: the folder of encoder.json and vocab.bpe\n"
    "  --batch N            sequences a step, over all ranks, whose shares may differ by one (16)\n"
    "  --steps N            (1000)\n"
    "  --lr RATE            highest learning rate (0.0005); it falls along a cosine to a tenth of it\n"
    "  --warm-up N          steps in which the rate rises (100)\n"
    "  --weight-decay W     of the matrices of linear layers (0.1)\n"
    "  --beta1 B, --beta2 B of AdamW (0.9, 0.95)\n"
    "  --clip NORM          limit of the norm of all gradients (1)\n"
    "  --sharding KIND      none: one process; ddp: every rank has all parameters (ddp if there are several ranks);\n"
    "                       fsdp: every rank has a part of them\n"
    "                       hybrid: every host has all of them, and each of its ranks a part\n"
    "  --virtual-ranks N    a batch has N parts, shared out over the ranks: any number of ranks from 1 to N gives the\n"
    "                       same bits, with ddp and sharded; a rank then uses one thread\n"
    "  --change-virtual-ranks\n"
    "                       go on from a state that had another number of them: other bits from there on\n"
    "  --bf16               with fsdp: parameters are computed with, and gradients travel, as bfloat16\n"
    "  --checkpoint         keep less between the passes, and compute it again\n"
    "  --seed N             of first weights, batches, dropout and samples (0)\n"
    "  --weights FILE       first weights: a safetensors file with minGPT's or GPT-2's names\n"
    "  --snapshot DIR       save there, and go on from the newest\n"
    "  --parts              every rank saves a part of the state, at the same time, into a folder that all see\n"
    "  --copies N           with fsdp on several hosts: a copy of the state on other hosts, every N steps\n"
    "  --forget             do not keep the state in memory: a rank that is started again needs a snapshot\n"
    "  --plot FILE.svg      draw the losses into a file, too\n"
    "  --report-every N, --evaluate-every N, --save-every N\n"
    "                       steps between two (10, 200, 200); 0: at the end alone\n"
    "\n"
    "Text\n"
    "  --sample N           tokens to write at the end (500)\n"
    "  --sample-only        write text alone, with the model in --snapshot or --weights\n"
    "  --prompt TEXT        what it begins with\n"
    "  --temperature T      below 1: more of what is likely; 0: nothing else (1)\n"
    "\n"
    "  --check FILE, --check-out DIR, --vocab-size N\n"
    "                       read parameters and a batch from a safetensors file, and write logits, loss and gradients\n"
    "  --help\n";

/* What an option's argument is, and so the type of the member of struct options that it sets. */
enum kind { HELP_TEXT, FLAG, TEXT, SHARDING, SMALL_NUMBER, NUMBER, REAL, RATE, THREE_RATES };

struct known_option {
    const char *name;
    enum kind kind;
    size_t place; /* of the member */
    double least, most;
};

#define PLACE(member) offsetof(struct options, member)
#define MANY 1e9
#define BELOW_1 0.999999

static const struct known_option KNOWN[] = {
    {"help", HELP_TEXT, 0, 0, 0},
    {"n-layer", SMALL_NUMBER, PLACE(shape.layers), 1, OPTIONS_LAYERS_MAX},
    {"n-head", SMALL_NUMBER, PLACE(shape.heads), 1, 1000},
    {"n-embd", SMALL_NUMBER, PLACE(shape.width), 1, 65536},
    {"block-size", SMALL_NUMBER, PLACE(shape.context), 1, 65536},
    {"vocab-size", SMALL_NUMBER, PLACE(shape.vocabulary), 1, 1e6},
    {"tied", FLAG, PLACE(shape.tied), 0, 0},
    {"embd-pdrop", RATE, PLACE(shape.embedding_dropout), 0, BELOW_1},
    {"resid-pdrop", RATE, PLACE(shape.residual_dropout), 0, BELOW_1},
    {"attn-pdrop", RATE, PLACE(shape.attention_dropout), 0, BELOW_1},
    {"dropout", THREE_RATES, PLACE(shape.embedding_dropout), 0, BELOW_1},
    {"data", TEXT, PLACE(data), 0, 0},
    {"vocabulary", TEXT, PLACE(vocabulary), 0, 0},
    {"batch", SMALL_NUMBER, PLACE(batch), 1, OPTIONS_BATCH_MAX},
    {"steps", NUMBER, PLACE(steps), 0, MANY},
    {"lr", REAL, PLACE(learning_rate), 0, 1000},
    {"warm-up", NUMBER, PLACE(warm_up), 0, MANY},
    {"weight-decay", REAL, PLACE(weight_decay), 0, 1000},
    {"beta1", REAL, PLACE(beta1), 0, BELOW_1},
    {"beta2", REAL, PLACE(beta2), 0, BELOW_1},
    {"clip", REAL, PLACE(clip), 1e-9, 1e9},
    {"sharding", SHARDING, PLACE(sharding.kind), 0, 0},
    {"virtual-ranks", SMALL_NUMBER, PLACE(sharding.virtual_ranks), 1, OPTIONS_BATCH_MAX},
    {"change-virtual-ranks", FLAG, PLACE(changes_virtual_ranks), 0, 0},
    {"bf16", FLAG, PLACE(sharding.bfloat16), 0, 0},
    {"checkpoint", FLAG, PLACE(shape.checkpoint), 0, 0},
    {"seed", NUMBER, PLACE(seed), 0, 0x1p52},
    {"weights", TEXT, PLACE(weights), 0, 0},
    {"snapshot", TEXT, PLACE(snapshot), 0, 0},
    {"parts", FLAG, PLACE(sharding.parts), 0, 0},
    {"copies", NUMBER, PLACE(sharding.copies_every), 1, MANY},
    {"forget", FLAG, PLACE(forgets), 0, 0},
    {"plot", TEXT, PLACE(plot), 0, 0},
    {"report-every", NUMBER, PLACE(report_every), 0, MANY},
    {"evaluate-every", NUMBER, PLACE(evaluate_every), 0, MANY},
    {"save-every", NUMBER, PLACE(save_every), 0, MANY},
    {"sample", SMALL_NUMBER, PLACE(sample), 0, 1e6},
    {"sample-only", FLAG, PLACE(samples_only), 0, 0},
    {"prompt", TEXT, PLACE(prompt), 0, 0},
    {"temperature", REAL, PLACE(temperature), 0, 1000},
    {"check", TEXT, PLACE(check), 0, 0},
    {"check-out", TEXT, PLACE(check_out), 0, 0},
};
enum { KNOWN_COUNT = sizeof KNOWN / sizeof KNOWN[0] };

static double read_number(const struct known_option *known, const char *text) {
    char *end = NULL;
    errno = 0;
    double number = strtod(text, &end);
    bool is_whole = known->kind == SMALL_NUMBER || known->kind == NUMBER;
    if (errno != 0 || end == text || *end != '\0' || !(number >= known->least && number <= known->most) ||
        (is_whole && number != floor(number))) {
        (void)fprintf(stderr, "gpt: --%s %s: not a %snumber from %g to %g (see --help)\n", known->name, text,
                      is_whole ? "whole " : "", known->least, known->most);
        exit(2);
    }
    return number;
}

static enum sharding_kind read_sharding(const char *text) {
    static const char *const names[] = {[SHARDING_AUTO] = "auto",
                                        [SHARDING_NONE] = "none",
                                        [SHARDING_DDP] = "ddp",
                                        [SHARDING_FSDP] = "fsdp",
                                        [SHARDING_HYBRID] = "hybrid"};
    for (int kind = SHARDING_AUTO; kind <= SHARDING_HYBRID; kind++) {
        if (strcmp(text, names[kind]) == 0) {
            return (enum sharding_kind)kind;
        }
    }
    (void)fprintf(stderr, "gpt: --sharding %s: not none, ddp, fsdp or hybrid (see --help)\n", text);
    exit(2);
}

static void set(struct options *options, const struct known_option *known, const char *text) {
    void *place = (char *)options + known->place;
    switch (known->kind) {
    case HELP_TEXT:
        (void)fputs(HELP, stdout);
        exit(EXIT_SUCCESS);
    case FLAG:
        *(bool *)place = true;
        break;
    case TEXT:
        *(const char **)place = text;
        break;
    case SHARDING:
        *(enum sharding_kind *)place = read_sharding(text);
        break;
    case SMALL_NUMBER:
        *(int *)place = (int)read_number(known, text);
        break;
    case NUMBER:
        *(int64_t *)place = (int64_t)read_number(known, text);
        break;
    case REAL:
        *(double *)place = read_number(known, text);
        break;
    case RATE:
        *(float *)place = (float)read_number(known, text);
        break;
    case THREE_RATES:
        options->shape.embedding_dropout = (float)read_number(known, text);
        options->shape.residual_dropout = options->shape.attention_dropout = options->shape.embedding_dropout;
        break;
    }
}

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
    if (o->sharding.virtual_ranks > o->batch) {
        refuse("--virtual-ranks needs a sequence for each of them: a larger --batch");
    }
    if (o->samples_only && o->snapshot == NULL && o->weights == NULL) {
        refuse("--sample-only needs --snapshot or --weights: a trained model");
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
    struct option list[KNOWN_COUNT + 1] = {{NULL, 0, NULL, 0}};
    for (int i = 0; i < KNOWN_COUNT; i++) {
        bool is_alone = KNOWN[i].kind == FLAG || KNOWN[i].kind == HELP_TEXT;
        list[i] = (struct option){KNOWN[i].name, is_alone ? no_argument : required_argument, NULL, 0};
    }
    int found = 0, index = 0;
    while ((found = getopt_long(argc, argv, "", list, &index)) != -1) {
        if (found != 0) {
            (void)fputs("(see --help)\n", stderr); /* getopt has said why */
            exit(2);
        }
        set(options, &KNOWN[index], optarg);
    }
    if (optind < argc) {
        (void)fprintf(stderr, "gpt: what is '%s'? (see --help)\n", argv[optind]);
        exit(2);
    }
    check_together(options);
}
