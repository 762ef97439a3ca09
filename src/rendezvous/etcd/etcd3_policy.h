/* Which etcd is asked, what its answers mean, and whether and when it is asked again. Pure. */
#ifndef RENDEZVOUS_ETCD3_POLICY_H
#define RENDEZVOUS_ETCD3_POLICY_H

#include "net/url_list.h"
#include "rendezvous/etcd/etcd3_wire.h"

enum { ETCD3_PATIENT = 0 };

/* ---- endpoints ---- */

/* net_url_list_read(): http, port 2379. The detail names the option. */
int etcd3_endpoints_read(struct net_url_list *endpoints, const char *text);

/* ---- answers ---- */

enum etcd3_verdict {
    ETCD3_FINE,
    ETCD3_ELSEWHERE, /* another endpoint may answer, or this one later */
    ETCD3_STRANGE,   /* that is no etcd */
    ETCD3_RENEW,     /* the token has expired */
    ETCD3_FINAL,     /* *status says what it is */
};

/* An exchange by HTTP with `url` has ended: `failure` is 0 or why there is no answer, with the detail. FINE: etcd has
 * answered, *reply is to be freed, and may be an error of etcd's. Else *status, with the detail. */
enum etcd3_verdict etcd3_judge_answer(const char *url, int failure, long code, struct kv_slice body,
                                      struct etcd3_reply *reply, int *status);
/* The same of an answer of etcd's; FINE: no error. `has_user`: a token can be renewed. */
enum etcd3_verdict etcd3_judge_reply(const char *url, bool has_user, const struct etcd3_reply *reply, int *status);

/* ---- asking again ---- */

/* Of one request, since its last answer. Starts as zeros, with a deadline. */
struct etcd3_tries {
    uint64_t deadline_ms; /* UINT64_MAX: none */
    unsigned failure_count, strange_count, renewal_count;
};

enum etcd3_next {
    ETCD3_GIVE_UP,   /* for the reason that was found */
    ETCD3_TOO_LATE,  /* the deadline has passed */
    ETCD3_GET_TOKEN, /* and ask again with it, at once */
    ETCD3_ASK_AGAIN, /* at another endpoint if there is one, after *pause_ms */
};

/* What follows a verdict that is not FINE. */
enum etcd3_next etcd3_tries_next(struct etcd3_tries *tries, enum etcd3_verdict verdict, size_t endpoint_count,
                                 uint64_t now_ms, uint64_t *pause_ms);
void etcd3_tries_answered(struct etcd3_tries *tries);
bool etcd3_tries_is_late(const struct etcd3_tries *tries, uint64_t now_ms);

#endif
