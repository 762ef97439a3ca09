/* Looks for dashes, quotation marks and blanks that are others than they seem; see lookalike.h. */
#include "cli/command/lookalike.h"

#include <string.h>

#include "base/str.h"

enum kind { DASH, QUOTE, BLANK };

static const struct lookalike {
    const char *bytes, *name;
    enum kind kind;
} lookalikes[] = {
    {"\xe2\x80\x90", "a hyphen (U+2010)", DASH},
    {"\xe2\x80\x91", "a non-breaking hyphen (U+2011)", DASH},
    {"\xe2\x80\x92", "a figure dash (U+2012)", DASH},
    {"\xe2\x80\x93", "an en dash (U+2013)", DASH},
    {"\xe2\x80\x94", "an em dash (U+2014)", DASH},
    {"\xe2\x80\x95", "a horizontal bar (U+2015)", DASH},
    {"\xe2\x88\x92", "a minus sign (U+2212)", DASH},
    {"\xef\xb9\xa3", "a small hyphen-minus (U+FE63)", DASH},
    {"\xef\xbc\x8d", "a fullwidth hyphen-minus (U+FF0D)", DASH},
    {"\xc2\xad", "a soft hyphen (U+00AD)", DASH},
    {"\xe2\x80\x98", "a left quotation mark (U+2018)", QUOTE},
    {"\xe2\x80\x99", "a right quotation mark (U+2019)", QUOTE},
    {"\xe2\x80\x9c", "a left double quotation mark (U+201C)", QUOTE},
    {"\xe2\x80\x9d", "a right double quotation mark (U+201D)", QUOTE},
    {"\xc2\xa0", "a non-breaking space (U+00A0)", BLANK},
    {"\xe2\x80\xaf", "a narrow non-breaking space (U+202F)", BLANK},
    {"\xe2\x80\x8b", "a zero-width space (U+200B)", BLANK},
    {"\xef\xbb\xbf", "a byte order mark (U+FEFF)", BLANK},
};

static const struct lookalike *at(const char *text) {
    for (size_t i = 0; i < sizeof lookalikes / sizeof *lookalikes; i++) {
        if (str_has_prefix(text, lookalikes[i].bytes)) {
            return &lookalikes[i];
        }
    }
    return NULL;
}

/* A dash may be one in a value or a file's name, and a quotation mark within a word. */
static bool is_odd_there(const struct lookalike *found, const char *word, const char *place) {
    bool is_first = place == word, is_option = word[0] == '-';
    const char *equals = strchr(word, '=');
    switch (found->kind) {
    case DASH:
        return is_first || (is_option && (equals == NULL || place < equals));
    case QUOTE:
        return is_first || (place > word && place[-1] == '=');
    case BLANK:
        return true;
    }
    return false;
}

static void describe(const struct lookalike *found, const char *word, bool is_first, char *out, size_t size) {
    static const char *const advice[] = {
        [DASH] = "which is no hyphen-minus: type the dashes of options (-, --) anew",
        [QUOTE] = "which a shell does not take for a quotation mark: type \" or ' anew",
        [BLANK] = "at which a shell does not divide words: type the space anew, or remove it",
    };
    (void)str_format(out, size, "the argument '%.100s' %s %s, %s", word, is_first ? "begins with" : "contains",
                     found->name, advice[found->kind]);
}

bool lookalike_find(int count, char *const *words, char *out, size_t size) {
    for (int i = 0; i < count; i++) {
        for (const char *place = words[i]; *place != '\0'; place++) {
            const struct lookalike *found = (*place & 0x80) != 0 ? at(place) : NULL;
            if (found != NULL && is_odd_there(found, words[i], place)) {
                describe(found, words[i], place == words[i], out, size);
                return true;
            }
        }
    }
    return false;
}
