/* Making the root group: from a store, a file or an address; from the environment: group_launch.c. See muster/group.h.
 */
#include <muster/group.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/device/cuda_adopt.h"
#include "comm/group/debug.h"
#include "comm/group/group_impl.h"

/* The names of the two segments that a host's first rank makes, in one value of the store. */
enum { SEGMENT_NAMES_BYTES = 2 * GROUP_SEGMENT_NAME_BYTES, SEGMENTS_KEY_BYTES = 24 };

/* The first rank of a host: makes both segments, and tells the others, also what went wrong. */
static int make_segments(struct context *context, struct muster_group *group, const char *key, int64_t deadline_ns) {
    struct segment_name names[2];
    uint8_t bytes[SEGMENT_NAMES_BYTES];
    int code = context_make_segment(context, deadline_ns, &names[0]);
    code = code ? code : group_make_segment(group, &names[1]);
    for (int i = 0; code == 0 && i < 2; i++) {
        group_encode_segment_name(&names[i], bytes + i * GROUP_SEGMENT_NAME_BYTES);
    }
    int told = context_put_result(context, key, code, bytes, sizeof bytes);
    return code ? code : told;
}

/* Takes away what was put into the store to meet. Nobody goes on before all have, or it might be found by the next
 * group of this name. own_key: NULL: none. */
static int forget_meeting(struct context *context, struct muster_group *group, const char *own_key,
                          int64_t deadline_ns) {
    if (!context_forget_meeting(context)) {
        return 0;
    }
    if (own_key) {
        (void)context->kv.remove(context->kv.context, own_key);
    }
    return group_meet_again(group, deadline_ns);
}

static int share_segments(struct context *context, struct muster_group *group, int64_t deadline_ns) {
    char key[SEGMENTS_KEY_BYTES];
    struct segment_name names[2];
    uint8_t bytes[SEGMENT_NAMES_BYTES];
    bool is_alone = context->bootstrap.local_count == 1, leads = context->bootstrap.local == 0;
    (void)str_format(key, sizeof key, "segments/%u", context->bootstrap.topology.host_of[context->rank]);
    int code = 0;
    if (!is_alone && leads) {
        code = make_segments(context, group, key, deadline_ns);
    } else if (!is_alone) {
        code = context_get_result(context, key, context->bootstrap.locals[0].rank, deadline_ns, bytes, sizeof bytes);
        for (int i = 0; code == 0 && i < 2; i++) {
            group_decode_segment_name(bytes + i * GROUP_SEGMENT_NAME_BYTES, &names[i]);
        }
    }
    bool opens = !is_alone && !leads;
    code = code ? code : context_attach(context, opens ? &names[0] : NULL);
    code = code ? code : group_attach(group, opens ? &names[1] : NULL);
    code = code ? code : group_meet(group, deadline_ns);
    return code ? code : forget_meeting(context, group, leads && !is_alone ? key : NULL, deadline_ns);
}

/* What has kept the group from being made, with its name. */
static int fail_to_create(const struct context_config *config, int code) {
    struct muster_failure failure = status_failure();
    code = status_prefix(code, "process group '%s', rank %u of %u", config->name, config->rank, config->size);
    (void)str_format(failure.group, sizeof failure.group, "%s", config->name);
    status_note(&failure);
    return code;
}

/* Before anything was made. */
static int refuse(const struct context_config *config, int code) {
    if (config->owns_store) {
        muster_store_close(config->store);
    }
    return fail_to_create(config, code);
}

static int create(const struct context_config *config, const struct muster_group_options *options, int64_t deadline_ns,
                  struct muster_group **out) {
    int64_t timeout_ns = group_timeout_ns(options->timeout_ms);
    struct context *context = NULL;
    struct muster_group *group = NULL;
    struct context_config full = *config;
    enum engine_kind wish;
    full.logs_calls = debug_start(config->rank);
    cuda_library_adopt(); /* for sentences about buffers in memory of GPUs */
    int code = group_engine_wish(options, &wish);
    if (code) {
        return refuse(&full, code);
    }
    full.engine_wish = (uint8_t)wish;
    full.engine_facts = group_engine_facts(wish);
    full.hooks = &group_context_hooks;
    full.interrupted = options->interrupted;
    full.interrupted_context = options->interrupted_context;
    code = context_create(&full, deadline_ns, &context);
    if (code) {
        return fail_to_create(config, code);
    }
    debug_context(context);
    uint32_t *ranks = calloc(config->size, sizeof *ranks);
    for (uint32_t rank = 0; ranks && rank < config->size; rank++) {
        ranks[rank] = rank;
    }
    code = ranks ? group_prepare(context, ranks, config->size, config->name, timeout_ns, &group)
                 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", config->size);
    free(ranks);
    if (code == 0) {
        group->engine_wish = wish;
    }
    code = code ? code : share_segments(context, group, deadline_ns);
    code = code ? code : context_watch_next_host(context, &group->message_waiter, deadline_ns);
    code = code ? code : group_connect_engine(group, deadline_ns);
    if (code) { /* others may only see that this rank, or another, has gone because of it */
        code = context_first_failure(context, code);
    }
    if (code) {
        code = fail_to_create(config, code);
        (void)group_dispose(group);
        context_free(context);
        return code;
    }
    context_seal(context);
    *out = group;
    return 0;
}

