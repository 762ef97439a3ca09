/* The table of algorithms: the built-in one leaves nothing out, rules count in order, text and table agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/status.h>

#include "comm/schedule/choice.h"

static struct choice choice;
static struct choice_table table;

/* What the table promises, by the definition: the first rule that fits, the built-in ones last. */
static const struct choice_rule *first_rule(const struct choice *own, enum comm_operation operation,
                                            enum choice_medium medium, uint32_t ranks, enum choice_load load,
                                            uint64_t bytes) {
    size_t own_count = own ? own->rule_count : 0, builtin_count;
    const struct choice_rule *builtin = choice_builtin(&builtin_count);
    for (size_t i = 0; i < own_count + builtin_count; i++) {
        const struct choice_rule *rule = i < own_count ? &own->rules[i] : &builtin[i - own_count];
        if (rule->operation == operation && rule->medium == medium && rule->ranks_min <= ranks &&
            ranks <= rule->ranks_max && (rule->load == CHOICE_ANY_LOAD || rule->load == load) &&
            rule->bytes_min <= bytes && bytes <= rule->bytes_max) {
            return rule;
        }
    }
    return NULL;
}

static void check_at(const struct choice *own, enum choice_medium medium, uint32_t ranks, bool is_crowded,
                     enum comm_operation operation, uint64_t bytes) {
    enum choice_load load = is_crowded ? CHOICE_CROWDED : CHOICE_FITS;
    const struct choice_rule *expected = first_rule(own, operation, medium, ranks, load, bytes);
    assert_non_null(expected);
    struct choice_answer answer = choice_of_bytes(&table, operation, bytes);
    assert_int_equal(answer.algorithm, expected->algorithm);
    assert_int_equal(answer.piece_bytes, expected->piece_bytes);
    assert_true(choice_is_possible(operation, medium, answer.algorithm));
}

static void check_all(const struct choice *own) {
    static const uint32_t ranks[] = {1, 2, 3, 4, 5, 8, 9, 16, 32, 33, 1000, 65536};
    static const uint64_t bytes[] = {0, 1, 2, 7, 8, 9, 16384, 16385, 1 << 20, 1 << 30, UINT64_MAX - 1, UINT64_MAX};
    for (int medium = 0; medium < CHOICE_MEDIUM_COUNT; medium++) {
        for (size_t r = 0; r < sizeof ranks / sizeof *ranks * 2; r++) {
            choice_table_make(own, (enum choice_medium)medium, ranks[r / 2], r % 2, &table);
            for (int operation = COMM_BARRIER; operation <= COMM_OPERATION_LAST; operation++) {
                for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
                    if (operation != COMM_SEND && operation != COMM_RECEIVE) {
                        check_at(own, (enum choice_medium)medium, ranks[r / 2], r % 2, (enum comm_operation)operation,
                                 bytes[b]);
                    }
                }
            }
        }
    }
}

static void parse(const char *text) {
    if (choice_parse(text, strlen(text), &choice) != 0) {
        fail_msg("%s", muster_detail());
    }
}

static void the_builtin_table_leaves_nothing_out(void **state) {
    (void)state;
    check_all(NULL);
    size_t count;
    assert_true(choice_builtin(&count) && count <= CHOICE_RULES_MAX);
}

static void rules_count_in_order(void **state) {
    (void)state;
    parse("# comment\n"
          "\n"
          "all_reduce messages 2-4 *       8-16   ring            # first\n"
          "all_reduce messages *   crowded 9-1G   rabenseifner 64K\r\n"
          "all_reduce\tmessages 4- * * recursive_doubling\n"
          "gather private * * 18446744073709551615 single_copy");
    assert_int_equal(choice.rule_count, 4);
    check_all(&choice);
    choice_table_make(&choice, CHOICE_MESSAGES, 4, true, &table);
    assert_int_equal(choice_of_bytes(&table, COMM_ALL_REDUCE, 7).algorithm, SCHEDULE_RECURSIVE_DOUBLING);
    assert_int_equal(choice_of_bytes(&table, COMM_ALL_REDUCE, 16).algorithm, SCHEDULE_RING);
    assert_int_equal(choice_of_bytes(&table, COMM_ALL_REDUCE, 17).algorithm, SCHEDULE_RABENSEIFNER);
    assert_int_equal(choice_of_bytes(&table, COMM_ALL_REDUCE, 17).piece_bytes, 65536);
    assert_int_equal(choice_of_bytes(&table, COMM_ALL_REDUCE, UINT64_MAX).algorithm, SCHEDULE_RECURSIVE_DOUBLING);
}

static uint32_t algorithm_of(struct comm_call call) {
    comm_call_prepare(&call, 3);
    return choice_of(&table, &call, 3).algorithm;
}

