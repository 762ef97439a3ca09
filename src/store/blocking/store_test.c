/* The blocking client of muster/store.h: on a server in this process, on files, and on functions of the program. All
 * kinds run the same scenarios. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/store.h>

#include "base/clock.h"
#include "net/port_test_support.h"
#include "store/blocking/store_impl.h"
#include "store/client/file_format.h"

enum { PATIENCE_MS = 20000 };

/* Two handles on one store, as two processes would have them. */
struct scene {
    struct muster_store *first, *second;
    char folder[64], path[96];
};

static struct muster_store *open_host(uint32_t world_size) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL;
    options.is_host = true;
    options.bind_host = "127.0.0.1";
    options.world_size = world_size;
    options.timeout_ms = PATIENCE_MS;
    assert_int_equal(muster_store_open_tcp(&options, &store), 0);
    return store;
}

static struct muster_store *open_client(uint16_t port, uint32_t world_size) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL;
    options.host = "127.0.0.1";
    options.port = port;
    options.world_size = world_size;
    options.timeout_ms = PATIENCE_MS;
    assert_int_equal(muster_store_open_tcp(&options, &store), 0);
    return store;
}

static void make_folder(struct scene *scene) {
    (void)snprintf(scene->folder, sizeof scene->folder, "/tmp/muster-store-test-XXXXXX");
    assert_non_null(mkdtemp(scene->folder));
    (void)snprintf(scene->path, sizeof scene->path, "%s/store", scene->folder);
}

static int set_up_tcp(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    scene->first = open_host(0);
    scene->second = open_client(muster_store_port(scene->first), 0);
    *out = scene;
    return 0;
}

static int set_up_file(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    make_folder(scene);
    assert_int_equal(muster_store_open_file(scene->path, 2, PATIENCE_MS, &scene->first), 0);
    assert_int_equal(muster_store_open_file(scene->path, 2, PATIENCE_MS, &scene->second), 0);
    *out = scene;
    return 0;
}

/* ---- a store of the program's own: here it passes everything on to another store ---- */

static int passed_set(void *context, const char *key, const void *value, size_t len, int64_t timeout_ms) {
    assert_true(timeout_ms > 0 && key[0] != '/');
    return muster_store_set(context, key, value, len);
}

static int passed_get(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out) {
    struct muster_store_value value = {0};
    int code = muster_store_get(context, key, timeout_ms, &value);
    if (code == 0) {
        code = muster_store_value_copy(value.data, value.len, out);
        muster_store_value_free(&value);
    }
    return code;
}

static int passed_add(void *context, const char *key, int64_t delta, int64_t timeout_ms, int64_t *out_sum) {
    assert_true(timeout_ms > 0);
    return muster_store_add(context, key, delta, out_sum);
}

static int passed_compare_set(void *context, const char *key, const void *expected, size_t expected_len,
                              const void *desired, size_t desired_len, int64_t timeout_ms,
                              struct muster_store_value *out) {
    assert_true(timeout_ms > 0);
    return muster_store_compare_set(context, key, expected, expected_len, desired, desired_len, out);
}

static int passed_remove(void *context, const char *key, int64_t timeout_ms, bool *out_deleted) {
    assert_true(timeout_ms > 0);
    return muster_store_delete(context, key, out_deleted);
}

static int passed_check(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms, bool *out_all) {
    assert_true(timeout_ms > 0);
    return muster_store_check(context, keys, key_count, out_all);
}

static int passed_wait(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms) {
    return muster_store_wait(context, keys, key_count, timeout_ms);
}

static void passed_close(void *context) {
    muster_store_close(context);
}

static struct muster_store_calls passed_calls(void) {
    struct muster_store_calls calls = MUSTER_STORE_CALLS_INIT;
    calls.set = passed_set;
    calls.get = passed_get;
    calls.add = passed_add;
    calls.compare_set = passed_compare_set;
    calls.remove = passed_remove;
    calls.check = passed_check;
    calls.wait = passed_wait;
    calls.close = passed_close;
    return calls;
}

static struct muster_store *pass_on(struct muster_store *to) {
    struct muster_store_calls calls = passed_calls();
    struct muster_store *store = NULL;
    assert_int_equal(muster_store_open_calls(&calls, to, PATIENCE_MS, &store), 0);
    return store;
}

static int set_up_calls(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    struct muster_store *host = open_host(0);
    scene->second = pass_on(open_client(muster_store_port(host), 0));
    scene->first = pass_on(host);
    *out = scene;
    return 0;
}

