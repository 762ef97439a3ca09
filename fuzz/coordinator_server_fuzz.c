/* Strangers and agents at a coordinator's port: what they send, in which pieces, when they join, when they hang up.
 *
 * Input: one byte says who (its low two bits) does what (the rest), one byte goes with it: the round of a JOIN, or the
 * length of what is sent, which follows. A witness that keeps to the protocol joins first: it understands all that it
 * hears, and when the strangers have gone it alone has a part in the last world, unless one of those that had joined
 * has closed the job. The same again with a secret, which the witness alone knows: then it hears nothing of anybody. */
#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/coordinator/coordinator_server.h"
#include "rendezvous/wire/coordinator_line.h"
#include "store/server/kv_engine_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STRANGERS = 4, TURNS_MAX = 2000, INPUT_BYTES_MAX = 64 * 1024, WITNESS = STRANGERS, NODES_MAX = 3 };
enum action {
    SEND = 0,
    SEND_LAST = 31,
    GREET,
    JOIN,
    FAIL,
    LEAVE,
    DONE,
    CLOSE,
    HANG_UP,
    READ,
    SERVE,
    ASK,
    KNOCK,
    PROVE
};

struct scene {
    uv_loop_t loop;
    struct kv_engine *engine;
    struct coordinator_server *server;
    int strangers[STRANGERS]; /* -1: not there */
    int witness;
    struct buf in;                  /* of the witness */
    struct coordinator_world world; /* its last */
    bool is_over;                   /* it was told that the job is */
    const struct secret *secret;    /* NULL: none */
    struct coordinator_auth auth;   /* the witness's */
};

static void serve(struct scene *scene) {
    struct pollfd poll_fd = {.fd = kv_engine_fd(scene->engine), .events = POLLIN};
    for (unsigned turns = 0; poll(&poll_fd, 1, 0) > 0; turns++) {
        assert(turns < TURNS_MAX);
        kv_engine_turn(scene->engine);
    }
}

static int connect_one(struct scene *scene) {
    int fds[2];
    int code = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds);
    assert(code == 0);
    kv_connection_open(scene->engine, fds[0]);
    return fds[1];
}

/* `scene`: whose witness says it with a tag; NULL: without. */
static void say_sealed(struct scene *scene, int fd, const struct coordinator_message *message) {
    struct buf frame;
    buf_init(&frame, COORDINATOR_LINE_BYTES_MAX);
    int code = coordinator_wire_put(&frame, message);
    code = code == 0 && scene ? coordinator_auth_seal(&scene->auth, scene->secret, &frame, 0) : code;
    assert(code == 0);
    (void)send(fd, buf_bytes(&frame), frame.len, MSG_NOSIGNAL);
    buf_done(&frame);
}

static void say(int fd, const struct coordinator_message *message) {
    say_sealed(NULL, fd, message);
}

static void say_kind(int fd, enum coordinator_kind kind) {
    say(fd, &(struct coordinator_message){.kind = kind, .text = kv_slice_text("so it is")});
}

static struct coordinator_message join_of(uint64_t who, uint64_t round) {
    return (struct coordinator_message){.kind = COORDINATOR_JOIN,
                                        .node = {.run_id = kv_slice_text("job"),
                                                 .addr = kv_slice_text("10.0.0.1"),
                                                 .role = kv_slice_text("default"),
                                                 .pid = 1 + (int64_t)who,
                                                 .identity = {who, who},
                                                 .min_nodes = 1,
                                                 .max_nodes = NODES_MAX,
                                                 .local_world_size = 1,
                                                 .store_port = 29500,
                                                 .last_round = round,
                                                 .last_world_size = round > 0}};
}

static void join(int fd, uint64_t who, uint64_t round) {
    const struct coordinator_message message = join_of(who, round);
    say(fd, &message);
}

static void join_as_witness(struct scene *scene) {
    const struct coordinator_message message = join_of(WITNESS, scene->world.round);
    say_sealed(scene->secret ? scene : NULL, scene->witness, &message);
}

static void greet(int fd) {
    (void)send(fd, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES, MSG_NOSIGNAL);
}

static void witness_hears(struct scene *scene, const struct coordinator_message *message) {
    assert(!scene->is_over && (!scene->secret || scene->world.round == 0)); /* nobody but itself is heard */
    switch (message->kind) {
    case COORDINATOR_WORLD:
        assert(message->world.round > scene->world.round && message->world.group_world_size <= NODES_MAX);
        scene->world = message->world;
        break;
    case COORDINATOR_CHANGE:
        join_as_witness(scene);
        break;
    default:
        assert(message->kind == COORDINATOR_CLOSED);
        scene->is_over = true;
    }
}

static enum coordinator_parse take_frame(struct scene *scene, struct coordinator_message *out, size_t *used) {
    const uint8_t *bytes = buf_bytes(&scene->in);
    size_t len = scene->in.len;
    if (!scene->secret) {
        return coordinator_wire_get(bytes, len, false, out, used);
    }
    enum coordinator_parse parse = coordinator_auth_open(&scene->auth, scene->secret, bytes, len, &len);
    parse = parse == COORDINATOR_COMPLETE ? coordinator_wire_get(bytes, len, false, out, used) : parse;
    *used += COORDINATOR_SEAL_BYTES;
    return parse;
}

