/* What the world does to a group that works: strangers at its ports, a store that dies, no memory, aborts and failures
 * at the worst moment. The job goes on, or ends with an error that says why; it never crashes, hangs or lets anybody
 * in.
 */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/memory.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"
#include "comm/p2p/wire.h"
#include "net/endpoint.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#else
#define HAS_SANITIZER 0
#endif

enum { PATIENCE_MS = 30000, IS_READY = 1 };

/* ---- aborts and failures at the worst moment ---- */

enum { ABORT_ROUNDS = HAS_SANITIZER ? 50 : 300 };

/* Rank 0 aborts at ever other moments around the one at which rank 1, in a receive, goes to sleep. */
static int abort_round(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *parent = rank_group(rank, NULL);
    for (int round = 0; round < ABORT_ROUNDS; round++) {
        struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
        struct muster_group *group = NULL;
        options.timeout_ms = PATIENCE_MS;
        rank_check_code(rank, muster_group_split(parent, 0, 0, &options, &group), 0);
        int code = muster_barrier(group, NULL);
        if (rank->rank == 0) {
            rank_check_code(rank, code, 0);
            for (volatile int turn = 0; turn < round % 100 * 200; turn++) { /* up to 10 us and more */
            }
            muster_group_abort(group, "the test says so");
        } else {
            int32_t number;
            code = code ? code : muster_receive(group, &number, 1, MUSTER_INT32, 0, 0, NULL, NULL);
            rank_check_code(rank, code, MUSTER_EABORTED);
        }
        muster_group_free(group);
    }
    muster_group_free(parent);
    return 0;
}

static void an_abort_is_heard_whenever_it_comes(void **state) {
    (void)state;
    struct ranks_options two_hosts = {.ranks_per_host = 1};
    ranks_run(2, abort_round, NULL);
    ranks_run_with(2, abort_round, NULL, &two_hosts);
}

struct aborter {
    struct muster_group *group;
    _Atomic int *calls; /* that the rank has made */
    int after;
};

static void *abort_later(void *argument) {
    struct aborter *aborter = argument;
    while (atomic_load(aborter->calls) < aborter->after && muster_group_status(aborter->group) == 0) {
        (void)sched_yield();
    }
    muster_group_abort(aborter->group, "enough");
    return NULL;
}

/* Several threads of every rank abort at once, while calls are made; everybody ends with that. */
static int be_aborted(struct rank *rank, void *argument) {
    enum { THREADS = 3 };
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    pthread_t threads[THREADS];
    struct aborter aborters[THREADS];
    _Atomic int calls = 0;
    static float buffer[4096];
    for (int i = 0; i < THREADS; i++) {
        aborters[i] = (struct aborter){group, &calls, 20 + 5 * (int)rank->rank};
        rank_check(rank, pthread_create(&threads[i], NULL, abort_later, &aborters[i]) == 0);
    }
    int code = 0;
    while (code == 0) {
        struct muster_work *work = NULL;
        code = muster_all_reduce(group, buffer, buffer, 4096, MUSTER_FLOAT32, MUSTER_OP_MAX, &work);
        code = code ? code : muster_work_wait(&work);
        atomic_fetch_add(&calls, 1);
    }
    rank_check(rank, code == MUSTER_EABORTED || code == MUSTER_EGROUP); /* a thread may have heard of it first */
    rank_check(rank, strstr(muster_detail(), "enough") != NULL);
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    muster_group_free(group);
    return 0;
}

static void many_threads_may_abort_at_once(void **state) {
    (void)state;
    struct ranks_options two_hosts = {.ranks_per_host = 2};
    ranks_run(3, be_aborted, NULL);
    ranks_run_with(4, be_aborted, NULL, &two_hosts);
}

/* ---- a store of the test's own ---- */

struct store_process {
    pid_t pid;
    uint16_t port;
};

static void serve_store(int to) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL;
    options.is_host = true;
    options.bind_host = "127.0.0.1";
    uint16_t port = muster_store_open_tcp(&options, &store) == 0 ? muster_store_port(store) : 0;
    (void)alarm(2 * RANKS_PATIENCE_MS / 1000);
    if (write(to, &port, sizeof port) == (ssize_t)sizeof port) {
        for (;;) {
            (void)pause();
        }
    }
    _exit(1);
}

