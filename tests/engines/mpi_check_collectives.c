/* Collectives with every type and operation, in place or not, with blocks of equal and unequal sizes; operations of
 * ours; counts that do not fit an int. See mpi_check.h. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "mpi_check.h"

enum { COUNT = 23, FAR = 100 }; /* the first element for rank r is r * FAR */

/* One collective: its buffers, and what must be in `receive` afterwards. */
struct turn {
    const struct check *check;
    enum muster_type type;
    mpi_handle mpi_type;
    size_t element_bytes;
    mpi_handle request;
    char what[96];
    char *send, *receive, *want;
    size_t receive_bytes;
};

static void begin(struct turn *turn, const char *what, size_t send_count, size_t receive_count) {
    snprintf(turn->what, sizeof turn->what, "%s of %s%s", what, muster_type_name(turn->type),
             turn->check->mpi->short_count_max < INT_MAX ? ", large" : "");
    turn->receive_bytes = receive_count * turn->element_bytes;
    turn->send = check_allocate(turn->check, send_count * turn->element_bytes);
    turn->receive = check_allocate(turn->check, turn->receive_bytes);
    turn->want = check_allocate(turn->check, turn->receive_bytes);
}

/* Waits (but for what blocks: request 0) and compares. */
static void end(struct turn *turn, int error) {
    check_works(turn->check, error, turn->what);
    if (turn->request) {
        check_wait(turn->check, &turn->request, turn->what, NULL);
        turn->request = 0;
    }
    for (size_t i = 0; i < turn->receive_bytes; i++) {
        check_that(turn->check, turn->receive[i] == turn->want[i], "%s: element %zu is wrong", turn->what,
                   i / turn->element_bytes);
    }
    check_free(turn->check, turn->send, turn->what);
    check_free(turn->check, turn->receive, turn->what);
    check_free(turn->check, turn->want, turn->what);
}

static void fill(const struct turn *turn, char *buffer, size_t at, size_t first, size_t count, int rank) {
    check_fill(turn->type, buffer + at * turn->element_bytes, first, count, rank);
}

/* Reductions. */

struct reduction {
    enum muster_reduction op;
    mpi_handle mpi_op;
};

static void want_reduced(const struct turn *turn, const struct reduction *reduction, size_t first, size_t count,
                         int from, int to) {
    check_reduce(turn->type, reduction->op, turn->want, first, count, from, to);
}

static void all_reduces(struct turn *turn, const struct reduction *reduction) {
    const struct check *check = turn->check;
    for (int kind = 0; kind < 3; kind++) {
        begin(turn, muster_reduction_name(reduction->op), COUNT, COUNT);
        bool is_in_place = kind == 1;
        fill(turn, is_in_place ? turn->receive : turn->send, 0, 0, COUNT, check->rank);
        want_reduced(turn, reduction, 0, COUNT, 0, check->size);
        const void *send = is_in_place ? check->mpi->in_place : turn->send;
        end(turn, kind == 2
                      ? CALL(allreduce, send, turn->receive, COUNT, turn->mpi_type, reduction->mpi_op, check->comm)
                      : CALL(iallreduce, send, turn->receive, COUNT, turn->mpi_type, reduction->mpi_op, check->comm,
                             &turn->request));
    }
}

static void reduces_to_root(struct turn *turn, const struct reduction *reduction) {
    const struct check *check = turn->check;
    int root = check->size - 1;
    for (int in_place = 0; in_place < 2; in_place++) {
        bool is_root = check->rank == root, is_in_place = in_place && is_root;
        begin(turn, "reduce", COUNT, COUNT);
        fill(turn, is_in_place ? turn->receive : turn->send, 0, 0, COUNT, check->rank);
        if (is_root) {
            want_reduced(turn, reduction, 0, COUNT, 0, check->size);
        }
        end(turn, CALL(ireduce, is_in_place ? check->mpi->in_place : turn->send, is_root ? turn->receive : NULL, COUNT,
                       turn->mpi_type, reduction->mpi_op, root, check->comm, &turn->request));
    }
}

