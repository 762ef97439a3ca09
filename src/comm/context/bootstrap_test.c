/* The meeting of ranks over a key-value store in memory: how many operations it takes, what it finds, and what becomes
 * of it when an operation fails. Ranks are threads here. */
#include "comm/context/bootstrap.h"
#include "comm/engine/engine_choice.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/formats/protocol.h"
#include "base/status.h"
#include "comm/context/generation.h"
#include "comm/context/verdict.h"
#include "comm/host/beacon.h"

/* Ranks are threads here, and may be of programs with other numbers. */
static _Thread_local uint32_t own_protocol = PROTOCOL_RANKS;
uint32_t protocol_ranks(void) {
    return own_protocol;
}
uint32_t protocol_agents(void) {
    return PROTOCOL_AGENTS;
}

enum { RANKS_MOST = 32, KEYS_MAX = 128, NEVER = 1 << 30, PATIENCE_MS = 20000 };

/* ---- a store in memory ---- */

struct table {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct {
        char key[64];
        uint8_t *data;
        size_t len;
    } items[KEYS_MAX];
    size_t count;
    bool is_gone; /* for all ranks */
};

/* One rank's view. */
struct view {
    struct table *table;
    int operations;
    int fails_at; /* the operation at which the store goes, from 1 */
};

static bool fails(struct view *view) {
    pthread_mutex_lock(&view->table->mutex);
    if (++view->operations == view->fails_at) {
        view->table->is_gone = true;
        pthread_cond_broadcast(&view->table->cond);
    }
    bool is_gone = view->table->is_gone;
    pthread_mutex_unlock(&view->table->mutex);
    return is_gone;
}

static int find(const struct table *table, const char *key) {
    for (size_t i = 0; i < table->count; i++) {
        if (strcmp(table->items[i].key, key) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static void put(struct table *table, const char *key, const void *value, size_t len) {
    int at = find(table, key);
    assert_true(table->count < KEYS_MAX);
    if (at < 0) {
        at = (int)table->count++;
        (void)snprintf(table->items[at].key, sizeof table->items->key, "%s", key);
    }
    free(table->items[at].data);
    table->items[at].data = malloc(len + 1);
    assert_non_null(table->items[at].data);
    memcpy(table->items[at].data, value, len);
    table->items[at].data[len] = 0;
    table->items[at].len = len;
    pthread_cond_broadcast(&table->cond);
}

static int table_set(void *context, const char *key, const void *value, size_t len) {
    struct view *view = context;
    if (fails(view)) {
        return status_fail(MUSTER_ECONNECT, "the store is gone");
    }
    pthread_mutex_lock(&view->table->mutex);
    put(view->table, key, value, len);
    pthread_mutex_unlock(&view->table->mutex);
    return 0;
}

static int wait_for_key(struct table *table, const char *key, int64_t timeout_ms) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int at;
    while ((at = find(table, key)) < 0) {
        if (table->is_gone || timeout_ms == 0 || pthread_cond_timedwait(&table->cond, &table->mutex, &until) != 0) {
            return -1;
        }
    }
    return at;
}

static void copy_out(const struct table *table, const char *key, struct muster_store_value *out) {
    int at = find(table, key);
    out->len = table->items[at].len;
    out->data = malloc(out->len + 1);
    memcpy(out->data, table->items[at].data, out->len + 1);
}

static int table_multi_get(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                           struct muster_store_value *out) {
    struct view *view = context;
    struct table *table = view->table;
    int code = 0;
    if (fails(view)) {
        return status_fail(MUSTER_ECONNECT, "the store is gone");
    }
    pthread_mutex_lock(&table->mutex);
    for (size_t i = 0; code == 0 && i < key_count; i++) {
        code = wait_for_key(table, keys[i], timeout_ms) < 0 ? status_fail(MUSTER_ETIMEOUT, "no %s", keys[i]) : 0;
    }
    for (size_t i = 0; code == 0 && i < key_count; i++) {
        copy_out(table, keys[i], &out[i]);
    }
    pthread_mutex_unlock(&table->mutex);
    return code;
}

static int table_get(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out) {
    return table_multi_get(context, &key, 1, timeout_ms, out);
}

static int table_set_if_absent(void *context, const char *key, const void *value, size_t len,
                               struct muster_store_value *out) {
    struct view *view = context;
    if (fails(view)) {
        return status_fail(MUSTER_ECONNECT, "the store is gone");
    }
    pthread_mutex_lock(&view->table->mutex);
    if (find(view->table, key) < 0) {
        put(view->table, key, value, len);
    }
    copy_out(view->table, key, out);
    pthread_mutex_unlock(&view->table->mutex);
    return 0;
}

static int table_remove(void *context, const char *key) {
    struct view *view = context;
    struct table *table = view->table;
    if (fails(view)) {
        return status_fail(MUSTER_ECONNECT, "the store is gone");
    }
    pthread_mutex_lock(&table->mutex);
    int at = find(table, key);
    if (at >= 0) {
        free(table->items[at].data);
        table->items[at] = table->items[--table->count];
        memset(&table->items[table->count], 0, sizeof table->items[0]);
    }
    pthread_mutex_unlock(&table->mutex);
    return 0;
}

/* ---- ranks as threads ---- */

struct part {
    struct view view;
    uint32_t rank, size, protocol;
    int64_t timeout_ms;
    struct bootstrap_terms terms;
    int code;
    char detail[MUSTER_DETAIL_MAX];
    struct muster_failure failure;
    struct bootstrap bootstrap;
};

static void *take_part(void *argument) {
    struct part *part = argument;
    own_protocol = part->protocol;
    struct comm_kv kv = {&part->view, table_set, table_get, table_multi_get, table_set_if_absent, table_remove};
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), part->timeout_ms);
    part->code = bootstrap_run(&kv, part->rank, part->size, &part->terms, deadline_ns, &part->bootstrap);
    (void)snprintf(part->detail, sizeof part->detail, "%s", part->code ? muster_detail() : "");
    part->failure = status_failure();
    return NULL;
}

