/* Every operation of a node against a serial reference: types, reductions, sizes around every change of algorithm,
 * numbers of members, roots, in place and not, private and shared buffers in any mixture, equal and different counts.
 * Calls follow each other without a pause, so that members run ahead of each other as far as they may.
 *
 * Cases are drawn at random from a seed that is printed with a failure; NODE_TEST_SEED=n repeats one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <sched.h>
#include <sys/mman.h>

#include <muster/status.h>

#include "base/clock.h"
#include "base/testing/parts_test_support.h"
#include "comm/node/node_cases_test_support.h"
#include "comm/node/node_test_support.h"
#include "comm/schedule/choice.h"

enum { GUARD_BYTES = 4096, CANARY = 0xa5 };
#define DEADLINE_NS (INT64_C(120) * CLOCK_NS_PER_S)

struct work {
    uint64_t seed;
    int cases;
    size_t bytes_max; /* of a buffer */
    bool shares;      /* half of the buffers come from memory_allocate() */
};

/* A member's two buffers; each may be private, with an unreadable page behind its end, or shared. */
struct buffer {
    unsigned char *end;    /* private: of the readable part */
    unsigned char *shared; /* NULL: there is none */
};

struct desk {
    struct buffer send, receive;
    unsigned char *inputs[CASE_MEMBERS_MAX]; /* what each member has, for the reference */
    unsigned char *expected;
};

static unsigned char *map_guarded(size_t bytes) {
    bytes = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
    unsigned char *memory =
        mmap(NULL, bytes + 2 * GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + bytes + GUARD_BYTES, GUARD_BYTES, PROT_NONE) != 0) {
        abort();
    }
    return memory + bytes + GUARD_BYTES;
}

static unsigned char *place(const struct buffer *buffer, bool shared, size_t bytes, size_t width) {
    return shared ? buffer->shared + 64 + (bytes % 7) * width : buffer->end - bytes;
}

static int run_case(struct crew_member *member, struct desk *desk, const struct node_case *c) {
    uint32_t index = member->index, size = member->size;
    struct comm_call call = c->call;
    size_t width = muster_type_bytes(call.type);
    size_t give = node_case_sends(c, index, size), get = node_case_receives(c, index, size);
    for (uint32_t i = 0; i < size; i++) {
        node_case_input(c, i, desk->inputs[i], node_case_sends(c, i, size));
    }
    node_case_reference(c, desk->inputs, index, size, desk->expected);
    unsigned char *receive = place(&desk->receive, c->receive_shared, get * width, width), *send;
    memset(receive - 64, CANARY, get * width + 64);
    if (c->receive_shared) {
        memset(receive + get * width, CANARY, 64);
    }
    if (!c->in_place) {
        send = place(&desk->send, c->send_shared, give * width, width);
    } else if (give <= get) { /* all_gather, gather: the input lies in the output */
        send = receive + (call.operation == COMM_ALL_GATHER || call.operation == COMM_GATHER
                              ? node_case_begin(c, index) * width
                              : 0);
    } else { /* reduce_scatter, scatter: the output lies in the input */
        send = place(&desk->send, c->send_shared, give * width, width);
        receive = send + node_case_begin(c, index) * width;
    }
    if (give > 0) {
        memcpy(send, desk->inputs[index], give * width);
    }
    call.send = give > 0 ? send : NULL;
    call.receive = get > 0 ? receive : NULL;
    size_t sends[CASE_MEMBERS_MAX], receives[CASE_MEMBERS_MAX];
    if (c->has_counts) {
        for (uint32_t i = 0; i < size; i++) {
            sends[i] = call.operation == COMM_ALL_TO_ALL ? c->pairs[index][i] : c->counts[i];
            receives[i] = call.operation == COMM_ALL_TO_ALL ? c->pairs[i][index] : c->counts[i];
        }
        call.count = 0;
        call.send_counts = call.operation == COMM_SCATTER || call.operation == COMM_ALL_TO_ALL ? sends : NULL;
        call.receive_counts = call.operation != COMM_SCATTER ? receives : NULL;
    }
    int status = crew_call(member, &call, clock_monotonic_ns() + DEADLINE_NS);
    char text[128];
    (void)comm_fingerprint_format(comm_call_fingerprint(&call, size), text, sizeof text);
    if (status != 0) {
        return crew_fail(member, "%s: %d", text, status);
    }
    for (size_t i = 0; i < get * width; i++) {
        if (receive[i] != desk->expected[i]) {
            return crew_fail(member, "%s, %zu bytes (in place %d, shared %d %d): byte %zu is %02x, not %02x", text,
                             get * width, c->in_place, c->send_shared, c->receive_shared, i, receive[i],
                             desk->expected[i]);
        }
    }
    if (!c->in_place && give > 0 && memcmp(send, desk->inputs[index], give * width) != 0) {
        return crew_fail(member, "%s: input changed", text);
    }
    if (!c->in_place) {
        for (int i = 1; i <= 64; i++) {
            if (receive[-i] != CANARY || (c->receive_shared && receive[get * width + (size_t)i - 1] != CANARY)) {
                return crew_fail(member, "%s: written outside of the buffer", text);
            }
        }
    }
    return 0;
}

