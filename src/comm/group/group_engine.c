/* The engine of a group: which one it is to be, and how each is made. This is the only file that knows engines by name.
 * See group_impl.h and comm/engine/engine.h. */
#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/engine/engine_solo.h"
#include "comm/group/group_impl.h"
#include "comm/hierarchy/engine_muster.h"
#include "comm/mpi/engine_mpi.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/engine_nccl.h"

/* ---- choosing ---- */

int group_engine_wish(const struct muster_group_options *options, enum engine_kind *out) {
    return options->engine ? engine_kind_parse(options->engine, "the group's engine", out)
                           : engine_kind_parse(getenv("MUSTER_ENGINE"), "MUSTER_ENGINE", out);
}

/* Has this machine a network of a kind that MPI libraries drive themselves? */
static bool has_fabric(void) {
    static const char *const classes[] = {"/sys/class/infiniband", "/sys/class/cxi", "/sys/class/infiniband_verbs"};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        DIR *folder = opendir(classes[i]);
        bool has_device = false;
        for (struct dirent *entry; folder && !has_device && (entry = readdir(folder));) {
            has_device = entry->d_name[0] != '.' && strcmp(entry->d_name, "abi_version") != 0;
        }
        if (folder) {
            (void)closedir(folder);
        }
        if (has_device) {
            return true;
        }
    }
    return false;
}

uint8_t group_engine_facts(enum engine_kind wish) {
    const struct mpi *mpi = NULL;
    if (wish != ENGINE_AUTO || !has_fabric()) {
        return 0;
    }
    unsigned facts = ENGINE_FACT_FABRIC;
    if (mpi_world_is_served()) {
        facts |= ENGINE_FACT_MPI_STARTED | (mpi_open(&mpi) == 0 ? ENGINE_FACT_MPI_FOUND : 0u);
    }
    return (uint8_t)facts;
}

bool group_engine_may_be_mpi(enum engine_kind wish) {
    const unsigned all = ENGINE_FACT_FABRIC | ENGINE_FACT_MPI_STARTED | ENGINE_FACT_MPI_FOUND;
    return wish == ENGINE_MPI || group_engine_facts(wish) == all;
}

int group_engine_may_shrink(const struct muster_group *group) {
    if (strcmp(group->engine->table->name, engine_kind_name(ENGINE_MPI)) != 0) {
        return 0;
    }
    return status_fail(
        MUSTER_EUNSUPPORTED,
        "shrink group '%s': the engine 'mpi' makes no smaller group after a failure, since MPI cannot be "
        "used any more in this process: a rank can report it, and end; where nothing has failed, "
        "muster_group_subset() makes one",
        group->name);
}

/* ---- the parts of all engines ---- */

static void set_up_waiter(struct muster_group *group, struct comm_waiter *waiter, int (*stopped)(void *context),
                          const int32_t *pids) {
    waiter->bell = context_bell(group->context);
    waiter->stopped = stopped;
    waiter->idle = group_idle;
    waiter->woken = group->context->interrupted ? group_woken : NULL;
    waiter->context = group;
    comm_waiter_tune(waiter, pids, group->local_count);
    const struct topology *topology = &group->context->bootstrap.topology;
    if (group->local_count <= topology->core_counts[topology->host_of[group->context->rank]]) {
        return;
    }
    if (waiter == &group->waiter && group->local_count > 1 && group->host_count > 1) {
        comm_waiter_crowd_far(waiter);
    } else {
        comm_waiter_crowd(waiter);
    }
}

/* The members of this host, in the order of their ranks; and their process ids. */
static void list_members(const struct muster_group *group, struct node_member *members, int32_t *pids) {
    const struct context *context = group->context;
    for (uint32_t i = 0; i < group->local_count; i++) {
        uint32_t local = context_local_of(context, group->root_ranks[group->locals[i]]);
        assert(local < context->bootstrap.local_count);
        pids[i] = context->bootstrap.locals[local].pid;
        members[i] = (struct node_member){
            .local = local, .pid = pids[i], .bell = &context->lines[local].bell, .line = &group->lines[i].calls};
    }
}

