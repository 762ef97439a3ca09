/* Fuzzes the legacy etcd backend's value. Each step that is possible from a value that was taken gives one that is
 * taken again, one step further. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd_legacy/etcd_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Frees `text`. A number of nodes or of those who wait may be at its limit. */
static struct etcd_world take(char *text) {
    struct etcd_world world = {.status = ETCD_WORLD_ABSENT};
    if (text && etcd_world_read(text, strlen(text), &world) != 0) {
        world.status = ETCD_WORLD_ABSENT;
    }
    free(text);
    return world;
}

static void step(const char *text, const struct etcd_world *world) {
    struct etcd_world next;
    if (world->status == ETCD_WORLD_JOINABLE) {
        next = take(etcd_world_join(text, false));
        assert(next.status == ETCD_WORLD_ABSENT || next.participants == world->participants + 1);
        assert(take(etcd_world_freeze(text)).status == ETCD_WORLD_FROZEN);
    } else if (world->status == ETCD_WORLD_FROZEN && world->confirmed < world->participants) {
        next = take(etcd_world_confirm(text, "/p/rank_0"));
        assert(next.confirmed == world->confirmed + 1);
        assert((next.status == ETCD_WORLD_FINAL) == (next.confirmed == next.participants));
    } else if (world->status == ETCD_WORLD_FINAL) {
        next = take(etcd_world_wait(text));
        assert(next.status == ETCD_WORLD_ABSENT || next.waiting == world->waiting + 1);
    }
    assert(take(etcd_world_close(text)).status == ETCD_WORLD_CLOSED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct etcd_world world;
    char *text = malloc(size + 1);
    if (!text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    size = strlen(text);
    if (etcd_world_read(text, size, &world) == 0) {
        step(text, &world);
    }
    free(text);
    return 0;
}
