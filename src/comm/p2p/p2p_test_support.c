/* Ranks as processes or threads for tests of messages; see p2p_test_support.h. */
#include "comm/p2p/p2p_test_support.h"

#include <assert.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/status.h>

#include "base/clock.h"
#include "comm/host/unwatched_test_support.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/wire.h"

struct shared_rank {
    struct comm_bell bell;
    _Atomic uint32_t contact_len; /* 0: not there yet */
    uint8_t contact[P2P_CONTACT_BYTES_MAX];
    _Atomic int32_t pid;
};

struct job_shared {
    struct shared_rank ranks[JOB_RANKS_MAX];
    _Atomic uint32_t marks[JOB_MARKS_MAX];
    _Atomic int64_t mark_times_ns[JOB_MARKS_MAX];
    struct job_options options;
    uint32_t hosts[JOB_RANKS_MAX];
    uint32_t size;
    _Alignas(64) uint8_t memory[]; /* per host: rings, node */
};

struct worker {
    struct job *job;
    struct job_rank rank;
    pid_t pid;
    pthread_t thread;
    int result;
    bool is_over;
};

struct job {
    struct job_shared *shared;
    size_t shared_bytes;
    job_body *body;
    void *argument;
    struct worker workers[JOB_RANKS_MAX];
};

_Noreturn void job_failed(const char *file, int line, const char *condition) {
    (void)fprintf(stderr, "%s:%d: not so in process %d: %s (%s)\n", file, line, (int)getpid(), condition,
                  muster_detail());
    (void)fflush(stderr);
    _exit(99);
}

bool job_same_bits(const void *a, const void *b, size_t bytes) {
    return memcmp(a, b, bytes) == 0;
}

int64_t job_deadline(void) {
    return clock_monotonic_ns() + JOB_DEADLINE_MS * CLOCK_NS_PER_MS;
}

/* ---- marks ---- */

void job_mark(struct job_shared *job, uint32_t mark) {
    atomic_store(&job->mark_times_ns[mark], clock_monotonic_ns());
    (void)atomic_fetch_add(&job->marks[mark], 1);
}