/* On some host of the group, do more of its ranks wait than there are cores? The same on all ranks. */
static bool is_crowded(const struct muster_group *group, uint32_t *host_sizes) {
    const struct topology *topology = &group->context->bootstrap.topology;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        uint32_t host = topology->host_of[group->root_ranks[rank]];
        if (++host_sizes[host] > topology->core_counts[host]) {
            return true;
        }
    }
    return false;
}

static int make_muster(struct muster_group *group, const struct node_member *members, void *segment_part) {
    struct context *context = group->context;
    uint32_t *host_sizes = calloc(context->bootstrap.topology.host_count, sizeof *host_sizes);
    if (!host_sizes) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", group->size);
    }
    struct engine_muster_config config = {.node = {.segment = segment_part,
                                                   .size = group->local_count,
                                                   .index = group->local,
                                                   .members = members,
                                                   .waiter = &group->waiter,
                                                   .memory = context->memory,
                                                   .choice = context->choice,
                                                   .may_read_peers = context->may_read_peers},
                                          .host_count = group->host_count,
                                          .hierarchy = {.p2p = context->p2p,
                                                        .waiter = &group->waiter,
                                                        .choice = context->choice,
                                                        .group = group->id,
                                                        .name = group->name,
                                                        .rank = group->rank,
                                                        .size = group->size,
                                                        .peers = group->root_ranks,
                                                        .hosts = group->hosts,
                                                        .is_crowded = is_crowded(group, host_sizes)},
                                          .messages = {.p2p = context->p2p,
                                                       .waiter = &group->message_waiter,
                                                       .group = group->id,
                                                       .peers = group->root_ranks,
                                                       .size = group->size}};
    free(host_sizes);
    if (group->host_count > 1) {
        atomic_store_explicit(&context->uses_links, true, memory_order_relaxed);
    }
    return engine_muster_create(&config, &group->engine);
}

static void note_neighbours(const struct context *context) {
    for (uint32_t i = 0; i < context->bootstrap.local_count; i++) {
        const struct bootstrap_local *local = &context->bootstrap.locals[i];
        if (i != context->bootstrap.local) {
            mpi_world_note_neighbour(local->pid, local->start_time);
        }
    }
}

/* Of the members of this host. NULL: no memory. */
static const struct call_line **list_lines(const struct muster_group *group) {
    const struct call_line **lines = calloc(group->local_count, sizeof *lines);
    for (uint32_t i = 0; lines && i < group->local_count; i++) {
        lines[i] = &group->lines[i].calls;
    }
    return lines;
}

/* The user has calls compared between hosts, where no line tells of them. */
static bool compares_calls(const struct muster_group *group) {
    const char *compares = getenv("MUSTER_COMPARE_CALLS");
    return compares && strcmp(compares, "1") == 0 && group->size > 1;
}

static const char *host_name(const void *context, uint32_t root_rank) {
    return context_host_name(context, root_rank);
}

static int make_mpi(struct muster_group *group) {
    struct context *context = group->context;
    const struct call_line **lines = list_lines(group);
    if (!lines) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", group->size);
    }
    if (group->size == context->size) {
        note_neighbours(context);
    }
    const struct engine_mpi_config config = {.waiter = &group->waiter,
                                             .message_waiter = &group->message_waiter,
                                             .memory = context->memory,
                                             .group = group->id,
                                             .name = group->name,
                                             .rank = group->rank,
                                             .size = group->size,
                                             .peers = group->root_ranks,
                                             .root_rank = context->rank,
                                             .root_size = context->size,
                                             .host_name = host_name,
                                             .context = context,
                                             .lines = lines,
                                             .line_count = group->local_count,
                                             .own_line = &group->line->calls,
                                             .compares_calls = group->host_count > 1 && compares_calls(group)};
    int code = engine_mpi_create(&config, &group->engine);
    free(lines);
    return code;
}

/* ---- making ---- */

size_t group_engine_segment_bytes(uint32_t local_count) {
    return engine_muster_segment_bytes(local_count);
}

/* For memory of the host. */
static int make_host(struct muster_group *group, const struct node_member *members, void *segment_part) {
    return group->size == 1 ? engine_solo_create(group->context->memory, &group->engine)
                            : make_muster(group, members, segment_part);
}