static bool is_file(const struct scene *scene) {
    return scene->folder[0] != '\0';
}

/* As a command of its own: TCP alone. */
static bool has_barriers(const struct scene *scene) {
    return muster_store_port(scene->first) != 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    muster_store_close(scene->second);
    muster_store_close(scene->first);
    if (is_file(scene)) {
        assert_int_equal(access(scene->path, F_OK), -1); /* the last user removed it */
        assert_int_equal(rmdir(scene->folder), 0);
    }
    free(scene);
    return 0;
}

static void assert_value(struct muster_store_value *value, const char *text) {
    assert_int_equal(value->len, strlen(text));
    assert_string_equal((const char *)value->data, text);
    muster_store_value_free(value);
    assert_null(value->data);
}

static void assert_get(struct muster_store *store, const char *key, const char *text) {
    struct muster_store_value value = {0};
    assert_int_equal(muster_store_get(store, key, MUSTER_STORE_DEFAULT, &value), 0);
    assert_value(&value, text);
}

/* SET, APPEND and their like have no answer, and nothing orders the requests of two connections: only a later answer on
 * the same connection says that the server has done what came before. */
static void settle(struct muster_store *store) {
    const char *key = "settle";
    bool is_there = false;
    assert_int_equal(muster_store_check(store, &key, 1, &is_there), 0);
}

static void what_one_sets_the_other_gets(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value value = {0};
    const uint8_t binary[] = {0, 255, 10, 0};
    assert_int_equal(muster_store_set(scene->first, "k", "v1", 2), 0);
    assert_get(scene->second, "k", "v1");
    assert_int_equal(muster_store_set(scene->second, "k", "v2", 2), 0);
    settle(scene->second);
    assert_get(scene->first, "k", "v2");
    assert_int_equal(muster_store_set(scene->first, "b", binary, sizeof binary), 0);
    settle(scene->first);
    assert_int_equal(muster_store_get(scene->second, "b", 0, &value), 0);
    assert_int_equal(value.len, sizeof binary);
    assert_memory_equal(value.data, binary, sizeof binary);
    muster_store_value_free(&value);
    assert_int_equal(muster_store_set(scene->first, "empty", NULL, 0), 0);
    assert_get(scene->second, "empty", "");
}

static void numbers_add_up(void **ctx) {
    struct scene *scene = *ctx;
    int64_t sum = 0;
    assert_int_equal(muster_store_add(scene->first, "n", 5, &sum), 0);
    assert_int_equal(sum, 5);
    assert_int_equal(muster_store_add(scene->second, "n", -7, &sum), 0);
    assert_int_equal(sum, -2);
    assert_get(scene->first, "n", "-2");
}

static void compare_set_follows_the_table(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value value = {0};
    bool there = true;
    const char *key = "absent";
    assert_int_equal(muster_store_compare_set(scene->first, "c", "", 0, "one", 3, &value), 0);
    assert_value(&value, "one");
    assert_int_equal(muster_store_compare_set(scene->second, "c", "bad", 3, "two", 3, &value), 0);
    assert_value(&value, "one");
    assert_int_equal(muster_store_compare_set(scene->second, "c", "one", 3, "two", 3, &value), 0);
    assert_value(&value, "two");
    assert_int_equal(muster_store_compare_set(scene->first, key, "x", 1, "y", 1, &value), 0);
    assert_value(&value, "x"); /* as the protocol has it */
    assert_int_equal(muster_store_check(scene->first, &key, 1, &there), 0);
    assert_false(there);
    assert_get(scene->first, "c", "two");
}

static void append_and_delete(void **ctx) {
    struct scene *scene = *ctx;
    bool deleted = false, there = true;
    const char *key = "a";
    assert_int_equal(muster_store_append(scene->first, key, "ab", 2), 0);
    settle(scene->first);
    assert_int_equal(muster_store_append(scene->second, key, "cd", 2), 0);
    settle(scene->second);
    assert_get(scene->first, key, "abcd");
    assert_int_equal(muster_store_delete(scene->first, key, &deleted), 0);
    assert_true(deleted);
    assert_int_equal(muster_store_check(scene->second, &key, 1, &there), 0);
    assert_false(there);
}