struct scene {
    struct table table;
    struct part parts[RANKS_MOST];
};

static struct scene *scene_create(uint32_t size, int64_t timeout_ms) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    pthread_mutex_init(&scene->table.mutex, NULL);
    pthread_cond_init(&scene->table.cond, NULL);
    for (uint32_t rank = 0; rank < size; rank++) {
        scene->parts[rank] = (struct part){.view = {.table = &scene->table, .fails_at = NEVER},
                                           .rank = rank,
                                           .size = size,
                                           .protocol = PROTOCOL_RANKS,
                                           .timeout_ms = timeout_ms};
    }
    return scene;
}

/* Ranks whose bit is not set in `absent` meet. */
static void meet(struct scene *scene, uint32_t size, uint32_t absent) {
    pthread_t threads[RANKS_MOST];
    for (uint32_t rank = 0; rank < size; rank++) {
        if (!(absent >> rank & 1)) {
            assert_int_equal(pthread_create(&threads[rank], NULL, take_part, &scene->parts[rank]), 0);
        }
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        if (!(absent >> rank & 1)) {
            assert_int_equal(pthread_join(threads[rank], NULL), 0);
        }
    }
}

static void scene_free(struct scene *scene) {
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        bootstrap_done(&scene->parts[rank].bootstrap);
    }
    for (size_t i = 0; i < scene->table.count; i++) {
        free(scene->table.items[i].data);
    }
    pthread_cond_destroy(&scene->table.cond);
    pthread_mutex_destroy(&scene->table.mutex);
    free(scene);
}

/* ---- tests ---- */

static void the_number_of_operations_is_constant(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 7, RANKS_MOST};
    for (int i = 0; i < 4; i++) {
        struct scene *scene = scene_create(sizes[i], PATIENCE_MS);
        meet(scene, sizes[i], 0);
        for (uint32_t rank = 0; rank < sizes[i]; rank++) {
            const struct part *part = &scene->parts[rank];
            assert_int_equal(part->code, 0);
            assert_int_equal(part->view.operations, rank == 0 ? 4 : 5);
            assert_int_equal(part->bootstrap.generation, 1);
            assert_int_equal(part->bootstrap.topology.host_count, 1);
            assert_int_equal(part->bootstrap.local_count, sizes[i]);
            assert_int_equal(part->bootstrap.local, rank);
            assert_int_equal(part->bootstrap.locals[sizes[i] - 1].rank, sizes[i] - 1);
            assert_int_equal(part->bootstrap.locals[0].pid, getpid()); /* which makes the shared memory */
            assert_int_equal(part->bootstrap.locals[rank].pid, getpid());
        }
        scene_free(scene);
    }
}

