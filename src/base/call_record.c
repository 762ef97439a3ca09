/* Reading the recorder's file; see call_record.h and docs/formats/recorder.md. */
#include "base/call_record.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <muster/status.h>
#include <muster/types.h>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/str.h"

/* The values by their names. */
enum operation {
#define OPERATION_ENUM(name, value, text) name = (value),
    CALL_OPERATION_TABLE(OPERATION_ENUM)
#undef OPERATION_ENUM
};

const char *call_operation_name(unsigned operation) {
    switch (operation) {
#define OPERATION_CASE(name, value, text)                                                                              \
    case (value):                                                                                                      \
        return text;
        CALL_OPERATION_TABLE(OPERATION_CASE)
#undef OPERATION_CASE
    default:
        return "unknown operation";
    }
}

bool call_record_read_header(const uint8_t *data, size_t len, struct call_record_header *out) {
    struct bytes_reader r = {data, len, 0, false};
    const uint8_t *magic = bytes_get(&r, 8);
    if (!magic || memcmp(magic, CALL_RECORD_MAGIC, 8) != 0 || bytes_get_number(&r, 4) != CALL_RECORD_VERSION) {
        return false;
    }
    struct call_record_header header = {.entry_count = (uint32_t)bytes_get_number(&r, 4)};
    uint64_t entry_bytes = bytes_get_number(&r, 4), header_bytes = bytes_get_number(&r, 4);
    header.pid = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    header.rank = (uint32_t)bytes_get_number(&r, 4);
    header.world_size = (uint32_t)bytes_get_number(&r, 4);
    header.group_count = (uint32_t)bytes_get_number(&r, 4);
    header.realtime_us = (int64_t)bytes_get_number(&r, 8);
    header.monotonic_ns = (int64_t)bytes_get_number(&r, 8);
    header.begun_count = bytes_get_number(&r, 8);
    const uint8_t *host = bytes_get(&r, CALL_RECORD_HOST_BYTES);
    if (!host || entry_bytes != CALL_RECORD_ENTRY_BYTES || header_bytes != CALL_RECORD_HEADER_BYTES ||
        header.entry_count == 0 || header.entry_count > CALL_RECORD_ENTRIES_MAX ||
        len < CALL_RECORD_HEADER_BYTES + (size_t)header.entry_count * CALL_RECORD_ENTRY_BYTES) {
        return false;
    }
    memcpy(header.host, host, CALL_RECORD_HOST_BYTES - 1);
    *out = header;
    return true;
}

static bool read_entry(const uint8_t *data, struct call_record *out) {
    struct bytes_reader r = {data, CALL_RECORD_ENTRY_BYTES, 0, false};
    out->number = bytes_get_number(&r, 8);
    out->sequence = bytes_get_number(&r, 8);
    out->group = (uint32_t)bytes_get_number(&r, 4);
    out->operation = (uint8_t)bytes_get_number(&r, 1);
    out->type = (uint8_t)bytes_get_number(&r, 1);
    out->reduction = (uint8_t)bytes_get_number(&r, 1);
    out->state = (uint8_t)bytes_get_number(&r, 1);
    out->count = bytes_get_number(&r, 8);
    out->begin_ns = (int64_t)bytes_get_number(&r, 8);
    out->end_ns = (int64_t)bytes_get_number(&r, 8);
    out->peer = (uint32_t)bytes_get_number(&r, 4);
    out->group_size = (uint32_t)bytes_get_number(&r, 4);
    out->status = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    out->is_counted = bytes_get_number(&r, 4) == 1;
    return out->number > 0 && out->state >= CALL_RECORD_BEGUN && out->state <= CALL_RECORD_FAILED;
}

size_t call_record_read(const uint8_t *data, size_t len, struct call_record *out, size_t max) {
    struct call_record_header header;
    if (!call_record_read_header(data, len, &header)) {
        return 0;
    }
    uint64_t kept = header.begun_count < header.entry_count ? header.begun_count : header.entry_count;
    uint64_t first = header.begun_count - (kept < max ? kept : max) + 1;
    size_t count = 0;
    for (uint64_t number = first; number <= header.begun_count && number >= first && count < max; number++) {
        size_t place = (size_t)((number - 1) % header.entry_count);
        const uint8_t *entry = data + CALL_RECORD_HEADER_BYTES + place * CALL_RECORD_ENTRY_BYTES;
        if (read_entry(entry, &out[count]) && out[count].number == number) {
            count++;
        }
        if (number == UINT64_MAX) {
            break;
        }
    }
    return count;
}