static void bytes_are_those_of_the_larger_buffer(void **state) {
    (void)state;
    static const size_t counts[] = {100, 0, 24};
    parse("all_gather messages * * 0-499 flat\nall_gather messages * * 500- ring\n"
          "scatter messages * * 0-495 flat\nscatter messages * * 496- binomial\n"
          "all_to_all messages * * 0-1000 pairwise\nall_to_all messages * * * bruck\n");
    choice_table_make(&choice, CHOICE_MESSAGES, 3, false, &table);
    struct comm_call call = {.operation = COMM_ALL_GATHER, .type = MUSTER_FLOAT32, .count = 41};
    assert_int_equal(algorithm_of(call), SCHEDULE_FLAT); /* 492 bytes */
    call.count = 42;
    assert_int_equal(algorithm_of(call), SCHEDULE_RING);
    call.count = 0, call.receive_counts = counts;
    assert_int_equal(algorithm_of(call), SCHEDULE_FLAT); /* 496 */
    call = (struct comm_call){.operation = COMM_SCATTER, .type = MUSTER_FLOAT32, .send_counts = counts};
    assert_int_equal(algorithm_of(call), SCHEDULE_BINOMIAL);
    call = (struct comm_call){.operation = COMM_ALL_TO_ALL, .type = MUSTER_INT8, .count = 1000};
    assert_int_equal(algorithm_of(call), SCHEDULE_BRUCK);
    /* Ranks do not know each other's counts: one answer for all, that any counts can take. */
    call.send_counts = call.receive_counts = counts;
    assert_int_equal(algorithm_of(call), SCHEDULE_FLAT);
}

static void too_many_ranges_end_in_the_last(void **state) {
    (void)state;
    choice.rule_count = 0;
    for (uint32_t i = 0; i < 2 * CHOICE_RANGES_MAX; i++) {
        choice.rules[choice.rule_count++] = (struct choice_rule){
            COMM_BROADCAST, CHOICE_MESSAGES, 0, 9, CHOICE_ANY_LOAD, i, i, SCHEDULE_FLAT + i % 2, i};
    }
    choice_table_make(&choice, CHOICE_MESSAGES, 3, false, &table);
    assert_int_equal(choice_of_bytes(&table, COMM_BROADCAST, CHOICE_RANGES_MAX - 2).piece_bytes, CHOICE_RANGES_MAX - 2);
    assert_int_equal(choice_of_bytes(&table, COMM_BROADCAST, UINT64_MAX).piece_bytes, CHOICE_RANGES_MAX - 1);
}

static void what_is_written_is_read_back(void **state) {
    (void)state;
    static char text[CHOICE_FILE_BYTES_MAX];
    size_t used = 0, count;
    const struct choice_rule *builtin = choice_builtin(&count);
    for (size_t i = 0; i < count; i++) {
        assert_true(choice_rule_format(&builtin[i], text + used, sizeof text - used));
        used += strlen(text + used);
    }
    const struct choice_rule odd = {COMM_MONITORED_BARRIER,
                                    CHOICE_MESSAGES,
                                    7,
                                    7,
                                    CHOICE_CROWDED,
                                    UINT64_MAX,
                                    UINT64_MAX,
                                    SCHEDULE_DISSEMINATION,
                                    1023};
    assert_true(choice_rule_format(&odd, text + used, sizeof text - used));
    assert_string_equal(text + used, "monitored_barrier messages 7      crowded 18446744073709551615 dissemination "
                                     "1023\n");
    char narrow[20];
    assert_false(choice_rule_format(&odd, narrow, sizeof narrow));
    parse(text);
    assert_int_equal(choice.rule_count, count + 1);
    assert_int_equal(choice.rules[count].bytes_min, UINT64_MAX);
    choice.rule_count--;
    struct choice copy = {.rule_count = count};
    memcpy(copy.rules, builtin, count * sizeof *builtin);
    assert_true(choice_hash(&choice) == choice_hash(&copy));
    assert_false(choice_hash(&choice) == choice_hash(NULL));
    copy.rules[3].piece_bytes = 1;
    assert_false(choice_hash(&choice) == choice_hash(&copy));
}

static void assert_refused(const char *text, const char *detail) {
    assert_int_equal(choice_parse(text, strlen(text), &choice), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), detail);
}