static int fetch(struct scene *scene) {
    struct part *first = &scene->parts[0];
    struct comm_kv kv = {&first->view, table_set, table_get, table_multi_get, table_set_if_absent, table_remove};
    return bootstrap_fetch_locals(&kv, clock_deadline_ns(clock_monotonic_ns(), PATIENCE_MS), &first->bootstrap);
}

/* For all others of its host, in one operation. */
static void the_first_of_a_host_fetches_who_they_are(void **state) {
    (void)state;
    struct scene *scene = scene_create(5, PATIENCE_MS);
    meet(scene, 5, 0);
    int operations = scene->parts[0].view.operations;
    assert_int_equal(scene->parts[0].bootstrap.locals[3].pid, 0);
    assert_int_equal(fetch(scene), 0);
    assert_int_equal(scene->parts[0].view.operations, operations + 1);
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_int_equal(scene->parts[0].bootstrap.locals[rank].pid, getpid());
        assert_true(scene->parts[0].bootstrap.locals[rank].start_time > 0);
    }
    /* Another process has put its record there since. */
    struct identity other;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX];
    char key[GENERATION_KEY_BYTES];
    identity_of_this_process(&other);
    other.token = scene->parts[0].bootstrap.locals[3].token + 1;
    generation_rank_key(1, 3, key);
    put(&scene->table, key, bytes, identity_encode(&other, bytes));
    assert_int_equal(fetch(scene), MUSTER_EPEER);
    assert_non_null(strstr(muster_detail(), "rank 3 has ended while the group was made"));
    scene_free(scene);
}

static void the_missing_are_named_to_all(void **state) {
    (void)state;
    struct scene *scene = scene_create(8, 1000); /* in which five come */
    for (uint32_t rank = 1; rank < 8; rank++) {
        scene->parts[rank].timeout_ms = PATIENCE_MS; /* rank 0 tells them before */
    }
    meet(scene, 8, 1u << 2 | 1u << 5 | 1u << 6);
    for (uint32_t rank = 0; rank < 8; rank++) {
        if (rank != 2 && rank != 5 && rank != 6) {
            assert_int_equal(scene->parts[rank].code, MUSTER_ETIMEOUT);
            assert_non_null(strstr(scene->parts[rank].detail, "3 of 8 ranks did not come in time: ranks 2, 5-6"));
            const struct muster_failure *failure = &scene->parts[rank].failure;
            assert_int_equal(failure->cause, MUSTER_ETIMEOUT);
            assert_int_equal(failure->missing_count, 3);
            assert_int_equal(failure->run_count, 2);
            assert_true(failure->missing[0].first == 2 && failure->missing[0].count == 1);
            assert_true(failure->missing[1].first == 5 && failure->missing[1].count == 2);
        }
    }
    scene_free(scene);
}

static void rank_0_may_be_missing(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, 20);
    meet(scene, 3, 1u << 0);
    for (uint32_t rank = 1; rank < 3; rank++) {
        assert_int_equal(scene->parts[rank].code, MUSTER_ETIMEOUT);
        assert_string_equal(scene->parts[rank].detail, "rank 0 did not come in time");
    }
    scene_free(scene);
}

static void different_tables_of_algorithms_are_refused(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, PATIENCE_MS);
    scene->parts[2].terms.choice_hash = 17;
    meet(scene, 3, 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(scene->parts[rank].code, MUSTER_EINVAL);
        assert_non_null(strstr(scene->parts[rank].detail, "rank 2 has another table"));
    }
    scene_free(scene);
}

/* Both sides hear at once which is which, whoever was first: 1 rank 0, 2 the others. A rank from before there were
 * numbers cannot tell, and has to be told: 0. */
