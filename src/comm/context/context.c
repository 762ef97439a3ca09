/* Life of a context: meeting, the shared segment, links, monitor and memory. What it does when a peer is gone is in
 * context_peers.c. See context.h. */
#include "comm/context/context.h"
#include "comm/context/generation.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/context/kv_lost.h"
#include "comm/host/bell.h"
#include "comm/observe/recorder.h"
#include "comm/observe/trace.h"

enum {
    LOOK_MS = 50,  /* how often to look after a neighbour while waiting for the store */
    RING_MS = 5000 /* for the first ranks of the hosts beside this one to be connected */
};

/* The first failure of a rank that could not make the group. */
static const char failed_key[] = "failed";

/* ---- the segment's layout ---- */

static size_t align_up(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static size_t roster_offset(uint32_t local_count) {
    return SEGMENT_HEADER_BYTES + align_up(local_count * sizeof(struct context_line));
}

static size_t directory_offset(uint32_t local_count) {
    return roster_offset(local_count) + roster_bytes(local_count);
}

static size_t rings_offset(uint32_t local_count) {
    return directory_offset(local_count) + align_up(memory_directory_bytes(local_count));
}

static size_t segment_bytes(uint32_t local_count) {
    return rings_offset(local_count) + p2p_rings_bytes(local_count);
}

static void attend(void *argument) {
    p2p_attend(((struct context *)argument)->p2p);
}

/* ---- results in the store ---- */

/* u32 status, then bytes, or the detail of a failure. */
static size_t encode_result(int status, const void *data, size_t len, uint8_t *out, size_t max) {
    struct bytes_writer w = {out, max, 0, false};
    bytes_put_number(&w, (uint32_t)status, 4);
    bytes_put(&w, status ? muster_detail() : data, status ? strlen(muster_detail()) : len);
    assert(!w.overrun);
    return w.used;
}

int context_put_result(const struct context *context, const char *key, int status, const void *data, size_t len) {
    uint8_t bytes[MUSTER_DETAIL_MAX + 4];
    size_t used = encode_result(status, data, len, bytes, sizeof bytes);
    return context->kv.set(context->kv.context, key, bytes, used);
}

static int read_result(const struct muster_store_value *value, const char *key, void *data, size_t len) {
    struct bytes_reader r = {value->data, value->len, 0, false};
    int status = (int)(int32_t)(uint32_t)bytes_get_number(&r, 4);
    if (r.overrun || status > 0 || (status == 0 && value->len - r.used != len)) {
        return status_fail(MUSTER_EPROTOCOL, "the value of %s in the store is not understood", key);
    }
    if (status) {
        return status_fail(status, "%.*s", (int)(value->len - r.used), (const char *)value->data + r.used);
    }
    if (len > 0) {
        memcpy(data, value->data + r.used, len);
    }
    return 0;
}

/* A process of this host is to blame. Returns `code`. */
static int blame_local(const struct context *context, const struct bootstrap_local *local, int code) {
    struct identity identity = {.pid = local->pid};
    (void)str_format(identity.host_name, sizeof identity.host_name, "%s", context_host_name(context, local->rank));
    return bootstrap_blame(local->rank, &identity, code);
}

int context_get_result(const struct context *context, const char *key, uint32_t root_rank, int64_t deadline_ns,
                       void *data, size_t len) {
    const struct bootstrap_local *from = &context->bootstrap.locals[context_local_of(context, root_rank)];
    struct muster_store_value value = {0};
    int code = MUSTER_ETIMEOUT;
    while (code == MUSTER_ETIMEOUT) {
        int64_t left_ms = clock_remaining_ms(deadline_ns);
        bool was_alive = monitor_is_alive(from->pid, from->start_time);
        code = context->kv.get(context->kv.context, key, left_ms < LOOK_MS ? left_ms : LOOK_MS, &value);
        if (code == MUSTER_ETIMEOUT && !was_alive) {
            code = status_fail(MUSTER_EPEER, "rank %u (pid %d on this host) is gone", root_rank, (int)from->pid);
            return blame_local(context, from, code);
        }
        if (code == MUSTER_ETIMEOUT && left_ms == 0) {
            code = status_fail(code, "rank %u (pid %d on this host) did not make its shared memory in time", root_rank,
                               (int)from->pid);
            return blame_local(context, from, code);
        }
    }
    code = code ? code : read_result(&value, key, data, len);
    muster_store_value_free(&value);
    return code;
}

/* A value that ranks of other hosts wait for is a failure instead: its status, negative, stands in front. */
static bool is_failure(const struct muster_store_value *value) {
    struct bytes_reader r = {value->data, value->len, 0, false};
    int32_t status = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    return !r.overrun && status < 0;
}

int context_first_failure(const struct context *context, int status) {
    uint8_t bytes[MUSTER_DETAIL_MAX + 4];
    char own[MUSTER_DETAIL_MAX], key[GENERATION_KEY_BYTES];
    const struct muster_failure failure = status_failure();
    struct muster_store_value value = {0};
    (void)str_format(own, sizeof own, "%s", muster_detail());
    (void)status_prefix(status, "rank %u could not make the group", context->rank);
    size_t used = encode_result(status, NULL, 0, bytes, sizeof bytes);
    if (context->bootstrap.topology.host_count > 1) {
        generation_contact_key(context->rank, key);
        (void)context->kv.set(context->kv.context, key, bytes, used);
    }
    int code = context->kv.set_if_absent(context->kv.context, failed_key, bytes, used, &value);
    bool is_other = code == 0 && is_failure(&value) && (value.len != used || memcmp(value.data, bytes, used) != 0);
    code = is_other ? read_result(&value, failed_key, NULL, 0) : status_restore(status, own, &failure);
    muster_store_value_free(&value);
    return code;
}

/* ---- where peers can be reached ---- */

static int fetch_contact(void *argument, uint32_t rank, int64_t deadline_ns, uint8_t out[P2P_CONTACT_BYTES_MAX],
                         size_t *out_len) {
    struct context *context = argument;
    struct muster_store_value value = {0};
    char key[GENERATION_KEY_BYTES];
    struct kv_lost lost; /* it may have died after it was counted, and before it said where it is */
    const struct comm_kv kv = kv_lost_watch(&lost, context->kv, context->owned_store, context->size);
    generation_contact_key(rank, key);
    int code = kv.get(kv.context, key, clock_remaining_ms(deadline_ns), &value);
    if (code) {
        return status_prefix(code, "where rank %u can be reached", rank);
    }
    if (generation_is_farewell(&value)) {
        code = status_fail(MUSTER_EPEER,
                           "rank %u has ended while the group was made; another process has come in its place", rank);
    } else if (is_failure(&value)) {
        code = read_result(&value, key, NULL, 0);
    } else if (value.len > P2P_CONTACT_BYTES_MAX) {
        code = status_fail(MUSTER_EPROTOCOL, "the address of rank %u in the store has %zu bytes", rank, value.len);
    } else {
        memcpy(out, value.data, value.len);
        *out_len = value.len;
    }
    muster_store_value_free(&value);
    return code;
}

static int publish_contact(struct context *context) {
    uint8_t bytes[P2P_CONTACT_BYTES_MAX];
    char key[GENERATION_KEY_BYTES];
    if (context->bootstrap.topology.host_count == 1) {
        return 0; /* all are neighbours */
    }
    generation_contact_key(context->rank, key);
    return context->kv.set(context->kv.context, key, bytes, p2p_contact(context->p2p, bytes));
}

/* A rank that did not connect in time: has it said why? 0: it has said nothing. */
static int ask_absent(struct context *context, uint32_t rank) {
    struct muster_store_value value = {0};
    char key[GENERATION_KEY_BYTES];
    generation_contact_key(rank, key);
    int code = context->kv.get(context->kv.context, key, 0, &value) == 0 && is_failure(&value)
                   ? read_result(&value, key, NULL, 0)
                   : 0;
    muster_store_value_free(&value);
    return code;
}

/* ---- life ---- */

/* A page that reads 1, and 0 in a child of fork(): it has neither the threads nor a rank. */
static int make_alive_page(struct context *context) {
    void *page = mmap(NULL, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return status_fail_errno(errno, "map a page");
    }
    (void)madvise(page, sizeof(uint32_t), MADV_WIPEONFORK);
    *(volatile uint32_t *)page = 1;
    context->alive = page;
    return 0;
}

static int open_keys(struct context *context, const struct context_config *config) {
    if (!config->store) {
        assert(config->size == 1);
        return comm_kv_alone_create(&context->alone, &context->kv);
    }
    char prefix[MUSTER_GROUP_NAME_MAX + 32];
    (void)str_format(prefix, sizeof prefix, "muster/%s/%u-ranks", config->name, config->size);
    int code = muster_store_prefix(config->store, prefix, &context->meeting_store);
    if (code == 0) {
        context->kv = comm_kv_of_store(context->meeting_store);
    }
    return code;
}

/* From now on keys are those of the processes that have met. */
static int enter_generation(struct context *context) {
    char prefix[32];
    if (!context->meeting_store) {
        return 0; /* alone */
    }
    if (context->bootstrap.topology.host_count > 1) {
        (void)str_format(prefix, sizeof prefix, "%u", context->bootstrap.generation);
    } else { /* the number is free again once they have met, for groups that live beside this one */
        (void)str_format(prefix, sizeof prefix, "%u-%08x", context->bootstrap.generation, context->bootstrap.token);
    }
    int code = muster_store_prefix(context->meeting_store, prefix, &context->store);
    if (code == 0) {
        context->kv = comm_kv_of_store(context->store);
    }
    return code;
}

int context_create(const struct context_config *config, int64_t deadline_ns, struct context **out) {
    struct context *context = calloc(1, sizeof *context);
    if (!context) {
        if (config->owns_store) {
            muster_store_close(config->store);
        }
        return status_fail(MUSTER_ENOMEM, "no memory for a group");
    }
    if (config->size > 1) {
        (void)comm_bell_settle_barriers();
    }
    const char *may_read = getenv("MUSTER_CMA");
    context->rank = config->rank;
    context->size = config->size;
    context->owned_store = config->owns_store ? config->store : NULL;
    context->may_read_peers = !(may_read && strcmp(may_read, "0") == 0);
    context->next_group_number = 1;
    context->alarm = roster_no_alarm();
    context->hooks = config->hooks;
    context->logs_calls = config->logs_calls;
    context->interrupted = config->interrupted;
    context->interrupted_context = config->interrupted_context;
    trace_rank(config->rank, config->size);
    context->notes_messages = trace_enabled() || context->logs_calls;
    context->recorder = recorder_acquire(config->rank, config->size);
    (void)pthread_mutex_init(&context->mutex, NULL);
    context->peers = calloc(config->size, sizeof *context->peers);
    int code = context->peers ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", config->size);
    code = code ? code : make_alive_page(context);
    code = code ? code : open_keys(context, config);
    const char *choice_file = getenv("MUSTER_CHOICE_FILE");
    if (code == 0 && choice_file && *choice_file) {
        code = choice_load(choice_file, &context->choice);
    }
    const struct bootstrap_terms terms = {choice_hash(context->choice), config->engine_wish, config->engine_facts};
    struct kv_lost lost;
    const struct comm_kv meeting = kv_lost_watch(&lost, context->kv, context->owned_store, config->size);
    code = code ? code : bootstrap_run(&meeting, config->rank, config->size, &terms, deadline_ns, &context->bootstrap);
    code = code ? code : enter_generation(context);
    if (code) {
        context_free(context);
        return code;
    }
    *out = context;
    return 0;
}

static struct roster *roster_of(const struct context *context) {
    uint8_t *memory = context->segment.memory;
    return (struct roster *)(void *)(memory + roster_offset(context->bootstrap.local_count));
}

int context_make_segment(struct context *context, int64_t deadline_ns, struct segment_name *out_name) {
    uint32_t local_count = context->bootstrap.local_count;
    assert(context->bootstrap.local == 0 && local_count > 1);
    struct comm_kv kv = comm_kv_of_store(context->meeting_store);
    int code = bootstrap_fetch_locals(&kv, deadline_ns, &context->bootstrap);
    code = code ? code : segment_create(segment_bytes(local_count), "muster-ranks", 1, &context->segment, out_name);
    if (code) {
        return code;
    }
    roster_fill(roster_of(context), context->bootstrap.locals, local_count);
    return local_count > ROSTER_SMALL ? roster_alarm_create(roster_of(context), &context->alarm) : 0;
}

/* Who the neighbours are, as the first rank of the host has put it down. */
static int read_roster(struct context *context) {
    int code = roster_read(roster_of(context), &context->bootstrap);
    if (code == 0 && context->bootstrap.local_count > ROSTER_SMALL) {
        code = roster_alarm_open(roster_of(context), context->bootstrap.locals[0].pid, &context->alarm);
    }
    return code;
}

static int open_segment(struct context *context, const struct segment_name *name) {
    uint32_t local_count = context->bootstrap.local_count;
    if (name) {
        int code = segment_open(name, &context->segment);
        if (code) {
            return code;
        }
        if (context->segment.bytes != segment_bytes(local_count)) {
            return status_fail(MUSTER_EPROTOCOL, "the shared segment of %zu bytes is another version's",
                               context->segment.bytes);
        }
        code = read_roster(context);
        if (code) {
            return code;
        }
    }
    uint8_t *memory = context->segment.memory;
    if (!memory) {
        context->own_memory = segment_make_private(segment_bytes(local_count));
        memory = context->own_memory;
        if (!memory) {
            return status_fail(MUSTER_ENOMEM, "no memory for a group");
        }
    }
    context->lines = (struct context_line *)(void *)(memory + SEGMENT_HEADER_BYTES);
    context->roster = (struct roster *)(void *)(memory + roster_offset(local_count));
    return 0;
}

static int make_memory(struct context *context) {
    uint32_t local_count = context->bootstrap.local_count;
    int32_t *pids = calloc(local_count, sizeof *pids);
    if (!pids) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranks", local_count);
    }
    for (uint32_t i = 0; i < local_count; i++) {
        pids[i] = context->bootstrap.locals[i].pid;
    }
    uint8_t *directory = context->segment.memory;
    int code = memory_create(directory ? directory + directory_offset(local_count) : NULL, context->bootstrap.local,
                             pids, local_count, &context->memory);
    free(pids);
    return code;
}

