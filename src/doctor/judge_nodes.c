/* What differs between nodes, and which pairs stand out; see nodes.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "doctor/judge.h"
#include "doctor/nodes.h"

enum { NAMES_TEXT_MAX = 200, NAMES_SHOWN_MAX = 6, CLOCK_NOTE_US = 50000, CLOCK_WARNING_US = 1000000 };

/* ---- differences ---- */

enum trait { VERSION, KERNEL, DRIVER, PROCESSORS, GPUS, MEMORY, SHM, FILES, MTU, TRAIT_COUNT };

static const struct {
    const char *name;
    enum doctor_level level;
    const char *advice;
} traits[TRAIT_COUNT] = {
    [VERSION] = {"Muster", DOCTOR_WARNING, "Agents of one job should be of one version: install the same on all nodes"},
    [KERNEL] = {"the kernel", DOCTOR_NOTE, "Fine for a job; look there first when one node behaves otherwise"},
    [DRIVER] = {"the GPU driver", DOCTOR_WARNING,
                "NCCL and CUDA may behave otherwise on these nodes: install one version"},
    [PROCESSORS] = {"the number of processors", DOCTOR_NOTE,
                    "The slowest node sets the pace: give --nproc-per-node and OMP_NUM_THREADS for the smallest"},
    [GPUS] = {"the number of GPUs", DOCTOR_WARNING,
              "With --nproc-per-node=gpu the nodes get different numbers of workers; a GPU may have fallen off the bus "
              "(nvidia-smi, `dmesg`)"},
    [MEMORY] = {"memory", DOCTOR_NOTE, "What fits on one node need not fit on these; a module may have failed"},
    [SHM] = {"/dev/shm", DOCTOR_NOTE, "Data loaders that run on one node may die of SIGBUS on these"},
    [FILES] = {"the limit of open files", DOCTOR_NOTE, "Set it alike on all nodes (ulimit -Hn)"},
    [MTU] = {"the MTU", DOCTOR_WARNING,
             "Large packets vanish between them, and connections hang: one MTU on all nodes and switches of a network"},
};

/* Numbers in words, so that all traits compare alike. Sizes that differ by little are the same. */
static void trait_text(const struct doctor_node *node, enum trait trait, char out[64]) {
    int64_t numbers[TRAIT_COUNT] = {
        [PROCESSORS] = node->processor_count, [GPUS] = node->gpu_count, [FILES] = node->file_limit, [MTU] = node->mtu};
    switch (trait) {
    case VERSION:
        (void)str_copy(out, 64, node->version);
        break;
    case KERNEL:
        (void)str_copy(out, 64, node->kernel);
        break;
    case DRIVER:
        (void)str_copy(out, 64, node->gpu_driver[0] ? node->gpu_driver : "none");
        break;
    case MEMORY:
    case SHM:
        (void)str_format(out, 64, "%" PRId64 " GiB",
                         ((trait == MEMORY ? node->memory_mib : node->shm_mib) + 512) / 1024);
        break;
    default:
        (void)str_format(out, 64, "%" PRId64, numbers[trait]);
        break;
    }
}

/* "node2, node3 and 5 more" */
struct name_list {
    char text[NAMES_TEXT_MAX];
    size_t used;
    uint32_t count;
};

static void name_add(struct name_list *list, const char *name) {
    if (list->count < NAMES_SHOWN_MAX && list->used < sizeof list->text) {
        (void)str_format(list->text + list->used, sizeof list->text - list->used, "%s%.60s",
                         list->count > 0 ? ", " : "", name);
        list->used += strlen(list->text + list->used);
    }
    list->count++;
}

static const char *name_end(struct name_list *list) {
    if (list->count > NAMES_SHOWN_MAX && list->used < sizeof list->text) {
        (void)str_format(list->text + list->used, sizeof list->text - list->used, " and %u more",
                         list->count - NAMES_SHOWN_MAX);
    }
    return list->text;
}

