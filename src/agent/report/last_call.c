/* Reading a worker's record of calls; see last_call.h. */
#include "agent/report/last_call.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/call_record.h"
#include "base/clock.h"
#include "base/str.h"

#include <muster/status.h>

/* Bytes read; 0 when there is no such file. Never waits for a writer, should somebody have put a FIFO there. */
static size_t read_record(const char *error_file, uint8_t data[CALL_RECORD_FILE_BYTES]) {
    char path[PATH_MAX];
    if (!str_format(path, sizeof path, "%s" CALL_RECORD_SUFFIX, error_file)) {
        return 0;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t bytes = fd >= 0 ? pread(fd, data, CALL_RECORD_FILE_BYTES, 0) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    return bytes > 0 ? (size_t)bytes : 0;
}

/* " at 14:03:07.123", or nothing if the file's clocks make no sense. */
static void format_time(const struct call_record_header *header, int64_t monotonic_ns, char *out, size_t max) {
    int64_t since_us;
    out[0] = '\0';
    if (header->realtime_us <= 0 || __builtin_sub_overflow(monotonic_ns, header->monotonic_ns, &since_us)) {
        return;
    }
    since_us /= CLOCK_NS_PER_S / CLOCK_US_PER_S;
    int64_t wall_us;
    if (__builtin_add_overflow(header->realtime_us, since_us, &wall_us) || wall_us < 0) {
        return;
    }
    time_t seconds = (time_t)(wall_us / CLOCK_US_PER_S);
    struct tm parts;
    if (localtime_r(&seconds, &parts)) {
        (void)snprintf(out, max, " at %02d:%02d:%02d.%03d", parts.tm_hour, parts.tm_min, parts.tm_sec,
                       (int)(wall_us % CLOCK_US_PER_S / 1000));
    }
}

/* The call that had been begun and not finished, the oldest of them; else the last one. */
static const struct call_record *one_to_tell(const struct call_record *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (calls[i].state == CALL_RECORD_BEGUN) {
            return &calls[i];
        }
    }
    return &calls[count - 1];
}

static bool was_bereft(const struct call_record *calls, size_t count) {
    const struct call_record *last = NULL;
    for (size_t i = 0; i < count; i++) {
        bool has_ended = calls[i].state != CALL_RECORD_BEGUN;
        last = has_ended && (!last || calls[i].end_ns >= last->end_ns) ? &calls[i] : last;
    }
    return last && last->state == CALL_RECORD_FAILED && (last->status == MUSTER_EPEER || last->status == MUSTER_EGROUP);
}

void last_call_read(const char *error_file, struct last_call *out) {
    uint8_t data[CALL_RECORD_FILE_BYTES];
    struct call_record calls[CALL_RECORD_ENTRIES];
    struct call_record_header header;
    size_t bytes = error_file[0] != '\0' ? read_record(error_file, data) : 0;
    size_t count = call_record_read(data, bytes, calls, CALL_RECORD_ENTRIES);
    *out = (struct last_call){.was_bereft = was_bereft(calls, count)};
    if (count == 0 || !call_record_read_header(data, bytes, &header)) {
        return;
    }
    const struct call_record *told = one_to_tell(calls, count);
    char time[32], call[LAST_CALL_SIZE], group[CALL_RECORD_NAME_BYTES];
    (void)call_record_group_name(data, bytes, told->group, group);
    format_time(&header, told->state == CALL_RECORD_BEGUN ? told->begin_ns : told->end_ns, time, sizeof time);
    (void)snprintf(out->text, sizeof out->text, "%s%s",
                   call_record_format(told, group, call, sizeof call - sizeof time), time);
}

void last_call_engine(const char *error_file, char out[CALL_RECORD_ENGINE_BYTES]) {
    uint8_t data[CALL_RECORD_FILE_BYTES];
    size_t bytes = error_file[0] != '\0' ? read_record(error_file, data) : 0;
    (void)call_record_group_engine(data, bytes, CALL_RECORD_ROOT_GROUP, out);
}
