/* Bytes between an agent and its coordinator are changed, dropped, doubled or cut, once, at each place of a job in
 * turn. It costs a new connection, and perhaps a restart: never the job. Two whole rendezvous on one loop, the second
 * one behind a relay that does it; or that closes a connection when no other one can be made. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/str.h"
#include "rendezvous/rdzv_nodes_test_support.h"

enum mangle { FLIP, DROP, DOUBLE, CUT, MALFORM };
enum { TO_COORDINATOR, TO_AGENT, DIRECTION_COUNT };
enum {
    PIECES = 6, /* of each direction: what is said until the second world, and some signs of life */
    BEATS = 2,  /* seen after that */
    BEAT_MS = 10,
    LINKS_MAX = 64,
    PIECE_BYTES = 65536
};

struct link;

struct end {
    uv_tcp_t tcp;
    struct link *link;
    int direction; /* of what is read here */
};

struct link {
    struct relay *relay;
    struct end agent, coordinator;
    uv_connect_t connect;
    bool is_closing;
};

struct relay {
    uv_loop_t *loop;
    uv_tcp_t listener;
    struct sockaddr_in to;
    struct link links[LINKS_MAX];
    size_t link_count;
    char endpoint[64];
    char room[PIECE_BYTES];
    enum mangle mangle;
    int direction, piece; /* which one is mangled */
    int counts[DIRECTION_COUNT];
    bool is_done;
};

static struct relay *the_relay; /* the predicates know no context */
static int stage, beats_until;

/* ---- the relay ---- */

static void close_link(struct link *link) {
    if (!link->is_closing) {
        link->is_closing = true;
        uv_close((uv_handle_t *)&link->agent.tcp, NULL);
        uv_close((uv_handle_t *)&link->coordinator.tcp, NULL);
    }
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    (void)suggested;
    struct relay *relay = ((struct end *)handle)->link->relay;
    *out = uv_buf_init(relay->room, PIECE_BYTES);
}

static void pass_on(struct end *from, char *bytes, size_t len) {
    uv_buf_t piece = uv_buf_init(bytes, (unsigned)len);
    struct link *link = from->link;
    uv_tcp_t *to = from->direction == TO_COORDINATOR ? &link->coordinator.tcp : &link->agent.tcp;
    if (len > 0 && uv_try_write((uv_stream_t *)to, &piece, 1) != (int)len) {
        close_link(link);
    }
}

static void mangle(struct end *from, char *bytes, size_t len) {
    struct relay *relay = from->link->relay;
    relay->is_done = true;
    switch (relay->mangle) {
    case FLIP:
        bytes[len / 2] = (char)(bytes[len / 2] ^ 4);
        pass_on(from, bytes, len);
        break;
    case DOUBLE:
        pass_on(from, bytes, len);
        pass_on(from, bytes, len);
        break;
    case MALFORM: /* no frame begins so */
        memset(bytes, 0xff, len < 8 ? len : 8);
        pass_on(from, bytes, len);
        break;
    case CUT:
        pass_on(from, bytes, len / 2);
        close_link(from->link);
        break;
    default: /* DROP */
        break;
    }
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *room) {
    struct end *from = (struct end *)stream;
    struct relay *relay = from->link->relay;
    if (got < 0) {
        close_link(from->link);
    } else if (got > 0 && !relay->is_done && from->direction == relay->direction &&
               relay->counts[from->direction] == relay->piece) {
        mangle(from, room->base, (size_t)got);
    } else {
        pass_on(from, room->base, (size_t)got);
    }
    relay->counts[from->direction] += got > 0;
}

static void on_connected(uv_connect_t *request, int status) {
    struct link *link = request->data;
    if (link->is_closing || status != 0) {
        if (status != UV_ECANCELED) {
            close_link(link);
        }
        return;
    }
    (void)uv_read_start((uv_stream_t *)&link->agent.tcp, on_room, on_read);
    (void)uv_read_start((uv_stream_t *)&link->coordinator.tcp, on_room, on_read);
}

static void on_caller(uv_stream_t *listener, int status) {
    struct relay *relay = listener->data;
    assert_int_equal(status, 0);
    assert_true(relay->link_count < LINKS_MAX);
    struct link *link = &relay->links[relay->link_count++];
    *link = (struct link){.relay = relay};
    link->agent = (struct end){.link = link, .direction = TO_COORDINATOR};
    link->coordinator = (struct end){.link = link, .direction = TO_AGENT};
    (void)uv_tcp_init(relay->loop, &link->agent.tcp);
    (void)uv_tcp_init(relay->loop, &link->coordinator.tcp);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&link->agent.tcp), 0);
    link->connect.data = link;
    assert_int_equal(
        uv_tcp_connect(&link->connect, &link->coordinator.tcp, (const struct sockaddr *)&relay->to, on_connected), 0);
}

