/* The recorder: this process's last calls on all its groups, in memory that outlives it where a launcher wants to know
 * (beside TORCHELASTIC_ERROR_FILE), and in its own memory otherwise. Always on: a call costs two times a cache line.
 *
 * One a process, shared by its contexts. Threads: any. The format is docs/formats/recorder.md. */
#ifndef COMM_RECORDER_H
#define COMM_RECORDER_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/call_record.h"
#include "comm/engine/call.h"

/* The entry of base/call_record.h in memory; little-endian machines only, as all of Muster's targets are. */
struct recorder_entry {
    _Atomic uint64_t number; /* last written: 0 while the entry changes */
    _Atomic uint64_t sequence;
    _Atomic uint32_t group;
    _Atomic uint8_t operation, type, reduction, state;
    _Atomic uint64_t count;
    _Atomic int64_t begin_ns, end_ns;
    _Atomic uint32_t peer, group_size;
    _Atomic int32_t status;
    _Atomic uint32_t is_counted; /* counts differ per rank */
};

/* A group's name; the state is last written. */
struct recorder_group {
    uint32_t id;
    _Atomic uint32_t state; /* enum call_record_named */
    char name[CALL_RECORD_NAME_BYTES];
};

struct recorder {
    uint8_t magic[8];
    uint32_t version, entry_count, entry_bytes, header_bytes;
    int32_t pid;
    uint32_t rank, world_size, group_count;
    int64_t realtime_us, monotonic_ns;
    _Atomic uint64_t begun_count;
    char host[CALL_RECORD_HOST_BYTES];
    struct recorder_entry entries[CALL_RECORD_ENTRIES];
    struct recorder_group groups[CALL_RECORD_GROUPS];
    char engines[CALL_RECORD_GROUPS][CALL_RECORD_ENGINE_BYTES]; /* of the group in the same place */
};

/* Which call, beside what struct comm_call says. */
struct recorder_place {
    uint32_t group, group_size;
    uint64_t sequence;
    uint32_t peer;
};

/* The process's recorder, made by the first caller; each recorder_release() takes back one call. Never fails: without
 * memory calls are recorded where nobody looks. */
struct recorder *recorder_acquire(uint32_t rank, uint32_t world_size);
void recorder_release(struct recorder *recorder);

/* For readers of the file: how the group of that id is called, and what carries out its calls: "mpi (as asked for)";
 * cut to CALL_RECORD_ENGINE_BYTES. The newest are kept; of an id that two groups of different names have had (root
 * groups are all 0), the name is not known any more, and the engine is the newest one's. */
void recorder_name_group(struct recorder *recorder, uint32_t id, const char *name, const char *engine);

/* Returns the number for recorder_end(). */
static inline uint64_t recorder_begin(struct recorder *recorder, const struct comm_call *call,
                                      const struct recorder_place *place, int64_t begin_ns) {
    uint64_t number = atomic_fetch_add_explicit(&recorder->begun_count, 1, memory_order_relaxed) + 1;
    struct recorder_entry *entry = &recorder->entries[(number - 1) % CALL_RECORD_ENTRIES];
    atomic_store_explicit(&entry->number, 0, memory_order_relaxed);
    /* The compiler must not move what follows before the 0. The processor may: the file is read when its writer is
     * dead, and all that it has stored is there. */
    atomic_signal_fence(memory_order_release);
    atomic_store_explicit(&entry->sequence, place->sequence, memory_order_relaxed);
    atomic_store_explicit(&entry->group, place->group, memory_order_relaxed);
    atomic_store_explicit(&entry->operation, (uint8_t)call->operation, memory_order_relaxed);
    atomic_store_explicit(&entry->type, (uint8_t)call->type, memory_order_relaxed);
    atomic_store_explicit(&entry->reduction, (uint8_t)call->reduction, memory_order_relaxed);
    atomic_store_explicit(&entry->state, CALL_RECORD_BEGUN, memory_order_relaxed);
    atomic_store_explicit(&entry->count, call->count, memory_order_relaxed);
    atomic_store_explicit(&entry->begin_ns, begin_ns, memory_order_relaxed);
    atomic_store_explicit(&entry->end_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->peer, place->peer, memory_order_relaxed);
    atomic_store_explicit(&entry->group_size, place->group_size, memory_order_relaxed);
    atomic_store_explicit(&entry->status, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->is_counted, comm_call_is_counted(call), memory_order_relaxed);
    atomic_store_explicit(&entry->number, number, memory_order_release);
    return number;
}

/* Nothing happens if the entry has another call by now. */
static inline void recorder_end(struct recorder *recorder, uint64_t number, int64_t end_ns, int status) {
    struct recorder_entry *entry = &recorder->entries[(number - 1) % CALL_RECORD_ENTRIES];
    if (atomic_load_explicit(&entry->number, memory_order_relaxed) == number) {
        atomic_store_explicit(&entry->end_ns, end_ns, memory_order_relaxed);
        atomic_store_explicit(&entry->status, status, memory_order_relaxed);
        atomic_store_explicit(&entry->state, status ? CALL_RECORD_FAILED : CALL_RECORD_FINISHED, memory_order_release);
    }
}

#endif
