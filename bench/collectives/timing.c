/* The timing loop that all C peers share, and what they print: one line of JSON per operation and size, by rank 0.
 *
 *     PEER [--seconds S] [--in-place] [--own-memory] OPERATION[,...] SIZE[,...]        ("all" operations; sizes as 64K)
 *
 * No barrier in the loop: ranks run free, as in a training step. After a checked call and a warm-up that also finds out
 * how long a call takes, batches of calls are timed; the figure of a rank is the median of its batches, that of a case
 * the largest of all ranks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../quantile.h"
#include "peer.h"

enum { BATCHES_MIN = 5, BATCHES_MAX = 400, ITERATIONS_MAX = 1 << 24, LIST_MAX = 64, BLOCK_VALUES = 7 };
static const double BATCH_S = 0.001, WARM_UP_S = 0.02;

struct settings {
    double seconds; /* of measuring, a case */
    bool in_place, own_memory;
    bool operations[PEER_OPERATION_COUNT];
    size_t sizes[LIST_MAX];
    size_t size_count;
};

struct bench {
    struct settings settings;
    int rank, size;
    float *send, *receive;
};

static const char *const operation_names[] = {
#define PEER_NAME(name) #name,
    PEER_OPERATIONS(PEER_NAME)
#undef PEER_NAME
};

void peer_die(const char *what) {
    (void)fprintf(stderr, "peer: %s\n", what);
    exit(1);
}

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the command line ---- */

static void parse_operations(struct settings *settings, char *list) {
    for (char *name; (name = strsep(&list, ",")) != NULL;) {
        bool known = false;
        for (int i = 0; i < PEER_OPERATION_COUNT; i++) {
            if (strcmp(name, "all") == 0 || strcmp(name, operation_names[i]) == 0) {
                settings->operations[i] = known = true;
            }
        }
        if (!known) {
            peer_die("unknown operation");
        }
    }
}

static void parse_sizes(struct settings *settings, char *list) {
    for (char *text; (text = strsep(&list, ",")) != NULL;) {
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        value <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        if (end == text || value < sizeof(float) || settings->size_count == LIST_MAX) {
            peer_die("sizes are numbers of bytes from 4 on, such as 4,64K,1M; at most 64 of them");
        }
        settings->sizes[settings->size_count++] = (size_t)value;
    }
}

static struct settings parse(int argc, char **argv) {
    struct settings settings = {.seconds = 0.2};
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--in-place") == 0) {
            settings.in_place = true;
        } else if (strcmp(argv[i], "--own-memory") == 0) {
            settings.own_memory = true;
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            settings.seconds = strtod(argv[++i], NULL);
        } else {
            peer_die("unknown option");
        }
    }
    if (argc - i != 2) {
        peer_die("usage: PEER [--seconds S] [--in-place] [--own-memory] OPERATION[,...] SIZE[,...]");
    }
    parse_operations(&settings, argv[i]);
    parse_sizes(&settings, argv[i + 1]);
    return settings;
}

/* ---- one case ---- */

static bool is_divided(enum peer_operation operation) {
    return operation == PEER_all_gather || operation == PEER_gather || operation == PEER_scatter ||
           operation == PEER_reduce_scatter || operation == PEER_all_to_all;
}

static size_t block_count(const struct bench *bench, enum peer_operation operation, size_t bytes) {
    size_t count = bytes / sizeof(float);
    count = is_divided(operation) ? count / (size_t)bench->size : count;
    return operation == PEER_barrier ? 0 : count > 0 ? count : 1;
}

/* What rank `rank` sends at place i of block `block`: small whole numbers, whose sums are exact. */
static float value_at(int rank, int block, size_t i) {
    return (float)(rank + 1 + 10 * block + (int)(i % BLOCK_VALUES));
}

static float sum_at(int size, int block, size_t i) {
    int ranks = size * (size + 1) / 2, places = size * (10 * block + (int)(i % BLOCK_VALUES));
    return (float)(ranks + places);
}

/* The block that a rank should find at `block` of its receive buffer, at i; false: it does not receive there. */
static bool expected_at(const struct bench *bench, enum peer_operation operation, int block, size_t i, float *out) {
    int rank = bench->rank, size = bench->size;
    switch (operation) {
    case PEER_all_reduce:
        *out = sum_at(size, 0, i);
        return block == 0;
    case PEER_reduce:
        *out = sum_at(size, 0, i);
        return block == 0 && rank == 0;
    case PEER_broadcast:
        *out = value_at(0, 0, i);
        return block == 0;
    case PEER_all_gather:
    case PEER_gather:
        *out = value_at(block, 0, i);
        return operation == PEER_all_gather || rank == 0;
    case PEER_scatter:
        *out = value_at(0, rank, i);
        return block == 0;
    case PEER_reduce_scatter:
        *out = sum_at(size, rank, i);
        return block == 0;
    case PEER_all_to_all:
        *out = value_at(block, rank, i);
        return true;
    case PEER_sendrecv:
        *out = value_at(rank ^ 1, 0, i);
        return block == 0 && (rank ^ 1) < size;
    default:
        return false;
    }
}