/* Nodes of one machine have one name: the address and the process tell them apart. */
static const char *node_name(const struct doctor_node *nodes, uint32_t node_count, uint32_t rank,
                             char out[NET_HOST_MAX]) {
    bool is_unique = true;
    for (uint32_t i = 0; i < node_count && is_unique; i++) {
        is_unique = i == rank || strcmp(nodes[i].host, nodes[rank].host) != 0;
    }
    (void)(is_unique ? str_copy(out, NET_HOST_MAX, nodes[rank].host)
                     : str_format(out, NET_HOST_MAX, "node %u (%.60s)", rank, nodes[rank].addr));
    return out;
}

/* The value that most nodes have. With N different ones that is quadratic, of a bounded number of nodes. */
static uint32_t most_common(const struct doctor_node *nodes, uint32_t node_count, enum trait trait) {
    uint32_t best = 0, best_count = 0;
    for (uint32_t i = 0; i < node_count && best_count <= node_count / 2; i++) {
        char mine[64], other[64];
        uint32_t count = 0;
        trait_text(&nodes[i], trait, mine);
        for (uint32_t k = i; k < node_count; k++) {
            trait_text(&nodes[k], trait, other);
            count += strcmp(mine, other) == 0;
        }
        if (count > best_count) {
            best = i;
            best_count = count;
        }
    }
    return best;
}

static void judge_trait(const struct doctor_node *nodes, uint32_t node_count, enum trait trait,
                        struct doctor_findings *out) {
    char common[64], theirs[64], first[64] = "", name[NET_HOST_MAX];
    struct name_list others = {.count = 0};
    trait_text(&nodes[most_common(nodes, node_count, trait)], trait, common);
    bool is_one_value = true;
    for (uint32_t i = 0; i < node_count; i++) {
        trait_text(&nodes[i], trait, theirs);
        if (strcmp(theirs, common) != 0) {
            is_one_value &= others.count == 0 || strcmp(first, theirs) == 0;
            (void)str_copy(first, sizeof first, theirs);
            name_add(&others, node_name(nodes, node_count, i, name));
        }
    }
    if (others.count > 0) {
        doctor_advise(doctor_find(out, DOCTOR_NODES, traits[trait].level, "%s is %s, but %s on %s", traits[trait].name,
                                  common, is_one_value ? first : "otherwise", name_end(&others)),
                      "%s", traits[trait].advice);
    }
}

void doctor_judge_nodes(const struct doctor_node *nodes, uint32_t node_count, struct doctor_findings *out) {
    size_t before = out->count;
    char name[NET_HOST_MAX];
    for (unsigned trait = 0; trait < TRAIT_COUNT; trait++) {
        judge_trait(nodes, node_count, (enum trait)trait, out);
    }
    struct name_list blind = {.count = 0};
    const struct doctor_node *first = NULL;
    for (uint32_t i = 0; i < node_count; i++) {
        if (nodes[i].unresolved_count > 0) {
            first = first ? first : &nodes[i];
            name_add(&blind, node_name(nodes, node_count, i, name));
        }
    }
    if (first) {
        doctor_advise(doctor_find(out, DOCTOR_NODES, DOCTOR_NOTE,
                                  "names of other nodes do not resolve, or lead elsewhere, on %s (such as %.100s)",
                                  name_end(&blind), first->unresolved),
                      "Muster's agents tell each other addresses; MPI, ssh and scripts use names: one /etc/hosts or "
                      "name server for all");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_NODES, DOCTOR_OK, "%u alike: Muster %s, Linux %s", node_count, nodes[0].version,
                          nodes[0].kernel);
    }
}

/* ---- pairs ---- */

