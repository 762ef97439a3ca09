/* Messages that the kernel sends out of their buffers: a send is done when the kernel has given its buffer back, and
 * not before; a message that was taken back never becomes whole elsewhere; and what the kernel refuses is copied.
 *
 * On loopback the kernel copies in the end, but only what the peer has room for: the rest stays where it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

enum { READY, HELD, OVERWRITTEN, KILLED, ENDED };
enum { SHORT = 100, MIB = 1 << 20, LONG = 8 * MIB, ROUNDS = 4, OVER = 0xee };

static const struct job_options always = {.stream_count = 1, .zero_copy = {.bytes_min = 64 << 10, .always = true}},
                                always_4 = {.stream_count = 4, .zero_copy = {.bytes_min = 64 << 10, .always = true}},
                                where_it_helps = {.stream_count = 1, .zero_copy = {.bytes_min = 64 << 10}};

static uint8_t *make_buffer(size_t bytes) {
    uint8_t *buffer = malloc(bytes);
    job_check(buffer != NULL);
    memset(buffer, 0, bytes);
    return buffer;
}

static uint64_t writes_of(struct job_rank *rank) {
    p2p_lock(rank->p2p);
    uint64_t writes = rank->p2p->zero_copy_writes;
    p2p_unlock(rank->p2p);
    return writes;
}

static uint32_t held_by(struct job_rank *rank, const struct p2p_request *request) {
    p2p_lock(rank->p2p);
    uint32_t count = request->held_count;
    p2p_unlock(rank->p2p);
    return count;
}

/* Sends, and has something else in the buffer at once. */
static void send_and_overwrite(struct job_rank *rank, uint64_t tag, uint8_t *buffer, size_t bytes) {
    job_fill(buffer, bytes, (uint32_t)tag);
    job_check(job_send(rank, job_envelope(1, tag), buffer, bytes) == 0);
    memset(buffer, OVER, bytes);
}

static void receive_and_compare(struct job_rank *rank, uint64_t tag, uint8_t *buffer, size_t bytes) {
    job_check(job_receive(rank, job_envelope(0, tag), buffer, bytes) == 0);
    job_check(job_is_filled(buffer, bytes, (uint32_t)tag));
}

static void pass(struct job_rank *rank, uint64_t tag, uint8_t *buffer, size_t bytes) {
    (rank->rank == 0 ? send_and_overwrite : receive_and_compare)(rank, tag, buffer, bytes);
}

/* ---- whole messages ---- */

static int passes_many(struct job_rank *rank, void *argument) {
    static const size_t sizes[] = {SHORT, MIB, MIB + 13, 3 * MIB + 1, (320 << 10) + 3, LONG};
    uint8_t *buffer = make_buffer(LONG);
    (void)argument;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            pass(rank, 10 * round + i, buffer, sizes[i]);
        }
    }
    job_check((writes_of(rank) > 0) == (rank->rank == 0));
    free(buffer);
    return 0;
}

static void a_buffer_may_be_overwritten_when_its_send_is_done(void **state) {
    (void)state;
    job_run(2, passes_many, NULL, &always);
    job_run(2, passes_many, NULL, &always_4);
}

/* Both directions and several messages at once, as in a collective: what waits for its tail does not hold up others. */
static int passes_side_by_side(struct job_rank *rank, void *argument) {
    enum { COUNT = 6 };
    struct p2p_request requests[2 * COUNT], *all[2 * COUNT];
    uint8_t *buffers[2 * COUNT];
    (void)argument;
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        bool is_send = i < COUNT;
        all[i] = &requests[i];
        buffers[i] = make_buffer(MIB + i % COUNT);
        if (is_send) {
            job_fill(buffers[i], MIB + i, i);
            job_post_send(rank, all[i], job_envelope(1 - rank->rank, i), buffers[i], MIB + i);
        } else {
            job_post_receive(rank, all[i], job_envelope(1 - rank->rank, i - COUNT), buffers[i], MIB + i - COUNT);
        }
    }
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        job_check(job_wait_for(rank, all[i]) == 0 && requests[i].held_count == 0);
        if (i < COUNT) {
            memset(buffers[i], OVER, MIB + i);
        } else {
            job_check(job_is_filled(buffers[i], MIB + i - COUNT, i - COUNT));
        }
    }
    job_check(writes_of(rank) > 0);
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        free(buffers[i]);
    }
    return 0;
}

static void messages_that_wait_let_others_pass(void **state) {
    (void)state;
    job_run(2, passes_side_by_side, NULL, &always);
    job_run(2, passes_side_by_side, NULL, &always_4);
}

/* ---- a peer that does not read ---- */

/* The first connection's socket. */
static int socket_of(struct job_rank *rank) {
    p2p_lock(rank->p2p);
    int fd = rank->p2p->links[1 - rank->rank]->streams[0]->io->fd;
    p2p_unlock(rank->p2p);
    return fd;
}

