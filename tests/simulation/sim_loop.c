/* libuv's calls, as far as the code under test makes them, over the simulated kernel: one loop a process, whose turns
 * are events. Order within a turn is libuv's own (1.44): timers, what is ready, closing handles.
 *
 * The structures are libuv's; of its private fields those are used whose meaning is kept. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "sim_kernel.h"
#include "sim_memory.h"

enum { READS_MAX = 32, TIMERS_FIRST = 16, READY_MAX = 1024 };

/* In a handle's `flags`. */
enum { IS_CLOSING = 1, IS_READING = 2 };

struct sim_loop {
    uv_loop_t uv; /* first: a loop is turned back into this */
    struct sim_host *host;
    uv_timer_t **timers; /* a heap */
    size_t timer_count, timer_capacity;
    struct sim_list ready; /* files whose handles are to be looked at */
    uv_handle_t *closing_first, *closing_last;
    size_t handle_count;
    bool has_new_interests; /* handles that are watched for more since the turn before */
    int64_t turn_us;        /* when the next turn is due; INT64_MAX: none is */
    uv_prepare_t *before;   /* one of each is enough: the loop's clock */
    uv_check_t *after;
    bool in_turn, has_ended;
};

static struct sim_loop *loop_of(const uv_loop_t *uv) {
    return (struct sim_loop *)(uintptr_t)uv;
}

static struct sim_file *file_of_handle(const uv_handle_t *handle) {
    int fd = handle->type == UV_POLL ? ((const uv_poll_t *)handle)->io_watcher.fd
                                     : ((const uv_stream_t *)handle)->io_watcher.fd;
    return fd < 0 ? NULL : sim_file_of(fd);
}

/* ---- turns ---- */

static void on_turn(void *subject, uint64_t token);

/* `at_us` on the kernel's clock. A host that is stalled has its turn afterwards. */
static void want_turn(struct sim_loop *loop, int64_t at_us) {
    if (at_us < loop->turn_us && !loop->in_turn) {
        loop->turn_us = at_us;
        sim_post(at_us, on_turn, loop->host, (uint64_t)loop->host->pid << 32 | (uint32_t)loop->uv.timer_counter);
    }
}

static int64_t first_timer_us(const struct sim_loop *loop) {
    if (loop->timer_count == 0) {
        return INT64_MAX;
    }
    int64_t due_us = sim_time_of(loop->host, (int64_t)loop->timers[0]->timeout * SIM_MS);
    return due_us > sim_kernel.now_us ? due_us : sim_kernel.now_us;
}

static void plan(struct sim_loop *loop) {
    if (!sim_list_is_empty(&loop->ready) || loop->closing_first) {
        want_turn(loop, sim_kernel.now_us);
    } else if (loop->timer_count > 0) {
        want_turn(loop, first_timer_us(loop));
    }
}

void sim_loop_feed(struct sim_file *file) {
    struct sim_loop *loop = loop_of(file->handle->loop);
    if (sim_list_is_empty(&file->in_loop)) {
        sim_list_append(&loop->ready, &file->in_loop);
    }
    want_turn(loop, sim_kernel.now_us);
}

/* ---- timers ---- */

static bool timer_is_before(const uv_timer_t *a, const uv_timer_t *b) {
    return a->timeout < b->timeout || (a->timeout == b->timeout && a->start_id < b->start_id);
}

/* heap_node[0] holds one more than the place; NULL: not started. */
static void place_timer(struct sim_loop *loop, size_t at, uv_timer_t *timer) {
    loop->timers[at] = timer;
    timer->heap_node[0] = (void *)(at + 1);
}

static void sift(struct sim_loop *loop, size_t at) {
    uv_timer_t *timer = loop->timers[at];
    for (; at > 0 && timer_is_before(timer, loop->timers[(at - 1) / 2]); at = (at - 1) / 2) {
        place_timer(loop, at, loop->timers[(at - 1) / 2]);
    }
    for (size_t child = 2 * at + 1; child < loop->timer_count; child = 2 * at + 1) {
        if (child + 1 < loop->timer_count && timer_is_before(loop->timers[child + 1], loop->timers[child])) {
            child++;
        }
        if (!timer_is_before(loop->timers[child], timer)) {
            break;
        }
        place_timer(loop, at, loop->timers[child]);
        at = child;
    }
    place_timer(loop, at, timer);
}

