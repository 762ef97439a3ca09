/* Making the root group: from the environment, a store, a file or an address. See muster/group.h. */
#include <muster/group.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group_impl.h"

/* The names of the two segments that a host's first rank makes, in one value of the store. */
enum { SEGMENT_NAMES_BYTES = 2 * GROUP_SEGMENT_NAME_BYTES, SEGMENTS_KEY_BYTES = 24 };

/* The first rank of a host: makes both segments, and tells the others, also what went wrong. */
static int make_segments(struct context *context, struct muster_group *group, const char *key) {
    struct segment_name names[2];
    uint8_t bytes[SEGMENT_NAMES_BYTES];
    int code = context_make_segment(context, &names[0]);
    code = code ? code : group_make_segment(group, &names[1]);
    for (int i = 0; code == 0 && i < 2; i++) {
        group_encode_segment_name(&names[i], bytes + i * GROUP_SEGMENT_NAME_BYTES);
    }
    int told = context_put_result(context, key, code, bytes, sizeof bytes);
    return code ? code : told;
}

static int share_segments(struct context *context, struct muster_group *group, int64_t deadline_ns) {
    char key[SEGMENTS_KEY_BYTES];
    struct segment_name names[2];
    uint8_t bytes[SEGMENT_NAMES_BYTES];
    bool is_alone = context->bootstrap.local_count == 1, leads = context->bootstrap.local == 0;
    (void)str_format(key, sizeof key, "segments/%u", context->bootstrap.topology.host_of[context->rank]);
    int code = 0;
    if (!is_alone && leads) {
        code = make_segments(context, group, key);
    } else if (!is_alone) {
        code = context_get_result(context, key, context->bootstrap.locals[0].rank, deadline_ns, bytes, sizeof bytes);
        for (int i = 0; code == 0 && i < 2; i++) {
            group_decode_segment_name(bytes + i * GROUP_SEGMENT_NAME_BYTES, &names[i]);
        }
    }
    bool opens = !is_alone && !leads;
    code = code ? code : context_attach(context, opens ? &names[0] : NULL);
    return code ? code : group_attach(group, opens ? &names[1] : NULL, deadline_ns);
}

static int create(const struct context_config *config, const struct muster_group_options *options, int64_t deadline_ns,
                  struct muster_group **out) {
    int64_t timeout_ns = group_timeout_ns(options ? options->timeout_ms : MUSTER_GROUP_TIMEOUT_MS);
    struct context *context = NULL;
    struct muster_group *group = NULL;
    int code = context_create(config, deadline_ns, &context);
    if (code) {
        return status_prefix(code, "process group '%s', rank %u of %u", config->name, config->rank, config->size);
    }
    uint32_t *ranks = calloc(config->size, sizeof *ranks);
    for (uint32_t rank = 0; ranks && rank < config->size; rank++) {
        ranks[rank] = rank;
    }
    code = ranks ? group_prepare(context, ranks, config->size, config->name, timeout_ns, &group)
                 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", config->size);
    free(ranks);
    code = code ? code : share_segments(context, group, deadline_ns);
    code = code ? code : context_watch_next_host(context, &group->message_waiter, deadline_ns);
    if (code) { /* others may only see that this rank, or another, has gone because of it */
        char key[SEGMENTS_KEY_BYTES];
        (void)str_format(key, sizeof key, "failed/%u", context->bootstrap.topology.host_of[context->rank]);
        code = context_first_failure(context, key, code);
    }
    if (code) {
        code = status_prefix(code, "process group '%s', rank %u of %u", config->name, config->rank, config->size);
        (void)group_dispose(group);
        context_free(context);
        return code;
    }
    context_seal(context);
    *out = group;
    return 0;
}

static int64_t deadline_of(const struct muster_group_options *options) {
    return clock_deadline_ns(clock_monotonic_ns(), options ? options->timeout_ms : MUSTER_GROUP_TIMEOUT_MS);
}

static const char *name_of(const struct muster_group_options *options) {
    return options && options->name ? options->name : "world";
}

/* meeting_point: a store, a path; not NULL. */
static int check(const void *meeting_point, uint32_t rank, uint32_t world_size,
                 const struct muster_group_options *options, struct muster_group *const *out) {
    if (!meeting_point || !out) {
        return status_fail(MUSTER_EINVAL, "process group: %s is NULL", out ? "the place to meet" : "out");
    }
    if (world_size == 0 || world_size > MUSTER_GROUP_SIZE_MAX || rank >= world_size) {
        return status_fail(MUSTER_EINVAL, "rank %u of %u ranks; a group has 1 to %u", rank, world_size,
                           MUSTER_GROUP_SIZE_MAX);
    }
    return group_options_check(options);
}