static const char *host_name_of(void *context, uint32_t peer) {
    return context_host_name(context, peer);
}

static int start_tls(struct context *context) {
    struct tls_files files;
    if (context->bootstrap.topology.host_count == 1) {
        return 0; /* nothing leaves the host */
    }
    int code = tls_files_from_env(&files);
    if (code || !files.certificate) {
        return code;
    }
    log_info("TLS between hosts, with the certificate in %s", files.certificate);
    return tls_create(&files, &context->tls);
}

static int make_links(struct context *context) {
    uint32_t local_count = context->bootstrap.local_count;
    uint8_t *memory = context->segment.memory;
    struct p2p_neighbour *neighbours = calloc(local_count, sizeof *neighbours);
    if (!neighbours) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranks", local_count);
    }
    for (uint32_t i = 0; i < local_count; i++) {
        const struct bootstrap_local *local = &context->bootstrap.locals[i];
        neighbours[i] = (struct p2p_neighbour){local->rank, local->pid, &context->lines[i].bell};
    }
    struct p2p_config config = {.rank = context->rank,
                                .size = context->size,
                                .bell = context_bell(context),
                                .rings = memory ? memory + rings_offset(local_count) : NULL,
                                .neighbours = neighbours,
                                .neighbour_count = local_count,
                                .local = context->bootstrap.local,
                                .memory = context->memory,
                                .may_read_peers = context->may_read_peers,
                                .tls = context->tls,
                                .plans = context->choice ? context->choice->links : NULL,
                                .plan_count = context->choice ? context->choice->link_count : 0,
                                .contact = fetch_contact,
                                .notice = context_take_notice,
                                .host_name = host_name_of,
                                .context = context};
    const struct topology *topology = &context->bootstrap.topology;
    config.reach = topology->host_count == 1  ? P2P_REACH_NOBODY
                   : topology->is_one_network ? P2P_REACH_LOOPBACK
                                              : P2P_REACH_NETWORK;
    p2p_hold_from_env(&config);
    int code = interface_wish_from_env(&config.interfaces);
    code = code ? code : p2p_zero_copy_from_env(&config.zero_copy);
    code = code ? code : p2p_create(&config, &context->p2p);
    free(neighbours);
    return code ? code : publish_contact(context);
}