static void start_store(struct store_process *store) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    store->pid = fork();
    assert_true(store->pid >= 0);
    if (store->pid == 0) {
        serve_store(ends[1]);
    }
    assert_int_equal(read(ends[0], &store->port, sizeof store->port), sizeof store->port);
    assert_int_not_equal(store->port, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void end_store(const struct store_process *store) {
    assert_int_equal(kill(store->pid, SIGKILL), 0);
    assert_int_equal(waitpid(store->pid, NULL, 0), store->pid);
}

static struct muster_store *open_store(struct rank *rank, const struct store_process *process) {
    struct muster_store_options where = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL;
    where.host = "127.0.0.1";
    where.port = process->port;
    rank_check_code(rank, muster_store_open_tcp(&where, &store), 0);
    return store;
}

/* ---- strangers ---- */

struct attacked {
    struct store_process store;
    char path[40]; /* a file; the ranks work as long as it is there */
};

/* Sums that are right, until the test has sent all it wants. */
static int work_on(struct rank *rank, void *argument) {
    const struct attacked *attacked = argument;
    struct muster_store *store = open_store(rank, &attacked->store);
    struct muster_group *group = NULL;
    rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, NULL, &group), 0);
    static float buffer[50000];
    int32_t ends = 0;
    uint32_t sum = rank->size * (rank->size + 1) / 2;
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_mark(rank, IS_READY);
    for (int turn = 0; !ends; turn++) {
        size_t count = turn % 2 ? 50000 : 3;
        for (size_t i = 0; i < count; i++) {
            buffer[i] = (float)(rank->rank + 1);
        }
        rank_check_code(rank, muster_all_reduce(group, buffer, buffer, count, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
        for (size_t i = 0; i < count; i++) {
            rank_check(rank, buffer[i] == (float)sum);
        }
        ends = rank->rank == 0 && access(attacked->path, F_OK) != 0;
        rank_check_code(rank, muster_broadcast(group, &ends, 1, MUSTER_INT32, 0, NULL), 0);
    }
    muster_group_free(group);
    muster_store_close(store);
    return 0;
}

/* The inodes of a process's sockets. */
static size_t list_sockets(pid_t pid, unsigned long *out, size_t max) {
    char folder[64], path[400], target[64];
    (void)snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *list = opendir(folder);
    size_t count = 0;
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL && count < max;) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, "socket:[", 8) == 0) {
            out[count++] = strtoul(target + 8, NULL, 10);
        }
    }
    (void)closedir(list);
    return count;
}

/* The ports at which a process listens, as the kernel tells. */
static size_t list_ports(pid_t pid, uint16_t *out, size_t max) {
    enum { SOCKETS_MAX = 128, STATE_LISTEN = 0x0a };
    unsigned long sockets[SOCKETS_MAX];
    size_t socket_count = list_sockets(pid, sockets, SOCKETS_MAX), count = 0;
    static const char *const tables[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
    for (int i = 0; i < 2; i++) {
        FILE *table = fopen(tables[i], "r");
        char line[512];
        while (table && fgets(line, sizeof line, table)) {
            unsigned port = 0, state = 0;
            unsigned long inode = 0;
            /* NOLINTNEXTLINE(cert-err34-c): the kernel's own text */
            if (sscanf(line, " %*d: %*[0-9A-F]:%x %*s %x %*s %*s %*s %*s %*s %lu", &port, &state, &inode) != 3 ||
                state != STATE_LISTEN) {
                continue;
            }
            for (size_t s = 0; s < socket_count && count < max; s++) {
                if (sockets[s] == inode) {
                    out[count++] = (uint16_t)port;
                    break;
                }
            }
        }
        if (table) {
            (void)fclose(table);
        }
    }
    return count;
}

/* The listeners are on the address of the route to the others, or on all: the first that answers. */
static int call_port(uint16_t port) {
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    for (int i = 0; i < 2; i++) {
        struct net_addresses addresses;
        if (net_resolve_numeric(hosts[i], port, &addresses) != 0 || addresses.count == 0) {
            continue;
        }
        const struct sockaddr_storage *address = &addresses.list[0].sockaddr;
        int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)address, addresses.list[0].len) == 0) {
            return fd;
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    return -1;
}

