/* The store's commands; see kv_machine.h and docs/formats/tcpstore.md. */
#include "store/server/kv_machine.h"

#include <assert.h>
#include <endian.h>

#include "base/status.h"

void kv_machine_init(struct kv_machine *machine, const uint64_t seed[4], size_t bytes_max) {
    *machine = (struct kv_machine){.budget = {.max_bytes = bytes_max}};
    kv_table_init(&machine->table, seed, &machine->budget);
    kv_waiters_init(&machine->waiters, seed + 2, &machine->budget);
    kv_callers_init(&machine->callers, seed, &machine->budget);
}

void kv_machine_done(struct kv_machine *machine) {
    kv_table_done(&machine->table);
    kv_waiters_done(&machine->waiters);
    kv_callers_done(&machine->callers);
}

void kv_machine_clear(struct kv_machine *machine) {
    assert(machine->depth == 0);
    kv_table_clear(&machine->table);
    kv_callers_forget_gone(&machine->callers, NULL, NULL);
}

void kv_machine_clear_but(struct kv_machine *machine, kv_table_keeps *keeps, kv_callers_keeps *keeps_caller,
                          const void *ctx) {
    assert(machine->depth == 0);
    kv_table_clear_but(&machine->table, keeps, ctx);
    kv_callers_forget_gone(&machine->callers, keeps_caller, ctx);
}

void kv_machine_end(struct kv_machine *machine, struct kv_session *session, bool may_return) {
    kv_waiters_cancel(&machine->waiters, session);
    kv_callers_leave(&machine->callers, session, may_return);
}

static void deliver_done(void *ctx, struct kv_session *session) {
    const struct kv_machine *machine = ctx;
    static const uint8_t done = CODEC_WAIT_DONE;
    machine->deliver(machine->deliver_ctx, session, kv_slice_of(&done, 1), NULL);
}

struct watched {
    const struct kv_machine *machine;
    struct kv_slice key;
};

static void deliver_value(void *ctx, struct kv_session *session) {
    const struct watched *watched = ctx;
    const struct kv_machine *machine = watched->machine;
    struct kv_entry *entry = kv_table_find(&machine->table, watched->key); /* NULL: deleted */
    uint64_t len = htole64(entry ? (uint64_t)kv_entry_value(entry).len : 0);
    machine->deliver(machine->deliver_ctx, session, kv_slice_of(&len, sizeof len), entry);
}

static bool value_changed(const struct kv_change *change) {
    return !change->old_value.data != !change->new_value.data || !kv_slice_equal(change->old_value, change->new_value);
}

static void wake(struct kv_machine *machine, const struct kv_change *change) {
    kv_waiters_wake_all(&machine->waiters, change->key, deliver_done, machine);
}

/* Watchers and the host hear of values that really differ. A watcher was registered while the value was the one it
 * knows, so any difference is one from what it knows; to it, absent and empty are the same. */
static void announce(struct kv_machine *machine, uint64_t connection, const struct kv_change *change) {
    if (!kv_slice_equal(change->old_value, change->new_value)) {
        struct watched watched = {.machine = machine, .key = change->key};
        kv_waiters_wake_watchers(&machine->waiters, change->key, deliver_value, &watched);
    }
    if (machine->on_change && value_changed(change)) {
        machine->on_change(machine->change_ctx, connection, change->key, change->old_value, change->new_value);
    }
}

static void stored(struct kv_machine *machine, uint64_t connection, const struct kv_change *change) {
    wake(machine, change);
    announce(machine, connection, change);
}

static int do_set(struct kv_machine *machine, uint64_t connection, struct kv_slice key, struct kv_slice value) {
    struct kv_change change;
    int code = kv_table_set(&machine->table, key, value, &change);
    if (code == 0) {
        stored(machine, connection, &change);
    }
    return code;
}

static int do_compare_set(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                          struct kv_output *reply) {
    struct kv_change change = {0};
    struct kv_slice answer = {0};
    bool was_stored = false;
    int code = kv_table_compare_set(&machine->table, request->key, request->value, request->desired, &was_stored,
                                    &answer, &change);
    struct kv_entry *entry = kv_table_find(&machine->table, request->key); /* the answer is its value, if it exists */
    if (code == 0) {
        code = entry ? kv_output_put_value(reply, entry) : codec_put_bytes(&reply->bytes, answer);
    }
    if (was_stored) {
        stored(machine, session->id, &change);
    }
    return code;
}

