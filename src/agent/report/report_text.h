/* Making strangers' text fit to print. Pure. */
#ifndef AGENT_REPORT_TEXT_H
#define AGENT_REPORT_TEXT_H

#include <stddef.h>

#include "base/buf.h"

/* Characters (Unicode code points) in `count` bytes of UTF-8. */
size_t report_text_width(const char *text, size_t count);

/* Appends one line (without its '\n') as a terminal would leave it standing: what follows the last '\r', without escape
 * sequences and control characters; invalid UTF-8 becomes U+FFFD; cut to about `max` bytes. */
int report_text_clean(struct buf *out, const char *line, size_t count, size_t max);

#endif
