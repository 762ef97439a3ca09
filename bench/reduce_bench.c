/* How fast reductions run in memory, beside memcpy: reduce_bench [TYPE [REDUCTION]], float32 and sum if left out.
 *
 * Columns: bytes of one buffer; numbers of inputs and outputs; then, for each width of vectors that the processor has,
 * microseconds a call and GB/s of all bytes read and written; last, memcpy of one buffer (read and written, too). Each
 * figure is the best of ROUNDS, in turns, so that what disturbs one disturbs all. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/reduce/reduce.h"

enum { ROUNDS = 7, BUFFERS = 12, ROUND_NS = 4000000 };

static char *buffers[BUFFERS]; /* owned; the first are inputs, the last outputs */

struct shape {
    size_t in_count, out_count;
};

static int64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* -1: memcpy. */
static void call_once(int vectors, enum muster_type type, enum muster_reduction reduction, struct shape shape,
                      size_t bytes) {
    if (vectors < 0) {
        memcpy(buffers[BUFFERS - 1], buffers[0], bytes);
        __asm__ volatile("" ::: "memory");
        return;
    }
    void *outs[BUFFERS];
    for (size_t k = 0; k < shape.out_count; k++) {
        outs[k] = buffers[BUFFERS - 1 - k];
    }
    reduce_many(type, reduction, outs, shape.out_count, (const void *const *)buffers, shape.in_count,
                bytes / muster_type_bytes(type));
}

/* Nanoseconds a call in one round. */
static double round_ns(int vectors, enum muster_type type, enum muster_reduction reduction, struct shape shape,
                       size_t bytes) {
    if (vectors >= 0) {
        (void)reduce_choose((enum reduce_vectors)vectors);
    }
    call_once(vectors, type, reduction, shape, bytes);
    int64_t begin = now_ns(), end = begin;
    size_t calls = 0;
    for (size_t batch = 1; end - begin < ROUND_NS; batch *= 2) {
        for (size_t i = 0; i < batch; i++) {
            call_once(vectors, type, reduction, shape, bytes);
        }
        calls += batch;
        end = now_ns();
    }
    return (double)(end - begin) / (double)calls;
}

static void line_print(enum muster_type type, enum muster_reduction reduction, struct shape shape, size_t bytes) {
    double best[REDUCE_VECTORS_COUNT + 1];
    for (int i = 0; i <= REDUCE_VECTORS_COUNT; i++) {
        best[i] = 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int vectors = -1; vectors < REDUCE_VECTORS_COUNT; vectors++) {
            if (vectors >= 0 && !reduce_choose((enum reduce_vectors)vectors)) {
                continue;
            }
            double ns = round_ns(vectors, type, reduction, shape, bytes);
            double *kept = &best[vectors + 1];
            *kept = *kept == 0 || ns < *kept ? ns : *kept;
        }
    }
    printf("%10zu %3zu %3zu", bytes, shape.in_count, shape.out_count);
    for (int i = 1; i <= REDUCE_VECTORS_COUNT; i++) {
        double moved = (double)(bytes * (shape.in_count + shape.out_count));
        printf("  %11.3f %7.1f", best[i] / 1000, best[i] > 0 ? moved / best[i] : 0);
    }
    printf("  %11.3f %7.1f\n", best[0] / 1000, 2 * (double)bytes / best[0]);
}

/* The index of `text` among `count` names, -1 if it is none. */
static int find(const char *text, const char *(*name)(int), int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(text, name(i)) == 0) {
            return i;
        }
    }
    return -1;
}

static const char *type_text(int type) {
    return muster_type_name((enum muster_type)type);
}

static const char *reduction_text(int reduction) {
    return muster_reduction_name((enum muster_reduction)reduction);
}

int main(int argc, char **argv) {
    static const struct shape shapes[] = {{2, 1}, {2, 2}, {4, 1}, {4, 4}, {8, 1}};
    static const size_t sizes[] = {8, 1024, 16384, 65536, 1 << 20, 8 << 20, 64 << 20};
    const size_t bytes_max = 64 << 20;
    int type = find(argc > 1 ? argv[1] : "float32", type_text, MUSTER_TYPE_COUNT);
    int reduction = find(argc > 2 ? argv[2] : "sum", reduction_text, MUSTER_REDUCTION_COUNT);
    if (argc > 3 || type < 0 || reduction < 0 ||
        !reduce_is_defined((enum muster_type)type, (enum muster_reduction)reduction)) {
        (void)fprintf(stderr, "usage: reduce_bench [TYPE [REDUCTION]]\n");
        return 2;
    }
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i] = aligned_alloc(4096, bytes_max);
        if (!buffers[i]) {
            (void)fprintf(stderr, "no memory\n");
            return 1;
        }
        memset(buffers[i], 0, bytes_max);
    }
    printf(
        "# %s of %s\n#    bytes  in out  portable us    GB/s      AVX2 us    GB/s   AVX-512 us    GB/s    memcpy us    "
        "GB/s\n",
        reduction_text(reduction), type_text(type));
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t b = 0; b < sizeof sizes / sizeof *sizes; b++) {
            line_print((enum muster_type)type, (enum muster_reduction)reduction, shapes[s], sizes[b]);
        }
    }
    for (int i = 0; i < BUFFERS; i++) {
        free(buffers[i]);
    }
    return 0;
}
