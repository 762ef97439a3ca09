/* Reaching an etcd; see etcd_link.h. */
#include "rendezvous/etcd/etcd_link.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/backend.h"
#include "rendezvous/round/worker_store.h"

#include <muster/status.h>

enum {
    ATTEMPT_TIMEOUT_MS = 5000, /* etcd-v3: one endpoint, before the next is asked */
    PASSWORD_BYTES_MAX = 1024,
};

int etcd_link_open(struct rdzv *rdzv, struct etcd_v2 **out) {
    const struct rdzv_options *options = &rdzv->options;
    const struct rdzv_etcd_conf *conf = &options->conf.etcd;
    struct etcd_v2_options etcd = {.endpoints = options->endpoint ? options->endpoint : "",
                                   .https = conf->https,
                                   .ca_file = conf->ca_file,
                                   .cert_file = conf->cert_file,
                                   .key_file = conf->key_file,
                                   .patience_ms = options->conf.read_timeout_ms,
                                   .clock = &rdzv->clock};
    return etcd_v2_create(rdzv->loop, &etcd, out);
}

/* The file's first line. It is not kept. */
static int read_password(const char *path, char out[PASSWORD_BYTES_MAX]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t got = fd < 0 ? -1 : read(fd, out, PASSWORD_BYTES_MAX);
    int rc =
        got < 0 ? status_fail(MUSTER_EINVAL, "--rdzv-conf password_file=%s: %s", path, strerror(errno)) : MUSTER_OK;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (rc == MUSTER_OK && got == PASSWORD_BYTES_MAX) {
        rc = status_fail(MUSTER_EINVAL, "--rdzv-conf password_file=%s: longer than a password may be", path);
    }
    out[rc == MUSTER_OK ? got : 0] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    if (rc == MUSTER_OK && out[0] == '\0') {
        rc = status_fail(MUSTER_EINVAL, "--rdzv-conf password_file=%s: its first line is empty", path);
    }
    return rc;
}

static const char *or_null(const char *text) {
    return text[0] != '\0' ? text : NULL;
}

int etcd_link_open_v3(uv_loop_t *loop, const struct rdzv_options *options, struct etcd3_client **out) {
    const struct rdzv_etcd_conf *conf = &options->conf.etcd;
    char password[PASSWORD_BYTES_MAX] = "";
    const struct etcd3_client_options client = {.endpoints = options->endpoint ? options->endpoint : "",
                                                .ca_file = or_null(conf->ca_file),
                                                .cert_file = or_null(conf->cert_file),
                                                .key_file = or_null(conf->key_file),
                                                .user = or_null(conf->user),
                                                .password = password,
                                                .attempt_timeout_ms = ATTEMPT_TIMEOUT_MS};
    int rc = conf->password_file[0] != '\0' ? read_password(conf->password_file, password) : MUSTER_OK;
    rc = rc ? rc : etcd3_client_create(loop, &client, out);
    explicit_bzero(password, sizeof password);
    return rc;
}

static bool is_loopback(const char *address) {
    struct net_addresses addresses;
    return net_resolve_numeric(address, 0, &addresses) == MUSTER_OK && addresses.count > 0 &&
           net_address_is_loopback((const struct sockaddr *)&addresses.list[0].sockaddr);
}

void etcd_link_own_address(const char *connection, const struct rdzv_options *options, char out[RDZV_ADDR_MAX]) {
    char text[NET_ADDRESS_TEXT_MAX];
    if (options->local_addr) {
        (void)str_copy(out, RDZV_ADDR_MAX, options->local_addr);
        return;
    }
    if (connection[0] == '\0' || is_loopback(connection)) {
        worker_store_own_address(text);
        connection = text;
    }
    (void)str_copy(out, RDZV_ADDR_MAX, connection);
}
