/* The few calls of PMIx that a meeting needs; see pmix.h. The declarations below are those of the PMIx standard (since
 * version 2; pmix_common.h), restated here because the headers are not needed to build. */
#include "comm/launch/pmix.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

#define LIBRARY "libpmix.so.2"
#define KEY "muster-world"
#define RANK_WILDCARD (UINT32_MAX - 1)
enum { NAMESPACE_BYTES = 256, KEY_BYTES = 512, TYPE_STRING = 3, TYPE_INT = 6, TYPE_UINT32 = 14, SCOPE_GLOBAL = 3 };

/* Of the library, which is the process's. Once it has said goodbye to the server it may find it again, and then hang in
 * the next fence (so does OpenPMIx 4.2); kept open, it would have its thread run for as long as the process lives. */
static _Atomic bool was_used;

struct process {
    char space[NAMESPACE_BYTES];
    uint32_t rank;
};

struct value {
    uint16_t type;
    union {
        char *string;
        int integer;
        uint32_t uint32;
        uint64_t room[8]; /* at least as much as the standard's */
    } data;
};

struct info {
    char key[KEY_BYTES];
    uint32_t flags;
    struct value value;
};

struct pmix_client {
    void *library;
    struct process self;
    int (*init)(struct process *self, struct info *info, size_t count);
    int (*finalize)(const struct info *info, size_t count);
    int (*put)(uint8_t scope, const char *key, struct value *value);
    int (*commit)(void);
    int (*fence)(const struct process *processes, size_t process_count, const struct info *info, size_t count);
    int (*get)(const struct process *process, const char *key, const struct info *info, size_t count,
               struct value **out);
    const char *(*error_string)(int status);
};

static int fail(const struct pmix_client *client, const char *what, int status) {
    return status_fail(MUSTER_ECLOSED, "PMIx: %s: %s", what, client->error_string(status));
}

static int find_calls(struct pmix_client *client) {
#define FIND(name, member) library_find(client->library, name, &client->member, sizeof client->member)
    bool has_all = FIND("PMIx_Init", init) && FIND("PMIx_Finalize", finalize) && FIND("PMIx_Put", put) &&
                   FIND("PMIx_Commit", commit) && FIND("PMIx_Fence", fence) && FIND("PMIx_Get", get) &&
                   FIND("PMIx_Error_string", error_string);
#undef FIND
    return has_all ? 0 : status_fail(MUSTER_EUNSUPPORTED, LIBRARY " lacks a call of PMIx 2");
}

/* What PMIx gives is not freed: how depends on its version, and there are two of them in the life of a process. */
static int size_of_job(const struct pmix_client *client, uint32_t *out) {
    struct process job = client->self;
    struct value *value = NULL;
    job.rank = RANK_WILDCARD;
    int status = client->get(&job, "pmix.job.size", NULL, 0, &value);
    if (status != 0 || !value || value->type != TYPE_UINT32) {
        return fail(client, "ask for the number of ranks", status);
    }
    *out = value->data.uint32;
    return 0;
}

int pmix_open(struct pmix_client **out, struct pmix_place *out_place) {
    const char *reason = NULL;
    if (atomic_load(&was_used)) {
        return status_fail(MUSTER_ECLOSED,
                           "PMIx: a process can make one group from its environment, or MASTER_ADDR must "
                           "be set");
    }
    struct pmix_client *client = calloc(1, sizeof *client);
    if (!client) {
        return status_fail(MUSTER_ENOMEM, "no memory for PMIx");
    }
    client->library = library_open(LIBRARY, &reason);
    if (!client->library) {
        free(client);
        return status_fail(
            MUSTER_EUNSUPPORTED,
            "the ranks were started with PMIx, but its library cannot be opened (%s): install it, or set "
            "MASTER_ADDR to a name or address of rank 0's machine",
            reason);
    }
    int code = find_calls(client);
    int status = code ? 0 : client->init(&client->self, NULL, 0);
    atomic_store(&was_used, code == 0 && status == 0);
    if (code || status != 0) { /* stays loaded: unloading would pull its threads' code away */
        code = code ? code : fail(client, "reach the server", status);
        free(client);
        return code;
    }
    out_place->rank = client->self.rank;
    code = size_of_job(client, &out_place->size);
    if (code) {
        pmix_close(client);
        return code;
    }
    *out = client;
    return 0;
}

static int publish(struct pmix_client *client, const char *text) {
    struct value value = {.type = TYPE_STRING};
    char copy[PMIX_SHARE_VALUE_MAX];
    if (!str_format(copy, sizeof copy, "%s", text)) {
        return status_fail(MUSTER_ELIMIT, "the place to meet has more than %d bytes", PMIX_SHARE_VALUE_MAX - 1);
    }
    value.data.string = copy;
    int status = client->put(SCOPE_GLOBAL, KEY, &value);
    status = status ? status : client->commit();
    return status ? fail(client, "publish the place to meet", status) : 0;
}

int pmix_share(struct pmix_client *client, const char *text, int64_t deadline_ns, char *out) {
    int64_t left_s = clock_remaining_ms(deadline_ns) / 1000 + 1;
    struct info limit = {.key = "pmix.timeout", .value = {.type = TYPE_INT}};
    limit.value.data.integer = left_s < INT_MAX ? (int)left_s : INT_MAX;
    struct process first = client->self;
    struct value *value = NULL;
    first.rank = 0;
    int code = client->self.rank == 0 ? publish(client, text) : 0;
    int status = code ? 0 : client->fence(NULL, 0, &limit, 1);
    if (status) {
        return fail(client, "wait for all ranks", status);
    }
    status = code ? 0 : client->get(&first, KEY, &limit, 1, &value);
    if (code || status || !value || value->type != TYPE_STRING || !value->data.string) {
        return code ? code : fail(client, "ask where rank 0 is", status);
    }
    return str_format(out, PMIX_SHARE_VALUE_MAX, "%s", value->data.string)
               ? 0
               : status_fail(MUSTER_EPROTOCOL, "PMIx: rank 0's place to meet is too long");
}

void pmix_close(struct pmix_client *client) {
    if (client) {
        (void)client->finalize(NULL, 0);
        free(client);
    }
}
