/* What a worker and its launcher say to each other about memory that the launcher holds: docs/formats/held.md. One
 * message each way, of a fixed size; descriptors travel beside them (held_socket.h). Pure. */
#ifndef BASE_HELD_WIRE_H
#define BASE_HELD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the launcher listens, for its workers: a name in the abstract namespace of sockets, without its leading zero.
 */
#define HELD_SOCKET_VARIABLE "MUSTER_HELD_SOCKET"

#define HELD_MAGIC "MUSTHELD" /* the first 8 bytes */
enum {
    HELD_VERSION = 1,
    HELD_NAME_BYTES = 128, /* terminator included */
    HELD_NAMES_MAX = 4096, /* that a holder keeps */
    HELD_REQUEST_BYTES = 144,
    HELD_ANSWER_BYTES = 16,
};

enum held_kind {
    HELD_PUT = 1, /* with one descriptor: keep it under the name, in the place of an older one */
    HELD_GET = 2, /* the answer has the descriptor */
    HELD_DROP = 3 /* a name that is not known is fine */
};

enum held_verdict {
    HELD_DONE = 0,
    HELD_UNKNOWN = 1,   /* GET: nothing has that name */
    HELD_FULL = 2,      /* PUT: too many names, or no descriptor free */
    HELD_NO_MEMORY = 3, /* PUT: not with exactly one descriptor, of anonymous memory */
    HELD_NOT_A_REQUEST = 4
};

struct held_request {
    enum held_kind kind;
    char name[HELD_NAME_BYTES]; /* held_name_is_valid() */
};

/* 1 to HELD_NAME_BYTES - 1 bytes, whichever they are. */
bool held_name_is_valid(const char *name);

void held_request_encode(const struct held_request *request, uint8_t out[HELD_REQUEST_BYTES]);
/* false: the bytes are no request of this version. */
bool held_request_decode(const uint8_t *data, size_t len, struct held_request *out);

void held_answer_encode(enum held_verdict verdict, uint8_t out[HELD_ANSWER_BYTES]);
bool held_answer_decode(const uint8_t *data, size_t len, enum held_verdict *out);

#endif