/* Until it has heard and answered everything. */
static void serve_witness(struct scene *scene) {
    uint8_t bytes[4096];
    ssize_t got;
    for (serve(scene); (got = recv(scene->witness, bytes, sizeof bytes, 0)) > 0; serve(scene)) {
        struct coordinator_message message;
        enum coordinator_parse parse;
        size_t used = 0;
        int code = buf_append(&scene->in, bytes, (size_t)got);
        assert(code == 0);
        while ((parse = take_frame(scene, &message, &used)) == COORDINATOR_COMPLETE) {
            witness_hears(scene, &message);
            buf_consume(&scene->in, used);
        }
        assert(parse == COORDINATOR_MORE);
    }
    assert(got < 0); /* nobody else's doing ends its connection */
}

/* The witness shows that it knows the secret. */
static void prove(struct scene *scene) {
    static const uint8_t nonce[COORDINATOR_NONCE_BYTES] = {1};
    struct coordinator_message message, challenge;
    uint8_t bytes[256];
    size_t used;
    coordinator_auth_greet(&scene->auth, nonce, &message);
    say(scene->witness, &message);
    serve(scene);
    ssize_t got = recv(scene->witness, bytes, sizeof bytes, 0);
    assert(got > 0);
    enum coordinator_parse parse = coordinator_wire_get(bytes, (size_t)got, false, &challenge, &used);
    assert(parse == COORDINATOR_COMPLETE && challenge.kind == COORDINATOR_CHALLENGE);
    int code = coordinator_auth_prove(&scene->auth, scene->secret, kv_slice_text("job"), &challenge, &message);
    assert(code == 0);
    say(scene->witness, &message);
}

static void open_scene(struct scene *scene) {
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&address};
    const struct coordinator_server_options options = {
        .coordinator = {.run_id = "job", .min_nodes = 1, .max_nodes = NODES_MAX}, .secret = scene->secret};
    int code = coordinator_server_create(&scene->loop, &options, &scene->server);
    assert(code == 0);
    const struct kv_server_options store = {.addresses = addresses,
                                            .address_count = 1,
                                            .guest = coordinator_server_guest(scene->server),
                                            .strangers_max = 2};
    code = kv_engine_create(&store, &scene->engine);
    assert(code == 0);
    memset(scene->strangers, -1, sizeof scene->strangers);
    memset(&scene->world, 0, sizeof scene->world);
    scene->is_over = false;
    buf_init(&scene->in, INPUT_BYTES_MAX);
    scene->witness = connect_one(scene);
    greet(scene->witness);
    if (scene->secret) {
        prove(scene);
    }
    join_as_witness(scene);
    serve_witness(scene);
    assert(scene->world.round == 1);
}

static void close_scene(struct scene *scene) {
    kv_engine_free(scene->engine);
    coordinator_server_close(scene->server);
    (void)uv_run(&scene->loop, UV_RUN_DEFAULT);
    (void)close(scene->witness);
    buf_done(&scene->in);
}

static void hang_up(int *fd) {
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
}

static void act(struct scene *scene, enum action action, int *fd, uint64_t who, uint8_t number) {
    static uint8_t bytes[64 * 1024];
    switch (action) {
    case GREET:
        greet(*fd);
        break;
    case JOIN:
        join(*fd, who, number);
        break;
    case FAIL:
        say_kind(*fd, COORDINATOR_FAILED);
        break;
    case LEAVE:
        say_kind(*fd, COORDINATOR_LEAVE);
        break;
    case DONE:
        say_kind(*fd, COORDINATOR_DONE);
        break;
    case CLOSE:
        say_kind(*fd, COORDINATOR_CLOSE);
        break;
    case HANG_UP:
        hang_up(fd);
        break;
    case ASK:
        say_kind(*fd, COORDINATOR_STATUS);
        break;
    case KNOCK:
        say_kind(*fd, COORDINATOR_GREET);
        break;
    case PROVE:
        say_kind(*fd, COORDINATOR_PROOF);
        break;
    case READ:
        (void)recv(*fd, bytes, sizeof bytes, 0);
        break;
    default:
        serve_witness(scene);
    }
}

static void play(struct scene *scene, const uint8_t *data, size_t size) {
    while (size >= 2) {
        uint64_t who = data[0] % STRANGERS;
        enum action action = data[0] / STRANGERS;
        uint8_t number = data[1];
        int *fd = &scene->strangers[who];
        data += 2;
        size -= 2;
        if (*fd < 0) {
            *fd = connect_one(scene);
        }
        if (action > SEND_LAST) {
            act(scene, action, fd, who, number);
            continue;
        }
        size_t len = number < size ? number : size;
        (void)send(*fd, data, len, MSG_NOSIGNAL);
        data += len;
        size -= len;
    }
}

static void play_and_look(struct scene *scene, const uint8_t *data, size_t size) {
    open_scene(scene);
    play(scene, data, size);
    serve_witness(scene);
    for (size_t i = 0; i < STRANGERS; i++) {
        hang_up(&scene->strangers[i]);
        serve_witness(scene);
    }
    struct coordinator_view view;
    coordinator_server_look(scene->server, &view);
    assert(view.member_count == 1);
    assert(scene->is_over ||
           (view.phase == COORDINATOR_RUNNING && view.round == scene->world.round && view.active_count == 1));
    close_scene(scene);
}

static struct secret *make_secret(void) {
    struct secret_text text;
    struct secret *secret;
    int code = secret_text_load(NULL, "the secret of this job", &text);
    code = code ? code : secret_create(&text, &secret);
    assert(code == 0);
    return secret;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct scene scene;
    static struct secret *secret;
    if (!secret) {
        int failed = uv_loop_init(&scene.loop);
        assert(failed == 0);
        secret = make_secret();
    }
    scene.secret = NULL;
    play_and_look(&scene, data, size);
    scene.secret = secret;
    play_and_look(&scene, data, size);
    return 0;
}
