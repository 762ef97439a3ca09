/* Communicators of the double of NCCL: what their ranks share, how they are made and end, and the worker of those that
 * do not block. See nccl_double_test_support.h. */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/nccl/nccl_double_parts_test_support.h"

struct faults double_faults = {.variable = "MUSTER_DOUBLE_NCCL"};
_Atomic unsigned double_live;

unsigned double_number_of(const char *variable, unsigned otherwise) {
    const char *value = getenv(variable);
    return value && *value ? (unsigned)strtoul(value, NULL, 10) : otherwise;
}

_Noreturn void double_die(const char *why) {
    (void)fprintf(stderr, "the double of NCCL: %s\n", why);
    abort();
}

void *double_zeroed(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) {
        double_die("no memory");
    }
    return memory;
}

void world_announce(struct world *world) {
    atomic_fetch_add(&world->news, 1);
    (void)syscall(SYS_futex, &world->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void place_make(struct place *out) {
    static _Atomic uint64_t count;
    int fd = memfd_create("nccl-double", MFD_CLOEXEC); /* open as long as the process is: who comes late may look */
    uint64_t cookie = (uint64_t)getpid() << 32 | (atomic_fetch_add(&count, 1) + 1);
    if (fd < 0 || ftruncate(fd, (off_t)sizeof(struct world)) != 0 ||
        pwrite(fd, &cookie, sizeof cookie, 0) != (ssize_t)sizeof cookie) {
        double_die("no memory for a world");
    }
    *out = (struct place){getpid(), fd, cookie};
}

/* Of another process, or of this one. NULL: it is gone. */
static void *map_of(int32_t pid, int32_t fd, size_t bytes, int protection) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    void *memory = own >= 0 ? mmap(NULL, bytes, protection, MAP_SHARED | MAP_NORESERVE, own, 0) : MAP_FAILED;
    if (own >= 0) {
        (void)close(own);
    }
    return memory == MAP_FAILED ? NULL : memory; /* NOLINT(performance-no-int-to-ptr) */
}

static __thread char last_error[128];

const char *double_last_error(void) {
    return last_error;
}

unsigned double_refuse(unsigned result, const char *why) {
    (void)snprintf(last_error, sizeof last_error, "the double says: %s", why);
    return result;
}

void comm_release(struct ncclComm *comm) {
    if (atomic_fetch_sub(&comm->users, 1) == 1) {
        for (uint32_t i = 0; i < comm->size; i++) {
            if (comm->contents[i]) {
                (void)munmap((void *)(uintptr_t)comm->contents[i], comm->world->members[i].bytes);
            }
        }
        if (comm->world) {
            (void)munmap(comm->world, sizeof *comm->world);
        }
        (void)pthread_mutex_destroy(&comm->mutex);
        (void)pthread_cond_destroy(&comm->changed);
        free(comm);
    }
}

void comm_fail(struct ncclComm *comm, unsigned error) {
    unsigned none = 0;
    (void)atomic_compare_exchange_strong(&comm->error, &none, error);
}

static bool is_gone(int32_t pid) {
    char path[64], state = 'X';
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file) {
        state = fscanf(file, "%*d (%*[^)]) %c", &state) == 1 ? state : 'X'; /* NOLINT(cert-err34-c) */
        (void)fclose(file);
    }
    return state == 'X' || state == 'Z';
}

static bool somebody_is_gone(const struct ncclComm *comm) {
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct member *member = &comm->world->members[i];
        if (i != comm->rank && !comm->is_left_out[i] &&
            (atomic_load(&member->left) || (atomic_load(&member->joined) && is_gone(member->pid)))) {
            return true;
        }
    }
    return false;
}