int uv_timer_init(uv_loop_t *uv, uv_timer_t *timer) {
    memset(timer, 0, sizeof *timer);
    timer->loop = uv;
    timer->type = UV_TIMER;
    loop_of(uv)->handle_count++;
    return 0;
}

int uv_timer_stop(uv_timer_t *timer) {
    struct sim_loop *loop = loop_of(timer->loop);
    if (timer->heap_node[0]) {
        size_t at = (size_t)timer->heap_node[0] - 1;
        timer->heap_node[0] = NULL;
        uv_timer_t *last = loop->timers[--loop->timer_count];
        if (last != timer) {
            place_timer(loop, at, last);
            sift(loop, at);
        }
    }
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb cb, uint64_t timeout, uint64_t repeat) {
    struct sim_loop *loop = loop_of(timer->loop);
    if ((timer->flags & IS_CLOSING) || !cb) {
        return UV_EINVAL;
    }
    (void)uv_timer_stop(timer);
    if (loop->timer_count == loop->timer_capacity) {
        loop->timer_capacity = loop->timer_capacity ? 2 * loop->timer_capacity : TIMERS_FIRST;
        loop->timers = sim_memory_resize(loop->timers, loop->timer_capacity * sizeof(uv_timer_t *));
    }
    timer->timer_cb = cb;
    timer->timeout = loop->uv.time + timeout;
    timer->repeat = repeat;
    timer->start_id = loop->uv.timer_counter++;
    place_timer(loop, loop->timer_count, timer);
    sift(loop, loop->timer_count++);
    plan(loop);
    return 0;
}

static void run_timers(struct sim_loop *loop) {
    while (loop->timer_count > 0 && loop->timers[0]->timeout <= loop->uv.time) {
        uv_timer_t *timer = loop->timers[0];
        (void)uv_timer_stop(timer);
        if (timer->repeat) {
            (void)uv_timer_start(timer, timer->timer_cb, timer->repeat, timer->repeat);
        }
        timer->timer_cb(timer);
    }
}

/* ---- uv_poll ---- */

int uv_poll_init(uv_loop_t *uv, uv_poll_t *poll, int fd) {
    struct sim_file *file = sim_file_of(fd);
    if (!file || file->handle) {
        return file ? UV_EEXIST : UV_EBADF;
    }
    memset(poll, 0, sizeof *poll);
    poll->loop = uv;
    poll->type = UV_POLL;
    poll->io_watcher.fd = fd;
    loop_of(uv)->handle_count++;
    return 0;
}

int uv_poll_stop(uv_poll_t *poll) {
    struct sim_file *file = poll->io_watcher.fd < 0 ? NULL : sim_file_of(poll->io_watcher.fd);
    poll->io_watcher.events = 0;
    if (file) {
        file->handle = NULL;
        sim_list_remove(&file->in_loop);
    }
    return 0;
}

int uv_poll_start(uv_poll_t *poll, int events, uv_poll_cb cb) {
    struct sim_file *file = sim_file_of(poll->io_watcher.fd);
    if (!file || (poll->flags & IS_CLOSING)) {
        return UV_EBADF;
    }
    poll->io_watcher.events = (unsigned)(events & UV_READABLE ? POLLIN : 0) | (events & UV_WRITABLE ? POLLOUT : 0);
    poll->poll_cb = cb;
    file->handle = (uv_handle_t *)poll;
    loop_of(poll->loop)->has_new_interests = true;
    sim_file_changed(file);
    return 0;
}

