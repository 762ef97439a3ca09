/* The table of the engine on MPI; see engine_mpi.h. */
#include "comm/mpi/engine_mpi.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/host/memory.h"
#include "comm/mpi/messages_mpi.h"
#include "comm/mpi/mpi_call.h"
#include "comm/mpi/mpi_operations.h"
#include "comm/mpi/mpi_watch.h"
#include "comm/mpi/mpi_world.h"

/* Elements of one call of MPI, where a call can be cut: MPI before version 4 counts in an int. */
#define PIECE_MAX ((size_t)1 << 30)
enum {
    LOOKS_PER_CLOCK = 64,
    LOOKS_PER_MESSAGES = 16, /* of others, which move only while somebody waits */
    TAG_MAX = 32767          /* that every MPI has */
};

struct engine_mpi {
    struct engine base;
    struct engine_mpi_config config;
    const struct call_line **lines; /* the config's, owned */
    const struct mpi_world *world;  /* NULL until connected */
    bool is_user;                   /* counted by it */
    struct mpi_call_place place;
    struct messages_mpi *messages;
    /* The call under way. */
    struct mpi_call call;
    uint64_t number;
    bool is_comparing; /* the request is that of the comparison */
    int64_t prints[2]; /* the fingerprint, and its complement: their minima over all ranks */
    struct mpi_patience patience;
    const char *last_name; /* of MPI's call in the last one of the group; static */
    struct engine_mpi *next_kept;
};

static inline struct engine_mpi *own_of(struct engine *engine) {
    return (struct engine_mpi *)(void *)engine;
}

/* ---- connecting ---- */

/* In a thread of its own, which may be left behind: it has copies of what it needs. */
struct connecting {
    const struct mpi_world *world;
    int *ranks;
    uint32_t size;
    int tag;
    mpi_handle comm;
};

static int make_communicator(void *argument) {
    struct connecting *c = argument;
    const struct mpi *mpi = c->world->mpi;
    if (!mpi_world_enter(c->world)) {
        return mpi_world_fail_broken();
    }
    int error = mpi->calls->comm_create_group(mpi, mpi->comm_world, c->ranks, (int)c->size, c->tag, &c->comm);
    const char *what = "MPI_Comm_create_group";
    if (!error) {
        what = "MPI_Comm_set_errhandler";
        error = mpi->calls->comm_set_errors_return(mpi, c->comm);
    }
    int code = error ? mpi_fail(mpi, error, what) : mpi_operations_make(mpi);
    mpi_world_leave(c->world);
    return code;
}

static void free_connecting(struct connecting *c) {
    if (c) {
        free(c->ranks);
    }
    free(c);
}

static struct connecting *prepare(const struct engine_mpi *own) {
    struct connecting *c = calloc(1, sizeof *c);
    int *ranks = calloc(own->config.size, sizeof *ranks);
    if (!c || !ranks) {
        free(ranks);
        free(c);
        (void)status_fail(MUSTER_ENOMEM, "no memory for a communicator of %u ranks", own->config.size);
        return NULL;
    }
    for (uint32_t rank = 0; rank < own->config.size; rank++) {
        ranks[rank] = (int)own->config.peers[rank];
    }
    /* Members that make several groups at the same time, in several threads, are told apart by it. */
    int tag = (int)((own->config.group >> 16) * 31 + own->config.group) & TAG_MAX;
    *c = (struct connecting){.world = own->world, .ranks = ranks, .size = own->config.size, .tag = tag};
    return c;
}

/* Does MPI know the same processes, by the same numbers? */
static int check_world(const struct engine_mpi *own) {
    const struct mpi_world *world = own->world;
    if ((uint32_t)world->size != own->config.root_size) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "%s has a world of %d process%s, the job one of %u ranks: all ranks must be started by one "
                           "mpirun or srun that fits this MPI, or by muster run --mpi",
                           world->mpi->version, world->size, world->size == 1 ? "" : "es", own->config.root_size);
    }
    return (uint32_t)world->rank == own->config.root_rank
               ? 0
               : status_fail(MUSTER_EUNSUPPORTED,
                             "%s numbers this process %d, the job %u: RANK must be the rank in MPI_COMM_WORLD",
                             world->mpi->version, world->rank, own->config.root_rank);
}

static int make_comm(struct engine_mpi *own, int64_t deadline_ns) {
    bool is_left_behind;
    struct connecting *c = prepare(own);
    if (!c) {
        return MUSTER_ENOMEM;
    }
    int code = mpi_world_run(make_communicator, c, own->config.waiter, deadline_ns, &is_left_behind);
    if (is_left_behind) {
        return code;
    }
    if (code == 0) {
        mpi_world_add_user();
        own->is_user = true;
    }
    own->place = (struct mpi_call_place){.mpi = own->world->mpi,
                                         .comm = c->comm,
                                         .rank = own->config.rank,
                                         .size = own->config.size,
                                         .piece_max = PIECE_MAX};
    free_connecting(c);
    return code;
}

