/* --rdzv-conf: "key=value,key=value"; see run_rdzv.h and docs/rendezvous.md. */
#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/suggest.h"
#include "cli/run/run_rdzv.h"

#define CONF_KEY_MAX 64
#define CONF_VALUE_MAX 256
_Static_assert(RDZV_TOPOLOGY_MAX == CONF_VALUE_MAX && RDZV_TEXT_MAX == CONF_VALUE_MAX, "texts are copied whole");

enum conf_kind {
    CONF_SECONDS,  /* whole seconds > 0, kept in milliseconds */
    CONF_REAL,     /* seconds >= 0 with a fraction, kept in milliseconds */
    CONF_COUNT,    /* a number > 0 */
    CONF_LIMIT,    /* a number, also 0 */
    CONF_BOOL,     /* 1/true/t/yes/y and their opposites */
    CONF_STORE,    /* tcp or file */
    CONF_PROTOCOL, /* http or https */
    CONF_TEXT,     /* as it is */
    CONF_RANGES,   /* of addresses, '+' between them */
    CONF_IGNORED,  /* known, but not for these backends or set by the launcher */
    CONF_RESERVED, /* names of torchrun's own parameters: an error there */
};

struct conf_key {
    const char *name;
    enum conf_kind kind;
    size_t offset;
};

/* Which backend reads which: backends.h. */
#define AT(member) offsetof(struct rdzv_conf, member)
static const struct conf_key keys[] = {
    {"join_timeout", CONF_SECONDS, AT(join_timeout_ms)},
    {"last_call_timeout", CONF_SECONDS, AT(last_call_timeout_ms)},
    {"close_timeout", CONF_SECONDS, AT(close_timeout_ms)},
    {"heartbeat_timeout", CONF_SECONDS, AT(heartbeat_timeout_ms)},
    {"keep_alive_interval", CONF_SECONDS, AT(keep_alive_interval_ms)},
    {"keep_alive_max_attempt", CONF_COUNT, AT(keep_alive_max_attempt)},
    {"hold_timeout", CONF_SECONDS, AT(hold_timeout_ms)},
    {"read_timeout", CONF_SECONDS, AT(read_timeout_ms)},
    {"cas_backoff_max_seconds", CONF_REAL, AT(cas_backoff_max_ms)},
    {"timeout", CONF_SECONDS, AT(static_timeout_ms)},
    {"is_host", CONF_BOOL, AT(is_host)},
    {"store_type", CONF_STORE, AT(store_is_file)},
    {"max_membership_changes", CONF_LIMIT, AT(max_membership_changes)},
    {"max_preemptions", CONF_LIMIT, AT(max_preemptions)},
    {"restart_window", CONF_SECONDS, AT(restart_window_ms)},
    {"allow", CONF_RANGES, AT(allow)},
    {"secret_file", CONF_TEXT, AT(secret_file)},
    {"tls_cert", CONF_TEXT, AT(tls.cert_file)},
    {"tls_key", CONF_TEXT, AT(tls.key_file)},
    {"tls_ca", CONF_TEXT, AT(tls.ca_file)},
    {"topology", CONF_TEXT, AT(topology)},
    {"rank", CONF_IGNORED, 0},
    {"protocol", CONF_PROTOCOL, AT(etcd.https)},
    {"cacert", CONF_TEXT, AT(etcd.ca_file)},
    {"cert", CONF_TEXT, AT(etcd.cert_file)},
    {"key", CONF_TEXT, AT(etcd.key_file)},
    {"ca_cert", CONF_TEXT, AT(etcd.ca_file)},
    {"ssl_cert", CONF_TEXT, AT(etcd.cert_file)},
    {"ssl_cert_key", CONF_TEXT, AT(etcd.key_file)},
    {"etcd_prefix", CONF_TEXT, AT(etcd.prefix)},
    {"user", CONF_TEXT, AT(etcd.user)},
    {"password_file", CONF_TEXT, AT(etcd.password_file)},
    {"backend", CONF_RESERVED, 0},
    {"endpoint", CONF_RESERVED, 0},
    {"run_id", CONF_RESERVED, 0},
    {"min_nodes", CONF_RESERVED, 0},
    {"max_nodes", CONF_RESERVED, 0},
    {"local_addr", CONF_RESERVED, 0},
};
#undef AT
enum { KEY_COUNT = sizeof keys / sizeof *keys };

/* A piece of the option's text, blanks stripped. */
struct piece {
    const char *start;
    size_t len;
};

static struct piece piece_strip(const char *start, const char *end) {
    while (start < end && isspace((unsigned char)*start)) {
        start++;
    }
    while (end > start && isspace((unsigned char)end[-1])) {
        end--;
    }
    return (struct piece){start, (size_t)(end - start)};
}

