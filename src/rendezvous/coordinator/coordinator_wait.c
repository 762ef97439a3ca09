/* What the open round waits for, in words; see coordinator.h. Pure: text alone, of a few members however many there
 * are.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

enum { NAMED_MAX = 4, NAME_BYTES_MAX = 128, MS_PER_S = 1000 };

/* Appends as far as there is room. */
static void add(char *out, const char *text) {
    size_t len = strlen(out);
    (void)str_format(out + len, COORDINATOR_TEXT_BYTES_MAX - len, "%s", text);
}

static void add_nodes(char *out, const struct coordinator_list *list) {
    char text[NAME_BYTES_MAX + 64];
    size_t named = 0;
    for (const struct coordinator_member *m = list->first; m && named < NAMED_MAX; m = m->next, named++) {
        struct kv_slice addr = coordinator_text_clip(m->addr, NAME_BYTES_MAX);
        (void)str_format(text, sizeof text, "%s%.*s (pid %" PRId64 ")", named > 0 ? ", " : "", (int)addr.len,
                         (const char *)addr.data, m->pid);
        add(out, text);
    }
    if (list->count > named) {
        (void)str_format(text, sizeof text, " and %zu more", list->count - named);
        add(out, text);
    }
}

static void add_joined(const struct coordinator *c, char *out) {
    const struct coordinator_list *joined = &c->places[COORDINATOR_JOINED];
    char text[128];
    (void)str_format(text, sizeof text, "%zu of %" PRIu32, joined->count, c->settings.min_nodes);
    add(out, text);
    if (c->settings.max_nodes > c->settings.min_nodes) {
        (void)str_format(text, sizeof text, " to %" PRIu32, c->settings.max_nodes);
        add(out, text);
    }
    add(out, " nodes have joined");
    if (joined->count > 0) {
        add(out, ": ");
        add_nodes(out, joined);
    }
}

/* Everybody of the world before has answered: more nodes are wanted, or time. */
static void add_reason(const struct coordinator *c, int64_t now_ms, char *out) {
    char text[128], quorum[COORDINATOR_QUORUM_TEXT_SIZE];
    if (c->places[COORDINATOR_JOINED].count < c->settings.min_nodes) {
        (void)str_format(text, sizeof text, "; %zu more must come",
                         c->settings.min_nodes - c->places[COORDINATOR_JOINED].count);
        add(out, text);
    } else if (now_ms < coordinator_absent_stopped_ms(c)) {
        (void)str_format(text, sizeof text, "; enough, what was lost without a word gets %" PRId64 " s to stop",
                         (coordinator_absent_stopped_ms(c) - now_ms + MS_PER_S - 1) / MS_PER_S);
        add(out, text);
    } else if (!coordinator_quorum_allows(c, now_ms) || c->proposed_round > 0) {
        add(out, "; ");
        add(out, coordinator_quorum_explain(c, now_ms, quorum));
    } else if (c->last_call_ms != INT64_MAX) {
        int64_t left_ms = c->last_call_ms > now_ms ? c->last_call_ms - now_ms : 0;
        (void)str_format(text, sizeof text, "; enough, the last call ends in %" PRId64 " s",
                         (left_ms + MS_PER_S - 1) / MS_PER_S);
        add(out, text);
    }
}

struct kv_slice coordinator_spare_of(const struct coordinator *c, char out[COORDINATOR_TEXT_BYTES_MAX]) {
    char text[64];
    (void)str_format(out, COORDINATOR_TEXT_BYTES_MAX, "%s", "");
    if (c->phase == COORDINATOR_RUNNING) {
        (void)str_format(text, sizeof text, "members of round %" PRIu64 ": ", c->round);
        add(out, text);
        add_nodes(out, &c->places[c->places[COORDINATOR_ACTIVE].first ? COORDINATOR_ACTIVE : COORDINATOR_DONE_WAITS]);
    }
    return kv_slice_text(out);
}

struct kv_slice coordinator_waits_for(const struct coordinator *c, int64_t now_ms,
                                      char out[COORDINATOR_TEXT_BYTES_MAX]) {
    const struct coordinator_list *missing = &c->places[COORDINATOR_ACTIVE];
    char text[128];
    out[0] = '\0';
    if (c->phase != COORDINATOR_FORMING) {
        return kv_slice_text(out);
    }
    add_joined(c, out);
    if (missing->count > 0) {
        (void)str_format(text, sizeof text,
                         "; of round %" PRIu64 ", which ended %" PRId64 " s ago, %zu of %zu %s: ", c->round,
                         (now_ms - c->ended_ms) / MS_PER_S, missing->count, c->world_size,
                         missing->count == 1 ? "has not answered" : "have not answered");
        add(out, text);
        add_nodes(out, missing);
    } else {
        add_reason(c, now_ms, out);
        add(out, c->turned_away);
    }
    return kv_slice_text(out);
}
