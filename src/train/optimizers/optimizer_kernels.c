/* Chooses the processor's widest vectors, once, and hands ranges to their loops. See optimizer_kernels.h. */
#include "train/optimizers/optimizer_kernels.h"

#include <stdatomic.h>
#include <string.h>

#include "train/optimizers/optimizer_table.h"

/* ---- the choice ---- */

static const struct optimizer_table *table_of(enum optimizer_vectors vectors) {
#ifdef __x86_64__
    /* Asks the processor and whether the kernel saves the registers. */
    if (vectors == OPTIMIZER_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return &optimizer_table_avx512;
    }
    if (vectors == OPTIMIZER_AVX2 && __builtin_cpu_supports("avx2")) {
        return &optimizer_table_avx2;
    }
#endif
    return vectors == OPTIMIZER_PORTABLE ? &optimizer_table_portable : NULL;
}

/* Threads that meet here first all store the same. */
static const struct optimizer_table *_Atomic table;

static const struct optimizer_table *table_get(void) {
    const struct optimizer_table *chosen = atomic_load_explicit(&table, memory_order_relaxed);
    for (int vectors = OPTIMIZER_VECTORS_COUNT - 1; !chosen; vectors--) {
        chosen = table_of((enum optimizer_vectors)vectors);
        atomic_store_explicit(&table, chosen, memory_order_relaxed);
    }
    return chosen;
}

bool optimizer_vectors_choose(enum optimizer_vectors vectors) {
    const struct optimizer_table *chosen = table_of(vectors);
    if (chosen) {
        atomic_store_explicit(&table, chosen, memory_order_relaxed);
    }
    return chosen != NULL;
}

/* ---- a range ---- */

size_t optimizer_rule_slots(enum optimizer_rule rule) {
    static const uint8_t counts[RULE_COUNT] = {
        [RULE_SGD_MOMENTUM] = 1, [RULE_SGD_NESTEROV] = 1, [RULE_ADADELTA] = 2, [RULE_ADAM] = 2, [RULE_ADAMW] = 2};
    return counts[rule];
}

static void copy(const struct optimizer_span *span, size_t slot_count) {
    const size_t bytes = span->count * sizeof(float);
    if (span->parameter_out != span->parameter) {
        memcpy(span->parameter_out, span->parameter, bytes);
    }
    for (size_t slot = 0; slot < slot_count; slot++) {
        if (span->slots_out[slot] != span->slots[slot]) {
            memcpy(span->slots_out[slot], span->slots[slot], bytes);
        }
    }
    if (span->bfloat16_out) {
        table_get()->narrow(span->bfloat16_out, span->parameter, span->count);
    }
}

/* What has just been read is in the caches, and is best written there. */
static bool is_all_elsewhere(const struct optimizer_span *span, size_t slot_count) {
    bool is_elsewhere = span->parameter_out != span->parameter;
    for (size_t slot = 0; slot < slot_count; slot++) {
        is_elsewhere = is_elsewhere && span->slots_out[slot] != span->slots[slot];
    }
    return is_elsewhere;
}

void optimizer_span_step(enum optimizer_rule rule, const struct optimizer_span *span,
                         const struct optimizer_factors *factors, bool past_caches) {
    const size_t slot_count = optimizer_rule_slots(rule);
    optimizer_loop *loop = table_get()->loops[rule], *streaming = table_get()->past_caches[rule];
    if (span->count == 0) {
        return;
    }
    if (!span->gradient) {
        copy(span, slot_count);
    } else if (past_caches && streaming && is_all_elsewhere(span, slot_count)) {
        streaming(span, factors);
    } else {
        loop(span, factors);
    }
}

double optimizer_squares(const float *values, size_t count) {
    double sum = 0;
    for (size_t begin = 0; begin < count; begin += SQUARES_BLOCK) {
        sum += table_get()->squares(values + begin, count - begin < SQUARES_BLOCK ? count - begin : SQUARES_BLOCK);
    }
    return sum;
}
