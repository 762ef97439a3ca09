/* The machine's calls as requests to etcd, and this node's keep-alive; see etcd_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd_legacy/etcd_impl.h"

enum { KEEP_ALIVE_TTL_S = 10, NUMBER_TEXT_MAX = 24 };

void etcd_call_name(const struct etcd_rdzv *e, char out[ETCD_MEMBERS_NAME_MAX]) {
    char address[RDZV_ADDR_MAX], local[NET_ADDRESS_TEXT_MAX];
    etcd_link_own_address(etcd_v2_local_address(e->etcd, local) ? local : "", &e->rdzv->options, address);
    (void)str_format(out, ETCD_MEMBERS_NAME_MAX, "%s_%ld_%u", address, (long)getpid(), e->rdzv->local_id);
}

/* ---- what came of it ---- */

static bool is_refusal(const struct etcd_v2_answer *answer) {
    return answer->error == ETCD_V2_KEY_NOT_FOUND || answer->error == ETCD_V2_COMPARE_FAILED ||
           answer->error == ETCD_V2_NODE_EXIST;
}

/* The world as this node has just written or read it; NULL: there is none. */
static int adopt(struct etcd_rdzv *e, const char *text, uint64_t seen_index, uint64_t world_index) {
    int rc = etcd_machine_adopt(&e->machine, text);
    e->seen_index = seen_index;
    e->world_index = world_index;
    if (e->missed_index > seen_index) {
        e->machine.known = false; /* somebody has written since */
    }
    e->missed_index = 0;
    if (rc == MUSTER_OK && !e->watch) { /* which was interrupted */
        e->watch_index = seen_index + 1;
        e->driver->watch(e);
    }
    return rc;
}

static int adopt_answer(struct etcd_rdzv *e, enum etcd_call was, const struct etcd_v2_answer *answer) {
    uint64_t modified = answer->node.modified_index;
    if (was == ETCD_CALL_DELETE_WORLD || answer->error) {
        return adopt(e, NULL, answer->error ? answer->index : modified, 0);
    }
    if (!answer->node.value) {
        return status_fail(MUSTER_ECORRUPT, "%s in etcd is a folder", e->active);
    }
    bool is_read = was == ETCD_CALL_READ_WORLD && answer->index > modified;
    return adopt(e, answer->node.value, is_read ? answer->index : modified, modified);
}

static int take_counter(struct etcd_rdzv *e, const struct etcd_v2_answer *answer) {
    int64_t counter = 0;
    if (answer->error) { /* etcd has lost it, or the job was forgotten: from the beginning */
        e->machine.counter = e->counter_index = 0;
        return MUSTER_OK;
    }
    if (!answer->node.value || !str_parse_i64(answer->node.value, &counter) || counter < 0 || counter >= INT32_MAX) {
        return status_fail(MUSTER_ECORRUPT, "%s in etcd is no number", e->counter);
    }
    e->machine.counter = (uint64_t)counter;
    e->counter_index = answer->node.modified_index;
    return MUSTER_OK;
}

static void fail(struct etcd_rdzv *e, int rc) {
    e->driver->fail(e, status_prefix(rc, "the rendezvous '%s' in etcd", e->rdzv->options.run_id));
}

static void feed_back(struct etcd_rdzv *e, enum etcd_event event) {
    if (e->missed_index > e->seen_index || !e->watch) {
        e->machine.known = false;
        e->missed_index = 0;
    }
    e->driver->feed(e, event);
}

static void on_called(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    enum etcd_call was = e->machine.busy;
    enum etcd_event event = ETCD_EVENT_DONE;
    int rc = status;
    e->call = NULL;
    bool absent_is_fine = was == ETCD_CALL_READ_WORLD;
    if (rc == MUSTER_OK && answer->error && !is_refusal(answer)) {
        rc = etcd_v2_fail(answer, e->root);
    } else if (rc == MUSTER_OK && answer->error && !absent_is_fine && was != ETCD_CALL_READ_COUNTER) {
        event = ETCD_EVENT_REFUSED;
        e->missed_index = 0; /* it is read again */
    } else if (rc == MUSTER_OK && was == ETCD_CALL_READ_COUNTER) {
        rc = take_counter(e, answer);
        event = ETCD_EVENT_COUNTER;
    } else if (rc == MUSTER_OK && (was == ETCD_CALL_READ_WORLD || was == ETCD_CALL_CREATE_WORLD ||
                                   was == ETCD_CALL_WRITE_WORLD || was == ETCD_CALL_DELETE_WORLD)) {
        rc = adopt_answer(e, was, answer);
    }
    if (rc != MUSTER_OK) {
        fail(e, rc);
        return;
    }
    feed_back(e, event);
}

