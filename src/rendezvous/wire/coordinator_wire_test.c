/* Messages of every kind there and back, known bytes, every limit, every cut, every damaged byte. */
#include "rendezvous/wire/coordinator_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/bytes.h"

enum { KINDS = 31, FRAMES_ROOM = 4 * 8192 };

static const struct coordinator_node node = {
    .run_id = {(const uint8_t *)"job", 3},
    .addr = {(const uint8_t *)"10.0.0.7", 8},
    .role = {(const uint8_t *)"trainer", 7},
    .topology = {(const uint8_t *)"switch7/rack3", 13},
    .pid = 4711,
    .identity = {UINT64_C(0x0102030405060708), UINT64_C(0x1112131415161718)},
    .session = 11,
    .min_nodes = 2,
    .max_nodes = 8,
    .local_world_size = 4,
    .store_port = 29500,
    .uses_agent_store = true,
    .last_round = 3,
    .last_author = UINT64_C(0x3132333435363738),
    .last_world_size = 6,
    .last_group_rank = 5,
    .last_host_rank = 2,
    .fate = COORDINATOR_DEAD,
    .known_round = 12,
    .endpoints = UINT64_C(0x2122232425262728),
    .is_done = true,
    .charges = {.failures = 7, .changes = 8, .preemptions = 9},
    .is_host = true,
    .stop_ms = 25000,
    .host_name = {(const uint8_t *)"gpu7.cluster", 12},
    .wished_rank = 6,
};

static const struct coordinator_world world = {
    .round = 4,
    .author = UINT64_C(0x4142434445464748),
    .group_rank = 1,
    .group_world_size = 3,
    .base_global_rank = 4,
    .global_world_size = 12,
    .base_role_rank = 2,
    .role_world_size = 8,
    .host_rank = 2,
    .charges = {.failures = 1, .changes = 2, .preemptions = 3},
    .max_restarts = 5,
    .lease_ms = 180000,
    .master_addr = {(const uint8_t *)"node-a.cluster", 14},
    .master_port = 29500,
    .uses_agent_store = true,
};

static const struct coordinator_past pasts[] = {
    {.round = 3,
     .author = 77,
     .size = 6,
     .group_rank = 5,
     .host_rank = 2,
     .fate = COORDINATOR_GONE,
     .is_confirmed = true},
    {.round = 5,
     .author = 70,
     .size = 4,
     .group_rank = COORDINATOR_NO_RANK,
     .host_rank = 3,
     .base_round = 3,
     .base_author = 77,
     .base_count = 4},
};

static struct coordinator_message join_with_pasts(void) {
    struct coordinator_message join = {.kind = COORDINATOR_JOIN, .node = node};
    join.node.past_count = 2;
    join.node.pasts[0] = pasts[0];
    join.node.pasts[1] = pasts[1];
    return join;
}

static struct coordinator_message propose(void) {
    return (struct coordinator_message){.kind = COORDINATOR_PROPOSE,
                                        .stamp_ms = 77,
                                        .proposal = {.world = {.round = 8,
                                                               .author = 71,
                                                               .size = 3,
                                                               .group_rank = 1,
                                                               .host_rank = 0,
                                                               .base_round = 3,
                                                               .base_author = 77,
                                                               .base_count = 2},
                                                     .past_count = 2,
                                                     .pasts = {pasts[0], pasts[1]}}};
}

static struct kv_slice text_of(const char *text) {
    return kv_slice_text(text);
}

