/* See held_finds.h. */
#include "train/memory/held_finds.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"

enum { VARIANTS = 2 };
static const char *const endings[VARIANTS] = {"", "+"};

static bool name_variant(const char *role, size_t variant, char out[HELD_FIND_NAME_BYTES]) {
    return str_format(out, HELD_FIND_NAME_BYTES, "%s%s", role, endings[variant]);
}

static const struct held_find *find_named(const struct held_finds *finds, const char *name) {
    for (size_t i = 0; i < finds->count; i++) {
        if (strcmp(finds->items[i].name, name) == 0) {
            return &finds->items[i];
        }
    }
    return NULL;
}

static struct held_find *make_room(struct held_finds *finds) {
    if (finds->count == finds->room) {
        size_t room = 2 * finds->room + VARIANTS;
        struct held_find *items = realloc(finds->items, room * sizeof *items);
        if (!items) {
            return NULL;
        }
        finds->items = items;
        finds->room = room;
    }
    return &finds->items[finds->count];
}

size_t held_find_bytes(const struct held_find *find) {
    return find->region.memory ? find->region.segment.bytes - SEGMENT_HEADER_BYTES : 0;
}

bool held_find_is_of(const struct held_find *find, const char *role) {
    char name[HELD_FIND_NAME_BYTES];
    bool is = false;
    for (size_t variant = 0; variant < VARIANTS; variant++) {
        is = is || (name_variant(role, variant, name) && strcmp(find->name, name) == 0);
    }
    return is;
}

static int look_at(struct held_finds *finds, struct holder *holder, const char *name, uint32_t number) {
    int fd = -1, status = find_named(finds, name) ? MUSTER_ENOENT : holder_get(holder, name, &fd);
    if (status != MUSTER_OK) {
        return status == MUSTER_ENOENT ? MUSTER_OK : status;
    }
    struct held_find *find = make_room(finds);
    if (!find) {
        (void)close(fd);
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu descriptors", finds->count + 1);
    }
    *find = (struct held_find){.fd = fd, .number = number};
    (void)str_copy(find->name, sizeof find->name, name);
    if (state_region_adopt(fd, 0, &find->region) != MUSTER_OK) {
        find->region = (struct state_region){.memory = NULL};
    }
    finds->count++;
    return MUSTER_OK;
}

static int look_for(struct held_finds *finds, struct holder *holder, const char *role, uint32_t number) {
    char name[HELD_FIND_NAME_BYTES];
    int status = MUSTER_OK;
    for (size_t variant = 0; status == MUSTER_OK && variant < VARIANTS; variant++) {
        (void)name_variant(role, variant, name);
        status = look_at(finds, holder, name, number);
    }
    return status;
}

int held_finds_look(struct held_finds *finds, struct holder *holder, const char *role) {
    return look_for(finds, holder, role, HELD_NOT_COUNTED);
}

int held_finds_look_on(struct held_finds *finds, struct holder *holder, const char *roles) {
    char role[HELD_FIND_NAME_BYTES], name[HELD_FIND_NAME_BYTES];
    bool is_there = true;
    int status = MUSTER_OK;
    for (uint32_t number = 0; status == MUSTER_OK && is_there; number++) {
        (void)str_format(role, sizeof role, "%s%u", roles, number);
        status = look_for(finds, holder, role, number);
        is_there = false;
        for (size_t variant = 0; variant < VARIANTS; variant++) {
            is_there = is_there || (name_variant(role, variant, name) && find_named(finds, name));
        }
    }
    return status;
}

void held_finds_free_name(const struct held_finds *finds, const char *role, char out[HELD_FIND_NAME_BYTES]) {
    for (size_t variant = 0; variant < VARIANTS; variant++) {
        (void)name_variant(role, variant, out);
        const struct held_find *find = find_named(finds, out);
        if (!find || !find->is_needed) {
            return;
        }
    }
}

static bool is_used(const struct held_find *find, const struct held_use *use) {
    if (held_find_is_of(find, use->role)) {
        return use->name && strcmp(use->name, find->name) == 0;
    }
    return find->number != HELD_NOT_COUNTED && find->number < use->counted;
}

int held_finds_drop(const struct held_finds *finds, struct holder *holder, const struct held_use *use) {
    int status = MUSTER_OK;
    for (size_t i = finds->count; status == MUSTER_OK && i > 0; i--) {
        const struct held_find *find = &finds->items[i - 1];
        status = is_used(find, use) ? MUSTER_OK : holder_drop(holder, find->name);
    }
    return status;
}

void held_finds_done(struct held_finds *finds) {
    for (size_t i = 0; i < finds->count; i++) {
        state_region_free(&finds->items[i].region);
        if (finds->items[i].fd >= 0) {
            (void)close(finds->items[i].fd);
        }
    }
    free(finds->items);
    *finds = (struct held_finds){.items = NULL};
}
