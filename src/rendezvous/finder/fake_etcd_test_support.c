/* See fake_etcd_test_support.h. */
#include "rendezvous/finder/fake_etcd_test_support.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/base64.h"
#include "base/str.h"

void fake_etcd_begin(struct fake_etcd *etcd, int64_t revision) {
    *etcd = (struct fake_etcd){.revision = revision};
}

void fake_etcd_end(struct fake_etcd *etcd) {
    for (size_t i = 0; i < etcd->event_count; i++) {
        free(etcd->events[i].bytes);
    }
    etcd->event_count = 0;
}

void fake_etcd_lose_data(struct fake_etcd *etcd, int64_t revision) {
    etcd->forgotten_count = etcd->event_count;
    etcd->revision = revision;
}

/* ---- keys ---- */

static const struct fake_event *last_event(const struct fake_etcd *etcd, struct kv_slice key) {
    assert(key.data);
    for (size_t i = etcd->event_count; i-- > etcd->forgotten_count;) {
        if (kv_slice_equal(etcd->events[i].pair.key, key)) {
            return etcd->events[i].pair.is_deleted ? NULL : &etcd->events[i];
        }
    }
    return NULL;
}

const struct etcd3_pair *fake_etcd_get(const struct fake_etcd *etcd, struct kv_slice key) {
    const struct fake_event *event = last_event(etcd, key);
    return event ? &event->pair : NULL;
}

/* Of the revision that is being made. */
static void add_event(struct fake_etcd *etcd, struct kv_slice key, struct kv_slice value, int64_t lease_id,
                      bool is_deleted) {
    const struct fake_event *before = last_event(etcd, key);
    assert_true(etcd->event_count < FAKE_EVENTS_MAX);
    struct fake_event *event = &etcd->events[etcd->event_count];
    uint8_t *bytes = malloc(key.len + value.len + 1);
    assert(bytes && key.data);
    memcpy(bytes, key.data, key.len);
    if (value.data) {
        memcpy(bytes + key.len, value.data, value.len);
    }
    int64_t created = before ? before->pair.create_revision : etcd->revision;
    *event = (struct fake_event){.bytes = bytes,
                                 .lease_id = lease_id,
                                 .pair = {.key = kv_slice_of(bytes, key.len),
                                          .value = kv_slice_of(bytes + key.len, value.len),
                                          .create_revision = is_deleted ? 0 : created,
                                          .mod_revision = etcd->revision,
                                          .is_deleted = is_deleted}};
    etcd->event_count++;
}

void fake_etcd_put(struct fake_etcd *etcd, struct kv_slice key, struct kv_slice value, int64_t lease_id) {
    etcd->revision++;
    add_event(etcd, key, value, lease_id, false);
}

void fake_etcd_delete(struct fake_etcd *etcd, struct kv_slice key) {
    etcd->revision++;
    if (fake_etcd_get(etcd, key)) {
        add_event(etcd, key, kv_slice_of(NULL, 0), 0, true);
    }
}

void fake_etcd_expire(struct fake_etcd *etcd, int64_t lease_id) {
    size_t count = etcd->event_count;
    etcd->revision++;
    for (size_t i = etcd->forgotten_count; i < count; i++) {
        const struct fake_event *event = &etcd->events[i];
        if (event->lease_id == lease_id && last_event(etcd, event->pair.key) == event) {
            add_event(etcd, event->pair.key, kv_slice_of(NULL, 0), 0, true);
        }
    }
}

/* ---- reading ---- */

