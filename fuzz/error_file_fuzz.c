/* Fuzzes the reader of workers' error files and what is made of their text: whatever is accepted must read the same
 * again from its own JSON, and must fit into a report and an event. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "agent/report/error_file.h"
#include "agent/report/events.h"
#include "agent/report/report.h"
#include "base/utf8.h"

#include <muster/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void assert_printable(const struct buf *text) {
    const uint8_t *bytes = buf_bytes(text);
    for (size_t at = 0; at < text->len;) {
        size_t length = utf8_length(bytes + at, text->len - at);
        assert(length > 0);
        assert(bytes[at] >= 0x20 || bytes[at] == '\n' || bytes[at] == '\t');
        at += length;
    }
}

/* The input as a message, and its raw bytes as the end of a worker's stderr. */
static void report(const struct error_record *record, const uint8_t *data, size_t size) {
    struct report_entry entry = {.wait_status = 1 << 8,
                                 .error_file = "error.json",
                                 .message = record->message,
                                 .message_is_traceback = record->is_traceback,
                                 .time_s = record->time_s,
                                 .stderr_tail = (const char *)data,
                                 .stderr_tail_bytes = size};
    struct report whole = {.name = "x", .host = "h", .entries = &entry, .count = 1};
    struct buf text;
    buf_init(&text, (size_t)64 << 20);
    assert(report_format(&whole, &text) == MUSTER_OK);
    assert_printable(&text);
    buf_done(&text);
}

static void tell(const struct error_record *record) {
    struct event event = {.source = EVENT_SOURCE_WORKER, .state = "FAILED", .raw_error = record->json};
    struct buf line;
    buf_init(&line, (size_t)64 << 20);
    assert(event_format(&event, &line) == MUSTER_OK);
    assert(memchr(buf_bytes(&line), '\n', line.len) == buf_bytes(&line) + line.len - 1);
    buf_done(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error_record record = {0}, again = {0};
    int code = error_record_parse(data, size, &record);
    if (code != MUSTER_OK) {
        assert(code == MUSTER_ECORRUPT || code == MUSTER_ELIMIT);
        assert(record.message == NULL && muster_detail()[0] != '\0');
        return 0;
    }
    assert(record.time_s >= 0);
    code = error_record_parse(record.json, strlen(record.json), &again);
    if (code == MUSTER_OK) { /* escapes may make it larger than what is read */
        assert(strcmp(record.message, again.message) == 0 && record.is_traceback == again.is_traceback);
        assert(strcmp(record.json, again.json) == 0 && record.time_s == again.time_s);
    } else {
        assert(code == MUSTER_ELIMIT);
    }
    report(&record, data, size);
    tell(&record);
    error_record_done(&record);
    error_record_done(&again);
    return 0;
}
