/* The host of a static job's store; see static_host.h. */
#include "rendezvous/torch/static_host.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/round/visitors.h"
#include "rendezvous/torch/static_keys.h"
#include "rendezvous/torch/static_newcomers.h"

int static_host_init(struct static_host *h, const char *prefix, uint32_t node_count, bool are_alone) {
    *h = (struct static_host){.prefix = prefix,
                              .lost = -1,
                              .old = -1,
                              .nodes = calloc(node_count, sizeof *h->nodes),
                              .agents = calloc(node_count, sizeof *h->agents),
                              .watchers = calloc(node_count, sizeof *h->watchers),
                              .newcomers = calloc(node_count, sizeof *h->newcomers),
                              .new_agents = calloc(node_count, sizeof *h->new_agents),
                              .new_watchers = calloc(node_count, sizeof *h->new_watchers)};
    static_round_init(&h->round, h->nodes, node_count, are_alone);
    return h->nodes && h->agents && h->watchers && h->newcomers && h->new_agents && h->new_watchers
               ? MUSTER_OK
               : status_fail(MUSTER_ENOMEM, "no memory for a rendezvous of %u nodes", node_count);
}

void static_host_done(struct static_host *h) {
    free(h->nodes);
    free(h->agents);
    free(h->watchers);
    free(h->newcomers);
    free(h->new_agents);
    free(h->new_watchers);
    h->nodes = NULL;
    h->newcomers = NULL;
    h->agents = h->watchers = h->new_agents = h->new_watchers = NULL;
}

/* ---- what is heard ---- */

/* The key behind "/<prefix>", as text; NULL: it is none of this job's agents, or too long to be one that is known. */
static const char *own_key(const struct static_host *h, struct kv_slice key, char out[STATIC_KEY_MAX]) {
    size_t skipped = 1 + strlen(h->prefix);
    if (key.len <= skipped || key.len - skipped >= STATIC_KEY_MAX || key.data[0] != '/' ||
        memcmp(key.data + 1, h->prefix, skipped - 1) != 0) {
        return NULL;
    }
    memcpy(out, key.data + skipped, key.len - skipped);
    out[key.len - skipped] = '\0';
    return out;
}

/* The rank behind `family` in a key; -1: it is not of this family, or no rank of the job. */
static int64_t rank_in(const struct static_host *h, const char *key, const char *family) {
    int64_t rank = -1;
    bool is_rank = strncmp(key, family, strlen(family)) == 0 && str_parse_i64(key + strlen(family), &rank);
    return is_rank && rank >= 0 && rank < (int64_t)h->round.count ? rank : -1;
}

static int64_t rank_of(const struct static_host *h, uint64_t connection) {
    return static_peers_rank_of(h->agents, h->round.count, connection);
}

static void agent_came(struct static_host *h, uint32_t rank, uint64_t connection) {
    static_peers_set(h->agents, h->round.count, rank, connection);
    static_round_came(&h->round, rank);
}

static bool has_told_protocol(const struct static_host *h, uint32_t rank) {
    char key[STATIC_KEY_MAX];
    struct kv_slice number;
    (void)str_format(key, sizeof key, "/%s" STATIC_KEY_PROTOCOL "%u", h->prefix, rank);
    return !h->server || kv_server_get(h->server, kv_slice_text(key), &number);
}

static void node_says(struct static_host *h, uint32_t rank, uint64_t connection, struct kv_slice value) {
    struct static_says says;
    if (!static_says_read(value, &says)) {
        return;
    }
    if (says.what == STATIC_SAYS_HERE) {
        h->old = has_told_protocol(h, rank) ? h->old : rank;
        if (static_newcomers_come(h, rank, connection, says.round)) {
            agent_came(h, rank, connection);
        }
    } else if (rank_of(h, connection) != rank) {
        return; /* an agent that has been replaced */
    } else if (says.what == STATIC_SAYS_BROKE) {
        static_round_broke(&h->round, rank, says.round);
    } else if (says.what == STATIC_SAYS_READY) {
        static_round_ready(&h->round, rank, says.round);
    } else {
        static_round_done(&h->round, rank);
    }
}

