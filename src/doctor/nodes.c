/* Nodes and pairs as text, and the tournament; see nodes.h. */
#include "doctor/nodes.h"
#include <muster/version.h>

#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

void doctor_node_describe(const struct doctor_facts *facts, struct doctor_node *out) {
    const struct doctor_interfaces *interfaces = &facts->interfaces;
    *out = (struct doctor_node){.processor_count = facts->processors.allowed_count,
                                .gpu_count = facts->gpus.device_count,
                                .memory_mib = (int64_t)(facts->memory.total_bytes >> 20),
                                .shm_mib = (int64_t)(facts->memory.shm_bytes >> 20),
                                .file_limit = facts->limits.files.hard < INT64_MAX ? (int64_t)facts->limits.files.hard
                                                                                   : INT64_MAX};
    (void)str_copy(out->host, sizeof out->host, facts->names[0].host);
    (void)str_copy(out->version, sizeof out->version, MUSTER_VERSION_TEXT);
    (void)str_copy(out->kernel, sizeof out->kernel, facts->kernel.release);
    (void)str_copy(out->gpu_driver, sizeof out->gpu_driver, facts->gpus.driver_version);
    bool is_told = interfaces->told_count > 0 && interfaces->told[0].has_route;
    (void)str_copy(out->addr, sizeof out->addr, is_told ? interfaces->told[0].address : interfaces->own_address);
    for (uint32_t i = 0; i < interfaces->count; i++) {
        if (strcmp(interfaces->list[i].address, out->addr) == 0) {
            out->mtu = interfaces->list[i].mtu;
        }
    }
}

int doctor_node_compare(const struct doctor_node *a, const struct doctor_node *b) {
    int way = strverscmp(a->host, b->host);
    way = way ? way : strverscmp(a->addr, b->addr);
    way = way ? way : (a->pid > b->pid) - (a->pid < b->pid);
    return way ? way : (a->nonce > b->nonce) - (a->nonce < b->nonce);
}

/* ---- as text ---- */

static int append_tree(json_t *tree, struct buf *out) {
    char *text = tree ? json_dumps(tree, JSON_COMPACT) : NULL;
    json_decref(tree);
    if (!text) {
        return status_fail(MUSTER_ENOMEM, "no memory to tell the other nodes");
    }
    int code = buf_append(out, text, strlen(text));
    free(text);
    return code;
}

/* Host names and the like may be anything. */
static const char *plain(const char *text) {
    for (const char *at = text; *at; at++) {
        if ((unsigned char)*at >= 0x80) {
            return "?";
        }
    }
    return text;
}

int doctor_node_write(const struct doctor_node *node, struct buf *out) {
    return append_tree(
        json_pack("{s:s, s:s, s:i, s:I, s:b, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "host",
                  plain(node->host), "addr", node->addr, "port", (int)node->port, "nonce", (json_int_t)node->nonce,
                  "serving", node->is_serving, "version", node->version, "kernel", plain(node->kernel), "gpu_driver",
                  plain(node->gpu_driver), "pid", (json_int_t)node->pid, "processors",
                  (json_int_t)node->processor_count, "gpus", (json_int_t)node->gpu_count, "memory_mib",
                  (json_int_t)node->memory_mib, "shm_mib", (json_int_t)node->shm_mib, "files",
                  (json_int_t)node->file_limit, "mtu", (json_int_t)node->mtu, "unresolved_count",
                  (json_int_t)node->unresolved_count, "unresolved", plain(node->unresolved)),
        out);
}

static bool take_text(const json_t *tree, const char *name, char *out, size_t size) {
    const char *text = json_string_value(json_object_get(tree, name));
    return text && str_copy(out, size, text);
}

static int64_t take_number(const json_t *tree, const char *name) {
    return json_integer_value(json_object_get(tree, name));
}

