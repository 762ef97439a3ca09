/* Strings and numbers: strict parsing, bounded copying, lists. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whole text as a decimal integer the way Python's int() reads it: blanks around it, an optional sign, and
 * single underscores between digits are fine; anything else, or a value outside int64, is false. */
bool str_parse_i64(const char *text, int64_t *out);

/* Whole text as a finite decimal floating-point number ("0.1", " 3 ", "1e-3"). */
bool str_parse_double(const char *text, double *out);

/* The number of bytes that `text` begins with: digits, then K, M or G for powers of 1024. Returns what is behind it;
 * NULL, if there is no number or it is too large. */
const char *str_read_bytes(const char *text, uint64_t *out);

/* Copies `text` into `out` (size bytes, terminator included). False, with out = "", when it does not fit. */
bool str_copy(char *out, size_t size, const char *text);

/* snprintf that says whether everything fitted. */
bool str_format(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* malloc'd formatted text (caller frees) or NULL when out of memory. */
char *str_format_new(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "s" after a number that is not 1. */
static inline const char *str_plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

bool str_has_prefix(const char *text, const char *prefix);

/* Is it what Kubernetes sets for each service of a pod's namespace, NAME_PORT=tcp://ADDRESS:PORT? A service called
 * "master" sets MASTER_PORT, which is nobody's port then. */
bool str_is_service_link(const char *text);

/* Number of single-character edits (insert, delete, replace, swap of neighbours) between `a` and `b`, for
 * "did you mean"; texts over 63 bytes count as far apart. */
unsigned str_distance(const char *a, const char *b);

#endif
