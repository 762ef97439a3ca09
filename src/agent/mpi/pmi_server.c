/* See pmi_server.h. A line is "cmd=NAME KEY=VALUE KEY=VALUE ..."; one command alone, spawn, takes several lines, from
 * "mcmd=spawn" to "endcmd". */
#include "agent/mpi/pmi_server.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"
#include "base/str.h"
#include "store/server/kv_table.h"

#define MAPPING "PMI_process_mapping" /* the one key that the server puts */

enum {
    OUTPUT_MAX = 64 * 1024, /* answers that a worker does not read */
    LENGTH_BYTES = 2,       /* of a key, or a value, in what nodes exchange: both lengths, then both texts */
    PAIR_BYTES_MAX = 2 * LENGTH_BYTES + PMI_SERVER_KEY_MAX + PMI_SERVER_VALUE_MAX,
    ABORT_TEXT_MAX = 1024,
};

struct worker {
    struct buf in, out;
    bool waits;  /* in a barrier */
    bool aborts; /* is not heard any more, and waits for its end */
    bool closed; /* does not speak as it should */
    bool spawns; /* amid the lines of a spawn command */
    bool inside; /* between init and finalize */
    bool ended;  /* its connection */
};

struct pmi_server {
    struct pmi_server_host host;
    char space[PMI_SERVER_SPACE_MAX];
    uint32_t local_count, world_size;
    struct kv_budget budget;
    struct kv_table keys;
    struct buf fresh;
    uint32_t waiting_count;
    struct worker workers[];
};

/* ---- words of a line ---- */

/* The value of `name` in a line; *out_len: its bytes, up to a blank. NULL: it is not there. */
static const char *field(const char *line, const char *name, size_t *out_len) {
    size_t len = strlen(name);
    for (const char *at = line; *at != '\0'; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        if (strncmp(at, name, len) == 0 && at[len] == '=') {
            *out_len = strcspn(at + len + 1, " ");
            return at + len + 1;
        }
    }
    return NULL;
}

static bool field_is(const char *line, const char *name, const char *value) {
    size_t len = 0;
    const char *text = field(line, name, &len);
    return text && len == strlen(value) && strncmp(text, value, len) == 0;
}

static int64_t field_number(const char *line, const char *name, int64_t otherwise) {
    char text[32];
    size_t len = 0;
    int64_t number = 0;
    const char *at = field(line, name, &len);
    bool is_number = at && str_format(text, sizeof text, "%.*s", (int)len, at) && str_parse_i64(text, &number);
    return is_number ? number : otherwise;
}

/* ---- answers ---- */

static bool is_heard(const struct worker *worker) {
    return !worker->aborts && !worker->closed;
}

static void broken(struct pmi_server *s, uint32_t local_rank, const char *why) {
    struct worker *worker = &s->workers[local_rank];
    if (!worker->closed) {
        worker->closed = true;
        buf_clear(&worker->in);
        s->host.on_broken(s->host.ctx, local_rank, why);
    }
}

