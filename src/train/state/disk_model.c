/* See disk_model.h. */
#include "train/state/disk_model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { HANDLE_FREE = -2, HANDLE_FOLDER = -1 };

/* splitmix64 (Steele, Lea, Flood 2014). */
uint32_t disk_random(struct disk *disk, uint32_t limit) {
    disk->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = disk->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) >> 33) % limit;
}

static bool coin(struct disk *disk) {
    return disk_random(disk, 2) == 1;
}

/* ---- names ---- */

static struct disk_name *name_slot(struct disk *disk, const char *text, bool make) {
    for (int i = 0; i < disk->name_count; i++) {
        if (strcmp(disk->names[i].text, text) == 0) {
            return &disk->names[i];
        }
    }
    if (!make) {
        return NULL;
    }
    assert(disk->name_count < DISK_NAMES_MAX);
    struct disk_name *name = &disk->names[disk->name_count++];
    *name = (struct disk_name){.past = {-1}, .past_count = 1};
    (void)snprintf(name->text, sizeof name->text, "%s", text);
    return name;
}

static int seen(const struct disk_name *name) {
    return name ? name->past[name->past_count - 1] : -1;
}

static void change(struct disk *disk, const char *text, int file) {
    struct disk_name *name = name_slot(disk, text, true);
    if (name->past_count == DISK_PAST_MAX) { /* one of the things that it might have been is given up */
        memmove(&name->past[1], &name->past[2], (DISK_PAST_MAX - 2) * sizeof name->past[0]);
        name->past_count--;
    }
    name->past[name->past_count++] = file;
    name->seen_from_ms = disk->delay_ms == 0 ? 0 : disk->now_ms + disk_random(disk, (uint32_t)disk->delay_ms + 1);
}

/* Has the news of this name reached the one who asks? Until then it stands for nothing. */
static bool is_late(const struct disk *disk, const struct disk_name *name) {
    return name && name->seen_from_ms > disk->now_ms;
}

struct disk_file *disk_find(struct disk *disk, const char *name) {
    int file = seen(name_slot(disk, name, false));
    return file < 0 ? NULL : &disk->files[file];
}

int disk_count(const struct disk *disk, const char *suffix) {
    int count = 0;
    for (int i = 0; i < disk->name_count; i++) {
        size_t length = strlen(disk->names[i].text), wanted = strlen(suffix);
        count += seen(&disk->names[i]) >= 0 && length >= wanted &&
                 strcmp(disk->names[i].text + length - wanted, suffix) == 0;
    }
    return count;
}

int disk_open_handles(const struct disk *disk) {
    int count = 0;
    for (int i = 0; i < DISK_HANDLES_MAX; i++) {
        count += disk->handles[i] != HANDLE_FREE;
    }
    return count;
}

/* ---- starting, stopping ---- */

void disk_init(struct disk *disk, uint64_t seed) {
    disk->random = seed;
    disk->file_count = 0;
    disk->name_count = 0;
    disk->links = 0;
    disk->ignores_file_sync = false;
    disk->ignores_folder_sync = false;
    disk->now_ms = 0;
    disk->delay_ms = 0;
    disk_start(disk, 0, DISK_STOP);
}

/* Files that no name stands for, now or on the disk, make room; names that stand for nothing, too. */
static void forget(struct disk *disk) {
    bool used[DISK_FILES_MAX] = {false};
    int new_index[DISK_FILES_MAX], kept = 0, names = 0;
    for (int i = 0; i < disk->name_count; i++) {
        bool any = false;
        for (size_t j = 0; j < disk->names[i].past_count; j++) {
            int file = disk->names[i].past[j];
            any = any || file >= 0;
            if (file >= 0) {
                used[file] = true;
            }
        }
        if (any) {
            disk->names[names++] = disk->names[i];
        }
    }
    disk->name_count = names;
    for (int i = 0; i < disk->file_count; i++) {
        new_index[i] = kept;
        if (used[i]) {
            disk->files[kept++] = disk->files[i];
        }
    }
    disk->file_count = kept;
    for (int i = 0; i < names; i++) {
        for (size_t j = 0; j < disk->names[i].past_count; j++) {
            int *file = &disk->names[i].past[j];
            *file = *file < 0 ? -1 : new_index[*file];
        }
    }
}

