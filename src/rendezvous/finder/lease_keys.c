/* Names, values and requests; see lease_keys.h. */
#include "rendezvous/finder/lease_keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/status.h"
#include "base/str.h"

/* ---- names ---- */

/* A slash in a run id would let one job's keys lie among another's. */
static bool append_run_id(char *root, size_t size, const char *run_id) {
    size_t len = strlen(root);
    for (const char *c = run_id; *c != '\0'; c++) {
        bool fits = *c == '/' || *c == '%' ? str_format(root + len, size - len, "%%%02X", (unsigned)(unsigned char)*c)
                                           : str_format(root + len, size - len, "%c", *c);
        if (!fits) {
            return false;
        }
        len += strlen(root + len);
    }
    return true;
}

int lease_keys_init(struct lease_keys *keys, const char *prefix, const char *run_id) {
    char root[LEASE_KEY_MAX - 8];
    if (!str_format(root, sizeof root, "%s/", prefix) || !append_run_id(root, sizeof root, run_id)) {
        return status_fail(MUSTER_EINVAL, "etcd_prefix and the run id are too long for a key");
    }
    (void)str_format(keys->leader, sizeof keys->leader, "%s/leader", root);
    (void)str_format(keys->world, sizeof keys->world, "%s/world", root);
    (void)str_format(keys->first, sizeof keys->first, "%s/", root);
    (void)str_format(keys->end, sizeof keys->end, "%s0", root); /* the byte after the slash */
    return MUSTER_OK;
}

/* ---- values ---- */

static int put_json(json_t *root, struct buf *out) {
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    int rc = text ? buf_append(out, text, strlen(text)) : status_fail(MUSTER_ENOMEM, "no memory for a value in etcd");
    free(text);
    json_decref(root);
    return rc;
}

enum { HEX = 16, HEX_SIZE = 2 * HEX + 1 };

/* `count` (at most 2) numbers of 64 bits as hexadecimal digits. Returns `out`. */
static const char *text_of(const uint64_t *numbers, size_t count, char out[HEX_SIZE]) {
    for (size_t i = 0; i < count; i++) {
        (void)str_format(out + i * HEX, HEX + 1, "%016" PRIx64, numbers[i]);
    }
    return out;
}

static bool read_hex(const char *text, size_t count, uint64_t *out) {
    char digits[HEX + 1] = "";
    if (strlen(text) != count * HEX || strspn(text, "0123456789abcdef") != count * HEX) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(digits, text + i * HEX, HEX);
        out[i] = strtoull(digits, NULL, 16);
    }
    return true;
}

static bool read_place(const char *addr, json_int_t port, struct lease_place *out) {
    if (!coordinator_wire_is_address(kv_slice_text(addr)) || addr[0] == '\0' || port <= 0 || port > UINT16_MAX ||
        !str_copy(out->addr, sizeof out->addr, addr)) {
        return false;
    }
    out->port = (uint16_t)port;
    return true;
}

static int flaw(json_t *root, const char *what) {
    json_decref(root);
    return status_fail(MUSTER_EPROTOCOL, "that is no %s of a job of this version", what);
}

int lease_leader_put(const struct lease_leader *leader, struct buf *out) {
    char identity[HEX_SIZE];
    return put_json(json_pack("{s:i, s:s, s:s, s:i}", "muster", 1, "identity", text_of(leader->identity, 2, identity),
                              "addr", leader->place.addr, "port", (int)leader->place.port),
                    out);
}

int lease_leader_get(struct kv_slice value, struct lease_leader *out) {
    const char *identity = NULL, *addr = NULL;
    json_int_t version = 0, port = 0;
    json_t *root = json_loadb((const char *)value.data, value.len, 0, NULL);
    *out = (struct lease_leader){.identity = {0}};
    bool is_one = root && json_unpack(root, "{s:I, s:s, s:s, s:I}", "muster", &version, "identity", &identity, "addr",
                                      &addr, "port", &port) == 0;
    if (!is_one || version != 1 || !read_hex(identity, 2, out->identity) || !read_place(addr, port, &out->place)) {
        return flaw(root, "leader");
    }
    json_decref(root);
    return MUSTER_OK;
}

int lease_world_put(const struct lease_world *world, struct buf *out) {
    const struct coordinator_record *r = &world->record;
    char author[HEX_SIZE];
    return put_json(json_pack("{s:i, s:I, s:s, s:I, s:I, s:[I,I,I], s:s, s:i, s:I}", "muster", 1, "round",
                              (json_int_t)r->round, "author", text_of(&r->author, 1, author), "nodes",
                              (json_int_t)r->size, "host_rank", (json_int_t)r->host_rank, "charges",
                              (json_int_t)r->charges.failures, (json_int_t)r->charges.changes,
                              (json_int_t)r->charges.preemptions, "addr", world->place.addr, "port",
                              (int)world->place.port, "lease", (json_int_t)world->lease_id),
                    out);
}

static bool fits_u32(json_int_t number) {
    return number >= 0 && number <= UINT32_MAX;
}

