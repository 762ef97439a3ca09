/* Names and requests; see etcd3_keys.h. */
#include "rendezvous/etcd3_keys.h"

#include <string.h>

#include "base/status.h"
#include "base/str.h"

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

int etcd3_keys_init(struct etcd3_keys *keys, const char *prefix, const char *run_id) {
    *keys = (struct etcd3_keys){.root = ""};
    if (!str_format(keys->root, sizeof keys->root, "%s/", prefix) ||
        !append_run_id(keys->root, sizeof keys->root, run_id)) {
        return status_fail(MUSTER_EINVAL, "etcd_prefix and the run id are too long for a key");
    }
    (void)str_format(keys->leader, sizeof keys->leader, "%s/leader", keys->root);
    return MUSTER_OK;
}

void etcd3_keys_set_identity(struct etcd3_keys *keys, const uint64_t identity[2]) {
    (void)str_format(keys->identity, sizeof keys->identity, "%016llx%016llx", (unsigned long long)identity[0],
                     (unsigned long long)identity[1]);
    (void)str_format(keys->from, sizeof keys->from, "%s/from/%s", keys->root, keys->identity);
    (void)str_format(keys->to, sizeof keys->to, "%s/to/%s", keys->root, keys->identity);
}

/* If the leader's key was created at `revision`. */
static int put_choice(const struct etcd3_keys *keys, int64_t revision, const struct etcd3_operation *success,
                      struct buf *out) {
    const struct etcd3_operation failure = {.kind = ETCD3_RANGE, .range = {.key = kv_slice_text(keys->leader)}};
    const struct etcd3_transaction transaction = {.key = kv_slice_text(keys->leader),
                                                  .create_revision = revision,
                                                  .success = success,
                                                  .failure = &failure,
                                                  .success_count = 1,
                                                  .failure_count = 1};
    return etcd3_wire_put_transaction(out, &transaction);
}

int etcd3_keys_put_stand(const struct etcd3_keys *keys, int64_t lease_id, struct buf *out) {
    const struct etcd3_operation success = {.kind = ETCD3_PUT,
                                            .range = {.key = kv_slice_text(keys->leader)},
                                            .value = kv_slice_text(keys->identity),
                                            .lease_id = lease_id};
    return put_choice(keys, 0, &success, out);
}

int etcd3_keys_put_look(const struct etcd3_keys *keys, int64_t epoch, struct buf *out) {
    const struct etcd3_operation success = {.kind = ETCD3_RANGE, .range = {.key = kv_slice_text(keys->to)}};
    return put_choice(keys, epoch, &success, out);
}

int etcd3_keys_put_letter(const struct etcd3_keys *keys, struct kv_slice value, int64_t lease_id, struct buf *out) {
    const struct etcd3_operation put = {
        .kind = ETCD3_PUT, .range = {.key = kv_slice_text(keys->from)}, .value = value, .lease_id = lease_id};
    return etcd3_wire_put_operation(out, &put);
}
