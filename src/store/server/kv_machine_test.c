/* What requests do to waiting sessions, without sockets: the table of docs/formats/tcpstore.md, "Waiting". */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "store/server/kv_machine.h"

enum { SESSIONS = 4, DELIVERED_MAX = 64 };

struct scene {
    struct kv_machine machine;
    struct kv_session sessions[SESSIONS];
    uint8_t delivered[SESSIONS][DELIVERED_MAX]; /* what reached a session beside its own replies */
    size_t delivered_len[SESSIONS];
    struct kv_output reply; /* of the last request */
    unsigned changes;
    uint64_t changed_by;
    bool sets_more; /* on_change writes in its turn */
    struct kv_session *replaced;
    uint64_t returned;
};

static void deliver(void *ctx, struct kv_session *session, struct kv_slice head, struct kv_entry *entry) {
    struct scene *scene = ctx;
    size_t index = (size_t)(session - scene->sessions);
    const struct kv_slice parts[2] = {head, entry ? kv_entry_value(entry) : (struct kv_slice){0}};
    for (size_t i = 0; i < 2; i++) {
        assert_true(scene->delivered_len[index] + parts[i].len <= DELIVERED_MAX);
        if (parts[i].len > 0) {
            memcpy(scene->delivered[index] + scene->delivered_len[index], parts[i].data, parts[i].len);
        }
        scene->delivered_len[index] += parts[i].len;
    }
}

static void on_change(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                      struct kv_slice new_value) {
    struct scene *scene = ctx;
    scene->changes++;
    scene->changed_by = connection;
    if (scene->sets_more && connection != 0) {
        char copy[64];
        struct kv_slice before = new_value;
        memcpy(copy, new_value.data, new_value.len);
        assert_int_equal(kv_machine_set(&scene->machine, key, kv_slice_text("overwritten")), 0);
        assert_int_equal(kv_machine_set(&scene->machine, kv_slice_text("more"), kv_slice_text("x")), 0);
        assert_memory_equal(before.data, copy, before.len); /* borrowed until return, whatever happens */
        (void)old_value;
    }
}

static void on_replaced(void *ctx, struct kv_session *session) {
    struct scene *scene = ctx;
    scene->replaced = session;
}

static void on_return(void *ctx, uint64_t connection) {
    struct scene *scene = ctx;
    scene->returned = connection;
}

static int set_up(void **out) {
    static const uint64_t seed[4] = {1, 2, 3, 4};
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    kv_machine_init(&scene->machine, seed, 1024 * 1024);
    scene->machine.deliver = deliver;
    scene->machine.deliver_ctx = scene;
    scene->machine.replaced = on_replaced;
    scene->machine.on_return = on_return;
    scene->machine.on_change = on_change;
    scene->machine.change_ctx = scene;
    for (size_t i = 0; i < SESSIONS; i++) {
        scene->sessions[i].id = i + 1;
    }
    kv_output_init(&scene->reply, &scene->machine.table, 4096);
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    for (size_t i = 0; i < SESSIONS; i++) {
        kv_machine_end(&scene->machine, &scene->sessions[i], false);
    }
    kv_machine_done(&scene->machine);
    assert_int_equal(scene->machine.budget.used_bytes, 0);
    kv_output_done(&scene->reply);
    free(scene);
    return 0;
}

/* Serves a request whose keys are the words of `keys`. */
static int serve_keys(struct scene *scene, size_t session, enum codec_command command, const char *keys) {
    struct buf bytes;
    struct codec_request request = {.command = command};
    char copy[128], *rest = copy;
    buf_init(&bytes, 4096);
    (void)snprintf(copy, sizeof copy, "%s", keys);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_int_equal(codec_put_bytes(&bytes, kv_slice_text(word)), 0);
        request.list.item_count++;
    }
    request.list.at = buf_bytes(&bytes);
    request.list.end = bytes.len ? buf_bytes(&bytes) + bytes.len : request.list.at;
    kv_output_done(&scene->reply);
    int code = kv_machine_step(&scene->machine, &scene->sessions[session], &request, &scene->reply);
    buf_done(&bytes);
    return code;
}

static int serve(struct scene *scene, size_t session, enum codec_command command, const char *key, const char *value,
                 int64_t number) {
    struct codec_request request = {
        .command = command, .key = kv_slice_text(key), .value = kv_slice_text(value ? value : ""), .number = number};
    kv_output_done(&scene->reply);
    return kv_machine_step(&scene->machine, &scene->sessions[session], &request, &scene->reply);
}

