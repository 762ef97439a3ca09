/* Ranges of addresses; see range.h. */
#include "net/range.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { V4_AT = 12, V4_BITS_BEFORE = 96, KEY_BITS = 128, RANGE_TEXT_MAX = 64 };

static const uint8_t v4_prefix[V4_AT] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool net_address_key_is_v4(const struct net_address_key *key) {
    return memcmp(key->bytes, v4_prefix, sizeof v4_prefix) == 0;
}

struct net_address_key net_address_key_cut(const struct net_address_key *key, unsigned bits) {
    struct net_address_key cut = *key;
    for (unsigned i = bits; i < KEY_BITS; i++) {
        cut.bytes[i / 8] &= (uint8_t) ~(0x80U >> i % 8);
    }
    return cut;
}

static bool is_equal(const struct net_address_key *a, const struct net_address_key *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static bool parse_address(const char *text, struct net_address_key *out) {
    if (inet_pton(AF_INET6, text, out->bytes) == 1) {
        return true;
    }
    memcpy(out->bytes, v4_prefix, sizeof v4_prefix);
    return inet_pton(AF_INET, text, out->bytes + V4_AT) == 1;
}

static int parse_one(char *text, struct net_range *out) {
    char whole[RANGE_TEXT_MAX];
    (void)str_copy(whole, sizeof whole, text);
    char *slash = strchr(text, '/');
    if (slash) {
        *slash = '\0';
    }
    if (!parse_address(text, &out->first)) {
        return status_fail(MUSTER_EINVAL, "'%s' is not a numeric address, nor a range of them such as 10.1.0.0/16",
                           whole);
    }
    unsigned before = net_address_key_is_v4(&out->first) && !strchr(text, ':') ? V4_BITS_BEFORE : 0;
    int64_t bits = KEY_BITS - before;
    if (slash && (!str_parse_i64(slash + 1, &bits) || bits < 0 || bits > KEY_BITS - before)) {
        return status_fail(MUSTER_EINVAL, "'%s': 0 to %u bits are expected behind the slash", whole, KEY_BITS - before);
    }
    out->bits = before + (unsigned)bits;
    const struct net_address_key cut = net_address_key_cut(&out->first, out->bits);
    return is_equal(&cut, &out->first)
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL, "'%s' has bits behind the first %d: is another address meant?", whole,
                             (int)bits);
}

int net_ranges_parse(const char *text, struct net_ranges *out) {
    out->count = 0;
    while (*text != '\0') {
        char one[RANGE_TEXT_MAX];
        size_t len = strcspn(text, "+");
        if (len >= sizeof one) {
            return status_fail(MUSTER_EINVAL, "'%.40s...' is not a numeric address", text);
        }
        if (out->count == NET_RANGES_MAX) {
            return status_fail(MUSTER_ELIMIT, "more than %d ranges of addresses", NET_RANGES_MAX);
        }
        memcpy(one, text, len);
        one[len] = '\0';
        int rc = parse_one(one, &out->list[out->count]);
        if (rc != MUSTER_OK) {
            return rc;
        }
        out->count++;
        text += len + (text[len] == '+');
    }
    return MUSTER_OK;
}

bool net_ranges_contain(const struct net_ranges *ranges, const struct net_address_key *key) {
    for (size_t i = 0; i < ranges->count; i++) {
        const struct net_address_key cut = net_address_key_cut(key, ranges->list[i].bits);
        if (is_equal(&cut, &ranges->list[i].first)) {
            return true;
        }
    }
    return false;
}
