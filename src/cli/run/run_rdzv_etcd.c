/* What the settings of an etcd must be together, before anything is started: certificates that would not be used, half
 * of a pair, files that cannot be read. See run_rdzv.h. That they are right is seen when etcd is reached. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "cli/run/run_rdzv.h"
#include "rendezvous/etcd/etcd3_client.h"

enum { CERT_BYTES_MAX = 64 * 1024 };

/* The keys of --rdzv-conf, which etcd-v2 calls otherwise than the others do. */
struct names {
    const char *ca, *cert, *key;
};

static const struct names *names_of(enum rdzv_backend backend) {
    static const struct names of_v2 = {"ca_cert", "ssl_cert", "ssl_cert_key"}, of_others = {"cacert", "cert", "key"};
    return rdzv_backend_reads(backend, of_v2.ca) ? &of_v2 : &of_others;
}

/* The beginning of the file, as a text. What is no file (a FIFO, a device) might keep its reader waiting for ever. */
static int read_beginning(const char *name, const char *path, char *out, size_t size) {
    struct stat info;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool is_open = fd >= 0 && fstat(fd, &info) == 0, is_file = is_open && S_ISREG(info.st_mode);
    got = is_file ? read(fd, out, size - 1) : 0;
    bool is_read = is_file && got >= 0;
    if (!is_read) {
        (void)status_fail(MUSTER_EINVAL, "--rdzv-conf %s=%s: %s", name, path,
                          is_open && !is_file ? "it is not a file" : strerror(errno));
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    out[is_read ? got : 0] = '\0';
    return is_read ? MUSTER_OK : MUSTER_EINVAL;
}

static int check_file(const char *name, const char *path) {
    char byte[2];
    return path[0] != '\0' ? read_beginning(name, path, byte, sizeof byte) : MUSTER_OK;
}

/* Without a key's file the certificate's must have it. */
static int check_pair(const struct names *names, const struct rdzv_etcd_conf *etcd) {
    char text[CERT_BYTES_MAX];
    if (etcd->key_file[0] != '\0' && etcd->cert_file[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "--rdzv-conf %s=%s is the key of a certificate that is not given: %s=FILE",
                           names->key, etcd->key_file, names->cert);
    }
    if (etcd->cert_file[0] == '\0') {
        return MUSTER_OK;
    }
    int rc = read_beginning(names->cert, etcd->cert_file, text, sizeof text);
    if (rc == MUSTER_OK && etcd->key_file[0] == '\0' && !strstr(text, "PRIVATE KEY-----")) {
        rc = status_fail(MUSTER_EINVAL, "--rdzv-conf %s=%s: no key is in that file, so it must be in another: %s=FILE",
                         names->cert, etcd->cert_file, names->key);
    }
    explicit_bzero(text, sizeof text);
    return rc ? rc : check_file(names->key, etcd->key_file);
}

static const char *first_certificate(const struct names *names, const struct rdzv_etcd_conf *etcd) {
    return etcd->ca_file[0] != '\0'     ? names->ca
           : etcd->cert_file[0] != '\0' ? names->cert
           : etcd->key_file[0] != '\0'  ? names->key
                                        : NULL;
}

static int check_user(const struct rdzv_etcd_conf *etcd) {
    if ((etcd->user[0] != '\0') == (etcd->password_file[0] != '\0')) {
        return MUSTER_OK;
    }
    return etcd->user[0] != '\0'
               ? status_fail(MUSTER_EINVAL, "--rdzv-conf user=%s: a user needs password_file=FILE, too", etcd->user)
               : status_fail(MUSTER_EINVAL, "--rdzv-conf password_file=%s: whose? user=NAME is not given",
                             etcd->password_file);
}

/* A certificate that is given and not used is a connection that is believed to be safe. */
static int check_etcd3(const struct launch_config *config) {
    const struct rdzv_etcd_conf *etcd = &config->rdzv.conf.etcd;
    const char *given = first_certificate(names_of(RDZV_BACKEND_ETCD_V3), etcd);
    bool is_https;
    int rc = etcd3_client_check_endpoints(config->endpoint, &is_https);
    if (rc == MUSTER_OK && given && !is_https) {
        rc = status_fail(MUSTER_EINVAL,
                         "--rdzv-conf %s: certificates are used with https alone; write --rdzv-endpoint=https://...",
                         given);
    }
    return rc ? rc : check_user(etcd);
}

/* torchrun ignores them without a word. */
static bool are_unused(const struct launch_config *config, const struct names *names) {
    const struct rdzv_etcd_conf *etcd = &config->rdzv.conf.etcd;
    const char *given = first_certificate(names, etcd);
    bool is_unused = given && !etcd->https;
    if (is_unused) {
        log_warning("--rdzv-conf %s has no effect without protocol=https: the etcd is reached without encryption",
                    given);
    }
    return is_unused;
}

int run_rdzv_check_etcd(const struct launch_config *config) {
    enum rdzv_backend backend = config->rdzv.backend;
    enum rdzv_endpoint_form form = rdzv_backend_endpoint(backend);
    const struct names *names = names_of(backend);
    int rc = MUSTER_OK;
    if (form == RDZV_ENDPOINT_URLS) {
        rc = check_etcd3(config);
    } else if (form != RDZV_ENDPOINT_ETCD || are_unused(config, names)) {
        return MUSTER_OK;
    }
    rc = rc ? rc : check_file(names->ca, config->rdzv.conf.etcd.ca_file);
    return rc ? rc : check_pair(names, &config->rdzv.conf.etcd);
}
