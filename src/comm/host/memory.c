/* Shared allocations and views of the neighbours'; see memory.h. */
#include "comm/host/memory.h"
#include <muster/memory.h>

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/host/segment.h"
#include "comm/reduce/copy.h"

/* One allocation in its owner's directory. `generation` rises by one when the entry is filled and by one when it is
 * emptied, so that it is odd while there is an allocation; it is stored last (release), and whoever read the entry
 * looks at it before and after. The locks stand between: the owner's between emptying and filling, the reader's between
 * the entry and the second look. Without them, that look would come too early on some processors. */
struct entry {
    _Atomic uint32_t generation;
    _Atomic int32_t fd;
    _Atomic uint64_t bytes;
    _Atomic uint64_t cookie;
};

struct allocation {
    struct segment segment;
    char *address; /* NULL: none */
    size_t bytes;
};

struct view {
    struct segment segment;
    uint32_t generation;
};

/* What was a view while somebody is at work in views. */
struct retired {
    struct retired *next;
    struct segment segment;
};

struct memory {
    pthread_mutex_t lock; /* of everything below */
    struct entry *directory;
    uint32_t member, member_count;
    int32_t *pids;
    struct allocation allocations[MUSTER_ALLOCATIONS_MAX];
    uint32_t end;        /* one after the last that is used: where a search may stop */
    struct view **views; /* per member, MUSTER_ALLOCATIONS_MAX of them, made when first needed */
    uint32_t hold_count; /* memory_hold() */
    struct retired *retired;
};

static struct entry *entry_of(const struct memory *memory, uint32_t member, uint32_t id) {
    return &memory->directory[(size_t)member * MUSTER_ALLOCATIONS_MAX + id];
}

size_t memory_directory_bytes(uint32_t member_count) {
    return (size_t)member_count * MUSTER_ALLOCATIONS_MAX * sizeof(struct entry);
}

int memory_create(void *directory, uint32_t member, const int32_t *pids, uint32_t member_count, struct memory **out) {
    struct memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        return status_fail(MUSTER_ENOMEM, "shared allocations");
    }
    memory->directory = directory;
    memory->member = member;
    memory->member_count = member_count;
    memory->views = calloc((size_t)member_count + 1, sizeof(struct view *));
    memory->pids = calloc((size_t)member_count + 1, sizeof *memory->pids);
    if (!memory->views || !memory->pids || pthread_mutex_init(&memory->lock, NULL) != 0) {
        free(memory->views);
        free(memory->pids);
        free(memory);
        return status_fail(MUSTER_ENOMEM, "shared allocations");
    }
    if (member_count > 0) {
        memcpy(memory->pids, pids, member_count * sizeof *pids);
    }
    *out = memory;
    return 0;
}

/* false: no memory to keep it for those who are at work in it, so it stays a view. */
static bool close_view(struct memory *memory, struct view *view) {
    if (!view->segment.memory) {
        return true;
    }
    if (memory->hold_count == 0) {
        segment_close(&view->segment);
    } else {
        struct retired *retired = malloc(sizeof *retired);
        if (!retired) {
            return false;
        }
        *retired = (struct retired){.next = memory->retired, .segment = view->segment};
        memory->retired = retired;
    }
    *view = (struct view){0};
    return true;
}

void memory_hold(struct memory *memory) {
    (void)pthread_mutex_lock(&memory->lock);
    memory->hold_count++;
    (void)pthread_mutex_unlock(&memory->lock);
}

void memory_let_go(struct memory *memory) {
    (void)pthread_mutex_lock(&memory->lock);
    memory->hold_count--;
    while (memory->hold_count == 0 && memory->retired) {
        struct retired *retired = memory->retired;
        memory->retired = retired->next;
        segment_close(&retired->segment);
        free(retired);
    }
    (void)pthread_mutex_unlock(&memory->lock);
}

/* Out of the directory, so that nobody maps it any more; then it can be given back. */
static struct allocation take_out(struct memory *memory, uint32_t id) {
    struct allocation allocation = memory->allocations[id];
    if (memory->directory) {
        atomic_fetch_add_explicit(&entry_of(memory, memory->member, id)->generation, 1, memory_order_release);
    }
    memory->allocations[id] = (struct allocation){0};
    return allocation;
}

static void give_back(struct allocation *allocation) {
    if (!allocation->segment.memory) {
        free(allocation->address);
    } else {
        segment_close(&allocation->segment);
    }
}

