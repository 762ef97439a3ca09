/* Crews of members; see node_test_support.h. */
#include "comm/node/node_test_support.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/status.h"

enum { MARKS = 64, PATIENCE_S = 300 };

/* In memory that all members map. */
struct crew_shared {
    struct comm_bell bells[CREW_MAX];
    _Atomic int32_t pids[CREW_MAX];
    _Atomic uint64_t marks[MARKS];
    _Atomic uint32_t alarm, has_failed;
    struct call_line lines[CREW_MAX];
    char failure[CREW_TEXT_BYTES];
};

struct crew {
    struct crew_shared *shared;
    size_t bytes;
    void *segment, *directory;
    uint32_t size;
    struct crew_options options;
    crew_function *function;
    void *argument;
    pid_t pids[CREW_MAX];
    pthread_t threads[CREW_MAX];
    int results[CREW_MAX];
    bool has_ended[CREW_MAX];
    struct start {
        struct crew *crew;
        uint32_t index;
    } starts[CREW_MAX];
};

_Noreturn static void die(const char *what) {
    (void)fprintf(stderr, "crew: %s: %s\n", what, muster_detail());
    abort();
}

/* The alarm is one for all members, so each call of idle() passes it on to the waiter. */
static bool pass_alarm(void *context) {
    struct crew_member *member = context;
    return atomic_load_explicit(&member->crew->shared->alarm, memory_order_acquire) &&
           atomic_exchange_explicit(&member->waiter.alarm, 1, memory_order_acq_rel) == 0;
}

static int stopped(void *context) {
    const struct crew_member *member = context;
    if (atomic_load_explicit(&member->crew->shared->alarm, memory_order_acquire)) {
        return status_fail(MUSTER_EPEER, "a member is gone");
    }
    return 0;
}

static int run_member(struct crew *crew, uint32_t index) {
    struct crew_member member = {.index = index, .size = crew->size, .crew = crew, .argument = crew->argument};
    struct node_member members[CREW_MAX];
    int32_t pids[CREW_MAX];
    atomic_store(&crew->shared->pids[index], (int32_t)getpid());
    for (uint32_t i = 0; i < crew->size; i++) {
        while ((pids[i] = atomic_load(&crew->shared->pids[i])) == 0) {
            (void)sched_yield();
        }
        members[i] = (struct node_member){
            .local = i, .pid = pids[i], .bell = &crew->shared->bells[i], .line = &crew->shared->lines[i]};
    }
    member.line = &crew->shared->lines[index];
    member.waiter.bell = &crew->shared->bells[index];
    member.waiter.idle = pass_alarm;
    member.waiter.stopped = stopped;
    member.waiter.context = &member;
    comm_waiter_tune(&member.waiter, pids, crew->size);
    if (memory_create(crew->directory, index, pids, crew->size, &member.memory) != 0) {
        die("memory_create");
    }
    const struct node_config config = {.segment = crew->segment,
                                       .size = crew->size,
                                       .index = index,
                                       .members = members,
                                       .waiter = &member.waiter,
                                       .memory = member.memory,
                                       .choice = crew->options.choice,
                                       .may_read_peers = !crew->options.no_peer_reads};
    if (node_create(&config, &member.node) != 0) {
        die("node_create");
    }
    int result = crew->function(&member);
    node_free(member.node);
    memory_free(member.memory);
    return result;
}

int crew_call(struct crew_member *member, const struct comm_call *call, int64_t deadline_ns) {
    struct comm_call prepared = *call;
    comm_call_prepare(&prepared, member->size);
    call_line_begin(member->line, ++member->number, prepared.fingerprint, 0);
    int status = node_run(member->node, &prepared, member->number, deadline_ns);
    if (status == 0) {
        call_line_finish(member->line, member->number);
    }
    return status;
}

const struct call_line *crew_line(const struct crew *crew, uint32_t member) {
    return &crew->shared->lines[member];
}