static void make_desk(struct desk *desk, struct crew_member *member, const struct work *work) {
    desk->send.end = map_guarded(work->bytes_max + 256);
    desk->receive.end = map_guarded(work->bytes_max + 256);
    size_t room = work->bytes_max + 1024;
    if (work->shares) {
        void *send, *receive;
        if (memory_allocate(member->memory, room, &send) != 0 || memory_allocate(member->memory, room, &receive) != 0) {
            abort();
        }
        desk->send.shared = send;
        desk->receive.shared = receive;
    }
    for (uint32_t i = 0; i < member->size; i++) {
        desk->inputs[i] = malloc(room);
    }
    desk->expected = calloc(1, room);
}

static void free_desk(struct desk *desk, struct crew_member *member, const struct work *work) {
    size_t bytes = (work->bytes_max + 256 + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES + GUARD_BYTES;
    (void)munmap(desk->send.end - bytes, bytes + GUARD_BYTES);
    (void)munmap(desk->receive.end - bytes, bytes + GUARD_BYTES);
    memory_release(member->memory, desk->send.shared);
    memory_release(member->memory, desk->receive.shared);
    for (uint32_t i = 0; i < member->size; i++) {
        free(desk->inputs[i]);
    }
    free(desk->expected);
}

static int run_cases(struct crew_member *member) {
    const struct work *work = member->argument;
    struct desk *desk = calloc(1, sizeof *desk);
    struct node_case *c = calloc(1, sizeof *c);
    make_desk(desk, member, work);
    uint64_t random = work->seed;
    int status = 0;
    for (int i = 0; i < work->cases && status == 0; i++) {
        node_case_draw(c, &random, work->bytes_max, work->shares, member->size, member->index);
        status = run_case(member, desk, c);
    }
    /* Nobody's memory goes while others still read it. */
    const struct comm_call barrier = {.operation = COMM_BARRIER};
    if (status == 0 && crew_call(member, &barrier, clock_monotonic_ns() + DEADLINE_NS) != 0) {
        status = crew_fail(member, "last barrier");
    }
    free_desk(desk, member, work);
    free(desk);
    free(c);
    return status;
}

static uint64_t seed_of_run(void) {
    const char *wanted = getenv("NODE_TEST_SEED");
    return wanted ? strtoull(wanted, NULL, 10) : (uint64_t)clock_realtime_us() | 1;
}

/* What the thread sanitizer can see is in threads_of_one_process(); it makes the rest 20 times slower. */
#ifdef __SANITIZE_THREAD__
enum { SLOWNESS = 20 };
#else
enum { SLOWNESS = 1 };
#endif

static void run_crew(uint32_t size, const struct crew_options *options, int cases, size_t bytes_max, bool shares) {
    int share = SLOWNESS > 1 ? SLOWNESS : (int)part_stride("whole_matrix", 4);
    struct work work = {.seed = seed_of_run(),
                        .cases = options && options->threads ? cases : cases / share + 1,
                        .bytes_max = bytes_max,
                        .shares = shares};
    struct crew *crew = crew_start(size, run_cases, &work, options);
    int results[CREW_MAX];
    crew_wait(crew, results);
    for (uint32_t i = 0; i < size; i++) {
        if (results[i] != 0) {
            fail_msg("NODE_TEST_SEED=%llu: member %u of %u gave %d: %s", (unsigned long long)work.seed, i, size,
                     results[i], crew_failure(crew));
        }
    }
    crew_free(crew);
}

static const uint32_t sizes[] = {1, 2, 3, 4, 5, 8};

static void run_all_sizes(const struct crew_options *options, bool shares) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_crew(sizes[i], options, 250, 20000, shares);
        run_crew(sizes[i], options, 40, 4194304, shares);
    }
}

