/* The matrix of calls on memory of a GPU; see device_matrix_test_support.h. */
#include "comm/nccl/device_matrix_test_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/group/matrix_test_support.h"

enum { BYTES_MAX = 64 * 1024, ARENA_BYTES = 2 * BYTES_MAX + 8192, SHIFT_MAX = 8 };

struct bench {
    struct device_rank *d;
    char *send, *receive; /* on the GPU: ARENA_BYTES each */
    char *host;           /* twice that */
    uint64_t random;      /* the same on all ranks */
};

struct placed {
    const struct matrix_case *c;
    char *send, *receive; /* on the GPU */
    size_t send_bytes, receive_bytes;
};

static bool may_be_in_place(const struct matrix_case *c, uint32_t rank) {
    bool is_rooted = c->operation == MATRIX_REDUCE || c->operation == MATRIX_GATHER || c->operation == MATRIX_SCATTER;
    bool is_first = c->operation == MATRIX_EXSCAN && rank == 0;
    return !is_first && !(is_rooted && rank != c->root) && !(c->operation == MATRIX_ALL_TO_ALL && c->has_counts);
}

/* Where the buffers lie, and what is in them: garbage first, so that what a call leaves out is seen. */
static void place(struct bench *bench, const struct matrix_case *c, bool in_place, size_t shift, struct placed *out) {
    uint32_t me = bench->d->rank->rank;
    size_t width = muster_type_bytes(c->type), own = matrix_begin(c, me) * width;
    *out = (struct placed){.c = c,
                           .send = bench->send + shift * width,
                           .receive = bench->receive + shift * width,
                           .send_bytes = matrix_send_count(c, me) * width,
                           .receive_bytes = matrix_receive_count(c, me) * width};
    in_place = in_place && may_be_in_place(c, me);
    if (in_place && (c->operation == MATRIX_SCATTER || c->operation == MATRIX_REDUCE_SCATTER)) {
        out->receive = out->send + own;
    } else if (in_place && (c->operation == MATRIX_ALL_GATHER || c->operation == MATRIX_GATHER)) {
        out->send = out->receive + own;
    } else if (in_place || c->operation == MATRIX_BROADCAST) {
        out->send = out->receive;
    }
    memset(bench->host, 0xC5, ARENA_BYTES);
    device_rank_put(bench->d, bench->send, bench->host, ARENA_BYTES);
    device_rank_put(bench->d, bench->receive, bench->host, ARENA_BYTES);
    matrix_fill(c, me, bench->host);
    device_rank_put(bench->d, out->send, bench->host, out->send_bytes);
}

static int call_with_counts(struct muster_group *group, const struct placed *p, uint32_t me) {
    const struct matrix_case *c = p->c;
    size_t from[MATRIX_RANKS_MAX];
    for (uint32_t rank = 0; rank < c->size; rank++) {
        from[rank] = c->counts[rank][me];
    }
    const void *send = p->send_bytes > 0 ? p->send : NULL; /* nobody needs a buffer for nothing */
    void *receive = p->receive_bytes > 0 ? p->receive : NULL;
    switch (c->operation) {
    case MATRIX_ALL_GATHER:
        return muster_all_gather_v(group, send, receive, c->counts[0], c->type, NULL);
    case MATRIX_GATHER:
        return muster_gather_v(group, send, receive, c->counts[0], c->type, c->root, NULL);
    case MATRIX_SCATTER:
        return muster_scatter_v(group, send, receive, c->counts[0], c->type, c->root, NULL);
    case MATRIX_REDUCE_SCATTER:
        return muster_reduce_scatter_v(group, send, receive, c->counts[0], c->type, c->reduction, NULL);
    default:
        return muster_all_to_all_v(group, send, c->counts[me], receive, from, c->type, NULL);
    }
}

