/* What workers send to a PMI-1 server, and what another node says that its workers have put: the first byte chooses
 * which, and how the bytes are cut and spread over workers. Barriers end when they are due. What comes out is lines
 * that the library's own client could read. */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "agent/mpi/pmi_server.h"

enum { WORKERS = 3, TURNS_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_barrier(void *ctx) {
    *(bool *)ctx = true;
}

static void on_stage(void *ctx, uint32_t local_rank, enum mpi_stage stage) {
    (void)ctx;
    assert(local_rank < WORKERS && stage != MPI_STAGE_NONE);
}

static void on_left(void *ctx, uint32_t local_rank) {
    (void)ctx;
    assert(local_rank < WORKERS);
}

static void on_abort(void *ctx, uint32_t local_rank, int exit_code, const char *text) {
    (void)ctx;
    (void)exit_code;
    assert(local_rank < WORKERS && strlen(text) <= PMI_SERVER_LINE_MAX);
}

static void on_broken(void *ctx, uint32_t local_rank, const char *why) {
    (void)ctx;
    assert(local_rank < WORKERS && why[0] != '\0');
}

static void read_answers(struct pmi_server *s) {
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct buf *out = pmi_server_output(s, i);
        if (out->len > 0) {
            const uint8_t *bytes = buf_bytes(out);
            assert(out->len > 4 && memcmp(bytes, "cmd=", 4) == 0 && bytes[out->len - 1] == '\n');
            assert(!memchr(bytes, '\0', out->len));
        }
        buf_consume(out, out->len);
    }
}

/* The other node takes what this one's workers have put. */
static void end_barriers(struct pmi_server *s, struct pmi_server *other, bool *due) {
    for (int turn = 0; *due && turn < TURNS_MAX; turn++) {
        struct buf *fresh = pmi_server_fresh(s);
        *due = false;
        assert(pmi_server_merge(other, buf_bytes(fresh), fresh->len) == 0);
        buf_clear(fresh);
        pmi_server_barrier_done(s);
        read_answers(s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pmi_server *s, *other;
    bool due = false, other_due = false;
    const struct pmi_server_options options = {
        .space = "s", .mapping = "(vector,(0,1,3))", .local_count = WORKERS, .world_size = WORKERS, .seed = {1, 2}};
    const struct pmi_server_host host = {&due, on_barrier, on_stage, on_left, on_abort, on_broken};
    const struct pmi_server_host other_host = {&other_due, on_barrier, on_stage, on_left, on_abort, on_broken};
    if (size < 2 || pmi_server_create(&options, &host, &s) != 0) {
        return 0;
    }
    assert(pmi_server_create(&options, &other_host, &other) == 0);
    size_t piece = 1U + data[0] % 64U, spread = data[0] / 64U;
    (void)pmi_server_merge(other, data + 1, size - 1);
    for (size_t at = 1, turn = 0; at < size; turn++) {
        uint32_t worker = spread == 0 ? 0 : (uint32_t)(turn / spread % WORKERS);
        size_t room = pmi_server_room(s, worker), count = size - at < piece ? size - at : piece;
        pmi_server_heard(s, worker, data + at, count < room ? count : room);
        read_answers(s);
        end_barriers(s, other, &due);
        at += count;
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        pmi_server_ended(s, i);
    }
    pmi_server_free(s);
    pmi_server_free(other);
    return 0;
}
