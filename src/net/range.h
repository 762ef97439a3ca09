/* Addresses as 16 bytes (IPv4 as V4-mapped), and ranges of them ("10.1.0.0/16", "fd00::/8", "192.0.2.7"). Pure. */
#ifndef NET_RANGE_H
#define NET_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_RANGES_MAX 32

struct net_address_key {
    uint8_t bytes[16];
};

struct net_range {
    struct net_address_key first;
    unsigned bits; /* of `first` that count, 0 to 128 */
};

struct net_ranges {
    struct net_range list[NET_RANGES_MAX];
    size_t count;
};

/* The bits behind the first `bits` are cleared. */
struct net_address_key net_address_key_cut(const struct net_address_key *key, unsigned bits);
bool net_address_key_is_v4(const struct net_address_key *key);

/* Ranges with '+' between them; "" is none. MUSTER_EINVAL with a sentence that quotes the text: no numeric address,
 * more bits than it has, or bits behind those that count; MUSTER_ELIMIT: more than NET_RANGES_MAX. */
int net_ranges_parse(const char *text, struct net_ranges *out);
bool net_ranges_contain(const struct net_ranges *ranges, const struct net_address_key *key);

#endif
