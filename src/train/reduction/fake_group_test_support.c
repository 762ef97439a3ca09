/* The fake group: the few calls that muster_train makes. */
#include "train/reduction/fake_group_test_support.h"
#include "comm/group/group_device.h"
#include "comm/group/mark.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/memory.h>

#include "base/status.h"

struct muster_work {
    struct muster_group *group;
    int status;
};

/* What is made with a fake group holds nothing. */
void group_hold(struct muster_group *group) {
    (void)group;
}
void group_let_go(struct muster_group *group) {
    (void)group;
}
int group_check_freed(const struct muster_group *group) {
    (void)group;
    return MUSTER_OK;
}

static struct muster_group *root_of(struct muster_group *group) {
    return group->root ? group->root : group;
}

void fake_group_forget(struct muster_group *group) {
    group->log[0] = '\0';
    group->call_count = 0;
}

static void note(struct muster_group *group, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(struct muster_group *group, const char *format, ...) {
    char *log = root_of(group)->log;
    size_t used = strlen(log);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(log + used, sizeof group->log - used, format, args);
    va_end(args);
}

/* Counts a call: MUSTER_OK, or the failure that is due. */
static int count_call(struct muster_group *group) {
    struct muster_group *root = root_of(group);
    if (group->failed) {
        return status_fail(MUSTER_EGROUP, "the fake has failed before");
    }
    return ++root->call_count == root->fail_at ? status_fail(root->fail_code, "the fake's failure") : MUSTER_OK;
}

/* The same for collectives, after whose failure the group has failed. */
static int begin_call(struct muster_group *group) {
    int status = count_call(group);
    if (status != MUSTER_OK && !group->failed) {
        group->failed = status;
    }
    return status;
}

static int settle(struct muster_group *group, int status, struct muster_work **work) {
    if (!work) {
        note(group, "; ");
        return status;
    }
    note(group, " async; ");
    if (status != MUSTER_OK && !root_of(group)->fail_in_wait) {
        return status;
    }
    struct muster_work *handle = malloc(sizeof *handle);
    if (!handle) {
        return status_fail(MUSTER_ENOMEM, "no memory for a handle");
    }
    *handle = (struct muster_work){.group = root_of(group), .status = status};
    root_of(group)->works_under_way++;
    *work = handle;
    return MUSTER_OK;
}

int muster_work_wait(struct muster_work **work) {
    if (!*work) {
        return MUSTER_OK;
    }
    int status = (*work)->status;
    note((*work)->group, "wait; ");
    (*work)->group->works_under_way--;
    free(*work);
    *work = NULL;
    return status == MUSTER_OK ? status : status_fail(status, "the fake's failure");
}

bool muster_work_done(const struct muster_work *work) {
    (void)work;
    return true;
}

void group_mark_accumulated(struct muster_group *group, uint32_t steps) {
    group->accumulated = steps;
}

const char *muster_group_engine(const struct muster_group *group) {
    (void)group;
    return "fake";
}

void *group_stream(const struct muster_group *group) {
    (void)group;
    return NULL;
}

int muster_all_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      enum muster_reduction reduction, struct muster_work **work) {
    int status = begin_call(group);
    if (send != receive) {
        memcpy(receive, send, count * muster_type_bytes(type));
    }
    note(group, "all_reduce %zu %s %s", count, muster_type_name(type), muster_reduction_name(reduction));
    if (reduction == MUSTER_OP_SUM && type == MUSTER_FLOAT32) {
        for (size_t i = 0; i < count; i++) {
            ((float *)receive)[i] *= (float)group->size;
        }
    }
    return settle(group, status, work);
}

int muster_all_gather(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work) {
    int status = begin_call(group);
    size_t bytes = count * muster_type_bytes(type);
    note(group, "all_gather %zu %s", count, muster_type_name(type));
    for (uint32_t rank = 0; rank < group->size; rank++) {
        memmove((uint8_t *)receive + rank * bytes, send, bytes);
    }
    if (group->gathered) {
        group->gathered(group, receive, bytes);
    }
    return settle(group, status, work);
}

