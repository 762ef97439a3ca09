/* Fuzzes the reader of safetensors files: an input is a whole file. What is accepted tiles the file exactly, is found
 * by name, and matches a tensor of its own type and shape. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "train/state/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_entry(const struct safetensors *table, size_t index) {
    const struct safetensors_entry *entry = &table->entries[index];
    assert(safetensors_find(table, entry->name) == entry);
    assert(entry->offset <= table->data_bytes && entry->bytes <= table->data_bytes - entry->offset);
    assert(entry->dim_count <= MUSTER_TENSOR_DIMS_MAX && strlen(entry->name) < MUSTER_NAME_MAX);
    if (entry->type != MUSTER_TYPE_COUNT) {
        uint64_t bytes = 0;
        struct muster_tensor same = {.name = entry->name, .type = entry->type, .dim_count = entry->dim_count};
        memcpy(same.shape, entry->shape, sizeof same.shape);
        assert(safetensors_match(entry, &same) == 0);
        assert(safetensors_bytes(entry->type, entry->shape, entry->dim_count, &bytes) && bytes == entry->bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t length = 0;
    struct safetensors table;
    if (size < SAFETENSORS_PREFIX_BYTES || safetensors_header_length(data, size, &length)) {
        return 0;
    }
    assert(length <= size - SAFETENSORS_PREFIX_BYTES);
    uint64_t data_bytes = size - SAFETENSORS_PREFIX_BYTES - length, sum = 0;
    int code = safetensors_decode(data + SAFETENSORS_PREFIX_BYTES, length, data_bytes, &table);
    if (code) {
        assert((code == MUSTER_ECORRUPT || code == MUSTER_ELIMIT) && muster_detail()[0] != '\0');
        return 0;
    }
    for (size_t i = 0; i < table.count; i++) {
        check_entry(&table, i);
        sum += table.entries[i].bytes;
    }
    assert(sum == data_bytes);
    safetensors_done(&table);
    return 0;
}