/* Only agents of PyTorch's tell a role without having introduced themselves. */
static void role_is_told(struct static_host *h, uint32_t rank, uint64_t connection) {
    if (rank_of(h, connection) != rank) {
        agent_came(h, rank, connection);
        static_round_is_mixed(&h->round);
    }
}

/* They come to the exit barrier on the same connection. */
static void somebody_is_counted(struct static_host *h, uint64_t connection) {
    int64_t rank = rank_of(h, connection);
    if (rank >= 0) {
        static_round_done(&h->round, (uint32_t)rank);
    }
}

/* Workers use that key, too, but not before the first attempt. */
static void somebody_comes(struct static_host *h, uint64_t connection, struct kv_slice value) {
    bool no_worker_runs = h->round.phase == STATIC_FORMING && h->round.round == 0;
    if (!static_host_is_counted(h)) {
        h->here = static_number_of(value);
    }
    if (no_worker_runs && rank_of(h, connection) < 0) {
        static_round_is_mixed(&h->round);
    }
}

static void note_difference(struct static_host *h, struct kv_slice value) {
    if (value.len < sizeof h->differ) {
        memcpy(h->differ, value.data, value.len);
        h->differ[value.len] = '\0';
    }
}

static void somebody_watches(struct static_host *h, uint32_t rank, uint64_t connection, struct kv_slice number) {
    if (static_number_of(number) > 1) {
        static_newcomers_watch(h, rank, connection);
    } else {
        static_peers_set(h->watchers, h->round.count, rank, connection);
    }
}

static bool agent_writes(struct static_host *h, uint64_t connection, const char *key, struct kv_slice value) {
    int64_t rank;
    if ((rank = rank_in(h, key, STATIC_KEY_NODE)) >= 0) {
        node_says(h, (uint32_t)rank, connection, value);
    } else if ((rank = rank_in(h, key, STATIC_KEY_WATCHER)) >= 0) {
        somebody_watches(h, (uint32_t)rank, connection, value);
    } else if ((rank = rank_in(h, key, STATIC_KEY_STAYS)) >= 0) {
        static_newcomers_stays(h, (uint32_t)rank, connection, value);
    } else if ((rank = rank_in(h, key, "torchelastic/role_info/")) >= 0) {
        role_is_told(h, (uint32_t)rank, connection);
    } else if (strcmp(key, "torchelastic/agent/terminal_state/num_members") == 0) {
        somebody_is_counted(h, connection);
    } else if (strcmp(key, STATIC_KEY_FAILED) == 0) {
        h->has_failed = value.len > 0;
    } else if (strcmp(key, STATIC_KEY_DIFFER) == 0) {
        note_difference(h, value);
    } else {
        return false;
    }
    return true;
}

bool static_host_heard(struct static_host *h, uint64_t connection, struct kv_slice key, struct kv_slice value) {
    char text[STATIC_KEY_MAX];
    if (kv_slice_equal(key, kv_slice_text("init/"))) {
        somebody_comes(h, connection, value);
        return true;
    }
    const char *own = own_key(h, key, text);
    return own && value.data && agent_writes(h, connection, own, value);
}

bool static_host_lost(struct static_host *h, uint64_t connection) {
    int64_t rank = rank_of(h, connection), watching = static_peers_rank_of(h->watchers, h->round.count, connection);
    if (rank >= 0) {
        static_round_lost(&h->round, (uint32_t)rank);
        h->lost = h->nodes[rank] == STATIC_GONE ? rank : h->lost;
        static_peers_set(h->agents, h->round.count, (uint32_t)rank, 0); /* none's */
    }
    if (watching >= 0) {
        static_peers_set(h->watchers, h->round.count, (uint32_t)watching, 0);
    }
    if (rank >= 0 || watching >= 0) {
        static_newcomers_promote(h, (uint32_t)(rank >= 0 ? rank : watching));
    }
    return rank >= 0 || watching >= 0 || static_newcomers_lost(h, connection);
}