static void relay_open(struct relay *relay, struct fixture *f) {
    struct sockaddr_in at;
    int len = sizeof at;
    relay->loop = &f->loop;
    (void)uv_ip4_addr("127.0.0.1", f->port, &relay->to);
    (void)uv_ip4_addr("127.0.0.1", 0, &at);
    (void)uv_tcp_init(&f->loop, &relay->listener);
    relay->listener.data = relay;
    assert_int_equal(uv_tcp_bind(&relay->listener, (const struct sockaddr *)&at, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&relay->listener, 16, on_caller), 0);
    assert_int_equal(uv_tcp_getsockname(&relay->listener, (struct sockaddr *)&at, &len), 0);
    (void)str_format(relay->endpoint, sizeof relay->endpoint, "127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
}

static void relay_close(struct relay *relay) {
    uv_close((uv_handle_t *)&relay->listener, NULL);
    for (size_t i = 0; i < relay->link_count; i++) {
        close_link(&relay->links[i]);
    }
}

/* ---- a job ---- */

static bool is_together(const struct fixture *f) {
    const struct node *a = &f->nodes[0], *b = &f->nodes[1];
    return node_in_world(a, 2) && node_in_world(b, 2) && a->world.round == b->world.round;
}

/* They meet, a worker fails, they meet again, and signs of life are heard; whatever happens meanwhile. */
static bool has_lived(const struct fixture *f) {
    if (f->nodes[0].failed || f->nodes[1].failed) {
        return true;
    }
    if (stage == 0 && is_together(f)) {
        stage = 1;
        rdzv_worker_failed(
            f->nodes[1].rdzv,
            &(struct rdzv_cause){.rank = 1, .pid = 1, .wait_status = 1 << 8, .how = "exited with code 1"});
        rdzv_join(f->nodes[1].rdzv);
        return false;
    }
    if (stage == 1 && is_together(f) && f->nodes[1].world.round > 1) {
        stage = 2;
        beats_until = the_relay->counts[TO_AGENT] + BEATS;
    }
    return stage == 2 && is_together(f) && the_relay->is_done && the_relay->counts[TO_AGENT] >= beats_until;
}

/* What all jobs here have; the second node reaches the first one through `relay`. */
static void start_both(struct fixture *f, struct relay *relay) {
    f->options.backend = RDZV_BACKEND_MUSTER;
    f->options.conf.keep_alive_interval_ms = BEAT_MS;
    f->options.conf.keep_alive_max_attempt = 60;
    f->nodes[0].rejoin = f->nodes[1].rejoin = true;
    nodes_start(f, 0);
    relay_open(relay, f);
    f->options.endpoint = relay->endpoint;
    f->options.conf.is_host = 0;
    nodes_start(f, 1);
}

static void live(const char *secret, enum mangle how, int direction, int piece) {
    void *state = NULL;
    struct secret_text text;
    assert_int_equal(nodes_setup(&state), 0);
    struct fixture *f = state;
    struct relay *relay = calloc(1, sizeof *relay);
    assert_non_null(relay);
    the_relay = relay;
    stage = 0;
    relay->mangle = how;
    relay->direction = direction;
    relay->piece = piece;
    if (secret) {
        assert_int_equal(secret_text_load(NULL, secret, &text), 0);
        f->options.secret = &text;
    }
    start_both(f, relay);
    nodes_run_until(f, has_lived);
    if (f->nodes[0].failed || f->nodes[1].failed) {
        fail_msg("mangle %d, direction %d, piece %d: %s%s", (int)how, direction, piece, f->nodes[0].why,
                 f->nodes[1].why);
    }
    relay_close(relay);
    assert_int_equal(nodes_teardown(&state), 0);
    free(relay);
}

static void live_all(const char *secret, enum mangle how, int first) {
    for (int direction = 0; direction < DIRECTION_COUNT; direction++) {
        for (int piece = first; piece < PIECES; piece++) {
            live(secret, how, direction, piece);
        }
    }
}

static const char secret_of_job[] = "the secret of this job";

static void one_bit_is_changed(void **state) {
    (void)state;
    live_all(secret_of_job, FLIP, 0);
}

static void one_piece_is_dropped(void **state) {
    (void)state;
    live_all(secret_of_job, DROP, 1); /* without the first nobody has said anything */
}

static void one_piece_is_doubled(void **state) {
    (void)state;
    live_all(secret_of_job, DOUBLE, 0);
}

static void one_piece_is_cut(void **state) {
    (void)state;
    live_all(secret_of_job, CUT, 0);
}

static void one_piece_is_cut_without_a_secret(void **state) {
    (void)state;
    live_all(NULL, CUT, 0);
}

static void one_piece_is_doubled_without_a_secret(void **state) {
    (void)state;
    live_all(NULL, DOUBLE, 0);
}

static void one_piece_is_malformed_without_a_secret(void **state) {
    (void)state;
    live_all(NULL, MALFORM, 0);
}

static bool is_second_told(const struct fixture *f) {
    return f->nodes[1].changes > 0 || f->nodes[1].failed != 0;
}

static bool are_together_again(const struct fixture *f) {
    return f->nodes[1].failed != 0 || (is_together(f) && f->nodes[1].worlds == 2);
}

/* The connection ends, and there is no other one at the moment. The coordinator may live. */
static void there_is_no_way_back_at_once(void **state) {
    struct rlimit before, none;
    struct relay *relay = calloc(1, sizeof *relay);
    void *made = NULL;
    (void)state;
    assert_non_null(relay);
    assert_int_equal(nodes_setup(&made), 0);
    struct fixture *f = made;
    relay->is_done = true; /* nothing is mangled */
    start_both(f, relay);
    nodes_run_until(f, is_together);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0; /* a socket needs a descriptor */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    close_link(&relay->links[0]);
    nodes_run_until(f, is_second_told);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    nodes_run_until(f, are_together_again);
    assert_string_equal(f->nodes[1].failed ? f->nodes[1].why : "", "");
    relay_close(relay);
    assert_int_equal(nodes_teardown(&made), 0);
    free(relay);
}

int main(void) {
    (void)signal(SIGPIPE, SIG_IGN); /* as the agent does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bit_is_changed),
        cmocka_unit_test(one_piece_is_dropped),
        cmocka_unit_test(one_piece_is_doubled),
        cmocka_unit_test(one_piece_is_cut),
        cmocka_unit_test(one_piece_is_cut_without_a_secret),
        cmocka_unit_test(one_piece_is_doubled_without_a_secret),
        cmocka_unit_test(one_piece_is_malformed_without_a_secret),
        cmocka_unit_test(there_is_no_way_back_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