bool comm_await(struct ncclComm *comm, bool (*ready)(struct ncclComm *comm, void *argument), void *argument) {
    bool notices = double_number_of("MUSTER_DOUBLE_NCCL_NOTICE", 0) != 0;
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    for (;;) {
        uint32_t seen = atomic_load(&comm->world->news);
        if (atomic_load(&comm->is_aborted) || atomic_load(&comm->is_stopped) ||
            (comm->parent && atomic_load(&comm->parent->is_aborted))) {
            return false;
        }
        if (ready(comm, argument)) {
            return true;
        }
        if (notices && somebody_is_gone(comm)) {
            comm_fail(comm, NCCL_REMOTE_ERROR);
        }
        (void)syscall(SYS_futex, &comm->world->news, FUTEX_WAIT, seen, &pause, NULL, 0);
    }
}

bool comm_never(struct ncclComm *comm, void *argument) {
    (void)comm, (void)argument;
    return false;
}

/* ---- the worker of a communicator that does not block ---- */

static void lag(void) {
    fault_pause_us(double_number_of("MUSTER_DOUBLE_NCCL_LAG_US", 200));
}

static void *worker_run(void *argument) {
    struct ncclComm *comm = argument;
    pthread_mutex_lock(&comm->mutex);
    while (comm->tasks || !comm->is_closing) {
        struct task *task = comm->tasks;
        if (!task) {
            pthread_cond_wait(&comm->changed, &comm->mutex);
            continue;
        }
        comm->tasks = task->next;
        pthread_mutex_unlock(&comm->mutex);
        lag();
        task->run(comm, task->argument);
        free(task);
        pthread_mutex_lock(&comm->mutex);
        comm->is_busy = comm->tasks != NULL;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->mutex);
    return NULL;
}

unsigned comm_do(struct ncclComm *comm, void (*run)(struct ncclComm *comm, void *argument), void *argument) {
    if (comm->is_blocking) {
        run(comm, argument);
        return atomic_load(&comm->error);
    }
    struct task *task = double_zeroed(sizeof *task);
    *task = (struct task){.run = run, .argument = argument};
    pthread_mutex_lock(&comm->mutex);
    struct task **last = &comm->tasks;
    while (*last) {
        last = &(*last)->next;
    }
    *last = task;
    comm->is_busy = true;
    if (!comm->has_worker && pthread_create(&comm->worker, NULL, worker_run, comm) != 0) {
        double_die("no thread");
    }
    comm->has_worker = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->mutex);
    return NCCL_IN_PROGRESS;
}

unsigned comm_state(struct ncclComm *comm) {
    pthread_mutex_lock(&comm->mutex);
    bool is_busy = comm->is_busy;
    pthread_mutex_unlock(&comm->mutex);
    unsigned error = is_busy && comm->is_revoked ? NCCL_OK : atomic_load(&comm->error); /* soon forgotten */
    return error ? error : is_busy ? NCCL_IN_PROGRESS : NCCL_OK;
}

static void worker_end(struct ncclComm *comm) {
    if (comm->has_worker) {
        pthread_mutex_lock(&comm->mutex);
        comm->is_closing = true;
        pthread_cond_broadcast(&comm->changed);
        pthread_mutex_unlock(&comm->mutex);
        (void)pthread_join(comm->worker, NULL);
    }
}

/* ---- making communicators ---- */

/* argument: the step. */
static bool all_joined(struct ncclComm *comm, void *argument) {
    const uint32_t *step = argument;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (atomic_load(&comm->world->members[i].joined) < *step) {
            return false;
        }
    }
    return true;
}

/* true: all have taken that step. */
static bool join_step(struct ncclComm *comm, uint32_t step) {
    atomic_store(&comm->world->members[comm->rank].joined, step);
    world_announce(comm->world);
    return comm_await(comm, all_joined, &step);
}

