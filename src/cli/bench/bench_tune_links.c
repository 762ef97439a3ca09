/* Measuring how two hosts are joined best: one pair of hosts after the other, so that none disturbs another.
 *
 * The first rank of each host measures for its host. Of a pair, the one with the lower rank finds the pairs of
 * interfaces that join the two, as libmuster does. It measures each of them alone, and then the fastest one, the two
 * fastest ones and so on, with several numbers of connections. There is a group of two ranks for each of these plans,
 * made with a table that has nothing but the plan. They take turns, so what disturbs the network for a while disturbs
 * all. */
#include "cli/bench/bench_tune_links.h"

#include <muster/collective.h>
#include <muster/group.h>
#include <muster/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/bench/bench_tune.h"
#include "comm/host/interface.h"
#include "comm/host/link_plan.h"

enum { PLANS_MAX = 32, ROUNDS = 5, PINGS = 64, LINK_STREAMS = 4, NAME_BYTES = 64 };

/* More connections, or interfaces, must take less than this part of the time. */
static const double WORTH_MORE = 0.95;
/* Of two interfaces the quicker one is first, for short messages, if it takes less than this part of the other's time.
 */
static const double WORTH_BEING_FIRST = 0.9;

/* A rank's own, as it is told to all. */
struct host_info {
    uint32_t address_count;
    uint8_t interfaces[INTERFACE_CHOSEN_MAX];
    struct net_address addresses[INTERFACE_CHOSEN_MAX];
    char name[NAME_BYTES];
};

struct measured {
    struct link_plan plan;
    double message_s, ping_s; /* there and back: of a long message, and of a short one */
};

struct tune_links {
    const struct bench_options *options;
    uint32_t rank, ranks, host_count;
    struct muster_store *store; /* owned; so are these: */
    struct muster_group *all;
    struct host_info *hosts; /* by rank */
    uint32_t *leaders;       /* the first rank of each host */
    void *buffer;
};

/* Of a pair: the two ranks' part in it. */
struct pair {
    const struct tune_links *tune;
    uint32_t low, high; /* ranks, low's host is before high's */
    uint32_t groups_made;
    struct muster_group *usual; /* owned: by which the two agree */
    struct muster_group *groups[PLANS_MAX];
    struct measured measured[PLANS_MAX];
    uint32_t plan_count;
};

/* ---- groups of two ---- */

static int make_group(struct pair *pair, const struct link_plan *plan, struct muster_group **out) {
    const struct tune_links *tune = pair->tune;
    char text[LINK_PLAN_TEXT_MAX], path[64], name[MUSTER_GROUP_NAME_MAX];
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    int fd = plan ? memfd_create("muster bench --tune=links", MFD_CLOEXEC) : -1;
    if (plan && (fd < 0 || !link_plan_format(plan, text, sizeof text) ||
                 write(fd, text, strlen(text)) != (ssize_t)strlen(text))) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return status_fail(MUSTER_ESYSTEM, "a table cannot be written");
    }
    (void)str_format(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)str_format(name, sizeof name, "links %u-%u %u", pair->low, pair->high, pair->groups_made++);
    (void)setenv("MUSTER_CHOICE_FILE", plan ? path : "", 1);
    options.name = name;
    options.engine = "muster";
    int code = muster_group_create_store(tune->store, tune->rank == pair->low ? 0 : 1, 2, &options, out);
    (void)unsetenv("MUSTER_CHOICE_FILE");
    if (fd >= 0) {
        (void)close(fd);
    }
    return code;
}

/* ---- measuring ---- */

/* A message to the other one, and one of as many bytes back. */
static int there_and_back(struct muster_group *group, void *buffer, size_t bytes) {
    bool is_low = muster_group_rank(group) == 0;
    int code = MUSTER_OK;
    for (int way = 0; way < 2 && code == MUSTER_OK; way++) {
        code = (way == 0) == is_low ? muster_send(group, buffer, bytes, MUSTER_UINT8, is_low ? 1 : 0, 0, NULL)
                                    : muster_receive(group, buffer, bytes, MUSTER_UINT8, is_low ? 1 : 0, 0, NULL, NULL);
    }
    return code;
}

static int time_once(struct muster_group *group, void *buffer, size_t bytes, double *best_s) {
    int64_t from_ns = clock_monotonic_ns();
    int code = there_and_back(group, buffer, bytes);
    double took_s = (double)(clock_monotonic_ns() - from_ns) / 1e9;
    *best_s = *best_s > 0 && *best_s < took_s ? *best_s : took_s;
    return code;
}

/* The best of several rounds: what else the network carries only adds. The first one makes the connections, and finds
 * out how fast they are. */
