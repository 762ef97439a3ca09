/* Fuzzes the reader of trace lines: whatever it accepts has the fields that joining relies on. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "cli/trace/trace_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *json = NULL;
    enum trace_line_kind kind = trace_line_read((const char *)data, size, &json);
    assert((json != NULL) == (kind == TRACE_LINE_EVENT || kind == TRACE_LINE_HEADER));
    if (kind == TRACE_LINE_EVENT) {
        const char *phase = json_string_value(json_object_get(json, "ph"));
        const json_t *time = json_object_get(json, "ts");
        assert(phase != NULL && strlen(phase) == 1);
        assert(phase[0] == 'M' || (json_number_value(time) >= 0 && json_number_value(time) <= TRACE_TIME_MAX_US));
        (void)trace_event_call(json);
    } else if (kind == TRACE_LINE_HEADER) {
        assert(json_integer_value(json_object_get(json, "rank")) >= -1);
        assert(strlen(json_string_value(json_object_get(json, "clock"))) < TRACE_HEADER_TEXT_MAX);
    }
    json_decref(json);
    return 0;
}