static int open_messages(struct engine_mpi *own) {
    const struct messages_mpi_config config = {.world = own->world,
                                               .comm = own->place.comm,
                                               .waiter = own->config.message_waiter,
                                               .name = own->config.name,
                                               .rank = own->config.rank,
                                               .size = own->config.size,
                                               .peers = own->config.peers,
                                               .host_name = own->config.host_name,
                                               .context = own->config.context};
    return messages_mpi_create(&config, &own->messages);
}

static int connect(struct engine *engine, int64_t deadline_ns) {
    struct engine_mpi *own = own_of(engine);
    bool is_root = own->config.size == own->config.root_size;
    int code = is_root || mpi_world_has_begun()
                   ? mpi_world_begin(own->config.waiter, deadline_ns, &own->world)
                   : status_fail(MUSTER_EUNSUPPORTED,
                                 "the engine 'mpi' must be that of the root group first: all ranks begin MPI together");
    code = code ? code : check_world(own);
    code = code ? code : make_comm(own, deadline_ns);
    return code ? code : open_messages(own);
}

/* ---- calls ---- */

static int fail_call(const struct engine_mpi *own, int error) {
    const char *what = own->last_name;
    enum mpi_error class = own->place.mpi->calls->error_class(own->place.mpi, error);
    int code = mpi_fail(own->place.mpi, error, what);
    return class == MPI_ERROR_TRUNCATED
               ? status_fail(MUSTER_EMISMATCH, "%s: another rank's counts are not this rank's", what)
               : code;
}

/* After a failure a request may be under way still, here or elsewhere: MPI is not to touch its buffers. */
static int give_up(int code) {
    mpi_world_break();
    return code;
}

/* The least of ~x is the complement of the greatest x: both minima together say whether all are equal. */
static int begin_comparing(struct engine_mpi *own) {
    const struct mpi *mpi = own->place.mpi;
    const struct mpi_operation least = mpi_operation_of(mpi, MUSTER_INT64, MUSTER_OP_MIN);
    own->prints[0] = (int64_t)own->call.call->fingerprint;
    own->prints[1] = ~own->prints[0];
    own->is_comparing = true;
    return mpi->calls->iallreduce(mpi, mpi->in_place, own->prints, 2, mpi->types[MUSTER_INT64], least.handle,
                                  own->place.comm, &own->call.request);
}

static int begin(struct engine_mpi *own, bool compares) {
    int code = 0;
    if (!mpi_world_enter(own->world)) {
        return mpi_world_fail_broken();
    }
    int error = compares ? begin_comparing(own) : mpi_call_start(&own->place, &own->call, &code);
    mpi_world_leave(own->world);
    return error ? give_up(fail_call(own, error)) : code ? give_up(code) : 0;
}

/* Has a neighbour begun this call with another fingerprint? Its line is there before its part of MPI's call is. One
 * that has not begun it may do so now, and one that is far ahead may put another call in its place: asked before and
 * after. */
static bool is_mismatched(const struct engine_mpi *own) {
    return call_line_is_mismatched(own->config.own_line, own->lines, own->config.line_count, own->number);
}

static int fail_mismatched(void) {
    return status_fail(MUSTER_EMISMATCH, "another rank has made another call");
}

static int fail_compared(const struct engine_mpi *own, uint64_t least, uint64_t most) {
    char first[128], second[128];
    (void)comm_fingerprint_format(least, first, sizeof first);
    (void)comm_fingerprint_format(most, second, sizeof second);
    return status_fail(MUSTER_EMISMATCH, "ranks of group '%s' have made different calls: %s, and %s%s",
                       own->config.name, first, second, comm_fingerprints_remark(least, most));
}

static int end_comparing(struct engine_mpi *own) {
    uint64_t least = (uint64_t)own->prints[0], most = (uint64_t)~own->prints[1];
    own->is_comparing = false;
    if (least != most) {
        return fail_compared(own, least, most);
    }
    int code = begin(own, false);
    return code ? code : ENGINE_UNDER_WAY;
}

/* A piece has ended. */
static int go_on(struct engine_mpi *own) {
    if (!mpi_call_advance(&own->place, &own->call)) {
        int code = begin(own, false);
        return code ? code : ENGINE_UNDER_WAY;
    }
    mpi_call_done(&own->call);
    return is_mismatched(own) ? fail_mismatched() : ENGINE_DONE;
}

static int look(struct engine_mpi *own) {
    bool is_done = false;
    if (!mpi_world_enter(own->world)) {
        return mpi_world_fail_broken();
    }
    int error = own->place.mpi->calls->test(own->place.mpi, &own->call.request, &is_done, NULL);
    mpi_world_leave(own->world);
    return error               ? give_up(fail_call(own, error))
           : !is_done          ? ENGINE_UNDER_WAY
           : own->is_comparing ? end_comparing(own)
                               : go_on(own);
}

static int start(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    struct engine_mpi *own = own_of(engine);
    (void)deadline_ns;
    own->call = (struct mpi_call){.call = call};
    own->number = number;
    own->last_name = mpi_call_name(call);
    mpi_patience_renew(&own->patience);
    own->is_comparing = false;
    int code = begin(own, own->config.compares_calls);
    return code ? code : look(own);
}

