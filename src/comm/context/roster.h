/* The processes of one host, as a list in the memory that they share: who they are, and who of them has ended.
 *
 * On a host of few ranks everybody watches everybody, by pidfd. A thousand ranks would need a million of those, and as
 * many wake-ups for each death. There a process watches a few others (roster_watched()), and the next one that is
 * still there; whoever sees an end notes it here, and raises the alarm that wakes all.
 *
 * The alarm is a pipe, made by the first process of the host and opened by the others through its /proc/<pid>/fd, as
 * the memory itself is. A byte is written for each end that somebody sees, and nobody takes it out: what is awaited is
 * that one has been written (EPOLLET). Whoever finds the pipe full empties it first. */
#ifndef COMM_ROSTER_H
#define COMM_ROSTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/context/bootstrap.h"

/* A host of so many watches by everybody. */
enum { ROSTER_SMALL = 32 };

struct roster_process {
    int32_t pid;
    uint64_t start_time;
    _Atomic uint64_t end; /* 0: nobody has seen it end; see roster_note_end() */
};

/* In the shared segment, zeroed before. */
struct roster {
    _Alignas(64) int32_t alarm; /* the descriptor in the first process; written before the others open the memory */
    _Alignas(64) struct roster_process processes[];
};

/* A multiple of 64. */
size_t roster_bytes(uint32_t count);

/* The first process, with what it has fetched. */
void roster_fill(struct roster *roster, const struct bootstrap_local *locals, uint32_t count);
/* The others. MUSTER_EPROTOCOL: this process is none of them. */
int roster_read(const struct roster *roster, struct bootstrap *bootstrap);

/* Which processes of `count` number `local` watches: rising distances from it, the next one first. All, on a small
 * host: then out may hold ROSTER_SMALL. Pure. Returns how many. */
uint32_t roster_watched(uint32_t local, uint32_t count, uint32_t out[ROSTER_SMALL]);

/* An end that this process has seen; wait_status: as waitpid() gives it, -1: not known. */
void roster_note_end(struct roster *roster, uint32_t local, int wait_status);
/* Has somebody seen it end? */
bool roster_has_ended(const struct roster *roster, uint32_t local, int *out_wait_status);

/* ---- the alarm ---- */

/* This process's descriptors of it; -1: none. */
struct roster_alarm {
    int fd;   /* to be watched, edge-triggered, and to be written to */
    int name; /* of the first process: by which others open it, until all have */
};

static inline struct roster_alarm roster_no_alarm(void) {
    return (struct roster_alarm){-1, -1};
}

/* The first process of a host that is not small. MUSTER_ESYSTEM. */
int roster_alarm_create(struct roster *roster, struct roster_alarm *out);
/* The others. first: the process that made it. MUSTER_ESYSTEM. */
int roster_alarm_open(const struct roster *roster, int32_t first, struct roster_alarm *out);
void roster_alarm_raise(const struct roster_alarm *alarm);
/* All have opened it. */
void roster_alarm_seal(struct roster_alarm *alarm);
void roster_alarm_close(struct roster_alarm *alarm);

#endif
