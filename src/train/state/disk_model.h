/* A disk in memory, for tests of snapshots: a snapshot_io that can stop the program at any call and lose power.
 *
 * It keeps what the program sees (the page cache) apart from what is on the disk, and is as unkind as POSIX allows.
 * After a loss of power each unsynced sector of a file is there, or not, or holds garbage. The size is any between the
 * old and the new. Each name in the folder is in any of the states that it had since the folder was last synced,
 * independently of all other names. All choices come from one seed. */
#ifndef TRAIN_DISK_MODEL_H
#define TRAIN_DISK_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/state/snapshot_io.h"

enum {
    DISK_FILE_BYTES_MAX = 4096,
    DISK_SECTOR_BYTES = 32, /* small, so that small files tear */
    DISK_FILES_MAX = 256,
    DISK_NAMES_MAX = 256,
    DISK_PAST_MAX = 32, /* changes of one name between syncs of the folder */
    DISK_HANDLES_MAX = 16,
};

struct disk_file {
    uint8_t seen[DISK_FILE_BYTES_MAX]; /* by the program */
    uint8_t kept[DISK_FILE_BYTES_MAX]; /* on the disk */
    size_t seen_bytes;
    size_t kept_bytes;
    bool is_direct;
    bool lost; /* a sync failed: the kernel has forgotten what was not written, later syncs do nothing */
};

struct disk_name {
    char text[80];
    int past[DISK_PAST_MAX]; /* files it stood for since the last sync, -1 none; the first is on the disk */
    size_t past_count;       /* the last of them is what the program sees */
    int64_t seen_from_ms;    /* opening and listing see nothing of it before */
};

/* What happens at the call number `at` of those that change something (1 is the first; 0: nothing happens). */
enum disk_trouble {
    DISK_STOP,         /* the program ends in the middle of this call: all later ones do nothing */
    DISK_FAIL,         /* this call fails */
    DISK_FAIL_FOREVER, /* this call and all later ones fail */
};

struct disk {
    uint64_t random;
    struct disk_file files[DISK_FILES_MAX];
    int file_count;
    struct disk_name names[DISK_NAMES_MAX];
    int name_count;
    int handles[DISK_HANDLES_MAX]; /* file, HANDLE_FOLDER or HANDLE_FREE */
    unsigned calls;                /* that change something, since disk_start() */
    unsigned at;
    enum disk_trouble trouble;
    bool stopped;
    bool troubled; /* `at` was reached */
    /* A clock that runs in pauses alone. Changes of names are seen up to delay_ms late, as those of another host on a
     * network file system. */
    int64_t now_ms;
    int32_t delay_ms; /* 0: at once */
    /* Faults of the disk itself, to show that the test sees them. */
    bool ignores_file_sync;
    bool ignores_folder_sync;
    unsigned direct_writes; /* past the page cache */
    unsigned links;         /* second names */
    bool was_misaligned;    /* one of them was not of whole sectors */
};

/* An empty disk. */
void disk_init(struct disk *disk, uint64_t seed);
/* A program starts: no handles are open. Trouble comes at call `at`. */
void disk_start(struct disk *disk, unsigned at, enum disk_trouble trouble);
/* Power is lost and comes back: what is seen is now what was kept. */
void disk_lose_power(struct disk *disk);

/* The calls, for this disk. */
struct snapshot_io disk_io(struct disk *disk);

/* The file of this name as the program sees it, or NULL. */
struct disk_file *disk_find(struct disk *disk, const char *name);
int disk_open_handles(const struct disk *disk);
/* How many names are seen that end like this. */
int disk_count(const struct disk *disk, const char *suffix);

/* A number below `limit` (> 0) from the disk's seed. */
uint32_t disk_random(struct disk *disk, uint32_t limit);

#endif
