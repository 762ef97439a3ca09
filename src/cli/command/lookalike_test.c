/* Characters that look like others: which are told, and where they may stand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cli/command/lookalike.h"

/* NULL: nothing is said. */
static void assert_said(const char *word, const char *expected) {
    char text[512] = "";
    char first[] = "--nnodes=1", copy[128];
    (void)strncpy(copy, word, sizeof copy - 1);
    copy[sizeof copy - 1] = '\0';
    char *words[] = {first, copy};
    bool found = lookalike_find(2, words, text, sizeof text);
    if (found != (expected != NULL) || (found && strstr(text, expected) == NULL)) {
        fail_msg("%s: '%s'", word, text);
    }
    assert_false(lookalike_find(1, words, text, sizeof text));
}

static void what_is_pasted_is_told(void **state) {
    (void)state;
    assert_said("–nproc-per-node", "'–nproc-per-node' begins with an en dash (U+2013), which is no hyphen-minus");
    assert_said("—nproc-per-node=2", "begins with an em dash (U+2014)");
    assert_said("−r", "begins with a minus sign (U+2212)");
    assert_said("-–nnodes=2", "contains an en dash");
    assert_said("--nproc–per–node=2", "contains an en dash");
    assert_said("“train.py”", "begins with a left double quotation mark (U+201C)");
    assert_said("--rdzv-id=“a", "contains a left double quotation mark");
    assert_said("‘a’", "begins with a left quotation mark (U+2018)");
    assert_said("--nnodes=2\u00a0train.py", "contains a non-breaking space (U+00A0)");
    assert_said("\u00a0--nnodes", "begins with a non-breaking space");
    assert_said("train\u200b.py", "contains a zero-width space");
}

static void what_can_be_meant_is_not(void **state) {
    (void)state;
    static const char *const words[] = {
        "train.py", "--rdzv-id=a–b", "lauf–1.py", "größe.py", "--role=−1", "it’s-training.py", "", "-5", "日本語.py"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_said(words[i], NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_pasted_is_told),
        cmocka_unit_test(what_can_be_meant_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
