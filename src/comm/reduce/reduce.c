/* Chooses the processor's widest vectors, once, and hands the work to their kernels. */
#include "comm/reduce/reduce.h"

#include <assert.h>
#include <stdatomic.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "comm/reduce/reduce_kernels.h"

/* Of all inputs and outputs. */
#define REDUCE_STREAM_BYTES_MIN ((size_t)32 << 20)

#ifdef __x86_64__
/* clang's __builtin_cpu_supports() does not know it. */
static bool has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

static const struct reduce_table *table_of(enum reduce_vectors vectors) {
#ifdef __x86_64__
    /* Asks the processor and whether the kernel saves the registers. */
    if (vectors == REDUCE_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return &reduce_table_avx512;
    }
    if (vectors == REDUCE_AVX2 && __builtin_cpu_supports("avx2") && has_f16c()) {
        return &reduce_table_avx2;
    }
#endif
    return vectors == REDUCE_PORTABLE ? &reduce_table_portable : NULL;
}

/* Threads that meet here first all store the same. */
static const struct reduce_table *_Atomic table;

static const struct reduce_table *table_get(void) {
    const struct reduce_table *chosen = atomic_load_explicit(&table, memory_order_relaxed);
    for (int vectors = REDUCE_VECTORS_COUNT - 1; !chosen; vectors--) {
        chosen = table_of((enum reduce_vectors)vectors);
        atomic_store_explicit(&table, chosen, memory_order_relaxed);
    }
    return chosen;
}

static reduce_kernel *kernel_of(enum muster_type type, enum muster_reduction reduction) {
    assert((unsigned)type < MUSTER_TYPE_COUNT && (unsigned)reduction < MUSTER_REDUCTION_COUNT);
    return table_get()->kernels[type][reduction];
}

bool reduce_choose(enum reduce_vectors vectors) {
    const struct reduce_table *chosen = table_of(vectors);
    if (chosen) {
        atomic_store_explicit(&table, chosen, memory_order_relaxed);
    }
    return chosen != NULL;
}

bool reduce_is_defined(enum muster_type type, enum muster_reduction reduction) {
    return (unsigned)type < MUSTER_TYPE_COUNT && (unsigned)reduction < MUSTER_REDUCTION_COUNT &&
           reduce_table_portable.kernels[type][reduction] != NULL;
}

void reduce_pair(enum muster_type type, enum muster_reduction reduction, void *out, const void *a, const void *b,
                 size_t count) {
    reduce_kernel *kernel = kernel_of(type, reduction == MUSTER_OP_AVERAGE ? MUSTER_OP_SUM : reduction);
    kernel((void *const[]){out}, 1, (const void *const[]){a, b}, 2, count, 1);
}

/* A store to memory that is not in the caches first reads the line that it overwrites, unless it goes past them.
 * Measured with 32 MiB of last cache: a third less time for as many outputs as inputs; nothing for one output. What
 * has just been read is in the caches. */
static bool should_stream(void *const *outs, size_t out_count, const void *const *ins, size_t in_count, size_t bytes) {
    if (out_count < 2 || bytes * (out_count + in_count) < REDUCE_STREAM_BYTES_MIN) {
        return false;
    }
    for (size_t k = 0; k < out_count; k++) {
        for (size_t j = 0; j < in_count; j++) {
            if (outs[k] == ins[j]) {
                return false;
            }
        }
    }
    return true;
}

void reduce_many(enum muster_type type, enum muster_reduction reduction, void *const *outs, size_t out_count,
                 const void *const *ins, size_t in_count, size_t count) {
    assert(out_count > 0 && in_count > 0 && in_count <= UINT32_MAX);
    reduce_kernel *kernel = kernel_of(type, reduction), *past_caches = table_get()->past_caches[type][reduction];
    if (past_caches && should_stream(outs, out_count, ins, in_count, count * muster_type_bytes(type))) {
        kernel = past_caches;
    }
    kernel(outs, out_count, ins, in_count, count, (uint32_t)in_count);
}

void reduce_finish(enum muster_type type, enum muster_reduction reduction, void *data, size_t count, uint32_t divisor) {
    if (reduction == MUSTER_OP_AVERAGE) {
        assert(divisor > 0);
        kernel_of(type, reduction)((void *const[]){data}, 1, (const void *const[]){data}, 1, count, divisor);
    }
}
