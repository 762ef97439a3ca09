/* Documents and how far each asker has been sent theirs; see coordinator_askers.h. */
#include "rendezvous/coordinator_askers.h"

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

/* The asker's document, for it to begin with. */
static int document_take(struct coordinator_askers *askers, struct coordinator_asker *asker,
                         const struct coordinator *coordinator, const struct coordinator_history *history,
                         int64_t now_ms) {
    if (!is_fresh(askers->latest, history, now_ms)) {
        struct coordinator_document *made = NULL;
        int code = document_make(coordinator, history, now_ms, &made);
        if (code != 0) {
            return code;
        }
        document_give(askers->latest);
        askers->latest = made;
    }
    asker->document = askers->latest;
    asker->document->user_count++;
    asker->sent = 0;
    return 0;
}

static int count_in(struct coordinator_askers *askers, struct coordinator_asker *asker) {
    if (!asker->is_counted && askers->count >= COORDINATOR_ASKERS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu ask how the job does: try again later", askers->count);
    }
    askers->count += !asker->is_counted;
    asker->is_counted = true;
    return 0;
}

int coordinator_askers_serve(struct coordinator_askers *askers, struct coordinator_asker *asker,
                             const struct coordinator *coordinator, const struct coordinator_history *history,
                             int64_t now_ms, coordinator_piece_fn *send, void *ctx, void *session) {
    int code = count_in(askers, asker);
    if (code == 0 && !asker->document) {
        code = document_take(askers, asker, coordinator, history, now_ms);
    }
    if (code != 0) {
        return code;
    }
    for (unsigned piece = 0; piece < COORDINATOR_REPORT_BATCH && asker->document; piece++) {
        const struct buf *text = &asker->document->text;
        size_t left = text->len - asker->sent;
        size_t here = left < COORDINATOR_REPORT_BYTES_MAX ? left : COORDINATOR_REPORT_BYTES_MAX;
        struct coordinator_message message = {.kind = COORDINATOR_REPORT,
                                              .is_last = here == left,
                                              .report = kv_slice_of(buf_bytes(text) + asker->sent, here)};
        send(ctx, session, &message);
        asker->sent += here;
        if (message.is_last) {
            document_give(asker->document);
            asker->document = NULL;
        }
    }
    return 0;
}

void coordinator_askers_forget(struct coordinator_askers *askers, struct coordinator_asker *asker) {
    askers->count -= asker->is_counted;
    document_give(asker->document);
    *asker = (struct coordinator_asker){.is_counted = false};
}

void coordinator_askers_done(struct coordinator_askers *askers) {
    document_give(askers->latest);
    askers->latest = NULL;
}
