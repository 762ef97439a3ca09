/* Shared allocations: found by address, viewed by neighbours, given back, and never confused with others that took
 * their place. Two memories of one process stand for two neighbours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <muster/memory.h>
#include <muster/status.h>

#include "base/system/descriptors.h"
#include "comm/host/memory.h"
#include "comm/host/segment.h"

enum { BYTES = 10000, MANY = 40 };

static void *directory;
static struct memory *ours, *theirs;

static int make(void **state) {
    (void)state;
    const int32_t pids[2] = {getpid(), getpid()};
    if (posix_memalign(&directory, 64, memory_directory_bytes(2)) != 0) {
        return 1;
    }
    memset(directory, 0, memory_directory_bytes(2));
    return memory_create(directory, 0, pids, 2, &ours) || memory_create(directory, 1, pids, 2, &theirs);
}

static int unmake(void **state) {
    (void)state;
    memory_free(ours);
    memory_free(theirs);
    free(directory);
    return 0;
}

static unsigned char *allocate(struct memory *memory, size_t bytes) {
    void *out = NULL;
    assert_int_equal(memory_allocate(memory, bytes, &out), 0);
    assert_int_equal((uintptr_t)out % 64, 0);
    return out;
}

static struct memory_place place_of(const void *address, size_t bytes) {
    struct memory_place place;
    assert_true(memory_find(ours, address, bytes, &place));
    return place;
}

static void a_neighbour_sees_what_is_written(void **state) {
    (void)state;
    unsigned char *memory = allocate(ours, BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(memory[i], 0);
        memory[i] = (unsigned char)i;
    }
    struct memory_place place = place_of(memory + 100, 500);
    void *view;
    assert_int_equal(memory_view(theirs, 0, &place, 500, &view), 0);
    assert_ptr_not_equal(view, memory + 100);
    assert_memory_equal(view, memory + 100, 500);
    ((unsigned char *)view)[3] = 99;
    assert_int_equal(memory[103], 99);
    void *again;
    assert_int_equal(memory_view(theirs, 0, &place, 500, &again), 0);
    assert_ptr_equal(again, view); /* mapped once */
    memory_release(ours, memory);
}

static void only_what_lies_inside_is_found(void **state) {
    (void)state;
    unsigned char *memory = allocate(ours, BYTES);
    struct memory_place place;
    int elsewhere = 0;
    assert_true(memory_find(ours, memory, BYTES, &place));
    assert_true(memory_find(ours, memory + BYTES - 1, 1, &place));
    assert_false(memory_find(ours, memory, BYTES + 1, &place));
    assert_false(memory_find(ours, memory + BYTES, 1, &place));
    assert_false(memory_find(ours, memory - 1, 1, &place));
    assert_false(memory_find(ours, memory + 10, SIZE_MAX - 5, &place));
    assert_false(memory_find(ours, &elsewhere, sizeof elsewhere, &place));
    assert_false(memory_find(theirs, memory, 1, &place));
    memory_release(ours, memory);
    assert_false(memory_find(ours, memory, 1, &place));
}

static void a_place_out_of_bounds_is_refused(void **state) {
    (void)state;
    unsigned char *memory = allocate(ours, BYTES);
    struct memory_place place = place_of(memory, BYTES), wrong = place;
    void *view = NULL;
    wrong.offset += 1;
    assert_int_equal(memory_view(theirs, 0, &wrong, BYTES, &view), MUSTER_EPROTOCOL);
    wrong.offset = UINT64_MAX;
    assert_int_equal(memory_view(theirs, 0, &wrong, 1, &view), MUSTER_EPROTOCOL);
    assert_int_equal(memory_view(theirs, 0, &place, SIZE_MAX, &view), MUSTER_EPROTOCOL);
    wrong = place, wrong.id = MUSTER_ALLOCATIONS_MAX;
    assert_int_equal(memory_view(theirs, 0, &wrong, 1, &view), MUSTER_EPROTOCOL);
    wrong = place, wrong.id = 5;
    assert_int_equal(memory_view(theirs, 0, &wrong, 1, &view), MUSTER_EPROTOCOL);
    wrong = place, wrong.generation += 2;
    assert_int_equal(memory_view(theirs, 0, &wrong, 1, &view), MUSTER_EPROTOCOL);
    assert_int_equal(memory_view(theirs, 2, &place, 1, &view), MUSTER_EPROTOCOL);
    assert_null(view);
    memory_release(ours, memory);
}