static void several_keys_at_once(void **ctx) {
    struct scene *scene = *ctx;
    const char *keys[] = {"m1", "m2"};
    const char *more[] = {"m1", "m2", "m3"};
    struct muster_store_value values[2] = {{.data = (uint8_t *)(uintptr_t) "x", .len = 1}, {.data = NULL, .len = 0}};
    struct muster_store_value got[2] = {{0}};
    bool all = false;
    assert_int_equal(muster_store_multi_set(scene->first, keys, values, 2), 0);
    settle(scene->first);
    assert_int_equal(muster_store_check(scene->second, keys, 2, &all), 0);
    assert_true(all);
    assert_int_equal(muster_store_check(scene->second, more, 3, &all), 0);
    assert_false(all);
    assert_int_equal(muster_store_multi_get(scene->second, keys, 2, MUSTER_STORE_DEFAULT, got), 0);
    assert_value(&got[0], "x");
    assert_value(&got[1], "");
    assert_int_equal(muster_store_check(scene->second, NULL, 0, &all), 0);
    assert_true(all);
}

static void prefixes_nest_and_keys_are_listed(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store *in = NULL, *out = NULL;
    char **keys = NULL;
    size_t count = 0;
    int64_t total = 0;
    assert_int_equal(muster_store_prefix(scene->first, "in", &in), 0);
    assert_int_equal(muster_store_prefix(in, "out", &out), 0);
    assert_int_equal(muster_store_set(out, "k", "v", 1), 0);
    assert_int_equal(muster_store_set(scene->first, "other", "v", 1), 0);
    assert_get(scene->second, "in/out/k", "v");
    muster_store_close(in); /* before its child */
    assert_get(out, "k", "v");
    assert_int_equal(muster_store_list_keys(out, &keys, &count), 0);
    assert_int_equal(count, 1);
    assert_string_equal(keys[0], "k");
    assert_null(keys[1]);
    free(keys);
    assert_int_equal(muster_store_list_keys(scene->second, &keys, &count), 0);
    assert_int_equal(count, 2);
    free(keys);
    assert_int_equal(muster_store_num_keys(out, &total), 0);
    assert_true(total >= 2);
    muster_store_close(out);
}

static void waiting_in_vain_names_the_key(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value value = {0};
    const char *keys[] = {"here", "nowhere"};
    assert_int_equal(muster_store_set(scene->first, "here", "v", 1), 0);
    assert_int_equal(muster_store_wait(scene->first, keys, 2, 20), MUSTER_ETIMEOUT);
    assert_non_null(strstr(muster_detail(), is_file(scene) ? scene->path : "127.0.0.1:"));
    assert_non_null(strstr(muster_detail(), "/here"));
    assert_int_equal(muster_store_get(scene->first, "nowhere", 0, &value), MUSTER_ETIMEOUT);
    assert_non_null(strstr(muster_detail(), "/nowhere"));
    assert_null(value.data);
    assert_int_equal(muster_store_wait(scene->first, keys, 1, 0), 0); /* only a look, and it is there */
    assert_get(scene->first, "here", "v");                            /* the connection lives on */
    assert_int_equal(muster_store_wait(scene->first, keys, 1, -2), MUSTER_EINVAL);
}

static void *set_late_keys(void *ctx) {
    struct muster_store *store = ctx;
    assert_int_equal(muster_store_set(store, "late1", "1", 1), 0);
    assert_int_equal(muster_store_set(store, "late2", "2", 1), 0);
    return NULL;
}

