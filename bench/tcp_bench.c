/* How much of a bare TCP connection's throughput messages over TCP have:
 *
 *     tcp_bench [--sizes 64K,1M,...] [--rounds N] [--mib N] [--spin] [--zero-copy SETTING]
 *
 * Two processes on this machine, on a core each, take turns: messages of a size by muster_send() and muster_receive(),
 * forced to TCP (MUSTER_SHM=0), and as many bytes by a loop of send() and recv() over a connection of their own. A turn
 * moves --mib MiB (64), and at least 4 messages, and is over when the receiver's answer has come. Turns alternate, so
 * what disturbs the machine disturbs both. The bare loop sleeps in the kernel, as such loops do; with --spin it asks
 * again and again, which is faster where each side has a core that nobody else wants. With --zero-copy the other way is
 * muster_send() as well, usual, and messages go by MUSTER_TCP_ZERO_COPY=SETTING.
 *
 * It prints medians over the rounds (15); the median of the ratios of neighbouring turns, with quartiles; the ratio of
 * the best turns; and that of the time of both processors, which suffers least from what else runs on the machine. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <muster/muster.h>

#include "quantile.h"

enum { SIZES_MAX = 16, ROUNDS_MAX = 1000, PATIENCE_S = 600, MESSAGES_LEAST = 4, WARM_UP = 2 };

struct settings {
    size_t sizes[SIZES_MAX];
    size_t size_count, turn_bytes;
    uint32_t rounds;
    int bare_flags;        /* of send() and recv() */
    const char *zero_copy; /* NULL: messages as usual, beside a bare connection */
};

/* One of the two processes. */
struct side {
    uint32_t rank;
    struct muster_group *group;
    struct muster_group *usual; /* in the bare connection's place; NULL: none */
    int fd;                     /* the bare connection */
    int flags;
    char *buffer;
};

_Noreturn static void fail(const char *what) {
    (void)fprintf(stderr, "tcp_bench: %s: %s%s%s\n", what, strerror(errno), *muster_detail() ? ", " : "",
                  muster_detail());
    exit(1);
}

static double read_s(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- the two ways ---- */

static void send_by(const struct side *side, struct muster_group *group, size_t bytes) {
    if (muster_send(group, side->buffer, bytes, MUSTER_UINT8, 1 - side->rank, 0, NULL) != MUSTER_OK) {
        fail("muster_send");
    }
}

static void receive_by(const struct side *side, struct muster_group *group, size_t bytes) {
    if (muster_receive(group, side->buffer, bytes, MUSTER_UINT8, 1 - side->rank, 0, NULL, NULL) != MUSTER_OK) {
        fail("muster_receive");
    }
}

static void send_bare(const struct side *side, size_t bytes) {
    if (side->usual) {
        send_by(side, side->usual, bytes);
        return;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(side->fd, side->buffer + done, bytes - done, MSG_NOSIGNAL | side->flags);
        if (n <= 0 && errno != EAGAIN) {
            fail("send");
        }
        done += n > 0 ? (size_t)n : 0;
    }
}

static void receive_bare(const struct side *side, size_t bytes) {
    if (side->usual) {
        receive_by(side, side->usual, bytes);
        return;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t n = recv(side->fd, side->buffer + done, bytes - done, side->flags);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            fail("recv");
        }
        done += n > 0 ? (size_t)n : 0;
    }
}

static void send_message(const struct side *side, size_t bytes) {
    send_by(side, side->group, bytes);
}

static void receive_message(const struct side *side, size_t bytes) {
    receive_by(side, side->group, bytes);
}

/* What a turn took: until the answer came, and of this process's processor. */
struct cost {
    double seconds, processor_s;
};

static struct cost take_turn(const struct side *side, bool is_bare, size_t bytes, size_t count) {
    void (*send_one)(const struct side *, size_t) = is_bare ? send_bare : send_message;
    void (*receive_one)(const struct side *, size_t) = is_bare ? receive_bare : receive_message;
    double begin_s = read_s(CLOCK_MONOTONIC), begin_processor_s = read_s(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < count; i++) {
        (side->rank == 0 ? send_one : receive_one)(side, bytes);
    }
    (side->rank == 0 ? receive_one : send_one)(side, 1);
    return (struct cost){read_s(CLOCK_MONOTONIC) - begin_s, read_s(CLOCK_PROCESS_CPUTIME_ID) - begin_processor_s};
}