static void what_is_gone_is_not_copied(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 63, 500, 2000};
    unsigned char *memory = allocate(ours, BYTES), copy[2001];
    for (size_t i = 0; i < 2100; i++) {
        memory[i] = (unsigned char)(i * 7);
    }
    struct memory_place place = place_of(memory + 100, 2000), wrong = place;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int past_caches = 0; past_caches < 2; past_caches++) {
            memset(copy, 1, sizeof copy);
            assert_int_equal(memory_copy(theirs, 0, &place, copy, counts[i], past_caches), 0);
            assert_memory_equal(copy, memory + 100, counts[i]);
            assert_int_equal(copy[counts[i]], 1);
        }
    }
    wrong.offset = UINT64_MAX;
    assert_int_equal(memory_copy(theirs, 0, &wrong, copy, 1, false), MUSTER_EPROTOCOL);
    wrong = place, wrong.id = MUSTER_ALLOCATIONS_MAX;
    assert_int_equal(memory_copy(theirs, 0, &wrong, copy, 1, false), MUSTER_EPROTOCOL);
    memory_release(ours, memory);
    unsigned char *second = allocate(ours, BYTES); /* the old view is given up for this one */
    struct memory_place new = place_of(second, BYTES);
    assert_int_equal(memory_copy(theirs, 0, &new, copy, 1, false), 0);
    assert_int_equal(memory_copy(theirs, 0, &place, copy, 1, false), MUSTER_EPROTOCOL);
    memory_release(ours, second);
}

static void what_took_its_place_is_another(void **state) {
    (void)state;
    unsigned char *first = allocate(ours, BYTES);
    struct memory_place old = place_of(first, BYTES);
    void *view;
    assert_int_equal(memory_view(theirs, 0, &old, BYTES, &view), 0);
    memory_release(ours, first);
    unsigned char *second = allocate(ours, BYTES);
    second[0] = 17;
    struct memory_place new = place_of(second, BYTES);
    assert_int_equal(new.id, old.id);
    assert_int_equal(memory_view(theirs, 0, &new, BYTES, &view), 0);
    assert_int_equal(((unsigned char *)view)[0], 17);
    assert_int_equal(memory_view(theirs, 0, &old, BYTES, &view), MUSTER_EPROTOCOL);
    memory_release(ours, second);
}

/* A message that was offered before and is read now (its sender has taken it back): another thread may be in the middle
 * of what lies there today. */
static void an_old_place_leaves_the_new_view(void **state) {
    (void)state;
    unsigned char *first = allocate(ours, BYTES), copy[1];
    struct memory_place old = place_of(first, BYTES);
    memory_release(ours, first);
    unsigned char *second = allocate(ours, BYTES);
    second[1] = 18;
    struct memory_place new = place_of(second, BYTES);
    void *view, *again;
    assert_int_equal(new.id, old.id);
    assert_int_equal(memory_view(theirs, 0, &new, BYTES, &view), 0);
    assert_int_equal(memory_copy(theirs, 0, &old, copy, sizeof copy, false), MUSTER_EPROTOCOL);
    assert_int_equal(((unsigned char *)view)[1], 18);
    assert_int_equal(memory_view(theirs, 0, &new, BYTES, &again), 0);
    assert_ptr_equal(again, view);
    memory_release(ours, second);
}

