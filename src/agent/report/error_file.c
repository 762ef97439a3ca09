/* Error files, with jansson; see error_file.h. */
#include "agent/report/error_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h"

/* ---- making it standard JSON ---- */

/* Value of the four hexadecimal digits at `p`, or -1. */
static int hex4(const uint8_t *p, size_t count) {
    int value = 0;
    for (size_t i = 0; i < 4; i++) {
        if (i >= count || !isxdigit(p[i])) {
            return -1;
        }
        int digit = isdigit(p[i]) ? p[i] - '0' : (p[i] | 0x20) - 'a' + 10;
        value = value * 16 + digit;
    }
    return value;
}

static bool is_surrogate(int value, int first) {
    return value >= first && value < first + 0x400;
}

/* Length of the escape at `p` (a backslash); a lone surrogate is overwritten by U+FFFD. */
static size_t mend_escape(uint8_t *p, size_t count) {
    enum { HIGH = 0xD800, LOW = 0xDC00, ESCAPE = 6 };
    int value = count > 2 && p[1] == 'u' ? hex4(p + 2, count - 2) : -1;
    if (!is_surrogate(value, HIGH) && !is_surrogate(value, LOW)) {
        return count > 1 ? 2 : 1;
    }
    bool escaped = count > ESCAPE + 2 && p[ESCAPE] == '\\' && p[ESCAPE + 1] == 'u';
    if (is_surrogate(value, HIGH) && escaped && is_surrogate(hex4(p + ESCAPE + 2, count - ESCAPE - 2), LOW)) {
        return (size_t)2 * ESCAPE;
    }
    memcpy(p, "\\ufffd", ESCAPE);
    return ESCAPE;
}

/* Python writes lone surrogates for undecodable bytes, and other writers write the bytes themselves. */
static void mend(uint8_t *bytes, size_t count) {
    size_t at = 0;
    while (at < count) {
        if (bytes[at] == '\\') {
            at += mend_escape(bytes + at, count - at);
            continue;
        }
        size_t length = utf8_length(bytes + at, count - at);
        if (length == 0) {
            bytes[at] = '?';
            length = 1;
        }
        at += length;
    }
}

/* A new reference, or NULL with *code and the detail set. */
static json_t *load(const void *bytes, size_t count, int *code) {
    if (count > ERROR_FILE_BYTES_MAX) {
        *code = status_fail(MUSTER_ELIMIT, "it is larger than %zu bytes", ERROR_FILE_BYTES_MAX);
        return NULL;
    }
    uint8_t *copy = malloc(count + 1);
    if (!copy) {
        *code = status_fail(MUSTER_ENOMEM, "no memory to read it");
        return NULL;
    }
    if (count > 0) {
        memcpy(copy, bytes, count);
    }
    copy[count] = '\0';
    mend(copy, count);
    json_error_t error;
    json_t *root = json_loadb((const char *)copy, count, JSON_ALLOW_NUL, &error);
    free(copy);
    if (!root) {
        *code = count == 0 ? status_fail(MUSTER_ECORRUPT, "it is empty")
                           : status_fail(MUSTER_ECORRUPT, "it is not JSON: %s (line %d)", error.text, error.line);
    }
    return root;
}

/* ---- understanding it ---- */

static char *text_of(const json_t *string) {
    size_t length = json_string_length(string);
    char *text = malloc(length + 1);
    if (text) {
        memcpy(text, json_string_value(string), length);
        text[length] = '\0';
        for (size_t i = 0; i < length; i++) {
            text[i] = text[i] == '\0' ? ' ' : text[i];
        }
    }
    return text;
}

/* torchelastic writes whole seconds as text; numbers are taken too. */
static int64_t time_of(const json_t *value) {
    int64_t seconds = 0;
    if (json_is_integer(value)) {
        seconds = json_integer_value(value);
    } else if (json_is_real(value) && json_real_value(value) > 0 && json_real_value(value) < 1e12) {
        seconds = (int64_t)json_real_value(value);
    } else if (json_is_string(value) && !str_parse_i64(json_string_value(value), &seconds)) {
        seconds = 0;
    }
    return seconds > 0 && seconds < INT64_C(1000000000000) ? seconds : 0;
}

/* What the report shows of the message: the call stack if there is one, else the text. NULL: neither. */
static const json_t *shown_of(const json_t *message) {
    if (json_is_string(message)) {
        return message;
    }
    const json_t *stack = json_object_get(json_object_get(message, "extraInfo"), "py_callstack");
    const json_t *text = json_object_get(message, "message");
    return json_is_string(stack) ? stack : json_is_string(text) ? text : NULL;
}

static int understand(const json_t *root, struct error_record *out) {
    const json_t *message = json_object_get(root, "message");
    if (!json_is_string(message) && !json_is_object(message)) {
        return status_fail(MUSTER_ECORRUPT, "it has no \"message\" that is a text or an object");
    }
    const json_t *shown = shown_of(message);
    const json_t *time = json_is_object(message) ? json_object_get(json_object_get(message, "extraInfo"), "timestamp")
                                                 : json_object_get(root, "timestamp");
    struct error_record record = {
        .message = shown ? text_of(shown) : strdup("<N/A>"),
        .is_traceback = json_is_object(message),
        .time_s = time_of(time),
        .json = json_dumps(root, JSON_ENSURE_ASCII),
    };
    if (!record.message || !record.json) {
        error_record_done(&record);
        return status_fail(MUSTER_ENOMEM, "no memory to read it");
    }
    *out = record;
    return MUSTER_OK;
}