void memory_free(struct memory *memory) {
    if (!memory) {
        return;
    }
    assert(memory->hold_count == 0);
    for (uint32_t id = 0; id < memory->end; id++) {
        if (memory->allocations[id].address) {
            struct allocation allocation = take_out(memory, id);
            give_back(&allocation);
        }
    }
    for (uint32_t member = 0; member < memory->member_count; member++) {
        for (uint32_t id = 0; memory->views[member] && id < MUSTER_ALLOCATIONS_MAX; id++) {
            (void)close_view(memory, &memory->views[member][id]);
        }
        free(memory->views[member]);
    }
    (void)pthread_mutex_destroy(&memory->lock);
    free(memory->views);
    free(memory->pids);
    free(memory);
}

static int allocate_private(struct allocation *allocation, size_t bytes) {
    void *address = NULL;
    size_t rounded = (bytes + 63) / 64 * 64;
    if (posix_memalign(&address, 64, rounded) != 0) {
        return status_fail(MUSTER_ENOMEM, "allocation of %zu bytes", bytes);
    }
    memset(address, 0, rounded);
    *allocation = (struct allocation){.address = address, .bytes = bytes, .segment = {.fd = -1}};
    return 0;
}

static int allocate_shared(struct allocation *allocation, size_t bytes, struct segment_name *name) {
    struct segment segment;
    int status = segment_create(bytes + SEGMENT_HEADER_BYTES, "muster-alloc", 0, &segment, name);
    if (status == 0) {
        *allocation = (struct allocation){
            .segment = segment, .address = (char *)segment.memory + SEGMENT_HEADER_BYTES, .bytes = bytes};
    }
    return status;
}

/* Into a free place, and into the directory. */
static int put_in(struct memory *memory, const struct allocation *allocation, const struct segment_name *name) {
    uint32_t id = 0;
    while (id < MUSTER_ALLOCATIONS_MAX && memory->allocations[id].address) {
        id++;
    }
    if (id == MUSTER_ALLOCATIONS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%u allocations live already", MUSTER_ALLOCATIONS_MAX);
    }
    memory->allocations[id] = *allocation;
    memory->end = id >= memory->end ? id + 1 : memory->end;
    if (memory->directory) {
        struct entry *entry = entry_of(memory, memory->member, id);
        atomic_store_explicit(&entry->fd, name->fd, memory_order_relaxed);
        atomic_store_explicit(&entry->bytes, name->bytes, memory_order_relaxed);
        atomic_store_explicit(&entry->cookie, name->cookie, memory_order_relaxed);
        atomic_fetch_add_explicit(&entry->generation, 1, memory_order_release);
    }
    return 0;
}

/* The kernel takes its time to reserve pages and to map them, and every collective on shared memory asks
 * memory_find(): so it is asked without the lock. */
int memory_allocate(struct memory *memory, size_t bytes, void **out) {
    struct allocation allocation = {0};
    struct segment_name name = {0};
    bytes = bytes > 0 ? bytes : 1;
    if (bytes > SIZE_MAX / 2) {
        return status_fail(MUSTER_ENOMEM, "allocation of %zu bytes", bytes);
    }
    int status = memory->directory ? allocate_shared(&allocation, bytes, &name) : allocate_private(&allocation, bytes);
    if (status != 0) {
        return status;
    }
    (void)pthread_mutex_lock(&memory->lock);
    status = put_in(memory, &allocation, &name);
    (void)pthread_mutex_unlock(&memory->lock);
    if (status != 0) {
        give_back(&allocation);
        return status;
    }
    *out = allocation.address;
    return 0;
}

void memory_release(struct memory *memory, void *address) {
    if (!address) {
        return;
    }
    (void)pthread_mutex_lock(&memory->lock);
    uint32_t id = 0;
    while (id < memory->end && memory->allocations[id].address != address) {
        id++;
    }
    assert(id < memory->end && "not from memory_allocate()");
    struct allocation allocation = take_out(memory, id);
    while (memory->end > 0 && !memory->allocations[memory->end - 1].address) {
        memory->end--;
    }
    (void)pthread_mutex_unlock(&memory->lock);
    give_back(&allocation);
}

bool memory_find(struct memory *memory, const void *address, size_t bytes, struct memory_place *out) {
    if (!memory->directory) {
        return false;
    }
    (void)pthread_mutex_lock(&memory->lock);
    uint32_t id = 0;
    for (; id < memory->end; id++) {
        const struct allocation *allocation = &memory->allocations[id];
        size_t offset = (size_t)((uintptr_t)address - (uintptr_t)allocation->address);
        if (allocation->address && offset < allocation->bytes && bytes <= allocation->bytes - offset) {
            uint32_t generation =
                atomic_load_explicit(&entry_of(memory, memory->member, id)->generation, memory_order_relaxed);
            *out = (struct memory_place){.id = id, .generation = generation, .offset = offset + SEGMENT_HEADER_BYTES};
            break;
        }
    }
    bool found = id < memory->end;
    (void)pthread_mutex_unlock(&memory->lock);
    return found;
}

