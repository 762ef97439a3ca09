/* kv_engine.h on a libuv loop: one poll handle on its one descriptor, however many clients there are. */
#include "store/server/kv_server.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/status.h"

struct kv_server {
    uv_poll_t poll;
    struct kv_engine *engine;
};

static void on_ready(uv_poll_t *poll, int status, int events) {
    struct kv_server *server = poll->data;
    (void)status; /* an error on an epoll descriptor has no meaning; the turn finds out what there is */
    (void)events;
    kv_engine_turn(server->engine);
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

int kv_server_create(uv_loop_t *loop, const struct kv_server_options *options, struct kv_server **out) {
    struct kv_server *server = calloc(1, sizeof *server);
    if (!server) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store server");
    }
    int code = kv_engine_create(options, &server->engine);
    if (code) {
        int error_number = errno;
        free(server);
        errno = error_number;
        return code;
    }
    int failed = uv_poll_init(loop, &server->poll, kv_engine_fd(server->engine));
    if (failed) {
        kv_engine_free(server->engine);
        free(server);
        errno = -failed;
        return status_fail(MUSTER_ESYSTEM, "watch the store server: %s", uv_strerror(failed));
    }
    server->poll.data = server;
    failed = uv_poll_start(&server->poll, UV_READABLE, on_ready);
    assert(failed == 0); /* only for a closing handle or a bad event */
    *out = server;
    return 0;
}

uint16_t kv_server_port(const struct kv_server *server) {
    return kv_engine_port(server->engine);
}

const struct sockaddr *kv_server_address(const struct kv_server *server) {
    return kv_engine_address(server->engine);
}

bool kv_server_get(const struct kv_server *server, struct kv_slice key, struct kv_slice *out) {
    return kv_engine_get(server->engine, key, out);
}

int kv_server_set(struct kv_server *server, struct kv_slice key, struct kv_slice value) {
    return kv_engine_set(server->engine, key, value);
}

void kv_server_reset(struct kv_server *server) {
    kv_engine_reset(server->engine);
}

void kv_server_reset_but(struct kv_server *server, const struct kv_keep *keep) {
    kv_engine_reset_but(server->engine, keep);
}

void kv_server_close(struct kv_server *server) {
    if (server) {
        uv_close((uv_handle_t *)&server->poll, on_closed); /* before its descriptor goes */
        kv_engine_free(server->engine);
    }
}
