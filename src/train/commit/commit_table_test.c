/* The labels of two copies, and a model of all orders in which writers of several hosts can come to a death. */
#include "train/commit/commit_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/commit/commit_choose.h"

enum { LIFE = 5, BEFORE = 4 };

static const struct commit_kind kind = {1000, 10, 42};
static const struct commit_place place = {1, 2, 4}; /* parts 1 and 3 of 4 */

static struct commit_table *table_for(uint32_t writers) {
    size_t bytes = commit_table_bytes(writers);
    struct commit_table *table = aligned_alloc(64, bytes);
    assert_non_null(table);
    memset(table, 0, bytes);
    commit_table_init(table, &kind, &place, writers);
    return table;
}

static void expect_steps(const struct commit_table *table, int64_t first, int64_t second) {
    int64_t steps[COMMIT_COPIES];
    commit_table_steps(table, steps);
    assert_int_equal(steps[0], first);
    assert_int_equal(steps[1], second);
}

/* ---- one table ---- */

static void a_copy_holds_what_all_writers_say(void **state) {
    (void)state;
    struct commit_table *table = table_for(3);
    expect_steps(table, COMMIT_NOTHING, COMMIT_NOTHING);
    commit_table_label(table, 0, 1, 7);
    commit_table_label(table, 1, 1, 7);
    expect_steps(table, COMMIT_NOTHING, COMMIT_NOTHING);
    commit_table_label(table, 2, 1, 7);
    expect_steps(table, COMMIT_NOTHING, 7);
    commit_table_label(table, 0, 0, 8);
    commit_table_label(table, 2, 0, 8);
    expect_steps(table, COMMIT_NOTHING, 7);
    commit_table_label(table, 1, 0, 8);
    expect_steps(table, 8, 7);
    commit_table_label(table, 1, 1, COMMIT_NOTHING);
    expect_steps(table, 8, COMMIT_NOTHING);
    free(table);
}

static void new_writers_take_over_in_one_store(void **state) {
    (void)state;
    struct commit_table *table = table_for(2);
    size_t bytes = commit_table_bytes(2);
    for (uint32_t writer = 0; writer < 2; writer++) {
        commit_table_label(table, writer, 0, 4);
    }
    commit_table_label(table, 0, 1, 5); /* is one ahead */
    unsigned char *before = malloc(bytes), *mixed = aligned_alloc(64, bytes);
    assert_true(before && mixed);
    memcpy(before, table, bytes);
    commit_table_renew(table, 5, 1, &(struct commit_life){.from = 9});
    expect_steps(table, COMMIT_NOTHING, 9);
    commit_table_label(table, 4, 0, 10);
    expect_steps(table, COMMIT_NOTHING, 9);

    /* Without one word of what has been written, the old writers count as they did. */
    size_t deciding = 0;
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
        int64_t steps[COMMIT_COPIES];
        memcpy(mixed, table, bytes);
        memcpy(mixed + i, before + i, sizeof(uint64_t));
        commit_table_steps((struct commit_table *)(void *)mixed, steps);
        deciding += steps[0] == 4 && steps[1] == COMMIT_NOTHING;
    }
    assert_int_equal(deciding, 1);
    free(mixed);
    free(before);
    free(table);
}

/* A program writes a word where it should not: its table is none any more, or a copy less is there. Never is a step
 * there that was not committed, and never another life. */
static void wild_writes_make_no_steps(void **state) {
    (void)state;
    struct commit_table *table = table_for(3), *wild = table_for(3);
    size_t bytes = commit_table_bytes(3), used = bytes - (2 * COMMIT_WRITERS_LEAST - 3) * (size_t)64, none = 0,
           less = 0;
    const struct commit_life life = {.from = 6, .from_life = BEFORE, .number = LIFE, .given_up = 1, .heard = 3};
    commit_table_renew(table, 3, 0, &life);
    for (uint32_t writer = 0; writer < 3; writer++) {
        commit_table_label(table, writer, 1, 7);
    }
    const struct commit_offer offer = commit_table_offer(table);
    const uint64_t *words = (const uint64_t *)(const void *)table;
    for (size_t at = 0; at < bytes / sizeof *words; at++) {
        const uint64_t written[] = {0,
                                    1,
                                    2,
                                    3,
                                    6,
                                    7,
                                    8,
                                    INT64_MAX,
                                    UINT64_MAX,
                                    words[at] + 1,
                                    words[at] ^ UINT64_C(1) << 63,
                                    words[at / 2],
                                    words[at + 1 < used / 8 ? at + 1 : 0],
                                    UINT64_C(0x0707070707070707)};
        for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
            memcpy(wild, table, bytes);
            memcpy((char *)wild + at * sizeof *words, &written[i], sizeof *written);
            if (!commit_table_is_of(wild, bytes, kind.fingerprint)) {
                none++;
                continue;
            }
            struct commit_offer found = commit_table_offer(wild);
            assert_true(found.steps[0] == 6 || found.steps[0] == COMMIT_NOTHING);
            assert_true(found.steps[1] == 7 || found.steps[1] == COMMIT_NOTHING);
            assert_memory_equal(&found.life, &offer.life,
                                offsetof(struct commit_life, failures) + sizeof life.failures);
            less += found.steps[0] != 6 || found.steps[1] != 7;
        }
    }
    assert_true(none > 0 && less >= 3 * COMMIT_COPIES * 2);
    free(wild);
    free(table);
}