/* One message of each kind. */
static size_t examples(struct coordinator_message out[KINDS]) {
    struct coordinator_message all[KINDS] = {
        {.kind = COORDINATOR_JOIN, .node = node},
        {.kind = COORDINATOR_FAILED,
         .is_final = true,
         .cause = text_of("{\"rank\":3}"),
         .text = text_of("rank 3 has ended with exit code 1")},
        {.kind = COORDINATOR_LEAVE, .text = text_of("a signal")},
        {.kind = COORDINATOR_DONE},
        {.kind = COORDINATOR_CLOSE, .has_failed = true, .text = text_of("")},
        {.kind = COORDINATOR_WORLD, .world = world, .text = text_of("node b has left")},
        {.kind = COORDINATOR_CHANGE, .change = COORDINATOR_NODE_FAILED, .text = text_of("Gerät é\xe4\xbd\xa0 on b")},
        {.kind = COORDINATOR_ALL_DONE},
        {.kind = COORDINATOR_CLOSED,
         .has_failed = true,
         .cause = text_of("{\"words\":\n\"oh\"}"),
         .text = text_of("the job has ended")},
        {.kind = COORDINATOR_REFUSED, .status = MUSTER_EMISMATCH, .text = text_of("other node counts")},
        {.kind = COORDINATOR_SPARE},
        {.kind = COORDINATOR_ALIVE, .stamp_ms = 12345, .lease_ms = 15000, .received_count = 3},
        {.kind = COORDINATOR_HEARD, .stamp_ms = 1, .has_host = true, .text = text_of("1 of 2 nodes have joined")},
        {.kind = COORDINATOR_GREET, .nonce = "thirty-two random bytes, or so.."},
        {.kind = COORDINATOR_PROOF, .tag = "thirty-two bytes of a hash......"},
        {.kind = COORDINATOR_STATUS},
        {.kind = COORDINATOR_PREEMPT, .grace_ms = 120000, .text = text_of("SIGUSR1")},
        {.kind = COORDINATOR_PROBE, .node = {.run_id = text_of("job")}},
        {.kind = COORDINATOR_CHALLENGE, .nonce = {1, [31] = 2}, .tag = {3, [31] = 4}},
        {.kind = COORDINATOR_REPORT, .is_last = true, .report = text_of("{\"round\":\n3}")},
        {.kind = COORDINATOR_STOP, .grace_ms = COORDINATOR_GRACE_MS_MAX, .text = text_of("node b is taken away")},
        {.kind = COORDINATOR_SERVES,
         .service = {.is_serving = true, .is_running = true, .round = 9, .member_count = 4}},
        {.kind = COORDINATOR_LET_IN},
        {.kind = COORDINATOR_HOST_DONE},
        join_with_pasts(),
        propose(),
        {.kind = COORDINATOR_ACCEPT, .round = 8, .stamp_ms = 77},
        {.kind = COORDINATOR_HEARD, .stamp_ms = 258, .lease_ms = 180000, .received_count = UINT64_MAX},
        {.kind = COORDINATOR_RESUME,
         .node = {.run_id = node.run_id, .identity = {7, 8}, .session = 9},
         .received_count = 4},
        {.kind = COORDINATOR_RESUMED, .received_count = 5},
        {.kind = COORDINATOR_ENGINE, .text = text_of("mpi (as asked for)")},
    };
    memcpy(out, all, sizeof all);
    return KINDS;
}

static bool is_agents(const struct coordinator_message *message) {
    return message->kind < COORDINATOR_WORLD;
}

static void put(struct buf *out, const struct coordinator_message *message) {
    buf_init(out, FRAMES_ROOM);
    assert_int_equal(coordinator_wire_put(out, message), MUSTER_OK);
}

static void assert_slices_equal(struct kv_slice a, struct kv_slice b) {
    assert_true(kv_slice_equal(a, b));
}

static void assert_charges_equal(const struct coordinator_charges *a, const struct coordinator_charges *b) {
    assert_int_equal(a->failures, b->failures);
    assert_int_equal(a->changes, b->changes);
    assert_int_equal(a->preemptions, b->preemptions);
}

static void assert_pasts_equal(const struct coordinator_past *a, const struct coordinator_past *b, size_t count) {
    for (size_t i = 0; i < count; i++) {
        assert_true(a[i].round == b[i].round);
        assert_true(a[i].author == b[i].author);
        assert_int_equal(a[i].size, b[i].size);
        assert_int_equal(a[i].group_rank, b[i].group_rank);
        assert_int_equal(a[i].host_rank, b[i].host_rank);
        assert_int_equal(a[i].fate, b[i].fate);
        assert_true(a[i].base_round == b[i].base_round);
        assert_true(a[i].base_author == b[i].base_author);
        assert_int_equal(a[i].base_count, b[i].base_count);
        assert_int_equal(a[i].is_confirmed, b[i].is_confirmed);
    }
}

