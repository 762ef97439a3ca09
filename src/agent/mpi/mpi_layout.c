/* See mpi_layout.h. */
#include "agent/mpi/mpi_layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

/* ---- one node ---- */

void mpi_node_write(const struct mpi_node *node, char out[MPI_LAYOUT_RECORD_MAX]) {
    char host[MPI_LAYOUT_HOST_MAX];
    (void)str_copy(host, sizeof host, node->host[0] != '\0' ? node->host : "node");
    for (char *at = host; *at != '\0'; at++) {
        if (strchr(" \t\n,;:=[]", *at)) {
            *at = '-';
        }
    }
    (void)str_format(out, MPI_LAYOUT_RECORD_MAX, "%u %u %u %s", node->base, node->count, node->token, host);
}

static bool take_number(char **at, uint32_t *out) {
    char *end = strchr(*at, ' ');
    int64_t number = 0;
    if (!end) {
        return false;
    }
    *end = '\0';
    bool fits = str_parse_i64(*at, &number) && number >= 0 && number <= UINT32_MAX;
    *out = fits ? (uint32_t)number : 0;
    *at = end + 1;
    return fits;
}

bool mpi_node_read(const void *bytes, size_t length, struct mpi_node *out) {
    char text[MPI_LAYOUT_RECORD_MAX];
    char *at = text;
    if (length == 0 || length >= sizeof text || memchr(bytes, '\0', length)) {
        return false;
    }
    memcpy(text, bytes, length);
    text[length] = '\0';
    *out = (struct mpi_node){0};
    return take_number(&at, &out->base) && take_number(&at, &out->count) && take_number(&at, &out->token) &&
           *at != '\0' && strcspn(at, " \t\n,;:=[]") == strlen(at) && str_copy(out->host, sizeof out->host, at);
}

/* ---- all of them ---- */

struct named {
    const char *host;
    size_t index;
};

static int by_name(const void *a, const void *b) {
    const struct named *left = a, *right = b;
    int order = strcmp(left->host, right->host);
    return order != 0 ? order : left->index < right->index ? -1 : left->index > right->index;
}

/* Numbers behind names that several nodes have: of the whole list, so that none is met twice. */
static int part_names(struct mpi_node *nodes, size_t count) {
    struct named *list = calloc(count, sizeof *list);
    bool *shared = calloc(count, sizeof *shared);
    if (!list || !shared) {
        free(list);
        free(shared);
        return status_fail(MUSTER_ENOMEM, "no memory for the names of %zu nodes", count);
    }
    for (size_t i = 0; i < count; i++) {
        list[i] = (struct named){nodes[i].host, i};
    }
    qsort(list, count, sizeof *list, by_name);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(list[i].host, list[i - 1].host) == 0) {
            shared[list[i].index] = shared[list[i - 1].index] = true;
        }
    }
    for (size_t i = 0; i < count; i++) {
        nodes[i].shares_host = shared[i];
        if (shared[i]) {
            char name[MPI_LAYOUT_HOST_MAX];
            (void)str_format(name, sizeof name, "%.200s.%zu", nodes[i].host, i);
            memcpy(nodes[i].host, name, sizeof name);
        }
    }
    free(list);
    free(shared);
    return 0;
}

int mpi_layout_settle(struct mpi_node *nodes, size_t count, uint32_t world_size) {
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        if (nodes[i].base != next || nodes[i].count == 0) {
            return status_fail(MUSTER_EPROTOCOL, "node %zu of the world says that it has ranks from %u on, not %llu", i,
                               nodes[i].base, (unsigned long long)next);
        }
        next += nodes[i].count;
    }
    if (next != world_size) {
        return status_fail(MUSTER_EPROTOCOL, "the nodes of the world have %llu ranks, not %u", (unsigned long long)next,
                           world_size);
    }
    return count > 0 ? part_names(nodes, count) : 0;
}

size_t mpi_layout_node_of(const struct mpi_node *nodes, size_t count, uint32_t rank) {
    size_t first = 0, end = count;
    while (end - first > 1) {
        size_t middle = first + (end - first) / 2;
        if (nodes[middle].base <= rank) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return first;
}

/* ---- texts ---- */

int mpi_layout_mapping(const struct mpi_node *nodes, size_t count, struct buf *out) {
    int code = buf_printf(out, "(vector");
    for (size_t i = 0, end; i < count && code == 0; i = end) {
        end = i + 1;
        while (end < count && nodes[end].count == nodes[i].count) {
            end++;
        }
        code = buf_printf(out, ",(%zu,%zu,%u)", i, end - i, nodes[i].count);
    }
    return code ? code : buf_printf(out, ")");
}

int mpi_layout_hosts(const struct mpi_node *nodes, size_t count, struct buf *out) {
    int code = 0;
    for (size_t i = 0; i < count && code == 0; i++) {
        code = buf_printf(out, "%s%s", i > 0 ? "," : "", nodes[i].host);
    }
    return code;
}

int mpi_layout_peers(const struct mpi_node *node, struct buf *out) {
    int code = 0;
    for (uint32_t i = 0; i < node->count && code == 0; i++) {
        code = buf_printf(out, "%s%u", i > 0 ? "," : "", node->base + i);
    }
    return code;
}

int mpi_layout_ranks(const struct mpi_node *nodes, size_t count, struct buf *out) {
    int code = 0;
    for (size_t i = 0; i < count && code == 0; i++) {
        code = i > 0 ? buf_append(out, ";", 1) : 0;
        code = code ? code : mpi_layout_peers(&nodes[i], out);
    }
    return code;
}