static void other_protocols_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        uint32_t odd = (uint32_t)i % 2, number = i % 4 < 2 ? 0 : PROTOCOL_RANKS + 1;
        int first = i / 4;
        char key[32];
        pthread_t threads[2];
        struct scene *scene = scene_create(2, PATIENCE_MS);
        scene->parts[odd].protocol = number;
        for (int turn = 0; turn < 2; turn++) {
            uint32_t rank = first == 2 ? 1 - (uint32_t)turn : (uint32_t)turn;
            assert_int_equal(pthread_create(&threads[rank], NULL, take_part, &scene->parts[rank]), 0);
            if (first == 1 && turn == 0) {
                (void)snprintf(key, sizeof key, "1/rank/%u", rank);
                pthread_mutex_lock(&scene->table.mutex);
                assert_true(wait_for_key(&scene->table, key, PATIENCE_MS) >= 0);
                pthread_mutex_unlock(&scene->table.mutex);
            }
        }
        for (uint32_t rank = 0; rank < 2; rank++) {
            assert_int_equal(pthread_join(threads[rank], NULL), 0);
            assert_int_equal(scene->parts[rank].code, MUSTER_EPROTOCOL);
            for (uint32_t side = 0; side < 2; side++) {
                (void)snprintf(key, sizeof key, "protocol %u", scene->parts[side].protocol);
                assert_non_null(strstr(scene->parts[rank].detail, key));
            }
        }
        scene_free(scene);
    }
}

static void different_wishes_for_an_engine_are_refused(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, PATIENCE_MS);
    scene->parts[1].terms.engine_wish = ENGINE_MPI;
    meet(scene, 3, 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(scene->parts[rank].code, MUSTER_EINVAL);
        assert_non_null(strstr(scene->parts[rank].detail, "rank 1 asks for the engine 'mpi', rank 0 for 'auto'"));
    }
    scene_free(scene);
}

static void all_know_what_all_ranks_know_of_engines(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, PATIENCE_MS);
    for (uint32_t rank = 0; rank < 3; rank++) {
        scene->parts[rank].terms.engine_facts =
            (uint8_t)(ENGINE_FACT_FABRIC | (rank == 1 ? 0 : ENGINE_FACT_MPI_STARTED));
    }
    meet(scene, 3, 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(scene->parts[rank].code, 0);
        assert_int_equal(scene->parts[rank].bootstrap.topology.engine_facts, ENGINE_FACT_FABRIC);
    }
    scene_free(scene);
}

static void a_failing_store_is_an_error(void **state) {
    (void)state;
    for (int fails_at = 1; fails_at <= 5; fails_at++) { /* the fifth is bootstrap_fetch_locals() */
        struct scene *scene = scene_create(2, PATIENCE_MS);
        scene->parts[0].view.fails_at = fails_at;
        meet(scene, 2, 0);
        if (fails_at == 5) {
            assert_int_equal(scene->parts[0].code, 0);
            scene->parts[0].code = fetch(scene);
            (void)snprintf(scene->parts[0].detail, sizeof scene->parts[0].detail, "%s", muster_detail());
        }
        assert_int_equal(scene->parts[0].code, MUSTER_ECONNECT);
        assert_true(fails_at < 2 || strstr(scene->parts[0].detail, "the store is gone"));
        scene_free(scene);
    }
}

/* ---- rank 0 where its process cannot be seen ---- */

/* Rank 0's record, as of another namespace of processes on this machine, and its beacon, which the test holds. */
static int put_distant_leader(struct scene *scene) {
    struct identity identity;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX];
    identity_of_this_process(&identity);
    identity.host.pid_namespace++;
    int beacon = beacon_light(false, &identity);
    assert_true(beacon >= 0 && identity.beacon_address_count > 0);
    put(&scene->table, "1/rank/0", bytes, identity_encode(&identity, bytes));
    return beacon;
}

