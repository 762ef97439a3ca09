/* String helpers; see str.h. */
#include "base/str.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_blanks(const char *p) {
    while (*p != '\0' && isspace((unsigned char)*p)) {
        p++;
    }
    return p;
}

bool str_parse_i64(const char *text, int64_t *out) {
    const char *p = skip_blanks(text);
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') {
        p++;
    }
    uint64_t limit = negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    uint64_t value = 0;
    bool last_was_digit = false;
    for (; isdigit((unsigned char)*p) || (*p == '_' && last_was_digit); p++) {
        last_was_digit = *p != '_';
        if (!last_was_digit) {
            continue;
        }
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (limit - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    if (!last_was_digit || *skip_blanks(p) != '\0') {
        return false;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

bool str_parse_double(const char *text, double *out) {
    const char *p = skip_blanks(text);
    if (*p == '\0') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    double value = strtod(p, &end);
    if (end == p || *skip_blanks(end) != '\0' || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

const char *str_read_bytes(const char *text, uint64_t *out) {
    const char *at = text;
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10) {
            return NULL;
        }
        value = value * 10 + digit;
    }
    unsigned shift = *at == 'K' ? 10 : *at == 'M' ? 20 : *at == 'G' ? 30 : 0;
    if (at == text || value > UINT64_MAX >> shift) {
        return NULL;
    }
    *out = value << shift;
    return at + (shift > 0);
}

bool str_copy(char *out, size_t size, const char *text) {
    size_t n = strlen(text);
    if (n >= size) {
        if (size > 0) {
            out[0] = '\0';
        }
        return false;
    }
    memcpy(out, text, n + 1);
    return true;
}

bool str_format(char *out, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, size, format, args);
    va_end(args);
    return n >= 0 && (size_t)n < size;
}

char *str_format_new(const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0) {
        text = NULL;
    }
    va_end(args);
    return text;
}

bool str_has_prefix(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool str_is_service_link(const char *text) {
    return strstr(text, "://") != NULL;
}

static unsigned min_of(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* Optimal string alignment distance, three rows of the usual table. */
unsigned str_distance(const char *a, const char *b) {
    enum { LONGEST = 63 };
    size_t la = strlen(a), lb = strlen(b);
    if (la > LONGEST || lb > LONGEST) {
        return LONGEST;
    }
    unsigned rows[3][LONGEST + 1];
    for (size_t j = 0; j <= lb; j++) {
        rows[0][j] = (unsigned)j;
    }
    for (size_t i = 1; i <= la; i++) {
        unsigned *now = rows[i % 3], *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            unsigned cost = a[i - 1] == b[j - 1] ? 0 : 1;
            now[j] = min_of(min_of(before[j] + 1, now[j - 1] + 1), before[j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = min_of(now[j], two_before[j - 2] + 1);
            }
        }
    }
    return rows[la % 3][lb];
}