__attribute__((format(printf, 3, 4))) static void answer(struct pmi_server *s, uint32_t local_rank, const char *format,
                                                         ...) {
    char text[PMI_SERVER_LINE_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bool fits = length > 0 && (size_t)length < sizeof text;
    if (!fits || buf_append(&s->workers[local_rank].out, text, (size_t)length) != 0) {
        broken(s, local_rank, "it asks and does not read the answers");
    }
}

static void enter_stage(struct pmi_server *s, uint32_t local_rank, enum mpi_stage stage) {
    s->workers[local_rank].inside = stage == MPI_STAGE_INSIDE;
    s->host.on_stage(s->host.ctx, local_rank, stage);
}

static void answer_init(struct pmi_server *s, uint32_t local_rank, const char *line) {
    bool is_known = field_number(line, "pmi_version", 1) == 1;
    if (is_known) {
        enter_stage(s, local_rank, MPI_STAGE_INSIDE);
    }
    answer(s, local_rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=%d\n", is_known ? 0 : -1);
}

static void answer_maxes(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d rc=0\n", PMI_SERVER_SPACE_MAX,
           PMI_SERVER_KEY_MAX, PMI_SERVER_VALUE_MAX);
}

static void answer_application(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=appnum appnum=0 rc=0\n");
}

static void answer_universe(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=universe_size size=%u rc=0\n", s->world_size);
}

static void answer_space(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=my_kvsname kvsname=%s rc=0\n", s->space);
}

static void answer_finalize(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    enter_stage(s, local_rank, MPI_STAGE_FINALIZED);
    answer(s, local_rank, "cmd=finalize_ack rc=0\n");
}

static void refuse_spawn(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=spawn_result rc=-1 msg=muster_run_does_not_spawn\n");
}

static void refuse_publish(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=publish_result rc=-1 msg=not_offered\n");
}

static void refuse_unpublish(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=unpublish_result rc=-1 msg=not_offered\n");
}

static void refuse_lookup(struct pmi_server *s, uint32_t local_rank, const char *line) {
    (void)line;
    answer(s, local_rank, "cmd=lookup_result rc=-1 msg=not_offered\n");
}

/* ---- the space of keys ---- */

static bool names_space(const struct pmi_server *s, const char *line) {
    return field_is(line, "kvsname", s->space);
}

static bool is_word(struct kv_slice text) {
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] <= ' ') {
            return false;
        }
    }
    return true;
}

static bool is_key(struct kv_slice key) {
    return key.len > 0 && key.len < PMI_SERVER_KEY_MAX && is_word(key) && !kv_slice_equal(key, kv_slice_text(MAPPING));
}

static bool is_value(struct kv_slice value) {
    return value.len < PMI_SERVER_VALUE_MAX && is_word(value);
}

static int keep(struct pmi_server *s, struct kv_slice key, struct kv_slice value) {
    struct kv_change change;
    int code = kv_table_set(&s->keys, key, value, &change);
    kv_table_sweep(&s->keys);
    return code;
}

/* Both or neither: other nodes hear of what this one keeps. */
static int put(struct pmi_server *s, struct kv_slice key, struct kv_slice value) {
    uint8_t room[PAIR_BYTES_MAX];
    struct bytes_writer writer = {.data = room, .size = sizeof room};
    bytes_put_number(&writer, key.len, LENGTH_BYTES);
    bytes_put_number(&writer, value.len, LENGTH_BYTES);
    bytes_put(&writer, key.data, key.len);
    bytes_put(&writer, value.data, value.len);
    size_t before = s->fresh.len;
    int code = buf_append(&s->fresh, room, writer.used);
    code = code ? code : keep(s, key, value);
    if (code && s->fresh.len > before) {
        s->fresh.len = before;
    }
    return code;
}

static void answer_put(struct pmi_server *s, uint32_t local_rank, const char *line) {
    struct kv_slice key = {0}, value = {0};
    key.data = (const uint8_t *)field(line, "key", &key.len);
    value.data = (const uint8_t *)field(line, "value", &value.len);
    const char *why = !names_space(s, line)             ? "another_kvsname"
                      : !key.data || !is_key(key)       ? "no_key_to_put"
                      : !value.data || !is_value(value) ? "no_value_to_put"
                      : put(s, key, value) != MUSTER_OK ? "too_many_keys"
                                                        : NULL;
    answer(s, local_rank, "cmd=put_result rc=%d msg=%s\n", why ? -1 : 0, why ? why : "success");
}