static void reduce_scatters(struct turn *turn, const struct reduction *reduction) {
    const struct check *check = turn->check;
    size_t all = COUNT * (size_t)check->size, own = COUNT * (size_t)check->rank;
    for (int in_place = 0; in_place < 2; in_place++) {
        begin(turn, "reduce_scatter_block", all, in_place ? all : COUNT);
        fill(turn, in_place ? turn->receive : turn->send, 0, 0, all, check->rank);
        if (in_place) { /* what is behind the own block is nobody's business */
            turn->receive_bytes = COUNT * turn->element_bytes;
        }
        want_reduced(turn, reduction, own, COUNT, 0, check->size);
        end(turn, CALL(ireduce_scatter_block, in_place ? check->mpi->in_place : turn->send, turn->receive, COUNT,
                       turn->mpi_type, reduction->mpi_op, check->comm, &turn->request));
    }
}

/* Rank r gets r elements: the first none. */
static void reduce_scatters_unequal(struct turn *turn, const struct reduction *reduction) {
    const struct check *check = turn->check;
    size_t counts[16] = {0}, all = 0, first = 0;
    struct mpi_blocks blocks;
    for (int i = 0; i < check->size; i++) {
        counts[i] = (size_t)i;
        first += i < check->rank ? counts[i] : 0;
        all += counts[i];
    }
    check_that(check, mpi_blocks_make(&blocks, counts, NULL, (uint32_t)check->size) == 0, "no blocks");
    begin(turn, "reduce_scatter", all, (size_t)check->rank);
    fill(turn, turn->send, 0, 0, all, check->rank);
    want_reduced(turn, reduction, first, counts[check->rank], 0, check->size);
    end(turn, CALL(ireduce_scatter, turn->send, turn->receive, &blocks, turn->mpi_type, reduction->mpi_op, check->comm,
                   &turn->request));
    mpi_blocks_done(&blocks);
}

static void scans(struct turn *turn, const struct reduction *reduction) {
    const struct check *check = turn->check;
    for (int in_place = 0; in_place < 2; in_place++) {
        begin(turn, "scan", COUNT, COUNT);
        fill(turn, in_place ? turn->receive : turn->send, 0, 0, COUNT, check->rank);
        want_reduced(turn, reduction, 0, COUNT, 0, check->rank + 1);
        end(turn, CALL(iscan, in_place ? check->mpi->in_place : turn->send, turn->receive, COUNT, turn->mpi_type,
                       reduction->mpi_op, check->comm, &turn->request));
    }
    begin(turn, "exscan", COUNT, COUNT);
    fill(turn, turn->send, 0, 0, COUNT, check->rank);
    if (check->rank > 0) {
        want_reduced(turn, reduction, 0, COUNT, 0, check->rank);
    }
    end(turn, CALL(iexscan, turn->send, turn->receive, COUNT, turn->mpi_type, reduction->mpi_op, check->comm,
                   &turn->request));
}

/* Blocks of equal size. */

static void broadcasts(struct turn *turn) {
    const struct check *check = turn->check;
    for (int kind = 0; kind < 2; kind++) {
        int root = kind == 0 ? 0 : check->size - 1;
        begin(turn, "broadcast", 0, COUNT);
        fill(turn, turn->want, 0, 0, COUNT, root);
        if (check->rank == root) {
            fill(turn, turn->receive, 0, 0, COUNT, root);
        }
        end(turn, kind == 0 ? CALL(ibcast, turn->receive, COUNT, turn->mpi_type, root, check->comm, &turn->request)
                            : CALL(bcast, turn->receive, COUNT, turn->mpi_type, root, check->comm));
    }
}

static void gathers(struct turn *turn) {
    const struct check *check = turn->check;
    size_t all = COUNT * (size_t)check->size, own = COUNT * (size_t)check->rank;
    int root = check->size - 1;
    for (int kind = 0; kind < 4; kind++) {
        bool is_to_all = kind < 2, gets = is_to_all || check->rank == root, is_in_place = kind % 2 && gets;
        begin(turn, is_to_all ? "all_gather" : "gather", COUNT, all);
        for (int r = 0; gets && r < check->size; r++) {
            fill(turn, turn->want, COUNT * (size_t)r, 0, COUNT, r);
        }
        fill(turn, is_in_place ? turn->receive : turn->send, is_in_place ? own : 0, 0, COUNT, check->rank);
        const void *send = is_in_place ? check->mpi->in_place : turn->send;
        end(turn, is_to_all ? CALL(iallgather, send, turn->receive, COUNT, turn->mpi_type, check->comm, &turn->request)
                            : CALL(igather, send, gets ? turn->receive : NULL, COUNT, turn->mpi_type, root, check->comm,
                                   &turn->request));
    }
}

