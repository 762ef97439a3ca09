/* What a client is still owed; see kv_output.h. */
#include "store/server/kv_output.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "store/wire/codec.h"

/* Comes after the byte number `at` of those that were ever copied. */
struct kv_reference {
    size_t at;
    struct kv_entry *entry;
    struct kv_slice rest; /* an entry that is appended to in place keeps these bytes */
};

void kv_output_init(struct kv_output *output, struct kv_table *table, size_t max) {
    *output = (struct kv_output){.table = table};
    buf_init(&output->bytes, max);
    buf_init(&output->references, max);
}

static const struct kv_reference *reference_at(const struct kv_output *output, size_t index) {
    const uint8_t *at = buf_bytes(&output->references) + index * sizeof(struct kv_reference);
    return (const struct kv_reference *)(const void *)at; /* allocated, and consumed by whole ones: aligned */
}

static size_t reference_count(const struct kv_output *output) {
    return output->references.len / sizeof(struct kv_reference);
}

void kv_output_done(struct kv_output *output) {
    for (size_t i = 0; i < reference_count(output); i++) {
        kv_table_drop(output->table, reference_at(output, i)->entry);
    }
    buf_done(&output->references);
    buf_done(&output->bytes);
    output->referenced_bytes = 0;
}

size_t kv_output_len(const struct kv_output *output) {
    return output->bytes.len + output->referenced_bytes;
}

size_t kv_output_memory(const struct kv_output *output) {
    return output->bytes.capacity + output->references.capacity;
}

static int refer(struct kv_output *output, struct kv_entry *entry, struct kv_slice value) {
    size_t owed = kv_output_len(output), max = output->bytes.max; /* copied bytes may have gone past it */
    if (owed > max || value.len > max - owed) {
        return status_fail(MUSTER_ELIMIT, "an answer of more than %zu bytes", output->bytes.max);
    }
    struct kv_reference reference = {.at = output->passed_bytes + output->bytes.len, .entry = entry, .rest = value};
    int code = buf_append(&output->references, &reference, sizeof reference);
    if (code == 0) {
        kv_entry_hold(entry);
        output->referenced_bytes += value.len;
    }
    return code;
}

int kv_output_put(struct kv_output *output, struct kv_entry *entry) {
    struct kv_slice value = kv_entry_value(entry);
    return value.len < KV_REFERENCED_BYTES_MIN ? buf_append(&output->bytes, value.data, value.len)
                                               : refer(output, entry, value);
}

int kv_output_put_value(struct kv_output *output, struct kv_entry *entry) {
    int code = codec_put_i64(&output->bytes, entry ? (int64_t)kv_entry_value(entry).len : 0);
    return code || !entry ? code : kv_output_put(output, entry);
}

size_t kv_output_peek(const struct kv_output *output, struct kv_slice *pieces, size_t max) {
    size_t count = 0, copied = 0;
    for (size_t i = 0; i < reference_count(output) && count < max; i++) {
        const struct kv_reference *reference = reference_at(output, i);
        size_t before = reference->at - output->passed_bytes;
        if (before > copied) {
            pieces[count++] = kv_slice_of(buf_bytes(&output->bytes) + copied, before - copied);
            copied = before;
        }
        if (count < max) {
            pieces[count++] = reference->rest;
        }
    }
    if (output->bytes.len > copied && count < max) {
        pieces[count++] = kv_slice_of(buf_bytes(&output->bytes) + copied, output->bytes.len - copied);
    }
    return count;
}

static void pass_bytes(struct kv_output *output, size_t len) {
    output->passed_bytes += len;
    buf_consume(&output->bytes, len);
}

void kv_output_consume(struct kv_output *output, size_t len) {
    assert(len <= kv_output_len(output));
    while (len > 0 && reference_count(output) > 0) {
        struct kv_reference reference = *reference_at(output, 0);
        size_t before = reference.at - output->passed_bytes;
        size_t step = before < len ? before : len;
        pass_bytes(output, step);
        len -= step;
        step = len < reference.rest.len ? len : reference.rest.len;
        if (step == 0) {
            return; /* `len` ends before it: nothing is left of `len` */
        }
        len -= step;
        output->referenced_bytes -= step;
        if (step == reference.rest.len) {
            buf_consume(&output->references, sizeof reference);
            kv_table_drop(output->table, reference.entry);
            continue;
        }
        reference.rest = kv_slice_of(reference.rest.data + step, reference.rest.len - step);
        memcpy(buf_bytes(&output->references), &reference, sizeof reference);
    }
    assert(output->referenced_bytes == 0 || reference_count(output) > 0);
    pass_bytes(output, len);
}