static void assert_messages_equal(const struct coordinator_message *a, const struct coordinator_message *b) {
    assert_int_equal(a->kind, b->kind);
    assert_slices_equal(a->node.run_id, b->node.run_id);
    assert_slices_equal(a->node.addr, b->node.addr);
    assert_slices_equal(a->node.role, b->node.role);
    assert_slices_equal(a->node.topology, b->node.topology);
    assert_slices_equal(a->node.host_name, b->node.host_name);
    assert_int_equal(a->node.wished_rank, b->node.wished_rank);
    assert_true(a->node.pid == b->node.pid);
    assert_memory_equal(a->node.identity, b->node.identity, sizeof a->node.identity);
    assert_int_equal(a->node.min_nodes, b->node.min_nodes);
    assert_int_equal(a->node.max_nodes, b->node.max_nodes);
    assert_int_equal(a->node.local_world_size, b->node.local_world_size);
    assert_int_equal(a->node.store_port, b->node.store_port);
    assert_int_equal(a->node.uses_agent_store, b->node.uses_agent_store);
    assert_true(a->node.last_round == b->node.last_round);
    assert_true(a->node.last_author == b->node.last_author);
    assert_true(a->node.stop_ms == b->node.stop_ms);
    assert_int_equal(a->node.last_world_size, b->node.last_world_size);
    assert_true(a->world.round == b->world.round);
    assert_true(a->world.author == b->world.author);
    assert_int_equal(a->node.last_group_rank, b->node.last_group_rank);
    assert_int_equal(a->node.last_host_rank, b->node.last_host_rank);
    assert_int_equal(a->node.fate, b->node.fate);
    assert_true(a->node.known_round == b->node.known_round);
    assert_true(a->node.endpoints == b->node.endpoints);
    assert_int_equal(a->node.is_done, b->node.is_done);
    assert_charges_equal(&a->node.charges, &b->node.charges);
    assert_int_equal(a->node.is_host, b->node.is_host);
    assert_int_equal(a->node.past_count, b->node.past_count);
    assert_pasts_equal(a->node.pasts, b->node.pasts, COORDINATOR_PASTS_MAX);
    assert_pasts_equal(&a->proposal.world, &b->proposal.world, 1);
    assert_int_equal(a->proposal.past_count, b->proposal.past_count);
    assert_pasts_equal(a->proposal.pasts, b->proposal.pasts, COORDINATOR_PASTS_MAX);
    assert_true(a->round == b->round);
    assert_true(a->stamp_ms == b->stamp_ms);
    assert_int_equal(a->has_host, b->has_host);
    assert_true(a->lease_ms == b->lease_ms);
    assert_true(a->received_count == b->received_count);
    assert_true(a->node.session == b->node.session);
    assert_true(a->world.lease_ms == b->world.lease_ms);
    assert_int_equal(a->world.host_rank, b->world.host_rank);
    assert_charges_equal(&a->world.charges, &b->world.charges);
    assert_int_equal(a->world.max_restarts, b->world.max_restarts);
    assert_int_equal(a->world.group_rank, b->world.group_rank);
    assert_int_equal(a->world.group_world_size, b->world.group_world_size);
    assert_int_equal(a->world.base_global_rank, b->world.base_global_rank);
    assert_int_equal(a->world.global_world_size, b->world.global_world_size);
    assert_int_equal(a->world.base_role_rank, b->world.base_role_rank);
    assert_int_equal(a->world.role_world_size, b->world.role_world_size);
    assert_slices_equal(a->world.master_addr, b->world.master_addr);
    assert_int_equal(a->world.master_port, b->world.master_port);
    assert_int_equal(a->world.uses_agent_store, b->world.uses_agent_store);
    assert_int_equal(a->change, b->change);
    assert_int_equal(a->status, b->status);
    assert_true(a->grace_ms == b->grace_ms);
    assert_int_equal(a->is_last, b->is_last);
    assert_slices_equal(a->report, b->report);
    assert_int_equal(a->is_final, b->is_final);
    assert_int_equal(a->has_failed, b->has_failed);
    assert_slices_equal(a->cause, b->cause);
    assert_int_equal(a->service.is_serving, b->service.is_serving);
    assert_int_equal(a->service.is_running, b->service.is_running);
    assert_true(a->service.round == b->service.round);
    assert_int_equal(a->service.member_count, b->service.member_count);
    assert_memory_equal(a->nonce, b->nonce, sizeof a->nonce);
    assert_memory_equal(a->tag, b->tag, sizeof a->tag);
    assert_slices_equal(a->text, b->text);
}

