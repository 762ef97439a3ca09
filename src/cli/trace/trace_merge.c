/* `muster trace merge`: two passes over the files. The first (trace_survey.c) learns who wrote them; then the clocks
 * are compared, and the second pass writes every event anew, with the rank as its process, a lane number of its own,
 * and the common time. */
#include "cli/trace/trace_merge.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/trace/trace_merge_impl.h"

enum { LANES_MAX = 4096 };

struct lane {
    json_int_t thread; /* as the file says */
    uint32_t number;   /* of the joined trace: no two are equal, since viewers mix up equal threads of two processes */
};

/* ---- numbers of processes ---- */

static int64_t common_ns(const struct merge *merge, const struct source *source, int64_t ns) {
    return ns + merge->offsets[source->clock].offset_ns - merge->begin_ns;
}

static void number_sources(struct merge *merge) {
    int64_t begin_ns = INT64_MAX, highest = -1;
    for (size_t i = 0; i < merge->source_count; i++) {
        struct source *source = &merge->sources[i];
        highest = source->rank > highest ? source->rank : highest;
        if (source->first_ns < INT64_MAX) {
            int64_t at_ns = source->first_ns + merge->offsets[source->clock].offset_ns;
            begin_ns = at_ns < begin_ns ? at_ns : begin_ns;
        }
    }
    merge->begin_ns = begin_ns < INT64_MAX ? begin_ns : 0;
    int64_t spare = highest + 2; /* for further files of a rank: another attempt after a restart */
    for (size_t i = 0; i < merge->source_count; i++) {
        struct source *source = &merge->sources[i];
        bool is_first = source->rank >= 0 && (i == 0 || source[-1].rank != source->rank);
        source->number = (uint32_t)(is_first ? source->rank + 1 : spare++);
    }
}

/* ---- the second pass ---- */