/* As uv__poll_io(): an error ends the watching. */
static void serve_poll(uv_poll_t *poll, struct sim_file *file) {
    uint32_t state = sim_file_state(file) & (poll->io_watcher.events | EPOLLERR | EPOLLHUP);
    if (state == 0) {
        return;
    }
    if (state == EPOLLHUP) {
        state |= poll->io_watcher.events;
    }
    if (state & EPOLLERR) {
        (void)uv_poll_stop(poll);
        poll->poll_cb(poll, UV_EBADF, 0);
        return;
    }
    int events = (state & EPOLLIN ? UV_READABLE : 0) | (state & EPOLLOUT ? UV_WRITABLE : 0);
    poll->poll_cb(poll, 0, events);
}

/* ---- streams ---- */

int uv_tcp_init(uv_loop_t *uv, uv_tcp_t *tcp) {
    memset(tcp, 0, sizeof *tcp);
    tcp->loop = uv;
    tcp->type = UV_TCP;
    tcp->io_watcher.fd = -1;
    loop_of(uv)->handle_count++;
    return 0;
}

int uv_tcp_connect(uv_connect_t *request, uv_tcp_t *tcp, const struct sockaddr *address, uv_connect_cb cb) {
    struct sim_file *file = sim_file_new(SIM_STREAM);
    file->family = address->sa_family;
    file->handle = (uv_handle_t *)tcp;
    tcp->io_watcher.fd = file->fd;
    tcp->connect_req = request;
    request->handle = (uv_stream_t *)tcp;
    request->cb = cb;
    int error = sim_tcp_connect(file, sim_address_of(address));
    return error == EINPROGRESS ? 0 : -error;
}

int uv_tcp_nodelay(uv_tcp_t *tcp, int enable) {
    (void)enable;
    return tcp->io_watcher.fd < 0 ? UV_EBADF : 0;
}

/* libuv sets the idle time alone; Linux's own: nine probes, 75 s apart. */
int uv_tcp_keepalive(uv_tcp_t *tcp, int enable, unsigned delay_s) {
    struct sim_file *file = file_of_handle((uv_handle_t *)tcp);
    if (file) {
        file->keep_alive_us = enable ? (int64_t)(delay_s + 9 * 75) * SIM_S : INT64_MAX;
    }
    return file ? 0 : UV_EBADF;
}

int uv_tcp_getsockname(const uv_tcp_t *tcp, struct sockaddr *out, int *len) {
    struct sim_file *file = file_of_handle((const uv_handle_t *)tcp);
    if (!file) {
        return UV_EBADF;
    }
    socklen_t size = (socklen_t)*len;
    sim_address_put(file, file->local, out, &size);
    *len = (int)size;
    return 0;
}

uv_buf_t uv_buf_init(char *base, unsigned len) {
    return (uv_buf_t){.base = base, .len = len};
}

size_t uv_stream_get_write_queue_size(const uv_stream_t *stream) {
    return stream->write_queue_size;
}

/* A queue of write requests: queue[0] of a stream is the first, queue[1] the last; of a request, the next one. */
static void append_write(void *queue[2], uv_write_t *request) {
    request->queue[0] = NULL;
    if (queue[1]) {
        ((uv_write_t *)queue[1])->queue[0] = request;
    } else {
        queue[0] = request;
    }
    queue[1] = request;
}

static uv_write_t *take_write(void *queue[2]) {
    uv_write_t *first = queue[0];
    if (first) {
        queue[0] = first->queue[0];
        queue[1] = queue[0] ? queue[1] : NULL;
    }
    return first;
}

static void send_queued(uv_stream_t *stream, struct sim_file *file) {
    for (uv_write_t *request = stream->write_queue[0]; request; request = stream->write_queue[0]) {
        uv_buf_t *rest = &request->bufsml[0];
        ssize_t sent = sim_tcp_send(file, rest->base, rest->len);
        if (sent == -EAGAIN) {
            return;
        }
        size_t gone = sent < 0 ? rest->len : (size_t)sent;
        request->error = sent < 0 ? (int)sent : 0;
        rest->base += gone;
        rest->len -= gone;
        stream->write_queue_size -= gone;
        if (rest->len == 0) {
            append_write(stream->write_completed_queue, take_write(stream->write_queue));
            sim_loop_feed(file);
        }
    }
}