static int measure_all(struct pair *pair, uint32_t first) {
    size_t bytes = (size_t)pair->tune->options->end_bytes;
    int code = MUSTER_OK;
    for (int round = -1; round < ROUNDS && code == MUSTER_OK; round++) {
        for (uint32_t i = first; i < pair->plan_count && code == MUSTER_OK; i++) {
            struct measured *measured = &pair->measured[i];
            measured->message_s = round > 0 ? measured->message_s : 0;
            code = time_once(pair->groups[i], pair->tune->buffer, bytes, &measured->message_s);
            for (int ping = 0; ping < PINGS && code == MUSTER_OK; ping++) {
                code = time_once(pair->groups[i], pair->tune->buffer, 1, &measured->ping_s);
            }
        }
    }
    return code;
}

/* The higher rank has its plans from the lower one. */
static int agree(struct pair *pair, uint32_t first) {
    size_t bytes = sizeof pair->measured;
    int code = muster_broadcast(pair->usual, &pair->plan_count, 1, MUSTER_UINT32, 0, NULL);
    code = code ? code : muster_broadcast(pair->usual, pair->measured, bytes, MUSTER_UINT8, 0, NULL);
    for (uint32_t i = first; i < pair->plan_count && code == MUSTER_OK; i++) {
        code = make_group(pair, &pair->measured[i].plan, &pair->groups[i]);
    }
    return code ? code : measure_all(pair, first);
}

/* ---- plans ---- */

static void add_plan(struct pair *pair, const struct link_plan_path *paths, uint32_t path_count, uint32_t streams) {
    if (pair->plan_count < PLANS_MAX) {
        struct link_plan *plan = &pair->measured[pair->plan_count++].plan;
        *plan = (struct link_plan){.stream_count = streams, .path_count = path_count};
        memcpy(plan->paths, paths, path_count * sizeof *paths);
    }
}

static struct interface_addresses addresses_of(const struct host_info *info) {
    return (struct interface_addresses){info->addresses, info->interfaces, info->address_count};
}

/* Each pair of interfaces alone. */
static void plan_each(struct pair *pair) {
    const struct host_info *low = &pair->tune->hosts[pair->low], *high = &pair->tune->hosts[pair->high];
    const struct interface_addresses own = addresses_of(low), peer = addresses_of(high);
    struct interface_pair found[INTERFACE_CHOSEN_MAX];
    size_t count = interface_pairs(&own, &peer, found);
    for (size_t i = 0; i < count; i++) {
        struct link_plan_path path;
        net_address_key((const struct sockaddr *)&low->addresses[found[i].own].sockaddr, &path.ends[0]);
        net_address_key((const struct sockaddr *)&high->addresses[found[i].peer].sockaddr, &path.ends[1]);
        add_plan(pair, &path, 1, LINK_STREAMS);
    }
}

static int by_message(const void *left, const void *right) {
    double a = ((const struct measured *)left)->message_s, b = ((const struct measured *)right)->message_s;
    return (a > b) - (a < b);
}

/* The fastest `count` of them, the quickest of these first. */
static void choose_paths(const struct measured *sorted, uint32_t count, struct link_plan_path *out) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = sorted[i].plan.paths[0];
        first = sorted[i].ping_s < WORTH_BEING_FIRST * sorted[first].ping_s ? i : first;
    }
    const struct link_plan_path quickest = out[first];
    for (; first > 0; first--) {
        out[first] = out[first - 1];
    }
    out[0] = quickest;
}

/* From few interfaces and connections to many. One that is so slow that it could not be worth it is not tried. */
static void plan_sets(struct pair *pair) {
    struct measured sorted[LINK_PLAN_PATHS_MAX];
    struct link_plan_path paths[LINK_PLAN_PATHS_MAX];
    uint32_t path_count = pair->plan_count;
    memcpy(sorted, pair->measured, path_count * sizeof *sorted);
    qsort(sorted, path_count, sizeof *sorted, by_message);
    double rate = 0; /* of all together, at best */
    for (uint32_t count = 1; count <= path_count; count++) {
        double one = 1 / sorted[count - 1].message_s;
        if (one < (1 - WORTH_MORE) * (rate + one)) {
            return;
        }
        rate += one;
        choose_paths(sorted, count, paths);
        for (uint32_t each = 1; each * count <= LINK_PLAN_STREAMS_MAX; each *= 2) {
            add_plan(pair, paths, count, each * count);
        }
    }
}

/* ---- one pair of hosts ---- */

static const struct measured *best_of(const struct pair *pair, uint32_t first) {
    const struct measured *best = &pair->measured[first];
    for (uint32_t i = first + 1; i < pair->plan_count; i++) {
        const struct measured *one = &pair->measured[i];
        best = one->message_s < WORTH_MORE * best->message_s ? one : best;
    }
    return best;
}

static int measure_pair(struct pair *pair, struct measured *out) {
    bool is_low = pair->tune->rank == pair->low;
    int code = make_group(pair, NULL, &pair->usual);
    if (code == MUSTER_OK && is_low) {
        plan_each(pair);
    }
    code = code ? code : agree(pair, 0);
    uint32_t first = pair->plan_count;
    if (code == MUSTER_OK && is_low) {
        plan_sets(pair);
    }
    code = code || first == 0 ? code : agree(pair, first);
    if (code == MUSTER_OK && first > 0) {
        *out = *best_of(pair, first);
    }
    for (uint32_t i = 0; i < PLANS_MAX; i++) {
        muster_group_free(pair->groups[i]);
    }
    muster_group_free(pair->usual);
    return code;
}

