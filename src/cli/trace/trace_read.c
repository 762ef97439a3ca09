/* One line of a trace file; see trace_read.h. */
#include "cli/trace/trace_read.h"

#include <stdbool.h>
#include <string.h>

#include "base/fnv.h"

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static bool is_time(const json_t *value) {
    double number = json_number_value(value);
    return json_is_number(value) && number >= 0 && number <= TRACE_TIME_MAX_US;
}

static bool is_event(const json_t *object) {
    const json_t *duration = json_object_get(object, "dur");
    return strlen(text_of(object, "ph")) == 1 && json_is_integer(json_object_get(object, "pid")) &&
           json_is_integer(json_object_get(object, "tid")) &&
           (text_of(object, "ph")[0] == 'M' || is_time(json_object_get(object, "ts"))) &&
           (duration == NULL || is_time(duration));
}

static bool is_header(const json_t *args) {
    static const char *const numbers[] = {"version", "rank", "world_size", "process", "monotonic_ns", "realtime_us"};
    static const char *const texts[] = {"host", "clock"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *number = json_object_get(args, numbers[i]);
        if (!json_is_integer(number) || json_integer_value(number) < -1) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t length = strlen(text_of(args, texts[i]));
        if (length == 0 || length >= TRACE_HEADER_TEXT_MAX) {
            return false;
        }
    }
    return json_integer_value(json_object_get(args, "rank")) < UINT32_MAX / 2 &&
           json_integer_value(json_object_get(args, "monotonic_ns")) <=
               (json_int_t)1000 * (json_int_t)TRACE_TIME_MAX_US &&
           json_integer_value(json_object_get(args, "realtime_us")) <= 4 * (json_int_t)TRACE_TIME_MAX_US &&
           json_integer_value(json_object_get(args, "process")) >= 0;
}

enum trace_line_kind trace_line_read(const char *line, size_t length, json_t **out) {
    *out = NULL;
    while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == ',' || line[length - 1] == ' ')) {
        length--;
    }
    if (length == 0 || (length == 1 && (line[0] == '[' || line[0] == ']'))) {
        return TRACE_LINE_NOTHING;
    }
    json_t *event = json_loadb(line, length, 0, NULL);
    if (!json_is_object(event) || !is_event(event)) {
        json_decref(event);
        return TRACE_LINE_DAMAGED;
    }
    bool is_end = strcmp(text_of(event, "name"), "muster_trace_end") == 0;
    if (is_end || strcmp(text_of(event, "name"), "muster_trace") == 0) {
        json_t *args = json_object_get(event, "args");
        bool is_fine = is_end || is_header(args);
        *out = is_end || !is_fine ? NULL : json_incref(args);
        json_decref(event);
        return is_end ? TRACE_LINE_END : is_fine ? TRACE_LINE_HEADER : TRACE_LINE_DAMAGED;
    }
    *out = event;
    return TRACE_LINE_EVENT;
}

uint64_t trace_event_call(const json_t *event) {
    const json_t *args = json_object_get(event, "args"), *sequence = json_object_get(args, "sequence");
    const char *group = text_of(args, "group");
    if (!json_is_true(json_object_get(args, "synchronizing")) || !json_is_integer(sequence) || group[0] == '\0' ||
        json_object_get(event, "dur") == NULL || json_object_get(args, "failed") != NULL) {
        return 0; /* a call that failed may end before all have begun it */
    }
    uint64_t hash = fnv_bytes(FNV_BEGIN, group, strlen(group));
    hash ^= (uint64_t)json_integer_value(sequence) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ (hash >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
    return hash != 0 ? hash : 1;
}