static void strange_memory_is_no_table(void **state) {
    (void)state;
    struct commit_table *table = table_for(2);
    size_t bytes = commit_table_bytes(2);
    assert_true(commit_table_fits(table, bytes, &kind, &place, 2));
    assert_true(commit_table_fits(table, bytes, &kind, &place, COMMIT_WRITERS_LEAST));
    assert_false(commit_table_fits(table, bytes, &kind, &place, COMMIT_WRITERS_LEAST + 1));
    assert_false(commit_table_fits(table, bytes - 1, &kind, &place, 2));
    assert_false(commit_table_fits(table, 0, &kind, &place, 2));
    struct commit_kind other = kind;
    other.fingerprint++;
    const struct commit_place elsewhere = {0, 2, 4}, strange[] = {{0, 0, 4}, {2, 2, 4}, {0, 2, 3}, {0, 1, 0}};
    assert_false(commit_table_fits(table, bytes, &kind, &elsewhere, 2));
    assert_true(commit_table_is_of(table, bytes, kind.fingerprint));
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        struct commit_table *broken = table_for(2);
        memset(broken, 0, bytes);
        commit_table_init(broken, &kind, &strange[i], 2);
        assert_false(commit_table_is_of(broken, bytes, kind.fingerprint));
        free(broken);
    }
    assert_false(commit_table_fits(table, bytes, &other, &place, 2));
    for (size_t i = 0; i < 20; i++) { /* name and version; what follows are numbers with bounds */
        ((unsigned char *)table)[i] ^= 1;
        assert_false(commit_table_fits(table, bytes, &kind, &place, 2));
        ((unsigned char *)table)[i] ^= 1;
    }
    memset((unsigned char *)table + 20, 0xff, 4); /* room for 4 billion writers */
    assert_false(commit_table_fits(table, bytes, &kind, &place, 2));
    free(table);
}

static void a_new_life_may_begin_with_nothing(void **state) {
    (void)state;
    struct commit_table *table = table_for(2);
    commit_table_renew(table, 2, COMMIT_COPIES, &(struct commit_life){.from = 9, .from_life = BEFORE, .number = LIFE});
    expect_steps(table, COMMIT_NOTHING, COMMIT_NOTHING);
    commit_table_label(table, 0, 0, 9);
    expect_steps(table, COMMIT_NOTHING, COMMIT_NOTHING);
    commit_table_label(table, 1, 0, 9);
    expect_steps(table, 9, COMMIT_NOTHING);
    struct commit_offer offer = commit_table_offer(table);
    assert_true(commit_place_equals(&offer.place, &place));
    struct commit_label label = commit_offer_label(&offer, 0);
    assert_true(label.step == 9 && label.life == BEFORE);
    free(table);
}

/* ---- choosing ---- */

/* Of life LIFE, which went on from step `from` of the life before. */
static struct commit_offer offer_of(int64_t first, int64_t second, int64_t from) {
    return (struct commit_offer){
        .steps = {first, second}, .life = {.from = from, .from_life = BEFORE, .number = LIFE}, .place = {0, 1, 1}};
}

/* The life that has ended had gone on from step 7, after two failures there. */
static void failures_count_as_long_as_no_step_is_made(void **state) {
    (void)state;
    struct commit_offer offers[] = {offer_of(6, 7, 7), offer_of(7, 8, 7)};
    offers[0].life.failures = 2;
    offers[1].life.failures = 1;
    assert_int_equal(commit_count_failures(offers, 2, 7, true), 3);
    assert_int_equal(commit_count_failures(offers, 2, 7, false), 2); /* an end from outside changes nothing */
    assert_int_equal(commit_count_failures(offers, 2, 8, true), 1);  /* a step has been made */
    assert_int_equal(commit_count_failures(offers, 2, 8, false), 0);
    assert_int_equal(commit_count_failures(offers, 2, COMMIT_NOTHING, true), 0);
    assert_int_equal(commit_count_failures(NULL, 0, 7, true), 1);
}