static int do_add(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                  struct kv_output *reply) {
    struct kv_change change;
    int64_t sum = 0;
    int code = kv_table_add(&machine->table, request->key, request->number, &sum, &change);
    if (code) {
        return code;
    }
    code = codec_put_i64(&reply->bytes, sum);
    stored(machine, session->id, &change);
    return code;
}

/* What the client made before is not made again: the answer was lost. Which of its additions was the last is all that
 * has to be known, since it makes no other one before this is answered. */
static int do_add_once(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                       struct kv_output *reply) {
    int64_t sum = 0;
    if (!session->caller) {
        return status_fail(MUSTER_EPROTOCOL, "the client has not said who it is");
    }
    if (request->turn <= 0) {
        return status_fail(MUSTER_EPROTOCOL, "number %lld", (long long)request->turn);
    }
    if (kv_callers_has_added(session, request->turn, &sum)) {
        return codec_put_i64(&reply->bytes, sum);
    }
    struct kv_change change;
    int code = kv_table_add(&machine->table, request->key, request->number, &sum, &change);
    if (code == 0) {
        kv_callers_note_added(session, request->turn, sum);
        code = codec_put_i64(&reply->bytes, sum);
        stored(machine, session->id, &change);
    }
    return code;
}

static int do_client(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                     struct kv_output *reply) {
    struct kv_session *before = NULL;
    enum kv_introduction is = KV_CALLER_NEW;
    bool returns = request->command == CODEC_RETURN;
    int code = kv_callers_introduce(&machine->callers, session, (uint64_t)request->number, returns, &is, &before);
    if (code == 0 && returns && is != KV_CALLER_LATE) {
        code = codec_put_i64(&reply->bytes, is == KV_CALLER_UNKNOWN ? CODEC_UNKNOWN : kv_callers_served(session));
    }
    before = is == KV_CALLER_LATE ? session : before;
    if (before) {
        kv_waiters_cancel(&machine->waiters, before);
        machine->replaced(machine->deliver_ctx, before);
    }
    if (is == KV_CALLER_BACK && machine->on_return) {
        machine->on_return(machine->change_ctx, session->id);
    }
    return code;
}

static int do_append(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request) {
    struct kv_change change;
    int code = kv_table_append(&machine->table, request->key, request->value, &change);
    if (code == 0) {
        stored(machine, session->id, &change);
    }
    return code;
}

static int do_delete(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                     struct kv_output *reply) {
    struct kv_change change;
    bool deleted = kv_table_delete(&machine->table, request->key, &change);
    int code = codec_put_i64(&reply->bytes, deleted);
    if (deleted) {
        announce(machine, session->id, &change); /* wakes no waiter */
    }
    return code;
}

static int do_get(const struct kv_machine *machine, struct kv_slice key, struct kv_output *reply) {
    return kv_output_put_value(reply, kv_table_find(&machine->table, key)); /* absent: an empty value */
}

static int do_multi_get(const struct kv_machine *machine, struct codec_list list, struct kv_output *reply) {
    struct kv_slice key;
    int code = 0;
    while (code == 0 && codec_list_next(&list, &key)) {
        code = do_get(machine, key, reply);
    }
    return code;
}

static void drop_prepared(struct kv_machine *machine, struct kv_entry *first) {
    while (first) {
        struct kv_entry *next = *kv_entry_link(first);
        kv_table_drop(&machine->table, first);
        first = next;
    }
}

/* All pairs or none: memory is taken for every pair before the first is stored. A client that is woken by the first
 * sees all of them, since its next request is served after this one; only the host's on_change is told key by key. */
