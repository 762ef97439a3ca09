/* The worker's store (muster/store.h) as a program: one call a line from stdin, one answer a line on stdout.
 *
 *     store_peer tcp HOST PORT WORLD_SIZE TIMEOUT_MS [PREFIX ...]
 *     store_peer host 0 PORT WORLD_SIZE TIMEOUT_MS [PREFIX ...]      serves the store itself, on loopback
 *     store_peer file PATH 0 WORLD_SIZE TIMEOUT_MS [PREFIX ...]
 *
 * The first answer is that of opening, with the port. Prefixes nest in the order given. */
#include <stdlib.h>
#include <string.h>

#include <muster/store.h>

#include "store_words.h"

struct call {
    struct muster_store *store;
    char **words; /* behind the name */
    size_t count;
};

static void print_and_free(struct muster_store_value *value) {
    words_print_value(kv_slice_of(value->data, value->len));
    muster_store_value_free(value);
}

static void print_number(int code, int64_t number) {
    words_print_status(code);
    if (code == 0) {
        (void)printf("\t%lld", (long long)number);
    }
}

static void print_one(int code, struct muster_store_value *value) {
    words_print_status(code);
    if (code == 0) {
        print_and_free(value);
    }
}

static void do_set(const struct call *call) {
    struct kv_slice value = words_value(call->words[1]);
    words_print_status(muster_store_set(call->store, call->words[0], value.data, value.len));
}

static void do_append(const struct call *call) {
    struct kv_slice value = words_value(call->words[1]);
    words_print_status(muster_store_append(call->store, call->words[0], value.data, value.len));
}

static void do_get(const struct call *call) {
    struct muster_store_value value = {0};
    int code = muster_store_get(call->store, call->words[0], words_number(call->words[1]), &value);
    print_one(code, &value);
}

static void do_add(const struct call *call) {
    int64_t sum = 0;
    int code = muster_store_add(call->store, call->words[0], words_number(call->words[1]), &sum);
    print_number(code, sum);
}

static void do_compare_set(const struct call *call) {
    struct muster_store_value value = {0};
    struct kv_slice expected = words_value(call->words[1]), desired = words_value(call->words[2]);
    int code = muster_store_compare_set(call->store, call->words[0], expected.data, expected.len, desired.data,
                                        desired.len, &value);
    print_one(code, &value);
}

static void do_delete(const struct call *call) {
    bool deleted = false;
    int code = muster_store_delete(call->store, call->words[0], &deleted);
    print_number(code, deleted);
}

static void do_check(const struct call *call) {
    bool all = false;
    int code = muster_store_check(call->store, (const char *const *)call->words, call->count, &all);
    print_number(code, all);
}

static void do_wait(const struct call *call) {
    words_print_status(muster_store_wait(call->store, (const char *const *)(call->words + 1), call->count - 1,
                                         words_number(call->words[0])));
}

static void do_num_keys(const struct call *call) {
    int64_t count = 0;
    int code = muster_store_num_keys(call->store, &count);
    print_number(code, count);
}

static void do_list_keys(const struct call *call) {
    char **keys = NULL;
    size_t count = 0;
    int code = muster_store_list_keys(call->store, &keys, &count);
    words_print_status(code);
    for (size_t i = 0; i < count; i++) {
        (void)printf("\t%s", keys[i]);
    }
    free(keys);
}

static void do_multi_get(const struct call *call) {
    static struct muster_store_value values[WORDS_MAX];
    size_t count = call->count - 1;
    int code = muster_store_multi_get(call->store, (const char *const *)(call->words + 1), count,
                                      words_number(call->words[0]), values);
    words_print_status(code);
    for (size_t i = 0; code == 0 && i < count; i++) {
        print_and_free(&values[i]);
    }
}

