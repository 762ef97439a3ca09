/* The rendezvous backends, one row each. A row is all that the rest of the program knows of a backend: its name, what
 * its --rdzv-endpoint looks like, which keys of --rdzv-conf it reads, its line of help, and the operations behind
 * rdzv.h. Whoever writes a backend adds a row here, and its files; CONTRIBUTING.md has the list. */
#ifndef RENDEZVOUS_BACKENDS_H
#define RENDEZVOUS_BACKENDS_H

#include <stdbool.h>

/* What --rdzv-endpoint holds. */
enum rdzv_endpoint_form {
    RDZV_ENDPOINT_STATIC, /* HOST:PORT of node 0, or --master-addr and --master-port */
    RDZV_ENDPOINT_ONE,    /* HOST[:PORT] of the node that hosts the store */
    RDZV_ENDPOINT_HOSTS,  /* HOST[:PORT],... of nodes that may serve the coordinator */
    RDZV_ENDPOINT_ETCD,   /* HOST[:PORT],... of an etcd */
    RDZV_ENDPOINT_URLS,   /* [http[s]://]HOST[:PORT],... of an etcd */
};

/* Keys of --rdzv-conf that several backends read. What each key means: run_rdzv_conf.c, docs/rendezvous.md. */
#define RDZV_KEYS_ALL "secret_file tls_cert tls_key tls_ca "
#define RDZV_KEYS_DYNAMIC                                                                                              \
    RDZV_KEYS_ALL "join_timeout last_call_timeout close_timeout keep_alive_interval keep_alive_max_attempt "           \
                  "hold_timeout read_timeout "
#define RDZV_KEYS_COORDINATED RDZV_KEYS_DYNAMIC "max_membership_changes max_preemptions restart_window allow topology "

/* X(identifier, name, operations, form of the endpoint, has a coordinator, keys of --rdzv-conf, help) */
#define RDZV_BACKENDS(X)                                                                                               \
    X(C10D, "c10d", rdzv_c10d, RDZV_ENDPOINT_ONE, false,                                                               \
      RDZV_KEYS_DYNAMIC "heartbeat_timeout cas_backoff_max_seconds is_host store_type",                                \
      "nodes may come and go, as in torchrun")                                                                         \
    X(STATIC, "static", rdzv_static, RDZV_ENDPOINT_STATIC, false,                                                      \
      RDZV_KEYS_ALL "timeout keep_alive_interval keep_alive_max_attempt hold_timeout",                                 \
      "fixed ranks, one --node-rank each")                                                                             \
    X(MUSTER, "muster", rdzv_native, RDZV_ENDPOINT_HOSTS, true, RDZV_KEYS_COORDINATED "is_host",                       \
      "as c10d, for Muster's agents only, and for many nodes")                                                         \
    X(ETCD_V2, "etcd-v2", rdzv_c10d, RDZV_ENDPOINT_ETCD, false,                                                        \
      RDZV_KEYS_DYNAMIC "heartbeat_timeout cas_backoff_max_seconds protocol ca_cert ssl_cert ssl_cert_key",            \
      "c10d in an etcd")                                                                                               \
    X(ETCD, "etcd", rdzv_etcd, RDZV_ENDPOINT_ETCD, false,                                                              \
      RDZV_KEYS_ALL "last_call_timeout read_timeout timeout protocol cacert cert key etcd_prefix",                     \
      "PyTorch's older way to use an etcd")                                                                            \
    X(ETCD_V3, "etcd-v3", rdzv_etcd3, RDZV_ENDPOINT_URLS, true,                                                        \
      RDZV_KEYS_COORDINATED "cacert cert key etcd_prefix user password_file", "muster, found through an etcd")

#define RDZV_BACKEND_IDENTIFIER(identifier, ...) RDZV_BACKEND_##identifier,
enum rdzv_backend { RDZV_BACKENDS(RDZV_BACKEND_IDENTIFIER) RDZV_BACKEND_COUNT };

/* As literals, for tables: " c10d static ...", and "Kind of rendezvous; c10d: nodes may ...; static: ...". */
#define RDZV_BACKEND_WORD(identifier, name, ...) " " name
#define RDZV_BACKEND_WORDS RDZV_BACKENDS(RDZV_BACKEND_WORD)
#define RDZV_BACKEND_HELP(identifier, name, operations, form, coordinated, keys, help) "; " name ": " help
#define RDZV_BACKEND_HELP_TEXT "Kind of rendezvous" RDZV_BACKENDS(RDZV_BACKEND_HELP) "."

const char *rdzv_backend_name(enum rdzv_backend backend);
/* False: no backend has this name. */
bool rdzv_backend_find(const char *name, enum rdzv_backend *out);
enum rdzv_endpoint_form rdzv_backend_endpoint(enum rdzv_backend backend);
/* Does it read this key of --rdzv-conf? */
bool rdzv_backend_reads(enum rdzv_backend backend, const char *key);
/* One agent decides for the job, and can tell all others what it wants (coordinator.h). */
bool rdzv_has_coordinator(enum rdzv_backend backend);

#endif