int muster_all_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                        enum muster_type type, struct muster_work **work) {
    int status = begin_call(group);
    size_t width = muster_type_bytes(type), begin = 0, own = counts[group->rank];
    note(group, "all_gather_v %zu %s", own, muster_type_name(type));
    for (uint32_t rank = 0; rank < group->size; rank++) {
        size_t count = counts[rank] < own ? counts[rank] : own;
        memmove((uint8_t *)receive + begin * width, send, count * width);
        begin += counts[rank];
    }
    return settle(group, status, work);
}

int muster_all_to_all(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work) {
    int status = group->coalesces ? MUSTER_OK : begin_call(group); /* the end is what fails */
    size_t bytes = count * muster_type_bytes(type);
    note(group, "all_to_all %zu %s", count, muster_type_name(type));
    for (uint32_t rank = 0; rank < group->size; rank++) { /* everybody sends this rank what this rank sends itself */
        memcpy((uint8_t *)receive + rank * bytes, (const uint8_t *)send + group->rank * bytes, bytes);
    }
    return settle(group, status, work);
}

/* The same, of this rank's own block, as much as is expected. */
int muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                        const size_t *receive_counts, enum muster_type type, struct muster_work **work) {
    int status = begin_call(group);
    size_t width = muster_type_bytes(type), own = 0, begin = 0;
    note(group, "all_to_all_v %zu %s", send_counts[group->rank], muster_type_name(type));
    for (uint32_t rank = 0; rank < group->rank; rank++) {
        own += send_counts[rank];
    }
    for (uint32_t rank = 0; rank < group->size; rank++) {
        size_t most = send_counts[group->rank], count = receive_counts[rank] < most ? receive_counts[rank] : most;
        memcpy((uint8_t *)receive + begin * width, (const uint8_t *)send + own * width, count * width);
        begin += receive_counts[rank];
    }
    return settle(group, status, work);
}

int muster_coalesce_begin(struct muster_group *group) {
    bool is_unknown = group->failed && root_of(group)->fail_in_wait; /* that it has failed */
    int status = is_unknown ? MUSTER_OK : count_call(group);
    note(group, "coalesce; ");
    group->coalesces = status == MUSTER_OK;
    return status;
}

int muster_coalesce_end(struct muster_group *group, struct muster_work **work) {
    int status = begin_call(group);
    group->coalesces = false;
    note(group, "end");
    return settle(group, status, work);
}

int muster_reduce_scatter_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                            enum muster_type type, enum muster_reduction reduction, struct muster_work **work) {
    int status = begin_call(group);
    size_t width = muster_type_bytes(type), begin = 0;
    note(group, "reduce_scatter_v %zu %s %s", counts[group->rank], muster_type_name(type),
         muster_reduction_name(reduction));
    for (uint32_t rank = 0; rank < group->rank; rank++) {
        begin += counts[rank];
    }
    memmove(receive, (const uint8_t *)send + begin * width, counts[group->rank] * width);
    for (size_t i = 0; reduction == MUSTER_OP_SUM && type == MUSTER_FLOAT32 && i < counts[group->rank]; i++) {
        ((float *)receive)[i] *= (float)group->size;
    }
    return settle(group, status, work);
}

int muster_barrier(struct muster_group *group, struct muster_work **work) {
    int status = begin_call(group);
    note(group, "barrier");
    return settle(group, status, work);
}

int muster_broadcast(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t root,
                     struct muster_work **work) {
    (void)buffer;
    int status = begin_call(group);
    note(group, "broadcast %zu %s from %u", count, muster_type_name(type), root);
    return settle(group, status, work);
}

int muster_alloc(struct muster_group *group, size_t bytes, void **out) {
    int status = count_call(group);
    if (status != MUSTER_OK) {
        return status;
    }
    /* The size goes before the memory, so that freeing can count. */
    uint8_t *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) {
        return status_fail(MUSTER_ENOMEM, "no memory");
    }
    memset(memory, 0, (bytes + 127) / 64 * 64);
    memcpy(memory, &bytes, sizeof bytes);
    root_of(group)->allocated_bytes += bytes;
    root_of(group)->allocation_count++;
    *out = memory + 64;
    return MUSTER_OK;
}

