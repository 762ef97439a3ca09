/* A group from a list of ranks: places, the segment of each host, the meeting of its members. See group_impl.h. */
#include "comm/group/group_impl.h"
#include "comm/observe/recorder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/debug.h"
#include "comm/node/node.h"

/* ---- options ---- */

int group_options_read(const struct muster_group_options *given, struct muster_group_options *options) {
    *options = (struct muster_group_options)MUSTER_GROUP_OPTIONS_INIT;
    int code = sized_read_options(options, sizeof *options, given, "muster_group_options", "MUSTER_GROUP_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (options->timeout_ms <= 0) {
        return status_fail(MUSTER_EINVAL, "the group's timeout_ms is %lld; it must be positive",
                           (long long)options->timeout_ms);
    }
    if (options->name && (options->name[0] == '\0' || strlen(options->name) >= MUSTER_GROUP_NAME_MAX)) {
        return status_fail(MUSTER_EINVAL, "a group's name has 1 to %d bytes", MUSTER_GROUP_NAME_MAX - 1);
    }
    return 0;
}

/* ---- who may use it ---- */

int group_refuse(const struct muster_group *group) {
    if (!group) {
        return status_fail(MUSTER_EINVAL, "the group is NULL");
    }
    return group->is_freed
               ? status_fail(MUSTER_EINVAL, "group '%s' has been freed: free what was made with it first", group->name)
               : status_fail(MUSTER_EINVAL, "group '%s' belongs to the process that this one was forked from",
                             group->name);
}

/* ---- places ---- */

static int find_places(struct muster_group *group) {
    const struct topology *topology = &group->context->bootstrap.topology;
    uint32_t *numbers = malloc(topology->host_count * sizeof *numbers); /* the group's number of each host */
    if (!numbers) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", group->size);
    }
    for (uint32_t host = 0; host < topology->host_count; host++) {
        numbers[host] = UINT32_MAX;
    }
    uint32_t own_host = topology->host_of[group->context->rank];
    for (uint32_t rank = 0; rank < group->size; rank++) {
        uint32_t host = topology->host_of[group->root_ranks[rank]];
        if (numbers[host] == UINT32_MAX) {
            numbers[host] = group->host_count++;
        }
        group->hosts[rank] = numbers[host];
        if (group->root_ranks[rank] == group->context->rank) {
            group->rank = rank;
            group->local = group->local_count;
        }
        if (host == own_host) {
            group->locals[group->local_count++] = rank;
        }
    }
    free(numbers);
    if (group->local_count > NODE_SIZE_MAX) {
        return status_fail(MUSTER_ELIMIT,
                           "%u ranks on one host; at most %u can share memory (MUSTER_SHM=0 does without)",
                           group->local_count, NODE_SIZE_MAX);
    }
    return 0;
}

int group_new_id(struct context *context, uint32_t *out) {
    pthread_mutex_lock(&context->mutex);
    uint32_t number = context->next_group_number;
    bool is_full = number > UINT16_MAX || context->group_count >= MUSTER_GROUPS_MAX;
    context->next_group_number += is_full ? 0 : 1;
    pthread_mutex_unlock(&context->mutex);
    if (is_full) {
        return status_fail(MUSTER_ELIMIT, "too many groups: %u at a time, %u in all may be made", MUSTER_GROUPS_MAX,
                           UINT16_MAX);
    }
    *out = context->rank << 16 | number; /* the root group's is 0 */
    return 0;
}