static int do_multi_set(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request) {
    struct kv_entry *first = NULL, **last = &first;
    struct codec_list list = request->list;
    struct kv_slice key, value;
    while (codec_list_next(&list, &key) && codec_list_next(&list, &value)) {
        int code = kv_table_prepare(&machine->table, key, value, last);
        if (code) {
            drop_prepared(machine, first);
            return code;
        }
        last = kv_entry_link(*last);
        *last = NULL;
    }
    for (struct kv_entry *next; first; first = next) {
        struct kv_change change;
        next = *kv_entry_link(first);
        kv_table_commit(&machine->table, first, &change);
        stored(machine, session->id, &change);
    }
    return 0;
}

/* Our probe keys are "present" without being stored. */
static bool present(const struct kv_machine *machine, struct kv_slice key) {
    return kv_table_present(&machine->table, key) ||
           (!machine->plain && (kv_slice_equal(key, kv_slice_text(CODEC_WATCH_PROBE_KEY)) ||
                                kv_slice_equal(key, kv_slice_text(CODEC_CLIENT_PROBE_KEY))));
}

static int do_check(const struct kv_machine *machine, struct codec_list list, struct kv_output *reply) {
    struct kv_slice key;
    while (codec_list_next(&list, &key)) {
        if (!present(machine, key)) {
            return codec_put_u8(&reply->bytes, CODEC_CHECK_ABSENT);
        }
    }
    return codec_put_u8(&reply->bytes, CODEC_CHECK_PRESENT);
}

/* A second wait takes the place of one that is still pending, as in PyTorch's server; its clients never do that. */
static int do_wait(struct kv_machine *machine, struct kv_session *session, const struct codec_list *list,
                   struct kv_output *reply) {
    kv_waiters_cancel(&machine->waiters, session);
    size_t absent = 0;
    struct kv_slice key;
    for (struct codec_list keys = *list; codec_list_next(&keys, &key);) {
        absent += !kv_table_present(&machine->table, key);
    }
    if (absent == 0) {
        return codec_put_u8(&reply->bytes, CODEC_WAIT_DONE);
    }
    int code = kv_waiters_begin(&machine->waiters, session, KV_PENDING_WAIT, absent);
    for (struct codec_list keys = *list; code == 0 && codec_list_next(&keys, &key);) {
        if (!kv_table_present(&machine->table, key)) {
            code = kv_waiters_add(&machine->waiters, session, key);
        }
    }
    return code;
}

static int do_watch(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                    struct kv_output *reply) {
    kv_waiters_cancel(&machine->waiters, session);
    struct kv_entry *entry = kv_table_find(&machine->table, request->key);
    if (!kv_slice_equal(entry ? kv_entry_value(entry) : (struct kv_slice){0}, request->value)) {
        return kv_output_put_value(reply, entry);
    }
    int code = kv_waiters_begin(&machine->waiters, session, KV_PENDING_WATCH, 1);
    return code ? code : kv_waiters_add(&machine->waiters, session, request->key);
}

static int do_barrier(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                      struct kv_output *reply) {
    struct kv_change change;
    int64_t arrived = 0;
    int code = kv_table_add(&machine->table, request->key, 1, &arrived, &change);
    if (code) {
        return code;
    }
    kv_waiters_cancel(&machine->waiters, session);
    if (arrived >= request->number) {
        code = codec_put_u8(&reply->bytes, CODEC_WAIT_DONE);
        wake(machine, &change);
    } else {
        code = kv_waiters_begin(&machine->waiters, session, KV_PENDING_WAIT, 1);
        code = code ? code : kv_waiters_add(&machine->waiters, session, request->key);
    }
    announce(machine, session->id, &change);
    return code;
}

static int do_queue_push(struct kv_machine *machine, const struct codec_request *request) {
    int code = kv_table_queue_push(&machine->table, request->key, request->value);
    if (code == 0) {
        kv_waiters_wake_one(&machine->waiters, request->key, deliver_done, machine);
    }
    return code;
}

static int do_queue_pop(struct kv_machine *machine, const struct codec_request *request, struct kv_output *reply) {
    struct kv_entry *item = NULL;
    size_t length = kv_table_queue_pop(&machine->table, request->key, &item);
    int code = codec_put_i64(&reply->bytes, (int64_t)length);
    return code || length == 0 ? code : kv_output_put_value(reply, item);
}