static void a_wait_ends_when_the_keys_come(void **ctx) {
    struct scene *scene = *ctx;
    const char *keys[] = {"late1", "late2"};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, set_late_keys, scene->second), 0);
    assert_int_equal(muster_store_wait(scene->first, keys, 2, PATIENCE_MS), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void *arrive(void *ctx) {
    struct muster_store *store = ctx;
    assert_int_equal(muster_store_barrier(store, "bar", 2, PATIENCE_MS), 0);
    return NULL;
}

static void a_barrier_lets_all_through(void **ctx) {
    struct scene *scene = *ctx;
    pthread_t thread;
    assert_int_equal(muster_store_barrier(scene->first, "alone", 1, PATIENCE_MS), 0);
    assert_int_equal(muster_store_barrier(scene->first, "incomplete", 2, 20), MUSTER_ETIMEOUT);
    assert_get(scene->first, has_barriers(scene) ? "incomplete" : "incomplete/num_members", "1");
    assert_int_equal(pthread_create(&thread, NULL, arrive, scene->second), 0);
    assert_int_equal(muster_store_barrier(scene->first, "bar", 2, PATIENCE_MS), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_get(scene->first, has_barriers(scene) ? "bar" : "bar/num_members", "2");
    assert_int_equal(muster_store_barrier(scene->second, "bar", 2, 0), 0); /* whoever comes late passes */
}

static void a_barrier_behind_a_prefix_is_pytorchs(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store *view = NULL;
    assert_int_equal(muster_store_prefix(scene->first, "pre", &view), 0);
    assert_int_equal(muster_store_barrier(view, "k", 2, 20), MUSTER_ETIMEOUT);
    assert_get(scene->second, "pre/k/num_members", "1");
    assert_int_equal(muster_store_barrier(view, "k", 2, PATIENCE_MS), 0);
    assert_get(scene->second, "pre/k/last_member", "1");
    assert_get(scene->second, "pre/k/num_members", "2");
    muster_store_close(view);
}

static void limits_are_told_before_anything_happens(void **ctx) {
    struct scene *scene = *ctx;
    char *key = malloc(MUSTER_STORE_KEY_MAX + 2);
    uint8_t *value = calloc(1, MUSTER_STORE_VALUE_MAX + 1);
    const char *keys[1] = {"k"};
    bool all;
    assert_true(key && value);
    memset(key, 'k', MUSTER_STORE_KEY_MAX + 1);
    key[MUSTER_STORE_KEY_MAX + 1] = '\0';
    assert_int_equal(muster_store_set(scene->first, key, "v", 1), MUSTER_ELIMIT);
    key[MUSTER_STORE_KEY_MAX] = '\0';
    assert_int_equal(muster_store_set(scene->first, key, "v", 1), 0);
    assert_get(scene->second, key, "v");
    assert_int_equal(muster_store_set(scene->first, "v", value, MUSTER_STORE_VALUE_MAX + 1), MUSTER_ELIMIT);
    assert_int_equal(muster_store_set(scene->first, "v", value, MUSTER_STORE_VALUE_MAX), 0);
    assert_int_equal(muster_store_check(scene->first, keys, MUSTER_STORE_KEYS_MAX + 1, &all), MUSTER_ELIMIT);
    struct muster_store_value got = {0};
    assert_int_equal(muster_store_get(scene->second, "v", PATIENCE_MS, &got), 0);
    assert_int_equal(got.len, MUSTER_STORE_VALUE_MAX);
    muster_store_value_free(&got);
    struct muster_store *view = NULL;
    key[MUSTER_STORE_KEY_MAX - 1] = '\0';
    assert_int_equal(muster_store_prefix(scene->first, key, &view), 0);
    assert_int_equal(muster_store_set(view, "", "v", 1), 0);
    assert_int_equal(muster_store_set(view, "k", "v", 1), MUSTER_ELIMIT);
    muster_store_close(view);
    key[MUSTER_STORE_KEY_MAX - 1] = 'k';
    assert_int_equal(muster_store_prefix(scene->first, key, &view), MUSTER_ELIMIT);
    free(key);
    free(value);
}

/* ---- TCP only ---- */

static void queues_are_first_in_first_out(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value item = {0};
    int64_t length = 0;
    assert_int_equal(muster_store_queue_push(scene->first, "q", "one", 3), 0);
    assert_int_equal(muster_store_queue_push(scene->first, "q", "two", 3), 0);
    assert_int_equal(muster_store_queue_length(scene->first, "q", &length), 0);
    assert_int_equal(length, 2);
    assert_int_equal(muster_store_queue_pop(scene->second, "q", PATIENCE_MS, &item), 0);
    assert_value(&item, "one");
    assert_int_equal(muster_store_queue_pop(scene->second, "q", 0, &item), 0);
    assert_value(&item, "two");
    assert_int_equal(muster_store_queue_pop(scene->second, "q", 0, &item), MUSTER_ENOENT);
    assert_int_equal(muster_store_queue_pop(scene->second, "q", 20, &item), MUSTER_ETIMEOUT);
    assert_int_equal(muster_store_set(scene->first, "q", "a key of that name ends waits", 5), 0);
    assert_int_equal(muster_store_queue_pop(scene->second, "q", 20, &item), MUSTER_ETIMEOUT);
}

static void a_file_has_no_queues(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value item = {0};
    int64_t length;
    assert_int_equal(muster_store_queue_push(scene->first, "q", "x", 1), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_store_queue_pop(scene->first, "q", 0, &item), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_store_queue_length(scene->first, "q", &length), MUSTER_EUNSUPPORTED);
}

static void a_store_of_calls_lacks_some(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value item = {0};
    int64_t number;
    char **keys = NULL;
    size_t key_count = 0;
    assert_int_equal(muster_store_queue_push(scene->first, "q", "x", 1), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_store_queue_pop(scene->first, "q", 0, &item), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_store_queue_length(scene->first, "q", &number), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_store_append(scene->first, "k", "x", 1), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "a store of the program's own has no append"));
    assert_int_equal(muster_store_num_keys(scene->first, &number), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_store_list_keys(scene->first, &keys, &key_count), MUSTER_EUNSUPPORTED);
}

static int refuse_set(void *context, const char *key, const void *value, size_t len, int64_t timeout_ms) {
    (void)key, (void)value, (void)len, (void)timeout_ms;
    return muster_fail(MUSTER_ECONNECT, context);
}

static void what_a_function_says_is_told(void **ctx) {
    (void)ctx;
    struct muster_store_calls calls = passed_calls();
    struct muster_store *store = NULL;
    char sentence[] = "the cable is cut";
    calls.set = refuse_set;
    calls.close = NULL;
    assert_int_equal(muster_store_open_calls(&calls, sentence, MUSTER_STORE_DEFAULT, &store), 0);
    assert_int_equal(muster_store_set(store, "k", "x", 1), MUSTER_ECONNECT);
    assert_string_equal(muster_detail(), sentence);
    muster_store_close(store);
    assert_int_equal(muster_fail(MUSTER_EINVAL, NULL), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "");
}

static void calls_that_are_missing_are_refused(void **ctx) {
    (void)ctx;
    struct muster_store_calls calls = passed_calls();
    struct muster_store *store = NULL;
    assert_int_equal(muster_store_open_calls(NULL, NULL, 1, &store), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_calls(&calls, NULL, 1, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_store_open_calls(&calls, NULL, 0, &store), MUSTER_EINVAL);
    calls.wait = NULL;
    assert_int_equal(muster_store_open_calls(&calls, NULL, 1, &store), MUSTER_EINVAL);
    calls.size = 0;
    assert_int_equal(muster_store_open_calls(&calls, NULL, 1, &store), MUSTER_EINVAL);
    assert_null(store);
}

static void the_end_of_the_server_is_told(void **ctx) {
    struct scene *scene = *ctx;
    struct muster_store_value value = {0};
    int64_t sum = 0;
    muster_store_close(scene->first);
    scene->first = NULL;
    assert_int_equal(muster_store_get(scene->second, "k", PATIENCE_MS, &value), MUSTER_ECONNECT);
    assert_non_null(strstr(muster_detail(), "127.0.0.1:"));
    assert_int_equal(muster_store_add(scene->second, "n", 1, &sum), MUSTER_ECLOSED);
}

/* A process that serves a store, which can be stopped. */
static pid_t fork_host(uint16_t *out_port) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        uint16_t port = muster_store_port(open_host(0));
        (void)!write(ends[1], &port, sizeof port);
        for (;;) {
            (void)pause();
        }
    }
    assert_int_equal(read(ends[0], out_port, sizeof *out_port), sizeof *out_port);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return pid;
}

