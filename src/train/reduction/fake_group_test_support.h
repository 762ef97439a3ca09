/* For tests: a process group that is one process and pretends to have `size` ranks. The others do what this one does:
 * they contribute the same values to reductions and the same blocks to gathers. It writes down every call, fails the
 * one that it is told to, and counts what was not given back. Groups that are split off it do the same, and count and
 * write with it. Linked in place of muster_comm's groups. */
#ifndef TRAIN_FAKE_GROUP_TEST_SUPPORT_H
#define TRAIN_FAKE_GROUP_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

enum { FAKE_PARTS_MAX = 5 };

struct muster_group {
    uint32_t rank, size;
    uint32_t ranks_per_host;  /* 0: all are on one host; else neighbours are */
    char log[8192];           /* "all_reduce 16 float32 average async; wait; " */
    uint32_t call_count;      /* collectives and allocations so far */
    uint32_t fail_at;         /* the call with this number (from 1) fails; 0: none */
    int fail_code;            /* with this; a failed collective makes the group fail, an allocation does not */
    bool fail_in_wait;        /* calls with a handle fail when waited for */
    int failed;               /* code, or 0 */
    char abort_reason[1024];  /* "" unless aborted */
    uint32_t works_under_way; /* handles not waited for */
    size_t allocated_bytes;   /* by muster_alloc(), not freed yet */
    uint32_t allocation_count;
    uint32_t accumulated;      /* what all_reduces are marked with */
    bool coalesces;            /* calls are only noted */
    struct muster_group *root; /* of one that was split off: it was split off this one */
    struct muster_group *parts[FAKE_PARTS_MAX];
    uint32_t part_count; /* groups that were split off, and have not been freed */
    /* Changes what has been gathered, before the caller sees it; may be NULL. */
    void (*gathered)(struct muster_group *group, void *receive, size_t block_bytes);
};

/* Forgets the calls so far. */
void fake_group_forget(struct muster_group *group);

#endif