/* Waits until the other side closes; no byte must come before. */
static void assert_turned_away(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint8_t byte;
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    ssize_t got = recv(fd, &byte, 1, 0);
    if (got > 0) {
        fail_msg("a stranger was answered");
    }
}

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* A hello that is right in all but the secret, cut after `length` bytes, and what a friend would send next. */
static size_t make_hello(uint8_t *out, uint32_t *seed) {
    struct wire_hello hello = {.from = 1, .to = 0, .purpose = WIRE_PURPOSE_STREAM, .stream_count = 1};
    struct wire_frame frame = {.kind = WIRE_BEGIN, .payload = 64, .bytes = 64};
    for (size_t i = 0; i < WIRE_SECRET_BYTES; i++) {
        hello.secret[i] = (uint8_t)next_random(seed);
    }
    wire_hello_encode(&hello, out);
    wire_frame_encode(&frame, out + WIRE_HELLO_BYTES);
    memset(out + WIRE_HELLO_BYTES + WIRE_HEADER_BYTES, 'x', 64);
    return WIRE_HELLO_BYTES + WIRE_HEADER_BYTES + 64;
}

/* One stranger. Those that have said too little are left waiting, as the descriptor that is returned; -1: it is over.
 */
static int be_stranger(uint16_t port, int number, uint32_t *seed) {
    uint8_t bytes[4096];
    size_t length = sizeof bytes;
    bool is_hello = number % 3 != 0, is_cut = number % 3 == 2;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)next_random(seed);
    }
    bytes[0] = 0xff; /* no command of the store */
    if (is_hello) {
        length = make_hello(bytes, seed);
    }
    length = is_cut ? next_random(seed) % WIRE_HELLO_BYTES : length;
    int fd = call_port(port);
    assert_true(fd >= 0);
    (void)send(fd, bytes, length, MSG_NOSIGNAL);
    if (is_cut && number % 2) {
        return fd;
    }
    if (is_cut) {
        (void)shutdown(fd, SHUT_WR);
    }
    assert_turned_away(fd);
    (void)close(fd);
    return -1;
}

enum { STRANGERS = 90, WORKERS = 5, PORTS_MAX = 16, SILENT_MAX = (WORKERS + 1) * PORTS_MAX * STRANGERS };

/* All that may be said at every port of a process. Returns how many ports it had. */
static size_t attack(pid_t pid, uint32_t *seed, int silent[SILENT_MAX], int *silent_count) {
    uint16_t ports[PORTS_MAX];
    size_t port_count = list_ports(pid, ports, PORTS_MAX);
    for (size_t i = 0; i < port_count; i++) {
        for (int number = 0; number < STRANGERS; number++) {
            int fd = be_stranger(ports[i], number, seed);
            silent[*silent_count] = fd;
            *silent_count += fd >= 0;
        }
    }
    return port_count;
}

/* Who talks is turned away unheard, who says nothing harms nobody: neither ranks nor their store. */
static void strangers_harm_nobody(void **state) {
    (void)state;
    struct attacked attacked = {.path = "/tmp/muster-strangers-XXXXXX"};
    int file = mkstemp(attacked.path);
    assert_true(file >= 0);
    (void)close(file);
    start_store(&attacked.store);
    struct ranks_options three_hosts = {.ranks_per_host = 2};
    struct ranks *ranks = ranks_start(WORKERS, work_on, &attacked, &three_hosts);
    uint32_t seed = 20261121;
    static int silent[SILENT_MAX];
    int silent_count = 0;
    ranks_await_all(ranks, IS_READY);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_true(attack(ranks_pid(ranks, rank), &seed, silent, &silent_count) > 0);
    }
    assert_true(attack(attacked.store.pid, &seed, silent, &silent_count) > 0);
    assert_int_equal(unlink(attacked.path), 0);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
    }
    while (silent_count > 0) {
        (void)close(silent[--silent_count]);
    }
    ranks_free(ranks);
    end_store(&attacked.store);
}