/* Waits end in time, and when the server goes on, so does the connection. */
static void a_stopped_server_does_not_prolong_waits(void **state) {
    (void)state;
    uint16_t port;
    pid_t host = fork_host(&port);
    struct muster_store *store = open_client(port, 0);
    struct muster_store_value value = {0};
    const char *const keys[] = {"k"};
    assert_int_equal(kill(host, SIGSTOP), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(muster_store_wait(store, keys, 1, 20), MUSTER_ETIMEOUT);
    }
    assert_int_equal(kill(host, SIGCONT), 0);
    assert_int_equal(muster_store_set(store, "k", "v", 1), 0);
    assert_int_equal(muster_store_wait(store, keys, 1, PATIENCE_MS), 0);
    assert_int_equal(muster_store_get(store, "k", 0, &value), 0);
    muster_store_value_free(&value);
    assert_int_equal(muster_store_wait(store, (const char *const[]){"other"}, 1, 0), MUSTER_ETIMEOUT);
    muster_store_close(store);
    assert_int_equal(kill(host, SIGKILL), 0);
    assert_int_equal(waitpid(host, NULL, 0), host);
}

/* So does a look, which is answered as if there were nothing: the network may be silent for a while. */
static void a_look_at_a_silent_server_costs_no_connection(void **state) {
    (void)state;
    uint16_t port;
    pid_t host = fork_host(&port);
    struct muster_store *store = open_client(port, 0);
    struct muster_store_value value = {0};
    int64_t sum = 0;
    assert_int_equal(muster_store_set(store, "k", "v", 1), 0);
    assert_int_equal(muster_store_add(store, "n", 1, &sum), 0);
    assert_int_equal(kill(host, SIGSTOP), 0);
    assert_int_equal(waitpid(host, NULL, WUNTRACED), host);
    assert_int_equal(muster_store_get(store, "k", 0, &value), MUSTER_ETIMEOUT);
    int64_t now_ns = clock_monotonic_ns();
    assert_int_equal(muster_store_get(store, "k", 0, &value), MUSTER_ETIMEOUT);
    assert_true(clock_monotonic_ns() - now_ns < CLOCK_NS_PER_S); /* nobody waits for each look */
    assert_int_equal(kill(host, SIGCONT), 0);
    assert_int_equal(muster_store_add(store, "n", 1, &sum), 0);
    assert_int_equal(sum, 2);
    assert_int_equal(muster_store_get(store, "k", 0, &value), 0);
    assert_memory_equal(value.data, "v", 1);
    muster_store_value_free(&value);
    muster_store_close(store);
    assert_int_equal(kill(host, SIGKILL), 0);
    assert_int_equal(waitpid(host, NULL, 0), host);
}

