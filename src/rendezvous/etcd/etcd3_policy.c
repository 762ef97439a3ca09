/* See etcd3_policy.h. */
#include "rendezvous/etcd/etcd3_policy.h"

#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { DEFAULT_PORT = 2379, RENEWALS_MAX = 3 };

/* ---- endpoints ---- */

int etcd3_endpoints_read(struct net_url_list *endpoints, const char *text) {
    int rc = net_url_list_read(endpoints, text, "http", DEFAULT_PORT);
    return rc == MUSTER_EINVAL ? status_prefix(rc, "--rdzv-endpoint=%.200s", text) : rc;
}

/* ---- answers ---- */

static bool has(const struct etcd3_reply *reply, const char *words) {
    return strstr(reply->error_text, words) != NULL;
}

enum etcd3_verdict etcd3_judge_reply(const char *url, bool has_user, const struct etcd3_reply *reply, int *status) {
    if (reply->error == 0) {
        return ETCD3_FINE;
    }
    if (reply->error == ETCD3_UNAUTHENTICATED || has(reply, "invalid auth token") ||
        has(reply, "revision of auth store is old")) {
        *status = status_fail(MUSTER_EINVAL, "etcd at %s: %s", url, reply->error_text);
        return has_user ? ETCD3_RENEW : ETCD3_FINAL;
    }
    if (reply->error == ETCD3_NOT_FOUND) {
        *status = status_fail(MUSTER_ENOENT, "etcd at %s: %s", url, reply->error_text);
    } else if (has(reply, "space exceeded")) {
        *status =
            status_fail(MUSTER_ELIMIT,
                        "etcd at %s takes nothing any more, its space is used up (%s): compact and defragment it, "
                        "then \"etcdctl alarm disarm\"",
                        url, reply->error_text);
    } else if (has(reply, "user name is empty")) {
        *status = status_fail(MUSTER_EINVAL,
                              "etcd at %s wants to know a user: --rdzv-conf user=NAME,password_file=PATH", url);
    } else if (reply->error == ETCD3_PERMISSION_DENIED || has(reply, "permission denied")) {
        *status = status_fail(MUSTER_EINVAL,
                              "etcd at %s: %s: grant the user's role readwrite on the prefix of the job's keys", url,
                              reply->error_text);
    } else if (has(reply, "authentication failed")) {
        *status = status_fail(MUSTER_EINVAL, "etcd at %s: %s", url, reply->error_text);
    } else if (reply->error == ETCD3_INVALID_ARGUMENT || reply->error == ETCD3_FAILED_PRECONDITION) {
        *status = status_fail(MUSTER_EPROTOCOL, "etcd at %s refuses a request: %s", url, reply->error_text);
    } else { /* a member that is stopping, has no leader, or is too busy; and whatever else may pass */
        *status = status_fail(MUSTER_ECONNECT, "etcd at %s: %s", url, reply->error_text);
        return ETCD3_ELSEWHERE;
    }
    return ETCD3_FINAL;
}

static bool is_hopeless(int status) {
    return status == MUSTER_EINVAL || status == MUSTER_EUNSUPPORTED || status == MUSTER_ENOMEM ||
           status == MUSTER_ELIMIT;
}

enum etcd3_verdict etcd3_judge_answer(const char *url, int failure, long code, struct kv_slice body,
                                      struct etcd3_reply *reply, int *status) {
    *status = failure;
    if (failure != MUSTER_OK) {
        return is_hopeless(failure) ? ETCD3_FINAL : failure == MUSTER_EPROTOCOL ? ETCD3_STRANGE : ETCD3_ELSEWHERE;
    }
    int rc = etcd3_wire_get(body.data, body.len, reply);
    if (rc == MUSTER_OK) {
        return ETCD3_FINE;
    }
    *status = rc;
    if (rc == MUSTER_ENOMEM) {
        return ETCD3_FINAL;
    }
    if (code == 400 && memmem(body.data, body.len, "CommonName", strlen("CommonName"))) {
        *status = status_fail(MUSTER_EINVAL,
                              "etcd at %s, which has users, refuses client certificates with a common name (CN) at its "
                              "JSON gateway: give --rdzv-conf cert=... one without",
                              url);
        return ETCD3_FINAL;
    }
    char why[ETCD3_ERROR_MAX];
    (void)str_format(why, sizeof why, "%s", muster_detail());
    *status = status_fail(MUSTER_EPROTOCOL, "%s is no etcd of version 3.4 or later (HTTP %ld; %s)", url, code, why);
    return code >= 500 ? ETCD3_ELSEWHERE : ETCD3_STRANGE; /* a proxy without a server behind it */
}

/* ---- asking again ---- */

static const struct retry_pace pace = {.first_ms = 100, .max_ms = 1000};

bool etcd3_tries_is_late(const struct etcd3_tries *tries, uint64_t now_ms) {
    return tries->deadline_ms != UINT64_MAX && now_ms >= tries->deadline_ms;
}

enum etcd3_next etcd3_tries_next(struct etcd3_tries *tries, enum etcd3_verdict verdict, size_t endpoint_count,
                                 uint64_t now_ms, uint64_t *pause_ms) {
    if (verdict == ETCD3_RENEW && tries->renewal_count++ < RENEWALS_MAX) {
        return ETCD3_GET_TOKEN;
    }
    tries->strange_count += verdict == ETCD3_STRANGE;
    tries->failure_count++;
    *pause_ms = retry_pause_ms(&pace, tries->failure_count, endpoint_count);
    if (verdict == ETCD3_RENEW || verdict == ETCD3_FINAL || tries->strange_count >= endpoint_count) {
        return ETCD3_GIVE_UP;
    }
    return etcd3_tries_is_late(tries, now_ms) ? ETCD3_TOO_LATE : ETCD3_ASK_AGAIN;
}

void etcd3_tries_answered(struct etcd3_tries *tries) {
    tries->failure_count = tries->strange_count = tries->renewal_count = 0;
}
