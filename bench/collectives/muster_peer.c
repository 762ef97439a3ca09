/* The peer of the collectives benchmark on libmuster (see peer.h). MUSTER_SHM=0 in the environment makes it talk TCP.
 */
#include <muster/muster.h>
#include <muster/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

static struct muster_group *group;
static bool uses_own_memory;

static void require(int code) {
    if (code != MUSTER_OK) {
        peer_die(muster_detail());
    }
}

void peer_start(int *argc, char ***argv, bool wants_own_memory, int *out_rank, int *out_size) {
    (void)argc;
    (void)argv;
    require(muster_group_create_env(NULL, &group));
    uses_own_memory = wants_own_memory;
    *out_rank = (int)muster_group_rank(group);
    *out_size = (int)muster_group_size(group);
}

void peer_stop(void) {
    require(muster_barrier(group, NULL));
    muster_group_free(group);
}

float *peer_alloc(size_t bytes) {
    void *buffer = NULL;
    if (uses_own_memory) {
        require(muster_alloc(group, bytes, &buffer));
    } else if (posix_memalign(&buffer, 4096, bytes) != 0) {
        peer_die("out of memory");
    }
    memset(buffer, 0, bytes);
    return buffer;
}

void peer_free(float *buffer) {
    if (uses_own_memory) {
        muster_free(group, buffer);
    } else {
        free(buffer);
    }
}

static int send_to(uint32_t rank, const float *send, size_t count) {
    return muster_send(group, send, count, MUSTER_FLOAT32, rank, 0, NULL);
}

static int receive_from(uint32_t rank, float *receive, size_t count) {
    return muster_receive(group, receive, count, MUSTER_FLOAT32, rank, 0, NULL, NULL);
}

static int ping_pong(const float *send, float *receive, size_t count) {
    uint32_t rank = muster_group_rank(group), other = rank ^ 1;
    if (other >= muster_group_size(group)) {
        return MUSTER_OK;
    }
    int code = rank < other ? send_to(other, send, count) : receive_from(other, receive, count);
    if (code == MUSTER_OK) {
        code = rank < other ? receive_from(other, receive, count) : send_to(other, send, count);
    }
    return code;
}

static int run(enum peer_operation operation, float *send, float *receive, size_t count) {
    const enum muster_type type = MUSTER_FLOAT32;
    switch (operation) {
    case PEER_all_reduce:
        return muster_all_reduce(group, send, receive, count, type, MUSTER_OP_SUM, NULL);
    case PEER_broadcast:
        return muster_broadcast(group, receive, count, type, 0, NULL);
    case PEER_reduce:
        return muster_reduce(group, send, receive, count, type, MUSTER_OP_SUM, 0, NULL);
    case PEER_all_gather:
        return muster_all_gather(group, send, receive, count, type, NULL);
    case PEER_gather:
        return muster_gather(group, send, receive, count, type, 0, NULL);
    case PEER_scatter:
        return muster_scatter(group, send, receive, count, type, 0, NULL);
    case PEER_reduce_scatter:
        return muster_reduce_scatter(group, send, receive, count, type, MUSTER_OP_SUM, NULL);
    case PEER_all_to_all:
        return muster_all_to_all(group, send, receive, count, type, NULL);
    case PEER_barrier:
        return muster_barrier(group, NULL);
    case PEER_sendrecv:
        return ping_pong(send, receive, count);
    default:
        peer_die("unknown operation");
    }
}

void peer_run(enum peer_operation operation, float *send, float *receive, size_t count) {
    require(run(operation, send, receive, count));
}

double peer_max(double value) {
    require(muster_all_reduce(group, &value, &value, 1, MUSTER_FLOAT64, MUSTER_OP_MAX, NULL));
    return value;
}

const char *peer_version(void) {
    return "muster " MUSTER_VERSION_TEXT;
}