static int piece_copy(struct piece piece, char *out, size_t size) {
    if (piece.len >= size) {
        return status_fail(MUSTER_EINVAL,
                           "--rdzv-conf: '%.40s...' is longer than the %zu bytes a key or value may have", piece.start,
                           size - 1);
    }
    memcpy(out, piece.start, piece.len);
    out[piece.len] = '\0';
    return 0;
}

/* What these are for would be missing without a word if they were ignored. */
static bool is_protection(const char *name) {
    return strcmp(name, "secret_file") == 0 || strncmp(name, "tls_", 4) == 0;
}

/* torchrun says nothing. Who meant a protection gets an error. */
static int tell_unknown(const char *name) {
    const char *nearest = NULL;
    unsigned distance = suggest_limit(name) + 1;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (keys[i].kind < CONF_IGNORED && suggest_better(name, keys[i].name, &distance)) {
            nearest = keys[i].name;
        }
    }
    if (strstr(name, "secret") || str_has_prefix(name, "tls")) {
        nearest = strstr(name, "secret") ? "secret_file" : "tls_cert, tls_key or tls_ca";
    }
    if (nearest && is_protection(nearest)) {
        return status_fail(MUSTER_EINVAL,
                           "--rdzv-conf: the key '%s' is not known; did you mean %s? The job would be without it", name,
                           nearest);
    }
    log_warning("--rdzv-conf: the key '%s' is not known and has no effect%s%s%s", name,
                nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return 0;
}

/* Likewise. */
static int tell_unused(const struct conf_key *key, enum rdzv_backend backend) {
    char users[128] = "";
    if (strcmp(key->name, "timeout") == 0) {
        return 0; /* torchrun itself hands it to every backend, and people write it for all */
    }
    if (key->kind == CONF_PROTOCOL && rdzv_backend_endpoint(backend) == RDZV_ENDPOINT_URLS) {
        return status_fail(MUSTER_EINVAL, "--rdzv-conf protocol is not for etcd-v3: write the protocol in "
                                          "--rdzv-endpoint=https://HOST:PORT");
    }
    for (unsigned i = 0; i < RDZV_BACKEND_COUNT; i++) {
        if (rdzv_backend_reads((enum rdzv_backend)i, key->name)) {
            size_t len = strlen(users);
            (void)str_format(users + len, sizeof users - len, "%s%s", len > 0 ? ", " : "",
                             rdzv_backend_name((enum rdzv_backend)i));
        }
    }
    log_warning("--rdzv-conf: %s has no effect with --rdzv-backend=%s; it is for %s", key->name,
                rdzv_backend_name(backend), users);
    return 0;
}

/* Remembers the last value of each key, as a later one replaces an earlier one even if that was wrong. */
static int note_pair(struct piece key, struct piece value, struct piece values[KEY_COUNT]) {
    char name[CONF_KEY_MAX];
    if (key.len == 0) {
        return status_fail(MUSTER_EINVAL, "The rendezvous configuration string of --rdzv-conf must be in format "
                                          "<key1>=<value1>,...,<keyN>=<valueN>; a key is empty");
    }
    if (piece_copy(key, name, sizeof name) != 0) {
        return MUSTER_EINVAL;
    }
    if (value.len == 0) {
        return status_fail(MUSTER_EINVAL,
                           "The rendezvous configuration option '%s' must have a value specified: --rdzv-conf %s=VALUE",
                           name, name);
    }
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            values[i] = value;
            return 0;
        }
    }
    return tell_unknown(name);
}

static int split_pairs(const char *text, struct piece values[KEY_COUNT]) {
    const char *end = text + strlen(text);
    if (piece_strip(text, end).len == 0) {
        return 0;
    }
    for (const char *p = text; p <= end;) {
        const char *comma = p + strcspn(p, ",");
        const char *equals = memchr(p, '=', (size_t)(comma - p));
        struct piece key = piece_strip(p, equals ? equals : comma);
        struct piece value = equals ? piece_strip(equals + 1, comma) : (struct piece){comma, 0};
        if (note_pair(key, value, values) != 0) {
            return MUSTER_EINVAL;
        }
        p = comma + 1;
    }
    return 0;
}

static int read_number(const struct conf_key *key, const char *text, int64_t *out) {
    if (!options_parse_integer(text, out)) {
        return status_fail(MUSTER_EINVAL,
                           "The rendezvous configuration option '%s' does not represent a valid integer value: '%s'; "
                           "a whole number%s is expected",
                           key->name, text, key->kind == CONF_SECONDS ? " of seconds" : "");
    }
    if (*out < (key->kind == CONF_LIMIT ? 0 : 1)) {
        return status_fail(MUSTER_EINVAL, "--rdzv-conf %s=%s: the value must be positive%s", key->name, text,
                           key->kind == CONF_LIMIT ? ", or 0" : "");
    }
    if (*out > RUN_SECONDS_MAX) {
        return status_fail(MUSTER_EINVAL, "--rdzv-conf %s=%s: the value must be at most %u", key->name, text,
                           RUN_SECONDS_MAX);
    }
    return 0;
}

