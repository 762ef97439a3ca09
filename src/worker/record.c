/* Composing an error record and writing it in torchelastic's JSON, with nothing that a signal handler may not do; and
 * muster_record_error(). The handlers are in record_signal.c.
 *
 * State is per process by nature (one error file, one crash), and all of it is here. */
#include <muster/record.h>

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "base/utf8.h"
#include "worker/record_impl.h"

enum {
    PATH_BYTES = 4096,
    FRAMES_MAX = 64,
    ESCAPE_BYTES_MAX = 6, /* one byte as \u00xx */
    JSON_BYTES = ESCAPE_BYTES_MAX * (MUSTER_RECORD_MESSAGE_MAX + (int)RECORD_STACK_BYTES_MAX) + 256
};

static char path[PATH_BYTES];
static pid_t owner_process;
static _Atomic pid_t owner_thread;
static char message_bytes[MUSTER_RECORD_MESSAGE_MAX], stack_bytes[RECORD_STACK_BYTES_MAX], json_bytes[JSON_BYTES];
static struct record the_record;
static struct file_draft draft; /* a program's own alternate stack may be small */
volatile bool record_was_reported;

/* ---- text ---- */

void record_text_put_bytes(struct record_text *text, const char *bytes, size_t count) {
    size_t room = text->size - text->length;
    size_t n = count < room ? count : room;
    memcpy(text->bytes + text->length, bytes, n);
    text->length += n;
}

void record_text_put(struct record_text *text, const char *string) {
    record_text_put_bytes(text, string, strlen(string));
}

static void put_digits(struct record_text *text, uint64_t value, unsigned base) {
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value > 0);
    record_text_put_bytes(text, digits + at, sizeof digits - at);
}

void record_text_put_decimal(struct record_text *text, int64_t value) {
    if (value < 0) {
        record_text_put(text, "-");
    }
    put_digits(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10);
}

void record_text_put_hex(struct record_text *text, uintptr_t value) {
    record_text_put(text, "0x");
    put_digits(text, value, 16);
}

/* ---- one writer at a time ---- */

static pid_t this_thread(void) {
    return (pid_t)syscall(SYS_gettid);
}

struct record *record_take(void) {
    enum { WAIT_MS = 2 };
    pid_t self = this_thread(), expected = 0;
    while (!atomic_compare_exchange_strong(&owner_thread, &expected, self)) {
        if (expected == self) {
            return NULL;
        }
        expected = 0;
        (void)poll(NULL, 0, WAIT_MS); /* the other one is writing a file; it ends or the process does */
    }
    the_record.message = (struct record_text){message_bytes, sizeof message_bytes, 0};
    the_record.stack = (struct record_text){stack_bytes, sizeof stack_bytes, 0};
    return &the_record;
}

void record_release(struct record *record) {
    (void)record;
    atomic_store(&owner_thread, 0);
}

/* ---- the call stack ---- */

void record_prime_backtrace(void) {
    void *frames[2];
    (void)backtrace(frames, 2);
}

/* backtrace_symbols_fd() is the one symboliser that may be used in a signal handler; it writes to a descriptor, so
 * a file in memory takes its lines. */
