/* A program of another version: what it says to others has other numbers. */
#include "base/formats/protocol.h"

uint32_t protocol_agents(void) {
    return PROTOCOL_AGENTS + 1;
}

uint32_t protocol_ranks(void) {
    return PROTOCOL_RANKS + 1;
}
