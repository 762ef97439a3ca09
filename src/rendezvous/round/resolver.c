/* Name resolution on a detached thread; see resolver.h. The two sides share a box that the last of them frees. */
#include "rendezvous/round/resolver.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "base/system/thread.h"
#include "net/host_name.h"

struct box {
    atomic_int users;
    atomic_bool is_filled; /* stored by the thread, after the rest */
    int fd;                /* eventfd: readable once the rest is filled in */
    char host[NET_HOST_MAX];
    uint16_t port;
    int status;
    char detail[MUSTER_DETAIL_MAX];
    struct net_addresses addresses;
    bool is_own_name; /* `host` is the answer */
};

struct resolver {
    uv_poll_t poll;
    struct box *box;
    resolver_cb *cb;
    resolver_name_cb *name_cb; /* in its place */
    void *ctx;
};

static void box_release(struct box *box) {
    if (atomic_fetch_sub(&box->users, 1) == 1) {
        (void)close(box->fd);
        free(box);
    }
}

static void *resolve(void *arg) {
    struct box *box = arg;
    if (box->is_own_name) {
        net_full_host_name(box->host);
    } else {
        box->status = net_resolve(box->host, box->port, &box->addresses);
    }
    if (box->status != MUSTER_OK) {
        (void)str_copy(box->detail, sizeof box->detail, muster_detail());
    }
    atomic_store_explicit(&box->is_filled, true, memory_order_release);
    uint64_t one = 1;
    ssize_t written = write(box->fd, &one, sizeof one);
    (void)written; /* a fresh eventfd takes it */
    box_release(box);
    return NULL;
}

static void on_ready(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    struct resolver *resolver = poll->data;
    struct box *box = resolver->box;
    (void)uv_poll_stop(poll);
    bool is_filled = atomic_load_explicit(&box->is_filled, memory_order_acquire);
    assert(is_filled);
    if (box->is_own_name) {
        resolver->name_cb(resolver->ctx, box->host); /* may close the resolver, as below */
        return;
    }
    int result = box->status;
    if (result != MUSTER_OK) {
        result = status_fail(result, "%s", box->detail);
    }
    resolver->cb(resolver->ctx, result, &box->addresses); /* may close the resolver */
}

static int start_thread(struct box *box) {
    pthread_t thread;
    pthread_attr_t attributes;
    int error_number = pthread_attr_init(&attributes);
    if (error_number == 0) {
        (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error_number = thread_start(&thread, &attributes, resolve, box);
        (void)pthread_attr_destroy(&attributes);
    }
    return error_number;
}

static int box_create(const char *host, uint16_t port, struct box **out) {
    struct box *box = calloc(1, sizeof *box);
    if (!box) {
        return status_fail(MUSTER_ENOMEM, "no memory to resolve '%s'", host);
    }
    atomic_init(&box->users, 1);
    box->port = port;
    (void)str_copy(box->host, sizeof box->host, host);
    box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (box->fd < 0) {
        int rc = status_fail_errno(errno, "resolve '%s': eventfd", host);
        free(box);
        return rc;
    }
    *out = box;
    return MUSTER_OK;
}

/* The thread starts once the box says what is to be found. */
static int create(const char *host, uint16_t port, struct resolver **out) {
    struct resolver *resolver = calloc(1, sizeof *resolver);
    if (!resolver) {
        return status_fail(MUSTER_ENOMEM, "no memory to resolve '%s'", host);
    }
    int rc = box_create(host, port, &resolver->box);
    if (rc != MUSTER_OK) {
        free(resolver);
        return rc;
    }
    *out = resolver;
    return MUSTER_OK;
}

static int begin(uv_loop_t *loop, struct resolver *resolver, struct resolver **out) {
    int failed = uv_poll_init(loop, &resolver->poll, resolver->box->fd);
    if (failed != 0) {
        box_release(resolver->box);
        free(resolver);
        return status_fail(MUSTER_ESYSTEM, "resolve a name: %s", uv_strerror(failed));
    }
    resolver->poll.data = resolver;
    (void)uv_poll_start(&resolver->poll, UV_READABLE, on_ready);
    atomic_fetch_add(&resolver->box->users, 1);
    int error_number = start_thread(resolver->box);
    if (error_number != 0) {
        atomic_fetch_sub(&resolver->box->users, 1);
        resolver_close(resolver);
        return status_fail_errno(error_number, "resolve a name: thread");
    }
    *out = resolver;
    return MUSTER_OK;
}

int resolver_start(uv_loop_t *loop, const char *host, uint16_t port, resolver_cb *cb, void *ctx,
                   struct resolver **out) {
    struct resolver *resolver;
    int rc = create(host, port, &resolver);
    if (rc != MUSTER_OK) {
        return rc;
    }
    resolver->cb = cb;
    resolver->ctx = ctx;
    return begin(loop, resolver, out);
}

int resolver_start_own_name(uv_loop_t *loop, resolver_name_cb *cb, void *ctx, struct resolver **out) {
    struct resolver *resolver;
    int rc = create("", 0, &resolver);
    if (rc != MUSTER_OK) {
        return rc;
    }
    resolver->box->is_own_name = true;
    resolver->name_cb = cb;
    resolver->ctx = ctx;
    return begin(loop, resolver, out);
}

static void on_closed(uv_handle_t *handle) {
    struct resolver *resolver = handle->data;
    box_release(resolver->box); /* not earlier: the descriptor is in the loop until now */
    free(resolver);
}

void resolver_close(struct resolver *resolver) {
    if (resolver) {
        uv_close((uv_handle_t *)&resolver->poll, on_closed);
    }
}
