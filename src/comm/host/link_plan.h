/* How two hosts are joined, where somebody has measured it: with how many connections, over which pairs of their
 * addresses. A line of the file that MUSTER_CHOICE_FILE names (docs/formats/choice.md):
 *
 *     link 4 10.0.0.1=10.0.0.2 10.1.0.1=10.1.0.2
 *
 * Pure. */
#ifndef COMM_LINK_PLAN_H
#define COMM_LINK_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/range.h"

#define LINK_PLAN_PATHS_MAX 8u
#define LINK_PLAN_STREAMS_MAX 8u
#define LINK_PLAN_TEXT_MAX 1024u /* of a line, with its end */

struct link_plan_path {
    struct net_address_key ends[2]; /* an address of the one host, and one of the other */
};

struct link_plan {
    uint32_t stream_count;                            /* at least path_count */
    uint32_t path_count;                              /* at least 1 */
    struct link_plan_path paths[LINK_PLAN_PATHS_MAX]; /* connections are spread over them in turn */
};

/* Is the line one of these, right or wrong? Its end is not part of it. */
bool link_plan_is_line(const char *line, size_t bytes);
/* MUSTER_EINVAL with a sentence that says what was expected. */
int link_plan_parse(const char *line, size_t bytes, struct link_plan *out);
/* The line, with its end. false: does not fit. */
bool link_plan_format(const struct link_plan *plan, char *out, size_t max);

/* Of two hosts, by their addresses. */
struct link_plan_hosts {
    const struct net_address_key *own, *peer;
    size_t own_count, peer_count;
};

enum link_plan_fit {
    LINK_PLAN_OTHERS, /* it is about other hosts */
    LINK_PLAN_FITS,
    LINK_PLAN_STALE /* it is about these two, but an address is missing */
};

/* out_own: which end of its paths is the own host's; out_missing: of LINK_PLAN_STALE, the address. */
enum link_plan_fit link_plan_compare(const struct link_plan *plan, const struct link_plan_hosts *hosts,
                                     uint32_t *out_own, struct net_address_key *out_missing);

#define LINK_PLAN_ADDRESS_MAX 48
/* "10.0.0.1", "fd00::1". Returns out. */
char *link_plan_address(const struct net_address_key *key, char out[LINK_PLAN_ADDRESS_MAX]);

#endif
