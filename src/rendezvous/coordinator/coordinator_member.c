/* The coordinator's members: memory, identities, roles, and the list in which each stands; see coordinator_impl.h.
 * Pure: no I/O; memory is taken when a node comes, at no other time. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

/* Beyond any real one; below where counting on from it could overflow. */
#define ROUND_MAX ((uint64_t)1 << 62)

static struct coordinator_role *role_take(struct coordinator *c, struct kv_slice name) {
    uint32_t key_hash = hash_of(&c->roles, name);
    struct coordinator_role *role = (struct coordinator_role *)hash_find(&c->roles, name, key_hash);
    if (!role) {
        role = malloc(sizeof *role + name.len);
        if (!role) {
            return NULL;
        }
        *role = (struct coordinator_role){.node = {.hash = key_hash, .key_len = (uint32_t)name.len}};
        if (name.len > 0) {
            memcpy(role->name, name.data, name.len);
        }
        hash_insert(&c->roles, &role->node);
    }
    role->member_count++;
    return role;
}

static void role_give(struct coordinator *c, struct coordinator_role *role) {
    assert(role->member_count > 0);
    if (--role->member_count == 0) {
        hash_remove(&c->roles, &role->node);
        free(role);
    }
}

static int check_workers(const struct coordinator *c, uint32_t without, uint32_t with) {
    if (c->worker_count - without + with > INT32_MAX) {
        return status_fail(MUSTER_ELIMIT,
                           "with the %u workers of this node the job would have more than 2^31: give it fewer nodes, "
                           "or a smaller --nproc-per-node",
                           with);
    }
    return MUSTER_OK;
}

static int check_round(const struct coordinator_node *node) {
    uint64_t last = node->past_count > 0 ? node->pasts[node->past_count - 1].round : 0;
    return node->last_round <= ROUND_MAX && last <= ROUND_MAX
               ? MUSTER_OK
               : status_fail(MUSTER_EPROTOCOL, "round %llu is not possible: is this an agent of the same version?",
                             (unsigned long long)(node->last_round > last ? node->last_round : last));
}

static int check_new(const struct coordinator *c, const struct coordinator_node *node, struct kv_slice key) {
    if (hash_find(&c->members, key, hash_of(&c->members, key))) {
        return status_fail(MUSTER_ECONNECT, "an earlier connection of this node still stands: try again when it has "
                                            "ended, or has been given up");
    }
    if (c->members.count >= COORDINATOR_NODES_MAX) {
        return status_fail(MUSTER_ELIMIT, "the job has %zu nodes, and no room for more: start fewer spare ones",
                           c->members.count);
    }
    int rc = check_round(node);
    return rc != MUSTER_OK ? rc : check_workers(c, 0, node->local_world_size);
}

/* So that a round can be ranked without taking memory. */
static bool make_room(struct coordinator *c) {
    size_t wanted = c->members.count + 1;
    if (wanted <= c->order_capacity) {
        return true;
    }
    size_t capacity = c->order_capacity ? 2 * c->order_capacity : 16;
    struct coordinator_member **grown = realloc(c->order, capacity * sizeof *grown);
    if (grown) {
        c->order = grown;
        c->order_capacity = capacity;
    }
    return grown != NULL;
}

static struct kv_slice copy_text(uint8_t *to, struct kv_slice from) {
    if (from.len > 0) {
        memcpy(to, from.data, from.len);
    }
    return kv_slice_of(to, from.len);
}

static void take_numbers(struct coordinator *c, struct coordinator_member *member,
                         const struct coordinator_node *node) {
    c->worker_count = c->worker_count - member->local_world_size + node->local_world_size;
    member->local_world_size = node->local_world_size;
    member->last_round = node->last_round;
    member->last_author = node->last_author;
    member->last_group_rank = node->last_group_rank;
    c->host_count = c->host_count - member->is_host + node->is_host;
    member->is_host = node->is_host;
    member->claim_count = (uint8_t)node->past_count;
    for (size_t i = 0; i < node->past_count; i++) {
        member->claims[i] = (struct coordinator_claim){
            .round = node->pasts[i].round, .author = node->pasts[i].author, .group_rank = node->pasts[i].group_rank};
    }
    member->store_port = node->store_port;
    member->uses_agent_store = node->uses_agent_store;
}

bool coordinator_is_spare(const struct coordinator_member *member) {
    return member->place == COORDINATOR_SPARED;
}

const char *coordinator_member_name(const struct coordinator_member *member, char *out, size_t size) {
    (void)str_format(out, size, "%.*s (pid %lld)", (int)member->addr.len, (const char *)member->addr.data,
                     (long long)member->pid);
    return out;
}

