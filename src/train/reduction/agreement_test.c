/* What ranks say of themselves: the same is agreed on, and what differs is told with both lines. */
#include <muster/group.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/group/ranks_test_support.h"
#include "train/reduction/agreement.h"

enum { SIZE = 3, LIAR = 2 };

struct plan {
    const char *texts[2]; /* of most ranks, and of the last */
    const char *sentence; /* NULL: they agree */
};

static const struct plan plans[] = {
    {{"option rebuild: true\nparameter 0: w\n", "option rebuild: true\nparameter 0: w\n"}, NULL},
    {{"", ""}, NULL},
    {{"option rebuild: true\nparameter 0: w\n", "option rebuild: false\nparameter 0: w\n"},
     "different options: rebuild is false on rank 2, and true on rank 0"},
    {{"option rebuild: true\nparameter 0: w\n", "option rebuild: true\nparameter 0: v\n"},
     "different models: rank 2 has \"parameter 0: v\" where rank 0 has \"parameter 0: w\""},
    {{"parameter 0: w\n", "parameter 0: w\nparameter 1: w\n"},
     "different models: rank 2 has \"parameter 1: w\" where rank 0 has \"nothing\""},
    /* Options of which only one has the name. */
    {{"option a: 1\noption b: 2\n", "option a: 1\n"}, "rank 2 has \"nothing\" where rank 0 has \"option b: 2\""},
    {{"option a: 1\n", "option b: 1\n"}, "rank 2 has \"option b: 1\" where rank 0 has \"option a: 1\""},
};

static int compare(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const struct plan *plan = &plans[i];
        struct buf text;
        buf_init(&text, AGREEMENT_BYTES_MAX);
        rank_check_code(rank, buf_printf(&text, "%s", plan->texts[rank->rank == LIAR]), MUSTER_OK);
        rank_check_code(rank, agreement_compare(group, &text), plan->sentence ? MUSTER_EMISMATCH : MUSTER_OK);
        rank_check(rank, !plan->sentence || strstr(muster_detail(), plan->sentence));
        buf_done(&text);
    }
    rank_check_code(rank, muster_group_status(group), MUSTER_OK);
    muster_group_free(group);
    return 0;
}

static void ranks_are_told_what_differs(void **state) {
    (void)state;
    ranks_run(SIZE, compare, NULL);
}

/* Those of the mask refuse; the others are told of the lowest one. */
static int refuse(struct rank *rank, void *argument) {
    static const uint32_t masks[] = {1U << LIAR, 1U << 0, 1U << 1 | 1U << LIAR, 7};
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct buf text;
        char own[64], expected[96];
        uint32_t lowest = (uint32_t)__builtin_ctz(masks[i]);
        (void)snprintf(own, sizeof own, "there is no GPU %u", rank->rank);
        (void)snprintf(expected, sizeof expected, "rank %u cannot take part: there is no GPU %u", lowest, lowest);
        buf_init(&text, AGREEMENT_BYTES_MAX);
        rank_check_code(rank, buf_printf(&text, "option a: 1\n"), MUSTER_OK);
        if (masks[i] >> rank->rank & 1) {
            rank_check_code(rank, agreement_refuse(group, status_fail(MUSTER_EINVAL, "%s", own)), MUSTER_EINVAL);
            rank_check(rank, strcmp(muster_detail(), own) == 0);
        } else {
            rank_check_code(rank, agreement_compare(group, &text), MUSTER_EMISMATCH);
            rank_check(rank, strcmp(muster_detail(), expected) == 0);
        }
        buf_done(&text);
    }
    rank_check_code(rank, muster_group_status(group), MUSTER_OK);
    muster_group_free(group);
    return 0;
}

static void who_cannot_take_part_is_named(void **state) {
    (void)state;
    ranks_run(SIZE, refuse, NULL);
}

static int compare_long_lines(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    char line[2 * AGREEMENT_LINE_MAX];
    memset(line, 'a' + (int)rank->rank, sizeof line);
    line[sizeof line - 1] = '\n';
    struct buf text;
    buf_init(&text, AGREEMENT_BYTES_MAX);
    rank_check_code(rank, buf_append(&text, line, sizeof line), MUSTER_OK);
    rank_check_code(rank, agreement_compare(group, &text), MUSTER_EMISMATCH);
    rank_check(rank, strstr(muster_detail(), "rank 1 has \"bbb"));
    rank_check(rank, strstr(muster_detail(), "where rank 0 has \"aaa"));
    buf_done(&text);
    muster_group_free(group);
    return 0;
}

static void a_sentence_cuts_long_lines(void **state) {
    (void)state;
    ranks_run(SIZE, compare_long_lines, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_told_what_differs),
        cmocka_unit_test(who_cannot_take_part_is_named),
        cmocka_unit_test(a_sentence_cuts_long_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