static size_t mapped(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    size_t count = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        count += strstr(line, "muster-alloc") != NULL;
    }
    assert_non_null(maps);
    (void)fclose(maps);
    return count;
}

/* A collective whose other member has given up, and gives its memory back. */
static void what_somebody_is_at_work_in_stays(void **state) {
    (void)state;
    unsigned char *first = allocate(ours, BYTES), *other = allocate(ours, BYTES);
    struct memory_place place = place_of(first, BYTES), other_place = place_of(other, BYTES);
    void *view, *other_view, *now;
    first[7] = 7;
    other[8] = 8;
    memory_hold(theirs);
    assert_int_equal(memory_view(theirs, 0, &place, BYTES, &view), 0);
    assert_int_equal(memory_view(theirs, 0, &other_place, BYTES, &other_view), 0);
    memory_release(ours, first);
    memory_release(ours, other);
    unsigned char *second = allocate(ours, BYTES); /* in the first one's entry; the other's is seen to be empty */
    struct memory_place new = place_of(second, BYTES);
    assert_int_equal(new.id, place.id);
    assert_int_equal(memory_view(theirs, 0, &new, BYTES, &now), 0);
    assert_int_equal(((unsigned char *)view)[7], 7);
    assert_int_equal(((unsigned char *)other_view)[8], 8);
    assert_int_equal(((unsigned char *)now)[7], 0);
    assert_int_equal(mapped(), 1 + 3);
    memory_let_go(theirs);
    assert_int_equal(mapped(), 1 + 1);
    memory_release(ours, second);
}

static void nothing_is_left(void **state) {
    (void)state;
    assert_int_equal(mapped(), 0);
    unsigned char *allocations[MANY];
    for (int i = 0; i < MANY; i++) {
        allocations[i] = allocate(ours, BYTES);
        struct memory_place place = place_of(allocations[i], BYTES);
        void *view;
        assert_int_equal(memory_view(theirs, 0, &place, BYTES, &view), 0);
    }
    assert_int_equal(mapped(), 2 * MANY);
    for (int i = 1; i < MANY; i++) {
        memory_release(ours, allocations[i]);
    }
    assert_int_equal(mapped(), 1 + MANY);
    unsigned char *last = allocate(ours, BYTES); /* the next view notices that the others have gone */
    struct memory_place place = place_of(last, BYTES);
    void *view;
    assert_int_equal(memory_view(theirs, 0, &place, BYTES, &view), 0);
    assert_int_equal(mapped(), 2 + 2);
    memory_free(theirs);
    theirs = NULL;
    memory_free(ours); /* what was not released, too */
    ours = NULL;
    assert_int_equal(mapped(), 0);
}

static void there_is_a_limit(void **state) {
    (void)state;
    void *allocations[MUSTER_ALLOCATIONS_MAX], *one_more = NULL;
    struct memory *alone;
    assert_int_equal(memory_create(NULL, 0, NULL, 0, &alone), 0);
    for (uint32_t i = 0; i < MUSTER_ALLOCATIONS_MAX; i++) {
        assert_int_equal(memory_allocate(alone, i, &allocations[i]), 0);
    }
    assert_int_equal(memory_allocate(alone, 1, &one_more), MUSTER_ELIMIT);
    assert_int_equal(memory_allocate(alone, SIZE_MAX, &one_more), MUSTER_ENOMEM);
    assert_null(one_more);
    memory_release(alone, allocations[77]);
    assert_int_equal(memory_allocate(alone, 1, &allocations[77]), 0);
    memory_release(alone, NULL);
    memory_free(alone);
}

static void without_neighbours_it_is_ordinary_memory(void **state) {
    (void)state;
    struct memory *alone;
    assert_int_equal(memory_create(NULL, 0, NULL, 0, &alone), 0);
    unsigned char *memory = allocate(alone, BYTES);
    struct memory_place place = {0};
    void *view;
    assert_int_equal(memory[BYTES - 1], 0);
    assert_false(memory_find(alone, memory, 1, &place));
    assert_int_equal(memory_view(alone, 0, &place, 1, &view), MUSTER_EPROTOCOL);
    memory_release(alone, memory);
    memory_free(alone);
    memory_free(NULL);
}

