/* Encoding and decoding of spawn frames; see guardian_wire.h. The other frames are plain structs. */
#include "agent/guardian/guardian_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static int strings_encode(const char *const *strings, uint32_t *out_count, struct buf *out) {
    uint32_t count = 0;
    for (; strings[count]; count++) {
        if (count == GUARDIAN_STRINGS_MAX) {
            return status_fail(MUSTER_ELIMIT, "a worker's command line and environment take at most %u items each",
                               GUARDIAN_STRINGS_MAX);
        }
        int status = buf_append(out, strings[count], strlen(strings[count]) + 1);
        if (status != MUSTER_OK) {
            return status_prefix(status, "a worker's command line and environment");
        }
    }
    *out_count = count;
    return MUSTER_OK;
}

int guardian_wire_encode(uint32_t id, const struct guardian_spawn *spawn, struct buf *out) {
    struct guardian_spawn_head head = {.id = id,
                                       .has_stdout = spawn->stdout_fd >= 0,
                                       .has_stderr = spawn->stderr_fd >= 0,
                                       .has_given = spawn->given_fd > 0,
                                       .is_preloaded = spawn->is_preloaded};
    if (!spawn->argv[0] || spawn->argv[0][0] == '\0') {
        return status_fail(MUSTER_EINVAL, "a worker's command line is empty");
    }
    if (spawn->cpus && (spawn->cpus_bytes == 0 || spawn->cpus_bytes > GUARDIAN_CPUS_BYTES_MAX)) {
        return status_fail(MUSTER_EINVAL, "a CPU mask of %zu bytes", spawn->cpus_bytes);
    }
    head.cpus_bytes = spawn->cpus ? (uint32_t)spawn->cpus_bytes : 0;
    int status = buf_append(out, &head, sizeof head);
    if (status == MUSTER_OK && head.cpus_bytes > 0) {
        status = buf_append(out, spawn->cpus, head.cpus_bytes);
    }
    if (status == MUSTER_OK) {
        status = strings_encode(spawn->argv, &head.argv_count, out);
    }
    if (status == MUSTER_OK) {
        status = strings_encode(spawn->envp, &head.envp_count, out);
    }
    if (status == MUSTER_OK) {
        memcpy(buf_bytes(out), &head, sizeof head); /* the counts are known now */
    }
    return status;
}

/* Points `count` items of `*out` at the strings from *at on; false when they do not fit into `end`. */
static int strings_decode(const uint8_t **at, const uint8_t *end, uint32_t count, char ***out) {
    *out = calloc((size_t)count + 1, sizeof **out);
    if (!*out) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u strings", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *zero = memchr(*at, 0, (size_t)(end - *at));
        if (!zero) {
            return status_fail(MUSTER_EPROTOCOL, "a spawn order with missing strings");
        }
        (*out)[i] = (char *)(uintptr_t)*at;
        *at = zero + 1;
    }
    return MUSTER_OK;
}

static int cpus_decode(const uint8_t **at, const uint8_t *end, uint32_t bytes, cpu_set_t **out) {
    if (bytes == 0) {
        return MUSTER_OK;
    }
    if ((size_t)(end - *at) < bytes) {
        return status_fail(MUSTER_EPROTOCOL, "a spawn order with a short CPU mask");
    }
    *out = malloc(bytes);
    if (!*out) {
        return status_fail(MUSTER_ENOMEM, "no memory for a CPU mask");
    }
    memcpy(*out, *at, bytes);
    *at += bytes;
    return MUSTER_OK;
}

int guardian_wire_decode(const uint8_t *body, size_t length, struct guardian_order *out) {
    struct guardian_order order = {0};
    if (length < sizeof order.head) {
        return status_fail(MUSTER_EPROTOCOL, "a spawn order of %zu bytes", length);
    }
    memcpy(&order.head, body, sizeof order.head);
    const uint8_t *at = body + sizeof order.head;
    const uint8_t *end = body + length;
    if (order.head.argv_count == 0 || order.head.argv_count > GUARDIAN_STRINGS_MAX ||
        order.head.envp_count > GUARDIAN_STRINGS_MAX || order.head.cpus_bytes > GUARDIAN_CPUS_BYTES_MAX) {
        return status_fail(MUSTER_EPROTOCOL, "a spawn order beyond its limits");
    }
    int status = cpus_decode(&at, end, order.head.cpus_bytes, &order.cpus);
    if (status == MUSTER_OK) {
        status = strings_decode(&at, end, order.head.argv_count, &order.argv);
    }
    if (status == MUSTER_OK) {
        status = strings_decode(&at, end, order.head.envp_count, &order.envp);
    }
    if (status == MUSTER_OK && at != end) {
        status = status_fail(MUSTER_EPROTOCOL, "a spawn order with %zu bytes too many", (size_t)(end - at));
    }
    if (status != MUSTER_OK) {
        guardian_order_done(&order);
        return status;
    }
    *out = order;
    return MUSTER_OK;
}

void guardian_order_done(struct guardian_order *order) {
    free(order->argv);
    free(order->envp);
    free(order->cpus);
    *order = (struct guardian_order){0};
}
