/* Lines about the links between hosts; see link_plan.h. Pure. */
#include "comm/host/link_plan.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include <muster/status.h>

#include "base/status.h"
#include "base/str.h"

enum { WORD_BYTES_MAX = 2 * LINK_PLAN_ADDRESS_MAX, V4_AT = 12 };

static const char blanks[] = " \t\r";

/* The next word of [*at, end), without what begins with '#'. Returns its length, 0 at the end. */
static size_t next_word(const char **at, const char *end) {
    while (*at < end && memchr(blanks, **at, sizeof blanks - 1)) {
        (*at)++;
    }
    size_t length = 0;
    while (*at + length < end && !memchr(" \t\r#", (*at)[length], 4)) {
        length++;
    }
    return length;
}

bool link_plan_is_line(const char *line, size_t bytes) {
    const char *at = line;
    return next_word(&at, line + bytes) == 4 && memcmp(at, "link", 4) == 0;
}

static bool address_read(const char *text, struct net_address_key *out) {
    static const uint8_t v4_prefix[V4_AT] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (inet_pton(AF_INET6, text, out->bytes) == 1) {
        return true;
    }
    memcpy(out->bytes, v4_prefix, sizeof v4_prefix);
    return inet_pton(AF_INET, text, out->bytes + V4_AT) == 1;
}

static bool is_equal(const struct net_address_key *a, const struct net_address_key *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* "A=B" */
static bool path_read(const char *word, size_t length, struct link_plan_path *out) {
    char text[WORD_BYTES_MAX];
    if (length >= sizeof text) {
        return false;
    }
    memcpy(text, word, length);
    text[length] = '\0';
    char *middle = strchr(text, '=');
    if (!middle || strlen(text) != length) {
        return false;
    }
    *middle = '\0';
    return address_read(text, &out->ends[0]) && address_read(middle + 1, &out->ends[1]) &&
           !is_equal(&out->ends[0], &out->ends[1]);
}

/* Has an earlier path this one's address in either place? Then it would say nothing new, or mix hosts up. */
static bool is_repeated(const struct link_plan *plan, const struct link_plan_path *path) {
    for (uint32_t i = 0; i < plan->path_count; i++) {
        for (int end = 0; end < 4; end++) {
            if (is_equal(&plan->paths[i].ends[end / 2], &path->ends[end % 2])) {
                return true;
            }
        }
    }
    return false;
}

int link_plan_parse(const char *line, size_t bytes, struct link_plan *out) {
    const char *at = line, *end = line + bytes;
    memset(out, 0, sizeof *out);
    at += next_word(&at, end);
    size_t length = next_word(&at, end);
    if (length != 1 || *at < '1' || *at > '0' + (int)LINK_PLAN_STREAMS_MAX) {
        return status_fail(MUSTER_EINVAL, "expected a number of connections, 1 to %u, behind 'link'",
                           LINK_PLAN_STREAMS_MAX);
    }
    out->stream_count = (uint32_t)(*at - '0');
    at += length;
    while ((length = next_word(&at, end)) > 0) {
        struct link_plan_path path;
        if (out->path_count == LINK_PLAN_PATHS_MAX || !path_read(at, length, &path) || is_repeated(out, &path)) {
            return status_fail(MUSTER_EINVAL,
                               "expected up to %u pairs of addresses, such as 10.0.0.1=10.0.0.2, each address once",
                               LINK_PLAN_PATHS_MAX);
        }
        out->paths[out->path_count++] = path;
        at += length;
    }
    return out->path_count == 0 || out->path_count > out->stream_count
               ? status_fail(MUSTER_EINVAL, "expected a pair of addresses at least, and as many connections")
               : 0;
}

char *link_plan_address(const struct net_address_key *key, char out[LINK_PLAN_ADDRESS_MAX]) {
    bool is_v4 = net_address_key_is_v4(key);
    if (!inet_ntop(is_v4 ? AF_INET : AF_INET6, is_v4 ? key->bytes + V4_AT : key->bytes, out, LINK_PLAN_ADDRESS_MAX)) {
        out[0] = '\0';
    }
    return out;
}

bool link_plan_format(const struct link_plan *plan, char *out, size_t max) {
    bool fits = str_format(out, max, "link %u", (unsigned)plan->stream_count);
    for (uint32_t i = 0; i < plan->path_count && fits; i++) {
        char ends[2][LINK_PLAN_ADDRESS_MAX];
        size_t used = strlen(out);
        fits = str_format(out + used, max - used, " %s=%s", link_plan_address(&plan->paths[i].ends[0], ends[0]),
                          link_plan_address(&plan->paths[i].ends[1], ends[1]));
    }
    size_t used = strlen(out);
    return fits && str_format(out + used, max - used, "\n");
}

static bool is_among(const struct net_address_key *list, size_t count, const struct net_address_key *key) {
    for (size_t i = 0; i < count; i++) {
        if (is_equal(&list[i], key)) {
            return true;
        }
    }
    return false;
}

/* With the own host at the end `own` of all paths. */
static enum link_plan_fit compare_so(const struct link_plan *plan, const struct link_plan_hosts *hosts, uint32_t own,
                                     struct net_address_key *out_missing) {
    uint32_t whole = 0;
    for (uint32_t i = 0; i < plan->path_count; i++) {
        const struct net_address_key *here = &plan->paths[i].ends[own], *there = &plan->paths[i].ends[1 - own];
        bool has_here = is_among(hosts->own, hosts->own_count, here),
             has_there = is_among(hosts->peer, hosts->peer_count, there);
        whole += has_here && has_there ? 1 : 0;
        if (!has_here || !has_there) {
            *out_missing = has_here ? *there : *here;
        }
    }
    return whole == plan->path_count ? LINK_PLAN_FITS : whole > 0 ? LINK_PLAN_STALE : LINK_PLAN_OTHERS;
}

enum link_plan_fit link_plan_compare(const struct link_plan *plan, const struct link_plan_hosts *hosts,
                                     uint32_t *out_own, struct net_address_key *out_missing) {
    for (uint32_t own = 0; own < 2; own++) {
        enum link_plan_fit fit = compare_so(plan, hosts, own, out_missing);
        if (fit != LINK_PLAN_OTHERS) {
            *out_own = own;
            return fit;
        }
    }
    return LINK_PLAN_OTHERS;
}