/* Accepts the next rank that watches the beacon. */
static int await_watcher(int beacon) {
    struct pollfd look = {.fd = beacon, .events = POLLIN};
    assert_int_equal(poll(&look, 1, PATIENCE_MS), 1);
    int fd = accept4(beacon, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void the_end_of_a_distant_rank_0_is_noticed(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, RANKS_MOST * PATIENCE_MS);
    pthread_t threads[3];
    int beacon = put_distant_leader(scene);
    for (uint32_t rank = 1; rank < 3; rank++) {
        assert_int_equal(pthread_create(&threads[rank], NULL, take_part, &scene->parts[rank]), 0);
    }
    int first = await_watcher(beacon), second = await_watcher(beacon);
    (void)close(first); /* a connection may break: then there is a new one */
    first = await_watcher(beacon);
    (void)close(beacon);
    (void)close(first);
    (void)close(second);
    for (uint32_t rank = 1; rank < 3; rank++) {
        assert_int_equal(pthread_join(threads[rank], NULL), 0);
        assert_int_equal(scene->parts[rank].code, MUSTER_EPEER);
        assert_non_null(strstr(scene->parts[rank].detail, "has ended before it had told who is on which host"));
    }
    scene_free(scene);
}

/* What rank 0 has told counts, though its beacon is out before anybody has read it. */
static void what_a_distant_rank_0_has_told_counts(void **state) {
    (void)state;
    static const char sentence[] = "told in time";
    const struct muster_failure nobody = status_no_failure();
    uint8_t verdict[VERDICT_FAILURE_BYTES_MAX];
    size_t verdict_len = verdict_encode_failure(MUSTER_EINVAL, sentence, &nobody, verdict);
    struct scene *scene = scene_create(2, RANKS_MOST * PATIENCE_MS);
    pthread_t thread;
    int beacon = put_distant_leader(scene);
    assert_int_equal(pthread_create(&thread, NULL, take_part, &scene->parts[1]), 0);
    int watcher = await_watcher(beacon);
    pthread_mutex_lock(&scene->table.mutex); /* it cannot look into the store before both have happened */
    (void)close(beacon);
    (void)close(watcher);
    put(&scene->table, "1/topology", verdict, verdict_len);
    pthread_mutex_unlock(&scene->table.mutex);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(scene->parts[1].code, MUSTER_EINVAL);
    assert_string_equal(scene->parts[1].detail, "rank 0: told in time");
    scene_free(scene);
}

/* ---- what others have left in the store ---- */

/* The record of a process of this machine that has ended. */
static void put_dead(struct scene *scene, const char *key) {
    struct identity identity;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX];
    identity_of_this_process(&identity);
    identity.start_time++;
    identity.token = 17;
    put(&scene->table, key, bytes, identity_encode(&identity, bytes));
}

static void expect_generation(struct scene *scene, uint32_t size, uint32_t generation) {
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_int_equal(scene->parts[rank].code, 0);
        assert_int_equal(scene->parts[rank].bootstrap.generation, generation);
        bootstrap_done(&scene->parts[rank].bootstrap);
    }
}

/* One store for all attempts, as torchrun has it: each meets in a generation of its own. */
static void each_meeting_is_a_generation(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, PATIENCE_MS);
    for (uint32_t turn = 1; turn <= 5; turn++) {
        meet(scene, 3, 0);
        expect_generation(scene, 3, turn);
    }
    scene_free(scene);
}

/* Rank 0 died while it waited for the last rank; the others have waited, too. */
static void records_of_the_dead_are_not_counted(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, PATIENCE_MS);
    put_dead(scene, "1/rank/0");
    put_dead(scene, "1/rank/1");
    meet(scene, 3, 0);
    expect_generation(scene, 3, 2);
    scene_free(scene);
}

/* Ranks that wait for a rank 0 that nobody can see are woken by the next one. */
static void the_next_rank_0_wakes_who_waits_for_the_last(void **state) {
    (void)state;
    struct scene *scene = scene_create(3, PATIENCE_MS);
    pthread_t threads[3];
    (void)close(put_distant_leader(scene));
    for (uint32_t rank = 1; rank < 3; rank++) {
        char key[16];
        (void)snprintf(key, sizeof key, "1/rank/%u", rank);
        assert_int_equal(pthread_create(&threads[rank], NULL, take_part, &scene->parts[rank]), 0);
        pthread_mutex_lock(&scene->table.mutex);
        assert_true(wait_for_key(&scene->table, key, PATIENCE_MS) >= 0);
        pthread_mutex_unlock(&scene->table.mutex);
    }
    meet(scene, 1, 0); /* rank 0 */
    for (uint32_t rank = 1; rank < 3; rank++) {
        assert_int_equal(pthread_join(threads[rank], NULL), 0);
    }
    expect_generation(scene, 3, 2);
    scene_free(scene);
}

/* Another process has come as rank 0 while this one waited for the others. */
static void a_replaced_rank_0_ends(void **state) {
    (void)state;
    static const uint8_t replaced[] = {2};
    struct scene *scene = scene_create(2, PATIENCE_MS);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, take_part, &scene->parts[0]), 0);
    pthread_mutex_lock(&scene->table.mutex);
    assert_true(wait_for_key(&scene->table, "1/rank/0", PATIENCE_MS) >= 0);
    put(&scene->table, "1/topology", replaced, sizeof replaced);
    put(&scene->table, "1/rank/1", scene->table.items[0].data, scene->table.items[0].len);
    pthread_mutex_unlock(&scene->table.mutex);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(scene->parts[0].code, MUSTER_EPEER);
    assert_string_equal(scene->parts[0].detail, "another process has become rank 0 meanwhile");
    scene_free(scene);
}