static int call(struct muster_group *group, const struct placed *p, uint32_t me, struct muster_work **work) {
    const struct matrix_case *c = p->c;
    if (c->has_counts) {
        return call_with_counts(group, p, me);
    }
    switch (c->operation) {
    case MATRIX_ALL_REDUCE:
        return muster_all_reduce(group, p->send, p->receive, c->count, c->type, c->reduction, work);
    case MATRIX_REDUCE:
        return muster_reduce(group, p->send, me == c->root ? p->receive : NULL, c->count, c->type, c->reduction,
                             c->root, work);
    case MATRIX_REDUCE_SCATTER:
        return muster_reduce_scatter(group, p->send, p->receive, c->count, c->type, c->reduction, work);
    case MATRIX_SCAN:
        return muster_scan(group, p->send, p->receive, c->count, c->type, c->reduction, work);
    case MATRIX_EXSCAN:
        return muster_exscan(group, p->send, me > 0 ? p->receive : NULL, c->count, c->type, c->reduction, work);
    case MATRIX_BROADCAST:
        return muster_broadcast(group, p->receive, c->count, c->type, c->root, work);
    case MATRIX_ALL_GATHER:
        return muster_all_gather(group, p->send, p->receive, c->count, c->type, work);
    case MATRIX_GATHER:
        return muster_gather(group, p->send, p->receive, c->count, c->type, c->root, work);
    case MATRIX_SCATTER:
        return muster_scatter(group, p->send, p->receive, c->count, c->type, c->root, work);
    default:
        return muster_all_to_all(group, p->send, p->receive, c->count, c->type, work);
    }
}

static void check_result(struct bench *bench, const struct placed *p) {
    const struct matrix_case *c = p->c;
    device_rank_get(bench->d, bench->host, p->receive, p->receive_bytes);
    const char *wrong = matrix_check(c, bench->d->rank->rank, bench->host);
    if (wrong) {
        (void)fprintf(stderr, "rank %u: %s: %s\n", bench->d->rank->rank, matrix_describe(c), wrong);
        rank_failed(bench->d->rank, __FILE__, __LINE__, "a right result");
    }
}

/* In half of the cases nothing may be written beside the result. */
static void check_surroundings(struct bench *bench, const struct placed *p) {
    char beside[16];
    if (p->receive_bytes == 0 || p->receive + p->receive_bytes > bench->receive + ARENA_BYTES - 16 ||
        p->receive < bench->receive || p->receive > bench->receive + ARENA_BYTES) {
        return;
    }
    device_rank_get(bench->d, beside, p->receive + p->receive_bytes, sizeof beside);
    for (size_t i = 0; i < sizeof beside; i++) {
        rank_check(bench->d->rank, (unsigned char)beside[i] == 0xC5);
    }
}

static bool has_known_bound(const struct matrix_case *c) {
    return !(c->reduction == MUSTER_OP_PRODUCT && c->type == MUSTER_FLOAT16 && c->size > 5); /* subnormal numbers */
}

static void case_run(struct bench *bench, size_t triple) {
    struct matrix_case c;
    struct placed p;
    struct muster_work *work = NULL;
    matrix_draw(&bench->random, triple, bench->d->rank->size, BYTES_MAX, &c);
    c.drops_nans = c.operation <= MATRIX_REDUCE_SCATTER; /* prefixes are the host's engine's */
    uint64_t way = matrix_random(&bench->random);
    place(bench, &c, way & 1, way >> 8 & (SHIFT_MAX - 1), &p);
    bool by_handle = (way & 2) && !c.has_counts;
    int code = call(bench->d->group, &p, bench->d->rank->rank, by_handle ? &work : NULL);
    code = code ? code : muster_work_wait(&work);
    if (code) {
        (void)fprintf(stderr, "%s\n", matrix_describe(&c));
        rank_check_code(bench->d->rank, code, 0);
    }
    if (has_known_bound(&c)) {
        check_result(bench, &p);
    }
    check_surroundings(bench, &p);
}

void device_matrix_run(struct device_rank *d, uint64_t seed, uint64_t rounds) {
    struct bench bench = {.d = d, .random = seed};
    uint64_t kinds = bench.random >> 3;
    bench.send = device_rank_allocate(d, ARENA_BYTES, kinds & 1);
    bench.receive = device_rank_allocate(d, ARENA_BYTES, kinds >> 1 & 1);
    bench.host = malloc(2 * (size_t)ARENA_BYTES);
    rank_check(d->rank, bench.host);
    for (uint64_t round = 0; round < rounds; round++) {
        for (size_t triple = 0; triple < matrix_triple_count(); triple++) {
            case_run(&bench, triple);
        }
    }
    device_rank_release(d, bench.send, kinds & 1);
    device_rank_release(d, bench.receive, kinds >> 1 & 1);
    free(bench.host);
}
