/* Beginning and ending MPI, and its threads; see mpi_world.h. */
#include "comm/mpi/mpi_world.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/thread.h"
#include "comm/host/monitor.h"
#include "comm/mpi/mpi_watch.h"

enum {
    LOOK_COST = 4,              /* looks into memory take as long as one look by MPI */
    LOOKS_PER_YIELD = 8,        /* with a core of one's own: MPI moves long data only while it is asked */
    YIELDS_BEFORE_NAPS = 20000, /* some 10 ms: who waits longer is waiting for a slow rank, not for a message */
    YIELD_NS = 2000,            /* longer: another one has run meanwhile */
    SHARED_ENOUGH = 2,
    SHARED_MOST = 4,
    WAITS_PER_TRIAL = 16, /* of which one looks first all the same: perhaps ranks have cores of their own again */
    NAP_NS = 50000,
    GRACE_MS = 500,        /* for a task that is to be given up, and may be about to end */
    FINALIZE_MS = 3600000, /* others may have much to do before they end */
    GONE_MS = 3000,        /* but one that is gone does not come any more */
    DOUBTFUL_MS = 1000 /* nor do others, perhaps, who have failed or are in a call of a group that is not freed here */
};

struct neighbour {
    int32_t pid;
    uint64_t start_time;
    struct neighbour *next;
};

