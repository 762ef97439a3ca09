/* Regions: one mapping a host, failures that all ranks hear of, memory that another process made, nothing left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/collective.h>

#include "comm/group/ranks_test_support.h"
#include "train/memory/state_region.h"

enum { BYTES = 100000 };

static unsigned char *bytes_of(const struct state_region *region) {
    return region->memory;
}

/* ---- who sees what ---- */

static void check_zeroed(struct rank *rank, const struct state_region *region, size_t bytes) {
    rank_check(rank, region->bytes == bytes && (uintptr_t)region->memory % 64 == 0);
    for (size_t i = 0; i < bytes; i++) {
        rank_check(rank, bytes_of(region)[i] == 0);
    }
}

/* Every rank writes its number at its own place; a rank of the same host reads it, one of another does not. */
static int share(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    uint32_t host = muster_group_host_of(group, rank->rank);
    size_t bytes = BYTES + 100 * host; /* hosts may differ */
    struct state_region region;
    rank_check_code(rank, state_region_create(group, "parameters", bytes, &region), 0);
    check_zeroed(rank, &region, bytes);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    bytes_of(&region)[rank->rank] = (unsigned char)(rank->rank + 1);
    bytes_of(&region)[bytes - 1 - rank->rank] = (unsigned char)(rank->rank + 1);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    for (uint32_t other = 0; other < rank->size; other++) {
        unsigned char expected = muster_group_host_of(group, other) == host ? (unsigned char)(other + 1) : 0;
        rank_check(rank, bytes_of(&region)[other] == expected);
        rank_check(rank, bytes_of(&region)[bytes - 1 - other] == expected);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank == 0) { /* the maker goes first: the memory stays the others' */
        state_region_free(&region);
        rank_check(rank, region.memory == NULL);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank != 0 && host == 0) {
        rank_check(rank, bytes_of(&region)[0] == 1);
    }
    state_region_free(&region);
    state_region_free(&region); /* a zeroed one */
    muster_group_free(group);
    return 0;
}

static void ranks_of_a_host_see_one_mapping(void **state) {
    (void)state;
    static const uint32_t crossed[4] = {0, 1, 0, 1}, uneven[4] = {1, 1, 0, 1};
    const struct ranks_options options[] = {{0}, {.ranks_per_host = 2}, {.host_of = crossed}, {.host_of = uneven}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        ranks_run_with(4, share, NULL, &options[i]);
    }
    ranks_run(1, share, NULL);
}

static void without_a_group_it_is_this_processs_own(void **state) {
    (void)state;
    struct state_region one, other;
    assert_int_equal(state_region_create(NULL, "parameters", BYTES, &one), 0);
    assert_int_equal(state_region_create(NULL, "parameters", 0, &other), 0);
    memset(one.memory, 7, BYTES);
    assert_int_equal(one.bytes, BYTES);
    assert_int_equal(other.bytes, 0);
    state_region_free(&one);
    state_region_free(&other);
}

/* ---- failures ---- */

/* Rank 2 wants another size. All ranks see it, or hear of it from one that was quicker. */
static int want_other_sizes(struct rank *rank, void *argument) {
    const size_t *other = argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct state_region region;
    int status = state_region_create(group, "parameters", rank->rank == 2 ? *other : BYTES, &region);
    rank_check(rank, status == MUSTER_EMISMATCH || status == MUSTER_EABORTED);
    rank_check(rank, strstr(muster_detail(), "for parameters") != NULL);
    rank_check(rank, strstr(muster_detail(), "rank 2 wants ") != NULL);
    rank_check(rank, strstr(muster_detail(), "100000 bytes of memory where rank 0") != NULL ||
                         strstr(muster_detail(), "where rank 0 on its host has 100000") != NULL);
    rank_mark(rank, 1); /* who left the group now would be taken for the reason */
    for (uint32_t i = 0; i < rank->size; i++) {
        rank_await(rank, i, 1);
    }
    rank_check(rank, muster_group_status(group) != MUSTER_OK);
    muster_group_free(group);
    return 0;
}

static void sizes_that_differ_are_told_to_all(void **state) {
    (void)state;
    const struct ranks_options two_hosts = {.host_of = (const uint32_t[4]){0, 1, 0, 1}};
    for (size_t other = BYTES - 1; other <= BYTES + 1; other += 2) {
        ranks_run(3, want_other_sizes, &other);
        ranks_run_with(4, want_other_sizes, &other, &two_hosts);
    }
}

/* More than any host has. */
static int want_too_much(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct state_region region;
    size_t bytes = rank->rank < 2 ? BYTES : (size_t)1 << 60;
    int status = state_region_create(group, "what the optimizer remembers", bytes, &region);
    rank_check(rank, status == (rank->rank == 2 ? MUSTER_ENOMEM : MUSTER_EABORTED));
    rank_check(rank, strstr(muster_detail(), "what the optimizer remembers") != NULL);
    rank_mark(rank, 1);
    for (uint32_t i = 0; i < rank->size; i++) {
        rank_await(rank, i, 1);
    }
    muster_group_free(group);
    return 0;
}