static int compare_reals(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double slower_way(const struct doctor_pair *pair) {
    return pair->forward_mbps < pair->backward_mbps ? pair->forward_mbps : pair->backward_mbps;
}

static double latency_of(const struct doctor_pair *pair) {
    return pair->latency_us;
}

/* The value that a quarter of the measured pairs are above (or below). One slow node of three makes most pairs slow, so
 * the middle would say nothing. */
static double quartile(const struct doctor_pair *pairs, size_t pair_count, double (*value)(const struct doctor_pair *),
                       bool is_upper, double *scratch) {
    size_t count = 0;
    for (size_t i = 0; i < pair_count; i++) {
        if (pairs[i].is_measured) {
            scratch[count++] = value(&pairs[i]);
        }
    }
    if (count == 0) {
        return 0;
    }
    qsort(scratch, count, sizeof *scratch, compare_reals);
    size_t at = is_upper ? count * 3 / 4 : (count - 1) / 4;
    return scratch[at < count ? at : count - 1];
}

struct judging {
    const struct doctor_node *nodes;
    uint32_t node_count;
    const struct doctor_pair *pairs;
    size_t pair_count;
    double usual_mbps, usual_us;
    struct doctor_findings *out;
};

/* Half of what others have, three times as long as others take (and not only by the noise of a quick network). */
static bool is_slow(const struct judging *j, const struct doctor_pair *pair) {
    return pair->is_measured && slower_way(pair) < j->usual_mbps / 2;
}

static bool is_late(const struct judging *j, const struct doctor_pair *pair) {
    return pair->is_measured && pair->latency_us > 3 * j->usual_us && pair->latency_us > j->usual_us + 200;
}

static bool is_broken(const struct judging *j, const struct doctor_pair *pair) {
    (void)j;
    return !pair->is_measured;
}

typedef bool trouble_fn(const struct judging *j, const struct doctor_pair *pair);

/* All pairs of this node, and more than one, are in trouble: it is the node's, then. */
static bool is_of_node(const struct judging *j, trouble_fn *trouble, uint32_t rank) {
    unsigned total = 0, bad = 0;
    for (size_t i = 0; i < j->pair_count; i++) {
        if (j->pairs[i].from == rank || j->pairs[i].to == rank) {
            total++;
            bad += trouble(j, &j->pairs[i]);
        }
    }
    return bad > 1 && bad == total;
}

static const char slow_advice[] =
    "Look at the cable, the switch port and `ethtool -S` there (errors, half duplex, a lower speed), at other traffic, "
    "and whether the address belongs to the fast network (--local-addr, *_SOCKET_IFNAME)";
static const char late_advice[] =
    "Another path or a busy switch or processor: compare `traceroute` and `mtr` with a quick pair, look at load and at "
    "power saving";
static const char broken_advice[] =
    "A firewall, or the wrong network: open the ports that the kernel chooses from between all nodes, or give an "
    "address that the others reach (--local-addr)";

static const char mtu_advice[] =
    "Short messages come through, long packets vanish on the way: `ping -M do -s 1472` shows it. Set the MTU of the "
    "interfaces to what all switches and tunnels between them carry (ip link set DEVICE mtu BYTES)";

static void find_pair(const struct judging *j, trouble_fn *trouble, const struct doctor_pair *pair) {
    char from[NET_HOST_MAX], to[NET_HOST_MAX];
    (void)node_name(j->nodes, j->node_count, pair->from, from);
    (void)node_name(j->nodes, j->node_count, pair->to, to);
    if (trouble == is_broken && pair->latency_us > 0) { /* measured before anything long is sent */
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_ERROR,
                                  "%.80s reaches %.80s (%.0f us there and back), but not with much data: %.120s", from,
                                  to, pair->latency_us, pair->reason),
                      "%s", mtu_advice);
    } else if (trouble == is_broken) {
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_ERROR, "%.80s does not reach %.80s: %.120s", from, to,
                                  pair->reason),
                      "%s", broken_advice);
    } else if (trouble == is_slow) {
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_WARNING,
                                  "%.80s to %.80s is slow: %.0f MB/s there, %.0f back; others have %.0f", from, to,
                                  pair->forward_mbps, pair->backward_mbps, j->usual_mbps),
                      "%s", slow_advice);
    } else {
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_WARNING,
                                  "%.80s to %.80s takes long: %.0f us there and back; others take %.0f", from, to,
                                  pair->latency_us, j->usual_us),
                      "%s", late_advice);
    }
}