static void there_and_back(void **state) {
    struct coordinator_message messages[KINDS], got;
    (void)state;
    for (size_t i = 0; i < examples(messages); i++) {
        struct buf frame;
        size_t used = 0;
        put(&frame, &messages[i]);
        assert_int_equal(buf_append(&frame, "more", 4), 0);
        assert_int_equal(coordinator_wire_get(buf_bytes(&frame), frame.len, is_agents(&messages[i]), &got, &used),
                         COORDINATOR_COMPLETE);
        assert_int_equal(used, frame.len - 4);
        assert_messages_equal(&got, &messages[i]);
        /* The other side never says this. */
        assert_int_equal(coordinator_wire_get(buf_bytes(&frame), frame.len, !is_agents(&messages[i]), &got, &used),
                         COORDINATOR_MALFORMED);
        buf_done(&frame);
    }
}

/* The examples of docs/formats/coordinator.md. */
static void known_bytes(void **state) {
    static const uint8_t join[] = "\xaf\0\0\0\x01"                                 /* length, kind */
                                  "\x03\0"                                         /* version */
                                  "\x67\x12\0\0\0\0\0\0"                           /* pid */
                                  "\x08\x07\x06\x05\x04\x03\x02\x01"               /* identity */
                                  "\x18\x17\x16\x15\x14\x13\x12\x11"               /* */
                                  "\x0b\0\0\0\0\0\0\0"                             /* session */
                                  "\x02\0\0\0\x08\0\0\0\x04\0\0\0"                 /* nodes, workers */
                                  "\x3c\x73\x01"                                   /* store port, agent's */
                                  "\x03\0\0\0\0\0\0\0"                             /* last round */
                                  "\x38\x37\x36\x35\x34\x33\x32\x31"               /* its author */
                                  "\x06\0\0\0"                                     /* nodes */
                                  "\x05\0\0\0\x02\0\0\0\x03"                       /* rank, host's rank, fate */
                                  "\x0c\0\0\0\0\0\0\0"                             /* round heard of */
                                  "\x28\x27\x26\x25\x24\x23\x22\x21\x01"           /* endpoints, done */
                                  "\x07\0\0\0\x08\0\0\0\x09\0\0\0\x01\0"           /* charges, host, pasts */
                                  "\x03\0job\x08\0"                                /* run id */
                                  "10.0.0.7\x07\0trainer\x0d\0switch7/rack3"       /* address, role, topology */
                                  "\xa8\x61\0\0\0\0\0\0"                           /* stop */
                                  "\x0c\0gpu7.cluster\x06\0\0\0";                  /* host name, wished rank */
    static const uint8_t told[] = "\x69\0\0\0\x10"                                 /* length, kind */
                                  "\x04\0\0\0\0\0\0\0"                             /* round */
                                  "\x48\x47\x46\x45\x44\x43\x42\x41"               /* author */
                                  "\x01\0\0\0\x03\0\0\0\x04\0\0\0\x0c\0\0\0"       /* ranks and sizes: group, global */
                                  "\x02\0\0\0\x08\0\0\0\x02\0\0\0"                 /* role; host's rank */
                                  "\x01\0\0\0\x02\0\0\0\x03\0\0\0\x05\0\0\0"       /* charges, allowed failures */
                                  "\x20\xbf\x02\0\0\0\0\0"                         /* lease */
                                  "\x3c\x73\x01\x0e\0"                             /* port, agent's */
                                  "node-a.cluster\x0f\0node b has left";           /* master address, what changed */
    static const uint8_t heard[] = "\x1c\0\0\0\x16\x02\x01\0\0\0\0\0\0\x01"        /* stamp, host */
                                   "\x20\xbf\x02\0\0\0\0\0\x06\0\0\0\0\0\0\0\0\0"; /* lease, received; text */
    static const uint8_t engine[] = "\x15\0\0\0\x0d\x12\0mpi (as asked for)";
    static const uint8_t refused[] = "\x14\0\0\0\x14\xf0\xff\xff\xff\x0d\0other counts!";
    const struct coordinator_message messages[] = {
        {.kind = COORDINATOR_JOIN, .node = node},
        {.kind = COORDINATOR_WORLD, .world = world, .text = text_of("node b has left")},
        {.kind = COORDINATOR_REFUSED, .status = MUSTER_EMISMATCH, .text = text_of("other counts!")},
        {.kind = COORDINATOR_HEARD, .stamp_ms = 258, .has_host = true, .lease_ms = 180000, .received_count = 6},
        {.kind = COORDINATOR_ENGINE, .text = text_of("mpi (as asked for)")},
    };
    const struct kv_slice expected[] = {{join, sizeof join - 1},
                                        {told, sizeof told - 1},
                                        {refused, sizeof refused - 1},
                                        {heard, sizeof heard - 1},
                                        {engine, sizeof engine - 1}};
    (void)state;
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        struct buf frame;
        put(&frame, &messages[i]);
        assert_int_equal(frame.len, expected[i].len);
        assert_memory_equal(buf_bytes(&frame), expected[i].data, expected[i].len);
        buf_done(&frame);
    }
}

