/* What the failure loops torture in place of a worker: ranks that make a group, use it in every way, and free it.
 *
 *   group_victim SIZE RANK [hosts|file]
 *
 * This process becomes RANK of SIZE, the others are its children; with FAIL_DEPTH=main nothing fails but in this one.
 * `hosts`: every rank counts as a host of its own, so that all goes over TCP. `file`: the ranks meet in a file of
 * TMPDIR instead of a store that rank 0 serves. Ends with status 0 if all went well and every sum was right, with 1
 * and a sentence if a call failed, in both cases when all have ended; by abort() if a sum is wrong, a failure has no
 * sentence, a call in the group lasted until its time-out, or another rank has crashed. */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The time-out: where a rank that cannot make the group is noticed by nothing else, a run takes so long. In a group
 * that all have made nobody waits for it, so it may be longer than a busy machine ever takes for a call. */
enum { SIZE_MAX_RANKS = 4, COUNT_LARGE = 1 << 18, TIMEOUT_MS = 5000, MADE_TIMEOUT_MS = 120000 };

/* Shared by all ranks: how many have made the group, and how many could not. */
static struct { _Atomic uint32_t made, given_up; } * counts;

struct victim {
    uint32_t size, rank;
    bool hosts;
    const char *path; /* of the file in which the ranks meet, or NULL */
    int port_pipe[2]; /* rank 0 tells the others where it serves the store */
    pid_t children[SIZE_MAX_RANKS];
};

/* The verdict on a call that failed, or on a result that is wrong (code 0). In a group that all have made nobody waits
 * for a rank that gave up: it says so. */
static int judge(struct muster_group *group, const char *what, int code) {
    const char *detail = code == MUSTER_OK ? "wrong result" : muster_detail();
    (void)fprintf(stderr, "%s: %d: %s\n", what, code, detail);
    if (code == MUSTER_OK || detail[0] == '\0' ||
        (code == MUSTER_ETIMEOUT && group && counts->made >= muster_group_size(group))) {
        abort();
    }
    muster_group_abort(group, "another call has failed");
    return 1;
}

static int sum(struct muster_group *group, float *buffer, size_t count, bool with_handle) {
    struct muster_work *work = NULL;
    uint32_t size = muster_group_size(group);
    for (size_t i = 0; i < count; i++) {
        buffer[i] = (float)(i % 1000) + (float)muster_group_rank(group);
    }
    int code =
        muster_all_reduce(group, buffer, buffer, count, MUSTER_FLOAT32, MUSTER_OP_SUM, with_handle ? &work : NULL);
    code = code == MUSTER_OK && with_handle ? muster_work_wait(&work) : code;
    if (code) {
        return judge(group, "all_reduce", code);
    }
    for (size_t i = 0; i < count; i++) {
        if (buffer[i] != (float)(size * (i % 1000)) + (float)(size * (size - 1)) / 2) {
            return judge(group, "all_reduce", MUSTER_OK);
        }
    }
    return 0;
}

/* Round the ring. */
static int pass_on(struct muster_group *group) {
    uint32_t self = muster_group_rank(group), size = muster_group_size(group), from = (self + size - 1) % size;
    int32_t mine = (int32_t)self, theirs = -1;
    struct muster_work *work = NULL;
    int code = muster_receive(group, &theirs, 1, MUSTER_INT32, from, 7, NULL, &work);
    if (code == MUSTER_OK) {
        code = muster_send(group, &mine, 1, MUSTER_INT32, (self + 1) % size, 7, NULL);
        int result = code ? judge(group, "send", code) : 0, received = muster_work_wait(&work);
        if (result) {
            return result;
        }
        code = received;
    }
    return code || theirs != (int32_t)from ? judge(group, "receive", code) : 0;
}

static int use_shared(struct muster_group *group) {
    void *memory = NULL;
    int code = muster_alloc(group, COUNT_LARGE * sizeof(float), &memory);
    if (code) {
        return judge(group, "alloc", code);
    }
    int result = sum(group, memory, COUNT_LARGE, false);
    muster_free(group, memory);
    return result;
}

static int use_halves(struct muster_group *group) {
    static float buffer[8];
    struct muster_group *half = NULL;
    int code = muster_group_split(group, (int32_t)(muster_group_rank(group) % 2), 0, NULL, &half);
    if (code) {
        return judge(group, "split", code);
    }
    int result = sum(half, buffer, 8, false);
    muster_group_free(half);
    return result;
}

/* Until it is known whether all have made the group. */
static int be_patient(struct muster_group *group) {
    for (int ms = 0; counts->made + counts->given_up < muster_group_size(group) && ms < TIMEOUT_MS; ms++) {
        (void)poll(NULL, 0, 1);
    }
    int code = counts->made < muster_group_size(group) ? 0 : muster_group_set_timeout(group, MADE_TIMEOUT_MS);
    return code ? judge(group, "set_timeout", code) : 0;
}