static bool put_symbols(struct record_text *text, void *const *frames, int count) {
    int fd = (int)syscall(SYS_memfd_create, "backtrace", MFD_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    backtrace_symbols_fd(frames, count, fd);
    ssize_t n = pread(fd, text->bytes + text->length, text->size - text->length, 0);
    close(fd);
    text->length += n > 0 ? (size_t)n : 0;
    return n > 0;
}

void record_add_backtrace(struct record *record, uintptr_t from, int skip) {
    void *frames[FRAMES_MAX];
    int count = backtrace(frames, FRAMES_MAX), first = skip < count ? skip : 0;
    for (int i = 0; i < count; i++) {
        if ((uintptr_t)frames[i] == from) {
            first = i;
            break;
        }
    }
    /* A return address may lie behind the end of the function that made the call, where the call was the last thing. */
    for (int i = first; i < count; i++) {
        if ((uintptr_t)frames[i] != from && frames[i]) {
            frames[i] = (char *)frames[i] - 1;
        }
    }
    record_text_put(&record->stack, "Backtrace (most recent call first):\n");
    if (!put_symbols(&record->stack, frames + first, count - first)) {
        for (int i = first; i < count; i++) {
            record_text_put_hex(&record->stack, (uintptr_t)frames[i]);
            record_text_put(&record->stack, "\n");
        }
    }
}

/* ---- the file ---- */

int record_find_file(void) {
    const char *given = getenv("TORCHELASTIC_ERROR_FILE");
    size_t length = given ? strlen(given) : 0;
    if (length >= sizeof path) {
        return status_fail(MUSTER_ELIMIT, "TORCHELASTIC_ERROR_FILE is longer than %zu bytes", sizeof path - 1);
    }
    if (length == 0) {
        path[0] = '\0';
        return MUSTER_OK;
    }
    memcpy(path, given, length + 1);
    owner_process = getpid();
    return MUSTER_OK;
}

bool record_has_file(void) {
    return path[0] != '\0' && owner_process == getpid();
}

/* ASCII only: readers may use any encoding. */
static void put_escaped(struct record_text *json, const struct record_text *text) {
    for (size_t at = 0; at < text->length;) {
        const uint8_t *bytes = (const uint8_t *)text->bytes + at;
        size_t length = utf8_length(bytes, text->length - at);
        uint32_t value = length > 0 ? utf8_decode(bytes, length) : 0xFFFD;
        at += length > 0 ? length : 1;
        if (value == '"' || value == '\\' || value == '\n') {
            char pair[2] = {'\\', value == '\n' ? 'n' : (char)value};
            record_text_put_bytes(json, pair, 2);
        } else if (value >= 0x20 && value < 0x7F) {
            char plain = (char)value;
            record_text_put_bytes(json, &plain, 1);
        } else {
            bool pair = value >= 0x10000;
            uint32_t units[2] = {pair ? 0xD800 + ((value - 0x10000) >> 10) : value,
                                 0xDC00 + ((value - 0x10000) & 0x3FF)};
            for (int i = 0; i < (pair ? 2 : 1); i++) {
                char escape[6] = {'\\', 'u'};
                for (int digit = 0; digit < 4; digit++) {
                    escape[2 + digit] = "0123456789abcdef"[units[i] >> (12 - 4 * digit) & 0xF];
                }
                record_text_put_bytes(json, escape, sizeof escape);
            }
        }
    }
}

int record_write(const struct record *record) {
    struct record_text json = {json_bytes, sizeof json_bytes, 0};
    record_text_put(&json, "{\"message\": {\"message\": \"");
    put_escaped(&json, &record->message);
    record_text_put(&json, "\", \"extraInfo\": {\"py_callstack\": \"");
    put_escaped(&json, &record->stack);
    record_text_put(&json, "\", \"timestamp\": \"");
    record_text_put_decimal(&json, (int64_t)time(NULL));
    record_text_put(&json, "\"}}}");
    struct stat st;
    bool in_place = stat(path, &st) == 0 && !S_ISREG(st.st_mode); /* /dev/null and its like are not to be replaced */
    if (!in_place) {
        int error_number = file_draft_open(&draft, path);
        return error_number ? error_number
                            : file_draft_close(&draft, file_write_all(draft.fd, json.bytes, json.length, 0),
                                               FILE_TAKES_NAME, false);
    }
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        return errno;
    }
    int error_number = file_write_all(fd, json.bytes, json.length, 0);
    (void)close(fd);
    return error_number;
}

/* ---- reported errors ---- */

int muster_record_error(const char *format, ...) {
    struct record *record = record_take();
    if (!record) {
        return status_fail(MUSTER_EINVAL, "muster_record_error() was called from a signal handler");
    }
    int code = record_find_file();
    if (code == 0 && record_has_file()) {
        va_list arguments;
        va_start(arguments, format);
        int n = vsnprintf(message_bytes, sizeof message_bytes, format, arguments);
        va_end(arguments);
        size_t length = n < 0 ? 0 : (size_t)n;
        record->message.length = length < sizeof message_bytes ? length : sizeof message_bytes - 1;
        record_text_put_bytes(&record->stack, message_bytes, record->message.length);
        record_text_put(&record->stack, "\n");
        record_add_backtrace(record, 0, 2); /* not ours: record_add_backtrace() and this one */
        int error_number = record_write(record);
        record_was_reported = error_number == 0;
        code = error_number ? status_fail_errno(error_number, "cannot write error file %s", path) : MUSTER_OK;
    }
    record_release(record);
    return code;
}