/* Much room at the sender: what the receiver does not read stays there. */
static void set_room(struct job_rank *rank, uint8_t *buffer) {
    const int much = 64 * MIB;
    pass(rank, 1, buffer, SHORT);
    if (rank->rank == 0 && setsockopt(socket_of(rank), SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof much) != 0) {
        (void)setsockopt(socket_of(rank), SOL_SOCKET, SO_SNDBUF, &much, sizeof much);
    }
    job_mark(rank->job, READY);
    job_await(rank->job, READY, 2);
}

/* Moves until the receive has begun: its sender may then send all. */
static void begin_receive(struct job_rank *rank, struct p2p_request *request, uint8_t *buffer, size_t bytes) {
    job_post_receive(rank, request, job_envelope(0, 2), buffer, bytes);
    while (job_moved(rank, request) < P2P_EAGER_FAR_BYTES) {
        (void)p2p_progress(rank->p2p);
    }
}

/* Moves until the kernel has as much of the message as it takes, and keeps some of it. */
static void send_what_goes(struct job_rank *rank, struct p2p_request *request, uint8_t *buffer, size_t bytes) {
    enum { LOOKS_IN_VAIN = 1000 };
    job_fill(buffer, bytes, 2);
    job_post_send(rank, request, job_envelope(1, 2), buffer, bytes);
    for (int in_vain = 0; held_by(rank, request) == 0 || in_vain < LOOKS_IN_VAIN; in_vain++) {
        size_t before = job_moved(rank, request);
        (void)p2p_progress(rank->p2p);
        in_vain = job_moved(rank, request) > before ? 0 : in_vain;
    }
    job_check(!atomic_load(&request->done));
}

static int reads_late(struct job_rank *rank, void *argument) {
    uint8_t *buffer = make_buffer(LONG);
    struct p2p_request request;
    (void)argument;
    set_room(rank, buffer);
    if (rank->rank == 0) {
        send_what_goes(rank, &request, buffer, LONG);
        job_mark(rank->job, HELD);
        job_check(job_wait_for(rank, &request) == 0 && request.held_count == 0);
        memset(buffer, OVER, LONG);
    } else {
        begin_receive(rank, &request, buffer, LONG);
        job_await(rank->job, HELD, 1);
        job_check(job_wait_for(rank, &request) == 0 && job_is_filled(buffer, LONG, 2));
    }
    free(buffer);
    return 0;
}

static void a_send_is_not_done_while_the_kernel_holds_its_buffer(void **state) {
    (void)state;
    job_run(2, reads_late, NULL, &always);
}

/* The sender takes the message back, and writes over its buffer, while the kernel holds all that it was given. The
 * receiver then reads whatever comes: the message never becomes whole, and others pass. */
static int takes_back(struct job_rank *rank, void *argument) {
    uint8_t *buffer = make_buffer(LONG), *other = make_buffer(LONG);
    struct p2p_request request, *list = &request;
    (void)argument;
    set_room(rank, other);
    if (rank->rank == 0) {
        send_what_goes(rank, &request, buffer, LONG);
        p2p_withdraw(rank->p2p, &list, 1);
        memset(buffer, OVER, LONG);
        job_mark(rank->job, OVERWRITTEN);
    } else {
        begin_receive(rank, &request, buffer, LONG);
        job_await(rank->job, OVERWRITTEN, 1);
    }
    pass(rank, 3, other, SHORT); /* on the same connection, behind all of it */
    if (rank->rank == 1) {
        job_check(!atomic_load(&request.done) && job_moved(rank, &request) < LONG);
        p2p_withdraw(rank->p2p, &list, 1);
    }
    pass(rank, 4, other, LONG);
    free(buffer);
    free(other);
    return 0;
}

static void a_message_that_was_taken_back_never_becomes_whole(void **state) {
    (void)state;
    job_run(2, takes_back, NULL, &always);
}

static int dies(struct job_rank *rank, void *argument) {
    uint8_t *buffer = make_buffer(LONG);
    struct p2p_request request;
    (void)argument;
    set_room(rank, buffer);
    if (rank->rank == 1) {
        begin_receive(rank, &request, buffer, LONG);
        job_await(rank->job, ENDED, 1); /* killed here */
    }
    send_what_goes(rank, &request, buffer, LONG);
    job_mark(rank->job, HELD);
    job_check(job_wait_for(rank, &request) == MUSTER_EPEER);
    job_check(strstr(muster_detail(), "rank 1 has died"));
    free(buffer);
    return 0;
}

static void a_peer_may_die_with_memory_held_for_it(void **state) {
    (void)state;
    struct job *job = job_start(2, dies, NULL, &always);
    job_await(job_shared(job), HELD, 1);
    job_kill(job, 1);
    assert_int_equal(job_wait(job, 0), 0);
    job_free(job);
}