static void compare_set(struct scene *scene, size_t session, const char *key, const char *expected,
                        const char *desired) {
    struct codec_request request = {.command = CODEC_COMPARE_SET,
                                    .key = kv_slice_text(key),
                                    .value = kv_slice_text(expected),
                                    .desired = kv_slice_text(desired)};
    kv_output_done(&scene->reply);
    assert_int_equal(kv_machine_step(&scene->machine, &scene->sessions[session], &request, &scene->reply), 0);
}

static void assert_reply(const struct scene *scene, const void *bytes, size_t len) {
    assert_int_equal(kv_output_len(&scene->reply), len);
    assert_true(len == 0 || memcmp(buf_bytes(&scene->reply.bytes), bytes, len) == 0);
}

static bool waits(const struct scene *scene, size_t session) {
    assert_int_equal(scene->delivered_len[session] == 0, kv_session_waits(&scene->sessions[session]));
    return kv_session_waits(&scene->sessions[session]);
}

static void start_wait(struct scene *scene, size_t session, const char *keys) {
    scene->delivered_len[session] = 0;
    assert_int_equal(serve_keys(scene, session, CODEC_WAIT, keys), 0);
    assert_reply(scene, "", 0);
    assert_true(waits(scene, session));
}

static void assert_woken(const struct scene *scene, size_t session) {
    assert_false(waits(scene, session));
    assert_int_equal(scene->delivered_len[session], 1);
    assert_int_equal(scene->delivered[session][0], CODEC_WAIT_DONE);
}

static void present_keys_end_a_wait_at_once(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(serve_keys(scene, 0, CODEC_WAIT, ""), 0);
    assert_reply(scene, "\0", 1);
    assert_int_equal(serve(scene, 0, CODEC_SET, "k", "v", 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_QUEUE_PUSH, "q", "item", 0), 0);
    assert_int_equal(serve_keys(scene, 1, CODEC_WAIT, "k q k"), 0);
    assert_reply(scene, "\0", 1);
    assert_int_equal(serve_keys(scene, 1, CODEC_CHECK, "k q"), 0);
    assert_reply(scene, "\0", 1);
    assert_int_equal(serve_keys(scene, 1, CODEC_CHECK, "k nowhere"), 0);
    assert_reply(scene, "\1", 1);
    assert_int_equal(serve_keys(scene, 1, CODEC_CHECK, CODEC_WATCH_PROBE_KEY), 0);
    assert_reply(scene, "\0", 1);
    assert_int_equal(serve_keys(scene, 1, CODEC_CHECK, CODEC_CLIENT_PROBE_KEY), 0);
    assert_reply(scene, "\0", 1);
    assert_int_equal(serve(scene, 1, CODEC_GETNUMKEYS, "", NULL, 0), 0);
    assert_reply(scene, "\1\0\0\0\0\0\0\0", 8); /* the probe keys and the queue do not count */
}

static void every_write_wakes_all_waiters(void **ctx) {
    struct scene *scene = *ctx;
    for (int kind = 0; kind < 4; kind++) {
        char key[8];
        (void)snprintf(key, sizeof key, "k%d", kind);
        start_wait(scene, 1, key);
        start_wait(scene, 2, key);
        if (kind == 0) {
            assert_int_equal(serve(scene, 0, CODEC_SET, key, "", 0), 0);
        } else if (kind == 1) {
            assert_int_equal(serve(scene, 0, CODEC_ADD, key, NULL, 1), 0);
        } else if (kind == 2) {
            assert_int_equal(serve(scene, 0, CODEC_APPEND, key, "x", 0), 0);
        } else {
            compare_set(scene, 0, key, "", "x");
        }
        assert_woken(scene, 1);
        assert_woken(scene, 2);
    }
}

static void what_does_not_store_does_not_wake(void **ctx) {
    struct scene *scene = *ctx;
    start_wait(scene, 1, "k");
    compare_set(scene, 0, "k", "something", "else");
    assert_int_equal(serve(scene, 0, CODEC_DELETE_KEY, "k", NULL, 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_GET, "k", NULL, 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_SET, "other", "v", 0), 0);
    assert_true(waits(scene, 1));
}