static int use_group(struct muster_group *group) {
    static float large[COUNT_LARGE];
    int result = be_patient(group);
    result = result ? result : sum(group, large, 4, false);
    result = result ? result : sum(group, large, COUNT_LARGE, true);
    result = result || muster_group_size(group) == 1 ? result : pass_on(group);
    result = result ? result : use_shared(group);
    result = result ? result : use_halves(group);
    if (result == 0) {
        int code = muster_barrier(group, NULL);
        result = code ? judge(group, "barrier", code) : 0;
    }
    return result;
}

static int meet_in_store(struct victim *v, const struct muster_group_options *options, struct muster_store **store,
                         struct muster_group **group) {
    struct muster_store_options where = MUSTER_STORE_OPTIONS_INIT;
    where.is_host = v->rank == 0;
    where.host = where.bind_host = "127.0.0.1";
    where.timeout_ms = TIMEOUT_MS;
    uint16_t port = 0;
    if (v->rank != 0 && read(v->port_pipe[0], &where.port, sizeof port) != (ssize_t)sizeof port) {
        _exit(0); /* rank 0 serves no store, and says why */
    }
    int code = muster_store_open_tcp(&where, store);
    if (code) {
        return code;
    }
    port = muster_store_port(*store);
    for (uint32_t i = 1; v->rank == 0 && i < v->size; i++) {
        if (write(v->port_pipe[1], &port, sizeof port) != (ssize_t)sizeof port) {
            (void)fprintf(stderr, "cannot tell the port of the store\n");
            exit(1);
        }
    }
    return muster_group_create_store(*store, v->rank, v->size, options, group);
}

static int be_rank(struct victim *v) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    struct muster_store *store = NULL;
    struct muster_group *group = NULL;
    if (v->hosts) {
        char host[16];
        (void)snprintf(host, sizeof host, "host-%u", v->rank);
        (void)setenv("MUSTER_HOST_ID", host, 1);
    }
    int code = v->path ? muster_group_create_file(v->path, v->rank, v->size, &options, &group)
                       : meet_in_store(v, &options, &store, &group);
    *(code == MUSTER_OK ? &counts->made : &counts->given_up) += 1;
    int result = code ? judge(NULL, "make a group", code) : use_group(group);
    muster_group_free(group);
    muster_store_close(store);
    return result;
}

static void start_others(struct victim *v) {
    for (uint32_t rank = 0; rank < v->size; rank++) {
        pid_t pid = rank == v->rank ? 0 : fork();
        if (pid < 0) {
            perror("fork");
            exit(1);
        }
        v->children[rank] = pid;
        if (pid == 0 && rank != v->rank) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            v->rank = rank;
            (void)close(v->port_pipe[rank == 0 ? 0 : 1]);
            (void)be_rank(v);
            _exit(0); /* what becomes of the others is not judged, but that they end */
        }
    }
    (void)close(v->port_pipe[v->rank == 0 ? 0 : 1]);
}

/* Those who wait for a rank that could not make the group may learn it at the time-out only, and are ended here; in a
 * group that all have made they must notice. */
static void wait_for_others(const struct victim *v) {
    bool all_made = counts->made == v->size;
    for (uint32_t rank = 0; rank < v->size; rank++) {
        int status = 0;
        if (rank == v->rank) {
            continue;
        }
        if (!all_made) {
            (void)kill(v->children[rank], SIGKILL);
        }
        while (waitpid(v->children[rank], &status, 0) < 0) { /* interrupted */
        }
        if (status != 0 && (all_made || WTERMSIG(status) != SIGKILL)) {
            (void)fprintf(stderr, "rank %u ended with wait status %d\n", rank, status);
            abort();
        }
    }
}

int main(int argc, char **argv) {
    struct victim v = {.size = argc > 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0};
    v.rank = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    v.hosts = argc > 3 && strcmp(argv[3], "hosts") == 0;
    char path[4096];
    if (v.size < 1 || v.size > SIZE_MAX_RANKS || v.rank >= v.size) {
        (void)fputs("usage: group_victim SIZE RANK [hosts|file]\n", stderr);
        return 2;
    }
    if (argc > 3 && strcmp(argv[3], "file") == 0) {
        const char *folder = getenv("TMPDIR");
        (void)snprintf(path, sizeof path, "%s/meeting-%d", folder ? folder : "/tmp", (int)getpid());
        v.path = path;
    }
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED || pipe(v.port_pipe) != 0) {
        perror("set-up");
        return 1;
    }
    start_others(&v);
    int result = be_rank(&v);
    (void)close(v.port_pipe[v.rank == 0 ? 1 : 0]);
    wait_for_others(&v);
    if (v.path) {
        (void)unlink(v.path);
    }
    return result;
}