/* In memory of its own size, so that a sanitizer sees a read beyond it. */
static enum coordinator_parse get_exactly(const uint8_t *bytes, size_t len, bool from_agent,
                                          struct coordinator_message *out, size_t *used, uint8_t **copy) {
    *copy = malloc(len > 0 ? len : 1);
    assert_non_null(*copy);
    memcpy(*copy, bytes, len);
    return coordinator_wire_get(*copy, len, from_agent, out, used);
}

static void every_cut_waits_for_more(void **state) {
    struct coordinator_message messages[KINDS], got;
    (void)state;
    for (size_t i = 0; i < examples(messages); i++) {
        struct buf frame;
        put(&frame, &messages[i]);
        for (size_t len = 0; len < frame.len; len++) {
            size_t used = 0;
            uint8_t *copy;
            assert_int_equal(get_exactly(buf_bytes(&frame), len, is_agents(&messages[i]), &got, &used, &copy),
                             COORDINATOR_MORE);
            free(copy);
        }
        buf_done(&frame);
    }
}

/* A frame that says it is shorter, or longer, than its fields. */
static void every_other_length_is_malformed(void **state) {
    struct coordinator_message messages[KINDS], got;
    (void)state;
    for (size_t i = 0; i < examples(messages); i++) {
        struct buf frame;
        put(&frame, &messages[i]);
        size_t right = frame.len - 4;
        assert_int_equal(buf_append(&frame, (const char[16]){0}, 16), 0);
        for (size_t length = 0; length <= right + 16; length++) {
            struct bytes_writer head = {.data = buf_bytes(&frame), .size = 4};
            size_t used = 0;
            uint8_t *copy;
            bytes_put_number(&head, length, 4);
            enum coordinator_parse parse =
                get_exactly(buf_bytes(&frame), 4 + length, is_agents(&messages[i]), &got, &used, &copy);
            /* Without its kind it is known to be malformed; so is it with fields cut or added. */
            assert_int_equal(parse, length == right ? COORDINATOR_COMPLETE : COORDINATOR_MALFORMED);
            free(copy);
        }
        buf_done(&frame);
    }
}

/* Whatever one byte becomes: what is accepted would be written with the very same bytes, so it is within range. */
static void every_damaged_byte_is_seen_or_harmless(void **state) {
    struct coordinator_message messages[KINDS], got;
    (void)state;
    for (size_t i = 0; i < examples(messages); i++) {
        struct buf frame;
        put(&frame, &messages[i]);
        for (size_t at = 0; at < frame.len; at++) {
            uint8_t *byte = buf_bytes(&frame) + at, right = *byte;
            for (unsigned flip = 1; flip < 256; flip++) {
                size_t used = 0;
                uint8_t *copy;
                *byte = (uint8_t)(right ^ flip);
                if (get_exactly(buf_bytes(&frame), frame.len, is_agents(&messages[i]), &got, &used, &copy) ==
                    COORDINATOR_COMPLETE) {
                    struct buf again;
                    put(&again, &got);
                    assert_int_equal(again.len, used);
                    assert_memory_equal(buf_bytes(&again), copy, used);
                    buf_done(&again);
                }
                free(copy);
            }
            *byte = right;
        }
        buf_done(&frame);
    }
}

