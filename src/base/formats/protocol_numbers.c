/* The numbers of this program; see protocol.h. A file of its own, so that a test can have others. */
#include "base/formats/protocol.h"

uint32_t protocol_agents(void) {
    return PROTOCOL_AGENTS;
}

uint32_t protocol_ranks(void) {
    return PROTOCOL_RANKS;
}