static void *open_as_worker(void *ctx) {
    const uint16_t *port = ctx;
    return open_client(*port, 2);
}

static void the_host_waits_for_the_workers(void **state) {
    (void)state;
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *host = NULL;
    uint16_t port = 0;
    int held = port_hold(&port);
    void *worker = NULL;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, open_as_worker, &port), 0);
    options.is_host = true;
    options.bind_host = "127.0.0.1";
    options.port = port;
    options.world_size = 2;
    options.timeout_ms = PATIENCE_MS;
    assert_int_equal(muster_store_open_tcp(&options, &host), 0);
    assert_int_equal(pthread_join(thread, &worker), 0);
    muster_store_close(worker);
    muster_store_close(host);
    /* On a busy machine a short time may be over before the host has joined its own store: more is allowed then. */
    bool is_told = false;
    for (options.timeout_ms = 50; !is_told && options.timeout_ms < PATIENCE_MS; options.timeout_ms *= 4) {
        assert_int_equal(muster_store_open_tcp(&options, &host), MUSTER_ETIMEOUT);
        is_told = strstr(muster_detail(), "1 of 2") != NULL;
    }
    assert_true(is_told);
    (void)close(held);
}

static void opening_fails_with_a_reason(void **state) {
    (void)state;
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL, *host = open_host(0);
    assert_int_equal(muster_store_open_tcp(&options, &store), MUSTER_EINVAL);
    options.host = "127.0.0.1";
    options.port = muster_store_port(host);
    options.timeout_ms = 0;
    assert_int_equal(muster_store_open_tcp(&options, &store), MUSTER_EINVAL);
    options.timeout_ms = 50;
    options.is_host = true;
    options.bind_host = "127.0.0.1";
    assert_int_equal(muster_store_open_tcp(&options, &store), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "in use"));
    muster_store_close(host);
    int held = port_hold(&options.port);
    options.is_host = false;
    assert_int_equal(muster_store_open_tcp(&options, &store), MUSTER_ETIMEOUT);
    assert_non_null(strstr(muster_detail(), "refused"));
    (void)close(held);
    assert_null(store);
    assert_int_equal(muster_store_open_file("/nonexistent/folder/store", 1, PATIENCE_MS, &store), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "/nonexistent/folder/store"));
    assert_int_equal(muster_store_open_file("/tmp/x", 1, 0, &store), MUSTER_EINVAL);
}

static void set_env(const char *rank, const char *world, const char *address, const char *port, const char *agent) {
    const char *names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"};
    const char *values[] = {rank, world, address, port, agent};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
    }
}