/* MPI is one a process by nature. */
static struct {
    pthread_mutex_t mutex; /* over what follows, while MPI is begun */
    bool has_begun;
    struct mpi_world world;
    pthread_mutex_t turn; /* whose turn it is in MPI */
    _Atomic bool is_broken;
    pid_t pid; /* that has begun it: a child of fork() has nothing to end */
    pthread_mutex_t neighbours_mutex;
    struct neighbour *neighbours;
    _Atomic uint32_t user_count; /* groups that are not freed */
    _Atomic bool has_failed;     /* one of them has */
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER,
             .turn = PTHREAD_MUTEX_INITIALIZER,
             .neighbours_mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- broken ---- */

void mpi_world_break(void) {
    atomic_store_explicit(&process.is_broken, true, memory_order_release);
}

bool mpi_world_is_broken(void) {
    return atomic_load_explicit(&process.is_broken, memory_order_acquire);
}

int mpi_world_fail_broken(void) {
    return status_fail(MUSTER_EUNSUPPORTED, "MPI cannot be used any more in this process, since a call of it was given "
                                            "up: after a failure a rank on the engine 'mpi' can report it, and end");
}

static _Thread_local bool is_apart; /* the thread can be left behind in MPI: mpi_world_run()'s */

/* Whose turn it is may be in a call that never ends, and be left behind in it. false: MPI is broken. */
static bool take_turn(void) {
    const struct timespec nap = {0, NAP_NS};
    while (pthread_mutex_trylock(&process.turn) != 0) {
        if (mpi_world_is_broken()) {
            return false;
        }
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

bool mpi_world_enter(const struct mpi_world *world) {
    if (world->takes_turns && !take_turn()) {
        return false;
    }
    if (!is_apart) {
        mpi_watch_enter(world->takes_turns);
    }
    if (__builtin_expect(mpi_world_is_broken(), 0)) {
        mpi_world_leave(world);
        return false;
    }
    return true;
}

void mpi_world_leave(const struct mpi_world *world) {
    if (!is_apart) {
        mpi_watch_leave(world->takes_turns);
    }
    if (world->takes_turns) {
        (void)pthread_mutex_unlock(&process.turn);
    }
}

/* ---- what blocks ---- */

struct job {
    int (*task)(void *argument);
    void *argument;
    pthread_mutex_t mutex;
    struct comm_bell *bell; /* of who waits; NULL: nobody does any more */
    _Atomic bool is_done;
    int code;
    char detail[MUSTER_DETAIL_MAX];
};

static void *run_job(void *argument) {
    struct job *job = argument;
    is_apart = true;
    job->code = job->task(job->argument);
    (void)str_copy(job->detail, sizeof job->detail, job->code ? muster_detail() : "");
    (void)pthread_mutex_lock(&job->mutex);
    atomic_store_explicit(&job->is_done, true, memory_order_release);
    if (job->bell) {
        comm_bell_ring(job->bell);
    }
    (void)pthread_mutex_unlock(&job->mutex); /* the job is the waiter's to free, if there is one */
    return NULL;
}

static bool is_done(void *argument) {
    return atomic_load_explicit(&((struct job *)argument)->is_done, memory_order_acquire);
}

/* true: it has ended after all. */
static bool leave_behind(struct job *job, pthread_t thread) {
    (void)pthread_mutex_lock(&job->mutex);
    job->bell = NULL;
    bool has_ended = is_done(job);
    (void)pthread_mutex_unlock(&job->mutex);
    if (!has_ended) {
        mpi_world_break();
        (void)pthread_detach(thread);
    }
    return has_ended;
}

/* Another rank may have gone on, and failed, while this one was still at it. What the waiter has said, or 0. */
static int outrun(struct job *job, int code) {
    struct comm_waiter waiter = {.bell = job->bell};
    char detail[MUSTER_DETAIL_MAX];
    const struct muster_failure failure = status_failure();
    (void)str_copy(detail, sizeof detail, muster_detail());
    bool has_ended = comm_wait_asleep(&waiter, is_done, job, clock_deadline_ns(clock_monotonic_ns(), GRACE_MS)) == 0;
    return has_ended ? 0 : status_restore(code, detail, &failure);
}

int mpi_world_run(int (*task)(void *argument), void *argument, struct comm_waiter *waiter, int64_t deadline_ns,
                  bool *out_left_behind) {
    pthread_t thread;
    *out_left_behind = false;
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        return status_fail(MUSTER_ENOMEM, "no memory for a thread that calls MPI");
    }
    *job = (struct job){.task = task, .argument = argument, .bell = waiter->bell};
    (void)pthread_mutex_init(&job->mutex, NULL);
    int error_number = thread_start(&thread, NULL, run_job, job);
    if (error_number) {
        (void)pthread_mutex_destroy(&job->mutex);
        free(job);
        return status_fail_errno(error_number, "start a thread that calls MPI");
    }
    int code = comm_wait_asleep(waiter, is_done, job, deadline_ns);
    code = code ? outrun(job, code) : 0;
    if (code && !leave_behind(job, thread)) {
        *out_left_behind = true;
        return code;
    }
    (void)pthread_join(thread, NULL);
    code = job->code ? status_fail(job->code, "%s", job->detail) : 0;
    (void)pthread_mutex_destroy(&job->mutex);
    free(job);
    return code;
}

void mpi_patience_renew(struct mpi_patience *patience) {
    bool has_looked_enough = patience->looks > 0 && patience->yields == 0;
    *patience = (struct mpi_patience){.waits = patience->waits + 1, .shared = has_looked_enough ? 0 : patience->shared};
}

/* Who waits in vain on a core that others want is probably waiting for one of them. Somebody else's program may want it
 * as well; then the next trial finds that looking is enough. */
static uint32_t looks_before_yields(const struct mpi_patience *patience, const struct comm_waiter *waiter) {
    bool is_shared = patience->shared >= SHARED_ENOUGH && patience->waits % WAITS_PER_TRIAL != 0;
    return is_shared ? 0 : waiter->spin_count / LOOK_COST; /* 0 as well if ranks outnumber the cores */
}

static void give_core_away(struct mpi_patience *patience) {
    int64_t begun_ns = clock_monotonic_ns();
    (void)sched_yield();
    if (patience->yields++ == 0) {
        bool has_run = clock_monotonic_ns() - begun_ns > YIELD_NS;
        patience->shared = !has_run ? 0 : patience->shared < SHARED_MOST ? patience->shared + 1 : SHARED_MOST;
    }
}

bool mpi_patience_wait(struct mpi_patience *patience, const struct comm_waiter *waiter) {
    uint32_t spin_count = looks_before_yields(patience, waiter);
    uint32_t looks = patience->looks++;
    bool yields = looks >= spin_count && (spin_count == 0 || looks % LOOKS_PER_YIELD == 0);
    if (!yields) {
        comm_pause();
    } else if (patience->yields < YIELDS_BEFORE_NAPS) {
        give_core_away(patience);
    } else {
        const struct timespec nap = {0, NAP_NS};
        patience->naps++;
        (void)nanosleep(&nap, NULL);
    }
    return yields;
}

/* ---- the end ---- */

void mpi_world_add_user(void) {
    atomic_fetch_add(&process.user_count, 1);
}

void mpi_world_drop_user(void) {
    atomic_fetch_sub(&process.user_count, 1);
}

void mpi_world_note_failure(void) {
    atomic_store(&process.has_failed, true);
}

static int finalize(void *argument) {
    struct mpi_world *world = argument;
    int error = world->mpi->calls->finalize(world->mpi);
    return error ? mpi_fail(world->mpi, error, "MPI_Finalize") : 0;
}

void mpi_world_note_neighbour(int32_t pid, uint64_t start_time) {
    struct neighbour *neighbour = malloc(sizeof *neighbour);
    if (neighbour) { /* else the end may take longer */
        (void)pthread_mutex_lock(&process.neighbours_mutex);
        *neighbour = (struct neighbour){pid, start_time, process.neighbours};
        process.neighbours = neighbour;
        (void)pthread_mutex_unlock(&process.neighbours_mutex);
    }
}

bool mpi_world_has_lost_neighbour(void) {
    bool is_lost = false;
    (void)pthread_mutex_lock(&process.neighbours_mutex);
    for (const struct neighbour *neighbour = process.neighbours; neighbour && !is_lost; neighbour = neighbour->next) {
        is_lost = !monitor_is_alive(neighbour->pid, neighbour->start_time);
    }
    (void)pthread_mutex_unlock(&process.neighbours_mutex);
    return is_lost;
}

/* Of a waiter; context: since when a neighbour is known to be gone, 0 if none is. One that has finalized is gone as
 * well, but then this process is through in a moment, too. */
static int stop_for_the_gone(void *context) {
    int64_t *gone_ns = context;
    if (*gone_ns == 0 && mpi_world_has_lost_neighbour()) {
        *gone_ns = clock_monotonic_ns();
    }
    return *gone_ns != 0 && clock_monotonic_ns() > *gone_ns + GONE_MS * CLOCK_NS_PER_MS ? MUSTER_EPEER : 0;
}

static void woken(void *context) {
    (void)context;
}

/* When the process ends in good order. A rank that has ended otherwise would keep this one here for ever. */
static void end_mpi(void) {
    bool is_finalized = true;
    const struct mpi *mpi = process.world.mpi;
    if (getpid() != process.pid || mpi_world_is_broken() || mpi->calls->finalized(mpi, &is_finalized) != 0 ||
        is_finalized) {
        return;
    }
    struct comm_bell bell = {0};
    int64_t gone_ns = 0;
    struct comm_waiter waiter = {
        .bell = &bell, .alarm = 1, .stopped = stop_for_the_gone, .woken = woken, .context = &gone_ns};
    bool is_left_behind, is_doubtful = atomic_load(&process.has_failed) || atomic_load(&process.user_count) > 0;
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), is_doubtful ? DOUBTFUL_MS : FINALIZE_MS);
    int code = mpi_world_run(finalize, &process.world, &waiter, deadline_ns, &is_left_behind);
    if (code) {
        log_warning("MPI_Finalize %s",
                    is_left_behind ? "did not return: another rank has not come to it" : muster_detail());
    }
}

