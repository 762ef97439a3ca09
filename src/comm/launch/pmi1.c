/* The words of PMI-1; see pmi1.h. */
#include "comm/launch/pmi1.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

enum { LINE_BYTES_MAX = 2048 };
#define KEY "muster-world"

struct connection {
    int fd;
    int64_t deadline_ns;
    char line[LINE_BYTES_MAX]; /* the last answer, without its end */
};

static int fail_closed(void) {
    return status_fail(MUSTER_ECLOSED, "the process manager has closed the connection (PMI_FD): a process can make one "
                                       "group from its environment, or MASTER_ADDR must be set");
}

static int fail_socket(const struct connection *connection, int error_number) {
    if (error_number == EPIPE || error_number == ECONNRESET) {
        return fail_closed();
    }
    return error_number == EBADF || error_number == ENOTSOCK
               ? status_fail(MUSTER_ECLOSED,
                             "PMI_FD is %d, which is no open socket: was this process started by another one, not by "
                             "the starter? MASTER_ADDR works everywhere",
                             connection->fd)
               : status_fail_errno(error_number, "talk to the process manager over PMI_FD");
}

static int send_all(struct connection *connection, const char *text) {
    size_t len = strlen(text), sent = 0;
    while (sent < len) {
        ssize_t n = send(connection->fd, text + sent, len - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == ENOTSOCK) {
            n = write(connection->fd, text + sent, len - sent); /* a pipe will do */
        }
        if (n < 0 && errno != EINTR) {
            return fail_socket(connection, errno);
        }
        sent += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int await(struct connection *connection) {
    struct pollfd ready = {.fd = connection->fd, .events = POLLIN};
    int n;
    do {
        int64_t left_ms = clock_remaining_ms(connection->deadline_ns);
        n = poll(&ready, 1, left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
    } while (n < 0 && errno == EINTR);
    if (n == 0) {
        return status_fail(MUSTER_ETIMEOUT, "the process manager did not answer in time; some ranks have not come yet");
    }
    return n > 0 ? 0 : fail_socket(connection, errno);
}

/* One byte at a time: an answer is short, and what follows it is not ours to take. */
static int read_line(struct connection *connection) {
    for (size_t used = 0; used < LINE_BYTES_MAX; used++) {
        ssize_t n;
        int code = await(connection);
        if (code) {
            return code;
        }
        do {
            n = read(connection->fd, connection->line + used, 1);
        } while (n < 0 && errno == EINTR);
        if (n < 0) {
            return fail_socket(connection, errno);
        }
        if (n == 0) {
            return fail_closed();
        }
        if (connection->line[used] == '\n') {
            connection->line[used] = '\0';
            return 0;
        }
    }
    return status_fail(MUSTER_EPROTOCOL, "the process manager's answer has more than %d bytes", LINE_BYTES_MAX);
}

/* The value of `name` in an answer, cut at `max` bytes; false: it is not there. */
static bool field(const char *line, const char *name, char *out, size_t max) {
    size_t len = strlen(name);
    for (const char *at = line; at; at = strchr(at, ' ')) {
        at += *at == ' ' ? 1 : 0;
        if (strncmp(at, name, len) == 0 && at[len] == '=') {
            return str_format(out, max, "%.*s", (int)strcspn(at + len + 1, " "), at + len + 1);
        }
    }
    return false;
}

/* A command and its answer. */
static int ask(struct connection *connection, const char *command, const char *answer) {
    char cmd[64], rc[16] = "0";
    int code = send_all(connection, command);
    code = code ? code : read_line(connection);
    if (code) {
        return code;
    }
    (void)field(connection->line, "rc", rc, sizeof rc);
    if (!field(connection->line, "cmd", cmd, sizeof cmd) || strcmp(cmd, answer) != 0 || strcmp(rc, "0") != 0) {
        return status_fail(MUSTER_EPROTOCOL, "the process manager answers '%.200s' to '%.*s'", connection->line,
                           (int)strcspn(command, "\n"), command);
    }
    return 0;
}

static int put(struct connection *connection, const char *space, const char *text) {
    char command[LINE_BYTES_MAX];
    if (!str_format(command, sizeof command, "cmd=put kvsname=%s key=" KEY " value=%s\n", space, text)) {
        return status_fail(MUSTER_ELIMIT, "the process manager's names are too long");
    }
    return ask(connection, command, "put_result");
}

static int get(struct connection *connection, const char *space, char *out) {
    char command[LINE_BYTES_MAX];
    if (!str_format(command, sizeof command, "cmd=get kvsname=%s key=" KEY "\n", space)) {
        return status_fail(MUSTER_ELIMIT, "the process manager's names are too long");
    }
    int code = ask(connection, command, "get_result");
    if (code == 0 && !field(connection->line, "value", out, PMI1_VALUE_MAX)) {
        code = status_fail(MUSTER_EPROTOCOL, "the process manager answers '%.200s'", connection->line);
    }
    return code;
}

int pmi1_share(int fd, uint32_t rank, const char *text, int64_t deadline_ns, char *out) {
    struct connection connection = {.fd = fd, .deadline_ns = deadline_ns};
    char space[512] = "";
    int code = ask(&connection, "cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init");
    code = code ? code : ask(&connection, "cmd=get_my_kvsname\n", "my_kvsname");
    if (code == 0 && !field(connection.line, "kvsname", space, sizeof space)) {
        code = status_fail(MUSTER_EPROTOCOL, "the process manager answers '%.200s'", connection.line);
    }
    code = code || rank != 0 ? code : put(&connection, space, text);
    code = code ? code : ask(&connection, "cmd=barrier_in\n", "barrier_out");
    code = code ? code : get(&connection, space, out);
    /* Without it the starter would take the end of this process for a crash. */
    code = code ? code : ask(&connection, "cmd=finalize\n", "finalize_ack");
    return code ? status_prefix(code, "PMI") : 0;
}
