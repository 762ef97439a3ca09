/* Slurm's host lists; see hostlist.h. An item is looked at as pieces: literal text, or a group of ranges. */
#include "base/hostlist.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { NUMBER_DIGITS_MAX = 9 };

static int fail_syntax(const char *text, const char *what) {
    return status_fail(MUSTER_EINVAL, "\"%.100s\" is no list of hosts such as gpu[001-004,7],login: %s", text, what);
}

/* "7" or "001-004": one range of a group. */
struct range {
    uint32_t low, high;
    size_t width; /* digits of the lower bound: what is shorter gets zeros */
};

static size_t digits(const char *p, uint32_t *out) {
    size_t n = 0;
    uint32_t value = 0;
    while (isdigit((unsigned char)p[n])) {
        if (n == NUMBER_DIGITS_MAX) {
            return 0;
        }
        value = value * 10 + (uint32_t)(p[n++] - '0');
    }
    *out = value;
    return n;
}

/* Returns what follows the range, or NULL. */
static const char *range_read(const char *p, struct range *out) {
    out->width = digits(p, &out->low);
    out->high = out->low;
    if (out->width == 0) {
        return NULL;
    }
    p += out->width;
    if (*p == '-') {
        size_t n = digits(p + 1, &out->high);
        p = n > 0 && out->high >= out->low ? p + 1 + n : NULL;
    }
    return p;
}

/* At the bracket that opens a group: how many numbers it has, and what follows it; or NULL. */
static const char *group_read(const char *p, size_t *count) {
    struct range range;
    *count = 0;
    do {
        p = range_read(p + 1, &range);
        if (p == NULL) {
            return NULL;
        }
        *count += (size_t)range.high - range.low + 1;
    } while (*p == ',');
    return *p == ']' ? p + 1 : NULL;
}

static void group_number(const char *p, size_t index, struct range *out) {
    while ((p = range_read(p + 1, out)) != NULL && index > out->high - out->low) {
        index -= (size_t)out->high - out->low + 1;
    }
    out->low += (uint32_t)index;
}

struct item {
    const char *start, *end;
    size_t group_counts[HOSTLIST_GROUPS_MAX];
    size_t group_count;
    size_t host_count;
};

static int item_add_group(struct item *item, const char *text, size_t count) {
    if (item->group_count == HOSTLIST_GROUPS_MAX) {
        return status_fail(MUSTER_ELIMIT, "\"%.100s\" has more than %d groups in one item", text, HOSTLIST_GROUPS_MAX);
    }
    if (count > HOSTLIST_HOSTS_MAX / item->host_count) {
        return status_fail(MUSTER_ELIMIT, "\"%.100s\" stands for more than %zu hosts", text, HOSTLIST_HOSTS_MAX);
    }
    item->group_counts[item->group_count++] = count;
    item->host_count *= count;
    return MUSTER_OK;
}

static int item_read(const char *text, const char *start, struct item *item) {
    *item = (struct item){.start = start, .host_count = 1};
    const char *p = start;
    while (*p != '\0' && *p != ',') {
        size_t count = 0;
        if (*p == ']' || isspace((unsigned char)*p)) {
            return fail_syntax(text, "a bracket or a blank is out of place");
        }
        if (*p != '[') {
            p++;
            continue;
        }
        p = group_read(p, &count);
        if (p == NULL) {
            return fail_syntax(text, "numbers and ranges (8 or 001-004) of up to nine digits stand in brackets");
        }
        int rc = item_add_group(item, text, count);
        if (rc != MUSTER_OK) {
            return rc;
        }
    }
    item->end = p;
    return p > start ? MUSTER_OK : fail_syntax(text, "a name is empty");
}

/* Calls item_read() for one item after the other until `index` lies in it. Without `index`, counts all. */
static int find(const char *text, const size_t *index, struct item *item, size_t *hosts_before) {
    *hosts_before = 0;
    if (strnlen(text, HOSTLIST_BYTES_MAX) == HOSTLIST_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a list of hosts has fewer than %zu bytes", HOSTLIST_BYTES_MAX);
    }
    for (const char *p = text;; p = item->end + 1) {
        int rc = item_read(text, p, item);
        if (rc != MUSTER_OK || (index != NULL && *index - *hosts_before < item->host_count)) {
            return rc;
        }
        *hosts_before += item->host_count;
        if (*hosts_before > HOSTLIST_HOSTS_MAX) {
            return status_fail(MUSTER_ELIMIT, "\"%.100s\" stands for more than %zu hosts", text, HOSTLIST_HOSTS_MAX);
        }
        if (*item->end == '\0') {
            return index == NULL ? MUSTER_OK
                                 : status_fail(MUSTER_EINVAL, "\"%.100s\" has no host number %zu", text, *index);
        }
    }
}

int hostlist_count(const char *text, size_t *out) {
    struct item item;
    size_t count = 0;
    int rc = find(text, NULL, &item, &count);
    if (rc == MUSTER_OK) {
        *out = count;
    }
    return rc;
}

static int item_write(const char *text, const struct item *item, size_t index, char out[HOSTLIST_HOST_MAX]) {
    size_t used = 0, group = 0, rest = item->host_count;
    bool fits = true;
    for (const char *p = item->start; fits && p < item->end;) {
        if (*p != '[') {
            fits = used + 1 < HOSTLIST_HOST_MAX;
            out[used] = *p++;
            used += fits;
            continue;
        }
        struct range number;
        rest /= item->group_counts[group++];
        group_number(p, index / rest, &number);
        index %= rest;
        fits = str_format(out + used, HOSTLIST_HOST_MAX - used, "%0*u", (int)number.width, number.low);
        used += fits ? strlen(out + used) : 0;
        p = strchr(p, ']') + 1;
    }
    out[fits ? used : 0] = '\0';
    return fits ? MUSTER_OK
                : status_fail(MUSTER_ELIMIT, "\"%.100s\": a host's name has more than %d bytes", text,
                              HOSTLIST_HOST_MAX - 1);
}

int hostlist_get(const char *text, size_t index, char out[HOSTLIST_HOST_MAX]) {
    struct item item;
    size_t before = 0;
    int rc = find(text, &index, &item, &before);
    return rc == MUSTER_OK ? item_write(text, &item, index - before, out) : rc;
}