static int start_monitor(struct context *context) {
    struct monitor_handlers handlers = {
        .context = context, .died = context_neighbour_died, .attend = attend, .alarmed = context_hear_alarm};
    int code = monitor_create(&handlers, &context->monitor);
    code = code ? code : monitor_watch_descriptor(context->monitor, p2p_descriptor(context->p2p));
    return code ? code : context_watch_neighbours(context);
}

int context_attach(struct context *context, const struct segment_name *name) {
    int code = open_segment(context, name);
    code = code ? code : make_memory(context);
    code = code ? code : start_tls(context);
    code = code ? code : make_links(context);
    return code ? code : start_monitor(context);
}

static uint32_t first_rank_of(const struct topology *topology, uint32_t host) {
    uint32_t rank = 0;
    while (topology->host_of[rank] != host) {
        rank++;
    }
    return rank;
}

/* The next host's first rank: a death on any host so reaches all of them. */
int context_watch_next_host(struct context *context, struct comm_waiter *waiter, int64_t deadline_ns) {
    const struct topology *topology = &context->bootstrap.topology;
    uint32_t count = topology->host_count, host = topology->host_of[context->rank];
    if (count == 1 || context->bootstrap.local != 0) {
        return 0;
    }
    uint32_t next = first_rank_of(topology, (host + 1) % count);
    uint32_t before = first_rank_of(topology, (host + count - 1) % count);
    int code = p2p_watch(context->p2p, next, deadline_ns);
    int64_t soon_ns = clock_deadline_ns(clock_monotonic_ns(), RING_MS);
    code = code ? code
                : p2p_await_watches(context->p2p, waiter, next, before, soon_ns < deadline_ns ? soon_ns : deadline_ns);
    return code == MUSTER_ETIMEOUT ? ask_absent(context, before) : code; /* else the first call finds out */
}

