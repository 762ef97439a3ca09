/* A process of mpirun, srun or muster run --mpi that lends what it was given: it sends its environment, each string
 * with its end and an empty one behind them, and the socket of its process manager (PMI_FD) to the abstract unix socket
 * that its argument names, and ends when the other side closes it. See src/comm/group/starter_test_support.h. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

static int connect_to(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    return fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0 ? fd : -1;
}

/* The first byte goes with the descriptor. */
static int send_first(int fd, const char *byte) {
    const char *text = getenv("PMI_FD");
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {(void *)byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (text) {
        int manager = (int)strtol(text, NULL, 10);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){CMSG_LEN(sizeof manager), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &manager, sizeof manager);
    }
    return sendmsg(fd, &message, 0) == 1 ? 0 : -1;
}

static int send_all(int fd, const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n <= 0) {
            return -1;
        }
        text += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int main(int argc, char **argv) {
    char byte;
    int fd = argc == 2 ? connect_to(argv[1]) : -1;
    if (fd < 0) {
        perror("starter_relay");
        return 1;
    }
    for (char **text = environ; *text; text++) {
        size_t sent = text == environ ? 1 : 0;
        if ((sent == 1 && send_first(fd, *text) != 0) || send_all(fd, *text + sent, strlen(*text) + 1 - sent) != 0) {
            return 1;
        }
    }
    if (send_all(fd, "", 1) != 0) {
        return 1;
    }
    (void)!read(fd, &byte, 1);
    return 0;
}