/* Ranks of the failed group that this one is without. NULL: no memory. */
static int *list_left_out(const struct muster_group *group, uint32_t *out_count) {
    uint32_t whole = group->shrunk_from ? group->shrunk_from->size : 0, at = 0;
    int *ranks = calloc(whole + 1, sizeof *ranks);
    *out_count = 0;
    for (uint32_t rank = 0; ranks && rank < whole; rank++) {
        if (at < group->size && group->survivors[at] == rank) {
            at++;
        } else {
            ranks[(*out_count)++] = (int)rank;
        }
    }
    return ranks;
}

/* NCCL for memory of GPUs, around the engine for that of the host. */
static int make_nccl(struct muster_group *group, const struct node_member *members, void *segment_part) {
    int code = make_host(group, members, segment_part);
    const struct call_line **lines = list_lines(group);
    uint32_t left_out_count = 0;
    int *left_out = list_left_out(group, &left_out_count);
    if (code == 0 && !(lines && left_out)) {
        code = status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", group->size);
    }
    struct engine_nccl_config config = {.host = group->engine,
                                        .waiter = &group->message_waiter,
                                        .failure = &group->failure,
                                        .rank = group->rank,
                                        .size = group->size,
                                        .local = group->context->bootstrap.local,
                                        .name = group->name,
                                        .lines = lines,
                                        .line_count = group->local_count,
                                        .own_line = &group->line->calls,
                                        .compares_calls = compares_calls(group),
                                        .failed = group->shrunk_from ? group->shrunk_from->engine : NULL,
                                        .left_out = left_out,
                                        .left_out_count = left_out_count};
    code = code ? code : engine_nccl_create(&config, &group->engine); /* else the host's is the group's to free */
    free(left_out);
    free(lines);
    return code;
}

static int make_chosen(struct muster_group *group, const struct node_member *members, void *segment_part) {
    const struct topology *topology = &group->context->bootstrap.topology;
    struct engine_choice choice = engine_choose(group->engine_wish, topology->engine_facts, topology->host_count);
    bool is_alone = group->size == 1 && choice.kind != ENGINE_NCCL;
    group->engine_reason = is_alone ? "a group of one rank" : choice.reason;
    if (is_alone) {
        return make_host(group, members, segment_part);
    }
    switch (choice.kind) {
    case ENGINE_MPI:
        return make_mpi(group);
    case ENGINE_NCCL:
        return make_nccl(group, members, segment_part);
    case ENGINE_MUSTER:
    default:
        return make_host(group, members, segment_part);
    }
}

int group_make_engine(struct muster_group *group, void *segment_part) {
    struct node_member *members = calloc(group->local_count, sizeof *members);
    int32_t *pids = calloc(group->local_count, sizeof *pids);
    int code = members && pids ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", group->size);
    if (code == 0) {
        list_members(group, members, pids);
        set_up_waiter(group, &group->waiter, group_call_stopped, pids);
        set_up_waiter(group, &group->message_waiter, group_message_stopped, pids);
        code = make_chosen(group, members, segment_part);
    }
    free(pids);
    free(members);
    return code;
}

/* A member that could not tells the others, who may be waiting for it. */
int group_fail_setup(struct muster_group *group, int code) {
    char sentence[MUSTER_DETAIL_MAX];
    (void)str_format(sentence, sizeof sentence, "%s", muster_detail());
    const struct muster_failure record = status_failure();
    (void)group_fail(group, code, sentence, &record);
    return status_restore(code, sentence, &record);
}

int group_connect_engine(struct muster_group *group, int64_t deadline_ns) {
    const struct engine_table *table = group->engine->table;
    int code = table->connect ? table->connect(group->engine, deadline_ns) : 0;
    if (code == MUSTER_ETIMEOUT) {
        code = status_fail(code, "the engine '%s' was not ready on all ranks in time", table->name);
    }
    if (code && !failure_is_set(&group->failure)) {
        return group_fail_setup(group, code);
    }
    return code ? failure_tell(&group->failure) : 0;
}
