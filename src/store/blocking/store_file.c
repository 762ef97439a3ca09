/* The FileStore: a log of records in one file that all processes append to, under flock(); see muster/store.h and
 * docs/formats/filestore.md.
 *
 * The file is opened for each call, as PyTorch does: it may be removed and made anew between two. What it holds is
 * mirrored in a table that is brought up to date from where the last call stopped reading. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/system/random.h"
#include "store/blocking/store_impl.h"
#include "store/client/file_format.h"

/* PyTorch's pace of looking again; inotify makes it shorter where the file system tells. */
enum { POLL_MS = 10, LOCK_PAUSE_MS = 1, READ_BYTES = 64 * 1024 };
/* Everything that a process keeps of the file. */
#define FILE_STORE_BYTES_MAX ((size_t)1024 * 1024 * 1024)

static const char refcount_key[] = "refcount/";
static const char cleanup_key[] = "cleanup/";

struct file_store {
    struct store_backend backend;
    uint32_t world_size;
    int notify_fd; /* inotify, or -1 */
    int fd;        /* open and locked during a call, else -1 */
    dev_t device;  /* of the file that the table mirrors */
    ino_t inode;
    off_t position; /* mirrored up to here */
    off_t size;     /* of the file when it was last looked at; more than `position`: an unfinished record */
    struct kv_budget budget;
    struct kv_table table;
    struct buf out;
    char path[];
};

static struct file_store *file_of(struct store_backend *backend) {
    return (struct file_store *)backend;
}

/* ---- reading and writing under the lock ---- */

static void unlock(struct file_store *file) {
    if (file->fd >= 0) {
        (void)close(file->fd); /* releases the lock */
        file->fd = -1;
    }
}

/* Takes the lock, retrying: flock() itself knows no deadline. */
static int lock(struct file_store *file, int operation, int64_t deadline_ns) {
    while (flock(file->fd, operation | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return status_fail_errno(errno, "lock the file");
        }
        if (store_remaining_ms(deadline_ns) == 0) {
            return status_fail(MUSTER_ETIMEOUT, "another process holds the file's lock");
        }
        (void)poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return 0;
}

static void forget(struct file_store *file) {
    kv_table_clear(&file->table);
    file->position = 0;
}

/* Brings the table up to date. A record without its end is left alone: its writer died, or is not ours to wait for. */
static int refresh(struct file_store *file) {
    struct stat info;
    struct buf in;
    if (fstat(file->fd, &info) < 0) {
        return status_fail_errno(errno, "look at the file");
    }
    if (info.st_dev != file->device || info.st_ino != file->inode || info.st_size < file->position) {
        forget(file); /* removed and made anew */
        file->device = info.st_dev;
        file->inode = info.st_ino;
    }
    int code = 0;
    off_t at = file->position;
    file->size = info.st_size;
    buf_init(&in, CODEC_VALUE_BYTES_MAX + CODEC_KEY_BYTES_MAX + 2 * (size_t)READ_BYTES);
    while (code == 0 && at < info.st_size) {
        uint8_t *room = buf_reserve(&in, READ_BYTES);
        ssize_t got = room ? pread(file->fd, room, READ_BYTES, at) : 0;
        if (!room) {
            code = MUSTER_ENOMEM;
        } else if (got < 0 && errno != EINTR) {
            code = status_fail_errno(errno, "read the file");
        } else if (got == 0) {
            break;
        } else if (got > 0) {
            size_t used = 0;
            buf_commit(&in, (size_t)got);
            at += got;
            code = file_format_apply(buf_bytes(&in), in.len, &file->table, &used);
            buf_consume(&in, used);
            file->position += (off_t)used;
        }
    }
    buf_done(&in);
    return code;
}

/* Opens, locks and reads; the caller unlocks. A reader makes the file too, so that the two cannot miss each other. */
static int open_locked(struct file_store *file, int operation, int64_t deadline_ns) {
    file->fd = open(file->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file->fd < 0) {
        return status_fail_errno(errno, "open the file");
    }
    int code = lock(file, operation, deadline_ns);
    code = code ? code : refresh(file);
    if (code) {
        unlock(file);
    }
    return code;
}

/* Writes `out` behind the last whole record. The exclusive lock is held, so an unfinished one has no writer any more.
 */
static int write_records(struct file_store *file) {
    off_t end = file->position;
    if (file->size > end && ftruncate(file->fd, end) < 0) {
        return status_fail_errno(errno, "cut an unfinished record off the file");
    }
    while (file->out.len > 0) {
        ssize_t written = pwrite(file->fd, buf_bytes(&file->out), file->out.len, end);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            int code = status_fail_errno(errno, "write to the file");
            int cut = ftruncate(file->fd, file->position); /* none of it, rather than a part */
            (void)cut;                                     /* if that fails too, the next writer cuts it off */
            return code;
        }
        buf_consume(&file->out, (size_t)written);
        end += written;
    }
    return refresh(file);
}

