/* The bytes of verdicts; see verdict.h. */
#include "comm/context/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"

enum { TOKEN_BYTES = 4 };

int verdict_encode_topology(const struct topology *topology, const uint32_t *tokens, uint8_t **out, size_t *out_len) {
    uint8_t *encoded = NULL;
    size_t len = 0;
    int code = topology_encode(topology, &encoded, &len);
    if (code) {
        return code;
    }
    size_t room = 1 + (size_t)topology->size * TOKEN_BYTES + len;
    struct bytes_writer w = {malloc(room), room, 0, false};
    if (!w.data) {
        free(encoded);
        return status_fail(MUSTER_ENOMEM, "no memory for the topology");
    }
    bytes_put_number(&w, VERDICT_TOPOLOGY, 1);
    for (uint32_t rank = 0; rank < topology->size; rank++) {
        bytes_put_number(&w, tokens[rank], TOKEN_BYTES);
    }
    bytes_put(&w, encoded, len);
    free(encoded);
    *out = w.data;
    *out_len = w.used;
    return 0;
}

/* A failure's record: rank plus one (0: nobody), pid, length and bytes of the host's name, number of missing ranks, of
 * runs, and these, as first and count. Numbers are u32, lengths and the number of runs u8. */
static void put_record(struct bytes_writer *w, const struct muster_failure *record) {
    size_t host_len = strnlen(record->host, sizeof record->host);
    bytes_put_number(w, record->rank + 1u, 4);
    bytes_put_number(w, (uint32_t)record->pid, 4);
    bytes_put_number(w, host_len, 1);
    bytes_put(w, record->host, host_len);
    bytes_put_number(w, record->missing_count, 4);
    bytes_put_number(w, record->run_count, 1);
    for (uint32_t i = 0; i < record->run_count; i++) {
        bytes_put_number(w, record->missing[i].first, 4);
        bytes_put_number(w, record->missing[i].count, 4);
    }
}

/* false: it is not understood. */
static bool get_record(struct bytes_reader *r, struct muster_failure *out) {
    *out = status_no_failure();
    out->rank = out->root_rank = (uint32_t)bytes_get_number(r, 4) - 1u; /* MUSTER_NO_RANK for 0 */
    out->pid = (int32_t)(uint32_t)bytes_get_number(r, 4);
    size_t host_len = (size_t)bytes_get_number(r, 1);
    const uint8_t *host = host_len < sizeof out->host ? bytes_get(r, host_len) : NULL;
    if (!host || r->overrun) {
        return false;
    }
    memcpy(out->host, host, host_len);
    out->missing_count = (uint32_t)bytes_get_number(r, 4);
    out->run_count = (uint32_t)bytes_get_number(r, 1);
    for (uint32_t i = 0; i < out->run_count && i < MUSTER_FAILURE_RUNS_MAX; i++) {
        out->missing[i].first = (uint32_t)bytes_get_number(r, 4);
        out->missing[i].count = (uint32_t)bytes_get_number(r, 4);
    }
    return !r->overrun && out->run_count <= MUSTER_FAILURE_RUNS_MAX;
}

size_t verdict_encode_failure(int code, const char *sentence, const struct muster_failure *record,
                              uint8_t out[VERDICT_FAILURE_BYTES_MAX]) {
    struct bytes_writer w = {out, VERDICT_FAILURE_BYTES_MAX, 0, false};
    bytes_put_number(&w, VERDICT_FAILURE, 1);
    bytes_put_number(&w, (uint32_t)code, 4);
    put_record(&w, record);
    bytes_put(&w, sentence, strnlen(sentence, MUSTER_DETAIL_MAX));
    return w.used;
}

static int not_understood(void) {
    return status_fail(MUSTER_EPROTOCOL, "rank 0's answer in the store is not understood");
}

static int decode_topology(struct bytes_reader *r, uint32_t size, struct verdict *out) {
    out->tokens = calloc(size, sizeof *out->tokens);
    if (!out->tokens) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranks", size);
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        out->tokens[rank] = (uint32_t)bytes_get_number(r, TOKEN_BYTES);
    }
    return r->overrun ? not_understood() : topology_decode(r->data + r->used, r->size - r->used, size, &out->topology);
}

int verdict_decode(const uint8_t *data, size_t len, uint32_t size, struct verdict *out) {
    struct bytes_reader r = {data, len, 0, false};
    uint64_t kind = bytes_get_number(&r, 1);
    *out = (struct verdict){.kind = (enum verdict_kind)kind};
    if (r.overrun || kind == VERDICT_REPLACED) {
        return r.overrun ? not_understood() : 0;
    }
    if (kind == VERDICT_TOPOLOGY) {
        int code = decode_topology(&r, size, out);
        if (code) {
            verdict_done(out);
        }
        return code;
    }
    int code = (int)(int32_t)(uint32_t)bytes_get_number(&r, 4);
    struct muster_failure record;
    if (kind != VERDICT_FAILURE || r.overrun || code >= 0 || !get_record(&r, &record)) {
        return not_understood();
    }
    (void)status_fail(code, "rank 0: %.*s", (int)(len - r.used), (const char *)data + r.used);
    status_note(&record);
    return code;
}

void verdict_done(struct verdict *verdict) {
    topology_done(&verdict->topology);
    free(verdict->tokens);
    *verdict = (struct verdict){0};
}
