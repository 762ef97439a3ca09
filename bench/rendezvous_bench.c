/* How long the native rendezvous takes for N agents: one process, N real connections over loopback, the coordinator in
 * a child process on a store's port.
 *
 *     rendezvous_bench [-r RUNS] [NODES ...]
 *
 * For each number of nodes (2 to 10000 by default), in turn: all connect and join, all get their WORLD; a worker of one
 * fails, all others get CHANGE; all join again, all get the second WORLD. Ranks are checked: each once. Prints a line:
 * the median of RUNS (5) for each time, the best one behind it; messages and bytes to and from the coordinator, the
 * same in each run; and the medians of what the coordinator's process needed of a processor, and of the anonymous
 * memory by which it had grown in the end, for each node. (The kernel's part of a connection is not in it.) */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/clock.h"
#include "quantile.h"
#include "rendezvous/coordinator/coordinator_server.h"
#include "store/server/kv_server.h"

enum { RUNS_MAX = 101, NODES_MAX = 60000, INPUT_BYTES = 4096, EVENTS = 512, WORKERS = 8, PATIENCE_MS = 60000 };

struct agent {
    int fd;
    uint32_t number;
    uint64_t identity;
    size_t kept; /* bytes of `input`, the beginning of a message */
    uint8_t input[INPUT_BYTES];
};

struct crowd {
    struct agent *agents;
    uint32_t count;
    int poller;
    pid_t coordinator;
    int leash; /* the coordinator ends when this is closed */
    struct sockaddr_in address;
    uint64_t round; /* that a WORLD has to have */
    uint8_t *has_rank;
    uint32_t worlds, changes; /* heard */
    uint64_t said, said_bytes, heard, heard_bytes;
};

/* One figure a run. */
struct figures {
    double ranked_ms[RUNS_MAX], known_ms[RUNS_MAX], again_ms[RUNS_MAX], processor_ms[RUNS_MAX], node_bytes[RUNS_MAX];
};

static _Noreturn void die(const char *what) {
    (void)fprintf(stderr, "rendezvous_bench: %s: %s\n", what, errno != 0 ? strerror(errno) : muster_detail());
    exit(1);
}

/* ---- the coordinator's process ---- */

static void on_leash(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    uv_stop(poll->loop);
}

static _Noreturn void coordinate(uint32_t nodes, int port_fd, int leash_fd) {
    uv_loop_t loop;
    uv_poll_t leash;
    struct coordinator_server *server;
    struct kv_server *store;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&address};
    const struct coordinator_server_options options = {
        .coordinator = {.run_id = "bench", .min_nodes = nodes, .max_nodes = nodes}};
    errno = 0;
    if (uv_loop_init(&loop) != 0 || coordinator_server_create(&loop, &options, &server) != 0) {
        die("the coordinator");
    }
    const struct kv_server_options store_options = {
        .addresses = addresses, .address_count = 1, .guest = coordinator_server_guest(server)};
    if (kv_server_create(&loop, &store_options, &store) != 0) {
        die("the coordinator");
    }
    uint16_t port = kv_server_port(store);
    if (write(port_fd, &port, sizeof port) != (ssize_t)sizeof port || uv_poll_init(&loop, &leash, leash_fd) != 0 ||
        uv_poll_start(&leash, UV_READABLE | UV_DISCONNECT, on_leash) != 0) {
        die("the coordinator");
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    _exit(0);
}

static void start_coordinator(struct crowd *crowd) {
    int port_pipe[2], leash_pipe[2];
    uint16_t port;
    if (pipe(port_pipe) < 0 || pipe(leash_pipe) < 0) {
        die("pipe");
    }
    crowd->coordinator = fork();
    if (crowd->coordinator < 0) {
        die("fork");
    }
    if (crowd->coordinator == 0) {
        (void)close(leash_pipe[1]);
        coordinate(crowd->count, port_pipe[1], leash_pipe[0]);
    }
    (void)close(port_pipe[1]);
    (void)close(leash_pipe[0]);
    crowd->leash = leash_pipe[1];
    if (read(port_pipe[0], &port, sizeof port) != (ssize_t)sizeof port) {
        die("the coordinator's port");
    }
    (void)close(port_pipe[0]);
    crowd->address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
}