static void lengths_and_kinds_are_refused_at_once(void **state) {
    static const struct {
        uint8_t bytes[5];
        size_t len;
        enum coordinator_parse parse;
    } cases[] = {
        {{0}, 3, COORDINATOR_MORE},
        {{0, 0, 0, 0}, 4, COORDINATOR_MALFORMED},
        {{0xfc, 0x1f, 0, 0}, 4, COORDINATOR_MORE}, /* 8188 and these four: the longest */
        {{0xfd, 0x1f, 0, 0}, 4, COORDINATOR_MALFORMED},
        {{0xff, 0xff, 0xff, 0xff}, 4, COORDINATOR_MALFORMED},
        {{9, 0, 0, 0, 1}, 5, COORDINATOR_MORE},
        {{9, 0, 0, 0, 0}, 5, COORDINATOR_MALFORMED},
        {{9, 0, 0, 0, COORDINATOR_RESUME + 1}, 5, COORDINATOR_MALFORMED},
        {{9, 0, 0, 0, COORDINATOR_WORLD}, 5, COORDINATOR_MALFORMED},
    };
    struct coordinator_message got;
    size_t used = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(coordinator_wire_get(cases[i].bytes, cases[i].len, true, &got, &used), cases[i].parse);
    }
}

static void expect_put(const struct coordinator_message *message, int expected) {
    struct buf frame;
    buf_init(&frame, FRAMES_ROOM);
    assert_int_equal(buf_append(&frame, "kept", 4), 0);
    assert_int_equal(coordinator_wire_put(&frame, message), expected);
    assert_int_equal(frame.len == 4, expected != MUSTER_OK);
    assert_memory_equal(buf_bytes(&frame), "kept", 4);
    buf_done(&frame);
}

/* The longest of each string passes, one byte more does not. */
static void strings_up_to_their_limits(void **state) {
    static uint8_t letters[COORDINATOR_CAUSE_BYTES_MAX + 1];
    (void)state;
    memset(letters, 'x', sizeof letters);
    struct coordinator_message join = {.kind = COORDINATOR_JOIN, .node = node};
    struct coordinator_message told = {.kind = COORDINATOR_WORLD, .world = world};
    struct kv_slice *names[] = {&join.node.run_id, &join.node.addr, &join.node.role, &join.node.topology,
                                &join.node.host_name};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *names[i] = kv_slice_of(letters, COORDINATOR_NAME_BYTES_MAX + 1);
        expect_put(&join, MUSTER_ELIMIT);
        *names[i] = kv_slice_of(letters, COORDINATOR_NAME_BYTES_MAX);
        expect_put(&join, MUSTER_OK); /* the others stay as long as they can be */
    }
    told.world.master_addr = kv_slice_of(letters, COORDINATOR_NAME_BYTES_MAX);
    told.text = kv_slice_of(letters, COORDINATOR_TEXT_BYTES_MAX);
    expect_put(&told, MUSTER_OK);
    told.text.len++;
    expect_put(&told, MUSTER_ELIMIT);
    told.text.len = SIZE_MAX;
    expect_put(&told, MUSTER_ELIMIT);
    told.text.len = 0;
    told.world.master_addr.len++;
    expect_put(&told, MUSTER_ELIMIT);
    struct coordinator_message closed = {.kind = COORDINATOR_CLOSED,
                                         .cause = kv_slice_of(letters, COORDINATOR_CAUSE_BYTES_MAX),
                                         .text = kv_slice_of(letters, COORDINATOR_TEXT_BYTES_MAX)};
    expect_put(&closed, MUSTER_OK);
    closed.cause.len++;
    expect_put(&closed, MUSTER_ELIMIT);
    struct coordinator_message piece = {.kind = COORDINATOR_REPORT};
    static uint8_t report[COORDINATOR_REPORT_BYTES_MAX + 1];
    piece.report = kv_slice_of(report, COORDINATOR_REPORT_BYTES_MAX);
    expect_put(&piece, MUSTER_OK);
    piece.report.len++;
    expect_put(&piece, MUSTER_ELIMIT);
}