/* ---- measuring ---- */

/* All rounds of one size, by way. */
struct outcome {
    double bare_s[ROUNDS_MAX], messages_s[ROUNDS_MAX], ratios[ROUNDS_MAX];
    double processor_s[2]; /* bare, messages: of this side */
};

static void note(struct outcome *outcome, uint32_t round, struct cost bare, struct cost messages) {
    outcome->bare_s[round] = bare.seconds;
    outcome->messages_s[round] = messages.seconds;
    outcome->ratios[round] = bare.seconds / messages.seconds;
    outcome->processor_s[0] += bare.processor_s;
    outcome->processor_s[1] += messages.processor_s;
}

/* Adds up what both sides' processors did, at rank 0. */
static void add_up(const struct side *side, double processor_s[2]) {
    double other[2];
    size_t bytes = sizeof other;
    if (side->rank == 1 && send(side->fd, processor_s, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        fail("tell of the processor's time");
    }
    if (side->rank == 0 && recv(side->fd, other, bytes, MSG_WAITALL) == (ssize_t)bytes) {
        processor_s[0] += other[0];
        processor_s[1] += other[1];
    }
}

static void print_size(size_t bytes, size_t moved, struct outcome *outcome, uint32_t rounds) {
    double mib = (double)moved / (1 << 20), bare = quantile(outcome->bare_s, rounds, 0.5),
           messages = quantile(outcome->messages_s, rounds, 0.5);
    printf("%10zu %7.0f MiB/s %7.0f MiB/s %5.0f %% (%.0f to %.0f) %5.0f %% %7.0f %%\n", bytes, mib / bare,
           mib / messages, 100 * quantile(outcome->ratios, rounds, 0.5), 100 * quantile(outcome->ratios, rounds, 0.25),
           100 * quantile(outcome->ratios, rounds, 0.75), 100 * outcome->bare_s[0] / outcome->messages_s[0],
           100 * outcome->processor_s[0] / outcome->processor_s[1]);
    (void)fflush(stdout);
}

static void measure_size(const struct settings *settings, const struct side *side, size_t bytes) {
    static struct outcome outcome;
    size_t count = settings->turn_bytes / bytes;
    count = count < MESSAGES_LEAST ? MESSAGES_LEAST : count;
    memset(&outcome, 0, sizeof outcome);
    for (int warm = 0; warm < WARM_UP; warm++) {
        (void)take_turn(side, true, bytes, MESSAGES_LEAST);
        (void)take_turn(side, false, bytes, MESSAGES_LEAST);
    }
    for (uint32_t round = 0; round < settings->rounds; round++) {
        bool bare_first = round % 2 == 0;
        struct cost first = take_turn(side, bare_first, bytes, count),
                    second = take_turn(side, !bare_first, bytes, count);
        note(&outcome, round, bare_first ? first : second, bare_first ? second : first);
    }
    add_up(side, outcome.processor_s);
    if (side->rank == 0) {
        print_size(bytes, bytes * count, &outcome, settings->rounds);
    }
}

/* ---- the two processes ---- */

static int listen_somewhere(struct sockaddr_in *out) {
    socklen_t length = sizeof *out;
    *out = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)out, sizeof *out) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)out, &length) != 0) {
        fail("listen on loopback");
    }
    return fd;
}

static int connect_bare(uint32_t rank, int listener, const struct sockaddr_in *address) {
    const int on = 1;
    int fd = rank == 0 ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || (rank == 1 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0) ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
        fail("connect over loopback");
    }
    return fd;
}

/* Each side has a core of its own, where there are two: whether the kernel puts both on one makes more of a difference
 * than all that is measured here. */
static void take_core(uint32_t rank) {
    cpu_set_t allowed, own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
        return;
    }
    size_t core = 0;
    for (uint32_t seen = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &allowed) && seen++ == rank) {
            break;
        }
    }
    CPU_SET(core, &own);
    (void)sched_setaffinity(0, sizeof own, &own);
}

