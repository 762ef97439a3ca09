/* XXH3 from xxHash's header, compiled in: nothing to link, and no symbol of it leaves this file. */
#include "train/state/checksum.h"

#include <assert.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static_assert(sizeof(XXH3_state_t) <= sizeof(struct checksum), "room for the state");
static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct checksum), "aligned for the state");

void checksum_init(struct checksum *checksum) {
    XXH3_INITSTATE((XXH3_state_t *)(void *)checksum->state);
    (void)XXH3_64bits_reset((XXH3_state_t *)(void *)checksum->state);
}

void checksum_add(struct checksum *checksum, const void *bytes, size_t count) {
    (void)XXH3_64bits_update((XXH3_state_t *)(void *)checksum->state, bytes, count);
}

uint64_t checksum_value(const struct checksum *checksum) {
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)checksum->state);
}

uint64_t checksum_of(const void *bytes, size_t count) {
    return XXH3_64bits(bytes, count);
}