static int do_list_keys(const struct kv_machine *machine, struct kv_output *reply) {
    size_t count = kv_table_count(&machine->table);
    if (count > CODEC_LIST_KEYS_MAX) {
        return status_fail(MUSTER_ELIMIT, "list of %zu keys, the limit is %zu", count, CODEC_LIST_KEYS_MAX);
    }
    int code = codec_put_i64(&reply->bytes, (int64_t)count);
    size_t bucket = 0;
    const struct kv_entry *entry = NULL;
    struct kv_slice key;
    while (code == 0 && kv_table_next(&machine->table, &bucket, &entry, &key)) {
        code = codec_put_bytes(&reply->bytes, key);
    }
    return code;
}

static int do_cancel_wait(struct kv_machine *machine, struct kv_session *session, struct kv_output *reply) {
    kv_waiters_cancel(&machine->waiters, session);
    return codec_put_u8(&reply->bytes, CODEC_WAIT_CANCELED); /* whether or not there was one */
}

static int dispatch(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                    struct kv_output *reply) {
    switch (request->command) {
    case CODEC_SET:
        return do_set(machine, session->id, request->key, request->value);
    case CODEC_COMPARE_SET:
        return do_compare_set(machine, session, request, reply);
    case CODEC_GET:
        return do_get(machine, request->key, reply);
    case CODEC_ADD:
        return do_add(machine, session, request, reply);
    case CODEC_CHECK:
        return do_check(machine, request->list, reply);
    case CODEC_WAIT:
        return do_wait(machine, session, &request->list, reply);
    case CODEC_GETNUMKEYS:
        return codec_put_i64(&reply->bytes, (int64_t)kv_table_count(&machine->table));
    case CODEC_DELETE_KEY:
        return do_delete(machine, session, request, reply);
    case CODEC_APPEND:
        return do_append(machine, session, request);
    case CODEC_MULTI_GET:
        return do_multi_get(machine, request->list, reply);
    case CODEC_MULTI_SET:
        return do_multi_set(machine, session, request);
    case CODEC_CANCEL_WAIT:
        return do_cancel_wait(machine, session, reply);
    case CODEC_PING:
        return codec_put_u32(&reply->bytes, (uint32_t)request->number);
    case CODEC_QUEUE_PUSH:
        return do_queue_push(machine, request);
    case CODEC_QUEUE_POP:
        return do_queue_pop(machine, request, reply);
    case CODEC_QUEUE_LEN:
        return codec_put_i64(&reply->bytes, (int64_t)kv_table_queue_length(&machine->table, request->key));
    case CODEC_LIST_KEYS:
        return do_list_keys(machine, reply);
    case CODEC_BARRIER:
        return do_barrier(machine, session, request, reply);
    case CODEC_WATCH:
        return do_watch(machine, session, request, reply);
    case CODEC_CLIENT:
    case CODEC_RETURN:
        return do_client(machine, session, request, reply);
    case CODEC_ADD_ONCE:
        return do_add_once(machine, session, request, reply);
    case CODEC_VALIDATE:
        break;
    }
    return status_fail(MUSTER_EPROTOCOL, "second handshake");
}

static void leave(struct kv_machine *machine) {
    if (--machine->depth == 0) { /* until then an outer call may hold slices of what was replaced */
        kv_table_sweep(&machine->table);
    }
}

int kv_machine_step(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                    struct kv_output *reply) {
    machine->depth++;
    int code = dispatch(machine, session, request, reply);
    if (request->command != CODEC_CLIENT && request->command != CODEC_RETURN) {
        kv_callers_count(session);
    }
    leave(machine);
    return code;
}

int kv_machine_set(struct kv_machine *machine, struct kv_slice key, struct kv_slice value) {
    if (key.len > CODEC_KEY_BYTES_MAX || value.len > CODEC_VALUE_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "key of %zu and value of %zu bytes are over the limit of %zu and %zu",
                           key.len, value.len, CODEC_KEY_BYTES_MAX, CODEC_VALUE_BYTES_MAX);
    }
    machine->depth++;
    int code = do_set(machine, 0, key, value);
    leave(machine);
    return code;
}
