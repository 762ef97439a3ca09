/* Headers and bodies of messages over MPI; see messages_mpi.h. */
#include "comm/mpi/messages_mpi.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/mpi/mpi_packets.h"

enum {
    SHORT_BYTES_MAX = 3072, /* with its header it fits into what every MPI sends at once, without its peer's help */
    UNSENT_BYTES_MAX = 1 << 20,
    HEADER_TAG = 0,
    BODY_TAG_FIRST = 1,
    BODY_TAG_LAST = 32767, /* that every MPI has */
    HEADERS_PER_LOOK = 32,
    DRAIN_MS = 1000,
    LEFT_GRACE_MS = 100, /* for what a rank has sent before it left */
    LOOKS_PER_CLOCK = 64,
    NAPS_PER_QUESTION = 256 /* to the program, whether it was interrupted: some 25 ms */
};

enum message_state { MESSAGE_POSTED, MESSAGE_MOVING, MESSAGE_ENDED };

/* In comm_message.own. */
struct own {
    _Atomic uint32_t state;
    int code;
    char *detail;       /* owned; of a failure */
    mpi_handle request; /* of the body; MESSAGE_MOVING */
    struct comm_message *next, *previous;
};
_Static_assert(sizeof(struct own) <= COMM_MESSAGE_OWN_BYTES, "fits into a message");

struct list {
    struct comm_message *first, *last;
};

struct messages_mpi {
    struct messages_mpi_config config;
    pthread_mutex_t mutex;
    struct list posted;      /* receives without a message */
    struct list moving;      /* bodies under way, both directions */
    struct mpi_packets out;  /* headers of this rank's sends */
    struct mpi_packets in;   /* headers coming in, in MPI's order */
    struct mpi_packets idle; /* headers that no receive was there for */
    size_t unsent_bytes;
    uint32_t next_body_tag;
    bool *has_left;  /* per rank */
    int64_t left_ns; /* when the last of them had */
    struct messages_mpi *next_of_process, *previous_of_process;
};

