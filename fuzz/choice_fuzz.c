/* The table of algorithms as text: whatever is accepted can be written and read back, and answers every question. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "comm/schedule/choice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct choice first, second; /* large for a stack */
static char text[CHOICE_RULES_MAX * 160 + CHOICE_LINKS_MAX * LINK_PLAN_TEXT_MAX];

static void check_answers(uint32_t ranks, uint64_t bytes) {
    static struct choice_table table;
    for (int medium = 0; medium < CHOICE_MEDIUM_COUNT; medium++) {
        choice_table_make(&first, (enum choice_medium)medium, ranks, ranks % 2, &table);
        struct choice_answer answer = choice_of_bytes(&table, COMM_ALL_REDUCE, bytes);
        assert(choice_is_possible(COMM_ALL_REDUCE, (enum choice_medium)medium, answer.algorithm));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (choice_parse((const char *)data, size, &first) != 0) {
        return 0;
    }
    size_t used = 0;
    for (size_t i = 0; i < first.rule_count; i++) {
        bool fits = choice_rule_format(&first.rules[i], text + used, sizeof text - used);
        assert(fits);
        used += strlen(text + used);
    }
    for (size_t i = 0; i < first.link_count; i++) {
        bool fits = link_plan_format(&first.links[i], text + used, sizeof text - used);
        assert(fits && first.links[i].path_count > 0 && first.links[i].path_count <= first.links[i].stream_count);
        used += strlen(text + used);
    }
    if (used <= CHOICE_FILE_BYTES_MAX) {
        int status = choice_parse(text, used, &second);
        assert(status == 0 && second.rule_count == first.rule_count && second.link_count == first.link_count);
        assert(choice_hash(&first) == choice_hash(&second));
    }
    check_answers(size > 0 ? data[0] : 1, size > 1 ? UINT64_C(1) << data[1] % 64 : 0);
    return 0;
}