int uv_write(uv_write_t *request, uv_stream_t *stream, const uv_buf_t bufs[], unsigned count, uv_write_cb cb) {
    struct sim_file *file = file_of_handle((uv_handle_t *)stream);
    assert(count == 1); /* nobody sends more at once */
    if (!file) {
        return UV_EBADF;
    }
    request->handle = stream;
    request->cb = cb;
    request->error = 0;
    request->bufsml[0] = bufs[0];
    stream->write_queue_size += bufs[0].len;
    append_write(stream->write_queue, request);
    if (!stream->connect_req) {
        send_queued(stream, file);
    }
    return 0;
}

static void complete_writes(uv_stream_t *stream) {
    for (uv_write_t *request = take_write(stream->write_completed_queue); request;
         request = take_write(stream->write_completed_queue)) {
        if (request->cb) {
            request->cb(request, request->error);
        }
    }
}

int uv_read_start(uv_stream_t *stream, uv_alloc_cb alloc_cb, uv_read_cb read_cb) {
    struct sim_file *file = file_of_handle((uv_handle_t *)stream);
    if (!file || (stream->flags & IS_CLOSING)) {
        return file ? UV_EINVAL : UV_ENOTCONN;
    }
    stream->flags |= IS_READING;
    stream->alloc_cb = alloc_cb;
    stream->read_cb = read_cb;
    loop_of(stream->loop)->has_new_interests = true;
    sim_file_changed(file);
    return 0;
}

int uv_read_stop(uv_stream_t *stream) {
    stream->flags &= ~(unsigned)IS_READING;
    return 0;
}

static bool is_reading(const uv_stream_t *stream) {
    return (stream->flags & (IS_READING | IS_CLOSING)) == IS_READING;
}

static void read_some(uv_stream_t *stream, struct sim_file *file) {
    for (int i = 0; i < READS_MAX && is_reading(stream); i++) {
        uv_buf_t room = {0};
        stream->alloc_cb((uv_handle_t *)stream, 64 * 1024, &room);
        if (!room.base || room.len == 0) {
            stream->read_cb(stream, UV_ENOBUFS, &room);
            return;
        }
        ssize_t got = sim_tcp_recv(file, room.base, room.len);
        if (got == -EAGAIN) {
            stream->read_cb(stream, 0, &room); /* whose room it is may take it back */
            return;
        }
        if (got <= 0) {
            stream->flags &= ~(unsigned)IS_READING;
        }
        stream->read_cb(stream, got == 0 ? UV_EOF : got, &room);
        if (got < (ssize_t)room.len) {
            return;
        }
    }
}

static void finish_connect(uv_stream_t *stream, struct sim_file *file) {
    uv_connect_t *request = stream->connect_req;
    if (file->state == SIM_CONNECTING) {
        return;
    }
    int error = file->error;
    file->error = 0;
    stream->connect_req = NULL;
    request->cb(request, -error);
    if (error == 0 && !(stream->flags & IS_CLOSING)) {
        send_queued(stream, file);
    }
}

static void serve_stream(uv_stream_t *stream, struct sim_file *file) {
    if (stream->connect_req) {
        finish_connect(stream, file);
        return;
    }
    complete_writes(stream);
    uint32_t state = sim_file_state(file);
    if ((state & (EPOLLIN | EPOLLERR | EPOLLHUP)) && is_reading(stream)) {
        read_some(stream, file);
    }
    if (!(stream->flags & IS_CLOSING) && (state & EPOLLOUT)) {
        send_queued(stream, file);
    }
}

/* ---- a turn ---- */

static bool is_of_interest(const struct sim_file *file) {
    const uv_handle_t *handle = file->handle;
    uint32_t state = sim_file_state(file);
    if (handle->type == UV_POLL) {
        return state & (((const uv_poll_t *)handle)->io_watcher.events | EPOLLERR | EPOLLHUP);
    }
    const uv_stream_t *stream = (const uv_stream_t *)handle;
    return stream->write_completed_queue[0] || (stream->connect_req && file->state != SIM_CONNECTING) ||
           (is_reading(stream) && (state & (EPOLLIN | EPOLLERR | EPOLLHUP))) ||
           (stream->write_queue[0] && (state & EPOLLOUT));
}

