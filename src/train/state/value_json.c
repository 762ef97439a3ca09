/* See value_json.h. */
#include "train/state/value_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h"

/* JSON has no NaN and no infinities: they are the texts that Python's float() takes. */
static json_t *real_json(double number) {
    if (isnan(number)) {
        return json_string("nan");
    }
    return isinf(number) ? json_string(number > 0 ? "inf" : "-inf") : json_real(number);
}

static bool read_real(const json_t *json, double *out) {
    if (json_is_real(json)) {
        *out = json_real_value(json);
        return true;
    }
    const char *text = json_string_value(json);
    if (!text || (strcmp(text, "nan") != 0 && strcmp(text, "inf") != 0 && strcmp(text, "-inf") != 0)) {
        return false;
    }
    *out = text[0] == 'n' ? (double)NAN : text[0] == 'i' ? (double)INFINITY : -(double)INFINITY;
    return true;
}

static bool is_integer(const struct muster_value *value) {
    return value->kind == MUSTER_VALUE_INTEGER || value->kind == MUSTER_VALUE_OPTIONAL_INTEGER;
}

static int check_value(const struct muster_value *value, size_t index) {
    if (!value->name || value->name[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "value %zu has no name", index);
    }
    if (strnlen(value->name, MUSTER_NAME_MAX) == MUSTER_NAME_MAX) {
        return status_fail(MUSTER_ELIMIT, "the name of value %zu is longer than %zu bytes", index, MUSTER_NAME_MAX - 1);
    }
    if (!value->data) {
        return status_fail(MUSTER_EINVAL, "value %s has no data", value->name);
    }
    if (!utf8_is_valid(value->name)) {
        return status_fail(MUSTER_EINVAL, "the name of value %zu is not UTF-8", index);
    }
    if (value->kind == MUSTER_VALUE_TEXT) {
        size_t room = value->room < MUSTER_VALUE_TEXT_MAX ? value->room : MUSTER_VALUE_TEXT_MAX;
        if (strnlen(value->data, room) == room) {
            return status_fail(MUSTER_ELIMIT, "the text of %s does not end within %zu bytes", value->name, room);
        }
        if (!utf8_is_valid(value->data)) {
            return status_fail(MUSTER_EINVAL, "the text of %s is not UTF-8", value->name);
        }
    } else if (!is_integer(value) && value->kind != MUSTER_VALUE_REAL) {
        return status_fail(MUSTER_EINVAL, "value %s is of no known kind (%d)", value->name, (int)value->kind);
    }
    return 0;
}

static json_t *json_of(const struct muster_value *value) {
    switch (value->kind) {
    case MUSTER_VALUE_INTEGER:
    case MUSTER_VALUE_OPTIONAL_INTEGER:
        return json_integer(*(const int64_t *)value->data);
    case MUSTER_VALUE_REAL:
        return real_json(*(const double *)value->data);
    default:
        return json_string(value->data);
    }
}

int value_json_add(json_t *object, const struct muster_value *values, size_t count) {
    if (count > MUSTER_VALUES_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu values; at most %zu fit into a snapshot", count, MUSTER_VALUES_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        int code = check_value(&values[i], i);
        if (code) {
            return code;
        }
        if (json_object_get(object, values[i].name)) {
            return status_fail(MUSTER_EINVAL, "two values are named %s", values[i].name);
        }
        if (json_object_set_new(object, values[i].name, json_of(&values[i])) != 0) {
            return status_fail(MUSTER_ENOMEM, "no memory for a list of values");
        }
    }
    return 0;
}

static int read_value(const json_t *json, const struct muster_value *value, bool copy) {
    const char *text = NULL;
    double real = 0;
    switch (value->kind) {
    case MUSTER_VALUE_INTEGER:
    case MUSTER_VALUE_OPTIONAL_INTEGER:
        if (!json_is_integer(json)) {
            return status_fail(MUSTER_EINVAL, "value %s is no integer in the snapshot", value->name);
        }
        if (copy) {
            *(int64_t *)value->data = json_integer_value(json);
        }
        return 0;
    case MUSTER_VALUE_REAL:
        if (!read_real(json, &real)) {
            return status_fail(MUSTER_EINVAL, "value %s is no real number in the snapshot", value->name);
        }
        if (copy) {
            *(double *)value->data = real;
        }
        return 0;
    default:
        text = json_string_value(json);
        if (!text || strlen(text) >= value->room) {
            return status_fail(MUSTER_EINVAL,
                               text ? "the text of %s is longer than there is room for"
                                    : "value %s is no text in the snapshot",
                               value->name);
        }
        return copy && !str_copy(value->data, value->room, text) ? MUSTER_EINVAL : 0;
    }
}

int value_json_read(const json_t *object, const struct muster_value *values, size_t count, bool copy) {
    for (size_t i = 0; i < count; i++) {
        if (!values[i].name || !values[i].data) {
            return status_fail(MUSTER_EINVAL, "value %zu has no name or no data", i);
        }
        const json_t *json = json_object_get(object, values[i].name);
        int code = 0;
        if (json) {
            code = read_value(json, &values[i], copy);
        } else if (values[i].kind != MUSTER_VALUE_OPTIONAL_INTEGER) {
            code = status_fail(MUSTER_EINVAL, "value %s is not in the snapshot", values[i].name);
        }
        if (code) {
            return code;
        }
    }
    return 0;
}