/* The same for all ranks: those that do not belong to the pair wait for what it has found. */
static int tune_pair(const struct tune_links *tune, uint32_t low_host, uint32_t high_host) {
    static struct pair pair;
    pair = (struct pair){.tune = tune, .low = tune->leaders[low_host], .high = tune->leaders[high_host]};
    struct measured best = {.message_s = 0};
    int code = MUSTER_OK;
    if (tune->rank == pair.low || tune->rank == pair.high) {
        code = measure_pair(&pair, &best);
        code = code ? status_prefix(code, "hosts %u and %u", low_host, high_host) : MUSTER_OK;
    }
    if (code) {
        muster_group_abort(tune->all, muster_detail());
        return code;
    }
    code = muster_broadcast(tune->all, &best, sizeof best, MUSTER_UINT8, pair.low, NULL);
    char line[LINK_PLAN_TEXT_MAX];
    if (code || tune->rank != 0) {
        return code;
    }
    const char *low = tune->hosts[pair.low].name, *high = tune->hosts[pair.high].name;
    if (best.plan.path_count == 0) {
        (void)printf("# hosts %u (%.60s) and %u (%.60s): no interfaces join them\n", low_host, low, high_host, high);
    } else if (link_plan_format(&best.plan, line, sizeof line)) {
        double mbit = 2.0 * 8 * (double)tune->options->end_bytes / best.message_s / 1e6;
        (void)printf("# hosts %u (%.60s) and %u (%.60s): %.0f Mbit/s, %.0f us there and back\n%s", low_host, low,
                     high_host, high, mbit, best.ping_s * 1e6, line);
    }
    (void)fflush(stdout);
    return MUSTER_OK;
}

/* ---- all of it ---- */

static int own_addresses(struct host_info *out) {
    struct interface_address all[INTERFACES_MAX], chosen[INTERFACE_CHOSEN_MAX];
    struct interface_wish wish;
    size_t count = 0;
    int code = interface_wish_from_env(&wish);
    code = code ? code : interface_list(all, &count);
    if (code) {
        return code;
    }
    count = interface_choose(&wish, all, count, chosen);
    out->address_count = (uint32_t)count;
    interface_numbers(chosen, count, out->interfaces);
    for (size_t i = 0; i < count; i++) {
        out->addresses[i] = chosen[i].address;
    }
    (void)gethostname(out->name, sizeof out->name - 1);
    return MUSTER_OK;
}

static int begin(struct tune_links *tune) {
    struct host_info own = {.address_count = 0};
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.engine = "muster";
    int code = bench_tune_meet(&tune->rank, &tune->ranks, &tune->store);
    code = code ? code : muster_group_create_store(tune->store, tune->rank, tune->ranks, &options, &tune->all);
    if (code) {
        return code;
    }
    tune->host_count = muster_group_host_count(tune->all);
    if (tune->host_count < 2) {
        return status_fail(MUSTER_EINVAL,
                           "--tune=links measures between hosts, but all ranks run on one: start ranks on "
                           "several");
    }
    tune->hosts = calloc(tune->ranks, sizeof *tune->hosts);
    tune->leaders = calloc(tune->host_count, sizeof *tune->leaders);
    tune->buffer = calloc(1, (size_t)tune->options->end_bytes);
    if (!tune->hosts || !tune->leaders || !tune->buffer) {
        return status_fail(MUSTER_ENOMEM, "out of memory for %u ranks and a message", tune->ranks);
    }
    for (uint32_t rank = tune->ranks; rank-- > 0;) {
        tune->leaders[muster_group_host_of(tune->all, rank)] = rank;
    }
    code = own_addresses(&own);
    return code ? code : muster_all_gather(tune->all, &own, tune->hosts, sizeof own, MUSTER_UINT8, NULL);
}

int bench_tune_links_run(const struct bench_options *options) {
    struct tune_links tune = {.options = options};
    int code = begin(&tune);
    if (code != MUSTER_OK && tune.all) {
        muster_group_abort(tune.all, muster_detail()); /* the others may be about to tell their addresses */
    }
    if (code == MUSTER_OK && tune.rank == 0) {
        (void)printf("# muster bench --tune=links: %u hosts; messages of %llu bytes, the best of %d rounds\n",
                     tune.host_count, (unsigned long long)options->end_bytes, ROUNDS);
    }
    for (uint32_t low = 0; low < tune.host_count && code == MUSTER_OK; low++) {
        for (uint32_t high = low + 1; high < tune.host_count && code == MUSTER_OK; high++) {
            code = tune_pair(&tune, low, high);
        }
    }
    muster_group_free(tune.all);
    muster_store_close(tune.store);
    free(tune.buffer);
    free(tune.leaders);
    free(tune.hosts);
    return code;
}
