/* The list of a host's processes, and the alarm that one has ended; see roster.h. */
#include "comm/context/roster.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"

enum { LINE_BYTES = 64, DISTANCE_FACTOR = 8, DRAIN_BYTES = 4096 };

/* Beside the status: somebody has seen it. */
#define END_SEEN (UINT64_C(1) << 32)

size_t roster_bytes(uint32_t count) {
    size_t bytes = sizeof(struct roster) + count * sizeof(struct roster_process);
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

void roster_fill(struct roster *roster, const struct bootstrap_local *locals, uint32_t count) {
    roster->alarm = -1;
    for (uint32_t i = 0; i < count; i++) {
        roster->processes[i].pid = locals[i].pid;
        roster->processes[i].start_time = locals[i].start_time;
    }
}

int roster_read(const struct roster *roster, struct bootstrap *bootstrap) {
    if (roster->processes[bootstrap->local].pid != (int32_t)getpid()) {
        return status_fail(MUSTER_EPROTOCOL, "the list of this host's ranks has process %d in this one's place",
                           (int)roster->processes[bootstrap->local].pid);
    }
    for (uint32_t i = 0; i < bootstrap->local_count; i++) {
        bootstrap->locals[i].pid = roster->processes[i].pid;
        bootstrap->locals[i].start_time = roster->processes[i].start_time;
    }
    return 0;
}

/* Distances of powers of 8: whatever stretch of neighbouring ranks dies or is stopped at once, somebody outside it
 * watches each of them, unless it is most of the host. */
uint32_t roster_watched(uint32_t local, uint32_t count, uint32_t out[ROSTER_SMALL]) {
    uint32_t used = 0;
    for (uint32_t distance = 1; distance < count;
         distance = count <= ROSTER_SMALL ? distance + 1 : distance * DISTANCE_FACTOR) {
        out[used++] = (local + distance) % count;
    }
    return used;
}

void roster_note_end(struct roster *roster, uint32_t local, int wait_status) {
    atomic_store_explicit(&roster->processes[local].end, END_SEEN | (uint32_t)wait_status, memory_order_release);
}

bool roster_has_ended(const struct roster *roster, uint32_t local, int *out_wait_status) {
    uint64_t end = atomic_load_explicit(&roster->processes[local].end, memory_order_acquire);
    *out_wait_status = (int)(uint32_t)end;
    return end != 0;
}

/* ---- the alarm ---- */

/* A pipe's one end by the other: who has it open for both reads and writes never sees it end. */
static int open_again(int32_t pid, int32_t fd, int *out) {
    char path[64];
    (void)str_format(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)fd);
    *out = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return *out >= 0 ? 0 : status_fail_errno(errno, "open the alarm of this host's ranks at %s", path);
}

int roster_alarm_create(struct roster *roster, struct roster_alarm *out) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) {
        return status_fail_errno(errno, "make the alarm of this host's ranks");
    }
    int code = open_again((int32_t)getpid(), ends[0], &out->fd);
    (void)close(ends[1]);
    if (code) {
        (void)close(ends[0]);
        return code;
    }
    out->name = roster->alarm = ends[0];
    return 0;
}

int roster_alarm_open(const struct roster *roster, int32_t first, struct roster_alarm *out) {
    return open_again(first, roster->alarm, &out->fd);
}

void roster_alarm_raise(const struct roster_alarm *alarm) {
    const uint8_t byte = 1;
    uint8_t drained[DRAIN_BYTES];
    while (alarm->fd >= 0 && write(alarm->fd, &byte, sizeof byte) < 0 && (errno == EAGAIN || errno == EINTR)) {
        (void)!read(alarm->fd, drained, sizeof drained); /* full of alarms that all have heard */
    }
}

void roster_alarm_seal(struct roster_alarm *alarm) {
    if (alarm->name >= 0) {
        (void)close(alarm->name);
        alarm->name = -1;
    }
}

void roster_alarm_close(struct roster_alarm *alarm) {
    roster_alarm_seal(alarm);
    if (alarm->fd >= 0) {
        (void)close(alarm->fd);
        alarm->fd = -1;
    }
}
