/* See options.h. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "Trains a small convolutional network on MNIST, data-parallel, and survives the loss of a worker.\n"
    "\n"
    "    muster run --standalone --nproc-per-node=2 --max-restarts=3 --no-python mnist [OPTION...]\n"
    "\n"
    "Without a launcher it trains in one process. A worker uses one thread, unless OMP_NUM_THREADS says otherwise.\n"
    "\n"
    "  --epochs N          passes over the training images (10)\n"
    "  --steps N           stop after step N, in the middle of an epoch if need be\n"
    "  --batch N           images a step, over all workers (64)\n"
    "  --micro-batches N   each worker computes its share in N parts, as N workers would, and adds them up (1)\n"
    "  --virtual-ranks N   a step has N parts, shared out over the workers: any number of workers from 1 to N gives "
    "the\n"
    "                      same bits, and each image is used once an epoch;\n"
    "                      workers then use one thread\n"
    "  --change-virtual-ranks\n"
    "                      go on from a state that had another number of them: other bits from there on\n"
    "  --optimizer NAME    adadelta, sgd (momentum 0.9) or adamw (adadelta)\n"
    "  --lr RATE           learning rate (adadelta 0.3, sgd 0.01, adamw 0.001)\n"
    "  --no-batch-norm     a network without batch normalisation\n"
    "  --sync-batch-norm   batch normalisation over the images of all workers\n"
    "  --seed N            of the parameters and the order of the images (0)\n"
    "  --data DIR          folder with MNIST's four IDX files (the 5,000 images of examples/data)\n"
    "  --snapshot DIR      save after each epoch, and go on from the newest there\n"
    "  --forget            do not keep the state in memory: restarted workers need a snapshot\n"
    "  --shrink            when a worker is lost the others go on without it, in the middle of the epoch; for workers\n"
    "                      that nobody restarts: muster run --survivors=continue (or see docs/ddp.md)\n"
    "  --plot FILE.svg     draw the losses into a file, too\n"
    "  --help\n";

static void usage_error(const char *name, const char *text, const char *wanted) {
    (void)fprintf(stderr, "mnist: --%s %s: %s (see --help)\n", name, text, wanted);
    exit(2);
}

static int64_t whole_number(const char *name, const char *text, int64_t min, int64_t max) {
    char *end = NULL, wanted[96];
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < min || number > max) {
        (void)snprintf(wanted, sizeof wanted, "not a whole number from %lld to %lld", (long long)min, (long long)max);
        usage_error(name, text, wanted);
    }
    return number;
}

static double rate(const char *name, const char *text) {
    char *end = NULL;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(number) || number <= 0) {
        usage_error(name, text, "not a number above 0");
    }
    return number;
}

static const char *optimizer_name(const char *name, const char *text) {
    static const char *const known[] = {"adadelta", "sgd", "adamw"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(text, known[i]) == 0) {
            return text;
        }
    }
    usage_error(name, text, "not adadelta, sgd or adamw");
    return NULL;
}

static void set(struct options *options, int letter, const char *name, const char *text) {
    enum { BATCH_MAX = 65536 };
    switch (letter) {
    case 'e':
        options->epochs = whole_number(name, text, 0, 1000000);
        break;
    case 't':
        options->steps = whole_number(name, text, 1, INT64_C(1000000000));
        break;
    case 'b':
        options->batch = (int)whole_number(name, text, 1, BATCH_MAX);
        break;
    case 'm':
        options->micro_batches = (int)whole_number(name, text, 1, PARTS_MAX);
        break;
    case 'v':
        options->virtual_ranks = (int)whole_number(name, text, 1, PARTS_MAX);
        break;
    case 'c':
        options->changes_virtual_ranks = true;
        break;
    case 'o':
        options->optimizer = optimizer_name(name, text);
        break;
    case 'l':
        options->lr = rate(name, text);
        break;
    case 'n':
        options->normalise = false;
        break;
    case 'y':
        options->synchronise = true;
        break;
    case 'r':
        options->seed = (uint64_t)whole_number(name, text, 0, INT64_MAX);
        break;
    case 'd':
        options->data = text;
        break;
    case 's':
        options->snapshot = text;
        break;
    case 'f':
        options->forget = true;
        break;
    case 'k':
        options->shrink = true;
        break;
    case 'p':
        options->plot = text;
        break;
    case 'h':
        (void)fputs(HELP, stdout);
        exit(EXIT_SUCCESS);
    default:
        (void)fputs("(see --help)\n", stderr); /* getopt has said why */
        exit(2);
    }
}

void options_read(struct options *options, int argc, char **argv) {
    static const struct option known[] = {{"epochs", required_argument, NULL, 'e'},
                                          {"steps", required_argument, NULL, 't'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"micro-batches", required_argument, NULL, 'm'},
                                          {"virtual-ranks", required_argument, NULL, 'v'},
                                          {"change-virtual-ranks", no_argument, NULL, 'c'},
                                          {"optimizer", required_argument, NULL, 'o'},
                                          {"lr", required_argument, NULL, 'l'},
                                          {"no-batch-norm", no_argument, NULL, 'n'},
                                          {"sync-batch-norm", no_argument, NULL, 'y'},
                                          {"seed", required_argument, NULL, 'r'},
                                          {"data", required_argument, NULL, 'd'},
                                          {"snapshot", required_argument, NULL, 's'},
                                          {"forget", no_argument, NULL, 'f'},
                                          {"shrink", no_argument, NULL, 'k'},
                                          {"plot", required_argument, NULL, 'p'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *options = (struct options){.epochs = 10,
                                .batch = 64,
                                .micro_batches = 1,
                                .optimizer = "adadelta",
                                .normalise = true,
                                .data = MUSTER_EXAMPLE_DATA};
    int letter = 0, index = 0;
    while ((letter = getopt_long(argc, argv, "h", known, &index)) != -1) {
        set(options, letter, known[index].name, optarg);
    }
    if (options->synchronise && (options->micro_batches > 1 || !options->normalise)) {
        (void)fprintf(stderr, "mnist: --sync-batch-norm goes neither with --micro-batches nor with --no-batch-norm\n");
        exit(2);
    }
    if (options->virtual_ranks > 0 && (options->synchronise || options->micro_batches > 1)) {
        (void)fprintf(stderr, "mnist: --virtual-ranks goes neither with --micro-batches nor with --sync-batch-norm\n");
        exit(2);
    }
    if (optind < argc) {
        (void)fprintf(stderr, "mnist: what is '%s'? (see --help)\n", argv[optind]);
        exit(2);
    }
}