static double coordinator_bytes(const struct crowd *crowd) {
    char line[256];
    double kib = -1;
    (void)snprintf(line, sizeof line, "/proc/%d/smaps_rollup", (int)crowd->coordinator);
    FILE *rollup = fopen(line, "r");
    while (rollup && fgets(line, sizeof line, rollup)) {
        kib = strncmp(line, "Anonymous:", 10) == 0 ? strtod(line + 10, NULL) : kib;
    }
    if (!rollup || kib < 0) {
        die("the coordinator's memory");
    }
    (void)fclose(rollup);
    return kib * 1024;
}

static double stop_coordinator(struct crowd *crowd) {
    struct rusage used;
    (void)close(crowd->leash);
    if (wait4(crowd->coordinator, NULL, 0, &used) < 0) {
        die("wait for the coordinator");
    }
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
}

/* ---- agents ---- */

/* `out` is empty before and after. */
static void say(struct crowd *crowd, const struct agent *agent, const struct coordinator_message *message,
                struct buf *out) {
    errno = 0;
    if (coordinator_wire_put(out, message) != 0) {
        die("encode");
    }
    if (send(agent->fd, buf_bytes(out), out->len, MSG_NOSIGNAL) != (ssize_t)out->len) {
        die("send");
    }
    crowd->said++;
    crowd->said_bytes += out->len;
    buf_clear(out);
}

/* `round`: the one that it was in. The first JOIN comes with the greeting. */
static void join(struct crowd *crowd, const struct agent *agent, uint64_t round, struct buf *out) {
    char address[32];
    (void)snprintf(address, sizeof address, "node%" PRIu32, agent->number);
    const struct coordinator_message message = {.kind = COORDINATOR_JOIN,
                                                .node = {.run_id = kv_slice_text("bench"),
                                                         .addr = kv_slice_text(address),
                                                         .role = kv_slice_text("default"),
                                                         .pid = 1 + (int64_t)agent->number,
                                                         .identity = {agent->identity, agent->number},
                                                         .min_nodes = crowd->count,
                                                         .max_nodes = crowd->count,
                                                         .local_world_size = WORKERS,
                                                         .store_port = 29400,
                                                         .uses_agent_store = true,
                                                         .last_round = round,
                                                         .last_world_size = round > 0 ? crowd->count : 0}};
    errno = 0;
    if (round == 0 && buf_append(out, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES) != 0) {
        die("greet");
    }
    say(crowd, agent, &message, out);
}

static void connect_one(struct crowd *crowd, struct agent *agent) {
    int on = 1;
    agent->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (agent->fd < 0) {
        die("socket (ulimit -n?)");
    }
    (void)setsockopt(agent->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(agent->fd, (const struct sockaddr *)&crowd->address, sizeof crowd->address) < 0 &&
        errno != EINPROGRESS) {
        die("connect");
    }
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = agent};
    if (epoll_ctl(crowd->poller, EPOLL_CTL_ADD, agent->fd, &event) < 0) {
        die("epoll_ctl");
    }
}

/* It is connected. */
static void enter(struct crowd *crowd, struct agent *agent, struct buf *out) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = agent};
    if (epoll_ctl(crowd->poller, EPOLL_CTL_MOD, agent->fd, &event) < 0) {
        die("epoll_ctl");
    }
    join(crowd, agent, 0, out);
}

