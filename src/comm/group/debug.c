/* Lines for people who want to know what the library does; see debug.h. The rank in front of each line is the process's
 * by nature, like the sink of base/log.h. */
#include "comm/group/debug.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/str.h"
#include "comm/group/group_impl.h"

enum { LINE_BYTES = LOG_TEXT_MAX + 64, LIST_BYTES = 512, HOSTS_LISTED_MAX = 16 };

static _Atomic uint32_t own_rank;

/* One write a line, so that ranks that share a terminal do not mix their lines. */
static void write_line(enum log_level level, const char *file, int line, const char *text) {
    char out[LINE_BYTES];
    (void)level;
    (void)file;
    (void)line;
    int n = snprintf(out, sizeof out, "muster: rank %u: %s\n", atomic_load(&own_rank), text);
    size_t length = n < 0 ? 0 : (size_t)n < sizeof out ? (size_t)n : sizeof out - 1;
    printable_clean(out, length, true); /* names, variables, what other ranks say */
    ssize_t ignored = write(STDERR_FILENO, out, length);
    (void)ignored;
}

bool debug_start(uint32_t rank) {
    const char *wish = getenv("MUSTER_DEBUG");
    bool info = wish && strcasecmp(wish, "INFO") == 0, detail = wish && strcasecmp(wish, "DETAIL") == 0;
    atomic_store(&own_rank, rank);
    bool off = wish && strcasecmp(wish, "OFF") == 0;
    if (!log_has_sink() && !off) {
        log_set_sink(write_line);
    }
    if (!info && !detail && !off && wish && *wish && rank == 0) {
        log_warning("MUSTER_DEBUG=%.40s is not known: INFO, DETAIL and OFF are", wish);
    }
    if (info || detail) {
        log_set_level(detail ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    }
    return detail;
}

struct on_host {
    const struct topology *topology;
    uint32_t host;
};

static bool is_on_host(const void *argument, uint32_t rank) {
    const struct on_host *on = argument;
    return on->topology->host_of[rank] == on->host;
}

void debug_context(const struct context *context) {
    const struct topology *topology = &context->bootstrap.topology;
    log_info("%u ranks on %u host%s; this is rank %u, %u of %u on its host; %s%s", context->size, topology->host_count,
             topology->host_count == 1 ? "" : "s", context->rank, context->bootstrap.local,
             context->bootstrap.local_count,
             context->bootstrap.local_count > 1 ? "shared memory with neighbours" : "no neighbours that share memory",
             context->may_read_peers ? ", cross-memory reads where the kernel permits" : ", no cross-memory reads");
    for (uint32_t host = 0; context->rank == 0 && host < topology->host_count && host < HOSTS_LISTED_MAX; host++) {
        struct on_host on = {topology, host};
        char list[LIST_BYTES];
        log_info("host %u, %s, %u cores: ranks %s", host, topology->host_names[host], topology->core_counts[host],
                 bootstrap_list_ranks(topology->size, is_on_host, &on, list, sizeof list));
    }
    if (context->choice) {
        log_info("%zu rules of MUSTER_CHOICE_FILE before the built-in ones, and %zu links", context->choice->rule_count,
                 context->choice->link_count);
    }
}

void debug_group(const struct muster_group *group) {
    log_info("group '%s' (id %u): rank %u of %u, %u on this host, %u host%s, engine %s (%s); time-out %.3f s",
             group->name, group->id, group->rank, group->size, group->local_count, group->host_count,
             group->host_count == 1 ? "" : "s", group->engine->table->name, group->engine_reason,
             (double)group->timeout_ns / 1e9);
}

void debug_failure(const struct muster_group *group) {
    log_info("group '%s' has failed (%s): %s", group->name, muster_strerror(atomic_load(&group->failure.code)),
             group->failure.sentence);
}

void debug_call(const struct muster_group *group, const struct comm_call *call, uint64_t sequence, int64_t duration_ns,
                int status) {
    char what[128];
    (void)comm_fingerprint_format(call->fingerprint, what, sizeof what);
    const char *how = engine_algorithm(group->engine);
    log_debug("group '%s' call %llu, %s: %s after %.1f us (%s)", group->name, (unsigned long long)sequence, what,
              muster_strerror(status), (double)duration_ns / 1e3, how ? how : "nothing to send");
}

void debug_message(const struct message_note *note, int64_t duration_ns) {
    const char *preposition = note->operation == COMM_SEND ? "to" : "from";
    char peer[24] = "any rank";
    if (note->peer != MUSTER_ANY_RANK) {
        (void)str_format(peer, sizeof peer, "rank %u", note->peer);
    }
    log_debug("group '%s', %s of %zu %s %s %s, tag %u: %s after %.1f us", note->group->name,
              comm_operation_name(note->operation), note->count, muster_type_name(note->type), preposition, peer,
              note->tag, muster_strerror(note->status), (double)duration_ns / 1e3);
}
