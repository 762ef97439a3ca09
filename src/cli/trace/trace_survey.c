/* The first pass of `muster trace merge`: who wrote which file, and what tells the clocks apart. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/trace/trace_merge.h"
#include "cli/trace/trace_merge_impl.h"

enum { EVENT_BYTES_ABOUT = 150 };

int trace_merge_note(struct merge *merge, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int code = buf_printf(merge->notes, "%s\n", text);
    return code == MUSTER_ELIMIT ? MUSTER_OK : code; /* people have read enough by then */
}

/* ---- lines of a file ---- */

int trace_merge_read_lines(struct merge *merge, struct source *source, trace_line_taker *take) {
    static char line[TRACE_READ_LINE_MAX];
    FILE *file = fopen(source->path, "re");
    if (file == NULL) {
        return status_fail_errno(errno, "%.300s", source->path);
    }
    int code = MUSTER_OK, c;
    size_t length = 0;
    bool too_long = false;
    source->damaged_count = 0;
    while (code == MUSTER_OK && (c = getc_unlocked(file)) != EOF) {
        if (c != '\n') {
            too_long = too_long || length == sizeof line;
            length += !too_long;
            line[length - 1] = (char)c;
            continue;
        }
        source->damaged_count += too_long;
        code = too_long ? MUSTER_OK : take(merge, source, line, length);
        length = 0;
        too_long = false;
    }
    source->damaged_count += length > 0;
    if (code == MUSTER_OK && ferror(file)) {
        code = status_fail_errno(errno, "%.300s", source->path);
    }
    (void)fclose(file);
    return code;
}

static int64_t to_ns(double us) {
    return (int64_t)(us * 1000 + 0.5);
}

int64_t trace_merge_ns(const json_t *event) {
    return to_ns(json_number_value(json_object_get(event, "ts")));
}

static int64_t number_of(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* ---- the first pass ---- */

static int clock_index(struct merge *merge, const char *text, uint32_t *out) {
    for (*out = 0; *out < merge->clock_count; ++*out) {
        if (strcmp(merge->clocks[*out], text) == 0) {
            return MUSTER_OK;
        }
    }
    if (merge->clock_count == TRACE_CLOCKS_MAX) {
        return status_fail(MUSTER_ELIMIT, "the traces come from more than %u hosts", TRACE_CLOCKS_MAX);
    }
    (void)str_copy(merge->clocks[merge->clock_count++], TRACE_HEADER_TEXT_MAX, text);
    return MUSTER_OK;
}

static int take_header(struct merge *merge, struct source *source, const json_t *args) {
    if (number_of(args, "version") != 1) {
        return trace_merge_note(merge, "%s: version %" PRId64 " of the format is not known here", source->path,
                                number_of(args, "version"));
    }
    source->rank = number_of(args, "rank");
    source->process = number_of(args, "process");
    (void)str_copy(source->host, sizeof source->host, json_string_value(json_object_get(args, "host")));
    int64_t wall_us = number_of(args, "realtime_us");
    source->wall_minus_monotonic_ns = wall_us * 1000 - number_of(args, "monotonic_ns");
    source->has_header = true;
    return clock_index(merge, json_string_value(json_object_get(args, "clock")), &source->clock);
}

static void sample_part(struct merge *merge, const struct source *source, const json_t *event) {
    uint64_t call = trace_event_call(event);
    if (call == 0 || (call & merge->sample_mask) != 0 || merge->part_count == TRACE_PARTS_MAX) {
        return;
    }
    double begin_us = json_number_value(json_object_get(event, "ts"));
    double end_us = begin_us + json_number_value(json_object_get(event, "dur"));
    merge->parts[merge->part_count++] = (struct trace_part){.call = call,
                                                            .clock = source->clock,
                                                            .rank = (uint32_t)source->rank,
                                                            .begin_ns = to_ns(begin_us),
                                                            .end_ns = to_ns(end_us)};
}

static int survey_line(struct merge *merge, struct source *source, const char *line, size_t length) {
    json_t *json;
    int code = MUSTER_OK;
    switch (trace_line_read(line, length, &json)) {
    case TRACE_LINE_HEADER:
        code = take_header(merge, source, json);
        break;
    case TRACE_LINE_EVENT:
        source->event_count++;
        if (json_object_get(json, "ts") != NULL) {
            int64_t at_ns = trace_merge_ns(json);
            source->first_ns = at_ns < source->first_ns ? at_ns : source->first_ns;
        }
        if (source->has_header) {
            sample_part(merge, source, json);
        }
        break;
    case TRACE_LINE_END:
        source->has_end = true;
        break;
    case TRACE_LINE_DAMAGED:
        source->damaged_count++;
        break;
    case TRACE_LINE_NOTHING:
        break;
    }
    json_decref(json);
    return code;
}

static int compare_sources(const void *left, const void *right) {
    const struct source *a = left, *b = right;
    if (a->rank != b->rank) {
        return (uint64_t)a->rank < (uint64_t)b->rank ? -1 : 1; /* -1, unknown, is last */
    }
    if (a->first_ns != b->first_ns) {
        return a->first_ns < b->first_ns ? -1 : 1;
    }
    return strcmp(a->path, b->path);
}

static int add_source(struct merge *merge, const char *folder, const char *name) {
    size_t count = merge->source_count;
    if (count == TRACE_FILES_MAX) {
        return status_fail(MUSTER_ELIMIT, "%.300s holds more than %d files", folder, TRACE_FILES_MAX);
    }
    if ((count & (count - 1)) == 0) { /* room doubles */
        struct source *grown = realloc(merge->sources, (count == 0 ? 1 : 2 * count) * sizeof *grown);
        if (grown == NULL) {
            return status_fail(MUSTER_ENOMEM, "out of memory while listing %.300s", folder);
        }
        merge->sources = grown;
    }
    char *path = str_format_new("%s/%s", folder, name);
    if (path == NULL) {
        return status_fail(MUSTER_ENOMEM, "out of memory while listing %.300s", folder);
    }
    merge->sources[merge->source_count++] = (struct source){.path = path, .rank = -1, .first_ns = INT64_MAX};
    return MUSTER_OK;
}

static int list_folder(struct merge *merge, const char *folder) {
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        return status_fail_errno(errno, "%.300s", folder);
    }
    int code = MUSTER_OK;
    for (struct dirent *entry; code == MUSTER_OK && (entry = readdir(entries)) != NULL;) {
        size_t n = strlen(entry->d_name);
        if (n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0) {
            code = add_source(merge, folder, entry->d_name);
        }
    }
    (void)closedir(entries);
    return code;
}

