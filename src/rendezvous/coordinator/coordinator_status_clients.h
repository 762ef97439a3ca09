/* Who asks how the job does: STATUS is answered with a document in pieces (REPORT), a batch for each STATUS, so that
 * nobody is sent more than they read. All who ask within a moment get the same document. Pure: the pieces go out
 * through the caller. */
#ifndef RENDEZVOUS_COORDINATOR_STATUS_CLIENTS_H
#define RENDEZVOUS_COORDINATOR_STATUS_CLIENTS_H

#include "rendezvous/coordinator/coordinator_report.h"

#define COORDINATOR_STATUS_CLIENTS_MAX ((size_t)64) /* connections that ask, at a time; more are refused */
#define COORDINATOR_REPORT_AGE_MS INT64_C(100)      /* for so long a document serves others, if the round lasts */

struct coordinator_document; /* shared by those who are being sent it */

/* Of one connection; zeroed: it has not asked. */
struct coordinator_status_client {
    bool is_counted;
    struct coordinator_document *document; /* what it is being sent; NULL: nothing */
    size_t sent;
};

struct coordinator_status_clients { /* zeroed: nobody asks */
    size_t count;
    struct coordinator_document *latest;
};

typedef void coordinator_piece_fn(void *ctx, void *session, const struct coordinator_message *message);

/* A STATUS has come: sends the next batch of the document, or the first of a new one. MUSTER_ELIMIT (too many ask),
 * MUSTER_ENOMEM: nothing was sent. */
int coordinator_status_clients_serve(struct coordinator_status_clients *status_clients,
                                     struct coordinator_status_client *status_client,
                                     const struct coordinator *coordinator, const struct coordinator_history *history,
                                     int64_t now_ms, coordinator_piece_fn *send, void *ctx, void *session);

/* The connection has ended. */
void coordinator_status_clients_forget(struct coordinator_status_clients *status_clients,
                                       struct coordinator_status_client *status_client);
void coordinator_status_clients_done(struct coordinator_status_clients *status_clients);

#endif