static void *come_and_go(void *argument) {
    int *result = argument;
    for (int i = 0; i < 300 && *result == 0; i++) {
        void *memory = NULL;
        struct memory_place place;
        if (memory_allocate(ours, 100, &memory) != 0 || !memory_find(ours, memory, 100, &place)) {
            *result = 1;
            break;
        }
        void *view;
        *result = memory_view(theirs, 0, &place, 100, &view);
        memory_release(ours, memory);
    }
    return NULL;
}

static void threads_may_come_and_go(void **state) {
    (void)state;
    pthread_t threads[3];
    int results[3] = {0};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &results[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(results[i], 0);
    }
}

/* ---- while the kernel is at it ---- */

enum { PATIENCE_S = 60 }; /* for a hang, not for a busy machine */

static _Atomic bool watches; /* once */
static void *found_meanwhile;

static void *look_for_it(void *argument) {
    struct memory_place place;
    return memory_find(ours, argument, BYTES, &place) ? argument : NULL;
}

/* While one thread is here, another one asks. */
static void look_meanwhile(void) {
    static pthread_t asker;
    if (atomic_exchange(&watches, false)) {
        struct timespec until;
        void *found = NULL;
        assert_int_equal(pthread_create(&asker, NULL, look_for_it, found_meanwhile), 0);
        assert_int_equal(clock_gettime(CLOCK_REALTIME, &until), 0);
        until.tv_sec += PATIENCE_S;
        assert_int_equal(pthread_timedjoin_np(asker, &found, &until), 0);
        assert_ptr_equal(found, found_meanwhile);
    }
}

/* In place of the C library's. */
int posix_fallocate(int fd, off_t offset, off_t len) {
    look_meanwhile();
    return fallocate(fd, 0, offset, len) == 0 ? 0 : errno;
}

static void (*_Atomic after_opening)(void); /* once */

int __real_segment_open(const struct segment_name *name, struct segment *out);
int __wrap_segment_open(const struct segment_name *name, struct segment *out);

/* The linker sends memory.c here. */
int __wrap_segment_open(const struct segment_name *name, struct segment *out) {
    look_meanwhile();
    int status = __real_segment_open(name, out);
    void (*call)(void) = atomic_exchange(&after_opening, NULL);
    if (call) {
        call();
    }
    return status;
}

static void nobody_waits_for_the_kernel(void **state) {
    (void)state;
    found_meanwhile = allocate(ours, BYTES);
    atomic_store(&watches, true);
    unsigned char *other = allocate(ours, BYTES);
    assert_false(atomic_load(&watches));
    memory_release(ours, other);
    memory_release(ours, found_meanwhile);
}

/* Both memories have their own: the one that maps is asked. */
static void nobody_waits_for_a_view(void **state) {
    (void)state;
    unsigned char *memory = allocate(theirs, BYTES);
    struct memory_place place;
    void *view;
    assert_true(memory_find(theirs, memory, BYTES, &place));
    found_meanwhile = allocate(ours, BYTES);
    atomic_store(&watches, true);
    assert_int_equal(memory_view(ours, 1, &place, BYTES, &view), 0);
    assert_false(atomic_load(&watches));
    memory_release(ours, found_meanwhile);
    memory_release(theirs, memory);
}

static struct memory_place meanwhile_place;
static void *meanwhile_view;
static unsigned char *meanwhile_memory;

static void view_meanwhile(void) {
    assert_int_equal(memory_view(theirs, 0, &meanwhile_place, BYTES, &meanwhile_view), 0);
}

