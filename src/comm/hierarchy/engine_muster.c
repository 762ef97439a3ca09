/* The table of Muster's own engine; see engine_muster.h. */
#include "comm/hierarchy/engine_muster.h"

#include <stdlib.h>

#include "base/status.h"
#include "comm/schedule/choice.h"

struct own {
    struct engine base;
    struct node *node;           /* the members of this host */
    struct hierarchy *hierarchy; /* NULL: all members are in the node */
    struct memory *memory;
    struct messages_muster_config messages;
};

static inline struct own *own_of(struct engine *engine) {
    return (struct own *)(void *)engine;
}

static inline const struct own *own_of_const(const struct engine *engine) {
    return (const struct own *)(const void *)engine;
}

/* Runs in the calling thread, to its end: waiting is done on the group's bell, which its waiter knows. */
static int start(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    const struct own *own = own_of(engine);
    return own->hierarchy ? hierarchy_run(own->hierarchy, call, number, deadline_ns)
                          : node_run(own->node, call, number, deadline_ns);
}

static int allocate(struct engine *engine, size_t bytes, void **out) {
    return memory_allocate(own_of(engine)->memory, bytes, out);
}

static void release(struct engine *engine, void *memory) {
    memory_release(own_of(engine)->memory, memory);
}

static bool awaits(const struct engine *engine, uint32_t rank) {
    const struct own *own = own_of_const(engine);
    return own->hierarchy && hierarchy_awaits(own->hierarchy, rank);
}

static uint64_t steps(const struct engine *engine, uint32_t local) {
    return node_steps(own_of_const(engine)->node, local);
}

static const char *algorithm(const struct engine *engine) {
    const struct own *own = own_of_const(engine);
    uint32_t chosen = own->hierarchy ? hierarchy_algorithm(own->hierarchy) : CHOICE_NO_ALGORITHM;
    chosen = chosen == CHOICE_NO_ALGORITHM ? node_algorithm(own->node) : chosen;
    return chosen == CHOICE_NO_ALGORITHM ? NULL : choice_algorithm_name(chosen);
}

static int64_t arrived_ns(const struct engine *engine) {
    const struct own *own = own_of_const(engine);
    return own->hierarchy ? hierarchy_arrived_ns(own->hierarchy) : 0;
}

/* ---- messages ---- */

static int post(struct engine *engine, struct comm_message *message, int64_t deadline_ns) {
    return messages_muster_post(&own_of(engine)->messages, message, deadline_ns);
}

static int await(struct engine *engine, struct comm_message *const *messages, size_t count, int64_t deadline_ns) {
    return messages_muster_wait(&own_of(engine)->messages, messages, count, deadline_ns);
}

static int let_go(struct engine *engine, struct comm_message *message) {
    return messages_muster_let_go(&own_of(engine)->messages, message);
}

static void let_go_all(struct engine *engine) {
    const struct messages_muster_config *messages = &own_of(engine)->messages;
    p2p_let_go_group(messages->p2p, messages->group);
}

static void progress(struct engine *engine) {
    (void)p2p_progress(own_of(engine)->messages.p2p);
}

static void peer_left(struct engine *engine, uint32_t rank) {
    const struct messages_muster_config *messages = &own_of(engine)->messages;
    p2p_peer_left(messages->p2p, messages->group, messages->peers[rank]);
}

static size_t list_arrived(struct engine *engine, const struct comm_message *receive, struct comm_arrived *out,
                           size_t max) {
    return messages_muster_list_arrived(&own_of(engine)->messages, receive, out, max);
}

static bool send_now(struct engine *engine, const struct comm_message *message, int64_t *out_ns) {
    return messages_muster_send_now(&own_of(engine)->messages, message, out_ns);
}

static void *expect(struct engine *engine, const struct comm_message *message, int64_t *out_ns) {
    return messages_muster_expect(&own_of(engine)->messages, message, out_ns);
}

static bool take_now(struct engine *engine, struct comm_message *message, void *expected, int64_t *out_ns) {
    return messages_muster_take_now(&own_of(engine)->messages, message, expected, out_ns);
}

static const struct engine_messages own_messages = {
    .post = post,
    .wait = await,
    .let_go = let_go,
    .let_go_all = let_go_all,
    .forget = messages_muster_forget,
    .has_ended = messages_muster_has_ended,
    .progress = progress,
    .peer_left = peer_left,
    .list_arrived = list_arrived,
    .send_now = send_now,
    .expect = expect,
    .take_now = take_now,
};

/* ---- life ---- */

static void free_own(struct engine *engine) {
    struct own *own = own_of(engine);
    hierarchy_free(own->hierarchy);
    node_free(own->node);
    free(own);
}

static const struct engine_table own_table = {
    .name = "muster",
    .start = start,
    .allocate = allocate,
    .release = release,
    .awaits = awaits,
    .steps = steps,
    .algorithm = algorithm,
    .arrived_ns = arrived_ns,
    .messages = &own_messages,
    .free = free_own,
};

size_t engine_muster_segment_bytes(uint32_t local_count) {
    return node_segment_bytes(local_count);
}

int engine_muster_create(const struct engine_muster_config *config, struct engine **out) {
    struct own *own = calloc(1, sizeof *own);
    if (!own) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group");
    }
    own->base.table = &own_table;
    own->memory = config->node.memory;
    own->messages = config->messages;
    int code = node_create(&config->node, &own->node);
    if (code == 0 && config->host_count > 1) {
        struct hierarchy_config hierarchy = config->hierarchy;
        hierarchy.node = config->node.size > 1 ? own->node : NULL;
        code = hierarchy_create(&hierarchy, &own->hierarchy);
    }
    if (code) {
        free_own(&own->base);
        return code;
    }
    *out = &own->base;
    return 0;
}