static void scatters(struct turn *turn) {
    const struct check *check = turn->check;
    size_t all = COUNT * (size_t)check->size;
    int root = check->size - 1;
    for (int in_place = 0; in_place < 2; in_place++) {
        bool is_root = check->rank == root, is_in_place = in_place && is_root;
        begin(turn, "scatter", all, COUNT);
        fill(turn, turn->send, 0, 0, all, root);
        if (!is_in_place) {
            fill(turn, turn->want, 0, COUNT * (size_t)check->rank, COUNT, root);
        }
        end(turn, CALL(iscatter, is_root ? turn->send : NULL, is_in_place ? check->mpi->in_place : turn->receive, COUNT,
                       turn->mpi_type, root, check->comm, &turn->request));
    }
}

static void all_to_alls(struct turn *turn) {
    const struct check *check = turn->check;
    size_t all = COUNT * (size_t)check->size;
    for (int in_place = 0; in_place < 2; in_place++) {
        begin(turn, "all_to_all", all, all);
        for (int r = 0; r < check->size; r++) {
            fill(turn, in_place ? turn->receive : turn->send, COUNT * (size_t)r, FAR * (size_t)r, COUNT, check->rank);
            fill(turn, turn->want, COUNT * (size_t)r, FAR * (size_t)check->rank, COUNT, r);
        }
        end(turn, CALL(ialltoall, in_place ? check->mpi->in_place : turn->send, turn->receive, COUNT, turn->mpi_type,
                       check->comm, &turn->request));
    }
}

/* Blocks of unequal size, with gaps between them: block r has r + 1 elements (or `base` + r), at r * STRIDE. */

enum { STRIDE = 20 };

static void make_blocks(const struct check *check, struct mpi_blocks *out, int base) {
    size_t counts[16] = {0}, offsets[16] = {0};
    for (int r = 0; r < check->size; r++) {
        counts[r] = (size_t)base + (size_t)r;
        offsets[r] = STRIDE * (size_t)r;
    }
    check_that(check, mpi_blocks_make(out, counts, offsets, (uint32_t)check->size) == 0, "no blocks");
}

static void gathers_unequal(struct turn *turn, const struct mpi_blocks *blocks) {
    const struct check *check = turn->check;
    size_t own = (size_t)check->rank + 1;
    int root = check->size - 1;
    for (int kind = 0; kind < 4; kind++) {
        bool is_to_all = kind < 2, gets = is_to_all || check->rank == root, is_in_place = kind % 2 && gets;
        begin(turn, is_to_all ? "all_gather_v" : "gather_v", own, STRIDE * (size_t)check->size);
        for (int r = 0; gets && r < check->size; r++) {
            fill(turn, turn->want, STRIDE * (size_t)r, 0, (size_t)r + 1, r);
        }
        fill(turn, is_in_place ? turn->receive : turn->send, is_in_place ? STRIDE * (size_t)check->rank : 0, 0, own,
             check->rank);
        const void *send = is_in_place ? check->mpi->in_place : turn->send;
        end(turn, is_to_all ? CALL(iallgatherv, send, (int64_t)own, turn->receive, blocks, turn->mpi_type, check->comm,
                                   &turn->request)
                            : CALL(igatherv, send, (int64_t)own, gets ? turn->receive : NULL, gets ? blocks : NULL,
                                   turn->mpi_type, root, check->comm, &turn->request));
    }
}

static void scatters_unequal(struct turn *turn, const struct mpi_blocks *blocks) {
    const struct check *check = turn->check;
    size_t own = (size_t)check->rank + 1, all = STRIDE * (size_t)check->size;
    int root = check->size - 1;
    for (int in_place = 0; in_place < 2; in_place++) {
        bool is_root = check->rank == root, is_in_place = in_place && is_root;
        begin(turn, "scatter_v", all, own);
        fill(turn, turn->send, 0, 0, all, root);
        if (!is_in_place) {
            fill(turn, turn->want, 0, STRIDE * (size_t)check->rank, own, root);
        }
        end(turn, CALL(iscatterv, is_root ? turn->send : NULL, is_root ? blocks : NULL,
                       is_in_place ? check->mpi->in_place : turn->receive, (int64_t)own, turn->mpi_type, root,
                       check->comm, &turn->request));
    }
}

