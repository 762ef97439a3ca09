/* Worker environment and argv; see environment.h. */
#include "agent/launch/environment.h"

#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/held/held_wire.h"
#include "base/hold.h"
#include "base/status.h"
#include "base/str.h"

/* Room for our own variables beside the inherited ones. */
enum { OWN_VARIABLES_MAX = 32 };

/* Longest argument after substitution: what Linux accepts for one string (MAX_ARG_STRLEN). */
enum { ARGUMENT_BYTES_MAX = 128 * 1024 };

static int no_memory(void) {
    return status_fail(MUSTER_ENOMEM, "no memory for a worker's environment");
}

static size_t name_length(const char *variable) {
    return strcspn(variable, "=");
}

/* Index of the variable `name` in `list`, or its count. */
static size_t find(const struct launch_strings *list, const char *name, size_t name_len) {
    for (size_t i = 0; i < list->count; i++) {
        assert(list->items[i] != NULL);
        if (strncmp(list->items[i], name, name_len) == 0 && list->items[i][name_len] == '=') {
            return i;
        }
    }
    return list->count;
}

/* Takes `variable` ("NAME=value", malloc'd, NULL = out of memory) into the list, over an older value. */
static int put(struct launch_strings *list, char *variable) {
    if (variable == NULL) {
        return no_memory();
    }
    size_t at = find(list, variable, name_length(variable));
    if (at == list->count) {
        list->count++;
    } else {
        free(list->items[at]);
    }
    list->items[at] = variable;
    return MUSTER_OK;
}

static const char *get(const struct launch_strings *list, const char *name) {
    size_t len = strlen(name);
    size_t at = find(list, name, len);
    return at == list->count ? NULL : list->items[at] + len + 1;
}

static void drop(struct launch_strings *list, const char *name) {
    size_t at = find(list, name, strlen(name));
    if (at < list->count) {
        free(list->items[at]);
        list->count--;
        memmove(&list->items[at], &list->items[at + 1], (list->count - at) * sizeof *list->items);
        list->items[list->count] = NULL;
    }
}

static int put_number(struct launch_strings *list, const char *name, uint64_t value) {
    return put(list, str_format_new("%s=%llu", name, (unsigned long long)value));
}

static int put_text(struct launch_strings *list, const char *name, const char *value) {
    return put(list, str_format_new("%s=%s", name, value));
}

/* With room for `more` variables. */
static int copy_inherited(const char *const *inherited, size_t more, struct launch_strings *out) {
    size_t count = 0;
    while (inherited[count] != NULL) {
        count++;
    }
    out->items = calloc(count + OWN_VARIABLES_MAX + more + 1, sizeof *out->items);
    if (out->items == NULL) {
        return no_memory();
    }
    for (size_t i = 0; i < count; i++) {
        out->items[i] = strdup(inherited[i]);
        if (out->items[i] == NULL) {
            return no_memory();
        }
        out->count++;
    }
    return MUSTER_OK;
}

struct number_variable {
    const char *name;
    uint64_t value;
};

static int put_ranks(const struct launch_config *config, const struct rdzv_world *world,
                     const struct environment_worker *worker, struct launch_strings *out) {
    const struct number_variable table[] = {
        {"LOCAL_RANK", config->virtual_local_rank ? 0 : worker->local_rank},
        {"RANK", world->base_global_rank + worker->local_rank},
        {"GROUP_RANK", world->group_rank},
        {"ROLE_RANK", world->base_role_rank + worker->local_rank},
        {"LOCAL_WORLD_SIZE", config->nproc},
        {"WORLD_SIZE", world->global_world_size},
        {"GROUP_WORLD_SIZE", world->group_world_size},
        {"ROLE_WORLD_SIZE", world->role_world_size},
        {"MASTER_PORT", world->master_port},
        {"TORCHELASTIC_RESTART_COUNT", worker->restart_count},
        {"TORCHELASTIC_MAX_RESTARTS", world->job_counts_restarts ? world->max_restarts : config->max_restarts},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int rc = put_number(out, table[i].name, table[i].value);
        if (rc != MUSTER_OK) {
            return rc;
        }
    }
    return MUSTER_OK;
}

const char *environment_lost_key(uint64_t round, char out[ENVIRONMENT_LOST_KEY_MAX]) {
    (void)str_format(out, ENVIRONMENT_LOST_KEY_MAX, "muster/lost/%llu", (unsigned long long)round);
    return out;
}