static void processes_with_private_buffers(void **state) {
    (void)state;
    run_all_sizes(NULL, false);
}

static void processes_with_shared_buffers(void **state) {
    (void)state;
    run_all_sizes(NULL, true);
}

static void processes_that_may_not_read_each_other(void **state) {
    (void)state;
    run_crew(3, &(struct crew_options){.no_peer_reads = true}, 100, 1 << 20, false);
    run_crew(4, &(struct crew_options){.no_peer_reads = true}, 100, 1 << 20, true);
}

static void threads_of_one_process(void **state) {
    (void)state;
    run_crew(2, &(struct crew_options){.threads = true}, 200, 1 << 19, false);
    run_crew(3, &(struct crew_options){.threads = true}, 200, 1 << 19, true);
    run_crew(4, &(struct crew_options){.threads = true}, 500, 5000, true);
}

/* Algorithms that are meant for large buffers, from the first byte on and in many small pieces. */
static void large_algorithms_on_small_buffers(void **state) {
    (void)state;
    static const char text[] = "all_reduce private * * * two_stage\n"
                               "reduce private * * * two_stage\n"
                               "broadcast private * * * staged 64\n"
                               "all_gather private * * * staged 192\n"
                               "all_to_all private * * * staged 128\n"
                               "reduce_scatter private * * * staged 64\n"
                               "all_reduce shared * * * direct\n"
                               "reduce shared * * * direct\n"
                               "broadcast shared * * * direct\n"
                               "all_gather shared * * * direct\n"
                               "gather shared * * * direct\n"
                               "scatter shared * * * direct\n"
                               "reduce_scatter shared * * * direct\n"
                               "all_to_all shared * * * direct\n";
    static struct choice choice;
    if (choice_parse(text, sizeof text - 1, &choice) != 0) {
        fail_msg("%s", muster_detail());
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_crew(sizes[i], &(struct crew_options){.choice = &choice}, 400, 5000, true);
        run_crew(sizes[i], &(struct crew_options){.choice = &choice}, 200, 20000, false);
    }
    run_crew(3, &(struct crew_options){.choice = &choice, .threads = true}, 400, 5000, true);
}

static void single_copies(void **state) {
    (void)state;
    static const char text[] = "broadcast private * * * single_copy\n"
                               "all_gather private * * * single_copy\n"
                               "gather private * * * single_copy\n"
                               "scatter private * * * single_copy\n";
    static struct choice choice;
    if (choice_parse(text, sizeof text - 1, &choice) != 0) {
        fail_msg("%s", muster_detail());
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_crew(sizes[i], &(struct crew_options){.choice = &choice}, 200, 20000, true);
        run_crew(sizes[i], &(struct crew_options){.choice = &choice, .no_peer_reads = true}, 50, 20000, true);
    }
    run_crew(3, &(struct crew_options){.choice = &choice}, 40, 1 << 20, false);
    run_crew(3, &(struct crew_options){.choice = &choice, .threads = true}, 300, 10000, true);
}

static void many_members(void **state) {
    (void)state;
    run_crew(17, NULL, 150, 30000, true);
    run_crew(17, NULL, 10, 1 << 20, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_with_private_buffers),
        cmocka_unit_test(processes_with_shared_buffers),
        cmocka_unit_test(processes_that_may_not_read_each_other),
        cmocka_unit_test(threads_of_one_process),
        cmocka_unit_test(large_algorithms_on_small_buffers),
        cmocka_unit_test(single_copies),
        cmocka_unit_test(many_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