/* Ranks r and s exchange r + s elements. */
static void all_to_alls_unequal(struct turn *turn) {
    const struct check *check = turn->check;
    size_t all = STRIDE * (size_t)check->size;
    struct mpi_blocks blocks;
    make_blocks(check, &blocks, check->rank);
    for (int in_place = 0; in_place < 2; in_place++) {
        begin(turn, "all_to_all_v", all, all);
        for (int r = 0; r < check->size; r++) {
            size_t count = (size_t)check->rank + (size_t)r;
            fill(turn, in_place ? turn->receive : turn->send, STRIDE * (size_t)r, FAR * (size_t)r, count, check->rank);
            fill(turn, turn->want, STRIDE * (size_t)r, FAR * (size_t)check->rank, count, r);
        }
        end(turn, CALL(ialltoallv, in_place ? check->mpi->in_place : turn->send, in_place ? NULL : &blocks,
                       turn->receive, &blocks, turn->mpi_type, check->comm, &turn->request));
    }
    mpi_blocks_done(&blocks);
}

static void moves(struct turn *turn) {
    struct mpi_blocks blocks;
    make_blocks(turn->check, &blocks, 1);
    broadcasts(turn);
    gathers(turn);
    scatters(turn);
    all_to_alls(turn);
    gathers_unequal(turn, &blocks);
    scatters_unequal(turn, &blocks);
    all_to_alls_unequal(turn);
    mpi_blocks_done(&blocks);
}

/* Integers wrap around, where mpi_reduces() says that MPI's results are Muster's. */
static void wraps(struct turn *turn, const struct reduction *reduction) {
    const struct check *check = turn->check;
    if (turn->type == MUSTER_FLOAT32 || turn->type == MUSTER_FLOAT64 ||
        !mpi_reduces(check->mpi, turn->type, reduction->op)) {
        return;
    }
    begin(turn, "wrapping", COUNT, COUNT);
    check_fill_highest(turn->type, turn->send, COUNT);
    check_fill_highest(turn->type, turn->want, COUNT);
    for (int r = 1; r < check->size; r++) {
        check_combine(turn->type, reduction->op, turn->send, turn->want, COUNT);
    }
    end(turn, CALL(iallreduce, turn->send, turn->receive, COUNT, turn->mpi_type, reduction->mpi_op, check->comm,
                   &turn->request));
}

void check_collectives(const struct check *check) {
    for (int type = 0; type < MUSTER_TYPE_COUNT; type++) {
        if (!check_has_type(check, (enum muster_type)type)) {
            continue;
        }
        struct turn turn = {.check = check,
                            .type = (enum muster_type)type,
                            .mpi_type = check->mpi->types[type],
                            .element_bytes = muster_type_bytes((enum muster_type)type)};
        moves(&turn);
        for (int op = 0; op < MUSTER_REDUCTION_COUNT; op++) {
            struct reduction reduction = {(enum muster_reduction)op, check->mpi->ops[op]};
            if (check_has_op(check, turn.type, reduction.op)) {
                all_reduces(&turn, &reduction);
                reduces_to_root(&turn, &reduction);
                reduce_scatters(&turn, &reduction);
                reduce_scatters_unequal(&turn, &reduction);
                scans(&turn, &reduction);
                wraps(&turn, &reduction);
            }
        }
    }
    mpi_handle request = 0;
    check_works(check, CALL(ibarrier, check->comm, &request), "ibarrier");
    check_wait(check, &request, "ibarrier", NULL);
    check_works(check, CALL(barrier, check->comm), "barrier");
}

/* An operation of ours on pairs (a, b), which stand for x -> a * x + b: the one after the other, which is not
 * commutative. The type is two int64 in one. */
static void compose(void *in, void *inout, int *count, void *type) {
    const int64_t *first = in;
    int64_t *then = inout;
    (void)type;
    for (int i = 0; i < *count; i++) {
        int64_t a = then[2 * i], b = then[2 * i + 1];
        then[2 * i] = first[2 * i] * a;
        then[2 * i + 1] = first[2 * i + 1] * a + b;
    }
}

/* Bytes of bfloat16 and the like are summed in an operation of ours, too; here: by their sum without carry. */
static void add_bytes(void *in, void *inout, int *count, void *type) {
    (void)type;
    for (int i = 0; i < 2 * *count; i++) {
        ((uint8_t *)inout)[i] = (uint8_t)(((uint8_t *)inout)[i] ^ ((const uint8_t *)in)[i]);
    }
}