/* Unlocks and puts "ADD /key in FileStore path: " in front of the detail of a failure. */
static int finish(struct file_store *file, int code, const char *operation, const char *prefix, const char *key) {
    unlock(file);
    buf_clear(&file->out);
    bool has_key = prefix[0] != '\0' || key[0] != '\0';
    return code ? status_prefix(code, "%s%s%s%.200s%s FileStore %s", operation, has_key ? " " : "", prefix, key,
                                has_key ? " in" : "", file->path)
                : 0;
}

/* The raw key `prefix` + `key` into `buffer`. */
static int raw_key(const char *prefix, const char *key, uint8_t buffer[CODEC_KEY_BYTES_MAX], struct kv_slice *out) {
    size_t prefix_len = strlen(prefix), len = strlen(key);
    if (prefix_len + len > CODEC_KEY_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "key of %zu bytes, the limit is %zu", prefix_len + len, CODEC_KEY_BYTES_MAX);
    }
    memcpy(buffer, prefix, prefix_len);
    memcpy(buffer + prefix_len, key, len);
    *out = kv_slice_of(buffer, prefix_len + len);
    return 0;
}

/* ---- operations ---- */

static int file_set(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                    int64_t deadline_ns) {
    struct file_store *file = file_of(backend);
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw;
    int code = raw_key(prefix, key, buffer, &raw);
    code = code ? code : file_format_put(&file->out, prefix, key, value);
    code = code ? code : open_locked(file, LOCK_EX, deadline_ns);
    code = code ? code : write_records(file);
    return finish(file, code, "SET", prefix, key);
}

static int file_append(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                       int64_t deadline_ns) {
    struct file_store *file = file_of(backend);
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw, joined;
    struct kv_change change;
    int code = raw_key(prefix, key, buffer, &raw);
    code = code ? code : open_locked(file, LOCK_EX, deadline_ns);
    /* In the table first: it checks the limit, and the record has the whole value. */
    code = code ? code : kv_table_append(&file->table, raw, value, &change);
    if (code == 0) {
        (void)kv_table_get(&file->table, raw, &joined);
        code = file_format_put(&file->out, prefix, key, joined);
        code = code ? code : write_records(file);
        if (code) {
            forget(file); /* the table is ahead of the file */
        }
    }
    kv_table_sweep(&file->table);
    return finish(file, code, "APPEND", prefix, key);
}

/* With the file locked: adds to the number, in table and file. */
static int add_locked(struct file_store *file, const char *prefix, const char *key, int64_t delta, int64_t *out_sum) {
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw, text;
    struct kv_change change;
    int code = raw_key(prefix, key, buffer, &raw);
    code = code ? code : kv_table_add(&file->table, raw, delta, out_sum, &change);
    if (code) {
        return code;
    }
    (void)kv_table_get(&file->table, raw, &text);
    code = file_format_put(&file->out, prefix, key, text);
    code = code ? code : write_records(file);
    if (code) {
        forget(file);
    }
    kv_table_sweep(&file->table);
    return code;
}

static int file_add(struct store_backend *backend, const char *prefix, const char *key, int64_t delta,
                    int64_t deadline_ns, int64_t *out_sum) {
    struct file_store *file = file_of(backend);
    int64_t sum = 0;
    int code = open_locked(file, LOCK_EX, deadline_ns);
    code = code ? code : add_locked(file, prefix, key, delta, &sum);
    if (code == 0) {
        *out_sum = sum;
    }
    return finish(file, code, "ADD", prefix, key);
}

static int file_compare_set(struct store_backend *backend, const char *prefix, const char *key,
                            struct kv_slice expected, struct kv_slice desired, int64_t deadline_ns,
                            struct muster_store_value *out) {
    struct file_store *file = file_of(backend);
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw, now = {0};
    int code = raw_key(prefix, key, buffer, &raw);
    code = code ? code : file_format_put(&file->out, prefix, key, desired);
    code = code ? code : open_locked(file, LOCK_EX, deadline_ns);
    if (code) {
        return finish(file, code, "COMPARE_SET", prefix, key);
    }
    bool exists = kv_table_get(&file->table, raw, &now);
    bool stores = exists ? kv_slice_equal(now, expected) : expected.len == 0;
    code = store_value_new(stores ? desired : exists ? now : expected, out);
    if (code == 0 && stores) {
        code = write_records(file);
        if (code) {
            muster_store_value_free(out);
        }
    }
    return finish(file, code, "COMPARE_SET", prefix, key);
}

