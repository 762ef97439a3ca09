/* The key-value interface of comm (kv.h) for a world of one rank: a list in this process's memory. No network, no file
 * and no thread. It knows nothing of groups. */
#include "comm/context/kv.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* A root group of one rank sets some five keys, and each shrink two more. Searched from end to end. */
enum { KEYS_MAX = 4096 };

struct entry {
    struct entry *next;
    struct muster_store_value value;
    char key[];
};

struct comm_kv_alone {
    pthread_mutex_t mutex; /* two groups of the world may be shrunk by two threads */
    struct entry *entries; /* the newest first: that is the one asked for */
    size_t count;
};

/* A copy followed by the zero byte that muster/store.h promises. */
static int copy_value(const void *bytes, size_t len, struct muster_store_value *out) {
    uint8_t *data = malloc(len + 1);
    if (!data) {
        return status_fail(MUSTER_ENOMEM, "no memory for a value of %zu bytes", len);
    }
    if (len > 0) {
        memcpy(data, bytes, len);
    }
    data[len] = 0;
    *out = (struct muster_store_value){data, len};
    return 0;
}

static struct entry *find(const struct comm_kv_alone *alone, const char *key) {
    struct entry *entry = alone->entries;
    while (entry && strcmp(entry->key, key) != 0) {
        entry = entry->next;
    }
    return entry;
}

/* Takes `value`. */
static int insert(struct comm_kv_alone *alone, const char *key, struct muster_store_value value) {
    size_t bytes = strlen(key) + 1;
    struct entry *entry = alone->count < KEYS_MAX ? malloc(sizeof *entry + bytes) : NULL;
    if (!entry) {
        bool is_full = alone->count >= KEYS_MAX;
        muster_store_value_free(&value);
        return is_full ? status_fail(MUSTER_ELIMIT, "a world of one rank keeps at most %d keys", KEYS_MAX)
                       : status_fail(MUSTER_ENOMEM, "no memory for the key %s", key);
    }
    memcpy(entry->key, key, bytes);
    entry->value = value;
    entry->next = alone->entries;
    alone->entries = entry;
    alone->count++;
    return 0;
}

static int alone_set(void *context, const char *key, const void *value, size_t len) {
    struct comm_kv_alone *alone = context;
    struct muster_store_value copy = {0};
    int code = copy_value(value, len, &copy);
    if (code) {
        return code;
    }
    (void)pthread_mutex_lock(&alone->mutex);
    struct entry *entry = find(alone, key);
    if (entry) {
        muster_store_value_free(&entry->value);
        entry->value = copy;
    } else {
        code = insert(alone, key, copy);
    }
    (void)pthread_mutex_unlock(&alone->mutex);
    return code;
}

/* Does not wait: nobody else will set the key. */
static int alone_get(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out) {
    struct comm_kv_alone *alone = context;
    (void)timeout_ms;
    (void)pthread_mutex_lock(&alone->mutex);
    const struct entry *entry = find(alone, key);
    int code = entry ? copy_value(entry->value.data, entry->value.len, out)
                     : status_fail(MUSTER_ETIMEOUT, "nobody but this rank could set the key %s", key);
    (void)pthread_mutex_unlock(&alone->mutex);
    return code;
}

static int alone_multi_get(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                           struct muster_store_value *out) {
    int code = 0;
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = alone_get(context, keys[i], timeout_ms, &out[i]);
    }
    for (size_t i = 0; code && i < key_count; i++) {
        muster_store_value_free(&out[i]);
    }
    return code;
}

static int alone_set_if_absent(void *context, const char *key, const void *value, size_t len,
                               struct muster_store_value *out) {
    struct comm_kv_alone *alone = context;
    struct muster_store_value copy = {0};
    (void)pthread_mutex_lock(&alone->mutex);
    int code = find(alone, key) ? 0 : copy_value(value, len, &copy);
    code = code || !copy.data ? code : insert(alone, key, copy);
    (void)pthread_mutex_unlock(&alone->mutex);
    return code ? code : alone_get(context, key, 0, out);
}

static int alone_remove(void *context, const char *key) {
    struct comm_kv_alone *alone = context;
    (void)pthread_mutex_lock(&alone->mutex);
    struct entry **at = &alone->entries;
    while (*at && strcmp((*at)->key, key) != 0) {
        at = &(*at)->next;
    }
    struct entry *entry = *at;
    if (entry) {
        *at = entry->next;
        alone->count--;
        muster_store_value_free(&entry->value);
        free(entry);
    }
    (void)pthread_mutex_unlock(&alone->mutex);
    return 0;
}

int comm_kv_alone_create(struct comm_kv_alone **out_alone, struct comm_kv *out) {
    struct comm_kv_alone *alone = calloc(1, sizeof *alone);
    if (!alone) {
        return status_fail(MUSTER_ENOMEM, "no memory for a world of one rank");
    }
    (void)pthread_mutex_init(&alone->mutex, NULL);
    *out_alone = alone;
    *out = (struct comm_kv){alone, alone_set, alone_get, alone_multi_get, alone_set_if_absent, alone_remove};
    return 0;
}

void comm_kv_alone_free(struct comm_kv_alone *alone) {
    if (!alone) {
        return;
    }
    while (alone->entries) {
        struct entry *entry = alone->entries;
        alone->entries = entry->next;
        muster_store_value_free(&entry->value);
        free(entry);
    }
    (void)pthread_mutex_destroy(&alone->mutex);
    free(alone);
}
