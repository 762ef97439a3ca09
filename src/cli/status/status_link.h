/* A connection to the place where a job's nodes meet, for asking how the job does: the coordinator of the native
 * backend, or a store with the state of a c10d rendezvous. Calls run the loop, and take a bounded time. */
#ifndef CLI_STATUS_LINK_H
#define CLI_STATUS_LINK_H

#include <jansson.h>
#include <uv.h>

#include "net/endpoint.h"
#include "net/tls_context.h"
#include "rendezvous/wire/secret.h"

#define STATUS_ANSWER_MS 5000               /* for each step: a name, a connection, an answer */
#define STATUS_REPORT_BYTES_MAX (16u << 20) /* of a whole report */

struct status_link;

struct status_question {
    const struct net_endpoint *endpoints; /* borrowed until the link is open; tried in turn */
    size_t endpoint_count;
    const char *run_id;            /* borrowed for the life of the link */
    const struct secret *secret;   /* likewise; NULL: none */
    const struct tls_context *tls; /* likewise; NULL: without TLS */
    const bool *is_interrupted;    /* likewise: the user has had enough; calls return MUSTER_ECANCELED */
};

/* Connects and asks. `*out_report` is the caller's to json_decref(). MUSTER_ECONNECT, MUSTER_ERESOLVE, MUSTER_ETIMEOUT,
 * MUSTER_ENOENT (a store without this job), MUSTER_EPROTOCOL, MUSTER_ECANCELED, and what a coordinator refuses with:
 * the detail is a sentence for the user. */
int status_link_open(uv_loop_t *loop, const struct status_question *question, struct status_link **out,
                     json_t **out_report);

/* Asks again. MUSTER_ECLOSED: the other side is gone. */
int status_link_ask(struct status_link *link, json_t **out_report);

/* Frees during later turns of the loop. NULL accepted. */
void status_link_close(struct status_link *link);

#endif