/* All of the process: whoever waits brings all forward. */
static struct {
    pthread_mutex_t mutex;
    struct messages_mpi *first;
    _Atomic uint32_t busy_count; /* messages that are not ended; sends on their way among them */
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- lists ---- */

static struct own *own_of(struct comm_message *message) {
    return (struct own *)(void *)message->own;
}

static void list_add(struct list *list, struct comm_message *message) {
    struct own *own = own_of(message);
    own->next = NULL;
    own->previous = list->last;
    if (list->last) {
        own_of(list->last)->next = message;
    } else {
        list->first = message;
    }
    list->last = message;
}

static void list_take(struct list *list, struct comm_message *message) {
    struct own *own = own_of(message);
    if (own->previous) {
        own_of(own->previous)->next = own->next;
    } else {
        list->first = own->next;
    }
    if (own->next) {
        own_of(own->next)->previous = own->previous;
    } else {
        list->last = own->previous;
    }
    own->next = own->previous = NULL;
}

/* ---- ends ---- */

/* detail: this thread's, if code is an error. */
static void end(struct comm_message *message, int code) {
    struct own *own = own_of(message);
    own->code = code;
    own->detail = code ? strdup(muster_detail()) : NULL;
    atomic_store_explicit(&own->state, MESSAGE_ENDED, memory_order_release);
    atomic_fetch_sub_explicit(&process.busy_count, 1, memory_order_relaxed);
}

static int fail_mpi(const struct messages_mpi *m, int error, const char *what) {
    mpi_world_break();
    return mpi_fail(m->config.world->mpi, error, what);
}

void messages_mpi_forget(struct comm_message *message) {
    free(own_of(message)->detail);
    own_of(message)->detail = NULL;
}

bool messages_mpi_has_ended(const struct comm_message *message) {
    const struct own *own = (const struct own *)(const void *)message->own;
    return atomic_load_explicit(&own->state, memory_order_acquire) == MESSAGE_ENDED;
}

/* ---- a message meets its receive ---- */

static int fail_mismatch(const struct messages_mpi *m, const struct comm_message *message,
                         const struct mpi_header *header, uint32_t source) {
    if (header->type != (uint32_t)message->type) {
        return status_fail(MUSTER_EMISMATCH, "rank %u sends elements of %s, rank %u expects elements of %s", source,
                           muster_type_name((enum muster_type)header->type), m->config.rank,
                           muster_type_name(message->type));
    }
    return status_fail(MUSTER_EMISMATCH, "rank %u sends a message of %llu bytes, rank %u has room for %zu", source,
                       (unsigned long long)header->bytes, m->config.rank, message->bytes);
}

static void begin_body(struct messages_mpi *m, struct comm_message *message, const struct mpi_packet *packet) {
    const struct mpi *mpi = m->config.world->mpi;
    struct own *own = own_of(message);
    int error = mpi->calls->irecv(mpi, message->buffer, (int64_t)packet->header.bytes, mpi->byte, (int)packet->source,
                                  (int)packet->header.body_tag, m->config.comm, &own->request);
    if (error) {
        end(message, fail_mpi(m, error, "MPI_Irecv"));
        return;
    }
    atomic_store_explicit(&own->state, MESSAGE_MOVING, memory_order_relaxed);
    list_add(&m->moving, message);
}

/* The message is in no list; the packet is freed. */
static void deliver(struct messages_mpi *m, struct comm_message *message, struct mpi_packet *packet) {
    const struct mpi_header *header = &packet->header;
    if (header->type != (uint32_t)message->type || header->bytes > message->bytes) {
        end(message, fail_mismatch(m, message, header, packet->source));
        free(packet);
        return;
    }
    message->peer = packet->source;
    message->bytes = (size_t)header->bytes;
    if (header->body_tag != 0) {
        begin_body(m, message, packet);
    } else {
        if (header->bytes > 0) {
            memcpy(message->buffer, packet->body, (size_t)header->bytes);
        }
        end(message, 0);
    }
    free(packet);
}

static bool matches(const struct comm_message *message, const struct mpi_packet *packet) {
    return (message->peer == MUSTER_ANY_RANK || message->peer == packet->source) && message->tag == packet->header.tag;
}

static void take_packet(struct messages_mpi *m, struct mpi_packet *packet) {
    for (struct comm_message *message = m->posted.first; message; message = own_of(message)->next) {
        if (matches(message, packet)) {
            list_take(&m->posted, message);
            deliver(m, message, packet);
            return;
        }
    }
    mpi_packets_add(&m->idle, packet);
}

/* ---- looking ---- */

/* Takes a header out of MPI's queue. 0: there was none, or it has been taken (*out_found). */
static int find_header(struct messages_mpi *m, bool *out_found) {
    const struct mpi *mpi = m->config.world->mpi;
    mpi_handle found = 0;
    struct mpi_status status;
    int error = mpi->calls->improbe(mpi, mpi->any_source, HEADER_TAG, m->config.comm, out_found, &found, &status);
    if (error || !*out_found) {
        return error ? fail_mpi(m, error, "MPI_Improbe") : 0;
    }
    if (status.count_bytes < (int64_t)sizeof(struct mpi_header)) {
        mpi_world_break();
        return status_fail(MUSTER_EPROTOCOL, "rank %d has sent a header of %lld bytes", status.source,
                           (long long)status.count_bytes);
    }
    struct mpi_packet *packet = mpi_packet_create((size_t)status.count_bytes - sizeof(struct mpi_header));
    if (!packet) {
        mpi_world_break();
        return MUSTER_ENOMEM;
    }
    packet->source = (uint32_t)status.source;
    error = mpi->calls->imrecv(mpi, &packet->header, status.count_bytes, mpi->byte, &found, &packet->request);
    if (error) {
        free(packet);
        return fail_mpi(m, error, "MPI_Imrecv");
    }
    mpi_packets_add(&m->in, packet);
    return 0;
}

/* Of the request: done? Errors break MPI. */
static int ask(const struct messages_mpi *m, mpi_handle *request, bool *out_done) {
    const struct mpi *mpi = m->config.world->mpi;
    int error = mpi->calls->test(mpi, request, out_done, NULL);
    return error ? fail_mpi(m, error, "MPI_Test") : 0;
}

/* Those that are here go on in MPI's order, which is each sender's. */
static int take_headers(struct messages_mpi *m) {
    int code = 0;
    bool found = true;
    for (int i = 0; code == 0 && found && i < HEADERS_PER_LOOK; i++) {
        code = find_header(m, &found);
    }
    for (bool is_here = true; code == 0 && m->in.first && is_here;) {
        code = ask(m, &m->in.first->request, &is_here);
        if (code == 0 && is_here) {
            take_packet(m, mpi_packets_take(&m->in, &m->in.first));
        }
    }
    return code;
}

static int move_out(struct messages_mpi *m) {
    for (struct mpi_packet **at = &m->out.first; *at;) {
        bool is_gone = false;
        int code = ask(m, &(*at)->request, &is_gone);
        if (code) {
            return code;
        }
        if (is_gone) {
            m->unsent_bytes -= (*at)->bytes;
            free(mpi_packets_take(&m->out, at));
        } else {
            at = &(*at)->next;
        }
    }
    return 0;
}

static int move_bodies(struct messages_mpi *m) {
    struct comm_message *next;
    for (struct comm_message *message = m->moving.first; message; message = next) {
        bool is_done = false;
        next = own_of(message)->next;
        int code = ask(m, &own_of(message)->request, &is_done);
        if (code) {
            return code;
        }
        if (is_done) {
            list_take(&m->moving, message);
            end(message, 0);
        }
    }
    return 0;
}

static void end_all(struct list *list, int code) {
    while (list->first) {
        struct comm_message *message = list->first;
        list_take(list, message);
        end(message, code);
    }
}

/* Can nothing come for it any more? Then *out_who has left, or has left last. */
static bool waits_for_leavers(const struct messages_mpi *m, const struct comm_message *message, uint32_t *out_who) {
    *out_who = message->peer;
    if (message->peer != MUSTER_ANY_RANK) {
        return m->has_left[message->peer];
    }
    for (uint32_t rank = 0; rank < m->config.size; rank++) {
        if (rank != m->config.rank && !m->has_left[rank]) {
            return false;
        }
        *out_who = rank != m->config.rank ? rank : *out_who;
    }
    return true;
}

static int fail_left(const struct messages_mpi *m, const struct comm_message *message, uint32_t who) {
    bool others = message->peer == MUSTER_ANY_RANK && m->config.size > 2;
    return status_fail(MUSTER_EPEER, "rank %u on host %s has left%s: it has freed its group", who,
                       m->config.host_name(m->config.context, m->config.peers[who]),
                       others ? ", as all others have" : "");
}

/* Sends to ranks that have left. MPI cannot take them back. */
static void end_sends_to_leavers(struct messages_mpi *m) {
    struct comm_message *next;
    for (struct comm_message *message = m->moving.first; message; message = next) {
        next = own_of(message)->next;
        if (message->is_send && m->has_left[message->peer]) {
            mpi_world_break();
            list_take(&m->moving, message);
            end(message, fail_left(m, message, message->peer));
        }
    }
}

/* Receives from ranks that have left, and whose last messages have had time to come; sends to them, which have had time
 * to be taken. */
static void end_those_of_leavers(struct messages_mpi *m) {
    struct comm_message *next;
    if (m->left_ns == 0 || clock_monotonic_ns() < m->left_ns + LEFT_GRACE_MS * CLOCK_NS_PER_MS) {
        return;
    }
    end_sends_to_leavers(m);
    for (struct comm_message *message = m->posted.first; message; message = next) {
        uint32_t who;
        next = own_of(message)->next;
        if (waits_for_leavers(m, message, &who)) {
            list_take(&m->posted, message);
            end(message, fail_left(m, message, who));
        }
    }
}

/* The mutex is held. */
static void move(struct messages_mpi *m) {
    if (!mpi_world_enter(m->config.world)) {
        int code = mpi_world_fail_broken();
        end_all(&m->posted, code);
        end_all(&m->moving, code);
        return;
    }
    int code = take_headers(m);
    code = code ? code : move_out(m);
    code = code ? code : move_bodies(m);
    mpi_world_leave(m->config.world);
    if (code) {
        end_all(&m->posted, code);
        end_all(&m->moving, code);
        return;
    }
    end_those_of_leavers(m);
}

void messages_mpi_progress(struct messages_mpi *m) {
    (void)pthread_mutex_lock(&m->mutex);
    move(m);
    (void)pthread_mutex_unlock(&m->mutex);
}

void messages_mpi_progress_all(void) {
    if (atomic_load_explicit(&process.busy_count, memory_order_relaxed) == 0) {
        return;
    }
    (void)pthread_mutex_lock(&process.mutex);
    for (struct messages_mpi *m = process.first; m; m = m->next_of_process) {
        messages_mpi_progress(m);
    }
    (void)pthread_mutex_unlock(&process.mutex);
}

void messages_mpi_peer_left(struct messages_mpi *m, uint32_t rank) {
    (void)pthread_mutex_lock(&m->mutex);
    if (!m->has_left[rank]) {
        m->has_left[rank] = true;
        m->left_ns = clock_monotonic_ns();
    }
    (void)pthread_mutex_unlock(&m->mutex);
}

/* ---- posting ---- */

static int send_header(struct messages_mpi *m, const struct comm_message *message, struct mpi_packet *packet) {
    const struct mpi *mpi = m->config.world->mpi;
    int error = mpi->calls->isend(mpi, &packet->header, (int64_t)(sizeof packet->header + packet->bytes), mpi->byte,
                                  (int)message->peer, HEADER_TAG, m->config.comm, &packet->request);
    if (error) {
        free(packet);
        return fail_mpi(m, error, "MPI_Isend");
    }
    m->unsent_bytes += packet->bytes;
    mpi_packets_add(&m->out, packet);
    return 0;
}

static int send_body(struct messages_mpi *m, struct comm_message *message, int tag) {
    const struct mpi *mpi = m->config.world->mpi;
    struct own *own = own_of(message);
    int error = mpi->calls->isend(mpi, message->buffer, (int64_t)message->bytes, mpi->byte, (int)message->peer, tag,
                                  m->config.comm, &own->request);
    if (error) {
        return fail_mpi(m, error, "MPI_Isend");
    }
    atomic_store_explicit(&own->state, MESSAGE_MOVING, memory_order_relaxed);
    list_add(&m->moving, message);
    return 0;
}

static uint32_t take_body_tag(struct messages_mpi *m) {
    uint32_t tag = m->next_body_tag;
    m->next_body_tag = tag == BODY_TAG_LAST ? BODY_TAG_FIRST : tag + 1;
    return tag;
}

static int post_send(struct messages_mpi *m, struct comm_message *message) {
    if (m->has_left[message->peer]) {
        return fail_left(m, message, message->peer);
    }
    bool is_short = message->bytes <= SHORT_BYTES_MAX && m->unsent_bytes <= UNSENT_BYTES_MAX;
    struct mpi_packet *packet = mpi_packet_create(is_short ? message->bytes : 0);
    if (!packet) {
        return MUSTER_ENOMEM;
    }
    packet->header = (struct mpi_header){.tag = message->tag,
                                         .type = (uint32_t)message->type,
                                         .bytes = message->bytes,
                                         .body_tag = is_short ? 0 : take_body_tag(m)};
    if (packet->bytes > 0) {
        memcpy(packet->body, message->buffer, packet->bytes);
    }
    int body_tag = (int)packet->header.body_tag;
    int code = send_header(m, message, packet);
    if (code || !is_short) {
        return code ? code : send_body(m, message, body_tag);
    }
    end(message, 0);
    return 0;
}

static int post_receive(struct messages_mpi *m, struct comm_message *message) {
    for (struct mpi_packet **at = &m->idle.first; *at; at = &(*at)->next) {
        if (matches(message, *at)) {
            deliver(m, message, mpi_packets_take(&m->idle, at));
            return 0;
        }
    }
    list_add(&m->posted, message);
    return 0;
}

int messages_mpi_post(struct messages_mpi *m, struct comm_message *message) {
    struct own *own = own_of(message);
    memset(own, 0, sizeof *own);
    (void)pthread_mutex_lock(&m->mutex);
    if (!mpi_world_enter(m->config.world)) {
        (void)pthread_mutex_unlock(&m->mutex);
        return mpi_world_fail_broken();
    }
    atomic_fetch_add_explicit(&process.busy_count, 1, memory_order_relaxed);
    int code = message->is_send ? post_send(m, message) : post_receive(m, message);
    mpi_world_leave(m->config.world);
    (void)pthread_mutex_unlock(&m->mutex);
    if (code) {
        atomic_fetch_sub_explicit(&process.busy_count, 1, memory_order_relaxed);
    }
    return code;
}

/* ---- waiting ---- */

/* The first error of one that has ended; else ENGINE_DONE or ENGINE_UNDER_WAY. */
static int look(struct comm_message *const *waited, size_t count) {
    int result = ENGINE_DONE;
    for (size_t i = 0; i < count; i++) {
        const struct own *own = own_of(waited[i]);
        if (!messages_mpi_has_ended(waited[i])) {
            result = ENGINE_UNDER_WAY;
        } else if (own->code) {
            return status_fail(own->code, "%s", own->detail ? own->detail : "no memory for the detail");
        }
    }
    return result;
}

/* Between two looks: waits, and sometimes asks whether there is a reason to give up. */
static int wait_and_watch(struct messages_mpi *m, struct mpi_patience *patience, int64_t deadline_ns) {
    struct comm_waiter *waiter = m->config.waiter;
    uint32_t naps = patience->naps;
    bool asks = mpi_patience_wait(patience, waiter) || patience->looks % LOOKS_PER_CLOCK == 0;
    if (!asks) {
        return 0;
    }
    if (waiter->idle) {
        (void)waiter->idle(waiter->context);
    }
    int code = atomic_load_explicit(&waiter->alarm, memory_order_acquire) ? waiter->stopped(waiter->context) : 0;
    if (code == 0 && waiter->woken && patience->naps > naps && naps % NAPS_PER_QUESTION == 0) {
        waiter->woken(waiter->context);
    }
    return code ? code : clock_monotonic_ns() >= deadline_ns ? MUSTER_ETIMEOUT : 0;
}

/* Those that have not ended: what MPI moves cannot be taken back, so MPI is left alone from now on. */
static void withdraw(struct messages_mpi *m, struct comm_message *const *waited, size_t count) {
    (void)pthread_mutex_lock(&m->mutex);
    for (size_t i = 0; i < count; i++) {
        struct own *own = own_of(waited[i]);
        if (messages_mpi_has_ended(waited[i])) {
            messages_mpi_forget(waited[i]);
            continue;
        }
        bool is_moving = atomic_load_explicit(&own->state, memory_order_relaxed) == MESSAGE_MOVING;
        if (is_moving) {
            mpi_world_break();
        }
        list_take(is_moving ? &m->moving : &m->posted, waited[i]);
        end(waited[i], 0);
    }
    (void)pthread_mutex_unlock(&m->mutex);
}

int messages_mpi_wait(struct messages_mpi *m, struct comm_message *const *waited, size_t count, int64_t deadline_ns) {
    struct mpi_patience patience = {0};
    messages_mpi_progress(m);
    int code = look(waited, count);
    while (code == ENGINE_UNDER_WAY) {
        code = wait_and_watch(m, &patience, deadline_ns);
        if (code == 0) {
            messages_mpi_progress_all();
            code = look(waited, count);
        }
    }
    if (code < 0) {
        char detail[MUSTER_DETAIL_MAX];
        const struct muster_failure failure = status_failure();
        (void)str_copy(detail, sizeof detail, muster_detail());
        withdraw(m, waited, count);
        return code == MUSTER_ETIMEOUT ? code : status_restore(code, detail, &failure);
    }
    return code;
}

/* ---- letting go ---- */

/* What MPI moves cannot be taken back. Gives it a moment to end; then MPI is left alone. message: NULL: of all. */
static int settle(struct messages_mpi *m, const struct comm_message *message) {
    int64_t until_ns = clock_monotonic_ns() + DRAIN_MS * CLOCK_NS_PER_MS;
    struct mpi_patience patience = {0};
    bool is_moving = true;
    while (is_moving && !mpi_world_is_broken() && clock_monotonic_ns() < until_ns) {
        messages_mpi_progress(m);
        (void)pthread_mutex_lock(&m->mutex);
        is_moving = message ? !messages_mpi_has_ended(message) : m->moving.first != NULL;
        (void)pthread_mutex_unlock(&m->mutex);
        if (is_moving) {
            (void)mpi_patience_wait(&patience, m->config.waiter);
        }
    }
    if (!is_moving) {
        return 0;
    }
    mpi_world_break();
    return status_fail(MUSTER_ESYSTEM,
                       "MPI cannot take back what it has begun to move: wait for it before it is freed");
}

int messages_mpi_let_go(struct messages_mpi *m, struct comm_message *message) {
    struct own *own = own_of(message);
    messages_mpi_progress(m);
    (void)pthread_mutex_lock(&m->mutex);
    if (atomic_load_explicit(&own->state, memory_order_relaxed) == MESSAGE_POSTED) {
        list_take(&m->posted, message);
        end(message, 0);
    }
    (void)pthread_mutex_unlock(&m->mutex);
    int code = messages_mpi_has_ended(message) ? 0 : settle(m, message);
    (void)pthread_mutex_lock(&m->mutex);
    if (!messages_mpi_has_ended(message)) {
        list_take(&m->moving, message);
        end(message, 0);
    }
    messages_mpi_forget(message);
    (void)pthread_mutex_unlock(&m->mutex);
    return code;
}

void messages_mpi_let_go_all(struct messages_mpi *m) {
    if (!m) {
        return;
    }
    messages_mpi_progress(m);
    (void)pthread_mutex_lock(&m->mutex);
    end_all(&m->posted, 0);
    bool is_moving = m->moving.first != NULL;
    (void)pthread_mutex_unlock(&m->mutex);
    if (is_moving) {
        (void)settle(m, NULL);
    }
    (void)pthread_mutex_lock(&m->mutex);
    end_all(&m->moving, 0);
    (void)pthread_mutex_unlock(&m->mutex);
}

/* ---- life ---- */

int messages_mpi_create(const struct messages_mpi_config *config, struct messages_mpi **out) {
    struct messages_mpi *m = calloc(1, sizeof *m);
    bool *has_left = calloc(config->size, sizeof *has_left);
    if (!m || !has_left) {
        free(has_left);
        free(m);
        return status_fail(MUSTER_ENOMEM, "no memory for messages among %u ranks", config->size);
    }
    m->config = *config;
    m->has_left = has_left;
    m->next_body_tag = BODY_TAG_FIRST;
    mpi_packets_init(&m->out);
    mpi_packets_init(&m->in);
    mpi_packets_init(&m->idle);
    (void)pthread_mutex_init(&m->mutex, NULL);
    (void)pthread_mutex_lock(&process.mutex);
    m->next_of_process = process.first;
    if (process.first) {
        process.first->previous_of_process = m;
    }
    process.first = m;
    (void)pthread_mutex_unlock(&process.mutex);
    *out = m;
    return 0;
}

static void drain(struct messages_mpi *m) {
    int64_t until_ns = clock_monotonic_ns() + DRAIN_MS * CLOCK_NS_PER_MS;
    struct mpi_patience patience = {0};
    messages_mpi_progress(m);
    for (const struct mpi_packet *seen = NULL; m->idle.first && seen != mpi_packets_last(&m->idle);) {
        seen = mpi_packets_last(&m->idle); /* what nobody has received, and nobody will, is to leave MPI's queue, too */
        messages_mpi_progress(m);
    }
    while (m->out.first && !mpi_world_is_broken() && clock_monotonic_ns() < until_ns) {
        (void)mpi_patience_wait(&patience, m->config.waiter);
        messages_mpi_progress(m);
    }
}

void messages_mpi_free(struct messages_mpi *m) {
    if (!m) {
        return;
    }
    drain(m);
    (void)pthread_mutex_lock(&process.mutex);
    if (m->next_of_process) {
        m->next_of_process->previous_of_process = m->previous_of_process;
    }
    *(m->previous_of_process ? &m->previous_of_process->next_of_process : &process.first) = m->next_of_process;
    (void)pthread_mutex_unlock(&process.mutex);
    if (m->out.first || m->in.first) {
        mpi_world_break(); /* their memory is MPI's for ever */
        return;
    }
    mpi_packets_free(&m->idle);
    (void)pthread_mutex_destroy(&m->mutex);
    free(m->has_left);
    free(m);
}
