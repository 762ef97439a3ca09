/* Serving a store from a worker: kv_engine.h on a thread of its own.
 *
 * The thread touches the engine alone; the only thing it shares with its starter is the connection that ends it:
 * shutting one down takes nothing that can be short, and forked children that hold copies do not matter. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/thread.h"
#include "net/endpoint.h"
#include "store/blocking/store_impl.h"
#include "store/server/kv_engine.h"

struct store_host {
    struct kv_engine *engine;
    int stop_fds[2]; /* a pair; the thread ends when it is shut down */
    pthread_t thread;
};

static void *serve(void *ctx) {
    struct store_host *host = ctx;
    struct pollfd fds[2] = {{.fd = kv_engine_fd(host->engine), .events = POLLIN},
                            {.fd = host->stop_fds[0], .events = POLLIN}};
    while (fds[1].revents == 0) {
        int ready = poll(fds, 2, -1);
        if (ready > 0 && fds[0].revents != 0) {
            kv_engine_turn(host->engine);
        }
    }
    return NULL;
}

/* All interfaces, IPv4 through IPv6 where that is to be had. */
static int create_engine(const char *bind_host, uint16_t port, struct kv_engine **out) {
    struct net_addresses addresses;
    const char *fallback = bind_host ? NULL : "0.0.0.0";
    int code = net_resolve(bind_host ? bind_host : "::", port, &addresses);
    for (;;) {
        const struct sockaddr *list[NET_ADDRESSES_MAX];
        for (size_t i = 0; code == 0 && i < addresses.count; i++) {
            list[i] = (const struct sockaddr *)&addresses.list[i].sockaddr;
        }
        struct kv_server_options options = {.addresses = list, .address_count = addresses.count};
        errno = 0;
        code = code ? code : kv_engine_create(&options, out);
        if (code == 0 || !fallback || errno == EADDRINUSE) {
            return code;
        }
        code = net_resolve(fallback, port, &addresses);
        fallback = NULL;
    }
}

static void close_pair(struct store_host *host) {
    (void)close(host->stop_fds[0]);
    (void)close(host->stop_fds[1]);
}

static int start_thread(struct store_host *host) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, host->stop_fds) != 0) {
        return status_fail_errno(errno, "a pair of sockets for the store server");
    }
    int failed = thread_start(&host->thread, NULL, serve, host);
    if (failed) {
        close_pair(host);
        return status_fail_errno(failed, "start a thread for the store server");
    }
    return 0;
}

int store_host_start(const char *bind_host, uint16_t port, struct store_host **out) {
    struct store_host *host = calloc(1, sizeof *host);
    if (!host) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store server");
    }
    int code = create_engine(bind_host, port, &host->engine);
    if (code) {
        free(host);
        return status_prefix(code, "host the store");
    }
    code = start_thread(host);
    if (code) {
        kv_engine_free(host->engine);
        free(host);
        return code;
    }
    *out = host;
    return 0;
}

uint16_t store_host_port(const struct store_host *host) {
    return kv_engine_port(host->engine); /* does not change */
}

void store_host_stop(struct store_host *host) {
    if (!host) {
        return;
    }
    (void)shutdown(host->stop_fds[1], SHUT_RDWR);
    (void)pthread_join(host->thread, NULL);
    close_pair(host);
    kv_engine_free(host->engine);
    free(host);
}