static int test(struct engine *engine, int64_t patience_ns) {
    struct engine_mpi *own = own_of(engine);
    const struct comm_waiter *waiter = own->config.waiter;
    int64_t until_ns = clock_monotonic_ns() + patience_ns;
    for (uint32_t looks = 1;; looks++) {
        int code = look(own);
        if (code != ENGINE_UNDER_WAY) {
            return code;
        }
        if (looks % LOOKS_PER_MESSAGES == 0) {
            messages_mpi_progress_all();
        }
        bool asks = mpi_patience_wait(&own->patience, waiter) || looks % LOOKS_PER_CLOCK == 0;
        if (asks && is_mismatched(own)) { /* which MPI may wait in for ever */
            return give_up(fail_mismatched());
        }
        if (asks && clock_monotonic_ns() >= until_ns) {
            return ENGINE_UNDER_WAY;
        }
    }
}

/* Do all live, so that a rank is only missed since it has freed the group? Of other hosts this process cannot know. */
static bool all_live(const struct engine_mpi *own) {
    return own->config.line_count == own->config.size && !mpi_world_has_lost_neighbour();
}

/* MPI would wait for a rank that is gone: in the next call, or when it ends. */
static void group_failed(struct engine *engine, int code) {
    mpi_world_note_failure();
    if (code == MUSTER_EPEER && !all_live(own_of(engine))) {
        mpi_world_break();
    }
}

static void member_died(struct engine *engine, const char *death) {
    (void)engine;
    mpi_watch_begin(death);
}

static void abort_call(struct engine *engine) {
    (void)engine;
    mpi_world_break();
}

/* ---- memory, questions ---- */

static int allocate(struct engine *engine, size_t bytes, void **out) {
    return memory_allocate(own_of(engine)->config.memory, bytes, out);
}

static void release(struct engine *engine, void *memory) {
    memory_release(own_of(engine)->config.memory, memory);
}

static const char *algorithm(const struct engine *engine) {
    return ((const struct engine_mpi *)(const void *)engine)->last_name;
}

/* ---- messages ---- */

static int post(struct engine *engine, struct comm_message *message, int64_t deadline_ns) {
    (void)deadline_ns;
    return messages_mpi_post(own_of(engine)->messages, message);
}

static int await(struct engine *engine, struct comm_message *const *messages, size_t count, int64_t deadline_ns) {
    return messages_mpi_wait(own_of(engine)->messages, messages, count, deadline_ns);
}

static int let_go(struct engine *engine, struct comm_message *message) {
    return messages_mpi_let_go(own_of(engine)->messages, message);
}

static void let_go_all(struct engine *engine) {
    messages_mpi_let_go_all(own_of(engine)->messages);
}

static void progress(struct engine *engine) {
    messages_mpi_progress(own_of(engine)->messages);
}

static void peer_left(struct engine *engine, uint32_t rank) {
    messages_mpi_peer_left(own_of(engine)->messages, rank);
}

static const struct engine_messages mpi_messages = {
    .post = post,
    .wait = await,
    .let_go = let_go,
    .let_go_all = let_go_all,
    .forget = messages_mpi_forget,
    .has_ended = messages_mpi_has_ended,
    .progress = progress,
    .needs_progress = true,
    .peer_left = peer_left,
};

/* ---- life ---- */

/* Engines whose memory MPI may still use: those of calls that were given up. They stay until the process ends. */
static _Atomic(struct engine_mpi *) kept;

static void keep(struct engine_mpi *own) {
    own->next_kept = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &own->next_kept, own)) {
    }
}

static void free_engine(struct engine *engine) {
    struct engine_mpi *own = own_of(engine);
    bool is_connected = own->world && own->place.comm;
    messages_mpi_free(own->messages);
    own->messages = NULL;
    if (own->is_user) {
        mpi_world_drop_user();
    }
    if (is_connected && mpi_world_enter(own->world)) {
        (void)own->place.mpi->calls->comm_free(own->place.mpi, &own->place.comm);
        mpi_world_leave(own->world);
    }
    if (mpi_world_is_broken() && own->call.request) {
        keep(own);
        return;
    }
    mpi_call_done(&own->call);
    free(own->lines);
    free(own);
}

static const struct engine_table mpi_table = {
    .name = "mpi",
    .connect = connect,
    .start = start,
    .test = test,
    .abort = abort_call,
    .member_died = member_died,
    .group_failed = group_failed,
    .allocate = allocate,
    .release = release,
    .algorithm = algorithm,
    .needs_news_of_hosts = true,
    .messages = &mpi_messages,
    .free = free_engine,
};

int engine_mpi_create(const struct engine_mpi_config *config, struct engine **out) {
    struct engine_mpi *own = calloc(1, sizeof *own);
    const struct call_line **lines = calloc(config->line_count + 1, sizeof *lines);
    if (!own || !lines) {
        free(lines);
        free(own);
        return status_fail(MUSTER_ENOMEM, "no memory for a group");
    }
    own->base.table = &mpi_table;
    own->config = *config;
    memcpy(lines, config->lines, config->line_count * sizeof *lines);
    own->lines = lines;
    own->config.lines = lines;
    *out = &own->base;
    return 0;
}
