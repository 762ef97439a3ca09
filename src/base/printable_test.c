/* What reaches a terminal of text from outside. */
#include "base/printable.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void expect(const char *text, bool keeps_newlines, const char *expected) {
    char copy[64];
    size_t count = strlen(text);
    memcpy(copy, text, count + 1);
    printable_clean(copy, count, keeps_newlines);
    assert_string_equal(copy, expected);
}

static void controls_become_question_marks(void **state) {
    (void)state;
    expect("plain caf\xc3\xa9 \xf0\x9f\x98\x80\t.", false, "plain caf\xc3\xa9 \xf0\x9f\x98\x80\t.");
    expect("\x1b[2Jgone\a\x7f\r", false, "?[2Jgone???");
    expect("\xc2\x9b[2J \xc2\x80\xc2\x9f\xc2\xa0", false, "??[2J ????\xc2\xa0"); /* the CSI of eight bits; a blank */
    expect("\x9b[2J \xff \xe2\x82", false, "?[2J ? ??");                         /* no UTF-8 */
    expect("a\nb", true, "a\nb");
    expect("a\nb", false, "a?b");
    expect("", false, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(controls_become_question_marks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