static void two_may_map_the_same(void **state) {
    (void)state;
    void *view;
    meanwhile_memory = allocate(ours, BYTES);
    meanwhile_place = place_of(meanwhile_memory, BYTES);
    atomic_store(&after_opening, view_meanwhile);
    assert_int_equal(memory_view(theirs, 0, &meanwhile_place, BYTES, &view), 0);
    assert_ptr_equal(view, meanwhile_view);
    assert_int_equal(mapped(), 1 + 1);
    memory_release(ours, meanwhile_memory);
}

static void replace_meanwhile(void) {
    memory_release(ours, meanwhile_memory);
    meanwhile_memory = allocate(ours, BYTES);
    meanwhile_place = place_of(meanwhile_memory, BYTES);
    view_meanwhile();
}

static void what_is_replaced_meanwhile_leaves_the_new_view(void **state) {
    (void)state;
    void *view;
    meanwhile_memory = allocate(ours, BYTES);
    struct memory_place old = place_of(meanwhile_memory, BYTES);
    atomic_store(&after_opening, replace_meanwhile);
    assert_int_equal(memory_view(theirs, 0, &old, BYTES, &view), MUSTER_EPROTOCOL);
    assert_int_equal(meanwhile_place.id, old.id);
    assert_int_equal(mapped(), 1 + 1);
    assert_int_equal(memory_view(theirs, 0, &meanwhile_place, BYTES, &view), 0);
    assert_ptr_equal(view, meanwhile_view);
    memory_release(ours, meanwhile_memory);
}

static void what_is_one_too_many_leaves_nothing(void **state) {
    (void)state;
    static unsigned char *allocations[MUSTER_ALLOCATIONS_MAX];
    void *one_more = NULL;
    descriptors_raise(); /* each holds one; a user's shell often allows 1024 */
    if (descriptors_limit() < MUSTER_ALLOCATIONS_MAX + 64) {
        print_message("SKIP: too few descriptors (ulimit -Hn)\n");
        skip();
    }
    for (uint32_t i = 0; i < MUSTER_ALLOCATIONS_MAX; i++) {
        allocations[i] = allocate(ours, 1);
    }
    size_t before = mapped();
    assert_int_equal(memory_allocate(ours, 1, &one_more), MUSTER_ELIMIT);
    assert_null(one_more);
    assert_int_equal(mapped(), before);
    for (uint32_t i = 0; i < MUSTER_ALLOCATIONS_MAX; i++) {
        memory_release(ours, allocations[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_neighbour_sees_what_is_written, make, unmake),
        cmocka_unit_test_setup_teardown(only_what_lies_inside_is_found, make, unmake),
        cmocka_unit_test_setup_teardown(a_place_out_of_bounds_is_refused, make, unmake),
        cmocka_unit_test_setup_teardown(what_is_gone_is_not_copied, make, unmake),
        cmocka_unit_test_setup_teardown(what_took_its_place_is_another, make, unmake),
        cmocka_unit_test_setup_teardown(an_old_place_leaves_the_new_view, make, unmake),
        cmocka_unit_test_setup_teardown(what_somebody_is_at_work_in_stays, make, unmake),
        cmocka_unit_test_setup_teardown(nothing_is_left, make, unmake),
        cmocka_unit_test(there_is_a_limit),
        cmocka_unit_test(without_neighbours_it_is_ordinary_memory),
        cmocka_unit_test_setup_teardown(threads_may_come_and_go, make, unmake),
        cmocka_unit_test_setup_teardown(nobody_waits_for_the_kernel, make, unmake),
        cmocka_unit_test_setup_teardown(nobody_waits_for_a_view, make, unmake),
        cmocka_unit_test_setup_teardown(two_may_map_the_same, make, unmake),
        cmocka_unit_test_setup_teardown(what_is_replaced_meanwhile_leaves_the_new_view, make, unmake),
        cmocka_unit_test_setup_teardown(what_is_one_too_many_leaves_nothing, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
