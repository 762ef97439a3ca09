/* The fake group: the few calls that muster_train makes. */
#include "train/reduction/fake_group_test_support.h"
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

void fake_group_forget(struct muster_group *group) {
    group->log[0] = '\0';
    group->call_count = 0;
}

static void note(struct muster_group *group, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(struct muster_group *group, const char *format, ...) {
    size_t used = strlen(group->log);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(group->log + used, sizeof group->log - used, format, args);
    va_end(args);
}

/* Counts a call: MUSTER_OK, or the failure that is due. */
static int count_call(struct muster_group *group) {
    if (group->failed) {
        return status_fail(MUSTER_EGROUP, "the fake has failed before");
    }
    return ++group->call_count == group->fail_at ? status_fail(group->fail_code, "the fake's failure") : MUSTER_OK;
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
    if (status != MUSTER_OK && !group->fail_in_wait) {
        return status;
    }
    struct muster_work *handle = malloc(sizeof *handle);
    if (!handle) {
        return status_fail(MUSTER_ENOMEM, "no memory for a handle");
    }
    *handle = (struct muster_work){.group = group, .status = status};
    group->works_under_way++;
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

int muster_all_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      enum muster_reduction reduction, struct muster_work **work) {
    int status = begin_call(group);
    assert(send == receive);
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
        if (rank != group->rank) {
            memcpy((uint8_t *)receive + rank * bytes, send, bytes);
        }
    }
    if (group->gathered) {
        group->gathered(group, receive, bytes);
    }
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
    group->allocated_bytes += bytes;
    group->allocation_count++;
    *out = memory + 64;
    return MUSTER_OK;
}

void muster_free(struct muster_group *group, void *memory) {
    if (!memory) {
        return;
    }
    size_t bytes;
    memcpy(&bytes, (uint8_t *)memory - 64, sizeof bytes);
    group->allocated_bytes -= bytes;
    group->allocation_count--;
    free((uint8_t *)memory - 64);
}

void muster_group_abort(struct muster_group *group, const char *reason) {
    group->failed = MUSTER_EABORTED;
    (void)snprintf(group->abort_reason, sizeof group->abort_reason, "%s", reason);
}

int muster_group_status(struct muster_group *group) {
    return group->failed ? status_fail(group->failed, "the fake has failed before") : MUSTER_OK;
}

uint32_t muster_group_rank(const struct muster_group *group) {
    return group->rank;
}

uint32_t muster_group_size(const struct muster_group *group) {
    return group->size;
}