/* Every element of small cases, a sample of large ones. */
static void check_once(struct bench *bench, enum peer_operation operation, size_t count, float *receive) {
    int blocks = is_divided(operation) ? bench->size : 1;
    size_t stride = count > 65536 ? 4093 : 1;
    for (int b = 0; b < blocks; b++) {
        for (size_t i = 0; i < count; i++) {
            bench->send[(size_t)b * count + i] = value_at(bench->rank, b, i);
            bench->receive[(size_t)b * count + i] = -1;
        }
    }
    if (operation == PEER_broadcast && bench->rank == 0) { /* the root's buffer is the one that others receive into */
        receive = bench->send;
    }
    peer_run(operation, bench->send, receive, count);
    for (int b = 0; b < blocks; b++) {
        for (size_t i = 0; i < count; i += stride) {
            float want;
            if (expected_at(bench, operation, b, i, &want) && receive[(size_t)b * count + i] != want) {
                (void)fprintf(stderr, "%s, %zu floats: rank %d has %g, not %g, at %zu of block %d\n",
                              operation_names[operation], count, bench->rank, receive[(size_t)b * count + i], want, i,
                              b);
                peer_die("wrong result");
            }
        }
    }
}

static double batch_s(struct bench *bench, enum peer_operation operation, float *receive, size_t count,
                      size_t iterations) {
    double from_s = now_s();
    for (size_t i = 0; i < iterations; i++) {
        peer_run(operation, bench->send, receive, count);
    }
    return now_s() - from_s;
}

/* Seconds of a call, roughly, and the same on every rank; the caches are warm afterwards. */
static double warm_up(struct bench *bench, enum peer_operation operation, float *receive, size_t count) {
    for (size_t iterations = 1;; iterations *= 4) {
        double elapsed = peer_max(batch_s(bench, operation, receive, count, iterations));
        if (elapsed >= WARM_UP_S || iterations >= ITERATIONS_MAX) {
            return elapsed / (double)iterations;
        }
    }
}

static void measure(struct bench *bench, enum peer_operation operation, size_t bytes) {
    static double times[BATCHES_MAX];
    size_t count = block_count(bench, operation, bytes);
    bool in_place = bench->settings.in_place && (operation == PEER_all_reduce || operation == PEER_reduce);
    float *receive = in_place ? bench->send : bench->receive;
    check_once(bench, operation, count, receive);
    /* In place the values would grow without end, and zeros stay what they are; they cost the same. */
    memset(bench->send, 0, count * sizeof(float) * (is_divided(operation) ? (size_t)bench->size : 1));
    double call_s = warm_up(bench, operation, receive, count);
    size_t iterations = call_s >= BATCH_S ? 1 : (size_t)(BATCH_S / call_s);
    double wanted = bench->settings.seconds / (call_s * (double)iterations);
    size_t batches = wanted < BATCHES_MIN ? BATCHES_MIN : wanted > BATCHES_MAX ? BATCHES_MAX : (size_t)wanted;
    double total = 0;
    for (size_t i = 0; i < batches; i++) {
        times[i] = batch_s(bench, operation, receive, count, iterations) / (double)iterations;
        total += times[i];
    }
    double median_us = 1e6 * peer_max(quantile(times, batches, 0.5));
    double mean_us = 1e6 * peer_max(total / (double)batches);
    double least_us = 1e6 * peer_max(times[0]); /* quantile() has sorted them */
    if (operation == PEER_sendrecv) {           /* there and back */
        median_us /= 2, mean_us /= 2, least_us /= 2;
    }
    if (bench->rank == 0) {
        (void)printf("{\"operation\": \"%s\", \"bytes\": %zu, \"us\": %.4f, \"mean_us\": %.4f, \"least_us\": %.4f, "
                     "\"calls\": %zu}\n",
                     operation_names[operation], operation == PEER_barrier ? 0 : bytes, median_us, mean_us, least_us,
                     batches * iterations);
        (void)fflush(stdout);
    }
}

int main(int argc, char **argv) {
    static struct bench bench;
    bool own_memory = false;
    for (int i = 1; i < argc; i++) {
        own_memory = own_memory || strcmp(argv[i], "--own-memory") == 0;
    }
    peer_start(&argc, &argv, own_memory, &bench.rank, &bench.size);
    bench.settings = parse(argc, argv);
    size_t largest = 0;
    for (size_t i = 0; i < bench.settings.size_count; i++) {
        largest = bench.settings.sizes[i] > largest ? bench.settings.sizes[i] : largest;
    }
    largest += sizeof(float) * (size_t)bench.size; /* blocks are rounded up */
    bench.send = peer_alloc(largest);
    bench.receive = peer_alloc(largest);
    if (bench.rank == 0) {
        (void)printf("{\"version\": \"%s\", \"ranks\": %d}\n", peer_version(), bench.size);
    }
    for (int operation = 0; operation < PEER_OPERATION_COUNT; operation++) {
        size_t size_count = operation == PEER_barrier ? 1 : bench.settings.size_count;
        for (size_t i = 0; i < size_count && bench.settings.operations[operation]; i++) {
            measure(&bench, (enum peer_operation)operation, bench.settings.sizes[i]);
        }
    }
    peer_free(bench.send);
    peer_free(bench.receive);
    peer_stop();
    return 0;
}
