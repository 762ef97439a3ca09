/* Looking into the table of backends; see backends.h. */
#include "rendezvous/backends.h"

#include <string.h>

#include "rendezvous/backend.h"

static const struct row {
    const char *name;
    const struct rdzv_backend_table *operations;
    enum rdzv_endpoint_form endpoint;
    bool has_coordinator;
    const char *conf_keys; /* blanks between them */
} rows[] = {
#define ROW(identifier, name, operations, form, coordinated, keys, help)                                               \
    [RDZV_BACKEND_##identifier] = {name, &(operations), form, coordinated, keys},
    RDZV_BACKENDS(ROW)
#undef ROW
};

const char *rdzv_backend_name(enum rdzv_backend backend) {
    return rows[backend].name;
}

bool rdzv_backend_find(const char *name, enum rdzv_backend *out) {
    for (unsigned i = 0; i < RDZV_BACKEND_COUNT; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *out = (enum rdzv_backend)i;
            return true;
        }
    }
    return false;
}

enum rdzv_endpoint_form rdzv_backend_endpoint(enum rdzv_backend backend) {
    return rows[backend].endpoint;
}

bool rdzv_backend_reads(enum rdzv_backend backend, const char *key) {
    size_t len = strlen(key);
    for (const char *at = rows[backend].conf_keys; *at; at += strspn(at, " ")) {
        size_t its_len = strcspn(at, " ");
        if (its_len == len && memcmp(at, key, len) == 0) {
            return true;
        }
        at += its_len;
    }
    return false;
}

bool rdzv_has_coordinator(enum rdzv_backend backend) {
    return rows[backend].has_coordinator;
}

const struct rdzv_backend_table *rdzv_backend_operations(enum rdzv_backend backend) {
    return rows[backend].operations;
}