static void answer_get(struct pmi_server *s, uint32_t local_rank, const char *line) {
    size_t len = 0;
    struct kv_slice value = {0};
    const char *key = field(line, "key", &len);
    bool found = names_space(s, line) && key && kv_table_get(&s->keys, kv_slice_of(key, len), &value);
    if (found) {
        answer(s, local_rank, "cmd=get_result rc=0 msg=success value=%.*s\n", (int)value.len, (const char *)value.data);
    } else {
        answer(s, local_rank, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    }
}

/* ---- barriers ---- */

/* Those for which a barrier would wait for ever. */
static void tell_missing(struct pmi_server *s) {
    for (uint32_t i = 0; i < s->local_count; i++) {
        if (s->workers[i].ended && is_heard(&s->workers[i])) {
            s->host.on_left(s->host.ctx, i);
        }
    }
}

/* A barrier of some of the ranks is PMI 1.2's, which this server does not say it speaks. */
static void enter_barrier(struct pmi_server *s, uint32_t local_rank, const char *line) {
    size_t len = 0;
    if (field(line, "group", &len) && !field_is(line, "group", "WORLD")) {
        answer(s, local_rank, "cmd=barrier_out rc=-1 msg=only_of_all_ranks\n");
        return;
    }
    s->workers[local_rank].waits = true;
    tell_missing(s);
    if (++s->waiting_count == s->local_count) {
        s->host.on_barrier(s->host.ctx);
    }
}

/* ---- commands ---- */

static void aborted(struct pmi_server *s, uint32_t local_rank, const char *line) {
    size_t len = 0;
    char text[ABORT_TEXT_MAX];
    const char *given = field(line, "error_msg", &len);
    given = given ? given : field(line, "message", &len);
    (void)str_format(text, sizeof text, "%.*s", given ? (int)strlen(given) : 0, given ? given : "");
    s->workers[local_rank].aborts = true;
    s->host.on_abort(s->host.ctx, local_rank, (int)field_number(line, "exitcode", 1), text);
}

static const struct command {
    const char *name;
    void (*call)(struct pmi_server *s, uint32_t local_rank, const char *line);
} commands[] = {
    {"init", answer_init},
    {"get_maxes", answer_maxes},
    {"get_appnum", answer_application},
    {"get_universe_size", answer_universe},
    {"get_my_kvsname", answer_space},
    {"put", answer_put},
    {"get", answer_get},
    {"barrier_in", enter_barrier},
    {"finalize", answer_finalize},
    {"abort", aborted},
    {"spawn", refuse_spawn},
    {"publish_name", refuse_publish},
    {"unpublish_name", refuse_unpublish},
    {"lookup_name", refuse_lookup},
};

static void line_handle(struct pmi_server *s, uint32_t local_rank, const char *line) {
    struct worker *worker = &s->workers[local_rank];
    if (worker->spawns) {
        worker->spawns = strcmp(line, "endcmd") != 0;
        if (!worker->spawns) {
            refuse_spawn(s, local_rank, line);
        }
        return;
    }
    if (field_is(line, "mcmd", "spawn")) {
        worker->spawns = true;
        return;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (field_is(line, "cmd", commands[i].name)) {
            commands[i].call(s, local_rank, line);
            return;
        }
    }
    char why[160];
    (void)str_format(why, sizeof why, "it says '%.100s', which is no command of PMI-1", line);
    broken(s, local_rank, why);
}

/* The lines that are whole, as long as it does not wait. */
static void lines_handle(struct pmi_server *s, uint32_t local_rank) {
    struct worker *worker = &s->workers[local_rank];
    while (!worker->waits && is_heard(worker) && worker->in.len > 0) {
        char line[PMI_SERVER_LINE_MAX];
        const uint8_t *bytes = buf_bytes(&worker->in), *end = memchr(bytes, '\n', worker->in.len);
        if (!end) {
            if (worker->in.len == PMI_SERVER_LINE_MAX) {
                broken(s, local_rank, "a line of it is too long");
            }
            return;
        }
        size_t length = (size_t)(end - bytes);
        memcpy(line, bytes, length);
        line[length] = '\0';
        buf_consume(&worker->in, length + 1);
        if (strlen(line) != length) {
            broken(s, local_rank, "a line of it has a byte that is zero");
            return;
        }
        line_handle(s, local_rank, line);
    }
}

/* ---- what the caller does ---- */

size_t pmi_server_room(const struct pmi_server *s, uint32_t local_rank) {
    const struct worker *worker = &s->workers[local_rank];
    return is_heard(worker) ? PMI_SERVER_LINE_MAX - worker->in.len : 0;
}

void pmi_server_heard(struct pmi_server *s, uint32_t local_rank, const void *bytes, size_t count) {
    if (!is_heard(&s->workers[local_rank]) || count == 0) {
        return;
    }
    if (buf_append(&s->workers[local_rank].in, bytes, count) != 0) {
        broken(s, local_rank, "there is no memory for its lines");
        return;
    }
    lines_handle(s, local_rank);
}

void pmi_server_ended(struct pmi_server *s, uint32_t local_rank) {
    struct worker *worker = &s->workers[local_rank];
    worker->ended = true;
    if (is_heard(worker) && (worker->inside || s->waiting_count > 0)) {
        s->host.on_left(s->host.ctx, local_rank);
    }
}

struct buf *pmi_server_output(struct pmi_server *s, uint32_t local_rank) {
    return &s->workers[local_rank].out;
}

bool pmi_server_is_closed(const struct pmi_server *s, uint32_t local_rank) {
    return s->workers[local_rank].closed;
}

struct buf *pmi_server_fresh(struct pmi_server *s) {
    return &s->fresh;
}

int pmi_server_merge(struct pmi_server *s, const void *bytes, size_t count) {
    struct bytes_reader reader = {.data = bytes, .size = count};
    int code = 0;
    while (reader.used < reader.size && code == 0) {
        struct kv_slice key = {.len = bytes_get_number(&reader, LENGTH_BYTES)};
        struct kv_slice value = {.len = bytes_get_number(&reader, LENGTH_BYTES)};
        key.data = bytes_get(&reader, key.len);
        value.data = bytes_get(&reader, value.len);
        if (reader.overrun || !is_key(key) || !is_value(value)) {
            return status_fail(MUSTER_EPROTOCOL, "what another node's workers have put cannot be read");
        }
        code = keep(s, key, value);
    }
    return code;
}

void pmi_server_barrier_done(struct pmi_server *s) {
    uint32_t count = s->local_count;
    s->waiting_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        s->workers[i].waits = false;
        if (is_heard(&s->workers[i])) {
            answer(s, i, "cmd=barrier_out rc=0\n");
        }
    }
    for (uint32_t i = 0; i < count; i++) { /* after all have left it: one may enter the next */
        lines_handle(s, i);
    }
}