bool call_record_group_name(const uint8_t *data, size_t len, uint32_t group, char out[CALL_RECORD_NAME_BYTES]) {
    struct call_record_header header;
    out[0] = '\0';
    if (!call_record_read_header(data, len, &header)) {
        return false;
    }
    size_t begin = CALL_RECORD_HEADER_BYTES + (size_t)header.entry_count * CALL_RECORD_ENTRY_BYTES;
    for (size_t i = 0; i < header.group_count && len - begin >= (i + 1) * CALL_RECORD_GROUP_BYTES; i++) {
        struct bytes_reader r = {data + begin + i * CALL_RECORD_GROUP_BYTES, CALL_RECORD_GROUP_BYTES, 0, false};
        bool is_it = bytes_get_number(&r, 4) == group;
        if (bytes_get_number(&r, 4) == CALL_RECORD_NAMED && is_it) {
            (void)str_format(out, CALL_RECORD_NAME_BYTES, "%.*s", CALL_RECORD_NAME_BYTES - 1,
                             (const char *)bytes_get(&r, CALL_RECORD_NAME_BYTES));
        }
    }
    for (char *at = out; *at != '\0'; at++) {
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
    }
    return out[0] != '\0';
}

/* The place of a group that has one, else header->group_count. */
static uint32_t find_place(const uint8_t *data, size_t len, const struct call_record_header *header, uint32_t group) {
    size_t begin = CALL_RECORD_HEADER_BYTES + (size_t)header->entry_count * CALL_RECORD_ENTRY_BYTES;
    for (uint32_t i = 0; i < header->group_count && (len - begin) / CALL_RECORD_GROUP_BYTES > i; i++) {
        struct bytes_reader r = {data + begin + (size_t)i * CALL_RECORD_GROUP_BYTES, CALL_RECORD_GROUP_BYTES, 0, false};
        bool is_it = bytes_get_number(&r, 4) == group;
        uint64_t state = bytes_get_number(&r, 4);
        if (is_it && (state == CALL_RECORD_NAMED || state == CALL_RECORD_AMBIGUOUS)) {
            return i;
        }
    }
    return header->group_count;
}

bool call_record_group_engine(const uint8_t *data, size_t len, uint32_t group, char out[CALL_RECORD_ENGINE_BYTES]) {
    struct call_record_header header;
    out[0] = '\0';
    if (!call_record_read_header(data, len, &header)) {
        return false;
    }
    uint32_t place = find_place(data, len, &header, group);
    uint64_t at = CALL_RECORD_HEADER_BYTES + (uint64_t)header.entry_count * CALL_RECORD_ENTRY_BYTES +
                  (uint64_t)header.group_count * CALL_RECORD_GROUP_BYTES + (uint64_t)place * CALL_RECORD_ENGINE_BYTES;
    if (place < header.group_count && len >= CALL_RECORD_ENGINE_BYTES && at <= len - CALL_RECORD_ENGINE_BYTES) {
        (void)str_format(out, CALL_RECORD_ENGINE_BYTES, "%.*s", CALL_RECORD_ENGINE_BYTES - 1, (const char *)data + at);
        printable_clean(out, strlen(out), false);
    }
    return out[0] != '\0';
}

char *call_record_format(const struct call_record *record, const char *group_name, char *out, size_t max) {
    static const char *const states[] = {"", "begun", "finished", "failed"};
    bool has_data = muster_type_bytes((enum muster_type)record->type) > 0 && record->operation != COMM_BARRIER &&
                    record->operation != COMM_MONITORED_BARRIER;
    bool reduces = record->operation == COMM_ALL_REDUCE || record->operation == COMM_REDUCE ||
                   record->operation == COMM_REDUCE_SCATTER || record->operation == COMM_SCAN ||
                   record->operation == COMM_EXSCAN;
    char data[64] = "", reduction[32] = "", peer[32] = "", place[64 + CALL_RECORD_NAME_BYTES];
    char group[CALL_RECORD_NAME_BYTES + 4];
    assert(max > 0 && record->state < sizeof states / sizeof *states);
    if (record->is_counted) {
        (void)snprintf(data, sizeof data, "_v of %s", muster_type_name((enum muster_type)record->type));
    } else if (has_data) {
        (void)snprintf(data, sizeof data, " of %llu %s", (unsigned long long)record->count,
                       muster_type_name((enum muster_type)record->type));
    }
    if (reduces) {
        (void)snprintf(reduction, sizeof reduction, ", %s",
                       muster_reduction_name((enum muster_reduction)record->reduction));
    }
    if (record->peer != CALL_RECORD_NO_PEER) {
        (void)snprintf(peer, sizeof peer, ", %s %u",
                       record->operation == COMM_SEND      ? "to"
                       : record->operation == COMM_RECEIVE ? "from"
                                                           : "root",
                       record->peer);
    }
    if (group_name[0] != '\0') {
        (void)snprintf(group, sizeof group, "'%s'", group_name);
    } else {
        (void)snprintf(group, sizeof group, "%u", record->group);
    }
    if (record->sequence > 0) {
        (void)snprintf(place, sizeof place, "call %llu of group %s", (unsigned long long)record->sequence, group);
    } else {
        (void)snprintf(place, sizeof place, "group %s", group);
    }
    (void)snprintf(out, max, "%s%s%s%s (%s), %s", call_operation_name(record->operation), data, reduction, peer, place,
                   states[record->state]);
    return out;
}