/* The last goodbye is behind what the kernel still holds for nobody. */
static int leaves(struct job_rank *rank, void *argument) {
    uint8_t *buffer = make_buffer(LONG);
    struct p2p_request request, *list = &request;
    (void)argument;
    set_room(rank, buffer);
    if (rank->rank == 0) {
        send_what_goes(rank, &request, buffer, LONG);
        p2p_withdraw(rank->p2p, &list, 1);
        memset(buffer, OVER, LONG);
        job_mark(rank->job, OVERWRITTEN);
    } else {
        begin_receive(rank, &request, buffer, LONG);
        job_await(rank->job, OVERWRITTEN, 1);
        job_check(job_wait_for(rank, &request) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 0 has left"));
    }
    free(buffer);
    return 0;
}

static void who_leaves_with_memory_held_is_not_called_dead(void **state) {
    (void)state;
    job_run(2, leaves, NULL, &always);
}

/* ---- what the kernel refuses ---- */

/* So that RLIMIT_MEMLOCK counts for who runs the test as root, too. */
static void limit_locked_memory(size_t bytes) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    const struct rlimit limit = {bytes, bytes};
    job_check(syscall(SYS_capget, &header, data) == 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    job_check(syscall(SYS_capset, &header, data) == 0 && setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

static bool copies_all(struct job_rank *rank) {
    p2p_lock(rank->p2p);
    bool copies = rank->p2p->links[1 - rank->rank]->copies_all;
    p2p_unlock(rank->p2p);
    return copies;
}

static int has_no_room(struct job_rank *rank, void *argument) {
    const size_t *room = argument;
    uint8_t *buffer = make_buffer(LONG);
    limit_locked_memory(*room);
    pass(rank, 1, buffer, LONG);
    pass(rank, 2, buffer, LONG);
    if (rank->rank == 0) {
        bool copies = copies_all(rank), holds = writes_of(rank) > 0;
        job_check(*room == 0 ? copies && !holds : copies || holds);
    }
    free(buffer);
    return 0;
}

static void what_may_not_be_held_is_copied(void **state) {
    (void)state;
    /* The kernel counts for all processes of a user: perf or io_uring may have used the room up. */
    static const size_t rooms[] = {0, MIB};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        job_run(2, has_no_room, (void *)(uintptr_t)&rooms[i], &always);
    }
}

/* ---- what the kernel copies all the same ---- */

static _Atomic uint32_t lines;

static void count_lines(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line;
    if (strstr(text, "no more zero-copy sends to rank 1: the kernel copies")) {
        (void)atomic_fetch_add(&lines, 1);
    }
}

static int stops(struct job_rank *rank, void *argument) {
    uint8_t *buffer = make_buffer(LONG);
    (void)argument;
    log_set_sink(count_lines);
    log_set_level(LOG_LEVEL_INFO);
    pass(rank, 1, buffer, LONG);
    uint64_t before = writes_of(rank);
    pass(rank, 2, buffer, LONG);
    if (rank->rank == 0) {
        job_check(before > 0 && writes_of(rank) == before && copies_all(rank) && atomic_load(&lines) == 1);
    }
    free(buffer);
    return 0;
}

static void where_the_kernel_copies_it_is_left_alone(void **state) {
    (void)state;
    job_run(2, stops, NULL, &where_it_helps);
}

/* ---- the setting ---- */

static void the_setting_is_a_number_of_bytes(void **state) {
    (void)state;
    const struct {
        const char *text;
        size_t bytes_min;
        bool always, is_good;
    } cases[] = {{"0", 0, false, true},
                 {"1M", MIB, false, true},
                 {"256K,always", 256 << 10, true, true},
                 {"131072", 128 << 10, false, true},
                 {"1", 64 << 10, false, true}, /* shorter ones are not worth it */
                 {"2G", (size_t)2 << 30, false, true},
                 {"", 0, false, false},
                 {"yes", 0, false, false},
                 {"1M,", 0, false, false},
                 {"1MB", 0, false, false},
                 {"1M,never", 0, false, false},
                 {"-1", 0, false, false},
                 {"99999999999999999999", 0, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct p2p_zero_copy got;
        int code = p2p_zero_copy_parse(cases[i].text, &got);
        assert_int_equal(code, cases[i].is_good ? 0 : MUSTER_EINVAL);
        if (cases[i].is_good) {
            assert_int_equal(got.bytes_min, cases[i].bytes_min);
            assert_int_equal(got.always, cases[i].always);
        } else {
            assert_non_null(strstr(muster_detail(), "MUSTER_TCP_ZERO_COPY: '"));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_may_be_overwritten_when_its_send_is_done),
        cmocka_unit_test(messages_that_wait_let_others_pass),
        cmocka_unit_test(a_send_is_not_done_while_the_kernel_holds_its_buffer),
        cmocka_unit_test(a_message_that_was_taken_back_never_becomes_whole),
        cmocka_unit_test(a_peer_may_die_with_memory_held_for_it),
        cmocka_unit_test(who_leaves_with_memory_held_is_not_called_dead),
        cmocka_unit_test(what_may_not_be_held_is_copied),
        cmocka_unit_test(where_the_kernel_copies_it_is_left_alone),
        cmocka_unit_test(the_setting_is_a_number_of_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