int muster_group_create_store(struct muster_store *store, uint32_t rank, uint32_t world_size,
                              const struct muster_group_options *options, struct muster_group **out) {
    int code = check(store, rank, world_size, options, out);
    if (code) {
        return code;
    }
    struct context_config config = {store, false, name_of(options), rank, world_size};
    return create(&config, options, deadline_of(options), out);
}

/* With a store that was opened for the group: closed with it, or when there will be none. */
static int create_owning(struct muster_store *store, uint32_t rank, uint32_t world_size,
                         const struct muster_group_options *options, int64_t deadline_ns, struct muster_group **out) {
    struct context_config config = {store, true, name_of(options), rank, world_size};
    return create(&config, options, deadline_ns, out);
}

int muster_group_create_file(const char *path, uint32_t rank, uint32_t world_size,
                             const struct muster_group_options *options, struct muster_group **out) {
    struct muster_store *store = NULL;
    int code = check(path, rank, world_size, options, out);
    int64_t deadline_ns = code ? 0 : deadline_of(options);
    code = code ? code : muster_store_open_file(path, world_size, MUSTER_STORE_DEFAULT, &store);
    return code ? code : create_owning(store, rank, world_size, options, deadline_ns, out);
}

int muster_group_create_tcp(const char *host, uint16_t port, uint32_t rank, uint32_t world_size,
                            const struct muster_group_options *options, struct muster_group **out) {
    struct muster_store *store = NULL;
    struct muster_store_options store_options = MUSTER_STORE_OPTIONS_INIT;
    int code = check(host ? host : "", rank, world_size, options, out);
    int64_t deadline_ns = code ? 0 : deadline_of(options);
    store_options.host = host;
    store_options.port = port;
    store_options.world_size = world_size;
    store_options.is_host = rank == 0;
    store_options.wait_for_workers = false; /* the bootstrap does, and knows who is missing */
    store_options.timeout_ms = options ? options->timeout_ms : MUSTER_GROUP_TIMEOUT_MS;
    code = code ? code : muster_store_open_tcp(&store_options, &store);
    return code ? code : create_owning(store, rank, world_size, options, deadline_ns, out);
}

/* The launcher's variables have been checked by muster_store_open_env(). */
static uint32_t number_of_env(const char *name) {
    int64_t value = 0;
    const char *text = getenv(name);
    return text && str_parse_i64(text, &value) ? (uint32_t)value : 0;
}

/* Keys of its own for each group, since the job's store may hold those of others of the same name: of one that this
 * process has freed, or of the ranks of an attempt before (torchrun keeps them). Each rank counts in the store how
 * often its number has made one; launchers count attempts that a failure ended, after which these counts may differ,
 * and after a change of members the number of ranks is another one, or all have counted alike. Takes `store`, gives
 * *out. */
static int take_turn(struct muster_store *store, const char *name, uint32_t rank, uint32_t world_size,
                     struct muster_store **out) {
    char text[MUSTER_GROUP_NAME_MAX + 96];
    uint32_t attempt = number_of_env("TORCHELASTIC_RESTART_COUNT");
    int64_t turn = 0;
    (void)str_format(text, sizeof text, "muster/turns/%s/attempt-%u/rank-%u-of-%u", name, attempt, rank, world_size);
    int code = muster_store_add(store, text, 1, &turn);
    (void)str_format(text, sizeof text, "muster/attempt-%u/%u-ranks/turn-%lld", attempt, world_size, (long long)turn);
    code = code ? code : muster_store_prefix(store, text, out);
    muster_store_close(store);
    return code;
}

int muster_group_create_env(const struct muster_group_options *options, struct muster_group **out) {
    struct muster_store *store = NULL;
    int code = group_options_check(options);
    int64_t deadline_ns = code ? 0 : deadline_of(options);
    code = code ? code : muster_store_open_env(options ? options->timeout_ms : MUSTER_GROUP_TIMEOUT_MS, &store);
    if (code) {
        return code;
    }
    uint32_t rank = number_of_env("RANK"), world_size = number_of_env("WORLD_SIZE");
    code = check("", rank, world_size, options, out);
    if (code) {
        muster_store_close(store);
        return code;
    }
    struct muster_store *own = NULL;
    code = take_turn(store, name_of(options), rank, world_size, &own);
    return code ? code : create_owning(own, rank, world_size, options, deadline_ns, out);
}
