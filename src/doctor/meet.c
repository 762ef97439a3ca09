/* Meeting at a store and playing the tournament; see meet.h.
 *
 * Keys, all below "muster.doctor/": joined counts who has come, node/I is what the I-th of them tells, seen/R what the
 * node of rank R found out about names, pair/A/B what A has measured with B, step/S barriers, left and all_left who has
 * gone. */
#include "doctor/meet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include <muster/store.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "doctor/measure.h"
#include "net/event_loop.h"
#include "rendezvous/round/resolver.h"

enum { KEY_BYTES = 64 };
#define KEY_OF(out, ...) (void)str_format((out), KEY_BYTES, "muster.doctor/" __VA_ARGS__)

struct player {
    struct muster_store *store;
    struct meeting *meeting;
    struct doctor_node self;
    int listen_fd;
    uint32_t step;
};

/* ---- the store ---- */

static int open_store(const struct meet_options *options, struct muster_store **out, bool *out_serves) {
    struct muster_store_options store = MUSTER_STORE_OPTIONS_INIT;
    store.host = options->host;
    store.port = options->port;
    store.bind_host = options->host;
    store.timeout_ms = options->join_ms;
    *out_serves = options->may_host;
    if (options->may_host) {
        store.is_host = true;
        int code = muster_store_open_tcp(&store, out);
        if (code != MUSTER_ESYSTEM) { /* else somebody serves it already: another of us, perhaps */
            return code;
        }
        store.is_host = *out_serves = false;
    }
    return muster_store_open_tcp(&store, out);
}

static int tell_node(struct player *player, const char *key, const struct doctor_node *node) {
    struct buf text;
    buf_init(&text, DOCTOR_RECORD_BYTES_MAX);
    int code = doctor_node_write(node, &text);
    code = code ? code : muster_store_set(player->store, key, buf_bytes(&text), text.len);
    buf_done(&text);
    return code;
}

static int hear_node(struct player *player, const char *key, int64_t timeout_ms, struct doctor_node *out) {
    struct muster_store_value value;
    int code = muster_store_get(player->store, key, timeout_ms, &value);
    if (code == 0) {
        code = doctor_node_read(value.data, value.len, out);
        muster_store_value_free(&value);
    }
    return code;
}

/* All of us are so far. */
static int pass_barrier(struct player *player) {
    char key[KEY_BYTES];
    KEY_OF(key, "step/%u", player->step++);
    return muster_store_barrier(player->store, key, player->meeting->node_count, MEET_STEP_MS);
}

/* ---- who is there ---- */

static int compare_nodes(const void *left, const void *right) {
    return doctor_node_compare(left, right);
}

static int report_missing(struct player *player, uint32_t node_count, const char *why) {
    struct muster_store_value value;
    char reason[256];
    (void)str_copy(reason, sizeof reason, why);
    int64_t came = 0;
    if (muster_store_get(player->store, "muster.doctor/joined", 0, &value) == 0) {
        (void)str_parse_i64((const char *)value.data, &came);
        muster_store_value_free(&value);
    }
    return status_fail(MUSTER_ETIMEOUT,
                       "%" PRId64 " of %u nodes have come: start the others with the same --nnodes and --rdzv-endpoint "
                       "(%s)",
                       came, node_count, reason);
}

static int gather_nodes(struct player *player, const struct meet_options *options) {
    struct meeting *meeting = player->meeting;
    char key[KEY_BYTES];
    int64_t number = 0, deadline_ns = clock_deadline_ns(clock_monotonic_ns(), options->join_ms);
    int code = muster_store_add(player->store, "muster.doctor/joined", 1, &number);
    if (code == 0 && number > options->node_count) {
        return status_fail(MUSTER_EINVAL,
                           "%u nodes have come before this one, as many as --nnodes says: is another check running, or "
                           "was one run at this store before?",
                           options->node_count);
    }
    KEY_OF(key, "node/%" PRId64, number);
    code = code ? code : tell_node(player, key, &player->self);
    for (uint32_t i = 0; i < options->node_count && code == 0; i++) {
        KEY_OF(key, "node/%u", i + 1);
        code = hear_node(player, key, clock_remaining_ms(deadline_ns), &meeting->nodes[i]);
        code = code == MUSTER_ETIMEOUT ? report_missing(player, options->node_count, muster_detail()) : code;
    }
    if (code != 0) {
        return code;
    }
    meeting->node_count = options->node_count;
    qsort(meeting->nodes, meeting->node_count, sizeof *meeting->nodes, compare_nodes);
    for (uint32_t i = 0; i < meeting->node_count; i++) {
        if (doctor_node_compare(&meeting->nodes[i], &player->self) == 0) {
            meeting->rank = i;
        }
    }
    return 0;
}