/* So many calls are compared that their parts fit, from all of the job and not from its beginning alone. */
static void choose_sample(struct merge *merge) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < merge->source_count; i++) {
        struct stat about;
        bytes += stat(merge->sources[i].path, &about) == 0 ? (uint64_t)about.st_size : 0;
    }
    while (bytes / EVENT_BYTES_ABOUT / (merge->sample_mask + 1) > TRACE_PARTS_MAX) {
        merge->sample_mask = 2 * merge->sample_mask + 1;
    }
}

/* The first rank's clock becomes clock 0, to which the others are moved. */
static void put_first_clock_first(struct merge *merge) {
    uint32_t first = merge->sources[0].clock;
    for (size_t i = 0; i < merge->source_count; i++) {
        uint32_t *clock = &merge->sources[i].clock;
        *clock = *clock == first ? 0 : *clock == 0 ? first : *clock;
    }
    for (size_t i = 0; i < merge->part_count; i++) {
        uint32_t *clock = &merge->parts[i].clock;
        *clock = *clock == first ? 0 : *clock == 0 ? first : *clock;
    }
}

int trace_merge_survey(struct merge *merge, const char *folder) {
    int code = list_folder(merge, folder);
    choose_sample(merge);
    for (size_t i = 0; i < merge->source_count && code == MUSTER_OK; i++) {
        code = trace_merge_read_lines(merge, &merge->sources[i], survey_line);
    }
    size_t kept = 0;
    for (size_t i = 0; i < merge->source_count && code == MUSTER_OK; i++) {
        struct source source = merge->sources[i];
        if (source.has_header) {
            merge->sources[i] = merge->sources[kept];
            merge->sources[kept++] = source;
        } else {
            code = trace_merge_note(merge, "%s: left out: not a trace of a process", source.path);
        }
    }
    if (code == MUSTER_OK && kept == 0) {
        return status_fail(MUSTER_ENOENT, "%.300s holds no trace (MUSTER_TRACE=%.300s makes processes write them)",
                           folder, folder);
    }
    for (size_t i = kept; i < merge->source_count && code == MUSTER_OK; i++) {
        free(merge->sources[i].path);
    }
    merge->source_count = code == MUSTER_OK ? kept : merge->source_count;
    if (code == MUSTER_OK) {
        qsort(merge->sources, kept, sizeof *merge->sources, compare_sources);
        put_first_clock_first(merge);
    }
    return code;
}