static void parts_need_a_step_that_all_have(void **state) {
    (void)state;
    const struct commit_offer offers[] = {offer_of(7, 8, 0), offer_of(7, COMMIT_NOTHING, 0), offer_of(8, 7, 0)};
    assert_int_equal(commit_choose_common(offers, 3).step, 7);
    assert_int_equal(commit_choose_common(offers, 1).step, 8);
    const struct commit_offer apart[] = {offer_of(7, 8, 0), offer_of(5, 6, 0)};
    assert_int_equal(commit_choose_common(apart, 2).step, COMMIT_NOTHING);
    const struct commit_offer lost[] = {offer_of(7, 8, 0), offer_of(COMMIT_NOTHING, COMMIT_NOTHING, 0)};
    assert_int_equal(commit_choose_common(lost, 2).step, COMMIT_NOTHING);
    assert_int_equal(commit_choose_common(offers, 0).step, COMMIT_NOTHING);
}

static void equal_states_are_copied_from_the_newest(void **state) {
    (void)state;
    const struct commit_offer none = offer_of(COMMIT_NOTHING, COMMIT_NOTHING, 0);
    const struct commit_offer ahead[] = {offer_of(7, 8, 0), offer_of(7, COMMIT_NOTHING, 0)};
    assert_int_equal(commit_choose_replica(ahead, 2).step, 7); /* nobody needs to copy */
    const struct commit_offer newcomer[] = {offer_of(7, 8, 0), none};
    assert_int_equal(commit_choose_replica(newcomer, 2).step, 8);
    const struct commit_offer stale[] = {offer_of(7, 8, 0), offer_of(2, 3, 0), offer_of(8, 9, 0)};
    assert_int_equal(commit_choose_replica(stale, 3).step, 9);
    assert_int_equal(commit_choose_replica(&none, 1).step, COMMIT_NOTHING);
}

/* A job that went back has made steps 7 and 8 again: they are not those of a host that was away. */
static void steps_of_two_lives_are_not_one(void **state) {
    (void)state;
    struct commit_offer offers[] = {offer_of(7, 8, 3), offer_of(7, 8, 3)};
    assert_int_equal(commit_choose_common(offers, 2).step, 8);
    offers[1].life.number = LIFE + 1;
    assert_int_equal(commit_choose_common(offers, 2).step, COMMIT_NOTHING);
    struct commit_label label = commit_choose_replica(offers, 2);
    assert_true(label.step == 8 && label.life == LIFE + 1);
    /* Some ranks have begun another life, from step 8; the others were killed before that. */
    offers[1] = offer_of(8, COMMIT_NOTHING, 8);
    offers[1].life.from_life = LIFE;
    offers[1].life.number = LIFE + 1;
    label = commit_choose_common(offers, 2);
    assert_true(label.step == 8 && label.life == LIFE);
}

static void what_was_given_up_is_offered_no_more(void **state) {
    (void)state;
    struct commit_offer offers[] = {offer_of(7, 8, 7), offer_of(2, COMMIT_NOTHING, COMMIT_NOTHING)};
    offers[1].life.number = LIFE + 1;
    offers[1].life.given_up = LIFE;
    commit_offers_forget(offers, 2);
    assert_int_equal(commit_choose_replica(offers, 2).step, 2);
    assert_int_equal(offers[0].life.given_up, LIFE);
    uint64_t life = UINT64_C(3) << 32 | 77;
    offers[0].life.number = life;
    assert_int_equal(commit_next_life(offers, 2, 5), UINT64_C(4) << 32 | 5);
    assert_int_equal(commit_next_life(NULL, 0, 5), UINT64_C(1) << 32 | 5);
}

static struct commit_offer offer_at(int64_t first, int64_t second, uint32_t part, uint32_t stride,
                                    uint32_t part_count) {
    struct commit_offer offer = offer_of(first, second, 0);
    offer.place = (struct commit_place){part, stride, part_count};
    return offer;
}

