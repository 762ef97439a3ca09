/* What PMIx's library wants from the servers of other nodes, through the store. */
#include <stdlib.h>
#include <string.h>

#include "agent/mpi/pmix_host_impl.h"
#include "base/buf.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

static void answer(const struct pmix_event *event, int status, char *data, size_t size) {
    event->done(status, data, size, event->ctx, data ? free : NULL, data);
}

/* ---- fences ---- */

/* Which nodes have a rank in it; `out` has room for all. */
static size_t nodes_of(const struct pmix_host *host, const struct pmix_event *event, uint32_t *out) {
    const struct pmix_host_options *o = &host->options;
    size_t count = 0;
    for (size_t node = 0; node < o->node_count; node++) {
        bool is_in = !event->ranks;
        for (size_t i = 0; i < event->rank_count && !is_in; i++) {
            is_in = event->ranks[i] - o->nodes[node].base < o->nodes[node].count;
        }
        if (is_in) {
            out[count++] = (uint32_t)node;
        }
    }
    return count;
}

static int by_number(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

/* The ranks in a fence as a number, the same on all nodes; 0: all of them. */
static uint64_t fingerprint(struct pmix_event *event) {
    if (!event->ranks) {
        return 0;
    }
    qsort(event->ranks, event->rank_count, sizeof *event->ranks, by_number);
    uint64_t hash = fnv_bytes(FNV_BEGIN, event->ranks, event->rank_count * sizeof *event->ranks);
    return hash != 0 ? hash : 1;
}

static struct pmix_meeting *meeting_of(struct pmix_host *host, uint64_t ranks) {
    for (size_t i = 0; i < host->meeting_count; i++) {
        if (host->meetings[i].ranks == ranks) {
            return &host->meetings[i];
        }
    }
    struct pmix_meeting *grown = realloc(host->meetings, (host->meeting_count + 1) * sizeof *grown);
    if (!grown) {
        return NULL;
    }
    host->meetings = grown;
    host->meetings[host->meeting_count] = (struct pmix_meeting){.ranks = ranks};
    return &host->meetings[host->meeting_count++];
}

static void fence_name(const struct pmix_meeting *meeting, uint64_t number, char out[MPI_EXCHANGE_NAME_MAX]) {
    (void)str_format(out, MPI_EXCHANGE_NAME_MAX, "fence%016llx.%llu", (unsigned long long)meeting->ranks,
                     (unsigned long long)number);
}

/* What all nodes have brought, one after the other: the library finds its way in that. */
static void on_fenced(void *ctx, int status, const struct kv_slice *values, size_t count) {
    struct pmix_event *event = ctx;
    size_t size = 0, used = 0;
    for (size_t i = 0; i < count; i++) {
        size += values[i].len;
    }
    char *data = status == 0 ? malloc(size + 1) : NULL;
    for (size_t i = 0; data && i < count; i++) {
        if (values[i].len > 0) {
            memcpy(data + used, values[i].data, values[i].len);
        }
        used += values[i].len;
    }
    if (status) {
        log_error("PMIx: a fence: %s", muster_detail());
    }
    answer(event, data ? PMIX_OK : PMIX_FAILED, data, size);
    pmix_event_free(event);
}

/* Who comes to this one has read the one before, and all have come to that one: they have read the one before that. */
static void forget_earlier(struct pmix_host *host, const struct pmix_meeting *meeting) {
    char name[MPI_EXCHANGE_NAME_MAX];
    if (meeting->count > 1) {
        fence_name(meeting, meeting->count - 2, name);
        mpi_exchange_forget(host->options.exchange, name);
    }
}

static int fence_others(struct pmix_host *host, struct pmix_event *event, const uint32_t *nodes, size_t count) {
    char name[MPI_EXCHANGE_NAME_MAX];
    struct pmix_meeting *meeting = meeting_of(host, fingerprint(event));
    if (!meeting) {
        return status_fail(MUSTER_ENOMEM, "no memory for a fence of PMIx");
    }
    forget_earlier(host, meeting);
    fence_name(meeting, meeting->count++, name);
    return mpi_exchange_start(host->options.exchange, name, nodes, count, kv_slice_of(event->data, event->size),
                              on_fenced, event);
}

void pmix_relay_fence(struct pmix_host *host, struct pmix_event *event) {
    uint32_t *nodes = calloc(host->options.node_count, sizeof *nodes);
    size_t count = nodes ? nodes_of(host, event, nodes) : 0;
    int code = !nodes ? MUSTER_ENOMEM : count > 1 ? fence_others(host, event, nodes, count) : 0;
    free(nodes);
    if (code || count <= 1) { /* of this node alone: what was brought goes back */
        char *data = code ? NULL : event->data;
        event->data = code ? event->data : NULL;
        answer(event, code ? PMIX_FAILED : PMIX_OK, data, code ? 0 : event->size);
        pmix_event_free(event);
    }
}

/* ---- questions for another node's data of a rank ---- */

static void on_answered(void *ctx, int status, const struct kv_slice *values, size_t count) {
    struct pmix_event *event = ctx;
    bool is_found = status == 0 && count == 1 && values[0].len > 0 && values[0].data[0] == '+';
    size_t size = is_found ? values[0].len - 1 : 0;
    char *data = is_found ? malloc(size + 1) : NULL;
    if (data && size > 0) {
        memcpy(data, values[0].data + 1, size);
    }
    answer(event, data ? PMIX_OK : PMIX_NOT_FOUND, data, size);
    pmix_event_free(event);
}

void pmix_relay_ask(struct pmix_host *host, struct pmix_event *event) {
    const struct pmix_host_options *o = &host->options;
    char text[16];
    bool is_known = event->rank < o->world_size && o->exchange;
    (void)str_format(text, sizeof text, "%u", event->rank);
    size_t node = is_known ? mpi_layout_node_of(o->nodes, o->node_count, event->rank) : 0;
    if (!is_known || mpi_exchange_ask(o->exchange, (uint32_t)node, kv_slice_text(text), on_answered, event)) {
        answer(event, PMIX_NOT_FOUND, NULL, 0);
        pmix_event_free(event);
    }
}

/* On the library's thread; `data` is its. */
static void on_library_found(int status, char *data, size_t size, void *ctx) {
    struct mpi_question *question = ctx;
    bool is_found = status == PMIX_OK;
    struct pmix_event *event = pmix_event_new(PMIX_EVENT_FOUND, data, is_found ? size : 0);
    if (event) { /* without memory its asker waits, as long as this attempt lasts */
        event->status = status;
        event->question = question;
        pmix_queue_put(mpi_question_owner(question), event);
    }
}

/* '+' and the data, or '-'. */
void pmix_relay_found(struct pmix_event *event) {
    struct buf value;
    bool is_found = event->status == PMIX_OK;
    buf_init(&value, event->size + 1);
    int code = buf_append(&value, is_found ? "+" : "-", 1);
    code = code ? code : buf_append(&value, event->data, is_found ? event->size : 0);
    mpi_question_answer(event->question, code ? kv_slice_text("-") : kv_slice_of(buf_bytes(&value), value.len));
    buf_done(&value);
    pmix_event_free(event);
}

static void on_asked(void *ctx, struct mpi_question *question, struct kv_slice text) {
    struct pmix_host *host = ctx;
    struct pmix_process process = {.rank = 0};
    char number[16];
    int64_t rank = -1;
    bool is_known = str_format(number, sizeof number, "%.*s", (int)text.len, (const char *)text.data) &&
                    str_parse_i64(number, &rank) && rank >= 0 && rank < host->options.world_size;
    memcpy(process.space, host->space, sizeof process.space);
    process.rank = (uint32_t)rank;
    if (!is_known || host->library.dmodex_request(&process, on_library_found, question) != PMIX_OK) {
        mpi_question_answer(question, kv_slice_text("-"));
    }
}

int pmix_relay_listen(struct pmix_host *host) {
    return host->options.exchange ? mpi_exchange_serve(host->options.exchange, on_asked, host) : 0;
}
