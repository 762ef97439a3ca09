/* Ranks: who comes first, and what each member's WORLD says; see coordinator_impl.h. Pure: no I/O, no memory. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/coordinator/coordinator_impl.h"

static bool is_digit(uint8_t byte) {
    return byte >= '0' && byte <= '9';
}

struct number {
    size_t begin, end; /* without leading zeros; may be empty */
    size_t zeros;
};

static struct number read_number(struct kv_slice text, size_t at) {
    struct number n = {.begin = at};
    while (n.begin < text.len && text.data[n.begin] == '0') {
        n.begin++;
    }
    n.zeros = n.begin - at;
    for (n.end = n.begin; n.end < text.len && is_digit(text.data[n.end]); n.end++) {
    }
    return n;
}

static int compare_sizes(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

/* Of two equal numbers the one with fewer zeros before it comes first: decided here and not at the end of the text, so
 * that texts with equal beginnings stay together. */
static int compare_numbers(struct kv_slice a, struct number x, struct kv_slice b, struct number y) {
    int way = compare_sizes(x.end - x.begin, y.end - y.begin);
    if (way == 0) {
        way = memcmp(a.data + x.begin, b.data + y.begin, x.end - x.begin);
    }
    return way != 0 ? way : compare_sizes(x.zeros, y.zeros);
}

int coordinator_compare_natural(struct kv_slice a, struct kv_slice b) {
    size_t i = 0;
    size_t k = 0;
    int way = 0;
    while (way == 0 && i < a.len && k < b.len) {
        if (is_digit(a.data[i]) && is_digit(b.data[k])) {
            struct number x = read_number(a, i);
            struct number y = read_number(b, k);
            way = compare_numbers(a, x, b, y);
            i = x.end;
            k = y.end;
        } else {
            way = compare_sizes(a.data[i++], b.data[k++]);
        }
    }
    if (way == 0) {
        way = compare_sizes(a.len - i, b.len - k);
    }
    return (way > 0) - (way < 0);
}

/* As Python compares strings, and so torchrun's agents the names of their hosts: host10 comes before host2. */
static int compare_plain(struct kv_slice a, struct kv_slice b) {
    size_t common = a.len < b.len ? a.len : b.len;
    int way = common > 0 ? memcmp(a.data, b.data, common) : 0;
    return way != 0 ? way : compare_sizes(a.len, b.len);
}

static int compare_members(const void *left, const void *right) {
    const struct coordinator_member *a = *(struct coordinator_member *const *)left;
    const struct coordinator_member *b = *(struct coordinator_member *const *)right;
    int way = coordinator_compare_natural(a->topology, b->topology);
    if (way == 0) {
        way = compare_sizes(a->wished_rank, b->wished_rank); /* who has none comes last */
    }
    if (way == 0) {
        way = compare_plain(a->host_name, b->host_name);
    }
    if (way == 0) {
        way = coordinator_compare_natural(a->addr, b->addr);
    }
    if (way == 0) {
        way = (a->pid > b->pid) - (a->pid < b->pid);
    }
    if (way == 0) {
        way = compare_sizes(a->identity[0], b->identity[0]);
    }
    return way != 0 ? way : compare_sizes(a->identity[1], b->identity[1]);
}

size_t coordinator_order_rank(struct coordinator *c) {
    size_t count = 0;
    for (struct coordinator_member *m = c->places[COORDINATOR_JOINED].first; m; m = m->next) {
        assert(count < c->order_capacity);
        c->order[count++] = m;
    }
    qsort(c->order, count, sizeof *c->order, compare_members);
    return count;
}

/* Each member's rank within its role, and how many workers each role has. Returns how many there are in all. */
static uint32_t count_roles(struct coordinator *c, size_t count) {
    uint64_t workers = 0;
    for (size_t i = 0; i < count; i++) {
        c->order[i]->role->worker_count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        struct coordinator_member *m = c->order[i];
        m->base_role_rank = m->role->worker_count;
        m->role->worker_count += m->local_world_size;
        workers += m->local_world_size;
    }
    assert(workers <= INT32_MAX); /* no member is let in that would make it more */
    return (uint32_t)workers;
}

uint32_t coordinator_order_host(const struct coordinator *c, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (c->order[i]->is_host) {
            return (uint32_t)i;
        }
    }
    return COORDINATOR_NO_RANK;
}

size_t coordinator_order_tell(struct coordinator *c, int64_t lease_ms, struct kv_slice text) {
    size_t count = coordinator_order_rank(c);
    uint32_t workers = count_roles(c, count);
    const struct coordinator_member *first = c->order[0];
    const struct coordinator_limits *limits = &c->settings.limits;
    struct coordinator_message message = {
        .kind = COORDINATOR_WORLD,
        .world = {.round = c->round,
                  .author = c->settings.places.author,
                  .group_world_size = (uint32_t)count,
                  .global_world_size = workers,
                  .host_rank = coordinator_order_host(c, count),
                  .charges = coordinator_budget_charges(&c->budget),
                  .max_restarts = limits->is_limited[COORDINATOR_CHARGE_FAILURE]
                                      ? limits->allowed[COORDINATOR_CHARGE_FAILURE]
                                      : UINT32_MAX,
                  .lease_ms = (uint64_t)lease_ms,
                  .master_addr = first->addr,
                  .master_port = first->store_port,
                  .uses_agent_store = first->uses_agent_store},
        .text = text,
    };
    for (size_t i = 0; i < count; i++) {
        struct coordinator_member *m = c->order[i];
        m->group_rank = (uint32_t)i;
        m->base_global_rank = message.world.base_global_rank;
        message.world.group_rank = (uint32_t)i;
        message.world.base_role_rank = m->base_role_rank;
        message.world.role_world_size = m->role->worker_count;
        c->send(c->send_ctx, m->session, &message);
        message.world.base_global_rank += m->local_world_size;
    }
    c->world_node_count = count;
    c->world_worker_count = workers;
    return count;
}