/* Those that are ready when it begins; what they cause is for the next turn. */
static void serve_ready(struct sim_loop *loop) {
    struct sim_list now;
    sim_list_init(&now);
    if (sim_list_is_empty(&loop->ready)) {
        return;
    }
    sim_list_append(&loop->ready, &now); /* a mark */
    while (loop->ready.next != &now) {
        struct sim_list *item = loop->ready.next;
        struct sim_file *file = (struct sim_file *)(void *)((char *)item - offsetof(struct sim_file, in_loop));
        sim_list_remove(item);
        assert(file->handle); /* else it would not be in the list */
        if (file->handle->type == UV_POLL) {
            serve_poll((uv_poll_t *)file->handle, file);
        } else {
            serve_stream((uv_stream_t *)file->handle, file);
        }
        if (file->is_open && file->handle && is_of_interest(file)) {
            sim_loop_feed(file);
        }
    }
    sim_list_remove(&now);
}

static void cancel_stream(uv_stream_t *stream) {
    if (stream->connect_req) {
        uv_connect_t *request = stream->connect_req;
        stream->connect_req = NULL;
        request->cb(request, UV_ECANCELED);
    }
    for (uv_write_t *request = take_write(stream->write_queue); request; request = take_write(stream->write_queue)) {
        request->error = UV_ECANCELED;
        append_write(stream->write_completed_queue, request);
    }
    complete_writes(stream);
}

static void close_handles(struct sim_loop *loop) {
    uv_handle_t *handle = loop->closing_first;
    loop->closing_first = loop->closing_last = NULL;
    while (handle) {
        uv_handle_t *next = handle->next_closing;
        if (handle->type == UV_TCP) {
            cancel_stream((uv_stream_t *)handle);
        }
        loop->handle_count--;
        if (handle->close_cb) {
            handle->close_cb(handle);
        }
        handle = next;
    }
}

void uv_update_time(uv_loop_t *uv) {
    uv->time = (uint64_t)(sim_monotonic_us(loop_of(uv)->host) / SIM_MS);
}

/* ---- before and after waiting ---- */

int uv_prepare_init(uv_loop_t *uv, uv_prepare_t *prepare) {
    memset(prepare, 0, sizeof *prepare);
    prepare->loop = uv;
    prepare->type = UV_PREPARE;
    loop_of(uv)->handle_count++;
    return 0;
}

int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb cb) {
    assert(!loop_of(prepare->loop)->before);
    prepare->prepare_cb = cb;
    loop_of(prepare->loop)->before = prepare;
    return 0;
}

int uv_check_init(uv_loop_t *uv, uv_check_t *check) {
    memset(check, 0, sizeof *check);
    check->loop = uv;
    check->type = UV_CHECK;
    loop_of(uv)->handle_count++;
    return 0;
}

int uv_check_start(uv_check_t *check, uv_check_cb cb) {
    assert(!loop_of(check->loop)->after);
    check->check_cb = cb;
    loop_of(check->loop)->after = check;
    return 0;
}

void uv_unref(uv_handle_t *handle) {
    (void)handle; /* a simulated process ends when it says so */
}

/* Of timers alone: nobody asks for others. */
void uv_walk(uv_loop_t *uv, uv_walk_cb walk_cb, void *arg) {
    const struct sim_loop *loop = loop_of(uv);
    for (size_t i = 0; i < loop->timer_count; i++) {
        walk_cb((uv_handle_t *)loop->timers[i], arg);
    }
}

uint64_t uv_timer_get_due_in(const uv_timer_t *timer) {
    uint64_t now_ms = timer->loop->time;
    return timer->timeout > now_ms ? timer->timeout - now_ms : 0;
}

/* libuv's answer is 0 as well while it has descriptors to hand to the kernel. */
int uv_backend_timeout(const uv_loop_t *uv) {
    const struct sim_loop *loop = loop_of(uv);
    if (loop->closing_first || loop->has_new_interests) {
        return 0;
    }
    if (loop->timer_count == 0) {
        return -1;
    }
    return loop->timers[0]->timeout > uv->time ? (int)(loop->timers[0]->timeout - uv->time) : 0;
}

