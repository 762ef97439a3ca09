/* Documents and how far each status_client has been sent theirs; see coordinator_status_clients.h. */
#include "rendezvous/coordinator/coordinator_status_clients.h"

#include <stdlib.h>

#include "base/status.h"

struct coordinator_document {
    size_t user_count; /* freed with the last one */
    int64_t made_ms;
    size_t round_count; /* of the history then, and the phase */
    enum coordinator_phase phase;
    struct buf text;
};

static void document_give(struct coordinator_document *document) {
    if (document && --document->user_count == 0) {
        buf_done(&document->text);
        free(document);
    }
}

static int document_make(const struct coordinator *coordinator, const struct coordinator_history *history,
                         int64_t now_ms, struct coordinator_document **out) {
    struct coordinator_document *document = calloc(1, sizeof *document);
    if (!document) {
        return status_fail(MUSTER_ENOMEM, "no memory for the report of the job");
    }
    document->user_count = 1;
    document->made_ms = now_ms;
    document->round_count = history->count;
    document->phase = history->phase;
    buf_init(&document->text, COORDINATOR_REPORT_DOCUMENT_MAX);
    int code = coordinator_report(coordinator, history, now_ms, &document->text);
    if (code != 0) {
        document_give(document);
        return code;
    }
    *out = document;
    return 0;
}

/* It is young, and nothing of weight has happened since. */
static bool is_fresh(const struct coordinator_document *document, const struct coordinator_history *history,
                     int64_t now_ms) {
    return document && now_ms - document->made_ms < COORDINATOR_REPORT_AGE_MS &&
           document->round_count == history->count && document->phase == history->phase;
}

/* The status_client's document, for it to begin with. */
static int document_take(struct coordinator_status_clients *status_clients,
                         struct coordinator_status_client *status_client, const struct coordinator *coordinator,
                         const struct coordinator_history *history, int64_t now_ms) {
    if (!is_fresh(status_clients->latest, history, now_ms)) {
        struct coordinator_document *made = NULL;
        int code = document_make(coordinator, history, now_ms, &made);
        if (code != 0) {
            return code;
        }
        document_give(status_clients->latest);
        status_clients->latest = made;
    }
    status_client->document = status_clients->latest;
    status_client->document->user_count++;
    status_client->sent = 0;
    return 0;
}

static int count_in(struct coordinator_status_clients *status_clients,
                    struct coordinator_status_client *status_client) {
    if (!status_client->is_counted && status_clients->count >= COORDINATOR_STATUS_CLIENTS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu clients are asking for this job's status: try again later",
                           status_clients->count);
    }
    status_clients->count += !status_client->is_counted;
    status_client->is_counted = true;
    return 0;
}

int coordinator_status_clients_serve(struct coordinator_status_clients *status_clients,
                                     struct coordinator_status_client *status_client,
                                     const struct coordinator *coordinator, const struct coordinator_history *history,
                                     int64_t now_ms, coordinator_piece_fn *send, void *ctx, void *session) {
    int code = count_in(status_clients, status_client);
    if (code == 0 && !status_client->document) {
        code = document_take(status_clients, status_client, coordinator, history, now_ms);
    }
    if (code != 0) {
        return code;
    }
    for (unsigned piece = 0; piece < COORDINATOR_REPORT_BATCH && status_client->document; piece++) {
        const struct buf *text = &status_client->document->text;
        size_t left = text->len - status_client->sent;
        size_t here = left < COORDINATOR_REPORT_BYTES_MAX ? left : COORDINATOR_REPORT_BYTES_MAX;
        struct coordinator_message message = {.kind = COORDINATOR_REPORT,
                                              .is_last = here == left,
                                              .report = kv_slice_of(buf_bytes(text) + status_client->sent, here)};
        send(ctx, session, &message);
        status_client->sent += here;
        if (message.is_last) {
            document_give(status_client->document);
            status_client->document = NULL;
        }
    }
    return 0;
}

void coordinator_status_clients_forget(struct coordinator_status_clients *status_clients,
                                       struct coordinator_status_client *status_client) {
    status_clients->count -= status_client->is_counted;
    document_give(status_client->document);
    *status_client = (struct coordinator_status_client){.is_counted = false};
}

void coordinator_status_clients_done(struct coordinator_status_clients *status_clients) {
    document_give(status_clients->latest);
    status_clients->latest = NULL;
}