int group_prepare(struct context *context, const uint32_t *ranks, uint32_t rank_count, const char *name,
                  int64_t timeout_ns, struct muster_group **out) {
    struct muster_group *group = NULL;
    if (posix_memalign((void **)&group, 64, sizeof *group) != 0) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group");
    }
    memset(group, 0, sizeof *group);
    group->context = context;
    group->size = rank_count;
    group->segment.fd = -1;
    failure_init(&group->failure);
    failure_init(&group->told);
    (void)pthread_mutex_init(&group->examine_mutex, NULL);
    ticks_init(&group->clock);
    group->timeout_ns = timeout_ns;
    (void)str_format(group->name, sizeof group->name, "%s", name);
    group->root_ranks = calloc(rank_count, sizeof *group->root_ranks);
    group->hosts = calloc(rank_count, sizeof *group->hosts);
    group->locals = calloc(rank_count, sizeof *group->locals);
    int code = group->root_ranks && group->hosts && group->locals
                   ? 0
                   : status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", rank_count);
    if (code == 0) {
        memcpy(group->root_ranks, ranks, rank_count * sizeof *ranks);
        code = find_places(group);
    }
    if (code) {
        (void)group_dispose(group);
        return code;
    }
    *out = group;
    return 0;
}

/* ---- the segment ---- */

static size_t lines_offset(void) {
    return SEGMENT_HEADER_BYTES + sizeof(struct group_shared);
}

static size_t engine_offset(uint32_t local_count) {
    return lines_offset() + local_count * sizeof(struct group_line);
}

static size_t segment_bytes(uint32_t local_count) {
    return engine_offset(local_count) + group_engine_segment_bytes(local_count);
}

void group_encode_segment_name(const struct segment_name *name, uint8_t out[GROUP_SEGMENT_NAME_BYTES]) {
    struct bytes_writer w = {out, GROUP_SEGMENT_NAME_BYTES, 0, false};
    bytes_put_number(&w, (uint32_t)name->pid, 4);
    bytes_put_number(&w, (uint32_t)name->fd, 4);
    bytes_put_number(&w, name->bytes, 8);
    bytes_put_number(&w, name->cookie, 8);
    assert(!w.overrun);
}

void group_decode_segment_name(const uint8_t in[GROUP_SEGMENT_NAME_BYTES], struct segment_name *out) {
    struct bytes_reader r = {in, GROUP_SEGMENT_NAME_BYTES, 0, false};
    out->pid = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    out->fd = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    out->bytes = bytes_get_number(&r, 8);
    out->cookie = bytes_get_number(&r, 8);
}

int group_make_segment(struct muster_group *group, struct segment_name *out_name) {
    assert(group_leads_host(group) && group->local_count > 1);
    return segment_create(segment_bytes(group->local_count), "muster-group", 1, &group->segment, out_name);
}

static int open_segment(struct muster_group *group, const struct segment_name *name) {
    size_t bytes = segment_bytes(group->local_count);
    if (name) {
        int code = segment_open(name, &group->segment);
        if (code) {
            return code;
        }
        if (group->segment.bytes != bytes) {
            return status_fail(MUSTER_EPROTOCOL, "the group's segment of %zu bytes is another version's",
                               group->segment.bytes);
        }
    }
    uint8_t *memory = group->segment.memory;
    if (!memory) {
        group->own_memory = segment_make_private(bytes);
        memory = group->own_memory;
        if (!memory) {
            return status_fail(MUSTER_ENOMEM, "no memory for a group");
        }
    }
    group->shared = (struct group_shared *)(void *)(memory + SEGMENT_HEADER_BYTES);
    group->lines = (struct group_line *)(void *)(memory + lines_offset());
    group->line = &group->lines[group->local];
    return 0;
}

static void *engine_part(const struct muster_group *group) {
    uint8_t *memory = group->segment.memory ? group->segment.memory : group->own_memory;
    return memory + engine_offset(group->local_count);
}

/* ---- meeting ---- */

static bool all_attached(void *argument) {
    struct muster_group *group = argument;
    return atomic_load_explicit(&group->shared->attached, memory_order_acquire) >= group->meetings * group->local_count;
}

