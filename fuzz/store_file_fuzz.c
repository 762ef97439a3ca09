/* The FileStore's records: a file that anybody may have written, read in two pieces. */
#include <assert.h>
#include <stdint.h>

#include "store/client/file_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Applies `data` in pieces that end at `cut` and at the end. */
static int apply(const uint8_t *data, size_t size, size_t cut, struct kv_table *table, size_t *used) {
    size_t rest = 0;
    int code = file_format_apply(data, cut, table, used);
    assert(*used <= cut);
    if (code == 0) {
        code = file_format_apply(data + *used, size - *used, table, &rest);
        *used += rest;
    }
    assert(*used <= size);
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint64_t seed[2] = {1, 2};
    struct kv_budget budgets[2] = {{.max_bytes = 1 << 20}, {.max_bytes = 1 << 20}};
    struct kv_table tables[2];
    size_t used[2] = {0, 0};
    int codes[2];
    for (size_t i = 0; i < 2; i++) {
        kv_table_init(&tables[i], seed, &budgets[i]);
        codes[i] = apply(data, size, i ? size / 2 : 0, &tables[i], &used[i]);
    }
    /* However it is cut, the same records are read. */
    assert(codes[0] == codes[1] && used[0] == used[1]);
    assert(kv_table_count(&tables[0]) == kv_table_count(&tables[1]));
    for (size_t i = 0; i < 2; i++) {
        kv_table_done(&tables[i]);
        assert(budgets[i].used_bytes == 0);
    }
    return 0;
}