static void a_wait_counts_its_keys_down(void **ctx) {
    struct scene *scene = *ctx;
    start_wait(scene, 1, "a b a b c");
    assert_int_equal(serve(scene, 0, CODEC_SET, "a", "1", 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_SET, "a", "2", 0), 0); /* once is enough, twice no more */
    assert_int_equal(serve(scene, 0, CODEC_DELETE_KEY, "a", NULL, 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_SET, "b", "1", 0), 0);
    assert_true(waits(scene, 1));
    assert_int_equal(serve(scene, 0, CODEC_SET, "c", "1", 0), 0);
    assert_woken(scene, 1); /* although a is gone again */
}

static void a_push_wakes_exactly_one_in_order(void **ctx) {
    struct scene *scene = *ctx;
    start_wait(scene, 1, "q");
    start_wait(scene, 2, "q");
    start_wait(scene, 3, "q");
    assert_int_equal(serve(scene, 0, CODEC_QUEUE_PUSH, "q", "one", 0), 0);
    assert_woken(scene, 1);
    assert_true(waits(scene, 2) && waits(scene, 3));
    assert_int_equal(serve(scene, 1, CODEC_QUEUE_POP, "q", NULL, 0), 0);
    assert_reply(scene, "\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0one", 19);
    kv_machine_end(&scene->machine, &scene->sessions[2], false); /* its client has gone */
    scene->delivered_len[2] = 1;
    assert_int_equal(serve(scene, 0, CODEC_QUEUE_PUSH, "q", "two", 0), 0);
    assert_woken(scene, 3);
    assert_int_equal(serve(scene, 3, CODEC_QUEUE_POP, "q", NULL, 0), 0);
    assert_int_equal(serve(scene, 3, CODEC_QUEUE_POP, "q", NULL, 0), 0);
    assert_reply(scene, "\0\0\0\0\0\0\0\0", 8);
}

static void a_present_queue_beside_an_absent_key_does_not_hold_a_wait(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(serve(scene, 0, CODEC_QUEUE_PUSH, "q", "item", 0), 0);
    start_wait(scene, 1, "q k");
    assert_int_equal(serve(scene, 0, CODEC_SET, "k", "v", 0), 0);
    assert_woken(scene, 1); /* PyTorch's server waits for ever here */
}

static void a_barrier_completes_for_all(void **ctx) {
    struct scene *scene = *ctx;
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(serve(scene, i, CODEC_BARRIER, "b", NULL, 3), 0);
        assert_reply(scene, "", 0);
        assert_true(waits(scene, i));
    }
    assert_int_equal(serve(scene, 3, CODEC_BARRIER, "b", NULL, 3), 0);
    assert_reply(scene, "\0", 1);
    assert_woken(scene, 1);
    assert_woken(scene, 2);
    assert_int_equal(serve(scene, 0, CODEC_BARRIER, "b", NULL, 3), 0); /* never reset */
    assert_reply(scene, "\0", 1);
    assert_int_equal(serve(scene, 0, CODEC_GET, "b", NULL, 0), 0);
    assert_reply(scene, "\1\0\0\0\0\0\0\0\x34", 9);
}

static void a_canceled_arrival_stays_counted(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(serve(scene, 1, CODEC_BARRIER, "b", NULL, 2), 0);
    assert_int_equal(serve(scene, 1, CODEC_CANCEL_WAIT, "", NULL, 0), 0);
    assert_reply(scene, "\1", 1);
    assert_int_equal(serve(scene, 0, CODEC_BARRIER, "b", NULL, 2), 0);
    assert_reply(scene, "\0", 1);
    assert_int_equal(scene->delivered_len[1], 0);
}

static void cancel_is_always_answered_once(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(serve(scene, 0, CODEC_CANCEL_WAIT, "", NULL, 0), 0);
    assert_reply(scene, "\1", 1);
    start_wait(scene, 1, "k");
    assert_int_equal(serve(scene, 1, CODEC_CANCEL_WAIT, "", NULL, 0), 0);
    assert_reply(scene, "\1", 1);
    assert_int_equal(serve(scene, 0, CODEC_SET, "k", "v", 0), 0);
    assert_int_equal(scene->delivered_len[1], 0);
}

