/* JSON as text, in Python's spacing, ASCII only: for events and for the outcome. */
#ifndef AGENT_REPORT_JSON_TEXT_H
#define AGENT_REPORT_JSON_TEXT_H

#include <stdbool.h>

#include "base/buf.h"

/* A string as Python's json.dumps() writes it, or null for NULL. What is no UTF-8 is replaced. MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int json_text_string(struct buf *out, const char *text);

/* A number, or null where it is not given. */
int json_text_number(struct buf *out, bool given, long long value);

#endif