int lease_world_get(struct kv_slice value, struct lease_world *out) {
    const char *author = NULL, *addr = NULL;
    json_int_t version = 0, round = 0, size = 0, host = 0, charges[3] = {0}, port = 0, lease = 0;
    json_t *root = json_loadb((const char *)value.data, value.len, 0, NULL);
    *out = (struct lease_world){.lease_id = 0};
    bool is_one =
        root && json_unpack(root, "{s:I, s:I, s:s, s:I, s:I, s:[I,I,I], s:s, s:I, s:I}", "muster", &version, "round",
                            &round, "author", &author, "nodes", &size, "host_rank", &host, "charges", &charges[0],
                            &charges[1], &charges[2], "addr", &addr, "port", &port, "lease", &lease) == 0;
    bool fits = is_one && version == 1 && round > 0 && size > 0 && fits_u32(size) && fits_u32(host) &&
                fits_u32(charges[0]) && fits_u32(charges[1]) && fits_u32(charges[2]) &&
                (host < size || host == COORDINATOR_NO_RANK) && read_hex(author, 1, &out->record.author) &&
                read_place(addr, port, &out->place);
    if (!fits) {
        return flaw(root, "world");
    }
    out->record.round = (uint64_t)round;
    out->record.size = (uint32_t)size;
    out->record.host_rank = (uint32_t)host;
    out->record.charges = (struct coordinator_charges){
        .failures = (uint32_t)charges[0], .changes = (uint32_t)charges[1], .preemptions = (uint32_t)charges[2]};
    out->lease_id = lease;
    json_decref(root);
    return MUSTER_OK;
}

/* ---- requests ---- */

static struct etcd3_operation look_at(const struct lease_keys *keys) {
    return (struct etcd3_operation){.kind = ETCD3_RANGE,
                                    .range = {.key = kv_slice_text(keys->first), .end = kv_slice_text(keys->end)}};
}

int lease_keys_put_look(const struct lease_keys *keys, struct buf *out) {
    const struct etcd3_operation look = look_at(keys);
    return etcd3_wire_put_operation(out, &look);
}

static const struct kv_slice no_value = {.len = 0};

static int put_choice(const struct lease_keys *keys, int64_t epoch, struct kv_slice value,
                      const struct etcd3_operation *success, size_t count, struct buf *out) {
    const struct etcd3_operation look = look_at(keys);
    const struct etcd3_transaction transaction = {.key = kv_slice_text(keys->leader),
                                                  .create_revision = epoch,
                                                  .value = value,
                                                  .success = success,
                                                  .failure = &look,
                                                  .success_count = count,
                                                  .failure_count = 1};
    return etcd3_wire_put_transaction(out, &transaction);
}

int lease_keys_put_stand(const struct lease_keys *keys, const struct lease_leader *leader, int64_t lease_id,
                         struct buf *out) {
    struct buf value;
    buf_init(&value, LEASE_VALUE_MAX);
    int rc = lease_leader_put(leader, &value);
    const struct etcd3_operation success[] = {{.kind = ETCD3_PUT,
                                               .range = {.key = kv_slice_text(keys->leader)},
                                               .value = kv_slice_of(buf_bytes(&value), value.len),
                                               .lease_id = lease_id},
                                              {.kind = ETCD3_RANGE, .range = {.key = kv_slice_text(keys->world)}}};
    rc = rc ? rc : put_choice(keys, 0, no_value, success, 2, out);
    buf_done(&value);
    return rc;
}

int lease_keys_put_expired(const struct lease_keys *keys, int64_t epoch, struct buf *out) {
    const struct etcd3_operation success = {.kind = ETCD3_DELETE, .range = {.key = kv_slice_text(keys->leader)}};
    return put_choice(keys, epoch, no_value, &success, 1, out);
}

int lease_keys_put_fence(const struct lease_keys *keys, const struct lease_leader *leader, int64_t epoch,
                         int64_t world_revision, const struct lease_world *world, struct buf *out) {
    struct buf value, leads;
    buf_init(&value, LEASE_VALUE_MAX);
    buf_init(&leads, LEASE_VALUE_MAX);
    int rc = lease_world_put(world, &value);
    rc = rc ? rc : lease_leader_put(leader, &leads);
    const struct etcd3_operation success = {.kind = ETCD3_PUT,
                                            .range = {.key = kv_slice_text(keys->world)},
                                            .value = kv_slice_of(buf_bytes(&value), value.len),
                                            .lease_id = world->lease_id};
    const struct etcd3_operation look = look_at(keys);
    const struct etcd3_transaction transaction = {.key = kv_slice_text(keys->leader),
                                                  .create_revision = epoch,
                                                  .value = kv_slice_of(buf_bytes(&leads), leads.len),
                                                  .other_key = kv_slice_text(keys->world),
                                                  .other_mod_revision = world_revision,
                                                  .success = &success,
                                                  .failure = &look,
                                                  .success_count = 1,
                                                  .failure_count = 1};
    rc = rc ? rc : etcd3_wire_put_transaction(out, &transaction);
    buf_done(&value);
    buf_done(&leads);
    return rc;
}

int lease_keys_put_clean(const struct lease_keys *keys, const struct lease_leader *leader, int64_t epoch,
                         struct buf *out) {
    struct buf leads;
    buf_init(&leads, LEASE_VALUE_MAX);
    int rc = lease_leader_put(leader, &leads);
    const struct etcd3_operation success[] = {{.kind = ETCD3_DELETE, .range = {.key = kv_slice_text(keys->world)}},
                                              {.kind = ETCD3_DELETE, .range = {.key = kv_slice_text(keys->leader)}}};
    rc = rc ? rc : put_choice(keys, epoch, kv_slice_of(buf_bytes(&leads), leads.len), success, 2, out);
    buf_done(&leads);
    return rc;
}