void job_await(struct job_shared *job, uint32_t mark, uint32_t count) {
    int64_t deadline = job_deadline();
    while (atomic_load(&job->marks[mark]) < count) {
        job_check(clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
    }
}

struct job_shared *job_shared(struct job *job) {
    return job->shared;
}

int64_t job_mark_time_ns(struct job_shared *job, uint32_t mark) {
    return atomic_load(&job->mark_times_ns[mark]);
}

const uint8_t *job_contact(struct job_shared *job, uint32_t rank, size_t *out_len) {
    int64_t deadline = job_deadline();
    while (atomic_load(&job->ranks[rank].contact_len) == 0) {
        job_check(clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
    }
    *out_len = atomic_load(&job->ranks[rank].contact_len);
    return job->ranks[rank].contact;
}

uint16_t job_port(struct job_shared *job, uint32_t rank) {
    struct wire_contact contact;
    size_t len;
    const uint8_t *bytes = job_contact(job, rank, &len);
    job_check(wire_contact_decode(bytes, len, &contact) == 0);
    return contact.port;
}

/* ---- messages ---- */

struct p2p_envelope job_envelope(uint32_t peer, uint64_t tag) {
    return (struct p2p_envelope){
        .group = 7, .lane = P2P_MESSAGES, .peer = peer, .tag = tag, .fingerprint = MUSTER_UINT8};
}

void job_post_send(struct job_rank *rank, struct p2p_request *request, struct p2p_envelope to, const void *buffer,
                   size_t bytes) {
    job_check(p2p_send(rank->p2p, request, &to, buffer, bytes, job_deadline()) == 0);
}

void job_post_receive(struct job_rank *rank, struct p2p_request *request, struct p2p_envelope from, void *buffer,
                      size_t bytes) {
    job_check(p2p_receive(rank->p2p, request, &from, buffer, bytes, job_deadline()) == 0);
}

size_t job_moved(struct job_rank *rank, const struct p2p_request *request) {
    p2p_lock(rank->p2p);
    size_t moved = request->moved;
    p2p_unlock(rank->p2p);
    return moved;
}

int job_wait_for(struct job_rank *rank, struct p2p_request *request) {
    return p2p_wait(rank->p2p, &rank->waiter, &request, 1, job_deadline());
}

int job_send(struct job_rank *rank, struct p2p_envelope to, const void *buffer, size_t bytes) {
    struct p2p_request request;
    int code = p2p_send(rank->p2p, &request, &to, buffer, bytes, job_deadline());
    return code ? code : job_wait_for(rank, &request);
}

int job_receive(struct job_rank *rank, struct p2p_envelope from, void *buffer, size_t bytes) {
    struct p2p_request request;
    int code = p2p_receive(rank->p2p, &request, &from, buffer, bytes, job_deadline());
    return code ? code : job_wait_for(rank, &request);
}

UNWATCHED static uint8_t filling(size_t at, uint32_t place) {
    return (uint8_t)(at < sizeof place ? place >> 8 * at : (at * 2654435761U + place * 40503U) >> 11);
}

UNWATCHED static void fill_chunk(uint8_t *chunk, size_t from, size_t count, uint32_t place) {
    for (size_t i = 0; i < count; i++) {
        chunk[i] = filling(from + i, place);
    }
}

void job_fill(uint8_t *bytes, size_t count, uint32_t place) {
    uint8_t chunk[UNWATCHED_CHUNK];
    for (size_t at = 0, some; at < count; at += some) {
        some = unwatched_chunk(at, count);
        fill_chunk(chunk, at, some, place);
        memcpy(bytes + at, chunk, some);
    }
}

bool job_is_filled(const uint8_t *bytes, size_t count, uint32_t place) {
    uint8_t chunk[UNWATCHED_CHUNK];
    for (size_t at = 0, some; at < count; at += some) {
        some = unwatched_chunk(at, count);
        fill_chunk(chunk, at, some, place);
        if (memcmp(bytes + at, chunk, some) != 0) {
            return false;
        }
    }
    return true;
}

/* ---- a rank ---- */

static int get_contact(void *context, uint32_t peer, int64_t deadline_ns, uint8_t out[P2P_CONTACT_BYTES_MAX],
                       size_t *out_len) {
    struct job_rank *rank = context;
    (void)deadline_ns;
    memcpy(out, job_contact(rank->job, peer, out_len), P2P_CONTACT_BYTES_MAX);
    return 0;
}

static void take_notice(void *context, const struct p2p_notice *notice) {
    struct job_rank *rank = context;
    uint32_t at = atomic_load(&rank->notice_count);
    if (at < JOB_NOTICES_MAX) {
        rank->notices[at] = *notice;
        atomic_store(&rank->notice_count, at + 1);
    }
    atomic_store(&rank->waiter.alarm, 1);
    comm_bell_ring(rank->waiter.bell);
}

static int no_reason_to_stop(void *context) {
    (void)context;
    return 0;
}

static void *attend(void *argument) {
    struct job_rank *rank = argument;
    struct pollfd fds[2] = {{.fd = p2p_descriptor(rank->p2p), .events = POLLIN},
                            {.fd = rank->wake[0], .events = POLLIN}};
    for (;;) {
        (void)poll(fds, 2, -1);
        if (fds[1].revents) {
            return NULL;
        }
        p2p_attend(rank->p2p);
    }
}

static size_t rings_bytes(const struct job_options *options) {
    return options->ranks_per_host == 0 ? 0 : (p2p_rings_bytes(options->ranks_per_host) + 63) / 64 * 64;
}

static size_t host_bytes(const struct job_options *options) {
    size_t node = options->has_nodes ? (node_segment_bytes(options->ranks_per_host) + 63) / 64 * 64 : 0;
    return rings_bytes(options) + node;
}

/* Nothing is booked in it: differences are found by what members publish alone. */
static const struct call_line no_calls;

static void make_node(struct job_rank *rank, uint8_t *segment, const struct p2p_neighbour *neighbours, uint32_t count,
                      uint32_t local) {
    struct node_member members[JOB_RANKS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        members[i] =
            (struct node_member){.local = i, .pid = neighbours[i].pid, .bell = neighbours[i].bell, .line = &no_calls};
    }
    const struct node_config config = {.segment = segment,
                                       .size = count,
                                       .index = local,
                                       .members = members,
                                       .waiter = &rank->waiter,
                                       .may_read_peers = rank->job->options.may_read_peers};
    job_check(node_create(&config, &rank->node) == 0);
}

static void rank_begin(struct job_rank *rank) {
    struct job_shared *job = rank->job;
    const struct job_options *options = &job->options;
    struct shared_rank *mine = &job->ranks[rank->rank];
    struct p2p_neighbour neighbours[JOB_RANKS_MAX];
    struct p2p_config config = {.rank = rank->rank,
                                .size = rank->size,
                                .bell = &mine->bell,
                                .may_read_peers = options->may_read_peers,
                                .stream_count = options->stream_count,
                                .lost_after_ms = options->lost_after_ms,
                                .path_lost_after_ms = options->path_lost_after_ms,
                                .plans = options->plans,
                                .plan_count = options->plan_count,
                                .contact = get_contact,
                                .notice = take_notice,
                                .context = rank};
    int32_t pids[JOB_RANKS_MAX];
    if (options->prepare) {
        options->prepare(rank);
    }
    atomic_store(&mine->pid, (int32_t)getpid());
    for (uint32_t i = 0; i < rank->size; i++) { /* everybody is there before anybody rings */
        int64_t deadline = job_deadline();
        while ((pids[i] = atomic_load(&job->ranks[i].pid)) == 0) {
            job_check(clock_monotonic_ns() < deadline);
            (void)poll(NULL, 0, 1);
        }
    }
    memcpy(rank->hosts, job->hosts, sizeof rank->hosts);
    uint32_t host = rank->hosts[rank->rank];
    uint8_t *memory = job->memory + host * host_bytes(options);
    for (uint32_t peer = 0; options->ranks_per_host > 0 && peer < rank->size; peer++) {
        if (rank->hosts[peer] == host) {
            config.local = peer == rank->rank ? config.neighbour_count : config.local;
            neighbours[config.neighbour_count++] =
                (struct p2p_neighbour){.peer = peer, .pid = pids[peer], .bell = &job->ranks[peer].bell};
        }
    }
    config.neighbours = neighbours;
    config.rings = options->ranks_per_host > 0 ? memory : NULL;
    rank->waiter.bell = &mine->bell;
    rank->waiter.stopped = no_reason_to_stop;
    comm_waiter_tune(&rank->waiter, pids, rank->size);
    config.zero_copy = options->zero_copy;
    job_check(options->zero_copy.bytes_min > 0 || p2p_zero_copy_from_env(&config.zero_copy) == 0);
    struct tls_files files; /* as the test was started: with_tls_test_support.c */
    job_check(tls_files_from_env(&files) == 0);
    if (files.certificate) {
        job_check(tls_create(&files, &rank->tls) == 0);
        config.tls = rank->tls;
    }
    job_check(p2p_create(&config, &rank->p2p) == 0);
    if (options->has_nodes) {
        make_node(rank, memory + rings_bytes(options), neighbours, config.neighbour_count, config.local);
    }
    job_check(pipe(rank->wake) == 0);
    job_check(pthread_create(&rank->attendant, NULL, attend, rank) == 0);
    atomic_store(&mine->contact_len, (uint32_t)p2p_contact(rank->p2p, mine->contact));
}

static void rank_end(struct job_rank *rank) {
    job_check(write(rank->wake[1], "", 1) == 1);
    job_check(pthread_join(rank->attendant, NULL) == 0);
    (void)close(rank->wake[0]);
    (void)close(rank->wake[1]);
    node_free(rank->node);
    p2p_free(rank->p2p);
    tls_free(rank->tls);
}

static int run_rank(struct worker *worker) {
    rank_begin(&worker->rank);
    int result = worker->job->body(&worker->rank, worker->job->argument);
    if (!worker->job->shared->options.leave_silently) {
        rank_end(&worker->rank);
    }
    return result;
}

static void *run_thread(void *argument) {
    struct worker *worker = argument;
    worker->result = run_rank(worker);
    return NULL;
}

/* ---- the test's side ---- */

static void start_worker(struct job *job, uint32_t index, uint32_t size) {
    struct worker *worker = &job->workers[index];
    worker->job = job;
    worker->rank = (struct job_rank){.rank = index, .size = size, .job = job->shared};
    if (job->shared->options.as_threads) {
        job_check(pthread_create(&worker->thread, NULL, run_thread, worker) == 0);
        return;
    }
    pid_t parent = getpid();
    worker->pid = fork();
    job_check(worker->pid >= 0);
    if (worker->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(98);
        }
        (void)alarm(JOB_ALARM_S);
        _exit(run_rank(worker));
    }
}

struct job *job_start(uint32_t size, job_body *body, void *argument, const struct job_options *options) {
    static const struct job_options none;
    options = options ? options : &none;
    job_check(size > 0 && size <= JOB_RANKS_MAX);
    struct job *job = calloc(1, sizeof *job);
    job_check(job != NULL);
    job->body = body;
    job->argument = argument;
    job->shared_bytes = sizeof *job->shared + JOB_RANKS_MAX * host_bytes(options);
    job->shared =
        mmap(NULL, job->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    job_check(job->shared != MAP_FAILED);
    job->shared->options = *options;
    job->shared->size = size;
    for (uint32_t i = 0; i < size; i++) {
        job->shared->hosts[i] = options->host_of              ? options->host_of[i]
                                : options->ranks_per_host > 0 ? i / options->ranks_per_host
                                                              : i;
    }
    for (uint32_t i = 0; i < size; i++) {
        start_worker(job, i, size);
    }
    return job;
}

void job_kill(struct job *job, uint32_t rank) {
    job_check(kill(job->workers[rank].pid, SIGKILL) == 0);
}

pid_t job_pid(const struct job *job, uint32_t rank) {
    return job->workers[rank].pid;
}

int job_wait(struct job *job, uint32_t rank) {
    struct worker *worker = &job->workers[rank];
    if (worker->is_over) {
        return worker->result;
    }
    worker->is_over = true;
    if (job->shared->options.as_threads) {
        job_check(pthread_join(worker->thread, NULL) == 0);
        return worker->result;
    }
    int status;
    job_check(waitpid(worker->pid, &status, 0) == worker->pid);
    worker->result = WIFEXITED(status) ? WEXITSTATUS(status) : -1000 - WTERMSIG(status);
    return worker->result;
}

void job_free(struct job *job) {
    for (uint32_t i = 0; i < job->shared->size; i++) {
        if (!job->workers[i].is_over && !job->shared->options.as_threads) {
            (void)kill(job->workers[i].pid, SIGKILL);
        }
        (void)job_wait(job, i);
    }
    (void)munmap(job->shared, job->shared_bytes);
    free(job);
}

void job_run(uint32_t size, job_body *body, void *argument, const struct job_options *options) {
    struct job *job = job_start(size, body, argument, options);
    for (uint32_t i = 0; i < size; i++) {
        int result = job_wait(job, i);
        if (result != 0) {
            (void)fprintf(stderr, "rank %u of %u ended with %d\n", i, size, result);
            job_failed(__FILE__, __LINE__, "every rank ends with 0");
        }
    }
    job_free(job);
}
