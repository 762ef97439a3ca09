/* From the rendezvous options to struct rdzv_options, with torchrun's rewrites; see run_rdzv.h. */
#include "cli/run/run_rdzv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "cli/command/suggest.h"
#include "net/endpoint.h"

static const struct option_value *value_of(const struct options *options, enum option_id id) {
    return &options->values[id];
}

static bool is_given(const struct options *options, enum option_id id) {
    return value_of(options, id)->source != OPTION_FROM_DEFAULT;
}

static int set_text(char **out, const char *text) {
    free(*out);
    *out = strdup(text);
    return *out ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the configuration");
}

static int random_bytes(uint8_t out[16]) {
    if (random_fill(out, 16) != 0) {
        return status_fail_errno(errno, "draw a random run id");
    }
    return 0;
}

/* A version 4 UUID, as Python's uuid.uuid4() prints it. */
static int set_random_id(char **out) {
    uint8_t b[16];
    char text[37];
    if (random_bytes(b) != 0) {
        return MUSTER_ESYSTEM;
    }
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    (void)str_format(text, sizeof text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                     b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return set_text(out, text);
}

static int set_random_number(char **out) {
    uint8_t b[16];
    uint64_t halves[2];
    char text[48];
    if (random_bytes(b) != 0) {
        return MUSTER_ESYSTEM;
    }
    memcpy(halves, b, sizeof halves);
    (void)str_format(text, sizeof text, "%" PRIu64 "%" PRIu64, halves[0] | 1, halves[1]);
    log_warning("--rdzv-id is empty: the random id %s is used; several nodes need one that is alike on all", text);
    return set_text(out, text);
}

/* Nodes. */

static bool parse_node_count(const char *start, size_t len, int64_t *out) {
    char text[64];
    if (len >= sizeof text) {
        return false;
    }
    memcpy(text, start, len);
    text[len] = '\0';
    return options_parse_integer(text, out);
}

int run_rdzv_parse_nodes(const char *text, uint32_t *min_nodes, uint32_t *max_nodes) {
    const char *colon = strchr(text, ':');
    int64_t least = 0, most = 0;
    if (colon != NULL && strchr(colon + 1, ':') != NULL) {
        return status_fail(MUSTER_EINVAL, "nnodes=%.100s is not in \"MIN:MAX\" format; --nnodes takes N or MIN:MAX",
                           text);
    }
    bool fine = parse_node_count(text, colon ? (size_t)(colon - text) : strlen(text), &least);
    most = least;
    if (fine && colon != NULL) {
        fine = parse_node_count(colon + 1, strlen(colon + 1), &most);
    }
    if (!fine) {
        return status_fail(MUSTER_EINVAL, "--nnodes=%.100s is not a number of nodes, nor MIN:MAX such as 1:4", text);
    }
    if (least < 1 || least > most) {
        return status_fail(MUSTER_EINVAL,
                           "min_nodes must be > 0 and <= max_nodes, got min_nodes=%" PRId64 ", max_nodes=%" PRId64
                           " from --nnodes=%.100s",
                           least, most, text);
    }
    if (most > RUN_NODES_MAX) {
        return status_fail(MUSTER_EINVAL, "--nnodes=%.100s: a job has at most %d nodes", text, RUN_NODES_MAX);
    }
    *min_nodes = (uint32_t)least;
    *max_nodes = (uint32_t)most;
    return 0;
}

/* Backends. */

static int fail_backend(const char *name) {
    const char *known[RDZV_BACKEND_COUNT];
    char list[128] = "";
    for (unsigned i = 0; i < RDZV_BACKEND_COUNT; i++) {
        size_t len = strlen(list);
        known[i] = rdzv_backend_name((enum rdzv_backend)i);
        (void)str_format(list + len, sizeof list - len, "%s%s",
                         i == 0                        ? ""
                         : i + 1 == RDZV_BACKEND_COUNT ? " or "
                                                       : ", ",
                         known[i]);
    }
    const char *nearest = suggest_nearest(name, known, RDZV_BACKEND_COUNT);
    return status_fail(MUSTER_EINVAL,
                       "The rendezvous backend '%.100s' is not registered: --rdzv-backend takes %s%s%s%s", name, list,
                       nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

/* --standalone, and what torchrun does silently for one static node without an address. */
static int use_standalone(struct launch_config *config) {
    config->rdzv.standalone = true;
    if (set_text(&config->backend_name, "c10d") != 0 || set_text(&config->endpoint, "localhost:0") != 0) {
        return MUSTER_ENOMEM;
    }
    int rc = set_random_id(&config->run_id);
    if (rc == 0) {
        log_info("rendezvous: --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=%s", config->run_id);
    }
    return rc;
}

/* A backend of fixed ranks, whose address has to be given, and is not. */
static bool lacks_address(const struct options *options, const struct launch_config *config) {
    enum rdzv_backend backend;
    return rdzv_backend_find(config->backend_name, &backend) &&
           rdzv_backend_endpoint(backend) == RDZV_ENDPOINT_STATIC && config->endpoint[0] == '\0' &&
           !is_given(options, OPTION_MASTER_PORT);
}

static int choose_backend(const struct options *options, struct launch_config *config) {
    int rc = set_text(&config->backend_name, value_of(options, OPTION_RDZV_BACKEND)->text);
    rc = rc ? rc : set_text(&config->endpoint, value_of(options, OPTION_RDZV_ENDPOINT)->text);
    rc = rc ? rc : set_text(&config->run_id, value_of(options, OPTION_RDZV_ID)->text);
    bool alone = value_of(options, OPTION_STANDALONE)->on;
    if (rc == 0 && !alone) {
        alone = config->rdzv.max_nodes == 1 && lacks_address(options, config);
    }
    if (rc == 0 && alone) {
        rc = use_standalone(config);
    }
    if (rc == 0 && config->run_id[0] == '\0') {
        rc = set_random_number(&config->run_id);
    }
    if (rc == 0 && !rdzv_backend_find(config->backend_name, &config->rdzv.backend)) {
        rc = fail_backend(config->backend_name);
    }
    return rc;
}

/* Endpoints. */

static int refuse_list(const struct launch_config *config) {
    return status_fail(
        MUSTER_EINVAL,
        "--rdzv-endpoint=%.200s: %s has one endpoint; several, of which another one serves when the host "
        "of the first dies, are for --rdzv-backend=muster",
        config->endpoint, config->backend_name);
}

static int build_static_endpoint(const struct options *options, struct launch_config *config) {
    if (config->endpoint[0] != '\0') {
        return 0;
    }
    int64_t port =
        is_given(options, OPTION_MASTER_PORT) ? value_of(options, OPTION_MASTER_PORT)->integer : RUN_STORE_PORT_DEFAULT;
    const char *host = value_of(options, OPTION_MASTER_ADDR)->text;
    if (port < 0 || port > UINT16_MAX) {
        return status_fail(MUSTER_EINVAL, "--master-port=%" PRId64 " is not a port: 0 to 65535 is expected", port);
    }
    free(config->endpoint);
    config->endpoint = str_format_new("%s:%" PRId64, host, port);
    return config->endpoint ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the endpoint");
}

static int check_static(const struct options *options, struct launch_config *config) {
    struct net_endpoint endpoint;
    int64_t rank = value_of(options, OPTION_NODE_RANK)->integer;
    int rc = build_static_endpoint(options, config);
    if (rc != 0) {
        return rc;
    }
    if (config->endpoint[strspn(config->endpoint, " \t\r\n\v\f")] == '\0') {
        return status_fail(MUSTER_EINVAL,
                           "--rdzv-endpoint is blank; give HOST:PORT, or --master-addr and --master-port");
    }
    if (strchr(config->endpoint, ',')) {
        return refuse_list(config);
    }
    if (net_endpoint_parse(config->endpoint, &endpoint) != 0) {
        return status_prefix(MUSTER_EINVAL,
                             is_given(options, OPTION_RDZV_ENDPOINT) ? "--rdzv-endpoint" : "--master-addr");
    }
    if (endpoint.port < 0) {
        return status_fail(MUSTER_EINVAL,
                           "port is missing in endpoint: %.100s. Try to specify --master-port, or write "
                           "--rdzv-endpoint=HOST:PORT",
                           config->endpoint);
    }
    if (rank < 0 || rank >= config->rdzv.max_nodes) {
        return status_fail(MUSTER_EINVAL,
                           "--node-rank=%" PRId64 ": with --nnodes=%.100s the ranks are 0 to %" PRIu32
                           ", each on one node",
                           rank, value_of(options, OPTION_NNODES)->text, config->rdzv.max_nodes - 1);
    }
    config->rdzv.node_rank = (uint32_t)rank;
    return 0;
}

/* One, or of etcd several with commas between them. */
static int check_endpoints(const char *text, bool several) {
    struct net_endpoint endpoint;
    char one[NET_HOST_MAX + 16];
    for (const char *at = text; at;) {
        const char *comma = several ? strchr(at, ',') : NULL;
        size_t len = comma ? (size_t)(comma - at) : strlen(at);
        if (len == 0 && several && text[0] != '\0') {
            return status_fail(MUSTER_EINVAL, "--rdzv-endpoint=%.200s: an endpoint is empty", text);
        }
        if (len >= sizeof one) {
            return status_fail(MUSTER_EINVAL, "--rdzv-endpoint=%.64s...: longer than a host name can be", at);
        }
        (void)str_format(one, sizeof one, "%.*s", (int)len, at);
        if (net_endpoint_parse(one, &endpoint) != 0) {
            return status_prefix(MUSTER_EINVAL, "--rdzv-endpoint");
        }
        at = comma ? comma + 1 : NULL;
    }
    return 0;
}

/* All but static. */
static int check_dynamic(const struct options *options, struct launch_config *config) {
    struct net_endpoint_list list;
    int rc;
    int64_t rank = value_of(options, OPTION_NODE_RANK)->integer;
    bool has_order = rdzv_has_coordinator(config->rdzv.backend);
    config->rdzv.has_wished_rank =
        has_order && is_given(options, OPTION_NODE_RANK) && rank >= 0 && rank < RUN_NODES_MAX;
    config->rdzv.wished_rank = config->rdzv.has_wished_rank ? (uint32_t)rank : 0;
    if (rank != 0 && !has_order) {
        log_warning("--node-rank is only used by the static backend; %s gives out the ranks itself",
                    config->backend_name);
    }
    if (is_given(options, OPTION_MASTER_ADDR) && config->endpoint[0] == '\0') {
        log_warning("--master-addr is only used by the static backend; %s takes --rdzv-endpoint", config->backend_name);
    }
    if (config->rdzv.conf.store_is_file) {
        return 0; /* a path */
    }
    switch (rdzv_backend_endpoint(config->rdzv.backend)) {
    case RDZV_ENDPOINT_URLS: /* etcd's client reads them */
    case RDZV_ENDPOINT_STATIC:
        break;
    case RDZV_ENDPOINT_HOSTS:
        rc = net_endpoint_list_parse(config->endpoint, RDZV_DEFAULT_PORT, &list);
        return rc ? status_prefix(rc, "--rdzv-endpoint") : 0;
    case RDZV_ENDPOINT_ETCD:
        return check_endpoints(config->endpoint, true);
    case RDZV_ENDPOINT_ONE:
        return strchr(config->endpoint, ',') ? refuse_list(config) : check_endpoints(config->endpoint, false);
    }
    return 0;
}

/* Who asks for a secret and does not get what it is for must know. */
static int load_secret(const struct run_machine *machine, struct launch_config *config) {
    const char *path = config->rdzv.conf.secret_file, *value = run_machine_variable(machine, "MUSTER_SECRET");
    bool is_muster = rdzv_has_coordinator(config->rdzv.backend);
    bool is_given = path[0] != '\0' || (value && (is_muster || value[0] != '\0')); /* an empty one is refused */
    if (!is_given && config->rdzv.conf.allow.count > 0) {
        log_warning("--rdzv-conf allow has no effect without a secret: whoever reaches the endpoint takes part");
    }
    if (!is_given || config->rdzv.standalone) {
        return 0;
    }
    if (!is_muster) {
        return status_fail(MUSTER_EINVAL,
                           "%s: nodes of --rdzv-backend=%s cannot prove that they know a secret; use "
                           "--rdzv-backend=muster, or start the job without one",
                           path[0] != '\0' ? "--rdzv-conf secret_file" : "MUSTER_SECRET", config->backend_name);
    }
    config->secret = launch_secret_create();
    if (config->secret == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for the job's secret");
    }
    config->rdzv.secret = config->secret;
    return secret_text_load(path, value, config->secret);
}

/* Likewise. */
static int check_tls(const struct launch_config *config) {
    const struct rdzv_tls_conf *tls = &config->rdzv.conf.tls;
    const char *const values[] = {tls->cert_file, tls->key_file, tls->ca_file};
    static const char *const names[] = {"tls_cert", "tls_key", "tls_ca"};
    const char *given = NULL, *missing = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *(values[i][0] != '\0' ? &given : &missing) = names[i];
    }
    if (!given) {
        return 0;
    }
    if (!rdzv_has_coordinator(config->rdzv.backend) && !config->rdzv.standalone) {
        return status_fail(MUSTER_EINVAL,
                           "--rdzv-conf %s: nodes of --rdzv-backend=%s do not use TLS among each other; use "
                           "--rdzv-backend=muster, or start the job without",
                           given, config->backend_name);
    }
    return missing ? status_fail(MUSTER_EINVAL,
                                 "--rdzv-conf: TLS between agents needs tls_cert, tls_key and tls_ca; %s is not given",
                                 missing)
                   : 0;
}

/* What an endpoint is that is not given; "" where it is never missing. */
static const char *default_endpoint(const struct launch_config *config) {
    switch (rdzv_backend_endpoint(config->rdzv.backend)) {
    case RDZV_ENDPOINT_STATIC:
        return config->endpoint;
    case RDZV_ENDPOINT_ONE:
    case RDZV_ENDPOINT_HOSTS:
        return "localhost:29400";
    case RDZV_ENDPOINT_ETCD:
    case RDZV_ENDPOINT_URLS:
        return "localhost:2379";
    }
    return "";
}

/* For the lines of a node that waits: an option that was forgotten on it is the commonest reason. */
static int list_defaults(const struct options *options, struct launch_config *config) {
    const bool has_ranks = rdzv_backend_endpoint(config->rdzv.backend) == RDZV_ENDPOINT_STATIC;
    const bool has_place =
        is_given(options, OPTION_RDZV_ENDPOINT) || (has_ranks && is_given(options, OPTION_MASTER_ADDR));
    const struct {
        const char *name, *value;
        bool is_default;
    } all[] = {
        {"--rdzv-backend", config->backend_name, !is_given(options, OPTION_RDZV_BACKEND)},
        {"--rdzv-endpoint", default_endpoint(config), !has_place && !config->rdzv.conf.store_is_file},
        {"--rdzv-id", config->run_id, !is_given(options, OPTION_RDZV_ID)},
        {"--nnodes", "1", !is_given(options, OPTION_NNODES)},
        {"--node-rank", "0", has_ranks && !is_given(options, OPTION_NODE_RANK)},
    };
    char text[512] = "";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t used = strlen(text);
        if (all[i].is_default) {
            (void)str_format(text + used, sizeof text - used, "%s%s=%.200s", used > 0 ? " " : "", all[i].name,
                             all[i].value);
        }
    }
    return text[0] != '\0' && !config->rdzv.standalone ? set_text(&config->not_given, text) : 0;
}

static bool is_one(const struct run_machine *machine, const char *name) {
    const char *text = run_machine_variable(machine, name);
    return text != NULL && strcmp(text, "1") == 0;
}

int run_rdzv_build(const struct options *options, const struct run_machine *machine, struct launch_config *config) {
    struct rdzv_options *rdzv = &config->rdzv;
    const char *local_addr = value_of(options, OPTION_LOCAL_ADDR)->text;
    int rc = run_rdzv_parse_nodes(value_of(options, OPTION_NNODES)->text, &rdzv->min_nodes, &rdzv->max_nodes);
    if (rc != 0 && value_of(options, OPTION_NNODES)->source == OPTION_FROM_ENVIRONMENT) {
        rc = status_prefix(rc, "PET_NNODES");
    }
    rc = rc ? rc : choose_backend(options, config);
    rc = rc ? rc : run_rdzv_conf_parse(value_of(options, OPTION_RDZV_CONF)->text, rdzv->backend, &rdzv->conf);
    if (rc == 0) {
        rc = rdzv_backend_endpoint(rdzv->backend) == RDZV_ENDPOINT_STATIC ? check_static(options, config)
                                                                          : check_dynamic(options, config);
    }
    rc = rc ? rc : load_secret(machine, config);
    rc = rc ? rc : check_tls(config);
    rc = rc ? rc : run_rdzv_check_etcd(config);
    rc = rc ? rc : set_text(&config->role, value_of(options, OPTION_ROLE)->text);
    if (rc == 0 && local_addr != NULL && local_addr[0] != '\0') {
        rc = set_text(&config->local_addr, local_addr);
    }
    rc = rc ? rc : list_defaults(options, config);
    rdzv->not_given = config->not_given;
    rdzv->run_id = config->run_id;
    rdzv->endpoint = config->endpoint;
    rdzv->local_addr = config->local_addr;
    rdzv->role = config->role;
    rdzv->share_store = !is_one(machine, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    rdzv->identical_workers = is_one(machine, "TORCH_ELASTIC_WORKER_IDENTICAL");
    return rc;
}
