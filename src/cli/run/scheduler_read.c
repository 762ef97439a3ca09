/* What the readers of the schedulers have in common: numbers, hosts and ports out of variables; see scheduler_impl.h.
 */
#include <inttypes.h>

#include "base/hostlist.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/run/scheduler_impl.h"

enum { PORT_FIRST = 12000, PORT_COUNT = 20000, RANK_MAX = INT32_MAX };

const char *scheduler_variable(const struct scheduler_source *source, const char *name) {
    const char *text = source->lookup(source->ctx, name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

int scheduler_number(const struct scheduler_source *source, const char *name, uint32_t least, uint32_t *out,
                     bool *found) {
    const char *text = scheduler_variable(source, name);
    int64_t value = 0;
    *found = text != NULL;
    *out = 0;
    if (text == NULL) {
        return MUSTER_OK;
    }
    if (!str_parse_i64(text, &value) || value < (int64_t)least || value > RANK_MAX) {
        return status_fail(MUSTER_EINVAL,
                           "%s is '%.100s': a number from %" PRIu32 " on is expected (--scheduler=none ignores it)",
                           name, text, least);
    }
    *out = (uint32_t)value;
    return MUSTER_OK;
}

int scheduler_agents(const struct scheduler_source *source, const char *const *names, struct scheduler *out) {
    bool found = false;
    int rc = MUSTER_OK;
    for (; rc == MUSTER_OK && !found && *names != NULL; names++) {
        rc = scheduler_number(source, *names, 1, &out->agents, &found);
        if (rc == MUSTER_OK && found) {
            (void)str_copy(out->count_variable, sizeof out->count_variable, *names);
        }
    }
    if (rc == MUSTER_OK && out->agents > SCHEDULER_AGENTS_MAX) {
        rc = status_fail(MUSTER_EINVAL, "%s is %" PRIu32 ": a job has at most %d nodes", out->count_variable,
                         out->agents, SCHEDULER_AGENTS_MAX);
    }
    return rc;
}

int scheduler_first_hosts(const char *list, struct scheduler *out) {
    size_t count = 0;
    int rc = hostlist_count(list, &count);
    out->host_count = count < SCHEDULER_HOSTS_MAX ? (uint32_t)count : SCHEDULER_HOSTS_MAX;
    for (size_t i = 0; rc == MUSTER_OK && i < out->host_count; i++) {
        rc = hostlist_get(list, i, out->hosts[i]);
    }
    return rc;
}

int scheduler_master(const struct scheduler_source *source, struct scheduler *out) {
    const char *host = scheduler_variable(source, "MASTER_ADDR");
    uint32_t port = 0;
    bool found = false;
    int rc = scheduler_number(source, "MASTER_PORT", 0, &port, &found);
    if (rc == MUSTER_OK && port > UINT16_MAX) {
        rc = status_fail(MUSTER_EINVAL, "MASTER_PORT is %" PRIu32 ": a port is at most 65535", port);
    }
    if (rc == MUSTER_OK && host != NULL) {
        out->host_count = 1;
        if (!str_copy(out->hosts[0], sizeof out->hosts[0], host)) {
            rc = status_fail(MUSTER_EINVAL, "MASTER_ADDR has more than %d bytes", HOSTLIST_HOST_MAX - 1);
        }
    }
    if (rc == MUSTER_OK && found) {
        out->port = (uint16_t)port;
    }
    return rc;
}

uint16_t scheduler_port(uint64_t number) {
    return (uint16_t)(PORT_FIRST + number % PORT_COUNT);
}