uint16_t coordinator_member_port(const struct coordinator_member *member, char host[COORDINATOR_NAME_BYTES_MAX + 1]) {
    (void)str_format(host, COORDINATOR_NAME_BYTES_MAX + 1, "%.*s", (int)member->addr.len,
                     (const char *)member->addr.data);
    return member->uses_agent_store ? member->store_port : 0;
}

static void append(struct coordinator_list *list, struct coordinator_member *member) {
    member->previous = list->last;
    member->next = NULL;
    *(list->last ? &list->last->next : &list->first) = member;
    list->last = member;
    list->count++;
}

static void take_out(struct coordinator_list *list, struct coordinator_member *member) {
    assert(list->count > 0 && (member->previous || list->first == member) && (member->next || list->last == member));
    *(member->previous ? &member->previous->next : &list->first) = member->next;
    *(member->next ? &member->next->previous : &list->last) = member->previous;
    list->count--;
}

int coordinator_member_new(struct coordinator *c, const struct coordinator_node *node, void *session,
                           struct coordinator_member **out) {
    struct kv_slice key = kv_slice_of(node->identity, sizeof node->identity);
    int rc = check_new(c, node, key);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct coordinator_member *member =
        malloc(sizeof *member + node->addr.len + node->topology.len + node->host_name.len);
    struct coordinator_role *role = member && make_room(c) ? role_take(c, node->role) : NULL;
    if (!role) {
        free(member);
        return status_fail(MUSTER_ENOMEM, "the rendezvous host has no memory for one more node: start fewer, or have "
                                          "another host serve the endpoint");
    }
    *member = (struct coordinator_member){
        .node = {.hash = hash_of(&c->members, key), .key_len = (uint32_t)key.len},
        .identity = {node->identity[0], node->identity[1]},
        .place = COORDINATOR_OUT,
        .session = session,
        .role = role,
        .pid = node->pid,
        .wished_rank = node->wished_rank,
    };
    member->addr = copy_text(member->text, node->addr);
    member->topology = copy_text(member->text + node->addr.len, node->topology);
    member->host_name = copy_text(member->text + node->addr.len + node->topology.len, node->host_name);
    take_numbers(c, member, node);
    hash_insert(&c->members, &member->node);
    append(&c->places[COORDINATOR_OUT], member);
    *out = member;
    return MUSTER_OK;
}

static bool is_same_node(const struct coordinator_member *member, const struct coordinator_node *node) {
    struct kv_slice role = kv_slice_of(member->role->name, member->role->node.key_len);
    return memcmp(member->identity, node->identity, sizeof member->identity) == 0 && member->pid == node->pid &&
           kv_slice_equal(role, node->role) && kv_slice_equal(member->addr, node->addr) &&
           kv_slice_equal(member->topology, node->topology);
}

int coordinator_member_update(struct coordinator *c, struct coordinator_member *member,
                              const struct coordinator_node *node) {
    if (!is_same_node(member, node)) {
        return status_fail(MUSTER_EPROTOCOL, "a node cannot change its address, role, topology label or identity while "
                                             "it is connected: connect anew");
    }
    int rc = check_round(node);
    if (rc == MUSTER_OK) {
        rc = check_workers(c, member->local_world_size, node->local_world_size);
    }
    if (rc == MUSTER_OK) {
        coordinator_quorum_weigh(c, member, -1);
        take_numbers(c, member, node);
        coordinator_quorum_weigh(c, member, 1);
    }
    return rc;
}

void coordinator_member_move(struct coordinator *c, struct coordinator_member *member, enum coordinator_place place) {
    enum coordinator_place from = member->place;
    take_out(&c->places[from], member);
    append(&c->places[place], member);
    member->place = place;
    assert(c->returning_count >= member->is_returning);
    c->returning_count -= member->is_returning;
    member->is_returning = false;
    coordinator_quorum_moved(c, member, from);
}

void coordinator_member_free(struct coordinator *c, struct coordinator_member *member) {
    coordinator_member_move(c, member, COORDINATOR_OUT);
    take_out(&c->places[COORDINATOR_OUT], member);
    hash_remove(&c->members, &member->node);
    assert(c->worker_count >= member->local_world_size && c->owing_count >= member->owes_answer &&
           c->host_count >= member->is_host);
    c->worker_count -= member->local_world_size;
    c->owing_count -= member->owes_answer;
    c->host_count -= member->is_host && !member->is_lasting_loss; /* one that has ended is nowhere else */
    role_give(c, member->role);
    free(member);
}