static void do_multi_set(const struct call *call) {
    static const char *keys[WORDS_MAX];
    static struct muster_store_value values[WORDS_MAX];
    size_t count = call->count / 2;
    for (size_t i = 0; i < count; i++) {
        struct kv_slice value = words_value(call->words[2 * i + 1]);
        keys[i] = call->words[2 * i];
        values[i] = (struct muster_store_value){.data = (uint8_t *)(uintptr_t)value.data, .len = value.len};
    }
    words_print_status(muster_store_multi_set(call->store, keys, values, count));
}

static void do_queue_push(const struct call *call) {
    struct kv_slice value = words_value(call->words[1]);
    words_print_status(muster_store_queue_push(call->store, call->words[0], value.data, value.len));
}

static void do_queue_pop(const struct call *call) {
    struct muster_store_value value = {0};
    int code = muster_store_queue_pop(call->store, call->words[0], words_number(call->words[1]), &value);
    print_one(code, &value);
}

static void do_queue_len(const struct call *call) {
    int64_t length = 0;
    int code = muster_store_queue_length(call->store, call->words[0], &length);
    print_number(code, length);
}

static void do_barrier(const struct call *call) {
    words_print_status(muster_store_barrier(call->store, call->words[0], (uint32_t)words_number(call->words[1]),
                                            words_number(call->words[2])));
}

static const struct {
    const char *name;
    size_t words_min;
    void (*run)(const struct call *call);
} calls[] = {
    {"set", 2, do_set},
    {"append", 2, do_append},
    {"get", 2, do_get},
    {"add", 2, do_add},
    {"compare_set", 3, do_compare_set},
    {"delete_key", 1, do_delete},
    {"check", 0, do_check},
    {"wait", 1, do_wait},
    {"num_keys", 0, do_num_keys},
    {"list_keys", 0, do_list_keys},
    {"multi_get", 1, do_multi_get},
    {"multi_set", 0, do_multi_set},
    {"queue_push", 2, do_queue_push},
    {"queue_pop", 2, do_queue_pop},
    {"queue_len", 1, do_queue_len},
    {"barrier", 3, do_barrier},
};

static bool serve(struct muster_store *store, struct words *words) {
    struct call call = {.store = store, .words = words->list + 1, .count = words->count - 1};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].name, words->list[0]) == 0 && call.count >= calls[i].words_min) {
            calls[i].run(&call);
            (void)printf("\n");
            return fflush(stdout) == 0;
        }
    }
    (void)fprintf(stderr, "'%s' with %zu words is not understood\n", words->list[0], call.count);
    return false;
}

static int open_store(char **arguments, struct muster_store **out) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    options.world_size = (uint32_t)words_number(arguments[3]);
    options.timeout_ms = words_number(arguments[4]);
    options.port = (uint16_t)words_number(arguments[2]);
    if (strcmp(arguments[0], "file") == 0) {
        return muster_store_open_file(arguments[1], options.world_size, options.timeout_ms, out);
    }
    options.is_host = strcmp(arguments[0], "host") == 0;
    options.bind_host = options.is_host ? "127.0.0.1" : NULL;
    options.host = options.is_host ? NULL : arguments[1];
    return muster_store_open_tcp(&options, out);
}

int main(int argc, char **argv) {
    static struct words words;
    struct muster_store *store = NULL;
    char *line = NULL;
    size_t capacity = 0;
    if (argc < 6) {
        (void)fprintf(stderr, "usage: store_peer tcp|host|file HOST|PATH PORT WORLD_SIZE TIMEOUT_MS [PREFIX ...]\n");
        return 2;
    }
    int code = open_store(argv + 1, &store);
    for (int i = 6; i < argc && code == 0; i++) {
        struct muster_store *view = NULL;
        code = muster_store_prefix(store, argv[i], &view);
        muster_store_close(store);
        store = view;
    }
    print_number(code, code ? 0 : muster_store_port(store));
    (void)printf("\n");
    (void)fflush(stdout);
    while (code == 0 && getline(&line, &capacity, stdin) > 0 && words_split(line, &words) && serve(store, &words)) {
    }
    muster_store_close(store);
    free(line);
    return code ? 1 : 0;
}
