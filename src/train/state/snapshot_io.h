/* The system calls of saving and loading snapshots, as a table: the one place where a test can stand in for the disk
 * (disk_model.h), fail any call, and stop the program between any two.
 *
 * Folders and files are handles >= 0 of the table's own making. Calls give 0, a handle or a count on success and
 * -errno on failure; names are single names in the folder. */
#ifndef TRAIN_SNAPSHOT_IO_H
#define TRAIN_SNAPSHOT_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Told each name of a folder; a result other than 0 ends the listing, which then gives it. */
typedef int snapshot_name_fn(void *each_ctx, const char *name);

struct snapshot_io {
    void *ctx;
    size_t direct_bytes; /* a power of two: see set_direct() */
    /* make: create it, durably, if it is missing. */
    int (*open_folder)(void *ctx, const char *path, bool make);
    /* -EWOULDBLOCK: another process has it. 0 also where there are no locks. Ends with the process, if not before. */
    int (*lock_folder)(void *ctx, int folder);
    void (*unlock_folder)(void *ctx, int folder);
    int (*list)(void *ctx, int folder, snapshot_name_fn *each, void *each_ctx);
    /* For writing; -EEXIST when the name is taken. */
    int (*create)(void *ctx, int folder, const char *name);
    /* For reading; -EINVAL for what is no regular file. */
    int (*open)(void *ctx, int folder, const char *name);
    int64_t (*size)(void *ctx, int file);
    /* May read or write less than asked; reading gives 0 at the end of the file. `write` appends. */
    int64_t (*read)(void *ctx, int file, void *bytes, size_t count, uint64_t offset);
    int64_t (*write)(void *ctx, int file, const void *bytes, size_t count);
    /* Begins to bring these bytes to the disk, and does not wait: a hint, so that the disk works while the next ones
     * are written. */
    void (*start_sync)(void *ctx, int file, uint64_t offset, uint64_t count);
    /* From now on bytes that are written go past the page cache, or again through it. Memory, place in the file and
     * count are multiples of direct_bytes then. -errno: this file system cannot; a write may say so, too, by -EINVAL.
     */
    int (*set_direct)(void *ctx, int file, bool is_direct);
    /* All bytes of a file, or all names of a folder, are on the disk when it succeeds. When it fails, nobody knows
     * which are, and a second try would say nothing about them. */
    int (*sync)(void *ctx, int handle);
    int (*rename)(void *ctx, int folder, const char *from, const char *to);
    /* Another name for a file. -EEXIST: it is taken; other failures also where the file system has no such thing. */
    int (*link)(void *ctx, int folder, const char *from, const char *to);
    int (*remove)(void *ctx, int folder, const char *name);
    void (*close)(void *ctx, int handle);
    /* A clock, and a pause: for files that come into sight some time after another host has written them. */
    int64_t (*now_ms)(void *ctx);
    void (*pause)(void *ctx, int64_t ms);
    /* A random number, other than any that was ever drawn; -errno. */
    int (*draw)(void *ctx, uint64_t *out);
};

/* The operating system. */
extern const struct snapshot_io snapshot_io_system;

#endif
