/* What a starter gives its processes, for the ranks of tests; see starter_test_support.h. */
#include "comm/group/starter_test_support.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ENVIRONMENT_BYTES = 256 << 10, COME_MS = 60000, NAME_BYTES = 64 };

/* One of the starter's processes. */
struct lender {
    int connection;
    int manager; /* PMI_FD; -1: none */
    char *environment;
    size_t environment_bytes;
};

struct starter {
    pid_t pid;
    uint32_t size;
    struct lender *lenders; /* by rank */
};

static int listen_at(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    (void)snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name); /* abstract: no file */
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, SOMAXCONN), 0);
    return fd;
}

static pid_t run(const char *command, uint32_t size, const char *name) {
    char line[2048];
    (void)snprintf(line, sizeof line, "exec %s %u %s %s", command, size, getenv("MUSTER_TEST_RELAY"), name);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        (void)execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* The number of a variable among those that the process has sent; -1: it has none. */
static int number_of(const struct lender *lender, const char *name) {
    size_t length = strlen(name);
    for (size_t at = 0; at < lender->environment_bytes; at += strlen(lender->environment + at) + 1) {
        const char *text = lender->environment + at;
        if (strncmp(text, name, length) == 0 && text[length] == '=') {
            return (int)strtol(text + length + 1, NULL, 10);
        }
    }
    return -1;
}

/* The environment comes in one message with the descriptor, then the rest until an empty string. */
static void hear(struct lender *lender, int connection) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    *lender = (struct lender){.connection = connection, .manager = -1, .environment = malloc(ENVIRONMENT_BYTES)};
    assert_non_null(lender->environment);
    while (lender->environment_bytes < 2 || lender->environment[lender->environment_bytes - 1] != '\0' ||
           lender->environment[lender->environment_bytes - 2] != '\0') {
        struct iovec part = {lender->environment + lender->environment_bytes,
                             ENVIRONMENT_BYTES - lender->environment_bytes};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
        assert_true(n > 0);
        lender->environment_bytes += (size_t)n;
        const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header && header->cmsg_type == SCM_RIGHTS) {
            memcpy(&lender->manager, CMSG_DATA(header), sizeof lender->manager);
        }
    }
    lender->environment_bytes--; /* the empty string */
}

static int rank_of(const struct lender *lender) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK"};
    int rank = -1;
    for (size_t i = 0; rank < 0 && i < sizeof names / sizeof *names; i++) {
        rank = number_of(lender, names[i]);
    }
    return rank;
}

struct starter *starter_start(uint32_t size) {
    static unsigned count;
    const char *command = getenv("MUSTER_TEST_STARTER");
    char name[NAME_BYTES];
    if (!command || !*command || size == 1) {
        return NULL;
    }
    (void)snprintf(name, sizeof name, "muster-starter-%d-%u", (int)getpid(), count++);
    struct starter *starter = calloc(1, sizeof *starter);
    assert_non_null(starter);
    starter->lenders = calloc(size, sizeof *starter->lenders);
    assert_non_null(starter->lenders);
    starter->size = size;
    int fd = listen_at(name);
    starter->pid = run(command, size, name);
    for (uint32_t i = 0; i < size; i++) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        struct lender lender;
        if (poll(&ready, 1, COME_MS) != 1) {
            fail_msg("'%s': %u of its %u processes have come", command, i, size);
        }
        int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        assert_true(connection >= 0);
        hear(&lender, connection);
        int rank = rank_of(&lender);
        assert_true(rank >= 0 && (uint32_t)rank < size && !starter->lenders[rank].environment);
        starter->lenders[rank] = lender;
    }
    (void)close(fd);
    return starter;
}

/* Those of the test are its own: what it has set for its ranks, and where it finds things. */
static int is_lent(const char *text) {
    static const char *const prefixes[] = {"PMI", "JSM_", "OMPI_", "PRTE_", "OPAL_",
                                           "HYD", "MPI",  "HFI_",  "ORTE_", "SLURM_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) {
            return 1;
        }
    }
    return 0;
}

void starter_take(struct starter *starter, uint32_t rank) {
    struct lender *lender = &starter->lenders[rank];
    for (size_t at = 0; at < lender->environment_bytes; at += strlen(lender->environment + at) + 1) {
        if (is_lent(lender->environment + at)) {
            (void)putenv(lender->environment + at); /* the rank's to its end */
        }
    }
    if (lender->manager >= 0) {
        char number[16];
        int fd = dup(lender->manager);
        (void)snprintf(number, sizeof number, "%d", fd);
        (void)setenv("PMI_FD", number, 1);
    }
    for (uint32_t i = 0; i < starter->size; i++) {
        (void)close(starter->lenders[i].connection);
        if (starter->lenders[i].manager >= 0) {
            (void)close(starter->lenders[i].manager);
        }
    }
}

void starter_stop(struct starter *starter) {
    if (!starter) {
        return;
    }
    for (uint32_t i = 0; i < starter->size; i++) {
        (void)close(starter->lenders[i].connection);
        if (starter->lenders[i].manager >= 0) {
            (void)close(starter->lenders[i].manager);
        }
        free(starter->lenders[i].environment);
    }
    (void)waitpid(starter->pid, NULL, 0);
    free(starter->lenders);
    free(starter);
}