bool context_forget_meeting(const struct context *context) {
    if (!context->meeting_store || context->bootstrap.topology.host_count > 1) {
        return false; /* others may still be reading */
    }
    struct comm_kv kv = comm_kv_of_store(context->meeting_store);
    generation_forget(&kv, context->bootstrap.generation, context->rank);
    return true;
}

void context_seal(struct context *context) {
    if (context->segment.fd >= 0 && context->segment.memory) {
        (void)close(context->segment.fd);
        context->segment.fd = -1;
    }
    roster_alarm_seal(&context->alarm);
}

void context_free(struct context *context) {
    if (!context || (context->alive && !context_is_alive(context))) {
        return;
    }
    if (context->lines) {
        atomic_store_explicit(&context->lines[context->bootstrap.local].has_left, 1, memory_order_release);
    }
    p2p_deliver(context->p2p); /* the monitor tells it who dies meanwhile */
    monitor_free(context->monitor);
    roster_alarm_close(&context->alarm);
    p2p_free(context->p2p);
    tls_free(context->tls);
    memory_free(context->memory);
    if (context->segment.memory) {
        segment_close(&context->segment);
    }
    segment_free_private(context->own_memory, segment_bytes(context->bootstrap.local_count));
    muster_store_close(context->store);
    muster_store_close(context->meeting_store);
    muster_store_close(context->owned_store);
    comm_kv_alone_free(context->alone);
    for (uint32_t rank = 0; context->peers && rank < context->size; rank++) {
        free(context->peers[rank].sentence);
    }
    free(context->peers);
    bootstrap_done(&context->bootstrap);
    free(context->choice);
    recorder_release(context->recorder);
    if (context->alive) {
        (void)munmap((void *)(uintptr_t)context->alive, sizeof(uint32_t));
    }
    pthread_mutex_destroy(&context->mutex);
    free(context);
}