/* Rank 0 serves it, and says where over the bare connection. */
static struct muster_store *open_store(uint32_t rank, int fd) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL;
    uint16_t port = 0;
    options.host = options.bind_host = "127.0.0.1";
    options.is_host = rank == 0;
    if (rank == 1 && recv(fd, &port, sizeof port, MSG_WAITALL) != sizeof port) {
        fail("hear of the store");
    }
    options.port = port;
    if (muster_store_open_tcp(&options, &store) != MUSTER_OK) {
        fail("open the store");
    }
    port = muster_store_port(store);
    if (rank == 0 && send(fd, &port, sizeof port, MSG_NOSIGNAL) != sizeof port) {
        fail("tell of the store");
    }
    return store;
}

static void be_side(const struct settings *settings, uint32_t rank, int listener, const struct sockaddr_in *address) {
    struct side side = {.rank = rank, .fd = connect_bare(rank, listener, address), .flags = settings->bare_flags};
    struct muster_store *store = open_store(rank, side.fd);
    size_t most = 1;
    for (size_t i = 0; i < settings->size_count; i++) {
        most = settings->sizes[i] > most ? settings->sizes[i] : most;
    }
    side.buffer = malloc(most);
    if (!side.buffer) {
        fail("memory");
    }
    memset(side.buffer, 1, most);
    (void)setenv("MUSTER_SHM", "0", 1);
    if (settings->zero_copy) {
        struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
        options.name = "usual";
        if (muster_group_create_store(store, rank, 2, &options, &side.usual) != MUSTER_OK) {
            fail("make the other group");
        }
        (void)setenv("MUSTER_TCP_ZERO_COPY", settings->zero_copy, 1);
    }
    if (muster_group_create_store(store, rank, 2, NULL, &side.group) != MUSTER_OK) {
        fail("make the group");
    }
    take_core(rank);
    for (size_t i = 0; i < settings->size_count; i++) {
        measure_size(settings, &side, settings->sizes[i]);
    }
    muster_group_free(side.group);
    muster_group_free(side.usual);
    muster_store_close(store);
    free(side.buffer);
    (void)close(side.fd);
}

/* ---- the command line ---- */

static size_t size_of(const char *text, char **end) {
    size_t value = strtoul(text, end, 10);
    int shift = **end == 'K' ? 10 : **end == 'M' ? 20 : 0;
    *end += shift ? 1 : 0;
    return value << shift;
}

static void take_sizes(struct settings *settings, const char *text) {
    settings->size_count = 0;
    while (settings->size_count < SIZES_MAX) {
        char *end = NULL;
        settings->sizes[settings->size_count++] = size_of(text, &end);
        if (end == text || (*end != ',' && *end != '\0') || settings->sizes[settings->size_count - 1] == 0) {
            (void)fprintf(stderr, "tcp_bench: '%s' is no list of sizes such as 64K,1M\n", text);
            exit(2);
        }
        if (*end == '\0') {
            return;
        }
        text = end + 1;
    }
}

static struct settings parse(int argc, char **argv) {
    static const struct option options[] = {
        {"sizes", required_argument, NULL, 's'},     {"rounds", required_argument, NULL, 'r'},
        {"mib", required_argument, NULL, 'm'},       {"spin", no_argument, NULL, 'n'},
        {"zero-copy", required_argument, NULL, 'z'}, {NULL, 0, NULL, 0}};
    struct settings settings = {.rounds = 15, .turn_bytes = (size_t)64 << 20};
    take_sizes(&settings, "64K,256K,1M,4M,16M,64M");
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 's':
            take_sizes(&settings, optarg);
            break;
        case 'r':
            settings.rounds = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            settings.turn_bytes = (size_t)strtoul(optarg, NULL, 10) << 20;
            break;
        case 'n':
            settings.bare_flags = MSG_DONTWAIT;
            break;
        case 'z':
            settings.zero_copy = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (settings.rounds < 1 || settings.rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "tcp_bench: --rounds takes 1 to %d\n", ROUNDS_MAX);
        exit(2);
    }
    return settings;
}

int main(int argc, char **argv) {
    struct settings settings = parse(argc, argv);
    struct sockaddr_in address;
    int listener = listen_somewhere(&address), status = 0;
    (void)alarm(PATIENCE_S);
    printf("%10s %13s %13s %20s %7s %9s\n", "bytes", settings.zero_copy ? "usual" : "bare",
           settings.zero_copy ? "zero-copy" : "messages", "ratio", "best", "processor");
    (void)fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        fail("fork");
    }
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_side(&settings, 1, listener, &address);
        _exit(0);
    }
    be_side(&settings, 0, listener, &address);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