static void mistakes_are_named(void **state) {
    (void)state;
    assert_refused("\nring", "line 2: expected 6 or 7 words");
    assert_refused("ring messages * * * ring", "line 1: expected an operation");
    assert_refused("reduce tcp * * * ring", "line 1: expected private, shared or messages");
    assert_refused("reduce messages 4-2 * * ring", "line 1: expected numbers of ranks");
    assert_refused("reduce messages 4294967296 * * ring", "line 1: expected numbers of ranks");
    assert_refused("reduce messages 4- busy * ring", "line 1: expected fits, crowded or *");
    assert_refused("reduce messages 4- fits 18446744073709551616 ring", "line 1: expected bytes");
    assert_refused("reduce messages 4- fits 99999999999G ring", "line 1: expected bytes");
    assert_refused("reduce messages 4- fits 3-- ring", "line 1: expected bytes");
    assert_refused("reduce messages 4- fits - ring", "line 1: expected bytes");
    assert_refused("reduce messages 4- fits * rings", "line 1: expected an algorithm");
    assert_refused("reduce messages 4- fits * recursive doubling", "line 1: expected an algorithm");
    assert_refused("reduce messages 4- fits * ring 5x", "line 1: expected the bytes of a piece");
    assert_refused("reduce messages 4- fits * pairwise", "line 1: reduce by messages has no pairwise algorithm");
    assert_refused("reduce private * * * direct", "line 1: reduce by private has no direct algorithm");
    assert_refused("send messages * * * flat", "line 1: send by messages has no flat algorithm");
    assert_refused("barrier messages * * * staged", "line 1: barrier by messages has no staged algorithm");
    assert_refused("1 2 3 4 5 6 7 8", "line 1: more than 7 words, or a word of more than 31 bytes");
    assert_refused("01234567890123456789012345678901 2", "line 1: more than 7 words, or a word of more than 31 bytes");
    static char many[CHOICE_FILE_BYTES_MAX + 2];
    memset(many, '\n', CHOICE_FILE_BYTES_MAX + 1);
    assert_refused(many, "more than 65536 bytes");
    many[0] = '\0';
    for (uint32_t i = 0; i <= CHOICE_RULES_MAX; i++) {
        (void)snprintf(many + strlen(many), 40, "reduce messages * * * ring\n");
    }
    assert_refused(many, "line 513: more than 512 rules");
}

static void a_file_is_loaded(void **state) {
    (void)state;
    struct choice *loaded = NULL;
    char path[] = "/tmp/muster_choice_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "barrier messages * * * dissemination\nfalse\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(choice_load(path, &loaded), MUSTER_EINVAL);
    char expected[128];
    (void)snprintf(expected, sizeof expected, "MUSTER_CHOICE_FILE %s: line 2: expected 6 or 7 words", path);
    assert_string_equal(muster_detail(), expected);
    assert_int_equal(ftruncate(fd, 37), 0);
    assert_int_equal(choice_load(path, &loaded), 0);
    assert_int_equal(loaded->rule_count, 1);
    free(loaded);
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(choice_load(path, &loaded), MUSTER_ESYSTEM);
    assert_int_equal(choice_load("/tmp", &loaded), MUSTER_ESYSTEM);
}

static void links_stand_among_rules(void **state) {
    (void)state;
    static const char text[] = "link 2 10.0.0.1=10.0.0.2\nall_reduce messages 2 * * ring\nlink 8 fd00::1=fd00::2\n",
                      other[] = "link 3 10.0.0.1=10.0.0.2\nall_reduce messages 2 * * ring\nlink 8 fd00::1=fd00::2\n",
                      wrong[] = "barrier messages * * * dissemination\nlink 9 10.0.0.1=10.0.0.2\n";
    assert_int_equal(choice_parse(text, sizeof text - 1, &choice), 0);
    assert_true(choice.link_count == 2 && choice.rule_count == 1);
    assert_true(choice.links[0].stream_count == 2 && choice.links[1].stream_count == 8);
    uint64_t hash = choice_hash(&choice);
    assert_int_equal(choice_parse(other, sizeof other - 1, &choice), 0);
    assert_true(choice_hash(&choice) != hash);
    assert_int_equal(choice_parse(wrong, sizeof wrong - 1, &choice), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "line 2: expected a number of connections"));
    static char many[(CHOICE_LINKS_MAX + 1) * 16 + 1];
    size_t used = 0;
    for (uint32_t i = 0; i <= CHOICE_LINKS_MAX; i++) {
        used += (size_t)snprintf(many + used, sizeof many - used, "link 1 1::=2::\n");
    }
    assert_int_equal(choice_parse(many, used, &choice), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "line 513: more than 512 links"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_builtin_table_leaves_nothing_out),
        cmocka_unit_test(rules_count_in_order),
        cmocka_unit_test(bytes_are_those_of_the_larger_buffer),
        cmocka_unit_test(too_many_ranges_end_in_the_last),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_file_is_loaded),
        cmocka_unit_test(links_stand_among_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