/* ---- views ---- */

/* Unmaps what the member has given back in the meantime. */
static void sweep(struct memory *memory, uint32_t member) {
    for (uint32_t id = 0; id < MUSTER_ALLOCATIONS_MAX; id++) {
        struct view *view = &memory->views[member][id];
        uint32_t now = atomic_load_explicit(&entry_of(memory, member, id)->generation, memory_order_relaxed);
        if (view->segment.memory && view->generation != now) {
            (void)close_view(memory, view);
        }
    }
}

static int gone(uint32_t member) {
    return status_fail(MUSTER_EPROTOCOL, "neighbour %u: its shared memory is not where it said", (unsigned)member);
}

/* With the lock. A place that is gone leaves the view as it is: that may be of what is there now, and other threads use
 * it. *fresh is taken where it is used. */
static int put_view(struct memory *memory, uint32_t member, const struct memory_place *place, struct segment *fresh) {
    struct view *view = &memory->views[member][place->id];
    if (view->segment.memory && view->generation == place->generation) {
        return 0; /* another thread was faster */
    }
    if (atomic_load_explicit(&entry_of(memory, member, place->id)->generation, memory_order_acquire) !=
        place->generation) {
        return gone(member);
    }
    if (!close_view(memory, view)) {
        return status_fail(MUSTER_ENOMEM, "a view of neighbour %u's memory", (unsigned)member);
    }
    sweep(memory, member);
    *view = (struct view){.segment = *fresh, .generation = place->generation};
    *fresh = (struct segment){0};
    return 0;
}

/* The kernel takes its time to map, and every collective on shared memory asks memory_find(): the lock is let go
 * meanwhile. */
static int map_view(struct memory *memory, uint32_t member, const struct memory_place *place) {
    const struct entry *entry = entry_of(memory, member, place->id);
    if (atomic_load_explicit(&entry->generation, memory_order_acquire) != place->generation) {
        return gone(member);
    }
    const struct segment_name name = {.pid = memory->pids[member],
                                      .fd = atomic_load_explicit(&entry->fd, memory_order_relaxed),
                                      .bytes = atomic_load_explicit(&entry->bytes, memory_order_relaxed),
                                      .cookie = atomic_load_explicit(&entry->cookie, memory_order_relaxed)};
    struct segment fresh = {0};
    (void)pthread_mutex_unlock(&memory->lock);
    int status = segment_open(&name, &fresh);
    (void)pthread_mutex_lock(&memory->lock);
    status = status ? status : put_view(memory, member, place, &fresh);
    if (fresh.memory) {
        segment_close(&fresh);
    }
    return status;
}

/* With the lock, which it lets go for a while if the place has to be mapped. */
static int find_view(struct memory *memory, uint32_t member, const struct memory_place *place, size_t bytes,
                     void **out) {
    if (!memory->views[member]) {
        memory->views[member] = calloc(MUSTER_ALLOCATIONS_MAX, sizeof(struct view));
        if (!memory->views[member]) {
            return status_fail(MUSTER_ENOMEM, "views of neighbour %u's memory", (unsigned)member);
        }
    }
    struct view *view = &memory->views[member][place->id];
    if (!view->segment.memory || view->generation != place->generation) {
        int status = map_view(memory, member, place);
        if (status != 0) {
            return status;
        }
    }
    if (place->offset > view->segment.bytes || bytes > view->segment.bytes - place->offset) {
        return gone(member);
    }
    *out = (char *)view->segment.memory + place->offset;
    return 0;
}

static bool is_possible(const struct memory *memory, uint32_t member, const struct memory_place *place) {
    return memory->directory && member < memory->member_count && place->id < MUSTER_ALLOCATIONS_MAX &&
           place->generation % 2 == 1;
}

int memory_view(struct memory *memory, uint32_t member, const struct memory_place *place, size_t bytes, void **out) {
    if (!is_possible(memory, member, place)) {
        return gone(member);
    }
    (void)pthread_mutex_lock(&memory->lock);
    int status = find_view(memory, member, place, bytes, out);
    (void)pthread_mutex_unlock(&memory->lock);
    return status;
}

int memory_copy(struct memory *memory, uint32_t member, const struct memory_place *place, void *to, size_t bytes,
                bool past_caches) {
    if (!is_possible(memory, member, place)) {
        return gone(member);
    }
    void *from = NULL;
    (void)pthread_mutex_lock(&memory->lock); /* nobody unmaps it while it is read */
    int status = find_view(memory, member, place, bytes, &from);
    if (status == 0 && past_caches) {
        comm_copy_past_caches(to, from, bytes);
    } else if (status == 0 && bytes > 0) {
        memcpy(to, from, bytes);
    }
    (void)pthread_mutex_unlock(&memory->lock);
    return status;
}
