/* PMIx's library, as far as a server needs it: opened at run time, and declared here, since its headers are not needed
 * to build. The declarations are those of the PMIx standard, version 4 (pmix.h, pmix_server.h and pmix_common.h), which
 * later versions keep. Arrays of attributes are built by the library itself (PMIx_Info_list_*, since OpenPMIx 4.2), so
 * that their layout is its own business.
 *
 * The library calls back on a thread of its own. */
#ifndef AGENT_PMIX_LIBRARY_H
#define AGENT_PMIX_LIBRARY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PMIX_LIBRARY "libpmix.so.2"
#define PMIX_RANK_ALL (UINT32_MAX - 1) /* PMIX_RANK_WILDCARD: all ranks of a namespace */

enum { PMIX_NAMESPACE_BYTES = 256 };

enum pmix_status {
    PMIX_OK = 0,
    PMIX_FAILED = -1,
    PMIX_NOT_FOUND = -46,
    PMIX_NOT_SUPPORTED = -47,
    PMIX_LOST_CONNECTION = -61, /* a client has gone without PMIx_Finalize() */
    PMIX_DONE_ALREADY = -157,   /* done within the call: nothing more is said of it */
    PMIX_HANDLED = -334,        /* an event, and nobody else is to hear of it */
};

enum pmix_type {
    PMIX_TYPE_BOOL = 1,
    PMIX_TYPE_STRING = 3,
    PMIX_TYPE_UINT16 = 13,
    PMIX_TYPE_UINT32 = 14,
    PMIX_TYPE_DATA_ARRAY = 39,
    PMIX_TYPE_RANK = 40,
};

struct pmix_process {
    char space[PMIX_NAMESPACE_BYTES];
    uint32_t rank;
};

struct pmix_array {
    uint16_t type;
    size_t size;
    void *array;
};

struct pmix_info; /* the library's */

typedef void pmix_done_fn(int status, void *ctx);
typedef void pmix_release_fn(void *ctx);
typedef void pmix_data_fn(int status, const char *data, size_t size, void *ctx, pmix_release_fn *release,
                          void *release_ctx);
typedef void pmix_blob_fn(int status, char *data, size_t size, void *ctx);
typedef void pmix_unused_fn(void);
typedef int pmix_client_fn(const struct pmix_process *process, void *object, pmix_done_fn *done, void *ctx);
typedef void pmix_handled_fn(int status, struct pmix_info *results, size_t count, pmix_done_fn *done, void *done_ctx,
                             void *ctx);
typedef void pmix_event_fn(size_t id, int status, const struct pmix_process *source, struct pmix_info *infos,
                           size_t count, struct pmix_info *results, size_t result_count, pmix_handled_fn *done,
                           void *ctx);

/* What the library asks its server for; NULL: not offered. Longer than any version's, and zero there. */
struct pmix_module {
    pmix_client_fn *client_connected, *client_finalized;
    int (*abort)(const struct pmix_process *process, void *object, int status, const char *text,
                 struct pmix_process *processes, size_t count, pmix_done_fn *done, void *ctx);
    int (*fence)(const struct pmix_process *processes, size_t count, const struct pmix_info *infos, size_t info_count,
                 char *data, size_t size, pmix_data_fn *done, void *ctx);
    int (*direct_modex)(const struct pmix_process *process, const struct pmix_info *infos, size_t info_count,
                        pmix_data_fn *done, void *ctx);
    pmix_unused_fn *publish, *lookup, *unpublish, *spawn, *connect, *disconnect, *register_events, *deregister_events,
        *listener, *notify_event, *query, *tool_connected, *log, *allocate;
    int (*job_control)(const struct pmix_process *who, const struct pmix_process *targets, size_t target_count,
                       const struct pmix_info *infos, size_t info_count, pmix_unused_fn *done, void *ctx);
    pmix_unused_fn *later[32];
};

struct pmix_library {
    int (*init)(struct pmix_module *module, void *infos, size_t count);
    int (*finalize)(void);
    int (*register_space)(const char *space, int local_count, void *infos, size_t count, pmix_done_fn *done, void *ctx);
    void (*deregister_space)(const char *space, pmix_done_fn *done, void *ctx);
    int (*register_client)(const struct pmix_process *process, uid_t user, gid_t group, void *object,
                           pmix_done_fn *done, void *ctx);
    int (*setup_fork)(const struct pmix_process *process, char ***environment);
    int (*dmodex_request)(const struct pmix_process *process, pmix_blob_fn *done, void *ctx);
    int (*register_events)(int *codes, size_t count, struct pmix_info *infos, size_t info_count, pmix_event_fn *handler,
                           pmix_unused_fn *done, void *ctx);
    void *(*list_start)(void);
    int (*list_add)(void *list, const char *key, const void *value, uint16_t type);
    int (*list_convert)(void *list, struct pmix_array *out);
    void (*list_release)(void *list);
    const char *(*error_string)(int status);
};

/* Opens it, for ever. MUSTER_EUNSUPPORTED with a sentence for the user: there is none, or it is too old. */
int pmix_library_open(struct pmix_library *out);

#endif