static void send_call(struct etcd_rdzv *e, const struct etcd_v2_call *call, etcd_v2_cb *cb) {
    int rc = etcd_v2_send(e->etcd, call, cb, e, &e->call);
    if (rc != MUSTER_OK) {
        e->driver->fail(e, rc);
    }
}

/* ---- the members of a round ---- */

static void on_count(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    e->call = NULL;
    if (status != MUSTER_OK) {
        fail(e, status);
        return;
    }
    etcd_members_take_count(&e->machine.members, answer->node.value); /* nobody has come: there is no such key */
    feed_back(e, ETCD_EVENT_MEMBERS);
}

/* "R/rdzv/v_3" */
static const char *world_folder(const struct etcd_rdzv *e, char out[ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX]) {
    (void)str_format(out, ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX, "%s%s", e->versions, e->machine.world.version);
    return out;
}

/* The folder of a version that has vanished has no members. */
static void on_folder(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    char folder[ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX], key[EXIT_BARRIER_KEY_MAX], path[ETCD_FOLDER_MAX * 2];
    struct buf key64;
    int rc = status;
    e->call = NULL;
    if (rc == MUSTER_OK && answer->error && !is_refusal(answer)) {
        rc = etcd_v2_fail(answer, e->root);
    }
    rc = rc ? rc
            : etcd_members_read(answer->children, answer->child_count, world_folder(e, folder),
                                e->machine.world.participants, e->rdzv->visitors.self.protocol, &e->machine.members);
    if (rc == MUSTER_OK && e->machine.members.other[0] != '\0') {
        rdzv_agent_speaks(e->rdzv, e->machine.members.other, kv_slice_text(e->machine.members.other_protocol));
    }
    exit_barrier_count_key("", key);
    buf_init(&key64, sizeof key * 2);
    rc = rc ? rc : base64_encode((const uint8_t *)key, strlen(key), &key64);
    if (rc != MUSTER_OK) {
        fail(e, rc);
    } else {
        (void)str_format(path, sizeof path, "%s/kv/%.*s", folder, (int)key64.len, (const char *)buf_bytes(&key64));
        send_call(e, &(struct etcd_v2_call){.method = "GET", .path = path}, on_count);
    }
    buf_done(&key64);
}

static void read_members(struct etcd_rdzv *e) {
    char folder[ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX];
    send_call(e, &(struct etcd_v2_call){.method = "GET", .path = world_folder(e, folder)}, on_folder);
}

/* ---- this node's keep-alive ---- */

static void on_renewed(void *ctx, int status, const struct etcd_v2_answer *answer);

static void send_lease(struct etcd_rdzv *e, bool refresh) {
    struct etcd_v2_call call = {.method = "PUT", .path = e->key, .ttl_s = KEEP_ALIVE_TTL_S, .refresh = refresh};
    call.exist = refresh ? ETCD_V2_IF_PRESENT : ETCD_V2_EITHER;
    call.value = refresh ? NULL : "";
    if (!e->lease && etcd_v2_send(e->etcd, &call, on_renewed, e, &e->lease) != MUSTER_OK) {
        e->lease = NULL; /* no memory: the next one is due in some seconds */
    }
}

/* An etcd that was away for long has let it expire: it is put there again, while its round lasts. */
static void on_renewed(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    e->lease = NULL;
    if (status != MUSTER_OK) {
        e->driver->fail(e, status);
    } else if (answer->error == ETCD_V2_KEY_NOT_FOUND && e->holds_key) {
        send_lease(e, false);
    }
}

static void on_lease_timer(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    send_lease(r->state, true);
}

void etcd_call_release(struct etcd_rdzv *e) {
    e->holds_key = false;
    etcd_v2_cancel(e->lease);
    e->lease = NULL;
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_SYNC));
}