static void find_node(const struct judging *j, trouble_fn *trouble, uint32_t rank) {
    char name[NET_HOST_MAX];
    double best_mbps = 0, best_us = 0;
    for (size_t i = 0; i < j->pair_count; i++) {
        const struct doctor_pair *pair = &j->pairs[i];
        if (pair->is_measured && (pair->from == rank || pair->to == rank)) {
            best_mbps = slower_way(pair) > best_mbps ? slower_way(pair) : best_mbps;
            best_us = best_us <= 0 || pair->latency_us < best_us ? pair->latency_us : best_us;
        }
    }
    (void)node_name(j->nodes, j->node_count, rank, name);
    if (trouble == is_broken) {
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_ERROR, "no pair with %.100s could be measured", name),
                      "%s", broken_advice);
    } else if (trouble == is_slow) {
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_WARNING,
                                  "all links of %.100s are slow: %.0f MB/s at best; others have %.0f", name, best_mbps,
                                  j->usual_mbps),
                      "%s", slow_advice);
    } else {
        doctor_advise(doctor_find(j->out, DOCTOR_NETWORK, DOCTOR_WARNING,
                                  "%.100s answers late: %.0f us at best; others take %.0f", name, best_us, j->usual_us),
                      "%s", late_advice);
    }
}

static void judge_trouble(const struct judging *j, trouble_fn *trouble) {
    bool is_bad[DOCTOR_NODES_MAX];
    for (uint32_t rank = 0; rank < j->node_count; rank++) {
        is_bad[rank] = is_of_node(j, trouble, rank);
        if (is_bad[rank]) {
            find_node(j, trouble, rank);
        }
    }
    for (size_t i = 0; i < j->pair_count; i++) {
        const struct doctor_pair *pair = &j->pairs[i];
        if (trouble(j, pair) && !is_bad[pair->from] && !is_bad[pair->to]) {
            find_pair(j, trouble, pair);
        }
    }
}

/* By how much the clock of `rank` is ahead of its partners' clocks, in the middle. False: nobody knows. */
static bool clock_ahead_us(const struct judging *j, uint32_t rank, double *scratch, double *out) {
    size_t count = 0;
    for (size_t i = 0; i < j->pair_count; i++) {
        const struct doctor_pair *pair = &j->pairs[i];
        if (pair->is_measured && (pair->from == rank || pair->to == rank)) {
            scratch[count++] = pair->to == rank ? pair->ahead_us : -pair->ahead_us;
        }
    }
    if (count > 0) {
        qsort(scratch, count, sizeof *scratch, compare_reals);
        *out = scratch[count / 2];
    }
    return count > 0;
}

static void judge_clocks(const struct judging *j, double *scratch) {
    for (uint32_t rank = 0; rank < j->node_count; rank++) {
        char name[NET_HOST_MAX];
        double ahead_us = 0;
        /* Of two nodes nobody knows which is wrong: one finding is enough. */
        bool is_known = clock_ahead_us(j, rank, scratch, &ahead_us) && !(j->node_count == 2 && rank == 0);
        double apart_us = ahead_us < 0 ? -ahead_us : ahead_us;
        if (is_known && apart_us > CLOCK_NOTE_US) {
            doctor_advise(
                doctor_find(j->out, DOCTOR_NETWORK, apart_us > CLOCK_WARNING_US ? DOCTOR_WARNING : DOCTOR_NOTE,
                            "the clock of %.100s is %.3f s %s the others",
                            node_name(j->nodes, j->node_count, rank, name), apart_us / 1e6,
                            ahead_us > 0 ? "ahead of" : "behind"),
                "c10d judges nodes by each other's clocks and drops those that seem silent for 15 s; logs disagree. "
                "Synchronise it: chronyc tracking, timedatectl");
        }
    }
}

void doctor_judge_pairs(const struct doctor_node *nodes, uint32_t node_count, const struct doctor_pair *pairs,
                        size_t pair_count, double *scratch, struct doctor_findings *out) {
    size_t before = out->count;
    struct judging j = {nodes, node_count, pairs, pair_count, 0, 0, out};
    j.usual_mbps = quartile(pairs, pair_count, slower_way, true, scratch);
    j.usual_us = quartile(pairs, pair_count, latency_of, false, scratch);
    judge_trouble(&j, is_broken);
    judge_trouble(&j, is_slow);
    judge_trouble(&j, is_late);
    judge_clocks(&j, scratch);
    if (out->count == before && pair_count > 0) {
        (void)doctor_find(out, DOCTOR_NETWORK, DOCTOR_OK, "%zu pair%s: %.0f MB/s and %.0f us, no one stands out",
                          pair_count, pair_count == 1 ? "" : "s", j.usual_mbps, j.usual_us);
    }
}