static void a_second_wait_replaces_the_first(void **ctx) {
    struct scene *scene = *ctx;
    start_wait(scene, 1, "a");
    start_wait(scene, 1, "b");
    assert_int_equal(serve(scene, 0, CODEC_SET, "a", "v", 0), 0);
    assert_true(waits(scene, 1));
    assert_int_equal(serve(scene, 0, CODEC_SET, "b", "v", 0), 0);
    assert_woken(scene, 1);
}

static void a_session_can_wake_itself(void **ctx) {
    struct scene *scene = *ctx;
    start_wait(scene, 1, "k");
    assert_int_equal(serve(scene, 1, CODEC_SET, "k", "v", 0), 0);
    assert_woken(scene, 1);
}

static void assert_watched(struct scene *scene, size_t session, const char *value) {
    size_t len = strlen(value);
    uint8_t expected[DELIVERED_MAX] = {(uint8_t)len};
    memcpy(expected + 8, value, len);
    assert_int_equal(scene->delivered_len[session], 8 + len);
    assert_memory_equal(scene->delivered[session], expected, 8 + len);
    scene->delivered_len[session] = 0;
}

static void a_watch_tells_of_the_next_difference(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(serve(scene, 1, CODEC_WATCH, "w", "", 0), 0);
    assert_reply(scene, "", 0);
    assert_int_equal(serve(scene, 0, CODEC_SET, "w", "", 0), 0); /* absent and empty are the same to it */
    assert_int_equal(serve(scene, 0, CODEC_SET, "w", "one", 0), 0);
    assert_watched(scene, 1, "one");
    assert_int_equal(serve(scene, 0, CODEC_SET, "w", "two", 0), 0);
    assert_int_equal(scene->delivered_len[1], 0); /* one watch, one answer */
    assert_int_equal(serve(scene, 1, CODEC_WATCH, "w", "one", 0), 0);
    assert_reply(scene, "\3\0\0\0\0\0\0\0two", 11);
    assert_int_equal(serve(scene, 1, CODEC_WATCH, "w", "two", 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_SET, "w", "two", 0), 0); /* no difference */
    assert_int_equal(scene->delivered_len[1], 0);
    assert_int_equal(serve(scene, 0, CODEC_DELETE_KEY, "w", NULL, 0), 0);
    assert_watched(scene, 1, "");
    assert_int_equal(serve(scene, 1, CODEC_WATCH, "n", "", 0), 0);
    assert_int_equal(serve(scene, 2, CODEC_BARRIER, "n", NULL, 5), 0); /* a counter that moves is a change */
    assert_watched(scene, 1, "1");
}

static void waits_and_watches_of_one_key_do_not_mix(void **ctx) {
    struct scene *scene = *ctx;
    start_wait(scene, 1, "k");
    assert_int_equal(serve(scene, 2, CODEC_WATCH, "k", "", 0), 0);
    assert_int_equal(serve(scene, 0, CODEC_SET, "k", "", 0), 0);
    assert_woken(scene, 1);
    assert_int_equal(scene->delivered_len[2], 0);
    assert_int_equal(serve(scene, 0, CODEC_APPEND, "k", "x", 0), 0);
    assert_watched(scene, 2, "x");
}

/* ---- clients that say who they are ---- */

static void introduce(struct scene *scene, size_t session, int64_t name) {
    assert_int_equal(serve(scene, session, CODEC_CLIENT, "", NULL, name), 0);
    assert_reply(scene, "", 0);
}

static void assert_returns(struct scene *scene, size_t session, int64_t name, int64_t served) {
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)((uint64_t)served >> (8 * i));
    }
    assert_int_equal(serve(scene, session, CODEC_RETURN, "", NULL, name), 0);
    assert_reply(scene, bytes, sizeof bytes);
}

static int add_once(struct scene *scene, size_t session, int64_t delta, int64_t turn) {
    struct codec_request request = {
        .command = CODEC_ADD_ONCE, .key = kv_slice_text("n"), .number = delta, .turn = turn};
    kv_output_done(&scene->reply);
    return kv_machine_step(&scene->machine, &scene->sessions[session], &request, &scene->reply);
}

