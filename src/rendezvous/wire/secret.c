/* The secret of a job; see secret.h. What is said with it is coordinator_auth.c. */
#include "rendezvous/wire/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

struct secret {
    struct hmac *hmac;
    struct secret_text text;
};

/* ---- where it comes from ---- */

static int take(const uint8_t *bytes, size_t len, const char *from, struct secret_text *out) {
    if (len > 0 && bytes[len - 1] == '\n') {
        len--;
        len -= len > 0 && bytes[len - 1] == '\r';
    }
    if (len < SECRET_BYTES_MIN || len > SECRET_BYTES_MAX) {
        return status_fail(MUSTER_EINVAL,
                           "the secret in %s has %s bytes: %zu to %zu are expected, such as head -c 32 /dev/urandom | "
                           "base64 makes",
                           from, len < SECRET_BYTES_MIN ? "too few" : "too many", SECRET_BYTES_MIN, SECRET_BYTES_MAX);
    }
    memcpy(out->bytes, bytes, len);
    out->len = len;
    return MUSTER_OK;
}

/* Who else may read or write it? Its owner may, so that is this user or root. Kubernetes gives the files of a Secret to
 * root, and to a group of the pod's own. */
static int check_owner(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return status_fail_errno(errno, "look at %s", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return status_fail(MUSTER_EINVAL, "secret_file=%s is not a file", path);
    }
    if (info.st_uid != 0 && info.st_uid != geteuid()) {
        return status_fail(
            MUSTER_EINVAL,
            "the secret in %s belongs to another user (%u), who may read and change it: chown it to this "
            "user, or to root",
            path, (unsigned)info.st_uid);
    }
    mode_t tolerated = info.st_uid == 0 ? S_IRGRP : 0;
    if ((info.st_mode & (S_IRWXG | S_IRWXO) & ~tolerated) != 0) {
        return status_fail(MUSTER_EINVAL, "other users may read or write the secret in %s: chmod 600 %s", path, path);
    }
    return MUSTER_OK;
}

static int load_file(const char *path, struct secret_text *out) {
    uint8_t bytes[SECRET_BYTES_MAX + 3]; /* a newline of two bytes, and one byte too many */
    size_t len = 0;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return status_fail_errno(errno, "the job's secret cannot be read from %s", path);
    }
    int rc = check_owner(fd, path);
    while (rc == MUSTER_OK && got > 0 && len < sizeof bytes) {
        got = read(fd, bytes + len, sizeof bytes - len);
        len += got > 0 ? (size_t)got : 0;
    }
    if (got < 0) {
        rc = status_fail_errno(errno, "the job's secret cannot be read from %s", path);
    }
    (void)close(fd);
    rc = rc ? rc : take(bytes, len, path, out);
    explicit_bzero(bytes, sizeof bytes);
    return rc;
}

int secret_text_load(const char *path, const char *value, struct secret_text *out) {
    bool has_path = path && *path, has_value = value && *value;
    out->len = 0;
    if (value && !has_value && !has_path) { /* MUSTER_SECRET=$(cat nothing) must not open the job to everybody */
        return status_fail(MUSTER_EINVAL,
                           "MUSTER_SECRET is set and empty, and would protect nothing: give it the job's "
                           "secret, or unset it for a job without one");
    }
    if (has_path && has_value) {
        return status_fail(MUSTER_EINVAL, "both MUSTER_SECRET and --rdzv-conf secret_file=%s are given: leave out one",
                           path);
    }
    if (has_path) {
        return load_file(path, out);
    }
    return has_value ? take((const uint8_t *)value, strlen(value), "MUSTER_SECRET", out) : MUSTER_OK;
}

void secret_text_wipe(struct secret_text *text) {
    explicit_bzero(text, sizeof *text);
}

/* ---- signing ---- */

int secret_create(const struct secret_text *text, struct secret **out) {
    struct secret *secret = calloc(1, sizeof *secret);
    if (!secret) {
        return status_fail(MUSTER_ENOMEM, "no memory for the job's secret");
    }
    int rc = hmac_create(&secret->hmac);
    if (rc != MUSTER_OK) {
        free(secret);
        return status_prefix(rc, "the job's secret cannot be used");
    }
    secret->text = *text;
    *out = secret;
    return MUSTER_OK;
}

void secret_free(struct secret *secret) {
    if (secret) {
        hmac_free(secret->hmac);
        secret_text_wipe(&secret->text);
        free(secret);
    }
}

int secret_sign(const struct secret *secret, const struct hmac_part *parts, size_t part_count,
                uint8_t out[HMAC_BYTES]) {
    return hmac_sign(secret->hmac, secret->text.bytes, secret->text.len, parts, part_count, out);
}

int secret_sign_with(const struct secret *secret, const uint8_t key[HMAC_BYTES], const struct hmac_part *parts,
                     size_t part_count, uint8_t out[HMAC_BYTES]) {
    return hmac_sign(secret->hmac, key, HMAC_BYTES, parts, part_count, out);
}