static void comm_join(struct ncclComm *comm) {
    struct world *world = map_of(comm->place.pid, comm->place.fd, sizeof *world, PROT_READ | PROT_WRITE);
    if (!world || world->cookie != comm->place.cookie) {
        comm_fail(comm, NCCL_SYSTEM_ERROR);
        return;
    }
    pthread_mutex_lock(&comm->mutex); /* abort() looks for it */
    comm->world = world;
    pthread_mutex_unlock(&comm->mutex);
    struct member *own = &world->members[comm->rank];
    unsigned long long base = 0;
    size_t bytes = 0;
    own->fd = cuda_double_arena(&base, &bytes);
    own->pid = getpid();
    own->base = base;
    own->bytes = bytes;
    if (!join_step(comm, HAS_COME)) {
        return;
    }
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct member *member = &world->members[i];
        comm->contents[i] = map_of(member->pid, member->fd, member->bytes, PROT_READ);
        if (!comm->contents[i]) {
            comm_fail(comm, NCCL_REMOTE_ERROR);
        }
    }
    (void)join_step(comm, HAS_MAPPED); /* from now on each may end: nobody needs its descriptors any more */
}

static void join_task(struct ncclComm *comm, void *argument) {
    (void)argument;
    comm_join(comm);
}

struct ncclComm *comm_new(bool is_blocking) {
    static _Atomic uint64_t last_id;
    struct ncclComm *comm = double_zeroed(sizeof *comm);
    (void)pthread_mutex_init(&comm->mutex, NULL);
    (void)pthread_cond_init(&comm->changed, NULL);
    comm->id = atomic_fetch_add(&last_id, 1) + 1;
    comm->is_blocking = is_blocking;
    atomic_store(&comm->users, 1);
    atomic_fetch_add(&double_live, 1);
    return comm;
}

unsigned comm_init(struct ncclComm **out, int size, const struct nccl_id *id, int rank, bool is_blocking) {
    int pid = 0, fd = 0;
    unsigned long long cookie = 0;
    if (sscanf(id->bytes, "double %d %d %llu", &pid, &fd, &cookie) != 3) { /* NOLINT(cert-err34-c) */
        return double_refuse(NCCL_INVALID_ARGUMENT, "this is no id of its");
    }
    if (size < 1 || size > MEMBERS_MAX || rank < 0 || rank >= size) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "no such rank");
    }
    struct ncclComm *comm = *out = comm_new(is_blocking);
    comm->place = (struct place){pid, fd, cookie};
    comm->rank = (uint32_t)rank;
    comm->size = (uint32_t)size;
    return comm_do(comm, join_task, NULL);
}

/* ---- communicators from others ---- */

static bool all_wished(struct ncclComm *parent, void *argument) {
    const struct derivation *d = argument;
    for (uint32_t i = 0; i < parent->size; i++) {
        if (!d->is_excluded[i] && atomic_load(&parent->world->members[i].wished) < d->number) {
            return false;
        }
    }
    return true;
}

static bool is_placed(struct ncclComm *parent, void *argument) {
    const struct derivation *d = argument;
    return atomic_load(&parent->world->members[d->leader].placed) >= d->number;
}

/* By key, then by rank of the parent: this rank's number, the number of all, and who is first. */
static void derive_ranks(const struct ncclComm *parent, struct derivation *d, struct ncclComm *comm) {
    int least = INT_MAX;
    for (uint32_t i = parent->size; i-- > 0;) {
        const struct member *member = &parent->world->members[i];
        int color = member->wishes[d->number % 2].color, key = member->wishes[d->number % 2].key;
        if (d->is_excluded[i] || color != d->color) {
            continue;
        }
        comm->size++;
        comm->rank += key < d->key || (key == d->key && i < parent->rank) ? 1 : 0;
        if (key <= least) {
            least = key;
            d->leader = i;
        }
    }
}

