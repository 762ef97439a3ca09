/* Variables of NCCL and of launchers; see judge.h. */
#include "doctor/judge.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

/* ---- NCCL ---- */

enum nccl_kind {
    NCCL_TEXT,   /* anything that is not empty */
    NCCL_SWITCH, /* 0 or 1 */
    NCCL_NUMBER, /* from `low` to `high` */
    NCCL_SIZE,   /* a number of bytes, from `low` on */
    NCCL_CHOICE, /* one of the words */
    NCCL_LIST,   /* words of the list, with commas between; ^ before */
};

struct nccl_variable {
    const char *name;
    enum nccl_kind kind;
    int64_t low, high;
    const char *words; /* separated by blanks */
};

/* What NCCL's manual lists, with the values that it allows. */
static const struct nccl_variable nccl_variables[] = {
    {"NCCL_ALGO", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_ALLOC_P2P_NET_LL_BUFFERS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_BUFFSIZE", NCCL_SIZE, 4096, 0, NULL},
    {"NCCL_CHECKS_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_CHECK_POINTERS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_COLLNET_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_COLLNET_NODE_THRESHOLD", NCCL_NUMBER, 0, INT32_MAX, NULL},
    {"NCCL_COMM_BLOCKING", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_COMM_ID", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_CONF_FILE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_CREATE_THREAD_CONTEXT", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_CROSS_NIC", NCCL_NUMBER, 0, 2, NULL},
    {"NCCL_CTA_POLICY", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_CUMEM_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_CUMEM_HOST_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_DEBUG", NCCL_CHOICE, 0, 0, "VERSION WARN INFO TRACE ABORT NONE"},
    {"NCCL_DEBUG_FILE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_DEBUG_SUBSYS", NCCL_LIST, 0, 0,
     "INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL PROXY NVLS BOOTSTRAP REG PROFILE RAS DESTROY ALL"},
    {"NCCL_DEBUG_TIMESTAMP_FORMAT", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_DEBUG_TIMESTAMP_LEVELS", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_DMABUF_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_GDRCOPY_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_GDRCOPY_FLUSH_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_GRAPH_DUMP_FILE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_GRAPH_MIXING_SUPPORT", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_GRAPH_REGISTER", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_HOSTID", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_IB_ADAPTIVE_ROUTING", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_ADDR_FAMILY", NCCL_CHOICE, 0, 0, "AF_INET AF_INET6"},
    {"NCCL_IB_ADDR_RANGE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_IB_AR_THRESHOLD", NCCL_SIZE, 0, 0, NULL},
    {"NCCL_IB_CUDA_SUPPORT", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_IB_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_ECE_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_FIFO_TC", NCCL_NUMBER, 0, 255, NULL},
    {"NCCL_IB_GID_INDEX", NCCL_NUMBER, -1, 255, NULL},
    {"NCCL_IB_HCA", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_IB_MERGE_NICS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_MERGE_VFS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_MQP_RETRY_ALL", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_PCI_RELAXED_ORDERING", NCCL_NUMBER, 0, 2, NULL},
    {"NCCL_IB_PKEY", NCCL_NUMBER, 0, 65535, NULL},
    {"NCCL_IB_QPS_PER_CONNECTION", NCCL_NUMBER, 1, 128, NULL},
    {"NCCL_IB_RETRY_CNT", NCCL_NUMBER, 0, 7, NULL},
    {"NCCL_IB_RETURN_ASYNC_EVENTS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_ROCE_VERSION_NUM", NCCL_NUMBER, 1, 2, NULL},
    {"NCCL_IB_SL", NCCL_NUMBER, 0, 15, NULL},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IB_TC", NCCL_NUMBER, 0, 255, NULL},
    {"NCCL_IB_TIMEOUT", NCCL_NUMBER, 1, 31, NULL},
    {"NCCL_IGNORE_CPU_AFFINITY", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_IGNORE_DISABLED_P2P", NCCL_NUMBER, 0, 2, NULL},
    {"NCCL_LAUNCH_MODE", NCCL_CHOICE, 0, 0, "GROUP PARALLEL"},
    {"NCCL_LAUNCH_RACE_FATAL", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_LOCAL_REGISTER", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_MAX_CTAS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MAX_NCHANNELS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MAX_NRINGS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MIN_CTAS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MIN_NCHANNELS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MIN_NRINGS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MIN_P2P_NCHANNELS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MAX_P2P_NCHANNELS", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_MNNVL_ENABLE", NCCL_NUMBER, 0, 2, NULL},
    {"NCCL_NCHANNELS_PER_NET_PEER", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_NET", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_NET_DISABLE_INTRA", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NET_FORCE_FLUSH", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NET_FORCE_MERGE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_NET_GDR_C2C", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NET_GDR_LEVEL", NCCL_CHOICE, 0, 0, "LOC NVL PIX PXB P2C PXN PHB SYS 0 1 2 3 4 5 6 7 8 9"},
    {"NCCL_NET_GDR_READ", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NET_MERGE_LEVEL", NCCL_CHOICE, 0, 0, "LOC PORT PIX PXB PHB SYS 0 1 2 3 4 5 6 7 8 9"},
    {"NCCL_NET_OVERHEAD", NCCL_NUMBER, 0, INT32_MAX, NULL},
    {"NCCL_NET_PLUGIN", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_NET_SHARED_BUFFERS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NET_SHARED_COMMS", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NSOCKS_PERTHREAD", NCCL_NUMBER, 1, 64, NULL},
    {"NCCL_NTHREADS", NCCL_CHOICE, 0, 0, "64 128 256 512"},
    {"NCCL_NVB_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_NVLS_ENABLE", NCCL_NUMBER, 0, 2, NULL},
    {"NCCL_NVLSTREE_MAX_CHUNKSIZE", NCCL_SIZE, 1, 0, NULL},
    {"NCCL_OOB_NET_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_OOB_NET_IFNAME", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_P2P_DIRECT_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_P2P_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_P2P_LEVEL", NCCL_CHOICE, 0, 0, "LOC NVL PIX PXB PHB SYS 0 1 2 3 4 5 6 7 8 9"},
    {"NCCL_P2P_NET_CHUNKSIZE", NCCL_SIZE, 1, 0, NULL},
    {"NCCL_P2P_NVL_CHUNKSIZE", NCCL_SIZE, 1, 0, NULL},
    {"NCCL_P2P_PCI_CHUNKSIZE", NCCL_SIZE, 1, 0, NULL},
    {"NCCL_P2P_PXN_LEVEL", NCCL_NUMBER, 0, 2, NULL},
    {"NCCL_P2P_USE_CUDA_MEMCPY", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_PROFILER_PLUGIN", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_PROGRESS_APPENDOP_FREQ", NCCL_NUMBER, 1, INT32_MAX, NULL},
    {"NCCL_PROTO", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_PROXY_APPEND_BATCH_SIZE", NCCL_NUMBER, 1, INT32_MAX, NULL},
    {"NCCL_PXN_C2C", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_PXN_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_RAS_ADDR", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_RAS_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_RAS_TIMEOUT_FACTOR", NCCL_NUMBER, 1, INT32_MAX, NULL},
    {"NCCL_RUNTIME_CONNECT", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_SET_CPU_STACK_SIZE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_SET_STACK_SIZE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_SET_THREAD_NAME", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_SHM_DISABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_SHM_USE_CUDA_MEMCPY", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_SINGLE_RING_THRESHOLD", NCCL_SIZE, 0, 0, NULL},
    {"NCCL_SOCKET_FAMILY", NCCL_CHOICE, 0, 0, "AF_INET AF_INET6"},
    {"NCCL_SOCKET_IFNAME", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_SOCKET_NTHREADS", NCCL_NUMBER, 1, 16, NULL},
    {"NCCL_SOCKET_POLL_TIMEOUT_MSEC", NCCL_NUMBER, 0, INT32_MAX, NULL},
    {"NCCL_SOCKET_RETRY_CNT", NCCL_NUMBER, 0, INT32_MAX, NULL},
    {"NCCL_SOCKET_RETRY_SLEEP_MSEC", NCCL_NUMBER, 0, INT32_MAX, NULL},
    {"NCCL_THREAD_THRESHOLDS", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_TOPO_DUMP_FILE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_TOPO_FILE", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_TREE_THRESHOLD", NCCL_SIZE, 0, 0, NULL},
    {"NCCL_TUNER_PLUGIN", NCCL_TEXT, 0, 0, NULL},
    {"NCCL_WARN_ENABLE_DEBUG_INFO", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_WIN_ENABLE", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_WORK_ARGS_BYTES", NCCL_SIZE, 1, 0, NULL},
    {"NCCL_WORK_FIFO_BYTES", NCCL_SIZE, 1, 0, NULL},
    /* PyTorch's own, under NCCL's prefix in older versions. */
    {"NCCL_ASYNC_ERROR_HANDLING", NCCL_NUMBER, 0, 3, NULL},
    {"NCCL_BLOCKING_WAIT", NCCL_SWITCH, 0, 0, NULL},
    {"NCCL_DESYNC_DEBUG", NCCL_SWITCH, 0, 0, NULL},
};
#define NCCL_VARIABLE_COUNT (sizeof nccl_variables / sizeof *nccl_variables)

static bool word_in(const char *words, const char *word, size_t length) {
    for (const char *at = words; *at;) {
        size_t n = strcspn(at, " ");
        if (n == length && strncasecmp(at, word, n) == 0) {
            return true;
        }
        at += n + strspn(at + n, " ");
    }
    return false;
}

static bool list_fits(const char *words, const char *value) {
    for (const char *at = value + (*value == '^'); *at;) {
        size_t n = strcspn(at, ",");
        if (!word_in(words, at, n)) {
            return false;
        }
        at += n + (at[n] == ',');
    }
    return true;
}

static bool nccl_fits(const struct nccl_variable *variable, const char *value) {
    int64_t number = 0;
    switch (variable->kind) {
    case NCCL_SWITCH:
        return strcmp(value, "0") == 0 || strcmp(value, "1") == 0;
    case NCCL_NUMBER:
        /* -2 and -1 stand for NCCL's own choice where it allows them; hexadecimal for keys. */
        return str_has_prefix(value, "0x") || (str_parse_i64(value, &number) &&
                                               (number == -2 || (number >= variable->low && number <= variable->high)));
    case NCCL_SIZE:
        return str_parse_i64(value, &number) && (number == -2 || number >= variable->low);
    case NCCL_CHOICE:
        return word_in(variable->words, value, strlen(value));
    case NCCL_LIST:
        return list_fits(variable->words, value);
    case NCCL_TEXT:
    default:
        return true;
    }
}

static void advise_value(struct doctor_finding *finding, const struct nccl_variable *variable) {
    switch (variable->kind) {
    case NCCL_SWITCH:
        doctor_advise(finding, "It is 0 or 1; NCCL reads anything else as it likes");
        break;
    case NCCL_NUMBER:
        if (variable->high == INT32_MAX) {
            doctor_advise(finding, "It is a number from %lld on", (long long)variable->low);
        } else {
            doctor_advise(finding, "It is a number from %lld to %lld", (long long)variable->low,
                          (long long)variable->high);
        }
        break;
    case NCCL_SIZE:
        doctor_advise(finding, "It is a number of bytes, without a unit");
        break;
    default:
        doctor_advise(finding, "It is one of: %s", variable->words);
        break;
    }
}

/* The known name that is nearest, if it is near. */
static const char *nearest(const char *name, const char *(*name_at)(const void *ctx, size_t i), const void *ctx,
                           size_t count) {
    enum { NEAR = 3 };
    unsigned best = NEAR + 1;
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        unsigned distance = str_distance(name, name_at(ctx, i));
        if (distance < best) {
            best = distance;
            found = name_at(ctx, i);
        }
    }
    return found;
}

static const char *nccl_name_at(const void *ctx, size_t i) {
    (void)ctx;
    return nccl_variables[i].name;
}

static const struct nccl_variable *nccl_find(const char *name) {
    for (size_t i = 0; i < NCCL_VARIABLE_COUNT; i++) {
        if (strcmp(nccl_variables[i].name, name) == 0) {
            return &nccl_variables[i];
        }
    }
    return NULL;
}

static void judge_nccl_variable(const struct doctor_variable *variable, struct doctor_findings *out) {
    const struct nccl_variable *known = nccl_find(variable->name);
    if (!known) {
        const char *meant = nearest(variable->name, nccl_name_at, NULL, NCCL_VARIABLE_COUNT);
        struct doctor_finding *finding = doctor_find(out, DOCTOR_NCCL, meant ? DOCTOR_WARNING : DOCTOR_NOTE,
                                                     "%s is no variable of NCCL", variable->name);
        doctor_advise(finding, meant ? "%s is. NCCL does not complain of a name that it does not know" : "%s",
                      meant ? meant
                            : "It may be of a plug-in, or of another version; NCCL ignores what it does not "
                              "know");
    } else if (variable->value[0] == '\0') {
        doctor_advise(doctor_find(out, DOCTOR_NCCL, DOCTOR_NOTE, "%s is empty", variable->name),
                      "Unset it: some versions read that as 0");
    } else if (!nccl_fits(known, variable->value)) {
        advise_value(
            doctor_find(out, DOCTOR_NCCL, DOCTOR_WARNING, "%s=%s has no meaning", variable->name, variable->value),
            known);
    }
}

/* ---- contradictions ---- */

static bool is_set_to(const struct doctor_environment *environment, const char *name, const char *value) {
    const char *has = doctor_variable(environment, name);
    return has && strcmp(has, value) == 0;
}

static void judge_pair(const struct doctor_environment *environment, const char *low, const char *high,
                       struct doctor_findings *out) {
    const char *a = doctor_variable(environment, low), *b = doctor_variable(environment, high);
    int64_t least = 0, most = 0;
    if (a && b && str_parse_i64(a, &least) && str_parse_i64(b, &most) && least > most) {
        doctor_advise(doctor_find(out, DOCTOR_NCCL, DOCTOR_WARNING, "%s=%s is above %s=%s", low, a, high, b),
                      "Leave both to NCCL, or correct one");
    }
}

static void judge_contradictions(const struct doctor_environment *environment, struct doctor_findings *out) {
    const char *net = doctor_variable(environment, "NCCL_NET");
    bool without_ib = is_set_to(environment, "NCCL_IB_DISABLE", "1");
    if (without_ib && doctor_variable(environment, "NCCL_IB_HCA")) {
        doctor_advise(
            doctor_find(out, DOCTOR_NCCL, DOCTOR_WARNING, "NCCL_IB_DISABLE=1, and NCCL_IB_HCA names a device"),
            "InfiniBand stays unused: unset one of the two");
    }
    if (without_ib && net && strcasecmp(net, "IB") == 0) {
        doctor_advise(doctor_find(out, DOCTOR_NCCL, DOCTOR_ERROR, "NCCL_NET=%s with NCCL_IB_DISABLE=1", net),
                      "NCCL finds no network and stops: unset one of the two");
    }
    if (is_set_to(environment, "NCCL_P2P_DISABLE", "1")) {
        bool both = is_set_to(environment, "NCCL_SHM_DISABLE", "1");
        doctor_advise(doctor_find(out, DOCTOR_NCCL, both ? DOCTOR_WARNING : DOCTOR_NOTE, "NCCL_P2P_DISABLE=1%s",
                                  both ? " and NCCL_SHM_DISABLE=1" : ""),
                      "GPUs of this node talk through %s: slow, and meant for looking for faults",
                      both ? "the network" : "the host's memory");
    }
    if (is_set_to(environment, "NCCL_P2P_DISABLE", "1") && doctor_variable(environment, "NCCL_P2P_LEVEL")) {
        doctor_advise(doctor_find(out, DOCTOR_NCCL, DOCTOR_WARNING, "NCCL_P2P_DISABLE=1 with NCCL_P2P_LEVEL"),
                      "The level counts for nothing then: unset one of the two");
    }
    const char *debug = doctor_variable(environment, "NCCL_DEBUG");
    if (debug && (strcasecmp(debug, "INFO") == 0 || strcasecmp(debug, "TRACE") == 0)) {
        doctor_advise(doctor_find(out, DOCTOR_NCCL, DOCTOR_NOTE, "NCCL_DEBUG=%s", debug),
                      "Fine for looking for faults; thousands of lines from each rank otherwise: WARN is enough");
    }
    judge_pair(environment, "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", out);
    judge_pair(environment, "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", out);
    judge_pair(environment, "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", out);
}

void doctor_judge_nccl(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_environment *environment = &facts->environment;
    size_t before = out->count;
    unsigned count = 0;
    for (uint32_t i = 0; i < environment->count; i++) {
        if (str_has_prefix(environment->list[i].name, "NCCL_")) {
            count++;
            judge_nccl_variable(&environment->list[i], out);
        }
    }
    judge_contradictions(environment, out);
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_NCCL, DOCTOR_OK, count == 0 ? "none set" : "%u set, none of them odd", count);
    }
}

/* ---- launchers ---- */

static const char *known_at(const void *ctx, size_t i) {
    const struct doctor_known_variables *known = ctx;
    return known->names[i];
}

static bool is_known(const struct doctor_known_variables *known, const char *name) {
    for (size_t i = 0; i < known->count; i++) {
        if (strcmp(known->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void judge_option_variable(const struct doctor_variable *variable, const struct doctor_known_variables *known,
                                  struct doctor_findings *out) {
    if (is_known(known, variable->name)) {
        doctor_advise(doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_NOTE, "%s=%s stands in for an option of muster run",
                                  variable->name, variable->value),
                      "Unset it if that is not meant; an option on the command line wins");
        return;
    }
    const char *meant = nearest(variable->name, known_at, known, known->count);
    doctor_advise(doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_WARNING, "%s is read by nobody", variable->name),
                  meant ? "%s is: correct the name" : "%s", meant ? meant : "`man muster-run` lists the variables");
}

/* A worker's variables, in the environment in which an agent would be started. */
static void judge_leftovers(const struct doctor_environment *environment, struct doctor_findings *out) {
    static const char *const names[] = {"RANK",        "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                                        "MASTER_ADDR", "MASTER_PORT", "ROLE_RANK",  "NODE_RANK"};
    char text[200] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = doctor_variable(environment, names[i]);
        if (value && used < sizeof text) {
            (void)str_format(text + used, sizeof text - used, "%s%s=%.60s", used > 0 ? " " : "", names[i], value);
            used += strlen(text + used);
        }
    }
    if (doctor_variable(environment, "TORCHELASTIC_RUN_ID")) {
        doctor_advise(doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_WARNING,
                                  "this is the environment of a job's worker (TORCHELASTIC_RUN_ID is set)"),
                      "A launcher that is started here is one more job inside that job's; start it from a clean shell");
    } else if (used > 0) {
        doctor_advise(doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_NOTE, "set for workers already: %s", text),
                      "muster run gives its workers values of its own and reads none of these: --nnodes, --node-rank "
                      "and --rdzv-endpoint say where this node belongs. A script that is run without a launcher takes "
                      "them for its own");
    }
}

/* pip puts PyTorch's over a link of that name in a virtual environment, and an active one comes before /usr/local/bin.
 */
static void judge_torchrun(const struct doctor_torchrun *torchrun, struct doctor_findings *out) {
    if (torchrun->path[0] != '\0' && torchrun->is_muster) {
        (void)doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_OK, "torchrun is Muster: %s", torchrun->path);
    } else if (torchrun->path[0] != '\0' && torchrun->other[0] != '\0') {
        doctor_advise(doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_WARNING,
                                  "a job that calls torchrun gets PyTorch's, %s, before Muster's, %s", torchrun->path,
                                  torchrun->other),
                      "Call muster run, or put the link first: pip has put PyTorch's there, or an active environment "
                      "comes before it in PATH");
    } else if (torchrun->path[0] != '\0') {
        (void)doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_OK, "a job that calls torchrun gets PyTorch's: %s",
                          torchrun->path);
    }
}

void doctor_judge_environment(const struct doctor_facts *facts, const struct doctor_known_variables *known,
                              struct doctor_findings *out) {
    const struct doctor_environment *environment = &facts->environment;
    size_t before = out->count;
    for (uint32_t i = 0; i < environment->count; i++) {
        if (str_has_prefix(environment->list[i].name, "PET_")) {
            judge_option_variable(&environment->list[i], known, out);
        }
    }
    judge_leftovers(environment, out);
    judge_torchrun(&facts->torchrun, out);
    const char *blocking = doctor_variable(environment, "CUDA_LAUNCH_BLOCKING");
    if (blocking && strcmp(blocking, "0") != 0) {
        doctor_advise(doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_WARNING, "CUDA_LAUNCH_BLOCKING=%s", blocking),
                      "Each kernel is waited for, which makes training slow: unset it");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_ENVIRONMENT, DOCTOR_OK, "nothing that a launcher would misread");
    }
}