bool static_host_is_counted(const struct static_host *h) {
    return h->here >= (int64_t)h->round.count;
}

const char *static_host_name(const struct static_host *h, uint32_t rank, char out[STATIC_NODE_NAME_SIZE]) {
    char key[STATIC_KEY_MAX], name[160] = "";
    struct kv_slice value;
    (void)str_format(key, sizeof key, "/%s" STATIC_KEY_NAME "%u", h->prefix, rank);
    if (kv_server_get(h->server, kv_slice_text(key), &value)) {
        size_t len = value.len < sizeof name ? value.len : sizeof name - 1;
        memcpy(name, value.data, len);
        printable_clean(name, len, false);
    }
    (void)str_format(out, STATIC_NODE_NAME_SIZE, "node rank %u%s%s", rank, name[0] ? ", " : "", name);
    return out;
}

uint32_t static_host_missing(const struct static_host *h, char out[STATIC_NODE_NAME_SIZE]) {
    char ranks[STATIC_MISSING_SIZE];
    int64_t rank = -1;
    uint32_t count = static_round_missing(&h->round, ranks);
    (void)str_copy(out, STATIC_NODE_NAME_SIZE, ranks);
    if (count == 1 && str_parse_i64(ranks + strcspn(ranks, "0123456789"), &rank)) {
        (void)static_host_name(h, (uint32_t)rank, out);
    }
    return count;
}

/* ---- what is told ---- */

static bool keeps_connection(const void *ctx, uint64_t connection) {
    const struct static_host *h = ctx;
    return rank_of(h, connection) >= 0 || static_peers_rank_of(h->watchers, h->round.count, connection) >= 0 ||
           static_newcomers_keep(h, connection);
}

static bool keeps_key(const void *ctx, struct kv_slice key) {
    const struct static_host *h = ctx;
    char text[STATIC_KEY_MAX];
    const char *own = own_key(h, key, text);
    return kv_slice_equal(key, kv_slice_text("/" VISITORS_KEY_HOST)) ||
           (own && strncmp(own, STATIC_KEYS, strlen(STATIC_KEYS)) == 0);
}

static void tell(struct static_host *h, const char *word) {
    if (strcmp(word, h->told) != 0) {
        (void)str_copy(h->told, sizeof h->told, word);
        log_debug("all nodes are told: %s", word);
        static_host_set(h, STATIC_KEY_ROUND, word);
    }
}

void static_host_open(struct static_host *h, struct kv_server *server) {
    h->server = server;
    static_host_act(h);
}

/* Every node sees that there is something to answer. */
static void tell_what_counts(struct static_host *h) {
    char word[STATIC_WORD_SIZE];
    (void)str_copy(word, sizeof word, STATIC_WORD_FAILED);
    if (!h->has_failed) {
        (void)static_round_word(&h->round, word);
    }
    size_t used = strlen(word);
    if (h->asked > 0) {
        (void)str_format(word + used, sizeof word - used, " ask %llu", (unsigned long long)h->asked);
    }
    tell(h, word);
}

void static_host_act(struct static_host *h) {
    static_newcomers_act(h);
    if (static_round_is_complete(&h->round)) {
        kv_server_reset_but(h->server, &(struct kv_keep){.connection = keeps_connection, .key = keeps_key, .ctx = h});
        static_round_go(&h->round);
    }
    if (!h->has_let_go && h->round.is_one_done && static_round_is_over(&h->round)) {
        h->has_let_go = true;
        static_host_set(h, "torchelastic/agent/terminal_state/last_member", "<val_ignored>");
    }
    if (!h->has_given_up) {
        tell_what_counts(h);
    }
}

static void give_up(struct static_host *h, const char *because, const char *of) {
    char word[sizeof h->told];
    h->has_given_up = true;
    (void)str_format(word, sizeof word, "%s%s", because, of);
    tell(h, word);
}

void static_host_tell_late(struct static_host *h, const char *missing) {
    give_up(h, STATIC_WORD_LATE, missing);
}

void static_host_tell_difference(struct static_host *h) {
    give_up(h, STATIC_WORD_DIFFER, h->differ);
}