static int write_event(struct merge *merge, const json_t *event) {
    bool failed = fputs(merge->wrote_any ? ",\n" : "\n", merge->out) == EOF ||
                  json_dumpf(event, merge->out, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0;
    merge->wrote_any = true;
    return failed ? status_fail_errno(errno, "the joined trace cannot be written") : MUSTER_OK;
}

static struct lane lanes[LANES_MAX]; /* of the file that is being written; too large for the stack */

static uint32_t lane_number(struct merge *merge, struct source *source, json_int_t thread) {
    size_t i = 0;
    while (i < source->lane_count && lanes[i].thread != thread) {
        i++;
    }
    if (i == source->lane_count && i < LANES_MAX) {
        lanes[source->lane_count++] = (struct lane){.thread = thread, .number = ++merge->lane_total};
    }
    return lanes[i < LANES_MAX ? i : LANES_MAX - 1].number;
}

static int copy_event(struct merge *merge, struct source *source, json_t *event) {
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *id = json_object_get(event, "id");
    if (name != NULL && strcmp(name, "process_name") == 0) {
        return MUSTER_OK; /* ours says more */
    }
    uint32_t lane = lane_number(merge, source, json_integer_value(json_object_get(event, "tid")));
    int failed = json_object_set_new(event, "pid", json_integer(source->number));
    failed |= json_object_set_new(event, "tid", json_integer(lane));
    if (json_object_get(event, "ts") != NULL) {
        int64_t ns = common_ns(merge, source, trace_merge_ns(event));
        failed |= json_object_set_new(event, "ts", json_real((double)ns / 1000));
    }
    if (json_is_string(id)) { /* ids are the file's own */
        failed |= json_object_set_new(event, "id", json_sprintf("%u.%s", source->number, json_string_value(id)));
    }
    return failed ? status_fail(MUSTER_ENOMEM, "out of memory while joining traces") : write_event(merge, event);
}

static int copy_line(struct merge *merge, struct source *source, const char *line, size_t length) {
    json_t *json;
    enum trace_line_kind kind = trace_line_read(line, length, &json);
    int code = kind == TRACE_LINE_EVENT ? copy_event(merge, source, json) : MUSTER_OK;
    source->damaged_count += kind == TRACE_LINE_DAMAGED;
    json_decref(json);
    return code;
}

static int name_process(struct merge *merge, const struct source *source) {
    char label[TRACE_HEADER_TEXT_MAX + 64], rank[32] = "process";
    if (source->rank >= 0) {
        (void)str_format(rank, sizeof rank, "rank %" PRId64, source->rank);
    }
    (void)str_format(label, sizeof label, "%s (%s, process %" PRId64 ")", rank, source->host, source->process);
    json_t *name = json_pack("{s:s,s:s,s:I,s:{s:s}}", "name", "process_name", "ph", "M", "pid",
                             (json_int_t)source->number, "args", "name", label);
    json_t *order = json_pack("{s:s,s:s,s:I,s:{s:I}}", "name", "process_sort_index", "ph", "M", "pid",
                              (json_int_t)source->number, "args", "sort_index", (json_int_t)source->number);
    int code = name == NULL || order == NULL ? status_fail(MUSTER_ENOMEM, "out of memory while joining traces") : 0;
    code = code ? code : write_event(merge, name);
    code = code ? code : write_event(merge, order);
    json_decref(name);
    json_decref(order);
    return code;
}

static int write_all(struct merge *merge) {
    int code = MUSTER_OK;
    (void)fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", merge->out);
    for (size_t i = 0; i < merge->source_count && code == MUSTER_OK; i++) {
        struct source *source = &merge->sources[i];
        code = name_process(merge, source);
        code = code ? code : trace_merge_read_lines(merge, source, copy_line);
        if (code == MUSTER_OK && source->damaged_count > 0) {
            code = trace_merge_note(merge, "%s: %" PRIu64 " damaged line%s left out", source->path,
                                    source->damaged_count, str_plural(source->damaged_count));
        }
        if (code == MUSTER_OK && !source->has_end) {
            code = trace_merge_note(merge, "%s: has no end: the process was killed, or still runs", source->path);
        }
    }
    (void)fprintf(merge->out, "\n],\"otherData\":{\"begin_monotonic_ns\":%" PRId64 "}}\n", merge->begin_ns);
    if (code == MUSTER_OK && fflush(merge->out) != 0) {
        code = status_fail_errno(errno, "the joined trace cannot be written");
    }
    return code;
}

/* Pipes and devices are written to; to be renamed over would be their end. */
static bool is_special(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode);
}

static int write_special(struct merge *merge, const char *path) {
    merge->out = fopen(path, "we");
    if (merge->out == NULL) {
        return status_fail_errno(errno, "%.300s", path);
    }
    int code = write_all(merge);
    if (fclose(merge->out) != 0 && code == MUSTER_OK) {
        code = status_fail_errno(errno, "%.300s", path);
    }
    return code;
}

static int write_file(struct merge *merge, const char *path) {
    if (strcmp(path, "-") == 0) {
        merge->out = stdout;
        return write_all(merge);
    }
    if (is_special(path)) {
        return write_special(merge, path);
    }
    struct file_draft draft;
    int error_number = file_draft_open(&draft, path);
    if (error_number != 0) {
        return status_fail_errno(error_number, "%.300s", path);
    }
    int fd = fcntl(draft.fd, F_DUPFD_CLOEXEC, 0); /* a stream closes its own */
    merge->out = fd >= 0 ? fdopen(fd, "w") : NULL;
    int code = merge->out ? write_all(merge) : status_fail_errno(errno, "%.300s", path);
    if (merge->out && fclose(merge->out) != 0 && code == MUSTER_OK) {
        code = status_fail_errno(errno, "%.300s", path);
    }
    error_number = file_draft_close(&draft, code ? ECANCELED : 0, FILE_TAKES_NAME, false);
    return code == MUSTER_OK && error_number != 0 ? status_fail_errno(error_number, "%.300s", path) : code;
}

int trace_merge(const char *folder, const char *path, struct buf *notes) {
    static struct merge merge; /* large */
    int code = trace_merge_open(&merge, folder, notes);
    if (code == MUSTER_OK) {
        number_sources(&merge);
        code = write_file(&merge, path);
    }
    trace_merge_close(&merge);
    return code;
}