int error_record_parse(const void *bytes, size_t count, struct error_record *out) {
    int code = MUSTER_OK;
    json_t *root = load(bytes, count, &code);
    if (root) {
        code = understand(root, out);
        json_decref(root);
    }
    return code;
}

void error_record_done(struct error_record *record) {
    free(record->message);
    free(record->json);
    *record = (struct error_record){0};
}

/* ---- files ---- */

/* The whole file, malloc'd. */
static int read_whole(const char *path, char **out, size_t *count) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return errno == ENOENT || errno == ENOTDIR ? status_fail(MUSTER_ENOENT, "%s does not exist", path)
                                                   : status_fail_errno(errno, "cannot open %s", path);
    }
    struct stat st;
    char *bytes = NULL;
    int code = MUSTER_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        code = status_fail(MUSTER_ECORRUPT, "it is not a regular file");
    } else if ((bytes = malloc(ERROR_FILE_BYTES_MAX + 1)) == NULL) {
        code = status_fail(MUSTER_ENOMEM, "no memory to read it");
    }
    size_t held = 0;
    while (code == 0 && held <= ERROR_FILE_BYTES_MAX) {
        ssize_t n = read(fd, bytes + held, ERROR_FILE_BYTES_MAX + 1 - held);
        if (n == 0) {
            break;
        }
        if (n > 0) {
            held += (size_t)n;
        } else if (errno != EINTR) {
            code = status_fail_errno(errno, "cannot read it");
        }
    }
    close(fd);
    if (code != 0) {
        free(bytes);
        return code;
    }
    *out = bytes;
    *count = held;
    return MUSTER_OK;
}

int error_file_read(const char *path, struct error_record *out) {
    char *bytes = NULL;
    size_t count = 0;
    int code = read_whole(path, &bytes, &count);
    code = code == 0 ? error_record_parse(bytes, count, out) : code;
    free(bytes);
    return code;
}

/* In place: for what is not a regular file, and for folders that take no second file. 0, or a number of errno.h. */
static int write_in_place(const char *path, const char *text, size_t count) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    int error_number = fd < 0 ? errno : file_write_all(fd, text, count, 0);
    if (fd >= 0 && close(fd) != 0 && error_number == 0) {
        error_number = errno;
    }
    return error_number;
}

static int replace_file(const char *path, const char *text, size_t count) {
    struct stat st;
    bool in_place = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    struct file_draft draft;
    in_place = in_place || file_draft_open(&draft, path) != 0;
    int error_number = in_place
                           ? write_in_place(path, text, count)
                           : file_draft_close(&draft, file_write_all(draft.fd, text, count, 0), FILE_TAKES_NAME, false);
    return error_number == 0 ? MUSTER_OK : status_fail_errno(error_number, "cannot write error file %s", path);
}

static int write_json(const char *path, const json_t *root) {
    char *text = json_dumps(root, JSON_ENSURE_ASCII);
    if (!text) {
        return status_fail(MUSTER_ENOMEM, "no memory to write error file %s", path);
    }
    int code = replace_file(path, text, strlen(text));
    free(text);
    return code;
}

int error_file_propagate(const char *path, int exit_code, const char *own_path) {
    char *bytes = NULL;
    size_t count = 0;
    int code = read_whole(path, &bytes, &count);
    json_t *root = code == 0 ? load(bytes, count, &code) : NULL;
    free(bytes);
    if (!root) {
        return code;
    }
    json_t *message = json_object_get(root, "message");
    if (json_is_object(message) && exit_code != 0 &&
        json_object_set_new(message, "errorCode", json_integer(exit_code)) != 0) {
        code = status_fail(MUSTER_ENOMEM, "no memory to write error file %s", own_path);
    }
    code = code == 0 ? write_json(own_path, root) : code;
    json_decref(root);
    return code;
}

/* json_pack refuses text that is no UTF-8. */
static json_t *string_of(const char *text) {
    size_t count = strlen(text);
    char *copy = strdup(text);
    if (!copy) {
        return NULL;
    }
    for (size_t at = 0; at < count;) {
        size_t length = utf8_length((const uint8_t *)copy + at, count - at);
        copy[at] = length == 0 ? '?' : copy[at];
        at += length == 0 ? 1 : length;
    }
    json_t *string = json_string(copy);
    free(copy);
    return string;
}

int error_file_write(const char *own_path, const char *message, const char *call_stack, int64_t time_s) {
    char time_text[24];
    (void)str_format(time_text, sizeof time_text, "%lld", (long long)time_s);
    json_t *root = json_pack("{s:{s:o,s:{s:o,s:s}}}", "message", "message", string_of(message), "extraInfo",
                             "py_callstack", string_of(call_stack), "timestamp", time_text);
    if (!root) {
        return status_fail(MUSTER_ENOMEM, "no memory to write error file %s", own_path);
    }
    int code = write_json(own_path, root);
    json_decref(root);
    return code;
}