static void tell_locals(struct muster_group *group) {
    group->meetings++;
    uint32_t before = atomic_fetch_add_explicit(&group->shared->attached, 1, memory_order_acq_rel);
    if (before + 1 < group->meetings * group->local_count) {
        return; /* the last one wakes all: a thousand ranks would wake each other a million times */
    }
    for (uint32_t i = 0; i < group->local_count; i++) {
        uint32_t local = context_local_of(group->context, group->root_ranks[group->locals[i]]);
        comm_bell_ring(&group->context->lines[local].bell);
    }
}

int group_meet(struct muster_group *group, int64_t deadline_ns) {
    int code = comm_wait(&group->message_waiter, all_attached, group, deadline_ns);
    if (code == MUSTER_ETIMEOUT) {
        return status_fail(code, "%u of the %u ranks on this host did not come in time",
                           group->meetings * group->local_count - atomic_load(&group->shared->attached),
                           group->local_count);
    }
    if (code == 0) {
        group_attached(group);
    }
    return code;
}

int group_meet_again(struct muster_group *group, int64_t deadline_ns) {
    tell_locals(group);
    return group_meet(group, deadline_ns);
}

void group_attached(struct muster_group *group) {
    if (group->segment.memory && group->segment.fd >= 0) {
        (void)close(group->segment.fd);
        group->segment.fd = -1;
    }
    debug_group(group);
}

static void enlist(struct muster_group *group) {
    struct context *context = group->context;
    pthread_mutex_lock(&context->mutex);
    group->next = context->groups;
    if (context->groups) {
        context->groups->previous = group;
    }
    context->groups = group;
    context->group_count++;
    bool somebody_is_gone = atomic_load_explicit(&context->gone_count, memory_order_acquire) > 0;
    pthread_mutex_unlock(&context->mutex);
    if (somebody_is_gone) {
        group_alarm(group); /* perhaps one of its ranks, before it was in the list */
    }
}

/* true: it was in the list, as the last one. */
static bool delist(struct muster_group *group) {
    struct context *context = group->context;
    pthread_mutex_lock(&context->mutex);
    bool is_listed = group->previous || context->groups == group;
    if (is_listed) {
        *(group->previous ? &group->previous->next : &context->groups) = group->next;
        if (group->next) {
            group->next->previous = group->previous;
        }
        group->next = group->previous = NULL;
        context->group_count--;
    }
    bool was_last = is_listed && context->group_count == 0;
    pthread_mutex_unlock(&context->mutex);
    return was_last;
}

/* For the launcher, and for muster status. */
static void record_group(const struct muster_group *group) {
    char engine[CALL_RECORD_ENGINE_BYTES];
    (void)str_format(engine, sizeof engine, "%s (%s)", group->engine->table->name, group->engine_reason);
    recorder_name_group(group->context->recorder, group->id, group->name, engine);
}

int group_attach(struct muster_group *group, const struct segment_name *name) {
    int code = open_segment(group, name);
    code = code ? code : group_make_engine(group, engine_part(group));
    if (code == 0) {
        record_group(group);
        enlist(group);
        tell_locals(group);
    }
    return code;
}

/* For those who hold it: a group that every call refuses. */
static void leave_empty(struct muster_group *group) {
    static const uint32_t never = 0;
    static struct context nowhere = {.alive = &never};
    group->context = &nowhere;
    group->engine = NULL;
    group->locals = group->hosts = group->root_ranks = NULL;
    group->size = group->host_count = group->local_count = 0;
    group->is_freed = true;
}

bool group_dispose(struct muster_group *group) {
    if (!group) {
        return false;
    }
    bool was_last = delist(group);
    engine_free(group->engine);
    if (group->segment.memory) {
        segment_close(&group->segment);
    }
    segment_free_private(group->own_memory, segment_bytes(group->local_count));
    free(group->locals);
    free(group->hosts);
    free(group->root_ranks);
    pthread_mutex_destroy(&group->examine_mutex);
    failure_done(&group->failure);
    failure_done(&group->told);
    if (atomic_load_explicit(&group->holder_count, memory_order_acquire) > 0) {
        leave_empty(group);
    } else {
        free(group);
    }
    return was_last;
}