#define WITH_NODE(field, value)                                                                                        \
    {                                                                                                                  \
        struct coordinator_message join = {.kind = COORDINATOR_JOIN, .node = node};                                    \
        join.node.field = (value);                                                                                     \
        expect_put(&join, MUSTER_EINVAL);                                                                              \
    }
#define WITH_PAST(i, field, value)                                                                                     \
    {                                                                                                                  \
        struct coordinator_message join = join_with_pasts(), proposed = propose();                                     \
        join.node.pasts[i].field = (value);                                                                            \
        expect_put(&join, MUSTER_EINVAL);                                                                              \
        proposed.proposal.pasts[i].field = (value);                                                                    \
        expect_put(&proposed, MUSTER_EINVAL);                                                                          \
    }
#define WITH_WORLD(field, value)                                                                                       \
    {                                                                                                                  \
        struct coordinator_message told = {.kind = COORDINATOR_WORLD, .world = world};                                 \
        told.world.field = (value);                                                                                    \
        expect_put(&told, MUSTER_EINVAL);                                                                              \
    }

/* What is never written; the decoder looks with the same eyes (every_damaged_byte...). */
static void values_out_of_range(void **state) {
    (void)state;
    WITH_NODE(run_id, text_of(""))
    WITH_NODE(run_id, text_of("two\nlines"))
    WITH_NODE(run_id, kv_slice_of("a\0b", 3))
    WITH_NODE(run_id, text_of("\xc3("))
    WITH_NODE(role, text_of("\x1b[31m"))
    WITH_NODE(topology, text_of("\x7f"))
    WITH_NODE(host_name, text_of("\x7f"))
    WITH_NODE(addr, text_of("10.0.0.1 "))
    WITH_NODE(addr, text_of("a/b"))
    WITH_NODE(addr, kv_slice_of("a\0", 2))
    WITH_NODE(addr, text_of("{}"))
    WITH_NODE(pid, 0)
    WITH_NODE(pid, -1)
    WITH_NODE(min_nodes, 0)
    WITH_NODE(min_nodes, node.max_nodes + 1)
    WITH_NODE(local_world_size, 0)
    WITH_NODE(local_world_size, COORDINATOR_LOCAL_WORLD_SIZE_MAX + 1)
    WITH_NODE(store_port, 0)
    WITH_NODE(last_round, 0)
    WITH_NODE(past_count, COORDINATOR_PASTS_MAX + 1)
    WITH_PAST(0, round, 0)
    WITH_PAST(0, round, pasts[1].round)
    WITH_PAST(0, size, 0)
    WITH_PAST(0, group_rank, pasts[0].size)
    WITH_PAST(0, host_rank, pasts[0].size)
    WITH_PAST(0, fate, (enum coordinator_fate)(COORDINATOR_DEAD + 1))
    WITH_PAST(1, base_round, pasts[1].round)
    WITH_PAST(1, base_count, pasts[1].size + 1)
    expect_put(&(struct coordinator_message){.kind = COORDINATOR_SERVES, .service = {.is_running = true}},
               MUSTER_EINVAL);
    WITH_NODE(last_world_size, 0)
    WITH_NODE(last_group_rank, node.last_world_size)
    WITH_NODE(last_host_rank, node.last_world_size)
    WITH_NODE(stop_ms, COORDINATOR_GRACE_MS_MAX + 1)
    WITH_NODE(fate, (enum coordinator_fate)(COORDINATOR_DEAD + 1))
    WITH_WORLD(round, 0)
    WITH_WORLD(group_rank, world.group_world_size)
    WITH_WORLD(group_world_size, world.global_world_size + 1)
    WITH_WORLD(base_global_rank, world.global_world_size)
    WITH_WORLD(base_role_rank, world.role_world_size)
    WITH_WORLD(role_world_size, world.global_world_size + 1)
    WITH_WORLD(host_rank, world.group_world_size)
    WITH_WORLD(master_addr, text_of(""))
    WITH_WORLD(master_port, 0)
    static const int32_t statuses[] = {0, 1, MUSTER_EABORTED - 1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        expect_put(&(struct coordinator_message){.kind = COORDINATOR_REFUSED, .status = statuses[i]}, MUSTER_EINVAL);
    }
    expect_put(&(struct coordinator_message){.kind = COORDINATOR_STOP, .grace_ms = COORDINATOR_GRACE_MS_MAX + 1},
               MUSTER_EINVAL);
    expect_put(&(struct coordinator_message){.kind = COORDINATOR_PROBE}, MUSTER_EINVAL);
    expect_put(&(struct coordinator_message){.kind = COORDINATOR_SERVES, .service = {.member_count = 1}},
               MUSTER_EINVAL);
    for (int change = 0; change < 6; change++) {
        expect_put(&(struct coordinator_message){.kind = COORDINATOR_CHANGE, .change = (enum coordinator_change)change},
                   change >= 1 && change <= 3 ? MUSTER_OK : MUSTER_EINVAL);
    }
}