static void check_composition(const struct check *check, mpi_handle pair) {
    int64_t own[2 * COUNT], got[2 * COUNT], want[2 * COUNT], next[2 * COUNT];
    mpi_handle op = 0, request = 0;
    int count = COUNT;
    check_works(check, CALL(op_create, compose, false, &op), "op_create");
    for (int r = check->size - 1; r >= 0; r--) {
        for (int i = 0; i < COUNT; i++) {
            next[2 * i] = 2 + (r + i) % 3;
            next[2 * i + 1] = r - i;
        }
        memcpy(own, r == check->rank ? next : own, sizeof own);
        if (r < check->size - 1) {
            compose(next, want, &count, NULL);
        } else {
            memcpy(want, next, sizeof want);
        }
    }
    check_works(check, CALL(iallreduce, own, got, COUNT, pair, op, check->comm, &request), "compose");
    check_wait(check, &request, "compose", NULL);
    check_that(check, memcmp(got, want, sizeof got) == 0, "an operation that is not commutative: wrong result");
    check_works(check, CALL(op_free, &op), "op_free");
}

static void check_bytes(const struct check *check) {
    uint8_t own[2 * COUNT], got[2 * COUNT], want[2 * COUNT] = {0};
    mpi_handle op = 0, two_bytes = 0, request = 0;
    check_works(check, CALL(op_create, add_bytes, true, &op), "op_create");
    check_works(check, CALL(type_contiguous, 2, check->mpi->byte, &two_bytes), "type_contiguous");
    for (int i = 0; i < 2 * COUNT; i++) {
        own[i] = (uint8_t)(37 * check->rank + i);
        for (int r = 0; r < check->size; r++) {
            want[i] = (uint8_t)(want[i] ^ (uint8_t)(37 * r + i));
        }
    }
    check_works(check, CALL(iallreduce, own, got, COUNT, two_bytes, op, check->comm, &request), "two bytes");
    check_wait(check, &request, "two bytes", NULL);
    check_that(check, memcmp(got, want, sizeof got) == 0, "an operation on two bytes: wrong result");
    check_works(check, CALL(type_free, &two_bytes), "type_free");
    check_works(check, CALL(op_free, &op), "op_free");
}

void check_own_operations(const struct check *check) {
    mpi_handle pair = 0;
    check_works(check, CALL(type_contiguous, 2, check->mpi->types[MUSTER_INT64], &pair), "type_contiguous");
    check_composition(check, pair);
    check_bytes(check);
    check_works(check, CALL(type_free, &pair), "type_free");
}

/* More elements than an int counts, of a type that has no bytes. */
void check_long_counts(const struct check *check) {
    const int64_t count = INT64_C(3000000000);
    struct mpi_status status = {.source = -1};
    mpi_handle nothing = 0, requests[2] = {0, 0};
    char place = 'x';
    int next = (check->rank + 1) % check->size, last = (check->rank + check->size - 1) % check->size;
    check_works(check, CALL(type_contiguous, 0, check->mpi->byte, &nothing), "a type without bytes");
    int error = CALL(irecv, &place, count, nothing, last, 5, check->comm, &requests[0]);
    if (!check->mpi->has_large_counts) {
        char words[256] = "";
        check_that(check, error == MPI_TOO_LONG && CALL(error_class, error) == MPI_ERROR_TOO_LONG, "3e9 elements: %d",
                   error);
        check_works(check, CALL(error_string, error, words, sizeof words), "error_string");
        check_that(check, strstr(words, "does not fit an int") != NULL, "words: %s", words);
        check_that(check, mpi_fail(check->mpi, error, "MPI_Irecv") == MUSTER_ELIMIT, "code of 3e9 elements");
        check_that(check, CALL(bcast, &place, count, nothing, 0, check->comm) == MPI_TOO_LONG, "bcast of 3e9 elements");
    } else {
        check_works(check, error, "irecv of 3e9 elements");
        check_works(check, CALL(isend, &place, count, nothing, next, 5, check->comm, &requests[1]),
                    "isend of 3e9 elements");
        check_wait(check, &requests[0], "3e9 elements", &status);
        check_wait(check, &requests[1], "3e9 elements", NULL);
        check_that(check, status.source == last && status.count_bytes == 0, "3e9 elements: from %d", status.source);
        check_works(check, CALL(ibcast, &place, count, nothing, 0, check->comm, &requests[0]),
                    "ibcast of 3e9 elements");
        check_wait(check, &requests[0], "3e9 elements", NULL);
    }
    check_works(check, CALL(type_free, &nothing), "type_free");
}
