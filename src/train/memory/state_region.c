/* See state_region.h. */
#include "train/memory/state_region.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>

#include "base/status.h"
#include "base/str.h"

#define LABEL "muster-state"

/* What the ranks tell each other about the region of their host. */
struct offer {
    struct segment_name name; /* of those who make one */
    uint64_t bytes;
};

static uint32_t maker_on(struct muster_group *group, uint32_t host) {
    uint32_t rank = 0;
    while (muster_group_host_of(group, rank) != host) {
        rank++;
    }
    return rank;
}

/* The others wait for this rank: they are to hear why it does not come. */
static int fail_all(struct muster_group *group, const char *what, size_t bytes, int status) {
    char detail[MUSTER_DETAIL_MAX];
    (void)status_prefix(status, "%zu bytes for %s", bytes, what);
    (void)str_copy(detail, sizeof detail, muster_detail());
    if (group && muster_group_status(group) == MUSTER_OK) {
        muster_group_abort(group, detail);
    }
    return status_fail(status, "%s", detail);
}

/* It cannot be opened: because its maker has died? Then the group says so soon, and better than the kernel. */
static int blame(struct muster_group *group, int status) {
    enum { LOOKS_MAX = 1000, PAUSE_MS = 1 };
    char detail[MUSTER_DETAIL_MAX];
    int cause = MUSTER_OK;
    (void)str_copy(detail, sizeof detail, muster_detail());
    for (int look = 0; look < LOOKS_MAX && cause == MUSTER_OK; look++) {
        cause = muster_group_status(group);
        (void)poll(NULL, 0, cause ? 0 : PAUSE_MS);
    }
    return cause ? cause : status_fail(status, "%s", detail);
}

/* Ranks of a host that want other sizes would overrun each other. All ranks see it, before one of them opens anything:
 * who has failed takes its memory away. */
static int compare(struct muster_group *group, const struct offer *offers) {
    int status = MUSTER_OK;
    for (uint32_t rank = 0; status == MUSTER_OK && rank < muster_group_size(group); rank++) {
        uint32_t maker = maker_on(group, muster_group_host_of(group, rank));
        if (offers[rank].bytes != offers[maker].bytes) {
            status = status_fail(
                MUSTER_EMISMATCH, "rank %u wants %llu bytes of memory where rank %u on its host has %llu", rank,
                (unsigned long long)offers[rank].bytes, maker, (unsigned long long)offers[maker].bytes);
        }
    }
    return status;
}

static int share(struct muster_group *group, const struct offer *own, uint32_t maker,
                 int (*open_it)(const struct segment_name *name, struct segment *out), struct segment *segment) {
    uint32_t rank = muster_group_rank(group), size = muster_group_size(group);
    struct offer *offers = calloc(size, sizeof *offers);
    if (!offers) {
        return status_fail(MUSTER_ENOMEM, "no memory for the offers of %u ranks", size);
    }
    offers[rank] = *own;
    int status = muster_all_gather(group, &offers[rank], offers, sizeof *offers, MUSTER_UINT8, NULL);
    status = status ? status : compare(group, offers);
    if (status == MUSTER_OK && rank != maker) {
        status = open_it(&offers[maker].name, segment);
        status = status ? blame(group, status) : MUSTER_OK;
    }
    free(offers);
    return status ? status : muster_barrier(group, NULL); /* the maker may leave when all have opened it */
}

static int create_shared(struct muster_group *group, size_t bytes, struct segment *out) {
    struct offer own = {.bytes = bytes};
    uint32_t maker = maker_on(group, muster_group_host_of(group, muster_group_rank(group)));
    int status = MUSTER_OK;
    if (muster_group_rank(group) == maker) {
        status = segment_create(bytes + SEGMENT_HEADER_BYTES, LABEL, 0, out, &own.name);
    }
    return status ? status : share(group, &own, maker, segment_open, out);
}

int state_region_create(struct muster_group *group, const char *what, size_t bytes, struct state_region *out) {
    struct segment segment = {.fd = -1};
    struct segment_name name;
    int status = group ? create_shared(group, bytes, &segment)
                       : segment_create(bytes + SEGMENT_HEADER_BYTES, LABEL, 0, &segment, &name);
    if (status != MUSTER_OK) {
        segment_close(&segment);
        return fail_all(group, what, bytes, status);
    }
    *out = (struct state_region){segment, (char *)segment.memory + SEGMENT_HEADER_BYTES, bytes};
    return MUSTER_OK;
}

static int adopt_held(int fd, struct segment *out) {
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int status = own >= 0 ? segment_adopt(fd, out) : status_fail_errno(errno, "a descriptor for shared memory");
    if (status == MUSTER_OK) {
        out->fd = own;
    } else if (own >= 0) {
        (void)close(own);
    }
    return status;
}

/* The others open it where this process has it: by its descriptor. */
static int adopt_shared(struct muster_group *group, int fd, struct segment *out) {
    struct offer own = {.bytes = 0};
    int status = MUSTER_OK;
    if (muster_group_rank(group) == 0) {
        status = adopt_held(fd, out);
        if (status == MUSTER_OK) {
            own.name = (struct segment_name){.pid = (int32_t)getpid(), .fd = out->fd, .bytes = out->bytes};
            memcpy(&own.name.cookie, out->memory, sizeof own.name.cookie);
        }
    }
    return status ? status : share(group, &own, 0, segment_open_held, out);
}

int state_region_find(struct muster_group *group, const char *what, int fd, struct state_region *out) {
    struct segment segment = {.fd = -1};
    int status = group ? adopt_shared(group, fd, &segment) : adopt_held(fd, &segment);
    if (status != MUSTER_OK) {
        segment_close(&segment);
        return fail_all(group, what, 0, status);
    }
    *out = (struct state_region){segment, (char *)segment.memory + SEGMENT_HEADER_BYTES,
                                 segment.bytes - SEGMENT_HEADER_BYTES};
    return MUSTER_OK;
}

int state_region_adopt(int fd, size_t bytes, struct state_region *out) {
    struct segment segment;
    int status = segment_adopt(fd, &segment);
    if (status != MUSTER_OK) {
        return status;
    }
    size_t room = segment.bytes - SEGMENT_HEADER_BYTES;
    if (bytes > room) {
        status = status_fail(MUSTER_ECORRUPT, "memory for a state of %zu bytes has %zu", bytes, room);
        segment_close(&segment);
        return status;
    }
    *out = (struct state_region){segment, (char *)segment.memory + SEGMENT_HEADER_BYTES, bytes};
    return MUSTER_OK;
}

void state_region_free(struct state_region *region) {
    if (region->memory) {
        segment_close(&region->segment);
    }
    *region = (struct state_region){0};
}