static int64_t deadline_of(const struct muster_group_options *options) {
    return clock_deadline_ns(clock_monotonic_ns(), options->timeout_ms);
}

static const char *name_of(const struct muster_group_options *options) {
    return options->name ? options->name : "world";
}

/* meeting_point: a store, a path; not NULL. given: the caller's, *options: the same as this version has them. */
static int check(const void *meeting_point, uint32_t rank, uint32_t world_size,
                 const struct muster_group_options *given, struct muster_group *const *out,
                 struct muster_group_options *options) {
    if (!meeting_point || !out) {
        return status_fail(MUSTER_EINVAL, "process group: %s is NULL", out ? "the place to meet" : "out");
    }
    if (world_size == 0 || world_size > MUSTER_GROUP_SIZE_MAX || rank >= world_size) {
        return status_fail(MUSTER_EINVAL, "rank %u of %u ranks; a group has 1 to %u", rank, world_size,
                           MUSTER_GROUP_SIZE_MAX);
    }
    return group_options_read(given, options);
}

int muster_group_create_store(struct muster_store *store, uint32_t rank, uint32_t world_size,
                              const struct muster_group_options *options, struct muster_group **out) {
    struct muster_group_options own;
    int code = check(store, rank, world_size, options, out, &own);
    if (code) {
        return code;
    }
    struct context_config config = {.store = store, .name = name_of(&own), .rank = rank, .size = world_size};
    return create(&config, &own, deadline_of(&own), out);
}

int group_create_root(struct muster_store *store, uint32_t rank, uint32_t size,
                      const struct muster_group_options *options, int64_t deadline_ns, struct muster_group **out) {
    if (size == 0 || size > MUSTER_GROUP_SIZE_MAX || rank >= size) {
        muster_store_close(store);
        return status_fail(MUSTER_EINVAL, "rank %u of %u ranks; a group has 1 to %u", rank, size,
                           MUSTER_GROUP_SIZE_MAX);
    }
    struct context_config config = {
        .store = store, .owns_store = store != NULL, .name = name_of(options), .rank = rank, .size = size};
    return create(&config, options, deadline_ns, out);
}

int muster_group_create_file(const char *path, uint32_t rank, uint32_t world_size,
                             const struct muster_group_options *options, struct muster_group **out) {
    struct muster_store *store = NULL;
    struct muster_group_options own;
    int code = check(path, rank, world_size, options, out, &own);
    if (code) {
        return code;
    }
    int64_t deadline_ns = deadline_of(&own);
    code = muster_store_open_file(path, world_size, MUSTER_STORE_DEFAULT, &store);
    return code ? code : group_create_root(store, rank, world_size, &own, deadline_ns, out);
}

int group_open_store(const char *host, uint16_t port, uint32_t rank, uint32_t size,
                     const struct muster_group_options *options, struct muster_store **out) {
    struct muster_store_options store_options = MUSTER_STORE_OPTIONS_INIT;
    store_options.host = host;
    store_options.port = port;
    store_options.world_size = size;
    store_options.is_host = rank == 0;
    store_options.wait_for_workers = false; /* the bootstrap does, and knows who is missing */
    store_options.timeout_ms = options->timeout_ms;
    return muster_store_open_tcp(&store_options, out);
}

int muster_group_create_tcp(const char *host, uint16_t port, uint32_t rank, uint32_t world_size,
                            const struct muster_group_options *options, struct muster_group **out) {
    struct muster_store *store = NULL;
    struct muster_group_options own;
    int code = check(host ? host : "", rank, world_size, options, out, &own);
    if (code) {
        return code;
    }
    int64_t deadline_ns = deadline_of(&own);
    code = group_open_store(host, port, rank, world_size, &own, &store);
    return code ? code : group_create_root(store, rank, world_size, &own, deadline_ns, out);
}
