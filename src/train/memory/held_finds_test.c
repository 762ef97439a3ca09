/* Names of held memory: what is found under them, which one new memory gets, and which ones go. This process holds. */
#include "train/memory/held_finds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"

static struct holder *holder;

static int set_up(void **state) {
    (void)state;
    return holder_open(&holder);
}

static int tear_down(void **state) {
    (void)state;
    holder_close(holder);
    return 0;
}

/* Memory with this number in it. */
static void put(const char *name, int number) {
    struct state_region region;
    assert_int_equal(state_region_create(NULL, "a test", sizeof number, &region), 0);
    memcpy(region.memory, &number, sizeof number);
    assert_int_equal(holder_put(holder, name, region.segment.fd), 0);
    state_region_free(&region);
}

static bool is_held(const char *name) {
    int fd = -1;
    bool is = holder_get(holder, name, &fd) == MUSTER_OK;
    if (is) {
        (void)close(fd);
    }
    return is;
}

static void expect_find(const struct held_finds *finds, size_t index, const char *name, int number) {
    const struct held_find *find = &finds->items[index];
    int found = 0;
    assert_true(index < finds->count && held_find_bytes(find) >= sizeof found);
    memcpy(&found, find->region.memory, sizeof found);
    assert_string_equal(find->name, name);
    assert_int_equal(found, number);
}

static void a_role_has_two_names(void **state) {
    (void)state;
    struct held_finds finds = {.items = NULL};
    char name[HELD_FIND_NAME_BYTES];
    put("a/host x", 1);
    put("a/host x+", 2);
    put("a/host xy", 3); /* another role */
    assert_int_equal(held_finds_look(&finds, holder, "a/host x"), 0);
    assert_int_equal(held_finds_look(&finds, holder, "a/host x"), 0); /* once is enough */
    assert_int_equal(finds.count, 2);
    expect_find(&finds, 0, "a/host x", 1);
    expect_find(&finds, 1, "a/host x+", 2);
    assert_true(held_find_is_of(&finds.items[1], "a/host x") && !held_find_is_of(&finds.items[1], "a/host xy"));
    held_finds_free_name(&finds, "a/host x", name);
    assert_string_equal(name, "a/host x");
    finds.items[0].is_needed = true;
    held_finds_free_name(&finds, "a/host x", name);
    assert_string_equal(name, "a/host x+");
    held_finds_free_name(&finds, "a/host z", name);
    assert_string_equal(name, "a/host z");
    assert_int_equal(held_finds_drop(&finds, holder, &(struct held_use){"a/host x", "a/host x+", 0}), 0);
    assert_true(!is_held("a/host x") && is_held("a/host x+") && is_held("a/host xy"));
    held_finds_done(&finds);
    assert_int_equal(holder_drop(holder, "a/host x+"), 0);
    assert_int_equal(holder_drop(holder, "a/host xy"), 0);
}

/* Ranks of a world of four have left memory; two go on, and each looks after its own. */
static void roles_are_counted(void **state) {
    (void)state;
    static const char *const names[] = {"b/rank 0", "b/rank 1+", "b/rank 2", "b/rank 3", "b/rank 5"};
    struct held_finds finds = {.items = NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        put(names[i], (int)i);
    }
    assert_int_equal(held_finds_look(&finds, holder, "b/rank 0"), 0);
    assert_int_equal(held_finds_look_on(&finds, holder, "b/rank "), 0);
    assert_int_equal(finds.count, 4); /* there is no 4 */
    expect_find(&finds, 1, "b/rank 1+", 1);
    assert_int_equal(held_finds_drop(&finds, holder, &(struct held_use){"b/rank 0", "b/rank 0", 2}), 0);
    assert_true(is_held("b/rank 0") && is_held("b/rank 1+") && !is_held("b/rank 2") && !is_held("b/rank 3"));
    assert_int_equal(held_finds_drop(&finds, holder, &(struct held_use){"b/host", "b/host", 0}), 0);
    assert_true(!is_held("b/rank 0") && !is_held("b/rank 1+"));
    held_finds_done(&finds);
    assert_int_equal(holder_drop(holder, "b/rank 5"), 0);
}

static void what_cannot_be_mapped_is_found_and_goes(void **state) {
    (void)state;
    struct held_finds finds = {.items = NULL};
    int fd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(holder_put(holder, "c/host", fd), 0);
    (void)close(fd);
    assert_int_equal(held_finds_look(&finds, holder, "c/host"), 0);
    assert_true(finds.count == 1 && finds.items[0].region.memory == NULL && held_find_bytes(&finds.items[0]) == 0);
    assert_int_equal(held_finds_drop(&finds, holder, &(struct held_use){"c/host", NULL, 0}), 0);
    assert_false(is_held("c/host"));
    held_finds_done(&finds);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_role_has_two_names),
        cmocka_unit_test(roles_are_counted),
        cmocka_unit_test(what_cannot_be_mapped_is_found_and_goes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