/* All tell what they want. */
static bool wish(struct ncclComm *parent, struct derivation *d) {
    struct member *own = &parent->world->members[parent->rank];
    if (d->fault.kind == FAULT_FAIL) {
        comm_fail(parent, d->fault.value);
    }
    if (d->fault.kind != FAULT_NONE) {
        return d->fault.kind == FAULT_STICK && comm_await(parent, comm_never, NULL);
    }
    own->wishes[d->number % 2].color = d->color;
    own->wishes[d->number % 2].key = d->key;
    atomic_store(&own->wished, d->number);
    world_announce(parent->world);
    return comm_await(parent, all_wished, d);
}

static bool derive(struct ncclComm *parent, struct derivation *d, struct ncclComm *comm) {
    struct member *own = &parent->world->members[parent->rank];
    derive_ranks(parent, d, comm);
    if (comm->rank == 0) {
        place_make(&own->places[d->number % 2]);
        atomic_store(&own->placed, d->number);
        world_announce(parent->world);
    }
    if (!comm_await(parent, is_placed, d)) {
        return false;
    }
    comm->place = parent->world->members[d->leader].places[d->number % 2];
    comm_join(comm);
    return comm_state(comm) == NCCL_OK;
}

/* Also one that could not be made is the program's to abort. */
static void derive_task(struct ncclComm *parent, void *argument) {
    struct derivation *d = argument;
    struct ncclComm *comm = d->color >= 0 ? comm_new(d->is_blocking) : NULL;
    if (comm) {
        comm->parent = parent;
    }
    if (!wish(parent, d) || (comm && !derive(parent, d, comm)) || atomic_load(&parent->is_aborted)) {
        comm_fail(parent, NCCL_INTERNAL_ERROR);
        if (comm) {
            comm_fail(comm, NCCL_INTERNAL_ERROR);
        }
    }
    if (comm) {
        comm->parent = NULL;
        __atomic_store_n(d->out, comm, __ATOMIC_RELEASE);
    }
    free(d);
}

unsigned comm_derive(struct ncclComm *parent, const struct derivation *wanted, struct ncclComm **out) {
    unsigned state = comm_state(parent);
    if (state != NCCL_OK) {
        return state == NCCL_IN_PROGRESS ? double_refuse(NCCL_INVALID_ARGUMENT, "the last call has not got through yet")
                                         : double_refuse(state, "the communicator has failed before");
    }
    struct derivation *d = double_zeroed(sizeof *d);
    *d = *wanted;
    d->number = ++parent->splits;
    d->out = out;
    memcpy(parent->is_left_out, d->is_excluded, sizeof parent->is_left_out);
    *out = NULL;
    return comm_do(parent, derive_task, d);
}

/* ---- stopping ---- */

void comm_await_quiet(struct ncclComm *comm) {
    pthread_mutex_lock(&comm->mutex);
    while (atomic_load(&comm->pending) > 0 && !atomic_load(&comm->is_aborted)) {
        pthread_cond_wait(&comm->changed, &comm->mutex);
    }
    pthread_mutex_unlock(&comm->mutex);
}

void comm_stop(struct ncclComm *comm) {
    atomic_store(&comm->is_stopped, true);
    world_announce(comm->world);
    comm_await_quiet(comm);
    atomic_store(&comm->is_stopped, false);
}

/* What has failed before is forgotten. */
static void revoke_task(struct ncclComm *comm, void *argument) {
    (void)argument;
    comm_stop(comm);
    atomic_store(&comm->error, NCCL_OK);
}

unsigned comm_revoke(struct ncclComm *comm) {
    if (comm->is_revoked) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "it has been revoked before");
    }
    comm->is_revoked = true;
    atomic_store(&comm->is_stopped, true);
    return comm_do(comm, revoke_task, NULL);
}

/* ---- the end ---- */

void comm_end(struct ncclComm *comm) {
    pthread_mutex_lock(&comm->mutex);
    struct world *world = comm->world;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->mutex);
    if (world) {
        atomic_store(&world->members[comm->rank].left, 1);
        world_announce(world);
    }
    worker_end(comm);
    atomic_fetch_sub(&double_live, 1);
    comm_release(comm);
}