void disk_start(struct disk *disk, unsigned at, enum disk_trouble trouble) {
    forget(disk);
    for (int i = 0; i < DISK_HANDLES_MAX; i++) {
        disk->handles[i] = HANDLE_FREE;
    }
    disk->calls = 0;
    disk->at = at;
    disk->trouble = trouble;
    disk->stopped = false;
    disk->troubled = false;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Writes some of a file's unsynced sectors to the disk: any of them, in any order. */
static void keep_some(struct disk *disk, struct disk_file *file, bool garbage) {
    size_t limit = file->seen_bytes > file->kept_bytes ? file->seen_bytes : file->kept_bytes;
    size_t old_bytes = file->kept_bytes, grown = limit - old_bytes;
    if (grown > 0 && coin(disk)) {
        file->kept_bytes += coin(disk) ? grown : disk_random(disk, (uint32_t)grown + 1);
    }
    memset(file->kept + old_bytes, 0, file->kept_bytes - old_bytes);
    for (size_t at = 0; at < file->kept_bytes; at += DISK_SECTOR_BYTES) {
        size_t count = least(DISK_SECTOR_BYTES, file->kept_bytes - at);
        if (memcmp(file->kept + at, file->seen + at, count) == 0 || !coin(disk)) {
            continue;
        }
        if (garbage && disk_random(disk, 8) == 0) {
            file->kept[at + disk_random(disk, (uint32_t)count)] = (uint8_t)disk_random(disk, 256);
        } else {
            memcpy(file->kept + at, file->seen + at, count);
        }
    }
}

void disk_lose_power(struct disk *disk) {
    for (int i = 0; i < disk->file_count; i++) {
        struct disk_file *file = &disk->files[i];
        if (!file->lost) {
            keep_some(disk, file, true);
        }
        memcpy(file->seen, file->kept, file->kept_bytes);
        file->seen_bytes = file->kept_bytes;
        file->lost = false;
    }
    for (int i = 0; i < disk->name_count; i++) {
        struct disk_name *name = &disk->names[i];
        name->past[0] = name->past[disk_random(disk, (uint32_t)name->past_count)];
        name->past_count = 1;
    }
}

/* ---- trouble ---- */

/* Counts a call that changes something. Gives 0 (go on), or what the call has to return at once. *out_partial: the
 * program ends in the middle of it. */
static int count_call(struct disk *disk, int failure, bool *out_partial) {
    *out_partial = false;
    if (disk->stopped) {
        return -EIO;
    }
    disk->calls++;
    if (disk->at == 0 || disk->calls < disk->at || (disk->calls > disk->at && disk->trouble != DISK_FAIL_FOREVER)) {
        return 0;
    }
    disk->troubled = true;
    if (disk->trouble != DISK_STOP) {
        return failure;
    }
    disk->stopped = true;
    *out_partial = true;
    return 0;
}

/* ---- the calls ---- */

static int handle_new(struct disk *disk, int stands_for) {
    for (int i = 0; i < DISK_HANDLES_MAX; i++) {
        if (disk->handles[i] == HANDLE_FREE) {
            disk->handles[i] = stands_for;
            return i;
        }
    }
    return -EMFILE;
}

static struct disk_file *file_of(struct disk *disk, int handle) {
    assert(handle >= 0 && handle < DISK_HANDLES_MAX && disk->handles[handle] >= 0);
    return &disk->files[disk->handles[handle]];
}

static int model_open_folder(void *ctx, const char *path, bool make) {
    (void)path;
    (void)make;
    return handle_new(ctx, HANDLE_FOLDER);
}

static int model_lock_folder(void *ctx, int folder) {
    (void)ctx;
    (void)folder;
    return 0;
}

static void model_unlock_folder(void *ctx, int folder) {
    (void)ctx;
    (void)folder;
}

static int model_list(void *ctx, int folder, snapshot_name_fn *each, void *each_ctx) {
    struct disk *disk = ctx;
    assert(disk->handles[folder] == HANDLE_FOLDER);
    int code = disk->stopped ? -EIO : each(each_ctx, "..");
    for (int i = 0; i < disk->name_count && code == 0; i++) {
        code = seen(&disk->names[i]) < 0 || is_late(disk, &disk->names[i]) ? 0 : each(each_ctx, disk->names[i].text);
    }
    return code;
}

static int model_create(void *ctx, int folder, const char *name) {
    struct disk *disk = ctx;
    bool partial = false;
    assert(disk->handles[folder] == HANDLE_FOLDER);
    int code = count_call(disk, -ENOSPC, &partial);
    if (code) {
        return code;
    }
    if (partial && coin(disk)) {
        return -EIO;
    }
    if (disk_find(disk, name)) {
        return -EEXIST;
    }
    assert(disk->file_count < DISK_FILES_MAX);
    struct disk_file *file = &disk->files[disk->file_count];
    file->seen_bytes = file->kept_bytes = 0;
    file->lost = file->is_direct = false;
    change(disk, name, disk->file_count);
    return handle_new(disk, disk->file_count++);
}

static int model_open(void *ctx, int folder, const char *name) {
    struct disk *disk = ctx;
    assert(disk->handles[folder] == HANDLE_FOLDER);
    const struct disk_name *slot = name_slot(disk, name, false);
    int file = is_late(disk, slot) ? -1 : seen(slot);
    return disk->stopped ? -EIO : file < 0 ? -ENOENT : handle_new(disk, file);
}

static int64_t model_size(void *ctx, int file) {
    return (int64_t)file_of(ctx, file)->seen_bytes;
}

static int64_t model_read(void *ctx, int handle, void *bytes, size_t count, uint64_t offset) {
    struct disk *disk = ctx;
    struct disk_file *file = file_of(disk, handle);
    if (disk->stopped || offset >= file->seen_bytes || count == 0) {
        return disk->stopped ? -EIO : 0;
    }
    count = least(count, file->seen_bytes - offset);
    count = count > 1 && disk_random(disk, 8) == 0 ? 1 + disk_random(disk, (uint32_t)count) : count;
    memcpy(bytes, file->seen + offset, count);
    return (int64_t)count;
}

static int64_t model_write(void *ctx, int handle, const void *bytes, size_t count) {
    struct disk *disk = ctx;
    bool partial = false;
    int code = count_call(disk, -ENOSPC, &partial);
    if (code) {
        return code;
    }
    struct disk_file *file = file_of(disk, handle);
    disk->direct_writes += file->is_direct;
    disk->was_misaligned |= file->is_direct && ((uintptr_t)bytes | file->seen_bytes | count) % DISK_SECTOR_BYTES != 0;
    if (count > 1 && (partial || disk_random(disk, 8) == 0)) { /* also in good order: writes may be short */
        count = 1 + disk_random(disk, (uint32_t)count);
    }
    assert(file->seen_bytes + count <= DISK_FILE_BYTES_MAX);
    memcpy(file->seen + file->seen_bytes, bytes, count);
    file->seen_bytes += count;
    return (int64_t)count;
}

/* Some file systems cannot, and some say so late. */
static int model_set_direct(void *ctx, int handle, bool is_direct) {
    struct disk *disk = ctx;
    if (is_direct && disk_random(disk, 8) == 0) {
        return -EINVAL;
    }
    file_of(disk, handle)->is_direct = is_direct;
    return 0;
}

static void model_start_sync(void *ctx, int handle, uint64_t offset, uint64_t count) {
    (void)file_of(ctx, handle);
    (void)offset;
    (void)count;
}

static void sync_file(struct disk *disk, struct disk_file *file, bool partial) {
    if (file->lost || disk->ignores_file_sync) {
        return;
    }
    if (partial) {
        keep_some(disk, file, false);
        return;
    }
    memcpy(file->kept, file->seen, file->seen_bytes);
    file->kept_bytes = file->seen_bytes;
}

static void sync_folder(struct disk *disk, bool partial) {
    for (int i = 0; i < disk->name_count && !disk->ignores_folder_sync; i++) {
        struct disk_name *name = &disk->names[i];
        if (!partial || coin(disk)) {
            name->past[0] = seen(name);
            name->past_count = 1;
        }
    }
}

static int model_sync(void *ctx, int handle) {
    struct disk *disk = ctx;
    bool partial = false;
    int stands_for = disk->handles[handle];
    int code = count_call(disk, -EIO, &partial);
    if (code) {
        if (!disk->stopped && stands_for >= 0) {
            disk->files[stands_for].lost = true;
        }
        return code;
    }
    if (stands_for == HANDLE_FOLDER) {
        sync_folder(disk, partial);
    } else {
        sync_file(disk, file_of(disk, handle), partial);
    }
    return partial ? -EIO : 0;
}

static int model_rename(void *ctx, int folder, const char *from, const char *to) {
    struct disk *disk = ctx;
    bool partial = false;
    assert(disk->handles[folder] == HANDLE_FOLDER);
    int code = count_call(disk, -EACCES, &partial);
    int file = seen(name_slot(disk, from, false));
    if (code || file < 0) {
        return code ? code : -ENOENT;
    }
    if (!partial || coin(disk)) {
        change(disk, to, file);
        change(disk, from, -1);
    }
    return partial ? -EIO : 0;
}

/* Some file systems cannot. */
static int model_link(void *ctx, int folder, const char *from, const char *to) {
    struct disk *disk = ctx;
    bool partial = false;
    assert(disk->handles[folder] == HANDLE_FOLDER);
    int code = count_call(disk, -EPERM, &partial);
    int file = seen(name_slot(disk, from, false));
    if (code || file < 0) {
        return code ? code : -ENOENT;
    }
    if (disk_find(disk, to) || disk_random(disk, 8) == 0) {
        return disk_find(disk, to) ? -EEXIST : -EPERM;
    }
    if (!partial || coin(disk)) {
        change(disk, to, file);
        disk->links++;
    }
    return partial ? -EIO : 0;
}

static int model_remove(void *ctx, int folder, const char *name) {
    struct disk *disk = ctx;
    bool partial = false;
    assert(disk->handles[folder] == HANDLE_FOLDER);
    int code = count_call(disk, -EACCES, &partial);
    if (code || !disk_find(disk, name)) {
        return code ? code : -ENOENT;
    }
    if (!partial || coin(disk)) {
        change(disk, name, -1);
    }
    return partial ? -EIO : 0;
}

static void model_close(void *ctx, int handle) {
    struct disk *disk = ctx;
    assert(handle >= 0 && handle < DISK_HANDLES_MAX && disk->handles[handle] != HANDLE_FREE);
    disk->handles[handle] = HANDLE_FREE;
}

static int64_t model_now_ms(void *ctx) {
    return ((struct disk *)ctx)->now_ms;
}

static void model_pause(void *ctx, int64_t ms) {
    ((struct disk *)ctx)->now_ms += ms;
}

static int model_draw(void *ctx, uint64_t *out) {
    struct disk *disk = ctx;
    *out = (uint64_t)disk_random(disk, UINT32_MAX) << 32 | disk_random(disk, UINT32_MAX);
    return disk->stopped ? -EIO : 0;
}

struct snapshot_io disk_io(struct disk *disk) {
    return (struct snapshot_io){
        .ctx = disk,
        .direct_bytes = DISK_SECTOR_BYTES,
        .open_folder = model_open_folder,
        .lock_folder = model_lock_folder,
        .unlock_folder = model_unlock_folder,
        .list = model_list,
        .create = model_create,
        .open = model_open,
        .size = model_size,
        .read = model_read,
        .write = model_write,
        .start_sync = model_start_sync,
        .set_direct = model_set_direct,
        .sync = model_sync,
        .rename = model_rename,
        .link = model_link,
        .remove = model_remove,
        .close = model_close,
        .now_ms = model_now_ms,
        .pause = model_pause,
        .draw = model_draw,
    };
}