/* ---- the store dies ---- */

/* The last rank of the world never comes: this one is in the middle of making the group when the store dies. */
static int lose_store(struct rank *rank, void *argument) {
    const struct store_process *process = argument;
    struct muster_store *store = open_store(rank, process);
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *group = NULL;
    options.timeout_ms = 2 * RANKS_PATIENCE_MS; /* then the test has failed */
    rank_mark(rank, IS_READY);
    int code = muster_group_create_store(store, rank->rank, rank->size + 1, &options, &group);
    rank_check(rank, code < 0 && code != MUSTER_ETIMEOUT && group == NULL);
    rank_check(rank, strstr(muster_detail(), "127.0.0.1") != NULL); /* it is the store that is gone */
    muster_store_close(store);
    return 0;
}

static void a_store_that_dies_ends_the_meeting(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct store_process store;
        start_store(&store);
        struct ranks *ranks = ranks_start(3, lose_store, &store, NULL);
        ranks_await_all(ranks, IS_READY);
        (void)poll(NULL, 0, round); /* whichever moment that is */
        end_store(&store);
        for (uint32_t rank = 0; rank < 3; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
        }
        ranks_free(ranks);
    }
}

/* ---- no memory ---- */

static size_t used_bytes(void) {
    FILE *statm = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    char text[64];
    if (statm) {
        pages = fgets(text, sizeof text, statm) ? strtoul(text, NULL, 10) : 0;
        (void)fclose(statm);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static int use_memory(struct muster_group *group) {
    void *memory = NULL;
    struct muster_work *work = NULL;
    int code = muster_alloc(group, (size_t)1 << 20, &memory);
    code = code ? code : muster_all_reduce(group, memory, memory, 1 << 18, MUSTER_FLOAT32, MUSTER_OP_SUM, &work);
    int done = muster_work_wait(&work);
    muster_free(group, memory);
    return code ? code : done;
}

/* Ever more room for addresses, until a group can be made and used: an error that says why before, a group then. */
static int lack_memory(struct rank *rank, void *argument) {
    enum { STEP_BYTES = 128 << 10, STEPS_MAX = 4000 };
    (void)argument;
    struct muster_store *store = rank_store(rank);
    struct rlimit limit;
    int made = 0, failed = 0;
    rank_check(rank, getrlimit(RLIMIT_AS, &limit) == 0);
    for (int step = 0; made < 3; step++) {
        struct muster_group *group = NULL;
        struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
        char name[24];
        (void)snprintf(name, sizeof name, "step-%d", step);
        options.name = name;
        options.timeout_ms = PATIENCE_MS;
        rank_check(rank, step < STEPS_MAX);
        struct rlimit tight = {used_bytes() + (rlim_t)step * STEP_BYTES, limit.rlim_max};
        rank_check(rank, setrlimit(RLIMIT_AS, &tight) == 0);
        int code = muster_group_create_store(store, rank->rank, rank->size, &options, &group);
        code = code ? code : use_memory(group);
        rank_check(rank, code == 0 || muster_detail()[0] != '\0');
        muster_group_free(group);
        rank_check(rank, setrlimit(RLIMIT_AS, &limit) == 0);
        made += code == 0;
        failed += code != 0;
    }
    rank_check(rank, failed > 0);
    return 0;
}

static void any_lack_of_memory_is_survived(void **state) {
    (void)state;
    if (HAS_SANITIZER) {
        skip(); /* its shadow is far larger than any limit */
    }
    ranks_run(1, lack_memory, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_is_heard_whenever_it_comes),
        cmocka_unit_test(many_threads_may_abort_at_once),
        cmocka_unit_test(strangers_harm_nobody),
        cmocka_unit_test(a_store_that_dies_ends_the_meeting),
        cmocka_unit_test(any_lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