static void the_environment_leads_to_the_store(void **state) {
    (void)state;
    struct muster_store *host = open_host(0), *store = NULL;
    char port[8];
    (void)snprintf(port, sizeof port, "%u", muster_store_port(host));
    set_env("0", "2", "127.0.0.1", port, "True"); /* rank 0, and yet a client */
    assert_int_equal(muster_store_open_env(PATIENCE_MS, &store), 0);
    assert_int_equal(muster_store_set(store, "k", "v", 1), 0);
    assert_get(store, "k", "v");
    muster_store_close(store);
    set_env("1", "2", "127.0.0.1", port, NULL);
    assert_int_equal(muster_store_open_env(MUSTER_STORE_DEFAULT, &store), 0);
    muster_store_close(store);
    muster_store_close(host);
    uint16_t free_port = 0;
    int held = port_hold(&free_port);
    (void)snprintf(port, sizeof port, "%u", free_port);
    set_env("0", "1", "127.0.0.1", port, "False"); /* alone, and the host */
    assert_int_equal(muster_store_open_env(PATIENCE_MS, &store), 0);
    assert_int_equal(muster_store_port(store), free_port);
    muster_store_close(store);
    (void)close(held);
    set_env(NULL, "1", "127.0.0.1", port, NULL);
    assert_int_equal(muster_store_open_env(PATIENCE_MS, &store), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "RANK"));
    set_env("0", "1", "", port, NULL);
    assert_int_equal(muster_store_open_env(PATIENCE_MS, &store), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MASTER_ADDR"));
    set_env("1", "1", "127.0.0.1", port, NULL);
    assert_int_equal(muster_store_open_env(PATIENCE_MS, &store), MUSTER_EINVAL);
    set_env("0", "1", "127.0.0.1", "70000", NULL);
    assert_int_equal(muster_store_open_env(PATIENCE_MS, &store), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MASTER_PORT"));
}

static void *hammer(void *ctx) {
    struct muster_store *store = ctx;
    for (int i = 0; i < 500; i++) {
        int64_t sum;
        assert_int_equal(muster_store_add(store, "count", 1, &sum), 0);
    }
    return NULL;
}

static void threads_take_turns_on_one_store(void **ctx) {
    struct scene *scene = *ctx;
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, scene->first), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_get(scene->second, "count", "2000");
}

/* ---- files only ---- */

static void assert_file(const char *path, const char *hex) {
    uint8_t bytes[512];
    char text[2 * sizeof bytes + 1] = "";
    int fd = open(path, O_RDONLY);
    ssize_t len = read(fd, bytes, sizeof bytes);
    assert_true(fd >= 0 && len >= 0);
    for (ssize_t i = 0; i < len; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
    (void)close(fd);
    assert_string_equal(text, hex);
}

/* The bytes that PyTorch's FileStore writes for the same calls (docs/formats/filestore.md). */
static void the_file_is_pytorchs(void **state) {
    struct scene scene = {0};
    struct muster_store_value value = {0};
    struct stat info;
    int64_t sum;
    bool deleted;
    (void)state;
    make_folder(&scene);
    assert_int_equal(muster_store_open_file(scene.path, 1, PATIENCE_MS, &scene.first), 0);
    assert_int_equal(muster_store_set(scene.first, "k", "v", 1), 0);
    assert_int_equal(muster_store_add(scene.first, "n", 3, &sum), 0);
    assert_int_equal(muster_store_compare_set(scene.first, "cs", "", 0, "x", 1, &value), 0);
    muster_store_value_free(&value);
    assert_int_equal(muster_store_delete(scene.first, "k", &deleted), 0);
    assert_file(scene.path, "09000000726566636f756e742f0100000031"
                            "020000002f6b0100000076"
                            "020000002f6e0100000033"
                            "030000002f63730100000078"
                            "030000002d2f6b00000000");
    assert_int_equal(stat(scene.path, &info), 0);
    assert_int_equal(info.st_mode & 0133, 0);
    muster_store_close(scene.first);
    assert_int_equal(access(scene.path, F_OK), -1);
    assert_int_equal(rmdir(scene.folder), 0);
}

static void append_raw(const char *path, const void *bytes, size_t len) {
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    (void)close(fd);
}

static void a_record_cut_short_is_dropped(void **ctx) {
    struct scene *scene = *ctx;
    int64_t sum = 0;
    assert_int_equal(muster_store_set(scene->first, "k", "v", 1), 0);
    append_raw(scene->path, "\x02\0\0\0/x\xff", 7); /* a writer that died in the middle */
    assert_get(scene->second, "k", "v");
    assert_int_equal(muster_store_add(scene->second, "n", 1, &sum), 0);
    assert_int_equal(muster_store_add(scene->first, "n", 1, &sum), 0);
    assert_int_equal(sum, 2);
    assert_get(scene->first, "k", "v");
}

static void what_is_no_store_is_refused(void **state) {
    struct scene scene = {0};
    (void)state;
    make_folder(&scene);
    int fd = open(scene.path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "#!/bin/sh\necho hello\n", 21), 21);
    (void)close(fd);
    assert_int_equal(muster_store_open_file(scene.path, 1, PATIENCE_MS, &scene.first), MUSTER_ECORRUPT);
    assert_non_null(strstr(muster_detail(), scene.path));
    assert_int_equal(unlink(scene.path), 0);
    assert_int_equal(rmdir(scene.folder), 0);
}

