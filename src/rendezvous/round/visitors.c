/* Cards of agents that cannot meet; see visitors.h. Pure. */
#include "rendezvous/round/visitors.h"

#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/str.h"

enum { KEY_MAX = 512 };

static void take(char *out, size_t size, const char *text, size_t len) {
    len = len < size ? len : size - 1;
    memcpy(out, text, len);
    out[len] = '\0';
    printable_clean(out, len, false);
}

static void fill(struct visitors_card *card, const char *backend, const char *run_id, const char *nnodes,
                 const char *name) {
    take(card->backend, sizeof card->backend, backend, strlen(backend));
    take(card->run_id, sizeof card->run_id, run_id, strlen(run_id));
    take(card->nnodes, sizeof card->nnodes, nnodes, strlen(nnodes));
    take(card->name, sizeof card->name, name, strlen(name));
}

void visitors_init(struct visitors *v, const char *backend, const char *run_id, const char *nnodes, const char *name) {
    *v = (struct visitors){.count = 0};
    fill(&v->self, backend, run_id, nnodes, name);
    (void)str_format(v->self.protocol, sizeof v->self.protocol, "%u", protocol_agents());
}

/* ---- cards ---- */

const char *visitors_card(const struct visitors *v, char out[VISITORS_CARD_SIZE]) {
    const struct visitors_card *self = &v->self;
    (void)str_format(out, VISITORS_CARD_SIZE, "%s\n%s\n%s\n%s\n%s", self->backend, self->run_id, self->nnodes,
                     self->name, self->protocol);
    return out;
}

static bool read_card(struct kv_slice value, struct visitors_card *out) {
    struct {
        char *at;
        size_t size;
    } fields[] = {{out->backend, sizeof out->backend},
                  {out->run_id, sizeof out->run_id},
                  {out->nnodes, sizeof out->nnodes},
                  {out->name, sizeof out->name},
                  {out->protocol, sizeof out->protocol}};
    const char *at = (const char *)value.data, *end = at + value.len;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        const char *stop = newline ? newline : end;
        take(fields[i].at, fields[i].size, at, (size_t)(stop - at));
        at = newline ? newline + 1 : end;
    }
    return out->backend[0] != '\0';
}

static bool is_other(const char *own, const char *other) {
    return other[0] != '\0' && strcmp(own, other) != 0;
}

static bool differs(const struct visitors_card *self, const struct visitors_card *other) {
    return is_other(self->backend, other->backend) || is_other(self->run_id, other->run_id) ||
           is_other(self->nnodes, other->nnodes) || is_other(self->protocol, other->protocol);
}

bool visitors_read_host(struct visitors *v, struct kv_slice value) {
    struct visitors_card card;
    if (value.len == 0 || !read_card(value, &card) || !differs(&v->self, &card)) {
        return false;
    }
    v->host = card;
    return true;
}

/* ---- who has come ---- */

static bool note(struct visitors *v, const struct visitors_card *card) {
    if (!differs(&v->self, card)) {
        return false;
    }
    for (size_t i = 0; i < v->count; i++) {
        struct visitors_card *seen = &v->seen[i];
        if (!differs(seen, card) || !differs(card, seen)) {
            *seen = seen->name[0] == '\0' ? *card : *seen; /* PyTorch's keys come before the card */
            return false;
        }
    }
    if (v->count == VISITORS_MAX) {
        return false;
    }
    v->seen[v->count++] = *card;
    return true;
}

bool visitors_note(struct visitors *v, const char *backend, const char *run_id, const char *nnodes, const char *name) {
    struct visitors_card card = {.protocol = ""};
    fill(&card, backend, run_id, nnodes, name);
    return note(v, &card);
}

void visitors_host_is_old(struct visitors *v) {
    v->host = v->self;
    v->host.name[0] = '\0';
    (void)str_copy(v->host.protocol, sizeof v->host.protocol, "0");
}

bool visitors_note_protocol(struct visitors *v, const char *name, struct kv_slice number) {
    struct visitors_card card = v->self;
    take(card.name, sizeof card.name, name, strlen(name));
    take(card.protocol, sizeof card.protocol, (const char *)number.data, number.len);
    return note(v, &card);
}

/* "torch.rendezvous.ID" holds the state of c10d; "torch.rendezvous.ID.ROUND/..." and the like are no news. */
static bool note_c10d(struct visitors *v, const char *rest) {
    return strchr(rest, '/') == NULL && visitors_note(v, "c10d", rest, "", "");
}

/* "ID/torchelastic/role_info/RANK": static, as PyTorch's agents write it. */
static bool note_static(struct visitors *v, char *key) {
    char *behind = strstr(key, "/torchelastic/role_info/");
    if (!behind) {
        return false;
    }
    *behind = '\0';
    return visitors_note(v, "static", key, "", "");
}

bool visitors_heard(struct visitors *v, struct kv_slice key, struct kv_slice value) {
    static const char c10d[] = "torch.rendezvous.";
    char text[KEY_MAX];
    struct visitors_card card;
    if (key.len < 2 || key.len >= sizeof text || key.data[0] != '/' || value.len == 0) {
        return false;
    }
    memcpy(text, key.data + 1, key.len - 1);
    text[key.len - 1] = '\0';
    if (strcmp(text, VISITORS_KEY_VISIT) == 0) {
        return read_card(value, &card) && note(v, &card);
    }
    return strncmp(text, c10d, sizeof c10d - 1) == 0 ? note_c10d(v, text + sizeof c10d - 1) : note_static(v, text);
}

/* ---- for people ---- */

static void add(char *out, const char *text) {
    size_t len = strlen(out);
    (void)str_format(out + len, VISITORS_TEXT_SIZE - len, "%s", text);
}

/* " --nnodes=2 (here 3)" */
static void add_option(char *out, const char *name, const char *own, const char *other) {
    char text[256];
    if (is_other(own, other)) {
        (void)str_format(text, sizeof text, " %s=%s (here %s)", name, other, own);
        add(out, text);
    }
}

static void add_card(char *out, const char *who, const struct visitors *v, const struct visitors_card *card) {
    const struct visitors_card *self = &v->self;
    add(out, who);
    add(out, card->name[0] != '\0' ? ", " : "");
    add(out, card->name);
    add(out, card->name[0] != '\0' ? ", has" : " has");
    add_option(out, "--rdzv-backend", self->backend, card->backend);
    add_option(out, "--rdzv-id", self->run_id, card->run_id);
    add_option(out, "--nnodes", self->nnodes, card->nnodes);
    add_option(out, "protocol", self->protocol, card->protocol);
}

const char *visitors_protocol(const struct visitors *v, const struct visitors_card *card, const char *who,
                              char out[PROTOCOL_SENTENCE_SIZE]) {
    char name[160];
    if (!is_other(v->self.protocol, card->protocol)) {
        return NULL;
    }
    (void)str_format(name, sizeof name, "%s%s%s%s", who, card->name[0] != '\0' ? ", " : "", card->name,
                     card->name[0] != '\0' ? "," : "");
    return protocol_differs(name, (uint32_t)strtoul(card->protocol, NULL, 10), "this node", protocol_agents(), out);
}

const char *visitors_text(const struct visitors *v, char out[VISITORS_TEXT_SIZE]) {
    out[0] = '\0';
    if (v->host.backend[0] != '\0') {
        add_card(out, "; the host of the store", v, &v->host);
    }
    for (size_t i = 0; i < v->count; i++) {
        add_card(out, "; another agent", v, &v->seen[i]);
    }
    add(out, out[0] != '\0' ? ": start all nodes with the same" : "");
    return out;
}