/* ---- a life ---- */

int pmi_server_create(const struct pmi_server_options *options, const struct pmi_server_host *host,
                      struct pmi_server **out) {
    struct pmi_server *s = calloc(1, sizeof *s + options->local_count * sizeof s->workers[0]);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory for a PMI server of %u workers", options->local_count);
    }
    s->host = *host;
    s->local_count = options->local_count;
    s->world_size = options->world_size;
    s->budget.max_bytes = PMI_SERVER_BYTES_MAX;
    (void)str_copy(s->space, sizeof s->space, options->space);
    kv_table_init(&s->keys, options->seed, &s->budget);
    buf_init(&s->fresh, PMI_SERVER_FRESH_MAX);
    for (uint32_t i = 0; i < options->local_count; i++) {
        buf_init(&s->workers[i].in, PMI_SERVER_LINE_MAX);
        buf_init(&s->workers[i].out, OUTPUT_MAX);
    }
    size_t length = strlen(options->mapping);
    /* Without it MPICH compares host names. */
    int code = length < PMI_SERVER_VALUE_MAX ? keep(s, kv_slice_text(MAPPING), kv_slice_text(options->mapping)) : 0;
    if (code) {
        pmi_server_free(s);
        return code;
    }
    *out = s;
    return 0;
}

void pmi_server_free(struct pmi_server *s) {
    if (!s) {
        return;
    }
    for (uint32_t i = 0; i < s->local_count; i++) {
        buf_done(&s->workers[i].in);
        buf_done(&s->workers[i].out);
    }
    buf_done(&s->fresh);
    kv_table_done(&s->keys);
    free(s);
}
