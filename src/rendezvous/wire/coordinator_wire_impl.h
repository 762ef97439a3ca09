/* Shared by the two halves of the coordinator's format: coordinator_wire.c (bytes), coordinator_wire_flaw.c (meaning of
 * the single fields). */
#ifndef RENDEZVOUS_COORDINATOR_WIRE_IMPL_H
#define RENDEZVOUS_COORDINATOR_WIRE_IMPL_H

#include "rendezvous/wire/coordinator_wire.h"

enum {
    COORDINATOR_CONTROLS = 0x20,
    COORDINATOR_DELETE = 0x7f
}; /* bytes below the one, and the other, are not visible */

/* Bytes of the valid, visible sequence at the front, else 0. */
size_t coordinator_wire_visible(const uint8_t *bytes, size_t len);

/* Is all of it valid and visible? */
bool coordinator_wire_is_text(struct kv_slice text);

/* What is wrong with the fields, lengths aside: the same for both directions. NULL: nothing. */
const char *coordinator_wire_flaw(const struct coordinator_message *message);

#endif