static void turn(struct sim_loop *loop) {
    sim_kernel.current = loop->host;
    loop->in_turn = true;
    uv_update_time(&loop->uv);
    run_timers(loop);
    serve_ready(loop);
    if (loop->after) {
        loop->after->check_cb(loop->after);
    }
    close_handles(loop);
    if (loop->before) {
        loop->before->prepare_cb(loop->before);
    }
    loop->has_new_interests = false;
    loop->in_turn = false;
    plan(loop);
}

/* The token names the process: an older one's turns do not come. One that was planned earlier in the meantime has run.
 */
static void on_turn(void *subject, uint64_t token) {
    struct sim_host *host = subject;
    struct sim_loop *loop = host->loop;
    if (!loop || (int)(token >> 32) != host->pid || loop->turn_us > sim_kernel.now_us) {
        return;
    }
    loop->turn_us = INT64_MAX;
    if (host->stalled_until_us > sim_kernel.now_us) {
        want_turn(loop, host->stalled_until_us);
        return;
    }
    turn(loop);
}

/* ---- handles and loops ---- */

void uv_close(uv_handle_t *handle, uv_close_cb cb) {
    struct sim_loop *loop = loop_of(handle->loop);
    assert(!(handle->flags & IS_CLOSING));
    handle->flags |= IS_CLOSING;
    handle->close_cb = cb;
    handle->next_closing = NULL;
    if (handle->type == UV_TIMER) {
        (void)uv_timer_stop((uv_timer_t *)handle);
    } else if (handle->type == UV_POLL) {
        (void)uv_poll_stop((uv_poll_t *)handle);
    } else if (handle->type == UV_PREPARE) {
        loop->before = NULL;
    } else if (handle->type == UV_CHECK) {
        loop->after = NULL;
    } else if (file_of_handle(handle)) {
        sim_file_close(file_of_handle(handle));
        ((uv_stream_t *)handle)->io_watcher.fd = -1;
    }
    *(loop->closing_last ? &loop->closing_last->next_closing : &loop->closing_first) = handle;
    loop->closing_last = handle;
    want_turn(loop, sim_kernel.now_us);
}

int uv_tcp_close_reset(uv_tcp_t *tcp, uv_close_cb cb) {
    struct sim_file *file = file_of_handle((uv_handle_t *)tcp);
    if (file) {
        file->gives_up = true;
    }
    uv_close((uv_handle_t *)tcp, cb);
    return 0;
}

int uv_is_active(const uv_handle_t *handle) {
    return handle->type == UV_TIMER ? ((const uv_timer_t *)handle)->heap_node[0] != NULL
                                    : !(handle->flags & IS_CLOSING);
}

int uv_is_closing(const uv_handle_t *handle) {
    return (handle->flags & IS_CLOSING) != 0;
}

uint64_t uv_now(const uv_loop_t *uv) {
    return uv->time;
}

const char *uv_strerror(int code) {
    return code == UV_EOF ? "end of file" : code == UV_ECANCELED ? "operation canceled" : strerror(-code);
}

struct sim_loop *sim_loop_new(struct sim_host *host) {
    struct sim_loop *loop = sim_memory_take(sizeof *loop);
    loop->host = host;
    loop->turn_us = INT64_MAX;
    sim_list_init(&loop->ready);
    uv_update_time(&loop->uv);
    return loop;
}

uv_loop_t *sim_loop_uv(struct sim_loop *loop) {
    return &loop->uv;
}

size_t sim_loop_handle_count(const struct sim_loop *loop) {
    return loop->handle_count;
}

void sim_loop_end(struct sim_loop *loop) {
    loop->in_turn = true; /* no turn is planned any more */
    while (loop->closing_first) {
        close_handles(loop);
    }
    if (loop->handle_count > 0) {
        sim_violated("a process has ended with open handles");
    }
    loop->host->loop = NULL;
    sim_memory_give(loop->timers);
    sim_memory_give(loop);
}