static int file_remove(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                       bool *out_deleted) {
    struct file_store *file = file_of(backend);
    char dashed[CODEC_KEY_BYTES_MAX + 2] = FILE_FORMAT_DELETE_PREFIX;
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw;
    int code = raw_key(prefix, key, buffer, &raw);
    if (code == 0) {
        memcpy(dashed + 1, prefix, strlen(prefix) + 1);
        code = file_format_put(&file->out, dashed, key, kv_slice_of(NULL, 0));
    }
    code = code ? code : open_locked(file, LOCK_EX, deadline_ns);
    code = code ? code : write_records(file);
    if (code == 0) {
        *out_deleted = true;
    }
    return finish(file, code, "DELETE", prefix, key);
}

/* With the file locked: are all keys there? */
static int all_present(const struct file_store *file, const char *prefix, const char *const *keys, size_t key_count,
                       bool *out) {
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw, value;
    *out = true;
    for (size_t i = 0; i < key_count && *out; i++) {
        int code = raw_key(prefix, keys[i], buffer, &raw);
        if (code) {
            return code;
        }
        *out = kv_table_get(&file->table, raw, &value);
    }
    return 0;
}

static int file_check(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                      int64_t deadline_ns, bool *out_all) {
    struct file_store *file = file_of(backend);
    bool all = false;
    int code = open_locked(file, LOCK_SH, deadline_ns);
    code = code ? code : all_present(file, prefix, keys, key_count, &all);
    if (code == 0) {
        *out_all = all;
    }
    return finish(file, code, "CHECK", prefix, key_count ? keys[0] : "");
}

/* Until the file changes, as far as the kernel tells, or POLL_MS have passed: on a network file system it does not. */
static void await_change(const struct file_store *file, int64_t deadline_ns) {
    uint8_t events[4096];
    struct pollfd poll_fd = {.fd = file->notify_fd, .events = POLLIN};
    int left_ms = store_remaining_ms(deadline_ns);
    if (poll(&poll_fd, file->notify_fd >= 0, left_ms < POLL_MS ? left_ms : POLL_MS) > 0) {
        ssize_t ignored = read(file->notify_fd, events, sizeof events);
        (void)ignored; /* which event it was does not matter */
    }
}

/* Looks at least once. MUSTER_ETIMEOUT. */
static int wait_for_all(struct file_store *file, const char *prefix, const char *const *keys, size_t key_count,
                        int64_t deadline_ns) {
    for (;;) {
        bool all = false;
        bool is_last = store_remaining_ms(deadline_ns) == 0;
        /* Before looking, so that nothing falls in between; repeated: it may be a new file. */
        if (file->notify_fd >= 0) {
            (void)inotify_add_watch(file->notify_fd, file->path, IN_MODIFY | IN_DELETE_SELF | IN_ATTRIB);
        }
        int code = open_locked(file, LOCK_SH, is_last ? store_deadline(POLL_MS) : deadline_ns);
        code = code ? code : all_present(file, prefix, keys, key_count, &all);
        unlock(file);
        if (code || all) {
            return code;
        }
        if (is_last) {
            return status_fail(MUSTER_ETIMEOUT, "the time-out is over");
        }
        await_change(file, deadline_ns);
    }
}

static int file_wait(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                     int64_t deadline_ns) {
    struct file_store *file = file_of(backend);
    int code = wait_for_all(file, prefix, keys, key_count, deadline_ns);
    return finish(file, code, "WAIT", prefix, key_count ? keys[0] : "");
}

static int file_multi_get(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                          int64_t deadline_ns, struct muster_store_value *out) {
    struct file_store *file = file_of(backend);
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    size_t taken = 0;
    int code = open_locked(file, LOCK_SH, deadline_ns);
    while (code == 0 && taken < key_count) {
        struct kv_slice raw, value = {0};
        code = raw_key(prefix, keys[taken], buffer, &raw);
        if (code == 0) {
            (void)kv_table_get(&file->table, raw, &value); /* deleted since the wait: empty, as the TCPStore has it */
            code = store_value_new(value, &out[taken]);
        }
        taken += code == 0;
    }
    while (code && taken > 0) {
        muster_store_value_free(&out[--taken]);
    }
    return finish(file, code, "GET", prefix, key_count ? keys[0] : "");
}