static int compare(struct kv_slice a, struct kv_slice b) {
    size_t common = a.len < b.len ? a.len : b.len;
    int order = a.data && b.data ? memcmp(a.data, b.data, common) : 0; /* an empty one may be at NULL */
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static bool is_in(struct etcd3_range range, struct kv_slice key) {
    return range.end.len == 0 ? kv_slice_equal(range.key, key)
                              : compare(key, range.key) >= 0 && compare(key, range.end) < 0;
}

size_t fake_etcd_read(const struct fake_etcd *etcd, struct etcd3_range range, struct etcd3_pair *out) {
    size_t count = 0;
    for (size_t i = etcd->forgotten_count; i < etcd->event_count; i++) {
        const struct fake_event *event = &etcd->events[i];
        if (is_in(range, event->pair.key) && last_event(etcd, event->pair.key) == event) {
            out[count++] = event->pair;
        }
    }
    return count;
}

size_t fake_etcd_watch(const struct fake_etcd *etcd, struct etcd3_range range, int64_t *revision,
                       struct etcd3_pair *out) {
    size_t count = 0;
    for (size_t i = etcd->forgotten_count; i < etcd->event_count; i++) {
        const struct etcd3_pair *pair = &etcd->events[i].pair;
        if (pair->mod_revision >= *revision && is_in(range, pair->key)) {
            out[count++] = *pair;
        }
    }
    *revision = etcd->revision + 1;
    return count;
}

/* ---- requests ---- */

static struct kv_slice take_bytes(const json_t *object, const char *name, struct buf *room) {
    const json_t *text = json_object_get(object, name);
    size_t before = room->len;
    assert_true(json_is_string(text));
    assert_int_equal(base64_decode((const uint8_t *)json_string_value(text), json_string_length(text), room), 0);
    const uint8_t *bytes = buf_bytes(room);
    return bytes ? kv_slice_of(bytes + before, room->len - before) : kv_slice_of(NULL, 0);
}

static int64_t take_number(const json_t *object, const char *name) {
    int64_t number = 0;
    assert_true(str_parse_i64(json_string_value(json_object_get(object, name)), &number));
    return number;
}

static void put_one(struct fake_etcd *etcd, const json_t *put, struct buf *room) {
    struct kv_slice key = take_bytes(put, "key", room);
    struct kv_slice value = take_bytes(put, "value", room);
    add_event(etcd, key, value, take_number(put, "lease"), false);
}

static void delete_one(struct fake_etcd *etcd, const json_t *request, struct buf *room) {
    struct kv_slice key = take_bytes(request, "key", room);
    if (fake_etcd_get(etcd, key)) {
        add_event(etcd, key, kv_slice_of(NULL, 0), 0, true);
    }
}

static void read_some(const struct fake_etcd *etcd, const json_t *request, struct buf *room, struct etcd3_reply *out) {
    struct etcd3_pair found[8];
    struct etcd3_range range = {.key = take_bytes(request, "key", room)};
    if (json_object_get(request, "range_end")) {
        range.end = take_bytes(request, "range_end", room);
    }
    size_t count = 0;
    for (size_t i = etcd->forgotten_count; i < etcd->event_count; i++) {
        const struct fake_event *event = &etcd->events[i];
        if (is_in(range, event->pair.key) && last_event(etcd, event->pair.key) == event) {
            assert_true(count < sizeof found / sizeof *found);
            found[count++] = event->pair;
        }
    }
    if (count > 0) {
        out->pairs = calloc(count, sizeof *out->pairs);
        assert(out->pairs);
        memcpy(out->pairs, found, count * sizeof *found);
        out->pair_count = count;
    }
}

static void carry_out(struct fake_etcd *etcd, const json_t *operation, struct buf *room, struct etcd3_reply *out) {
    const json_t *put = json_object_get(operation, "request_put");
    const json_t *deletion = json_object_get(operation, "request_delete_range");
    buf_clear(room);
    assert_non_null(buf_reserve(room, room->max)); /* clearing may have given it back */
    if (put) {
        put_one(etcd, put, room);
    } else if (deletion) {
        delete_one(etcd, deletion, room);
    } else {
        read_some(etcd, json_object_get(operation, "request_range"), room, out);
    }
}

static bool holds(const struct fake_etcd *etcd, const json_t *root, struct buf *room) {
    size_t i;
    json_t *comparison;
    json_array_foreach(json_object_get(root, "compare"), i, comparison) {
        const struct etcd3_pair *pair = fake_etcd_get(etcd, take_bytes(comparison, "key", room));
        const char *target = json_string_value(json_object_get(comparison, "target"));
        if (strcmp(target, "VALUE") == 0) {
            if (!pair || !kv_slice_equal(pair->value, take_bytes(comparison, "value", room))) {
                return false;
            }
            continue;
        }
        bool is_mod = strcmp(target, "MOD") == 0;
        int64_t is = !pair ? 0 : is_mod ? pair->mod_revision : pair->create_revision;
        if (is != take_number(comparison, is_mod ? "mod_revision" : "create_revision")) {
            return false;
        }
    }
    return true;
}

static bool are_leases_alive(const json_t *operations, bool (*is_alive)(int64_t lease_id)) {
    size_t i;
    json_t *operation;
    json_array_foreach(operations, i, operation) {
        const json_t *put = json_object_get(operation, "request_put");
        if (put && !is_alive(take_number(put, "lease"))) {
            return false;
        }
    }
    return true;
}

static bool changes(const json_t *operations) {
    size_t i;
    json_t *operation;
    json_array_foreach(operations, i, operation) {
        if (!json_object_get(operation, "request_range")) {
            return true;
        }
    }
    return false;
}

bool fake_etcd_transaction(struct fake_etcd *etcd, const struct buf *body, bool (*is_alive)(int64_t lease_id),
                           struct etcd3_reply *out) {
    struct buf room;
    size_t i;
    json_t *root = json_loadb((const char *)buf_bytes(body), body->len, 0, NULL), *operation;
    assert_non_null(root);
    buf_init(&room, body->len);
    assert_non_null(buf_reserve(&room, body->len)); /* slices point into it */
    *out = (struct etcd3_reply){.has_succeeded = holds(etcd, root, &room)};
    const json_t *operations = json_object_get(root, out->has_succeeded ? "success" : "failure");
    bool can = are_leases_alive(operations, is_alive);
    if (can) {
        etcd->revision += changes(operations);
        json_array_foreach(operations, i, operation) {
            carry_out(etcd, operation, &room, out);
        }
    }
    out->revision = etcd->revision;
    json_decref(root);
    buf_done(&room);
    return can;
}