static void an_addition_that_is_repeated_is_made_once(void **ctx) {
    struct scene *scene = *ctx;
    introduce(scene, 0, 77);
    assert_int_equal(add_once(scene, 0, 5, 1), 0);
    assert_reply(scene, "\5\0\0\0\0\0\0\0", 8);
    assert_int_equal(serve(scene, 3, CODEC_ADD, "n", NULL, 1), 0);
    assert_returns(scene, 1, 77, 1);
    assert_int_equal(add_once(scene, 1, 5, 1), 0);
    assert_reply(scene, "\5\0\0\0\0\0\0\0", 8); /* what it was then */
    assert_int_equal(scene->changes, 2);
    assert_int_equal(add_once(scene, 1, 5, 2), 0);
    assert_reply(scene, "\13\0\0\0\0\0\0\0", 8);
    assert_int_equal(scene->changed_by, 1); /* as before */
    introduce(scene, 2, 78);
    assert_int_equal(add_once(scene, 2, 1, 2), 0); /* another client's second one */
    assert_reply(scene, "\14\0\0\0\0\0\0\0", 8);
}

static void nobody_adds_once_without_a_name_or_a_number(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(add_once(scene, 0, 5, 1), MUSTER_EPROTOCOL);
    introduce(scene, 0, 77);
    assert_int_equal(add_once(scene, 0, 5, 0), MUSTER_EPROTOCOL);
    assert_int_equal(add_once(scene, 0, 5, -1), MUSTER_EPROTOCOL);
    assert_int_equal(serve(scene, 0, CODEC_CLIENT, "", NULL, 78), MUSTER_EPROTOCOL);
    assert_int_equal(scene->changes, 0);
}

static void a_client_that_moves_takes_its_number_along(void **ctx) {
    struct scene *scene = *ctx;
    introduce(scene, 0, 77);
    start_wait(scene, 0, "k");
    assert_returns(scene, 2, 77, 1);
    assert_ptr_equal(scene->replaced, &scene->sessions[0]);
    assert_false(kv_session_waits(&scene->sessions[0]));
    assert_int_equal(scene->sessions[2].id, 1);
    assert_int_equal(scene->returned, 0); /* it was never gone */
    scene->replaced = NULL;
    introduce(scene, 3, 77); /* nothing had been answered, so it cannot know that it is known */
    assert_ptr_equal(scene->replaced, &scene->sessions[2]);
    assert_int_equal(scene->sessions[3].id, 1);
    scene->replaced = NULL;
    introduce(scene, 1, 77); /* of an older connection; it has taken long */
    assert_ptr_equal(scene->replaced, &scene->sessions[1]);
    assert_int_equal(serve(scene, 3, CODEC_SET, "a", "v", 0), 0);
    assert_int_equal(scene->changed_by, 1);
    kv_machine_end(&scene->machine, &scene->sessions[3], true);
    scene->sessions[3].id = 5;       /* another connection */
    assert_returns(scene, 3, 77, 1); /* since it said for the last time who it is */
}

static void a_client_that_may_come_back_is_known(void **ctx) {
    struct scene *scene = *ctx;
    introduce(scene, 0, 77);
    introduce(scene, 1, 78);
    kv_machine_end(&scene->machine, &scene->sessions[0], true);
    kv_machine_end(&scene->machine, &scene->sessions[1], false);
    assert_returns(scene, 3, 78, CODEC_UNKNOWN);
    assert_int_equal(scene->returned, 0);
    assert_returns(scene, 2, 77, 0);
    assert_int_equal(scene->returned, 1);
    assert_null(scene->replaced);
}

static void who_has_been_away_longest_is_forgotten_first(void **ctx) {
    struct scene *scene = *ctx;
    scene->machine.callers.gone_max = 2;
    for (size_t i = 0; i < 3; i++) {
        introduce(scene, i, (int64_t)i + 1);
        kv_machine_end(&scene->machine, &scene->sessions[i], true);
    }
    assert_returns(scene, 3, 1, CODEC_UNKNOWN);
    assert_returns(scene, 3, 2, 0);
    kv_machine_clear(&scene->machine);
    assert_returns(scene, 2, 3, CODEC_UNKNOWN);
}

static void multi_set(struct scene *scene, int expected_code, const char *words) {
    assert_int_equal(serve_keys(scene, 0, CODEC_MULTI_SET, words), expected_code);
}

static void multi_set_is_all_or_nothing(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_slice value;
    start_wait(scene, 1, "a b");
    multi_set(scene, 0, "a 1 b 2 a 3");
    assert_woken(scene, 1);
    assert_true(kv_table_get(&scene->machine.table, kv_slice_text("a"), &value));
    assert_true(kv_slice_equal(value, kv_slice_text("3")));
    scene->machine.budget.max_bytes = scene->machine.budget.used_bytes + 64; /* room for one of them */
    multi_set(scene, MUSTER_ELIMIT, "c 1 d 2 e 3 f 4");
    assert_false(kv_table_get(&scene->machine.table, kv_slice_text("c"), &value));
    assert_int_equal(kv_table_count(&scene->machine.table), 2);
}

