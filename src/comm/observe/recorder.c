/* Where the recorder's memory lies; see recorder.h.
 *
 * A process has one launcher and one error file, so it has one recorder: this file's state is per process. */
#include "comm/observe/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian");
_Static_assert(sizeof(struct recorder_entry) == CALL_RECORD_ENTRY_BYTES, "layout of the file");
_Static_assert(offsetof(struct recorder, entries) == CALL_RECORD_HEADER_BYTES, "layout of the file");
_Static_assert(sizeof(struct recorder_group) == CALL_RECORD_GROUP_BYTES, "layout of the file");
_Static_assert(sizeof(struct recorder) == CALL_RECORD_FILE_BYTES, "layout of the file");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct recorder *current;
static uint32_t user_count;
static uint32_t named_count;
static pid_t owner;
/* Where calls go when there is no memory at all. */
static struct recorder nowhere;

/* A file of its full size, whose blocks are there: a full disk must not become a SIGBUS. */
static struct recorder *map_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0644);
    if (fd < 0) {
        return NULL;
    }
    void *memory = MAP_FAILED;
    if (posix_fallocate(fd, 0, sizeof(struct recorder)) == 0) {
        memory = mmap(NULL, sizeof(struct recorder), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    (void)close(fd);
    if (memory == MAP_FAILED) {
        (void)unlink(path);
        return NULL;
    }
    return memory;
}

static struct recorder *map_memory(void) {
    void *memory = mmap(NULL, sizeof(struct recorder), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* The launcher's error file is that of the process that it started, not of children that inherit the variable: they
 * find the file's recorder taken by a process that lives. */
static struct recorder *make(void) {
    const char *error_file = getenv("TORCHELASTIC_ERROR_FILE");
    char path[4096];
    struct recorder *made = NULL;
    bool is_child = owner != 0 && owner != getpid();
    if (error_file && *error_file && !is_child && str_format(path, sizeof path, "%s" CALL_RECORD_SUFFIX, error_file)) {
        made = map_file(path);
    }
    made = made ? made : map_memory();
    return made ? made : &nowhere;
}

static void write_header(struct recorder *recorder, uint32_t rank, uint32_t world_size) {
    recorder->version = CALL_RECORD_VERSION;
    recorder->entry_count = CALL_RECORD_ENTRIES;
    recorder->entry_bytes = CALL_RECORD_ENTRY_BYTES;
    recorder->header_bytes = CALL_RECORD_HEADER_BYTES;
    recorder->pid = (int32_t)getpid();
    recorder->rank = rank;
    recorder->world_size = world_size;
    recorder->group_count = CALL_RECORD_GROUPS;
    recorder->realtime_us = clock_realtime_us();
    recorder->monotonic_ns = clock_monotonic_ns();
    (void)gethostname(recorder->host, sizeof recorder->host - 1);
    memcpy(recorder->magic, CALL_RECORD_MAGIC, sizeof recorder->magic); /* last: now it is a recorder's file */
}

struct recorder *recorder_acquire(uint32_t rank, uint32_t world_size) {
    pthread_mutex_lock(&mutex);
    if (user_count == 0 || owner != getpid()) { /* a forked child's counts are its parent's */
        current = make();
        user_count = named_count = 0;
        owner = getpid();
        write_header(current, rank, world_size);
    }
    user_count++;
    struct recorder *recorder = current;
    pthread_mutex_unlock(&mutex);
    return recorder;
}

static struct recorder_group *find_group(struct recorder *recorder, uint32_t id) {
    for (uint32_t i = 0; i < named_count && i < CALL_RECORD_GROUPS; i++) {
        if (recorder->groups[i].id == id) {
            return &recorder->groups[i];
        }
    }
    return NULL;
}

/* The oldest name makes room, but for the root group's (id 0), which is used as long as there are groups. */
static struct recorder_group *next_place(struct recorder *recorder) {
    bool is_full = named_count >= CALL_RECORD_GROUPS;
    uint32_t place = named_count++ % CALL_RECORD_GROUPS;
    if (is_full && recorder->groups[place].id == 0) {
        place = named_count++ % CALL_RECORD_GROUPS;
    }
    return &recorder->groups[place];
}

/* Nobody is to read half of a text: while one changes, its place has no state. */
static void hide(struct recorder_group *group) {
    atomic_store(&group->state, CALL_RECORD_UNNAMED);
    atomic_signal_fence(memory_order_release); /* the compiler, as in recorder_begin() */
}

static void note_engine(struct recorder *recorder, struct recorder_group *group, const char *engine) {
    char text[CALL_RECORD_ENGINE_BYTES], *kept = recorder->engines[group - recorder->groups];
    (void)str_format(text, sizeof text, "%s", engine);
    if (strcmp(kept, text) != 0) {
        hide(group);
        (void)str_copy(kept, CALL_RECORD_ENGINE_BYTES, text);
    }
}

void recorder_name_group(struct recorder *recorder, uint32_t id, const char *name, const char *engine) {
    pthread_mutex_lock(&mutex);
    struct recorder_group *group = find_group(recorder, id);
    uint32_t state = CALL_RECORD_NAMED;
    if (group) {
        bool is_same = strncmp(group->name, name, sizeof group->name) == 0;
        state = is_same ? atomic_load(&group->state) : CALL_RECORD_AMBIGUOUS;
    } else {
        group = next_place(recorder);
        hide(group);
        group->id = id;
        (void)str_copy(group->name, sizeof group->name, name);
    }
    note_engine(recorder, group, engine);
    atomic_store(&group->state, state);
    pthread_mutex_unlock(&mutex);
}

void recorder_release(struct recorder *recorder) {
    pthread_mutex_lock(&mutex);
    if (recorder == current && --user_count == 0) {
        current = NULL;
        owner = 0;
        if (recorder != &nowhere) {
            (void)munmap(recorder, sizeof *recorder); /* the file stays: it tells how the process ended */
        }
    }
    pthread_mutex_unlock(&mutex);
}
