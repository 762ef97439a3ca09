/* Collectives by reading the other process's private memory (cross-memory attach: process_vm_readv()): one copy, no
 * help from its owner, but the kernel's price for each page. Where the table of algorithms says so; staging was quicker
 * at every size on the machine on which the built-in table was measured.
 *
 * Whether members may read each other is found out once, together: each tries all others, and if one cannot, none does.
 * A member's memory is only believed to be its memory if a random number is found where it said: its pid might have
 * passed on to another process. */
#include "comm/node/node_single_copy.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include <muster/status.h>

#include "base/status.h"
#include "base/system/random.h"
#include "comm/node/node_direct.h"
#include "comm/node/node_step.h"

int node_single_copy_init(struct node *node) {
    if (random_fill(&node->cookie, sizeof node->cookie) != 0) {
        return status_fail_errno(errno, "random number");
    }
    node->own->cookie = node->cookie;
    node->own->cookie_address = (uint64_t)(uintptr_t)&node->cookie;
    return 0;
}

/* Reads what it can at once: the number of bytes, or -1 with errno set. */
static ssize_t read_once(const struct node *node, uint32_t member, void *to, uint64_t from, size_t bytes) {
    const struct node_area *area = node_area(node, member);
    uint64_t cookie = 0;
    const struct iovec here[2] = {{&cookie, sizeof cookie}, {to, bytes}};
    const struct iovec there[2] = {{(void *)(uintptr_t)area->cookie_address, sizeof cookie},
                                   {(void *)(uintptr_t)from, bytes}};
    ssize_t got = process_vm_readv(node->members[member].pid, here, bytes > 0 ? 2 : 1, there, bytes > 0 ? 2 : 1, 0);
    if (got >= 0 && (got < (ssize_t)sizeof cookie || cookie != area->cookie)) {
        errno = ESRCH; /* another process by now */
        return -1;
    }
    return got < 0 ? got : got - (ssize_t)sizeof cookie;
}

static int cannot_read(struct node *node, uint32_t member, int error) {
    return node_doubt(node, status_fail_errno(error, "call %llu: read the memory of member %u",
                                              (unsigned long long)node->number, (unsigned)member));
}

static int read_all(const struct plan *plan, uint32_t member, void *to, size_t element, size_t count) {
    struct node *node = plan->node;
    const struct node_offer *offer = node_offer_of(node, member, node->step);
    uint64_t from = atomic_load_explicit(&offer->staged, memory_order_relaxed) + element * plan->width;
    unsigned char *out = to;
    for (size_t left = count * plan->width; left > 0;) {
        ssize_t got = read_once(node, member, out, from, left);
        if (got <= 0) {
            return cannot_read(node, member, got < 0 ? errno : EFAULT);
        }
        out += got;
        from += (uint64_t)got;
        left -= (size_t)got;
    }
    return 0;
}

/* ---- may we? ---- */

static int meet(struct node *node, bool *io_all) {
    int status = node_open(node, 1, true);
    if (status != 0) {
        return status;
    }
    unsigned char *own = node_record(node, node->index, node->step);
    *own = *io_all;
    node_publish(node);
    for (uint32_t member = 0; member < node->size && status == 0; member++) {
        status = node_await(node, member, node->step);
        if (status == 0) {
            *io_all = *io_all && *(const unsigned char *)node_record(node, member, node->step);
        }
    }
    return status;
}

/* First all must have said where their numbers are, and whether they want to. */
static int agree(struct node *node) {
    bool all = node->may_read_peers;
    int status = meet(node, &all);
    for (uint32_t member = 0; member < node->size && all && status == 0; member++) {
        all = member == node->index || read_once(node, member, NULL, 0, 0) == 0;
    }
    status = status != 0 ? status : meet(node, &all);
    if (status == 0) {
        node->reading = all ? NODE_READING_ALLOWED : NODE_READING_DENIED;
    }
    return status;
}

/* ---- the work ---- */

static int read_gathered(const struct plan *plan) {
    struct node *node = plan->node;
    if (plan->call->operation == COMM_GATHER && !plan_is_root(plan)) {
        return 0;
    }
    for (uint32_t i = 1; i < node->size; i++) {
        uint32_t member = (node->index + i) % node->size;
        int status = read_all(plan, member, plan_receive(plan, plan_begin(&plan->blocks, member)), 0,
                              plan_count(&plan->blocks, member));
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int read_buffers(const struct plan *plan) {
    const struct comm_call *call = plan->call;
    int status = 0;
    if (call->operation == COMM_BROADCAST) {
        return plan_is_root(plan) ? 0 : read_all(plan, call->root, call->receive, 0, call->count);
    }
    if (call->operation == COMM_SCATTER) {
        uint32_t index = plan->node->index;
        status = plan_is_root(plan) ? 0
                                    : read_all(plan, call->root, call->receive, plan_begin(&plan->blocks, index),
                                               plan_count(&plan->blocks, index));
    } else {
        status = read_gathered(plan);
    }
    node_keep_own(plan);
    return status;
}

int node_single_copy_run(const struct plan *plan, enum node_outcome *out) {
    struct node *node = plan->node;
    *out = NODE_NOT_DONE;
    int status = node->reading == NODE_READING_UNKNOWN ? agree(node) : 0;
    if (status != 0 || node->reading == NODE_READING_DENIED) {
        return status;
    }
    if ((status = node_open(node, sizeof(struct node_offer), true)) != 0) {
        return status;
    }
    struct node_offer *offer = node_offer_of(node, node->index, node->step);
    bool is_direct = node_direct_is_worth(plan) && node_direct_offer(plan, offer);
    const void *buffer = plan->call->operation == COMM_BROADCAST ? plan->call->receive : plan->call->send;
    atomic_store_explicit(&offer->staged, (uint64_t)(uintptr_t)buffer, memory_order_relaxed);
    offer->is_direct = is_direct;
    node_publish(node);
    for (uint32_t member = 0; member < node->size; member++) {
        if ((status = node_await(node, member, node->step)) != 0) {
            return status;
        }
        is_direct = is_direct && node_offer_of(node, member, node->step)->is_direct;
    }
    if (is_direct) {
        *out = NODE_AGREED_DIRECT;
        return 0;
    }
    *out = NODE_DONE;
    status = read_buffers(plan);
    return status != 0 ? status : node_part(node);
}