static void *run_thread(void *argument) {
    struct start *start = argument;
    start->crew->results[start->index] = run_member(start->crew, start->index);
    return NULL;
}

struct crew *crew_start(uint32_t size, crew_function *function, void *argument, const struct crew_options *options) {
    struct crew *crew = calloc(1, sizeof *crew);
    size_t shared_bytes = (sizeof *crew->shared + 4095) / 4096 * 4096;
    size_t directory_bytes = memory_directory_bytes(size);
    if (!crew || size < 1 || size > CREW_MAX) {
        die("crew_start");
    }
    crew->bytes = shared_bytes + directory_bytes + node_segment_bytes(size);
    char *memory = mmap(NULL, crew->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        die("mmap");
    }
    crew->shared = (struct crew_shared *)(void *)memory;
    crew->directory = memory + shared_bytes;
    crew->segment = memory + shared_bytes + directory_bytes;
    crew->size = size;
    crew->options = options ? *options : (struct crew_options){0};
    crew->function = function;
    crew->argument = argument;
    (void)fflush(NULL);
    for (uint32_t i = 0; i < size; i++) {
        crew->starts[i] = (struct start){.crew = crew, .index = i};
        if (crew->options.threads) {
            if (pthread_create(&crew->threads[i], NULL, run_thread, &crew->starts[i]) != 0) {
                die("pthread_create");
            }
        } else if ((crew->pids[i] = fork()) == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            (void)alarm(PATIENCE_S);
            _exit(run_member(crew, i));
        } else if (crew->pids[i] < 0) {
            die("fork");
        }
    }
    return crew;
}

void crew_await_end(struct crew *crew, uint32_t member) {
    int status = 0;
    if (!crew->has_ended[member]) {
        while (waitpid(crew->pids[member], &status, 0) < 0 && errno == EINTR) {
        }
        crew->results[member] = WIFEXITED(status) ? WEXITSTATUS(status) : -1000 - WTERMSIG(status);
        crew->has_ended[member] = true;
    }
}

void crew_wait(struct crew *crew, int *results) {
    for (uint32_t i = 0; i < crew->size; i++) {
        if (crew->options.threads) {
            (void)pthread_join(crew->threads[i], NULL);
        } else {
            crew_await_end(crew, i);
        }
        results[i] = crew->results[i];
    }
}

pid_t crew_pid(const struct crew *crew, uint32_t member) {
    return crew->pids[member];
}

void crew_mark(struct crew *crew, uint32_t which, uint64_t value) {
    atomic_store_explicit(&crew->shared->marks[which], value, memory_order_release);
}

uint64_t crew_marked(const struct crew *crew, uint32_t which) {
    return atomic_load_explicit(&crew->shared->marks[which], memory_order_acquire);
}

void crew_await_mark(struct crew *crew, uint32_t which, uint64_t at_least) {
    while (crew_marked(crew, which) < at_least) {
        (void)sched_yield();
    }
}

void crew_raise_alarm(struct crew *crew) {
    atomic_store_explicit(&crew->shared->alarm, 1, memory_order_release);
    for (uint32_t i = 0; i < crew->size; i++) {
        comm_bell_ring(&crew->shared->bells[i]);
    }
}

int crew_fail(struct crew_member *member, const char *format, ...) {
    struct crew_shared *shared = member->crew->shared;
    if (atomic_exchange(&shared->has_failed, 1) == 0) {
        char text[CREW_TEXT_BYTES / 2];
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        (void)snprintf(shared->failure, sizeof shared->failure, "member %u of %u: %s [%.300s]", member->index,
                       member->size, text, muster_detail());
    }
    crew_raise_alarm(member->crew);
    return 1;
}

const char *crew_failure(const struct crew *crew) {
    return crew->shared->failure;
}

void crew_free(struct crew *crew) {
    (void)munmap(crew->shared, crew->bytes);
    free(crew);
}