static void a_host_without_memory_ends_it_for_all(void **state) {
    (void)state;
    const struct ranks_options options = {.ranks_per_host = 2};
    ranks_run_with(4, want_too_much, NULL, &options);
}

/* ---- memory that somebody else made ---- */

static int memory_of(size_t bytes, bool is_sealed) {
    int fd = memfd_create("state-region-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_true(!is_sealed || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

/* Another process goes on with what this one held. */
static void another_process_adopts_it(void **state) {
    (void)state;
    struct state_region made, adopted;
    assert_int_equal(state_region_create(NULL, "parameters", BYTES, &made), 0);
    memset(made.memory, 5, BYTES);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = made.segment.fd;
        bool was_there = state_region_adopt(fd, BYTES, &adopted) == 0 && bytes_of(&adopted)[BYTES - 1] == 5;
        if (was_there) {
            bytes_of(&adopted)[1] = 6;
            state_region_free(&adopted);
            was_there = fcntl(fd, F_GETFD) >= 0; /* the descriptor is still the caller's */
        }
        _exit(was_there ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(bytes_of(&made)[1], 6);
    state_region_free(&made);
}

static void what_is_no_such_memory_is_refused(void **state) {
    (void)state;
    struct state_region made, adopted = {.bytes = 1};
    assert_int_equal(state_region_create(NULL, "parameters", BYTES, &made), 0);
    const size_t too_many[] = {BYTES + 1, (size_t)1 << 50, SIZE_MAX, SIZE_MAX - SEGMENT_HEADER_BYTES,
                               SIZE_MAX - SEGMENT_HEADER_BYTES + 1};
    for (size_t i = 0; i < sizeof too_many / sizeof *too_many; i++) {
        assert_int_equal(state_region_adopt(made.segment.fd, too_many[i], &adopted), MUSTER_ECORRUPT);
    }
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const int others[] = {memory_of(BYTES, false), memory_of(10, true), memory_of(0, true),
                          open("/proc/self/exe", O_RDONLY | O_CLOEXEC), pipes[0]};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(state_region_adopt(others[i], 0, &adopted), MUSTER_ECORRUPT);
        assert_int_equal(fcntl(others[i], F_GETFD) >= 0, 1);
        (void)close(others[i]);
    }
    (void)close(pipes[1]);
    assert_int_equal(state_region_adopt(-1, 0, &adopted), MUSTER_ESYSTEM);
    assert_int_equal(adopted.bytes, 1); /* written on success alone */
    state_region_free(&made);
}

/* ---- nothing is left ---- */

static bool is_mapped_by(pid_t pid) {
    char path[64], line[512];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        found = strstr(line, "muster-state") != NULL;
    }
    if (maps) {
        (void)fclose(maps);
    }
    return found;
}

static int hold_until_killed(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct state_region region;
    rank_check_code(rank, state_region_create(group, "parameters", BYTES, &region), 0);
    bytes_of(&region)[10] = 1;
    rank_mark(rank, 1);
    rank_await_signal(rank, 1);
    rank_check(rank, bytes_of(&region)[10] == 1); /* the maker is dead, the memory is not */
    state_region_free(&region);
    rank_check(rank, !is_mapped_by(getpid()));
    rank_mark(rank, 2);
    rank_await_signal(rank, 2);
    muster_group_free(group);
    return 0;
}

static void it_goes_with_the_last_who_has_it(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, hold_until_killed, NULL, NULL);
    ranks_await(ranks, 0, 1);
    ranks_await(ranks, 1, 1);
    assert_true(is_mapped_by(ranks_pid(ranks, 0)) && is_mapped_by(ranks_pid(ranks, 1)));
    ranks_kill(ranks, 0);
    assert_int_equal(ranks_wait(ranks, 0), RANKS_KILLED - SIGKILL);
    ranks_signal(ranks, 1);
    ranks_await(ranks, 1, 2); /* it has looked that nothing of it is mapped */
    ranks_signal(ranks, 2);
    assert_int_equal(ranks_wait(ranks, 1), 0);
    assert_false(is_mapped_by(getpid()));
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_host_see_one_mapping),   cmocka_unit_test(without_a_group_it_is_this_processs_own),
        cmocka_unit_test(sizes_that_differ_are_told_to_all), cmocka_unit_test(a_host_without_memory_ends_it_for_all),
        cmocka_unit_test(another_process_adopts_it),         cmocka_unit_test(what_is_no_such_memory_is_refused),
        cmocka_unit_test(it_goes_with_the_last_who_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
