/* The legacy etcd backend's value; see etcd_world.h. */
#include "rendezvous/etcd_legacy/etcd_world.h"

#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/round/node_name.h"

static const char *const statuses[] = {
    [ETCD_WORLD_SETUP] = "setup", [ETCD_WORLD_JOINABLE] = "joinable", [ETCD_WORLD_FROZEN] = "frozen",
    [ETCD_WORLD_FINAL] = "final", [ETCD_WORLD_CLOSED] = "closed",
};

/* ---- reading ---- */

static int corrupt(const char *what) {
    return status_fail(MUSTER_ECORRUPT, "the rendezvous in etcd is not PyTorch's: %s", what);
}

static bool read_status(const json_t *object, enum etcd_world_status *out) {
    const char *text = json_string_value(json_object_get(object, "status"));
    for (size_t i = ETCD_WORLD_SETUP; text && i < sizeof statuses / sizeof *statuses; i++) {
        if (strcmp(text, statuses[i]) == 0) {
            *out = (enum etcd_world_status)i;
            return true;
        }
    }
    return false;
}

/* The version goes into paths: digits, as PyTorch counts. */
static bool read_version(const json_t *object, char out[ETCD_WORLD_VERSION_MAX]) {
    const char *text = json_string_value(json_object_get(object, "version"));
    return text && text[0] != '\0' && text[strspn(text, "0123456789")] == '\0' &&
           str_copy(out, ETCD_WORLD_VERSION_MAX, text);
}

static bool read_participants(const json_t *object, uint32_t *out) {
    const json_t *list = json_object_get(object, "participants");
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > RDZV_NODES_MAX) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (json_integer_value(json_array_get(list, i)) != (json_int_t)i) {
            return false;
        }
    }
    *out = (uint32_t)count;
    return true;
}

static bool read_keep_alives(const json_t *object, const struct etcd_world *world, uint32_t *out) {
    const json_t *list = json_object_get(object, "keep_alives");
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > world->participants) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!json_is_string(json_array_get(list, i))) {
            return false;
        }
    }
    *out = (uint32_t)count;
    return true;
}

static int read_object(const json_t *object, struct etcd_world *out) {
    if (!read_status(object, &out->status)) {
        return corrupt("its status is unknown");
    }
    if (out->status == ETCD_WORLD_SETUP) {
        return MUSTER_OK;
    }
    if (out->status == ETCD_WORLD_CLOSED) { /* at whatever point it was */
        if (!read_version(object, out->version) || !read_participants(object, &out->participants)) {
            out->version[0] = '\0';
        }
        return MUSTER_OK;
    }
    if (!read_version(object, out->version)) {
        return corrupt("its version is no number");
    }
    if (!read_participants(object, &out->participants)) {
        return corrupt("its participants are not numbered from 0");
    }
    if (out->status == ETCD_WORLD_JOINABLE) {
        return MUSTER_OK;
    }
    if (!read_keep_alives(object, out, &out->confirmed)) {
        return corrupt("its keep_alives are not those of its participants");
    }
    const json_t *waiting = json_object_get(object, "num_workers_waiting");
    if (out->status == ETCD_WORLD_FINAL) {
        if (!json_is_integer(waiting) || json_integer_value(waiting) < 0 || out->confirmed != out->participants) {
            return corrupt("it is final, and not complete");
        }
        out->waiting = (uint64_t)json_integer_value(waiting);
    }
    return MUSTER_OK;
}

int etcd_world_read(const char *text, size_t len, struct etcd_world *out) {
    json_error_t error;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    *out = (struct etcd_world){.status = ETCD_WORLD_ABSENT};
    int rc = json_is_object(object)                                ? read_object(object, out)
             : json_error_code(&error) == json_error_out_of_memory ? status_fail(MUSTER_ENOMEM, "no memory for JSON")
                                                                   : corrupt("no JSON object");
    json_decref(object);
    return rc;
}

/* ---- keep-alives ---- */

bool etcd_world_has_keep_alive(const char *text, const char *path) {
    json_t *object = json_loads(text, 0, NULL);
    const json_t *list = json_object_get(object, "keep_alives");
    bool found = false;
    for (size_t i = 0; i < json_array_size(list) && !found; i++) {
        found = strcmp(json_string_value(json_array_get(list, i)), path) == 0;
    }
    json_decref(object);
    return found;
}

/* ---- writing ---- */

/* Takes `object`. */
static char *text_of(json_t *object, bool fine) {
    char *text = object && fine ? json_dumps(object, JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    return text;
}

static bool set_status(json_t *object, enum etcd_world_status status) {
    return json_object_set_new(object, "status", json_string(statuses[status])) == 0;
}

char *etcd_world_setup(void) {
    json_t *object = json_object();
    return text_of(object, set_status(object, ETCD_WORLD_SETUP));
}

char *etcd_world_joinable(const char *version) {
    return text_of(
        json_pack("{s:s, s:s, s:[]}", "status", statuses[ETCD_WORLD_JOINABLE], "version", version, "participants"),
        true);
}

static bool set_frozen(json_t *object) {
    return set_status(object, ETCD_WORLD_FROZEN) && json_object_set_new(object, "keep_alives", json_array()) == 0;
}

char *etcd_world_join(const char *text, bool freeze) {
    json_t *object = json_loads(text, 0, NULL);
    json_t *list = json_object_get(object, "participants");
    bool fine = json_array_append_new(list, json_integer((json_int_t)json_array_size(list))) == 0;
    return text_of(object, fine && (!freeze || set_frozen(object)));
}

char *etcd_world_freeze(const char *text) {
    json_t *object = json_loads(text, 0, NULL);
    return text_of(object, set_frozen(object));
}

char *etcd_world_confirm(const char *text, const char *path) {
    json_t *object = json_loads(text, 0, NULL);
    json_t *list = json_object_get(object, "keep_alives");
    bool fine = json_array_append_new(list, json_string(path)) == 0;
    if (json_array_size(list) == json_array_size(json_object_get(object, "participants"))) {
        fine = fine && set_status(object, ETCD_WORLD_FINAL) &&
               json_object_set_new(object, "num_workers_waiting", json_integer(0)) == 0;
    }
    return text_of(object, fine);
}

char *etcd_world_wait(const char *text) {
    json_t *object = json_loads(text, 0, NULL);
    json_int_t waiting = json_integer_value(json_object_get(object, "num_workers_waiting"));
    bool fine =
        waiting < INT32_MAX && json_object_set_new(object, "num_workers_waiting", json_integer(waiting + 1)) == 0;
    return text_of(object, fine);
}

char *etcd_world_close(const char *text) {
    json_t *object = json_loads(text, 0, NULL);
    return text_of(object, set_status(object, ETCD_WORLD_CLOSED));
}
