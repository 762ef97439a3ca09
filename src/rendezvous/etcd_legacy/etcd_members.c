/* The members of a round of the legacy etcd backend; see etcd_members.h. */
#include "rendezvous/etcd_legacy/etcd_members.h"

#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/status.h"
#include "base/str.h"

#define DONE_WORD "done "

enum { NUMBER_TEXT_MAX = 24 };

struct seen {
    bool is_alive;
    const char *mark;     /* NULL: none */
    const char *protocol; /* NULL: from before there were numbers */
};

/* The rank in "<folder>/<kind><rank>"; false: it is no such key, or of nobody. */
static bool read_rank(const char *key, const char *folder, const char *kind, uint32_t participants, uint32_t *out) {
    size_t folder_len = strlen(folder), kind_len = strlen(kind);
    int64_t rank = -1;
    bool fits = strncmp(key, folder, folder_len) == 0 && key[folder_len] == '/' &&
                strncmp(key + folder_len + 1, kind, kind_len) == 0 &&
                str_parse_i64(key + folder_len + 1 + kind_len, &rank) && rank >= 0 && rank < (int64_t)participants;
    *out = fits ? (uint32_t)rank : 0;
    return fits;
}

static bool is_done(const struct seen *member) {
    return member->mark && str_has_prefix(member->mark, DONE_WORD);
}

static void name_member(const struct seen *member, uint32_t rank, char out[ETCD_MEMBERS_NAME_MAX]) {
    const char *name = is_done(member) ? member->mark + strlen(DONE_WORD) : member->mark;
    if (!name || name[0] == '\0') {
        (void)str_format(out, ETCD_MEMBERS_NAME_MAX, "the node of rank %u", rank);
    } else {
        (void)str_format(out, ETCD_MEMBERS_NAME_MAX, "node %.*s", ETCD_MEMBERS_NAME_MAX - 8, name);
    }
}

static void note_done(struct etcd_members *out, const struct seen *member, uint32_t rank) {
    char name[ETCD_MEMBERS_NAME_MAX];
    size_t used = strlen(out->done);
    name_member(member, rank, name);
    if (used + strlen(name) + sizeof ",  has" < sizeof out->done) {
        (void)str_format(out->done + used, sizeof out->done - used, "%s%s has", used > 0 ? ", " : "", name);
    }
}

static void note_protocol(struct etcd_members *out, const struct seen *member, uint32_t rank, const char *own) {
    const char *number = member->protocol ? member->protocol : "0";
    if (member->mark && out->other[0] == '\0' && strcmp(number, own) != 0) {
        name_member(member, rank, out->other);
        (void)str_copy(out->other_protocol, sizeof out->other_protocol, number);
    }
}

static void judge(struct etcd_members *out, const struct seen *member, uint32_t rank) {
    if (is_done(member)) {
        out->view.recorded_done++;
        note_done(out, member, rank);
    }
    out->all_muster = out->all_muster && member->mark;
    if (!member->is_alive) {
        out->view.missing++;
        out->view.missing_done += is_done(member);
        out->view.missing_mute += member->mark == NULL;
    }
    if (!member->is_alive && !is_done(member) && out->lost[0] == '\0') {
        name_member(member, rank, out->lost);
    }
}

int etcd_members_read(const struct etcd_v2_node *children, size_t count, const char *folder, uint32_t participants,
                      const char *protocol, struct etcd_members *out) {
    struct seen *seen = calloc((size_t)participants + 1, sizeof *seen);
    uint32_t rank;
    if (!seen) {
        return status_fail(MUSTER_ENOMEM, "no memory for the members of a round");
    }
    for (size_t i = 0; i < count; i++) {
        if (read_rank(children[i].key, folder, "rank_", participants, &rank)) {
            seen[rank].is_alive = true;
        } else if (read_rank(children[i].key, folder, "muster_", participants, &rank)) {
            seen[rank].mark = children[i].value ? children[i].value : "";
        } else if (read_rank(children[i].key, folder, "protocol_", participants, &rank)) {
            seen[rank].protocol = children[i].value;
        }
    }
    *out = (struct etcd_members){.all_muster = true, .view = {.world_size = participants}};
    for (uint32_t i = 0; i < participants; i++) {
        judge(out, &seen[i], i);
        note_protocol(out, &seen[i], i, protocol);
    }
    name_member(&seen[0], 0, out->first);
    free(seen);
    return MUSTER_OK;
}

void etcd_members_take_count(struct etcd_members *members, const char *text64) {
    struct buf text;
    int64_t number = 0;
    buf_init(&text, NUMBER_TEXT_MAX);
    bool is_number = text64 && base64_decode((const uint8_t *)text64, strlen(text64), &text) == MUSTER_OK &&
                     buf_append(&text, "", 1) == MUSTER_OK && str_parse_i64((const char *)buf_bytes(&text), &number);
    members->view.arrived = is_number && number > 0 && number <= RDZV_NODES_MAX ? (uint32_t)number : 0;
    buf_done(&text);
}

const char *etcd_members_mark(const char *name, bool is_done, char out[ETCD_MEMBERS_NAME_MAX]) {
    (void)str_format(out, ETCD_MEMBERS_NAME_MAX, "%s%s", is_done ? DONE_WORD : "", name);
    return out;
}