static void records_are_applied_however_they_are_cut(void **state) {
    static const uint8_t bytes[] = "\x02\0\0\0/k\x01\0\0\0v\x02\0\0\0/n\x02\0\0\00012\x03\0\0\0-/k\0\0\0";
    const uint64_t seed[2] = {1, 2};
    (void)state;
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        struct kv_budget budget = {.max_bytes = 4096};
        struct kv_table table;
        struct kv_slice value;
        size_t used = 0, rest = 0;
        kv_table_init(&table, seed, &budget);
        assert_int_equal(file_format_apply(bytes, cut, &table, &used), 0);
        assert_true(used <= cut);
        assert_int_equal(file_format_apply(bytes + used, sizeof bytes - used, &table, &rest), 0);
        assert_int_equal(used + rest, sizeof bytes);
        assert_false(kv_table_get(&table, kv_slice_text("/k"), &value));
        assert_true(kv_table_get(&table, kv_slice_text("/n"), &value));
        assert_true(kv_slice_equal(value, kv_slice_text("12")));
        kv_table_done(&table);
        assert_int_equal(budget.used_bytes, 0);
    }
}

static void processes_count_correctly_in_one_file(void **ctx) {
    enum { PROCESSES = 4, ROUNDS = 50 };
    struct scene *scene = *ctx;
    pid_t pids[PROCESSES];
    for (size_t i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            struct muster_store *store = NULL;
            int64_t sum;
            int code = muster_store_open_file(scene->path, 0, PATIENCE_MS, &store);
            for (int round = 0; round < ROUNDS && code == 0; round++) {
                code = muster_store_add(store, "n", 1, &sum);
            }
            code = code ? code : muster_store_barrier(store, "done", PROCESSES + 1, PATIENCE_MS);
            muster_store_close(store);
            _exit(code ? 1 : 0);
        }
    }
    assert_int_equal(muster_store_barrier(scene->first, "done", PROCESSES + 1, PATIENCE_MS), 0);
    for (size_t i = 0; i < PROCESSES; i++) {
        int status = -1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_get(scene->second, "n", "200");
}

#define ON_BOTH(name)                                                                                                  \
    {"tcp." #name, name, set_up_tcp, tear_down, NULL}, {                                                               \
        "file." #name, name, set_up_file, tear_down, NULL                                                              \
    }
#define ON_ALL(name)                                                                                                   \
    ON_BOTH(name), {                                                                                                   \
        "calls." #name, name, set_up_calls, tear_down, NULL                                                            \
    }
#define ON_CALLS(name) cmocka_unit_test_setup_teardown(name, set_up_calls, tear_down)
#define ON_TCP(name) cmocka_unit_test_setup_teardown(name, set_up_tcp, tear_down)
#define ON_FILE(name) cmocka_unit_test_setup_teardown(name, set_up_file, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_ALL(what_one_sets_the_other_gets),
        ON_ALL(numbers_add_up),
        ON_ALL(compare_set_follows_the_table),
        ON_BOTH(append_and_delete),
        ON_ALL(several_keys_at_once),
        ON_BOTH(prefixes_nest_and_keys_are_listed),
        ON_ALL(waiting_in_vain_names_the_key),
        ON_ALL(a_wait_ends_when_the_keys_come),
        ON_ALL(a_barrier_lets_all_through),
        ON_ALL(a_barrier_behind_a_prefix_is_pytorchs),
        ON_ALL(limits_are_told_before_anything_happens),
        ON_ALL(threads_take_turns_on_one_store),
        ON_CALLS(a_store_of_calls_lacks_some),
        cmocka_unit_test(what_a_function_says_is_told),
        cmocka_unit_test(calls_that_are_missing_are_refused),
        ON_TCP(queues_are_first_in_first_out),
        ON_TCP(the_end_of_the_server_is_told),
        cmocka_unit_test(a_stopped_server_does_not_prolong_waits),
        cmocka_unit_test(a_look_at_a_silent_server_costs_no_connection),
        cmocka_unit_test(the_host_waits_for_the_workers),
        cmocka_unit_test(opening_fails_with_a_reason),
        cmocka_unit_test(the_environment_leads_to_the_store),
        ON_FILE(a_file_has_no_queues),
        cmocka_unit_test(the_file_is_pytorchs),
        ON_FILE(a_record_cut_short_is_dropped),
        cmocka_unit_test(what_is_no_store_is_refused),
        cmocka_unit_test(records_are_applied_however_they_are_cut),
        ON_FILE(processes_count_correctly_in_one_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
