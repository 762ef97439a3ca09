/* Text from outside made fit to print; see printable.h. */
#include "base/printable.h"

#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

bool printable_is_control(unsigned code_point) {
    return code_point < 0x20 || (code_point >= 0x7F && code_point <= 0x9F);
}

void printable_clean(char *text, size_t count, bool keeps_newlines) {
    for (size_t at = 0, used; at < count; at += used) {
        const uint8_t *bytes = (const uint8_t *)text + at;
        size_t length = utf8_length(bytes, count - at);
        bool is_kept = text[at] == '\t' || (text[at] == '\n' && keeps_newlines);
        used = length > 0 ? length : 1;
        if (length == 0 || (printable_is_control(utf8_decode(bytes, length)) && !is_kept)) {
            memset(text + at, '?', used);
        }
    }
}