/* All records in one write. */
static int file_multi_set(struct store_backend *backend, const char *prefix, const char *const *keys,
                          const struct muster_store_value *values, size_t key_count, int64_t deadline_ns) {
    struct file_store *file = file_of(backend);
    uint8_t buffer[CODEC_KEY_BYTES_MAX];
    struct kv_slice raw;
    int code = 0;
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = raw_key(prefix, keys[i], buffer, &raw);
        code = code ? code : file_format_put(&file->out, prefix, keys[i], kv_slice_of(values[i].data, values[i].len));
    }
    code = code ? code : open_locked(file, LOCK_EX, deadline_ns);
    code = code ? code : write_records(file);
    return finish(file, code, "MULTI_SET", prefix, key_count ? keys[0] : "");
}

static int file_num_keys(struct store_backend *backend, int64_t deadline_ns, int64_t *out_count) {
    struct file_store *file = file_of(backend);
    int code = open_locked(file, LOCK_SH, deadline_ns);
    if (code == 0) {
        *out_count = (int64_t)kv_table_count(&file->table);
    }
    return finish(file, code, "count keys", "", "");
}

static int file_list_keys(struct store_backend *backend, int64_t deadline_ns,
                          int (*each)(void *ctx, struct kv_slice key), void *ctx) {
    struct file_store *file = file_of(backend);
    size_t bucket = 0;
    const struct kv_entry *entry = NULL;
    struct kv_slice key;
    int code = open_locked(file, LOCK_SH, deadline_ns);
    while (code == 0 && kv_table_next(&file->table, &bucket, &entry, &key)) {
        code = each(ctx, key);
    }
    return finish(file, code, "list keys", "", "");
}

/* ---- opening and closing ---- */

static void release(struct file_store *file) {
    unlock(file);
    if (file->notify_fd >= 0) {
        (void)close(file->notify_fd);
    }
    kv_table_done(&file->table);
    buf_done(&file->out);
    free(file);
}

/* Counts this user out; the last of world_size removes the file. Nobody can be told of a failure here. */
static void file_free(struct store_backend *backend) {
    struct file_store *file = file_of(backend);
    int64_t finished = 0, left = 0;
    int code = open_locked(file, LOCK_EX, store_deadline(backend->timeout_ms));
    code = code ? code : add_locked(file, "", cleanup_key, 1, &finished);
    code = code ? code : add_locked(file, "", refcount_key, -1, &left);
    if (code == 0 && left == 0 && file->world_size > 0 && finished >= (int64_t)file->world_size) {
        (void)unlink(file->path);
    }
    release(file);
}

static const struct store_operations file_operations = {
    .kind = "a FileStore",
    .set = file_set,
    .append = file_append,
    .add = file_add,
    .compare_set = file_compare_set,
    .remove = file_remove,
    .check = file_check,
    .wait = file_wait,
    .multi_get = file_multi_get,
    .multi_set = file_multi_set,
    .num_keys = file_num_keys,
    .list_keys = file_list_keys,
    .free = file_free,
};

static int count_in(struct file_store *file) {
    int64_t users = 0;
    int code = open_locked(file, LOCK_EX, store_deadline(file->backend.timeout_ms));
    code = code ? code : add_locked(file, "", refcount_key, 1, &users);
    return finish(file, code, "open", "", "");
}

int muster_store_open_file(const char *path, uint32_t world_size, int64_t timeout_ms, struct muster_store **out) {
    uint64_t seed[2];
    if (!path || !out) {
        return status_fail_null("muster_store_open_file", path ? "out" : "path");
    }
    if (timeout_ms != MUSTER_STORE_DEFAULT && timeout_ms <= 0) {
        return status_fail(MUSTER_EINVAL, "FileStore %s: timeout_ms is %lld, a number above 0 is needed", path,
                           (long long)timeout_ms);
    }
    if (random_fill(seed, sizeof seed) != 0) {
        return status_fail_errno(errno, "random seed for the store");
    }
    struct file_store *file = calloc(1, sizeof *file + strlen(path) + 1);
    if (!file) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store");
    }
    memcpy(file->path, path, strlen(path) + 1);
    file->backend = (struct store_backend){
        .operations = &file_operations,
        .timeout_ms = timeout_ms == MUSTER_STORE_DEFAULT ? MUSTER_STORE_TIMEOUT_MS : timeout_ms,
    };
    file->world_size = world_size;
    file->fd = -1;
    file->notify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC); /* -1: polling alone will do */
    file->budget.max_bytes = FILE_STORE_BYTES_MAX;
    kv_table_init(&file->table, seed, &file->budget);
    buf_init(&file->out, CODEC_MESSAGE_BYTES_MAX);
    int code = count_in(file);
    if (code) {
        release(file);
        return code;
    }
    return store_handle_new(&file->backend, out);
}