/* ---- the beginning ---- */

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

bool mpi_world_is_served(void) {
    static const char *const signs[] = {"PMI_RANK",  "PMI_FD",         "PMI_PORT",
                                        "PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (is_set(signs[i])) {
            return true;
        }
    }
    return false;
}

struct beginning {
    struct mpi_world world;
    bool is_ours;
};

static int ask_place(struct mpi_world *world) {
    const struct mpi *mpi = world->mpi;
    int error = mpi->calls->comm_rank(mpi, mpi->comm_world, &world->rank);
    error = error ? error : mpi->calls->comm_size(mpi, mpi->comm_world, &world->size);
    error = error ? error : mpi->calls->comm_set_errors_return(mpi, mpi->comm_world);
    return error ? mpi_fail(mpi, error, "ask MPI about this process") : 0;
}

static int begin(void *argument) {
    struct beginning *beginning = argument;
    struct mpi_world *world = &beginning->world;
    enum mpi_threads threads = MPI_THREADS_SINGLE;
    int code = mpi_begin(world->mpi, MPI_THREADS_SERIALIZED, &beginning->is_ours);
    if (code) {
        return code;
    }
    int error = world->mpi->calls->query_thread(world->mpi, &threads);
    if (error) {
        return mpi_fail(world->mpi, error, "MPI_Query_thread");
    }
    world->takes_turns = threads < MPI_THREADS_MULTIPLE;
    return ask_place(world);
}