static void parts_may_lie_anywhere(void **state) {
    (void)state;
    uint32_t part_count = 0;
    const struct commit_offer offers[] = {
        offer_at(7, 8, 1, 2, 4),              /* parts 1 and 3 of 4 */
        offer_at(9, COMMIT_NOTHING, 0, 3, 3), /* of another world: its parts 1 and 2 are gone */
        offer_at(6, 7, 0, 2, 4),
    };
    assert_int_equal(commit_choose_parts(offers, 3, &part_count).step, 7);
    assert_int_equal(part_count, 4);
    assert_int_equal(commit_choose_parts(offers, 2, &part_count).step, COMMIT_NOTHING);
    const struct commit_label label = {7, LIFE};
    assert_int_equal(commit_owner_of(offers, 3, &label, 4, 0), 2);
    assert_int_equal(commit_owner_of(offers, 3, &label, 4, 3), 0);
    assert_int_equal(commit_owner_of(offers, 3, &label, 3, 0), 3);
    const struct commit_offer whole = offer_at(5, 6, 0, 1, 3);
    assert_int_equal(commit_choose_parts(&whole, 1, &part_count).step, 6);
    assert_int_equal(part_count, 3);
}

/* Of thousands of ranks a host is lost, with the newest step. A cubic search would not end here. */
static void thousands_of_ranks_choose_at_once(void **state) {
    (void)state;
    enum { MANY = 4096 };
    static struct commit_offer offers[MANY];
    uint32_t part_count = 0;
    for (uint32_t part = 0; part < MANY; part++) {
        offers[part] = offer_at(7, part + 1 < MANY ? 8 : COMMIT_NOTHING, part, MANY, MANY);
    }
    assert_int_equal(commit_choose_parts(offers, MANY, &part_count).step, 7);
    assert_int_equal(part_count, MANY);
    for (uint32_t part = 0; part < MANY; part++) {
        offers[part] = offer_at(2 * part, 2 * part + 1, part, MANY, MANY);
    }
    assert_int_equal(commit_choose_parts(offers, MANY, &part_count).step, COMMIT_NOTHING);
}

/* ---- all orders ---- */

/* Writers, some of them on one host, make steps. Each meets the others, takes its label off the copy that is not
 * committed, writes two pieces, and puts the label of the step on. Whatever has been done of this when all are killed:
 * the step that is chosen is the newest that all have committed, and its pieces are all there. */
enum { WRITERS = 3, HOSTS = 2, STEPS = 4, ACTIONS = 5, PIECES = 2, STATES_MAX = 1 << 16 };

enum broken { NO_MEETING = 1, LABEL_FIRST = 2, LABEL_STAYS = 4 };
enum verdict { RIGHT, NOT_NEWEST, TORN, VERDICTS };

static const uint32_t host_of[WRITERS] = {0, 0, 1}, place_of[WRITERS] = {0, 1, 0};

struct world {
    uint32_t done[WRITERS]; /* actions since step 0 was committed */
};

/* What a writer has done to one copy. */
struct written {
    int64_t label, pieces[PIECES];
};

static void replay(const struct world *world, uint32_t writer, unsigned broken, struct written out[COMMIT_COPIES]) {
    for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
        int64_t step = i == 0 ? 0 : COMMIT_NOTHING;
        out[i] = (struct written){step, {step, step}};
    }
    for (uint32_t i = 0; i < world->done[writer]; i++) {
        int64_t step = 1 + i / ACTIONS;
        struct written *copy = &out[step % COMMIT_COPIES];
        uint32_t action = i % ACTIONS;
        if (action == 1) { /* action 0: to meet */
            copy->label = broken & LABEL_STAYS ? copy->label : broken & LABEL_FIRST ? step : COMMIT_NOTHING;
        } else if (action == 2 || action == 3) {
            copy->pieces[action - 2] = step;
        } else if (action == 4) {
            copy->label = step;
        }
    }
}

static int64_t committed_by_all(const struct world *world) {
    uint32_t least = world->done[0];
    for (uint32_t i = 1; i < WRITERS; i++) {
        least = world->done[i] < least ? world->done[i] : least;
    }
    return least / ACTIONS;
}