static int put_texts(const struct launch_config *config, const struct rdzv_world *world,
                     const struct environment_worker *worker, struct launch_strings *out) {
    const char *nccl = get(out, "TORCH_NCCL_ASYNC_ERROR_HANDLING");
    char lost[ENVIRONMENT_LOST_KEY_MAX], hold[24];
    const uint64_t hold_ms = config->rdzv.conf.hold_timeout_ms;
    bool is_default = hold_ms == 0 || hold_ms == HOLD_DEFAULT_MS; /* theirs as well */
    (void)str_format(hold, sizeof hold, "%llu", (unsigned long long)hold_ms / 1000);
    const char *table[][2] = {
        {"ROLE_NAME", config->role},
        {"MASTER_ADDR", world->master_addr},
        {"TORCHELASTIC_RUN_ID", config->run_id},
        {"TORCHELASTIC_USE_AGENT_STORE", world->use_agent_store ? "True" : "False"},
        {"TORCHELASTIC_ERROR_FILE", worker->error_file},
        {"TORCHELASTIC_SIGNALS_TO_HANDLE", config->signals_to_handle},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", nccl ? nccl : "1"},
        {"OMP_NUM_THREADS", config->omp_defaulted ? "1" : NULL},
        {"TORCHELASTIC_TIMER_FILE", worker->timer_file},
        {"MUSTER_STOP_PATH", worker->stop_path},
        {HELD_SOCKET_VARIABLE, worker->held_socket},
        {"MUSTER_FAILED_BY", worker->failed_by},
        {"MUSTER_LOST_KEY", config->survivors_continue ? environment_lost_key(world->round, lost) : NULL},
        {"MUSTER_HOLD_TIMEOUT", is_default ? NULL : hold},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        /* A copy first: the value may point into the string that put() replaces. */
        int rc = table[i][1] == NULL ? MUSTER_OK : put_text(out, table[i][0], table[i][1]);
        if (rc != MUSTER_OK) {
            return rc;
        }
    }
    return MUSTER_OK;
}

/* --virtual-local-rank: each worker sees one device, entry number local_rank of the inherited list. ROCm's own variable
 * is stronger than CUDA's there: its list counts where it is set, and then both name the device. */
static int put_virtual_device(uint32_t local_rank, struct launch_strings *out) {
    const char *hip = get(out, "HIP_VISIBLE_DEVICES");
    bool has_hip = hip != NULL && hip[0] != '\0';
    const char *variable = has_hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
    const char *list = get(out, variable);
    if (list == NULL) {
        return put_number(out, variable, local_rank);
    }
    const char *entry = list;
    for (uint32_t i = 0; i < local_rank; i++) {
        entry = strchr(entry, ',');
        if (entry == NULL) {
            return status_fail(
                MUSTER_EINVAL,
                "local_rank %u exceeds available GPUs in %s=%s: list more devices, start fewer workers, or leave out "
                "--virtual-local-rank",
                local_rank, variable, list);
        }
        entry++;
    }
    while (isspace((unsigned char)*entry)) {
        entry++;
    }
    size_t len = strcspn(entry, ",");
    while (len > 0 && isspace((unsigned char)entry[len - 1])) {
        len--;
    }
    char *device = strndup(entry, len); /* the list goes with the first of them */
    int rc = device ? put_text(out, "CUDA_VISIBLE_DEVICES", device)
                    : status_fail(MUSTER_ENOMEM, "no memory for a worker's environment");
    rc = rc == MUSTER_OK && has_hip ? put_text(out, "HIP_VISIBLE_DEVICES", device) : rc;
    free(device);
    return rc;
}

/* What an outer job's launcher says is about that job, and not for these workers. */
static void drop_outer(const struct launch_config *config, const struct environment_worker *worker,
                       struct launch_strings *out) {
    if (worker->stop_path == NULL) {
        drop(out, "MUSTER_STOP_PATH");
    }
    if (worker->held_socket == NULL) {
        drop(out, HELD_SOCKET_VARIABLE);
    }
    if (worker->failed_by == NULL) {
        drop(out, "MUSTER_FAILED_BY");
    }
    if (!config->survivors_continue) {
        drop(out, "MUSTER_LOST_KEY");
    }
}

/* What another starter of MPI programs has said: srun, or an mpirun that has started this agent. */
static bool is_of_mpi(const char *variable) {
    static const char *const prefixes[] = {
        "PMI_", "PMI2_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD", "OMPI_MCA_ess=", "OMPI_MCA_pmix=", "OMPI_MCA_orte_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (str_has_prefix(variable, prefixes[i])) {
            return true;
        }
    }
    return false;
}

