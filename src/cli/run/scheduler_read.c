/* What the readers of the schedulers have in common: numbers, hosts and ports out of variables; see scheduler_impl.h.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hostlist.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/run/scheduler_impl.h"

enum { PORT_FIRST = 12000, PORT_COUNT = 20000, RANK_MAX = INT32_MAX };

const char *scheduler_variable(const struct scheduler_source *source, const char *name) {
    const char *text = source->lookup(source->ctx, name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

void scheduler_doubt(struct scheduler *out, const char *format, ...) {
    va_list arguments;
    if (out->doubt[0] == '\0') {
        va_start(arguments, format);
        (void)vsnprintf(out->doubt, sizeof out->doubt, format, arguments);
        va_end(arguments);
    }
}

bool scheduler_number(const struct scheduler_source *source, const char *name, uint32_t least, struct scheduler *out,
                      uint32_t *number) {
    const char *text = scheduler_variable(source, name);
    int64_t value = 0;
    bool fits = text != NULL && str_parse_i64(text, &value) && value >= (int64_t)least && value <= RANK_MAX;
    if (fits) {
        *number = (uint32_t)value;
    } else if (text != NULL) {
        scheduler_doubt(out, "%s is '%.100s', and a number from %" PRIu32 " on is expected", name, text, least);
    }
    return fits;
}

bool scheduler_agents(const struct scheduler_source *source, const char *const *names, struct scheduler *out) {
    for (; *names != NULL; names++) {
        uint32_t count = 0;
        if (!scheduler_number(source, *names, 1, out, &count)) {
            continue;
        }
        if (count > SCHEDULER_AGENTS_MAX) {
            scheduler_doubt(out, "%s is %" PRIu32 ", and a job has at most %d nodes", *names, count,
                            SCHEDULER_AGENTS_MAX);
            continue;
        }
        out->agents = count;
        (void)str_copy(out->count_variable, sizeof out->count_variable, *names);
        return true;
    }
    return false;
}

void scheduler_rank(const struct scheduler_source *source, const char *name, struct scheduler *out) {
    out->knows_rank = scheduler_number(source, name, 0, out, &out->rank);
}

bool scheduler_first_hosts(const char *list, struct scheduler *out) {
    size_t count = 0;
    int rc = hostlist_count(list, &count);
    out->host_count = count < SCHEDULER_HOSTS_MAX ? (uint32_t)count : SCHEDULER_HOSTS_MAX;
    for (size_t i = 0; rc == MUSTER_OK && i < out->host_count; i++) {
        rc = hostlist_get(list, i, out->hosts[i]);
    }
    if (rc != MUSTER_OK) {
        out->host_count = 0;
        scheduler_doubt(out, "Slurm's list of nodes: %.150s", muster_detail());
        status_clear();
    }
    return rc == MUSTER_OK;
}

static void take_port(const struct scheduler_source *source, struct scheduler *out) {
    const char *text = scheduler_variable(source, "MASTER_PORT");
    uint32_t port = 0;
    if (text == NULL || str_is_service_link(text) || !scheduler_number(source, "MASTER_PORT", 0, out, &port)) {
        return;
    }
    if (port > UINT16_MAX) {
        scheduler_doubt(out, "MASTER_PORT is %" PRIu32 ", and a port is at most 65535", port);
        return;
    }
    out->port = (uint16_t)port;
}

void scheduler_master(const struct scheduler_source *source, struct scheduler *out) {
    const char *host = scheduler_variable(source, "MASTER_ADDR");
    take_port(source, out);
    if (host == NULL) {
        return;
    }
    if (strlen(host) >= sizeof out->hosts[0]) {
        scheduler_doubt(out, "MASTER_ADDR has more than %d bytes", HOSTLIST_HOST_MAX - 1);
        return;
    }
    (void)str_copy(out->hosts[0], sizeof out->hosts[0], host);
    out->host_count = 1;
}

uint16_t scheduler_port(uint64_t number) {
    return (uint16_t)(PORT_FIRST + number % PORT_COUNT);
}