static int begin_now(struct comm_waiter *waiter, int64_t deadline_ns) {
    const struct mpi *mpi = NULL;
    bool has_begun = false, is_left_behind;
    int code = mpi_open(&mpi);
    code = code ? code : mpi_world_is_broken() ? mpi_world_fail_broken() : 0;
    if (code) {
        return code;
    }
    if (mpi->calls->initialized(mpi, &has_begun) == 0 && !has_begun && !mpi_world_is_served()) {
        return status_fail(
            MUSTER_EUNSUPPORTED,
            "MPI would make a world of one of each process, since nobody has told it of the others: start "
            "the ranks with mpirun, with srun --mpi=pmix or --mpi=pmi2, or with muster run --mpi");
    }
    struct beginning *beginning = calloc(1, sizeof *beginning);
    if (!beginning) {
        return status_fail(MUSTER_ENOMEM, "no memory to begin MPI");
    }
    beginning->world.mpi = mpi;
    code = mpi_world_run(begin, beginning, waiter, deadline_ns, &is_left_behind);
    if (is_left_behind) {
        return code;
    }
    if (code == 0) {
        process.world = beginning->world;
        process.has_begun = true;
        process.pid = getpid();
    }
    if (code == 0 && beginning->is_ours) {
        (void)atexit(end_mpi);
    }
    free(beginning);
    return code;
}

int mpi_world_begin(struct comm_waiter *waiter, int64_t deadline_ns, const struct mpi_world **out) {
    (void)pthread_mutex_lock(&process.mutex);
    int code = process.has_begun ? 0 : begin_now(waiter, deadline_ns);
    (void)pthread_mutex_unlock(&process.mutex);
    *out = code ? NULL : &process.world;
    return code;
}

bool mpi_world_has_begun(void) {
    (void)pthread_mutex_lock(&process.mutex);
    bool has_begun = process.has_begun;
    (void)pthread_mutex_unlock(&process.mutex);
    return has_begun;
}

/* ---- sharing a text ---- */

struct sharing {
    const struct mpi_world *world;
    size_t bytes;
    char text[MPI_WORLD_SHARED_MAX];
};

static int share(void *argument) {
    struct sharing *sharing = argument;
    const struct mpi *mpi = sharing->world->mpi;
    if (!mpi_world_enter(sharing->world)) {
        return mpi_world_fail_broken();
    }
    int error = mpi->calls->bcast(mpi, sharing->text, (int64_t)sharing->bytes, mpi->byte, 0, mpi->comm_world);
    mpi_world_leave(sharing->world);
    return error ? mpi_fail(mpi, error, "MPI_Bcast") : 0;
}

int mpi_world_share(const struct mpi_world *world, char *text, size_t bytes, struct comm_waiter *waiter,
                    int64_t deadline_ns) {
    bool is_left_behind;
    struct sharing *sharing = calloc(1, sizeof *sharing);
    assert(bytes <= sizeof sharing->text);
    if (!sharing) {
        return status_fail(MUSTER_ENOMEM, "no memory to share %zu bytes", bytes);
    }
    sharing->world = world;
    sharing->bytes = bytes;
    memcpy(sharing->text, text, bytes);
    int code = mpi_world_run(share, sharing, waiter, deadline_ns, &is_left_behind);
    if (is_left_behind) {
        return code;
    }
    memcpy(text, sharing->text, bytes);
    free(sharing);
    return code;
}
