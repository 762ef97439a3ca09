/* muster_alloc(): memory that neighbours on the host can map, and the views of theirs.
 *
 * A process lists its allocations in a directory in the context's segment; neighbours map one when they first meet a
 * buffer in it, and keep the view until they notice that its entry has changed.
 *
 * Threads: all calls but memory_free() may be made from any thread. */
#ifndef COMM_MEMORY_H
#define COMM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

struct memory;

/* A place in an allocation of some process: what is passed to neighbours instead of an address. */
struct memory_place {
    uint32_t id; /* entry of the owner's directory */
    uint32_t generation;
    uint64_t offset;
};

/* Bytes of the directories of `member_count` processes, to be reserved in the shared segment. */
size_t memory_directory_bytes(uint32_t member_count);

/* `directory`: that part of the segment (zeroed, 64-byte aligned), borrowed; NULL: this process has no neighbours,
 * allocations are private. member: this process's number on the host; pids: one per member, copied. */
int memory_create(void *directory, uint32_t member, const int32_t *pids, uint32_t member_count, struct memory **out);
/* Gives back views and allocations that are left. NULL is accepted. */
void memory_free(struct memory *memory);

/* Zeroed, aligned to 64 bytes. The kernel reserves the pages first, which takes a while for many; meanwhile other
 * threads' calls go on. MUSTER_ENOMEM, MUSTER_ELIMIT (MUSTER_ALLOCATIONS_MAX live), MUSTER_ESYSTEM. */
int memory_allocate(struct memory *memory, size_t bytes, void **out);
/* `address` came from memory_allocate() and has not been released; NULL is accepted. */
void memory_release(struct memory *memory, void *address);

/* Does [address, address + bytes) lie in one of this process's shared allocations? Fast: it is asked in every call. */
bool memory_find(struct memory *memory, const void *address, size_t bytes, struct memory_place *out);

/* In between, what memory_view() has given stays mapped, also if its owner gives it back (whose call has failed) and
 * another thread notices. Not for long: meanwhile nothing is unmapped. */
void memory_hold(struct memory *memory);
void memory_let_go(struct memory *memory);

/* Where this process sees that place of `member`, `bytes` long. When the kernel has to map it first, other threads'
 * calls go on meanwhile. MUSTER_EPROTOCOL for a place that is out of bounds or gone; errors of segment_open(). */
int memory_view(struct memory *memory, uint32_t member, const struct memory_place *place, size_t bytes, void **out);
/* Copies out of it, for places that their owner may take back at any time: what is gone is an error as above. Other
 * threads' calls wait meanwhile, so a little at a time. past_caches: `to` is larger than the caches. */
int memory_copy(struct memory *memory, uint32_t member, const struct memory_place *place, void *to, size_t bytes,
                bool past_caches);

#endif
