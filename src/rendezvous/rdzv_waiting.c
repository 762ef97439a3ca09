/* What all backends tell people while this node waits for others: since when, until when, which options were not given
 * here, and who has come to the same address with other ones. Each backend adds whom it waits for. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "rendezvous/backend.h"
#include "rendezvous/wire/coordinator_wire.h"
#include "store/server/kv_guest.h"

enum { REPORT_FIRST_MS = 5000, REPORT_AGAIN_MS = 30000, REPORT_NEWS_MS = 500 };

/* ---- the line's time ---- */

static void on_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    r->has_reported = true;
    r->report(timer);
}

void rdzv_report_start(struct rdzv *r, uv_timer_cb report) {
    r->waits_since_us = clock_realtime_us();
    r->waits_from_ms = rdzv_now_ms(r);
    r->report = report;
    r->has_reported = false;
    (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_REPORT), on_report, REPORT_FIRST_MS, REPORT_AGAIN_MS);
}

/* News that the next line would tell much later; one that has not been told at all has them anyway. */
static void report_news(struct rdzv *r) {
    uv_timer_t *timer = rdzv_timer(r, RDZV_TIMER_REPORT);
    if (uv_is_active((const uv_handle_t *)timer) && r->has_reported && r->spare_since_us == 0) {
        (void)uv_timer_start(timer, on_report, REPORT_NEWS_MS, REPORT_AGAIN_MS);
    }
}

/* ---- who comes to this node's store ---- */

/* Of another protocol: people hear it at once, also when workers run. */
static void tell_protocol(const struct rdzv *r) {
    char sentence[PROTOCOL_SENTENCE_SIZE];
    const struct visitors *v = &r->visitors;
    if (visitors_protocol(v, &v->seen[v->count - 1], "another agent", sentence)) {
        log_warning("%s", sentence);
    }
}

void rdzv_store_heard(struct rdzv *r, uint64_t connection, struct kv_slice key, struct kv_slice value) {
    bool has_met = r->world.group_world_size > 0 && !uv_is_active((uv_handle_t *)rdzv_timer(r, RDZV_TIMER_REPORT));
    bool is_card = kv_slice_equal(key, kv_slice_text("/" VISITORS_KEY_VISIT));
    if (connection != 0 && (!has_met || is_card) && visitors_heard(&r->visitors, key, value)) {
        tell_protocol(r);
        report_news(r);
    }
}

void rdzv_agent_speaks(struct rdzv *r, const char *name, struct kv_slice number) {
    if (visitors_note_protocol(&r->visitors, name, number)) {
        tell_protocol(r);
        report_news(r);
    }
}

/* It speaks to a coordinator, which is not here. */
static size_t serve_guest(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct rdzv *r = ctx;
    struct sockaddr_storage peer;
    char host[NET_ADDRESS_TEXT_MAX];
    (void)bytes;
    kv_guest_peer(connection, &peer);
    if (visitors_note(&r->visitors, "muster", "", "", net_address_host((const struct sockaddr *)&peer, host))) {
        report_news(r);
    }
    kv_guest_end(connection);
    return len;
}

static void guest_ended(void *ctx, struct kv_connection *connection) {
    (void)ctx;
    (void)connection;
}

struct kv_guest rdzv_guest(struct rdzv *r) {
    return (struct kv_guest){.first_byte = (uint8_t)COORDINATOR_HELLO[0],
                             .input_max = COORDINATOR_HELLO_BYTES,
                             .serve = serve_guest,
                             .ended = guest_ended,
                             .ctx = r};
}

/* ---- the line's end ---- */

static void describe_time(struct rdzv *r, int64_t deadline_ms, const char *limit, char *out, size_t size) {
    char since[16] = "";
    time_t seconds = (time_t)(r->waits_since_us / CLOCK_US_PER_S);
    struct tm local;
    int64_t left_ms = deadline_ms - rdzv_now_ms(r);
    if (localtime_r(&seconds, &local)) {
        (void)strftime(since, sizeof since, "%H:%M:%S", &local);
    }
    (void)str_format(out, size, "; it has waited since %s, and waits for %lld s more (%s)", since,
                     (long long)((left_ms > 0 ? left_ms : 0) + 999) / 1000, limit);
}

const char *rdzv_wait_note(struct rdzv *r, int64_t deadline_ms, const char *limit, char out[RDZV_WAIT_NOTE_SIZE]) {
    char time_text[96], others[VISITORS_TEXT_SIZE];
    const char *defaults = r->options.not_given ? r->options.not_given : "";
    describe_time(r, deadline_ms, limit, time_text, sizeof time_text);
    (void)str_format(out, RDZV_WAIT_NOTE_SIZE, "%s%s%s%s", time_text,
                     defaults[0] != '\0' ? "; not given here, and so: " : "", defaults,
                     visitors_text(&r->visitors, others));
    return out;
}