void muster_free(struct muster_group *group, void *memory) {
    if (!memory) {
        return;
    }
    size_t bytes;
    memcpy(&bytes, (uint8_t *)memory - 64, sizeof bytes);
    root_of(group)->allocated_bytes -= bytes;
    root_of(group)->allocation_count--;
    free((uint8_t *)memory - 64);
}

void muster_group_abort(struct muster_group *group, const char *reason) {
    group->failed = MUSTER_EABORTED;
    (void)snprintf(group->abort_reason, sizeof group->abort_reason, "%s", reason);
}

int muster_group_status(struct muster_group *group) {
    return group->failed ? status_fail(group->failed, "the fake has failed before") : MUSTER_OK;
}

int group_device(struct muster_group *group, struct device_stream *out) {
    (void)group;
    *out = (struct device_stream){.device = NULL};
    return status_fail(MUSTER_EUNSUPPORTED, "the fake has no GPU");
}

bool group_device_is_idle(struct muster_group *group, const char *user) {
    (void)group;
    (void)user;
    return true; /* nothing is on it */
}

int muster_device_alloc(struct muster_group *group, size_t bytes, void **out) {
    (void)bytes;
    (void)out;
    return count_call(group) == MUSTER_OK ? status_fail(MUSTER_EUNSUPPORTED, "the fake has no GPU") : MUSTER_EGROUP;
}

void muster_device_free(struct muster_group *group, void *memory) {
    (void)group;
    (void)memory;
}

const char *muster_group_name(const struct muster_group *group) {
    (void)group;
    return "fake";
}

uint32_t muster_group_rank(const struct muster_group *group) {
    return group->rank;
}

uint32_t muster_group_size(const struct muster_group *group) {
    return group->size;
}

/* ---- hosts ---- */

static uint32_t each_of(const struct muster_group *group) {
    return group->ranks_per_host ? group->ranks_per_host : group->size;
}

uint32_t muster_group_host_count(const struct muster_group *group) {
    return (group->size + each_of(group) - 1) / each_of(group);
}

uint32_t muster_group_host_of(const struct muster_group *group, uint32_t rank) {
    return rank / each_of(group);
}

uint32_t muster_group_local_rank(const struct muster_group *group) {
    return group->rank % each_of(group);
}

uint32_t muster_group_local_size(const struct muster_group *group) {
    return each_of(group);
}

/* ---- groups that are split off ---- */

/* As mesh.c splits: first columns, then rows, then all ranks in another order; then fsdp_virtual.c, rows and columns
 * once more. Keys are ranks. */
int muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                       const struct muster_group_options *options, struct muster_group **out) {
    uint32_t hosts = muster_group_host_count(parent), each = each_of(parent), index = parent->part_count;
    const uint32_t sizes[] = {hosts, each, parent->size, each, hosts}; /* in this order */
    int status = begin_call(parent);
    (void)options;
    note(parent, "split %d %d; ", (int)color, (int)key);
    struct muster_group *part = status == MUSTER_OK ? calloc(1, sizeof *part) : NULL;
    if (!part) {
        return status ? status : status_fail(MUSTER_ENOMEM, "no memory for a group");
    }
    *part = (struct muster_group){.rank = (uint32_t)key, .size = sizes[index], .root = parent};
    part->ranks_per_host = index == 0 ? 1 : 0;
    parent->parts[parent->part_count++] = part;
    *out = part;
    return MUSTER_OK;
}

void muster_group_free(struct muster_group *group) {
    if (!group || !group->root) {
        return;
    }
    struct muster_group *root = group->root;
    for (uint32_t i = 0; i < root->part_count; i++) {
        if (root->parts[i] == group) {
            root->parts[i] = root->parts[--root->part_count];
            break;
        }
    }
    free(group);
}

void group_mark_unit(struct muster_group *group, uint32_t unit) {
    (void)group;
    (void)unit;
}