static void the_first_round_and_any_address(void **state) {
    static const char *const addresses[] = {"", "0.0.0.0", "::", "fe80::1%eth0", "Node_7.example-site"};
    (void)state;
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        struct coordinator_message join = {.kind = COORDINATOR_JOIN, .node = node};
        join.node.last_author = join.node.last_round = join.node.last_world_size = join.node.last_group_rank =
            join.node.last_host_rank = 0;
        join.node.fate = COORDINATOR_UNKNOWN;
        join.node.is_done = false;
        join.node.stop_ms = 0;
        join.node.topology = join.node.role = kv_slice_of(NULL, 0);
        join.node.addr = text_of(addresses[i]);
        expect_put(&join, MUSTER_OK);
    }
}

/* A sentence may hold what a failed worker printed: it arrives as one line of text. */
static void sentences_are_made_printable(void **state) {
    static const char said[] = "a\nb\tc\x1b[0m\x7f"
                               "d\xff\xc3(\0e é",
                      heard[] = "a b c [0m d?\?( e é";
    struct coordinator_message failed = {.kind = COORDINATOR_FAILED, .text = {(const uint8_t *)said, sizeof said - 1}};
    struct coordinator_message got;
    struct buf frame;
    size_t used;
    (void)state;
    put(&frame, &failed);
    assert_int_equal(coordinator_wire_get(buf_bytes(&frame), frame.len, true, &got, &used), COORDINATOR_COMPLETE);
    assert_int_equal(got.text.len, sizeof heard - 1);
    assert_memory_equal(got.text.data, heard, sizeof heard - 1);
    buf_done(&frame);
}

static void another_version_is_named(void **state) {
    struct coordinator_message join = {.kind = COORDINATOR_JOIN, .node = node}, got;
    struct buf frame;
    size_t used;
    (void)state;
    put(&frame, &join);
    buf_bytes(&frame)[5] = 1;
    assert_int_equal(coordinator_wire_get(buf_bytes(&frame), frame.len, true, &got, &used), COORDINATOR_MALFORMED);
    assert_non_null(strstr(muster_detail(),
                           "JOIN: the agent that sent it speaks protocol 1, the host of the rendezvous "
                           "protocol 3: "));
    buf_done(&frame);
}

static void names_of_kinds(void **state) {
    (void)state;
    assert_string_equal(coordinator_kind_name(COORDINATOR_JOIN), "JOIN");
    assert_string_equal(coordinator_kind_name(COORDINATOR_ALL_DONE), "ALL_DONE");
    assert_string_equal(coordinator_kind_name(0), "?");
    assert_string_equal(coordinator_kind_name(1000), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(known_bytes),
        cmocka_unit_test(every_cut_waits_for_more),
        cmocka_unit_test(every_other_length_is_malformed),
        cmocka_unit_test(every_damaged_byte_is_seen_or_harmless),
        cmocka_unit_test(lengths_and_kinds_are_refused_at_once),
        cmocka_unit_test(strings_up_to_their_limits),
        cmocka_unit_test(values_out_of_range),
        cmocka_unit_test(the_first_round_and_any_address),
        cmocka_unit_test(sentences_are_made_printable),
        cmocka_unit_test(another_version_is_named),
        cmocka_unit_test(names_of_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