static void a_full_store_fails_a_wait_cleanly(void **ctx) {
    struct scene *scene = *ctx;
    size_t before = scene->machine.budget.used_bytes;
    scene->machine.budget.max_bytes = before + 96;
    assert_int_equal(serve_keys(scene, 1, CODEC_WAIT, "a b c d"), MUSTER_ELIMIT);
    assert_int_equal(scene->machine.budget.used_bytes, before);
    assert_int_equal(serve(scene, 1, CODEC_WATCH, "a-key-that-does-not-fit-any-more-because-it-is-long", "", 0),
                     MUSTER_ELIMIT);
    assert_int_equal(scene->machine.budget.used_bytes, before);
    assert_false(kv_session_waits(&scene->sessions[1]));
}

static void the_host_hears_of_real_changes_only(void **ctx) {
    struct scene *scene = *ctx;
    assert_int_equal(serve(scene, 1, CODEC_SET, "k", "", 0), 0);
    assert_int_equal(scene->changes, 1); /* absent to empty is one */
    assert_int_equal(scene->changed_by, 2);
    assert_int_equal(serve(scene, 1, CODEC_SET, "k", "", 0), 0);
    assert_int_equal(scene->changes, 1);
    assert_int_equal(serve(scene, 0, CODEC_DELETE_KEY, "k", NULL, 0), 0);
    assert_int_equal(scene->changes, 2);
    assert_int_equal(kv_machine_set(&scene->machine, kv_slice_text("k"), kv_slice_text("v")), 0);
    assert_int_equal(scene->changed_by, 0);
    assert_int_equal(scene->changes, 3);
}

static void the_host_may_write_when_told(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_slice value;
    scene->sets_more = true;
    start_wait(scene, 2, "more");
    multi_set(scene, 0, "a 1 b 2");
    assert_woken(scene, 2);
    assert_true(kv_table_get(&scene->machine.table, kv_slice_text("b"), &value));
    assert_true(kv_slice_equal(value, kv_slice_text("overwritten")));
    assert_int_equal(serve(scene, 1, CODEC_APPEND, "a", "x", 0), 0);
    assert_int_equal(serve(scene, 1, CODEC_ADD, "n", NULL, 1), 0);
    assert_reply(scene, "\1\0\0\0\0\0\0\0", 8); /* of what the client did, not of what the host made of it */
    compare_set(scene, 1, "c", "", "mine");
    assert_reply(scene, "\4\0\0\0\0\0\0\0mine", 12);
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(present_keys_end_a_wait_at_once),
        SCENE_TEST(every_write_wakes_all_waiters),
        SCENE_TEST(what_does_not_store_does_not_wake),
        SCENE_TEST(a_wait_counts_its_keys_down),
        SCENE_TEST(a_push_wakes_exactly_one_in_order),
        SCENE_TEST(a_present_queue_beside_an_absent_key_does_not_hold_a_wait),
        SCENE_TEST(a_barrier_completes_for_all),
        SCENE_TEST(a_canceled_arrival_stays_counted),
        SCENE_TEST(cancel_is_always_answered_once),
        SCENE_TEST(a_second_wait_replaces_the_first),
        SCENE_TEST(a_session_can_wake_itself),
        SCENE_TEST(a_watch_tells_of_the_next_difference),
        SCENE_TEST(waits_and_watches_of_one_key_do_not_mix),
        SCENE_TEST(multi_set_is_all_or_nothing),
        SCENE_TEST(a_full_store_fails_a_wait_cleanly),
        SCENE_TEST(the_host_hears_of_real_changes_only),
        SCENE_TEST(the_host_may_write_when_told),
        SCENE_TEST(an_addition_that_is_repeated_is_made_once),
        SCENE_TEST(nobody_adds_once_without_a_name_or_a_number),
        SCENE_TEST(a_client_that_moves_takes_its_number_along),
        SCENE_TEST(a_client_that_may_come_back_is_known),
        SCENE_TEST(who_has_been_away_longest_is_forgotten_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
