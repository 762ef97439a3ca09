/* What is told of two protocols; see protocol.h. */
#include "base/formats/protocol.h"

#include "base/str.h"

const char *protocol_differs(const char *one, uint32_t one_number, const char *other, uint32_t other_number,
                             char out[PROTOCOL_SENTENCE_SIZE]) {
    (void)str_format(out, PROTOCOL_SENTENCE_SIZE,
                     "%.150s speaks protocol %u, %.96s protocol %u: run one version of Muster on all nodes", one,
                     one_number, other, other_number);
    return out;
}