/* What another version has told may lack something: that stays empty. Where it is to be found may not. */
int doctor_node_read(const void *bytes, size_t len, struct doctor_node *out) {
    struct doctor_node node = {.port = 0};
    json_t *tree = json_loadb(bytes, len, 0, NULL);
    bool fine = take_text(tree, "host", node.host, sizeof node.host) &&
                take_text(tree, "addr", node.addr, sizeof node.addr) && take_number(tree, "port") > 0 &&
                take_number(tree, "port") <= UINT16_MAX;
    node.port = fine ? (uint16_t)take_number(tree, "port") : 0;
    node.nonce = (uint64_t)take_number(tree, "nonce");
    node.is_serving = json_is_true(json_object_get(tree, "serving"));
    (void)take_text(tree, "version", node.version, sizeof node.version);
    (void)take_text(tree, "kernel", node.kernel, sizeof node.kernel);
    (void)take_text(tree, "gpu_driver", node.gpu_driver, sizeof node.gpu_driver);
    (void)take_text(tree, "unresolved", node.unresolved, sizeof node.unresolved);
    node.pid = take_number(tree, "pid");
    node.processor_count = take_number(tree, "processors");
    node.gpu_count = take_number(tree, "gpus");
    node.memory_mib = take_number(tree, "memory_mib");
    node.shm_mib = take_number(tree, "shm_mib");
    node.file_limit = take_number(tree, "files");
    node.mtu = take_number(tree, "mtu");
    node.unresolved_count = take_number(tree, "unresolved_count");
    json_decref(tree);
    if (!fine) {
        return status_fail(MUSTER_EPROTOCOL, "what a node tells of itself is damaged: is it of another version?");
    }
    *out = node;
    return 0;
}

int doctor_pair_write(const struct doctor_pair *pair, struct buf *out) {
    return append_tree(json_pack("{s:I, s:I, s:b, s:s, s:f, s:f, s:f, s:f, s:f}", "from", (json_int_t)pair->from, "to",
                                 (json_int_t)pair->to, "measured", pair->is_measured, "reason", plain(pair->reason),
                                 "latency_us", pair->latency_us, "forward_mbps", pair->forward_mbps, "backward_mbps",
                                 pair->backward_mbps, "both_mbps", pair->both_mbps, "ahead_us", pair->ahead_us),
                       out);
}

static double take_real(const json_t *tree, const char *name) {
    return json_number_value(json_object_get(tree, name));
}

int doctor_pair_read(const void *bytes, size_t len, struct doctor_pair *out) {
    struct doctor_pair pair = {.is_measured = false};
    json_t *tree = json_loadb(bytes, len, 0, NULL);
    int64_t from = take_number(tree, "from"), to = take_number(tree, "to");
    bool fine = json_is_object(tree) && from >= 0 && from < (int64_t)DOCTOR_NODES_MAX && to >= 0 &&
                to < (int64_t)DOCTOR_NODES_MAX && from != to;
    pair.from = fine ? (uint32_t)from : 0;
    pair.to = fine ? (uint32_t)to : 0;
    pair.is_measured = json_is_true(json_object_get(tree, "measured"));
    (void)take_text(tree, "reason", pair.reason, sizeof pair.reason);
    pair.latency_us = take_real(tree, "latency_us");
    pair.forward_mbps = take_real(tree, "forward_mbps");
    pair.backward_mbps = take_real(tree, "backward_mbps");
    pair.both_mbps = take_real(tree, "both_mbps");
    pair.ahead_us = take_real(tree, "ahead_us");
    json_decref(tree);
    if (!fine) {
        return status_fail(MUSTER_EPROTOCOL, "what a node has measured is damaged: is it of another version?");
    }
    *out = pair;
    return 0;
}

/* ---- the tournament ---- */

/* With an odd number of nodes one more plays along, and whoever meets that one rests. */
static uint32_t player_count(uint32_t node_count) {
    return node_count + node_count % 2;
}

uint32_t doctor_round_count(uint32_t node_count) {
    uint32_t all = node_count < 2 ? 0 : player_count(node_count) - 1;
    return all < DOCTOR_ROUNDS_MAX ? all : DOCTOR_ROUNDS_MAX;
}

/* The circle: in round r, i meets j if i + j = r modulo the number of players but the last; who would meet itself meets
 * the last. */
bool doctor_opponent(uint32_t node_count, uint32_t round, uint32_t rank, uint32_t *out) {
    uint32_t circle = player_count(node_count) - 1;
    uint32_t other = (round % circle + circle - rank % circle) % circle;
    if (rank == circle) { /* 2 i = r; the number is odd, so 2 has an inverse */
        other = (uint32_t)((uint64_t)round % circle * ((circle + 1) / 2) % circle);
    } else if (other == rank) {
        other = circle;
    }
    if (other >= node_count) {
        return false;
    }
    *out = other;
    return true;
}