static void on_marked(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    enum { RENEW_MS = KEEP_ALIVE_TTL_S * 1000 / 2 };
    if (status != MUSTER_OK || answer->error) {
        on_called(ctx, status, answer);
        return;
    }
    e->call = NULL;
    e->holds_key = true;
    (void)uv_timer_start(rdzv_timer(e->rdzv, RDZV_TIMER_SYNC), on_lease_timer, RENEW_MS, RENEW_MS);
    send_call(e, &(struct etcd_v2_call){.method = "PUT", .path = e->key, .value = "", .ttl_s = KEEP_ALIVE_TTL_S},
              on_called);
}

static void on_protocol_told(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    if (status != MUSTER_OK || answer->error) {
        on_called(ctx, status, answer);
        return;
    }
    send_call(e, &(struct etcd_v2_call){.method = "PUT", .path = e->mark, .value = e->name}, on_marked);
}

/* First what tells our agents from PyTorch's: the number of our protocol, and a mark. A round of ours alone may be
 * ended at once. */
static void touch(struct etcd_rdzv *e) {
    char path[ETCD_MACHINE_PATH_MAX];
    etcd_machine_path(&e->machine, e->key);
    (void)str_format(e->mark, sizeof e->mark, "%s%s/muster_%" PRIu32, e->versions, e->machine.version, e->machine.rank);
    (void)str_format(path, sizeof path, "%s%s/protocol_%" PRIu32, e->versions, e->machine.version, e->machine.rank);
    etcd_call_name(e, e->name);
    send_call(e, &(struct etcd_v2_call){.method = "PUT", .path = path, .value = e->rdzv->visitors.self.protocol},
              on_protocol_told);
}

/* ---- calls ---- */

static void write_world(struct etcd_rdzv *e, const struct etcd_actions *actions) {
    bool creates = actions->call == ETCD_CALL_CREATE_WORLD;
    struct etcd_v2_call call = {.method = "PUT",
                                .path = e->active,
                                .value = actions->value,
                                .ttl_s = actions->ttl_s,
                                .exist = creates ? ETCD_V2_IF_ABSENT : ETCD_V2_EITHER,
                                .prev_index = creates ? 0 : e->world_index};
    send_call(e, &call, on_called);
}

void etcd_call_perform(struct etcd_rdzv *e, const struct etcd_actions *actions) {
    char folder[ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX];
    char number[NUMBER_TEXT_MAX];
    (void)str_format(number, sizeof number, "%" PRIu64, e->machine.counter);
    switch (actions->call) {
    case ETCD_CALL_NONE:
        break;
    case ETCD_CALL_READ_WORLD:
        send_call(e, &(struct etcd_v2_call){.method = "GET", .path = e->active}, on_called);
        break;
    case ETCD_CALL_CREATE_WORLD:
    case ETCD_CALL_WRITE_WORLD:
        write_world(e, actions);
        break;
    case ETCD_CALL_DELETE_WORLD:
        send_call(e, &(struct etcd_v2_call){.method = "DELETE", .path = e->active, .prev_index = e->world_index},
                  on_called);
        break;
    case ETCD_CALL_READ_COUNTER:
        send_call(e, &(struct etcd_v2_call){.method = "GET", .path = e->counter}, on_called);
        break;
    case ETCD_CALL_WRITE_COUNTER:
        send_call(e,
                  &(struct etcd_v2_call){
                      .method = "PUT",
                      .path = e->counter,
                      .value = number,
                      .exist = e->counter_index == 0 ? ETCD_V2_IF_ABSENT : ETCD_V2_EITHER,
                      .prev_index = e->counter_index,
                  },
                  on_called);
        break;
    case ETCD_CALL_MAKE_VERSION:
        (void)str_format(folder, sizeof folder, "%s%s", e->versions, number);
        send_call(
            e, &(struct etcd_v2_call){.method = "PUT", .path = folder, .is_folder = true, .exist = ETCD_V2_IF_ABSENT},
            on_called);
        break;
    case ETCD_CALL_READ_MEMBERS:
        read_members(e);
        break;
    case ETCD_CALL_TOUCH:
        touch(e);
        break;
    }
}
