/* Formatting and writing of log lines; see log_stderr.h. */
#include "cli/command/log_stderr.h"

#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/printable.h"
#include "base/str.h"
#include "cli/command/cli.h"

/* A message of the longest kind, with room for the headers of its lines. */
#define OUTPUT_MAX (4 * LOG_TEXT_MAX)

size_t log_stderr_format(char *out, size_t size, enum log_level level, const char *file, int line, const char *text,
                         int64_t time_us, int pid) {
    static const char letters[] = "DIWE";
    time_t seconds = (time_t)(time_us / CLOCK_US_PER_S);
    struct tm tm = {0};
    char header[256];
    size_t used = 0;
    (void)localtime_r(&seconds, &tm);
    (void)str_format(header, sizeof header, "%c%02d%02d %02d:%02d:%02d.%03d000 %d %s:%d]", letters[level],
                     tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                     (int)(time_us % CLOCK_US_PER_S / 1000), pid, file, line);
    for (const char *p = text;;) {
        size_t n = strcspn(p, "\n");
        if (!str_format(out + used, size - used, "%s %.*s\n", header, (int)n, p)) {
            printable_clean(out, used, true);
            return used;
        }
        used += strlen(out + used);
        if (p[n] == '\0') {
            printable_clean(out, used, true); /* sentences quote what others have said */
            return used;
        }
        p += n + 1;
    }
}

void log_stderr_print(const char *text, size_t bytes) {
    if (!log_divert(text, bytes)) {
        (void)cli_write_all(STDERR_FILENO, text, bytes);
    }
}

/* One write for a message, so that agents that share a terminal do not mix their lines. */
static void sink(enum log_level level, const char *file, int line, const char *text) {
    char out[OUTPUT_MAX];
    size_t n = log_stderr_format(out, sizeof out, level, file, line, text, clock_realtime_us(), (int)getpid());
    log_stderr_print(out, n);
}

bool log_stderr_level(const char *name, enum log_level *out) {
    static const struct {
        const char *name;
        enum log_level level;
    } levels[] = {
        {"NOTSET", LOG_LEVEL_DEBUG}, {"DEBUG", LOG_LEVEL_DEBUG},     {"INFO", LOG_LEVEL_INFO},
        {"WARN", LOG_LEVEL_WARNING}, {"WARNING", LOG_LEVEL_WARNING}, {"ERROR", LOG_LEVEL_ERROR},
        {"FATAL", LOG_LEVEL_OFF},    {"CRITICAL", LOG_LEVEL_OFF},
    };
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (strcasecmp(name, levels[i].name) == 0) {
            *out = levels[i].level;
            return true;
        }
    }
    return false;
}

void log_stderr_install(const char *level_name) {
    enum log_level level = LOG_LEVEL_WARNING;
    bool known = level_name == NULL || level_name[0] == '\0' || log_stderr_level(level_name, &level);
    log_set_sink(sink);
    log_set_level(level);
    if (!known) {
        log_warning("LOGLEVEL is '%.50s'; DEBUG, INFO, WARNING, ERROR or CRITICAL is expected", level_name);
    }
}