/* What is there after a death: does it give the newest step that all have committed, and is that whole? */
static enum verdict judge(const struct world *world, unsigned broken) {
    struct written written[WRITERS][COMMIT_COPIES];
    struct commit_offer offers[HOSTS];
    for (uint32_t host = 0; host < HOSTS; host++) {
        struct commit_table *table = table_for(host == 0 ? 2 : 1);
        for (uint32_t writer = 0; writer < WRITERS; writer++) {
            replay(world, writer, broken, written[writer]);
            for (uint32_t copy = 0; host_of[writer] == host && copy < COMMIT_COPIES; copy++) {
                commit_table_label(table, place_of[writer], copy, written[writer][copy].label);
            }
        }
        offers[host] = commit_table_offer(table);
        free(table);
    }
    int64_t step = commit_choose_common(offers, HOSTS).step;
    for (uint32_t writer = 0; step >= 0 && writer < WRITERS; writer++) {
        for (uint32_t piece = 0; piece < PIECES; piece++) {
            if (written[writer][step % COMMIT_COPIES].pieces[piece] != step) {
                return TORN;
            }
        }
    }
    return step == committed_by_all(world) ? RIGHT : NOT_NEWEST;
}

/* May this writer go on? It meets the others before it writes: all have committed the step before. */
static bool may_go_on(const struct world *world, uint32_t writer, unsigned broken) {
    uint32_t done = world->done[writer];
    if (done == STEPS * ACTIONS) {
        return false;
    }
    for (uint32_t other = 0; done % ACTIONS == 0 && !(broken & NO_MEETING) && other < WRITERS; other++) {
        if (world->done[other] < done) {
            return false;
        }
    }
    return true;
}

static uint32_t number_of(const struct world *world) {
    uint32_t number = 0;
    for (uint32_t i = 0; i < WRITERS; i++) {
        number = number * (STEPS * ACTIONS + 1) + world->done[i];
    }
    return number;
}

/* Looks at every state that can be reached. Returns how many; verdicts: how many of each. */
static uint32_t explore(unsigned broken, uint32_t verdicts[VERDICTS]) {
    static bool seen[STATES_MAX];
    static struct world queue[STATES_MAX];
    uint32_t count = 0;
    memset(seen, 0, sizeof seen);
    memset(verdicts, 0, VERDICTS * sizeof *verdicts);
    queue[count++] = (struct world){{0}};
    seen[0] = true;
    for (uint32_t at = 0; at < count; at++) {
        verdicts[judge(&queue[at], broken)]++;
        for (uint32_t writer = 0; writer < WRITERS; writer++) {
            struct world next = queue[at];
            next.done[writer]++;
            if (may_go_on(&queue[at], writer, broken) && !seen[number_of(&next)]) {
                seen[number_of(&next)] = true;
                queue[count++] = next;
            }
        }
    }
    print_message("%u states: %u right, %u not the newest, %u torn\n", count, verdicts[RIGHT], verdicts[NOT_NEWEST],
                  verdicts[TORN]);
    return count;
}

static void any_death_leaves_the_newest_common_step(void **state) {
    (void)state;
    uint32_t verdicts[VERDICTS];
    uint32_t count = explore(0, verdicts);
    assert_true(count > 500);
    assert_int_equal(verdicts[RIGHT], count);
}

static void without_a_meeting_steps_are_lost_but_not_torn(void **state) {
    (void)state;
    uint32_t verdicts[VERDICTS];
    (void)explore(NO_MEETING, verdicts);
    assert_true(verdicts[NOT_NEWEST] > 0);
    assert_int_equal(verdicts[TORN], 0);
}

static void labels_say_what_is_whole(void **state) {
    (void)state;
    uint32_t verdicts[VERDICTS];
    (void)explore(LABEL_FIRST, verdicts);
    assert_true(verdicts[TORN] > 0);
    (void)explore(NO_MEETING | LABEL_STAYS, verdicts);
    assert_true(verdicts[TORN] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_holds_what_all_writers_say),
        cmocka_unit_test(new_writers_take_over_in_one_store),
        cmocka_unit_test(wild_writes_make_no_steps),
        cmocka_unit_test(strange_memory_is_no_table),
        cmocka_unit_test(a_new_life_may_begin_with_nothing),
        cmocka_unit_test(failures_count_as_long_as_no_step_is_made),
        cmocka_unit_test(parts_need_a_step_that_all_have),
        cmocka_unit_test(equal_states_are_copied_from_the_newest),
        cmocka_unit_test(steps_of_two_lives_are_not_one),
        cmocka_unit_test(what_was_given_up_is_offered_no_more),
        cmocka_unit_test(parts_may_lie_anywhere),
        cmocka_unit_test(thousands_of_ranks_choose_at_once),
        cmocka_unit_test(any_death_leaves_the_newest_common_step),
        cmocka_unit_test(without_a_meeting_steps_are_lost_but_not_torn),
        cmocka_unit_test(labels_say_what_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