/* A rank died after rank 0 had counted it, before the others knew where to reach it. Its successor takes no part, and
 * says so where the others look. */
static void who_is_not_counted_says_so_and_waits_for_the_next(void **state) {
    (void)state;
    struct scene *scene = scene_create(2, PATIENCE_MS);
    pthread_t thread;
    meet(scene, 2, 0);
    expect_generation(scene, 2, 1);
    assert_int_equal(pthread_create(&thread, NULL, take_part, &scene->parts[1]), 0);
    pthread_mutex_lock(&scene->table.mutex);
    int at = wait_for_key(&scene->table, "1/contact/1", PATIENCE_MS);
    assert_true(at >= 0);
    struct muster_store_value contact = {scene->table.items[at].data, scene->table.items[at].len};
    assert_true(generation_is_farewell(&contact));
    assert_true(find(&scene->table, "1/contact/0") < 0);
    pthread_mutex_unlock(&scene->table.mutex);
    meet(scene, 1, 0); /* rank 0, again */
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(find(&scene->table, "1/contact/0") >= 0);
    expect_generation(scene, 2, 2);
    scene_free(scene);
}

/* A rank has seen a meeting that was taken away a moment later, as those of one host do: it waits in the generation
 * after it, and rank 0 begins with the first one. */
static void who_waits_in_a_later_generation_looks_again(void **state) {
    (void)state;
    static const uint8_t topology[] = {0};
    struct scene *scene = scene_create(2, PATIENCE_MS);
    pthread_t thread;
    put(&scene->table, "1/topology", topology, sizeof topology);
    assert_int_equal(pthread_create(&thread, NULL, take_part, &scene->parts[1]), 0);
    pthread_mutex_lock(&scene->table.mutex);
    assert_true(wait_for_key(&scene->table, "1/contact/1", PATIENCE_MS) >= 0); /* it goes on to the second */
    pthread_mutex_unlock(&scene->table.mutex);
    struct view view = {.table = &scene->table, .fails_at = NEVER};
    assert_int_equal(table_remove(&view, "1/topology"), 0);
    meet(scene, 1, 0); /* rank 0 */
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect_generation(scene, 2, 1);
    scene_free(scene);
}

static bool is_in(const void *set, uint32_t rank) {
    return ((const char *)set)[rank] == 'x';
}

static void lists_of_ranks(void **state) {
    (void)state;
    char out[64], many[129] = "";
    assert_string_equal(bootstrap_list_ranks(5, is_in, ".....", out, sizeof out), "");
    assert_string_equal(bootstrap_list_ranks(5, is_in, "xxxxx", out, sizeof out), "0-4");
    assert_string_equal(bootstrap_list_ranks(5, is_in, "x.xx.", out, sizeof out), "0, 2-3");
    for (int i = 0; i < 128; i++) {
        many[i] = i % 2 ? 'x' : '.';
    }
    bootstrap_list_ranks(128, is_in, many, out, sizeof out);
    assert_non_null(strstr(out, " more"));
    assert_true(strlen(out) < sizeof out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_of_operations_is_constant),
        cmocka_unit_test(the_first_of_a_host_fetches_who_they_are),
        cmocka_unit_test(the_missing_are_named_to_all),
        cmocka_unit_test(rank_0_may_be_missing),
        cmocka_unit_test(different_tables_of_algorithms_are_refused),
        cmocka_unit_test(other_protocols_are_refused),
        cmocka_unit_test(different_wishes_for_an_engine_are_refused),
        cmocka_unit_test(all_know_what_all_ranks_know_of_engines),
        cmocka_unit_test(a_failing_store_is_an_error),
        cmocka_unit_test(the_end_of_a_distant_rank_0_is_noticed),
        cmocka_unit_test(what_a_distant_rank_0_has_told_counts),
        cmocka_unit_test(each_meeting_is_a_generation),
        cmocka_unit_test(records_of_the_dead_are_not_counted),
        cmocka_unit_test(the_next_rank_0_wakes_who_waits_for_the_last),
        cmocka_unit_test(a_replaced_rank_0_ends),
        cmocka_unit_test(who_is_not_counted_says_so_and_waits_for_the_next),
        cmocka_unit_test(who_waits_in_a_later_generation_looks_again),
        cmocka_unit_test(lists_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