static void take(struct crowd *crowd, const struct coordinator_message *message) {
    const struct coordinator_world *world = &message->world;
    errno = 0;
    if (message->kind == COORDINATOR_CHANGE) {
        crowd->changes++;
        return;
    }
    if (message->kind != COORDINATOR_WORLD || world->round != crowd->round || world->group_world_size != crowd->count ||
        world->base_global_rank != world->group_rank * WORKERS || crowd->has_rank[world->group_rank]) {
        (void)fprintf(stderr, "%s round %" PRIu64 "\n", coordinator_kind_name(message->kind), world->round);
        die("an answer that is wrong");
    }
    crowd->has_rank[world->group_rank] = 1;
    crowd->worlds++;
}

static void hear(struct crowd *crowd, struct agent *agent) {
    ssize_t got = recv(agent->fd, agent->input + agent->kept, sizeof agent->input - agent->kept, 0);
    if (got <= 0) {
        die("the coordinator has hung up");
    }
    size_t len = agent->kept + (size_t)got, at = 0, used = 0;
    struct coordinator_message message;
    enum coordinator_parse parse;
    crowd->heard_bytes += (size_t)got;
    while ((parse = coordinator_wire_get(agent->input + at, len - at, false, &message, &used)) ==
           COORDINATOR_COMPLETE) {
        crowd->heard++;
        take(crowd, &message);
        at += used;
    }
    if (parse == COORDINATOR_MALFORMED) {
        errno = 0;
        die("an answer that makes no sense");
    }
    memmove(agent->input, agent->input + at, len - at);
    agent->kept = len - at;
}

static void serve_events(struct crowd *crowd, struct buf *out, int timeout_ms) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(crowd->poller, events, EVENTS, timeout_ms);
    if (count < 0 || (count == 0 && timeout_ms > 0)) {
        die("nothing comes any more");
    }
    for (int i = 0; i < count; i++) {
        if (events[i].events & EPOLLOUT) {
            enter(crowd, events[i].data.ptr, out);
        } else {
            hear(crowd, events[i].data.ptr);
        }
    }
}

static double ms_since(int64_t start_ns) {
    return (double)(clock_monotonic_ns() - start_ns) / 1e6;
}

static void expect_worlds(struct crowd *crowd, uint64_t round) {
    crowd->round = round;
    crowd->worlds = 0;
    memset(crowd->has_rank, 0, crowd->count);
}

static double first_round(struct crowd *crowd, struct buf *out) {
    expect_worlds(crowd, 1);
    int64_t start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < crowd->count; i++) {
        connect_one(crowd, &crowd->agents[i]);
        if (i % EVENTS == EVENTS - 1) {
            serve_events(crowd, out, 0);
        }
    }
    while (crowd->worlds < crowd->count) {
        serve_events(crowd, out, PATIENCE_MS);
    }
    return ms_since(start_ns);
}

static double failure(struct crowd *crowd, struct buf *out) {
    const struct coordinator_message failed = {.kind = COORDINATOR_FAILED,
                                               .text = kv_slice_text("rank 3 has ended with exit code 1")};
    crowd->changes = 0;
    int64_t start_ns = clock_monotonic_ns();
    say(crowd, &crowd->agents[crowd->count / 2], &failed, out);
    while (crowd->changes < crowd->count - 1) {
        serve_events(crowd, out, PATIENCE_MS);
    }
    return ms_since(start_ns);
}

static double second_round(struct crowd *crowd, struct buf *out) {
    expect_worlds(crowd, 2);
    int64_t start_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < crowd->count; i++) {
        join(crowd, &crowd->agents[i], 1, out);
    }
    while (crowd->worlds < crowd->count) {
        serve_events(crowd, out, PATIENCE_MS);
    }
    return ms_since(start_ns);
}

/* ---- figures ---- */