static int put_mpi(const struct launch_strings *mpi, struct launch_strings *out) {
    size_t kept = 0;
    for (size_t i = 0; i < out->count; i++) {
        if (is_of_mpi(out->items[i])) {
            free(out->items[i]);
        } else {
            out->items[kept++] = out->items[i];
        }
    }
    out->count = kept;
    out->items[kept] = NULL;
    int rc = MUSTER_OK;
    for (size_t i = 0; rc == MUSTER_OK && i < mpi->count; i++) {
        rc = put(out, strdup(mpi->items[i]));
    }
    return rc;
}

int environment_build(const struct launch_config *config, const struct rdzv_world *world,
                      const struct environment_worker *worker, const char *const *inherited,
                      struct launch_strings *out) {
    int rc = copy_inherited(inherited, worker->mpi ? worker->mpi->count : 0, out);
    if (rc == MUSTER_OK && worker->mpi) {
        rc = put_mpi(worker->mpi, out);
    }
    if (rc == MUSTER_OK) {
        rc = put_ranks(config, world, worker, out);
    }
    if (rc == MUSTER_OK) {
        rc = put_texts(config, world, worker, out);
    }
    if (rc == MUSTER_OK) {
        drop_outer(config, worker, out);
    }
    if (rc == MUSTER_OK && config->virtual_local_rank) {
        rc = put_virtual_device(worker->local_rank, out);
    }
    return rc;
}

int environment_build_early(const struct launch_config *config, const struct environment_worker *worker,
                            const char *const *inherited, struct launch_strings *out) {
#define ITEM(name) name,
    static const char *const of_a_world[] = {ENVIRONMENT_OF_A_WORLD(ITEM)};
#undef ITEM
    const struct rdzv_world none = {.master_addr = ""};
    int rc = environment_build(config, &none, worker, inherited, out);
    for (size_t i = 0; rc == MUSTER_OK && i < sizeof of_a_world / sizeof *of_a_world; i++) {
        drop(out, of_a_world[i]);
    }
    return rc;
}

static bool is_name_start(char c) {
    return c == '_' || isalpha((unsigned char)c);
}

static size_t identifier_length(const char *p) {
    size_t n = 0;
    if (is_name_start(*p)) {
        while (is_name_start(p[n]) || isdigit((unsigned char)p[n])) {
            n++;
        }
    }
    return n;
}

/* One "$..." at `p`: appends its replacement and returns the bytes it took. */
static size_t substitute_one(const char *p, const char *local_rank, struct buf *out, int *rc) {
    static const char name[] = "local_rank";
    if (p[1] == '$') {
        *rc = buf_append(out, "$", 1);
        return 2;
    }
    bool braced = p[1] == '{';
    const char *identifier = p + (braced ? 2 : 1);
    size_t len = identifier_length(identifier);
    bool closed = !braced || identifier[len] == '}';
    if (closed && len == sizeof name - 1 && strncmp(identifier, name, len) == 0) {
        *rc = buf_append(out, local_rank, strlen(local_rank));
        return len + (braced ? 3 : 1);
    }
    *rc = buf_append(out, "$", 1);
    return 1;
}

static char *substitute(const char *text, const char *local_rank) {
    struct buf out;
    buf_init(&out, ARGUMENT_BYTES_MAX);
    int rc = MUSTER_OK;
    while (*text != '\0' && rc == MUSTER_OK) {
        size_t plain = strcspn(text, "$");
        rc = buf_append(&out, text, plain);
        text += plain;
        if (*text == '$' && rc == MUSTER_OK) {
            text += substitute_one(text, local_rank, &out, &rc);
        }
    }
    char *copy = rc == MUSTER_OK ? strndup(out.len > 0 ? (const char *)buf_bytes(&out) : "", out.len) : NULL;
    buf_done(&out);
    return copy;
}

int environment_command(const struct launch_config *config, uint32_t local_rank, struct launch_strings *out) {
    char rank_text[16];
    (void)str_format(rank_text, sizeof rank_text, "%u", local_rank);
    out->items = calloc(config->command.count + 1, sizeof *out->items);
    if (out->items == NULL) {
        return no_memory();
    }
    for (size_t i = 0; i < config->command.count; i++) {
        const char *item = config->command.items[i];
        /* Nothing to replace: also keeps arguments longer than the buffer's maximum. */
        bool plain = i == 0 || strchr(item, '$') == NULL;
        out->items[i] = plain ? strdup(item) : substitute(item, rank_text);
        if (out->items[i] == NULL) {
            return no_memory();
        }
        out->count++;
    }
    return MUSTER_OK;
}
