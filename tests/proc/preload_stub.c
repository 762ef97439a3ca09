/* A preload server that imports nothing, for tests of the guardian's side (guardian_preload.h has the protocol).
 *
 * Usage: preload_stub MODE
 *   honest    forks workers, which run their own command line
 *   importing never gets ready
 *   slow      honest, and needs longer than the tests leave one import
 *   steady    honest, and needs 1.5 s for each fork
 *   refuse    refuses
 *   noise     speaks another language
 *   ends      is ready, and ends at the first order
 *   silent    is ready, and does nothing with orders
 *   mute      forks, and its children end without a word
 *   liar      says that the worker is a process that it is not
 *   decline   has a reason against each worker */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian_channel.h"
#include "agent/guardian/guardian_preload.h"
#include "agent/guardian/guardian_wire.h"

enum { OUT, ERR, LIFE, FD_COUNT };

static const char *mode;
static pid_t guardian;

static bool is_mode(const char *name) {
    return strcmp(mode, name) == 0;
}

static void say(struct guardian_channel *channel, uint32_t kind, const char *text) {
    (void)guardian_channel_send(channel, kind, text, strlen(text), NULL, 0);
}

static void report(int life_fd, pid_t pid) {
    char packet[1 + sizeof(int32_t)] = {'P'};
    int32_t number = pid;
    memcpy(packet + 1, &number, sizeof number);
    (void)send(life_fd, packet, sizeof packet, MSG_NOSIGNAL);
}

/* In the child's child. */
static void be_worker(const struct guardian_order *order, const int fds[FD_COUNT]) {
    char go;
    (void)setsid();
    while (getppid() != guardian) {
        (void)sched_yield();
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_mode("mute")) {
        _exit(0);
    }
    report(fds[LIFE], is_mode("liar") ? guardian : getpid());
    if (read(fds[LIFE], &go, 1) != 1 || go != 'G') {
        _exit(0);
    }
    (void)dup2(fds[OUT], STDOUT_FILENO);
    (void)dup2(fds[ERR], STDERR_FILENO);
    (void)execve(order->argv[0], order->argv, order->envp);
    _exit(127);
}

static void serve(struct guardian_channel *channel, const uint8_t *body, size_t length) {
    struct guardian_order order;
    int fds[FD_COUNT];
    for (size_t i = 0; i < FD_COUNT; i++) {
        fds[i] = guardian_channel_take_fd(channel);
    }
    if (is_mode("ends") || guardian_wire_decode(body, length, &order) != 0) {
        _exit(3);
    }
    if (is_mode("silent")) {
        return; /* its descriptors stay open */
    }
    if (is_mode("steady")) {
        (void)poll(NULL, 0, 1500);
    }
    if (is_mode("decline")) {
        static const char why[] = "Nit is not my day";
        (void)send(fds[LIFE], why, sizeof why - 1, MSG_NOSIGNAL);
    } else if (fork() == 0) {
        if (fork() == 0) {
            be_worker(&order, fds);
        }
        _exit(0);
    } else {
        (void)wait(NULL);
    }
    for (size_t i = 0; i < FD_COUNT; i++) {
        (void)close(fds[i]);
    }
    guardian_order_done(&order);
}

static void be_slow(struct guardian_channel *channel) {
    enum { IMPORTS = 30, EACH_MS = 50 };
    for (int i = 0; i < IMPORTS; i++) {
        (void)poll(NULL, 0, EACH_MS);
        say(channel, PRELOAD_FRAME_IMPORTING, "one_of_many");
    }
    say(channel, PRELOAD_FRAME_LEFT_OUT, "one_of_many is left out");
}

int main(int argc, char **argv) {
    static struct guardian_channel channel;
    int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    mode = argc > 1 ? argv[1] : "honest";
    guardian = getppid();
    (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    guardian_channel_init(&channel, fd, GUARDIAN_QUEUE_BYTES_MAX);
    if (is_mode("importing")) {
        (void)pause();
    }
    if (is_mode("slow")) {
        be_slow(&channel);
    }
    bool refuses = is_mode("refuse");
    say(&channel,
        refuses            ? PRELOAD_FRAME_REFUSED
        : is_mode("noise") ? 77
                           : PRELOAD_FRAME_READY,
        refuses ? "not today" : "nothing in 0 s");
    if (refuses) {
        return 0;
    }
    (void)fcntl(fd, F_SETFL, 0); /* from here on it blocks */
    for (;;) {
        char byte;
        struct guardian_frame frame;
        if (recv(fd, &byte, 1, MSG_PEEK) <= 0 || guardian_channel_receive(&channel) != 0) {
            return 0;
        }
        for (const uint8_t *body; guardian_channel_next(&channel, &frame, &body);) {
            serve(&channel, body, frame.length);
        }
    }
}