/* ---- names of the others ---- */

struct asked_name {
    struct resolver *resolver;
    const struct doctor_node *node;
    unsigned *open_count;
    bool is_known;
};

static void on_name(void *ctx, int status, const struct net_addresses *addresses) {
    struct asked_name *asked = ctx;
    for (size_t i = 0; status == 0 && i < addresses->count && !asked->is_known; i++) {
        char text[NET_ADDRESS_TEXT_MAX];
        asked->is_known = strcmp(net_address_host((const struct sockaddr *)&addresses->list[i].sockaddr, text),
                                 asked->node->addr) == 0;
    }
    --*asked->open_count;
}

static void on_too_late(uv_timer_t *timer) {
    *(bool *)timer->data = true;
    event_loop_wake(timer);
}

/* All at once; those that do not answer are not known. */
static void ask_names(uv_loop_t *loop, const struct meeting *meeting, struct asked_name *asked, uint32_t *out_count) {
    unsigned open_count = 0;
    bool is_late = false;
    uv_timer_t timer;
    for (uint32_t i = 0; i < meeting->node_count && *out_count < MEET_NAMES_MAX; i++) {
        const struct doctor_node *node = &meeting->nodes[i];
        if (strcmp(node->host, meeting->nodes[meeting->rank].host) == 0) {
            continue; /* this machine */
        }
        struct asked_name *one = &asked[*out_count];
        *one = (struct asked_name){.node = node, .open_count = &open_count};
        if (resolver_start(loop, node->host, 0, on_name, one, &one->resolver) == 0) {
            open_count++;
            ++*out_count;
        }
    }
    (void)uv_timer_init(loop, &timer);
    timer.data = &is_late;
    (void)uv_timer_start(&timer, on_too_late, (uint64_t)DOCTOR_TIMEOUT_MS, 0);
    while (open_count > 0 && !is_late) {
        (void)uv_run(loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&timer, NULL);
    for (uint32_t i = 0; i < *out_count; i++) {
        resolver_close(asked[i].resolver);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT); /* the close callbacks */
}

static void look_names_up(struct player *player) {
    struct asked_name asked[MEET_NAMES_MAX];
    uint32_t count = 0;
    uv_loop_t loop;
    if (event_loop_init(&loop) != 0) {
        return;
    }
    ask_names(&loop, player->meeting, asked, &count);
    (void)uv_loop_close(&loop);
    for (uint32_t i = 0; i < count; i++) {
        if (!asked[i].is_known) {
            if (player->self.unresolved_count++ == 0) {
                (void)str_copy(player->self.unresolved, sizeof player->self.unresolved, asked[i].node->host);
            }
        }
    }
}

/* ---- the tournament ---- */

static int tell_pair(struct player *player, const struct doctor_pair *pair) {
    char key[KEY_BYTES];
    struct buf text;
    buf_init(&text, DOCTOR_RECORD_BYTES_MAX);
    KEY_OF(key, "pair/%u/%u", pair->from, pair->to);
    int code = doctor_pair_write(pair, &text);
    code = code ? code : muster_store_set(player->store, key, buf_bytes(&text), text.len);
    buf_done(&text);
    return code;
}

/* The lower rank asks. What the other one could not do, it hears of as well. */
static int play_round(struct player *player, uint32_t round) {
    const struct meeting *meeting = player->meeting;
    uint32_t other;
    int code = 0;
    if (!doctor_opponent(meeting->node_count, round, meeting->rank, &other)) {
        return 0;
    }
    if (meeting->rank < other) {
        struct doctor_pair pair = {.from = meeting->rank, .to = other};
        measure_ask(&meeting->nodes[other], &pair);
        code = tell_pair(player, &pair);
    } else {
        (void)measure_answer(player->listen_fd, player->self.nonce);
    }
    return code;
}

static int play(struct player *player) {
    int code = pass_barrier(player);
    uint32_t rounds = doctor_round_count(player->meeting->node_count);
    for (uint32_t round = 0; round < rounds && code == 0; round++) {
        code = play_round(player, round);
        code = code ? code : pass_barrier(player);
    }
    return code;
}

/* What everybody has found. */
static int collect(struct player *player) {
    struct meeting *meeting = player->meeting;
    char key[KEY_BYTES];
    int code = 0;
    for (uint32_t rank = 0; rank < meeting->node_count && code == 0; rank++) {
        KEY_OF(key, "seen/%u", rank);
        code = hear_node(player, key, MEET_STEP_MS, &meeting->nodes[rank]);
    }
    for (uint32_t round = 0; round < doctor_round_count(meeting->node_count) && code == 0; round++) {
        for (uint32_t rank = 0; rank < meeting->node_count && code == 0; rank++) {
            struct muster_store_value value;
            uint32_t other;
            if (!doctor_opponent(meeting->node_count, round, rank, &other) || other < rank) {
                continue;
            }
            KEY_OF(key, "pair/%u/%u", rank, other);
            code = muster_store_get(player->store, key, MEET_STEP_MS, &value);
            if (code == 0) {
                code = doctor_pair_read(value.data, value.len, &meeting->pairs[meeting->pair_count]);
                meeting->pairs[meeting->pair_count].from = rank; /* whatever else it says */
                meeting->pairs[meeting->pair_count].to = other;
                meeting->pair_count += code == 0;
                muster_store_value_free(&value);
            }
        }
    }
    return code;
}

/* Whoever serves the store goes last: the others need nothing of it any more. */
static int leave(struct player *player) {
    int64_t left = 0;
    if (player->self.is_serving) {
        const char *key = "muster.doctor/all_left";
        return player->meeting->node_count > 1 ? muster_store_wait(player->store, &key, 1, MEET_STEP_MS) : 0;
    }
    int code = muster_store_add(player->store, "muster.doctor/left", 1, &left);
    return code == 0 && left + 1 >= player->meeting->node_count
               ? muster_store_set(player->store, "muster.doctor/all_left", "", 0)
               : code;
}

/* From here on all have met: a failure is told beside what is there. */
static int spend_time_together(struct player *player) {
    char key[KEY_BYTES];
    look_names_up(player);
    KEY_OF(key, "seen/%u", player->meeting->rank);
    int code = tell_node(player, key, &player->self);
    code = code ? code : play(player);
    code = code ? code : collect(player);
    return code ? code : leave(player);
}

/* ---- life ---- */

static int player_begin(struct player *player, const struct doctor_facts *facts) {
    doctor_node_describe(facts, &player->self);
    player->self.pid = getpid();
    uint64_t nonce;
    if (random_fill(&nonce, sizeof nonce) != 0) {
        return status_fail_errno(errno, "random bytes");
    }
    player->self.nonce = nonce >> 1; /* JSON's numbers have a sign */
    return interface_listen(0, &player->listen_fd, &player->self.port);
}

int meet(const struct meet_options *options, const struct doctor_facts *facts, struct meeting *out) {
    struct meeting meeting = {.node_count = 0};
    struct player player = {.meeting = &meeting, .listen_fd = -1};
    size_t pairs_max = (size_t)options->node_count * doctor_round_count(options->node_count) / 2 + 1;
    meeting.nodes = calloc(options->node_count, sizeof *meeting.nodes);
    meeting.pairs = calloc(pairs_max, sizeof *meeting.pairs);
    int code = meeting.nodes && meeting.pairs
                   ? player_begin(&player, facts)
                   : status_fail(MUSTER_ENOMEM, "no memory for %u nodes", options->node_count);
    code = code ? code : open_store(options, &player.store, &player.self.is_serving);
    code = code ? code : gather_nodes(&player, options);
    if (code == 0 && spend_time_together(&player) != 0) {
        (void)str_copy(meeting.trouble, sizeof meeting.trouble, muster_detail());
    }
    muster_store_close(player.store);
    if (player.listen_fd >= 0) {
        (void)close(player.listen_fd);
    }
    if (code != 0) {
        meeting_done(&meeting);
        return code;
    }
    *out = meeting;
    return 0;
}

void meeting_done(struct meeting *meeting) {
    free(meeting->nodes);
    free(meeting->pairs);
    *meeting = (struct meeting){.node_count = 0};
}