static int read_real(const struct conf_key *key, const char *text, uint64_t *out_ms) {
    double seconds = 0;
    if (!options_parse_real(text, &seconds)) {
        return status_fail(MUSTER_EINVAL, "--rdzv-conf: %s('%s') is not a valid float value", key->name, text);
    }
    if (!(seconds >= 0 && seconds <= RUN_SECONDS_MAX)) {
        return status_fail(MUSTER_EINVAL, "--rdzv-conf: %s (%s) must be finite and non-negative, and at most %u",
                           key->name, text, RUN_SECONDS_MAX);
    }
    *out_ms = (uint64_t)(seconds * 1000);
    return 0;
}

static int read_bool(const struct conf_key *key, const char *text, int *out) {
    static const char *const words[] = {"1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *out = i < 5;
            return 0;
        }
    }
    return status_fail(MUSTER_EINVAL,
                       "The rendezvous configuration option '%s' does not represent a valid boolean value: '%s'; 1, "
                       "true, yes or 0, false, no is expected",
                       key->name, text);
}

static int read_store(const char *text, bool *out) {
    if (strcasecmp(text, "tcp") != 0 && strcasecmp(text, "file") != 0) {
        return status_fail(MUSTER_EINVAL,
                           "--rdzv-conf store_type=%s: Invalid store type given; tcp or file is expected", text);
    }
    *out = strcasecmp(text, "file") == 0;
    return 0;
}

static int read_protocol(const char *text, bool *out) {
    if (strcasecmp(text, "http") != 0 && strcasecmp(text, "https") != 0) {
        return status_fail(MUSTER_EINVAL,
                           "--rdzv-conf protocol=%s: The protocol must be HTTP or HTTPS; http or https is expected",
                           text);
    }
    *out = strcasecmp(text, "https") == 0;
    return 0;
}

static int apply(const struct conf_key *key, const char *text, struct rdzv_conf *out) {
    char *member = (char *)out + key->offset;
    int64_t number = 0;
    int rc = 0;
    switch (key->kind) {
    case CONF_SECONDS:
        rc = read_number(key, text, &number);
        if (rc == 0) {
            uint64_t ms = (uint64_t)number * 1000;
            memcpy(member, &ms, sizeof ms);
        }
        return rc;
    case CONF_REAL: {
        uint64_t ms = 0;
        rc = read_real(key, text, &ms);
        memcpy(member, &ms, sizeof ms);
        return rc;
    }
    case CONF_COUNT:
    case CONF_LIMIT:
        rc = read_number(key, text, &number);
        if (rc == 0) {
            uint32_t count = (uint32_t)number;
            memcpy(member, &count, sizeof count);
        }
        return rc;
    case CONF_BOOL:
        return read_bool(key, text, &out->is_host);
    case CONF_STORE:
        return read_store(text, &out->store_is_file);
    case CONF_PROTOCOL:
        return read_protocol(text, &out->etcd.https);
    case CONF_TEXT:
        (void)str_copy(member, CONF_VALUE_MAX, text);
        return 0;
    case CONF_RANGES:
        rc = net_ranges_parse(text, &out->allow);
        return rc ? status_prefix(MUSTER_EINVAL, "--rdzv-conf %s", key->name) : 0;
    case CONF_IGNORED:
    case CONF_RESERVED:
        break;
    }
    return 0;
}

int run_rdzv_conf_parse(const char *text, enum rdzv_backend backend, struct rdzv_conf *out) {
    struct piece values[KEY_COUNT] = {{0}};
    rdzv_conf_init(out);
    if (backend == RDZV_BACKEND_ETCD_V3) {
        (void)str_copy(out->etcd.prefix, sizeof out->etcd.prefix, "/muster");
    }
    if (split_pairs(text, values) != 0) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < KEY_COUNT; i++) {
        char value[CONF_VALUE_MAX];
        if (values[i].start == NULL) {
            continue;
        }
        if (keys[i].kind == CONF_RESERVED) {
            return status_fail(MUSTER_EINVAL, "--rdzv-conf: '%s' has an option of its own and cannot be set here",
                               keys[i].name);
        }
        if (keys[i].kind == CONF_IGNORED) {
            continue;
        }
        if (!rdzv_backend_reads(backend, keys[i].name)) {
            if (tell_unused(&keys[i], backend) != 0) {
                return MUSTER_EINVAL;
            }
            continue;
        }
        if (piece_copy(values[i], value, sizeof value) != 0 || apply(&keys[i], value, out) != 0) {
            return MUSTER_EINVAL;
        }
        if (strcmp(keys[i].name, "last_call_timeout") == 0) {
            out->last_call_given = true;
        }
    }
    return 0;
}