static void run_once(struct crowd *crowd, struct figures *figures, size_t run) {
    struct buf out;
    buf_init(&out, INPUT_BYTES);
    crowd->said = crowd->said_bytes = crowd->heard = crowd->heard_bytes = 0;
    crowd->poller = epoll_create1(EPOLL_CLOEXEC);
    if (crowd->poller < 0) {
        die("epoll_create1");
    }
    start_coordinator(crowd);
    double bytes = coordinator_bytes(crowd);
    figures->ranked_ms[run] = first_round(crowd, &out);
    figures->known_ms[run] = failure(crowd, &out);
    figures->again_ms[run] = second_round(crowd, &out);
    figures->node_bytes[run] = (coordinator_bytes(crowd) - bytes) / crowd->count;
    for (uint32_t i = 0; i < crowd->count; i++) {
        (void)close(crowd->agents[i].fd);
    }
    figures->processor_ms[run] = stop_coordinator(crowd);
    (void)close(crowd->poller);
    buf_done(&out);
}

static double median(double *values, size_t count) {
    return quantile(values, count, 0.5);
}

static void measure(uint32_t nodes, size_t runs) {
    static struct figures figures;
    struct crowd crowd = {.count = nodes};
    crowd.agents = calloc(nodes, sizeof *crowd.agents);
    crowd.has_rank = calloc(nodes, 1);
    if (!crowd.agents || !crowd.has_rank) {
        die("memory");
    }
    for (size_t run = 0; run < runs; run++) {
        for (uint32_t i = 0; i < nodes; i++) {
            crowd.agents[i].number = i;
            crowd.agents[i].identity = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
            crowd.agents[i].kept = 0;
        }
        run_once(&crowd, &figures, run);
    }
    double ranked = median(figures.ranked_ms, runs), known = median(figures.known_ms, runs);
    double again = median(figures.again_ms, runs), processor = median(figures.processor_ms, runs);
    double node_bytes = median(figures.node_bytes, runs);
    (void)printf("%6" PRIu32 " %9.2f (%8.2f) %9.2f (%8.2f) %9.2f (%8.2f) %8" PRIu64 " %9" PRIu64 " %8" PRIu64
                 " %9" PRIu64 " %9.1f %9.0f\n",
                 nodes, ranked, figures.ranked_ms[0], known, figures.known_ms[0], again, figures.again_ms[0],
                 crowd.said, crowd.said_bytes, crowd.heard, crowd.heard_bytes, processor, node_bytes);
    (void)fflush(stdout);
    free(crowd.agents);
    free(crowd.has_rank);
}

/* As far as the administrator lets us. */
static void raise_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv) {
    static const uint32_t usual[] = {2, 8, 32, 128, 512, 2048, 10000};
    long runs = 5;
    int option;
    while ((option = getopt(argc, argv, "r:")) == 'r') {
        runs = strtol(optarg, NULL, 10);
    }
    if (option != -1 || runs < 1 || runs > RUNS_MAX) {
        (void)fputs("usage: rendezvous_bench [-r RUNS] [NODES ...]\n", stderr);
        return 2;
    }
    raise_descriptors();
    (void)printf("%6s %20s %20s %20s %18s %18s %9s %9s\n%6s %20s %20s %20s %8s %9s %8s %9s %9s %9s\n", "nodes",
                 "ranked, ms", "failure known, ms", "ranked again, ms", "to coordinator", "from it", "its CPU",
                 "memory", "", "median (best)", "median (best)", "median (best)", "messages", "bytes", "messages",
                 "bytes", "ms", "bytes a node");
    for (size_t i = 0; optind == argc && i < sizeof usual / sizeof *usual; i++) {
        measure(usual[i], (size_t)runs);
    }
    for (int i = optind; i < argc; i++) {
        long nodes = strtol(argv[i], NULL, 10);
        if (nodes < 2 || nodes > NODES_MAX) {
            (void)fprintf(stderr, "rendezvous_bench: '%s': 2 to %d nodes\n", argv[i], NODES_MAX);
            return 2;
        }
        measure((uint32_t)nodes, (size_t)runs);
    }
    return 0;
}
