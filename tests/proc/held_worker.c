/* A worker for test_held.py: it leaves memory to its launcher, is killed, and looks for it in the next attempt.
 *
 *     held_worker ATTEMPTS [guardian]
 *
 * Every rank looks for the region that it put in the attempt before, and says "rank 1 found attempt 0" if all of it is
 * there. In each attempt but the last, all put a new region under their rank's name, write to it, look that they do not
 * find what other nodes have put, and meet; then rank 0 kills itself, or the guardian process of
 * its launcher. In the last one all drop what they have, and say
 * "rank 1 of SOCKET is done". A call that fails is said on stderr, and the exit code is 1. */
#include <muster/collective.h>
#include <muster/group.h>

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/memory/holder.h"
#include "train/memory/state_region.h"

enum { BYTES = 3 << 20, NAME_BYTES = 32, NONE = -1 };

struct worker {
    struct muster_group *group;
    struct holder *holder;
    uint32_t rank;
    pid_t victim;
    int32_t attempt; /* restarts of nodes are no measure: nodes may count differently */
};

static void name_of(uint32_t rank, char out[NAME_BYTES]) {
    (void)snprintf(out, NAME_BYTES, "state of rank %u", rank);
}

/* The number of the attempt, and bytes that tell it and the rank. */
static void fill(struct state_region *region, uint32_t rank, int32_t attempt) {
    memcpy(region->memory, &attempt, sizeof attempt);
    for (size_t i = sizeof attempt; i < BYTES; i++) {
        ((uint8_t *)region->memory)[i] = (uint8_t)(rank + (uint32_t)attempt + i);
    }
}

static int32_t attempt_in(const struct state_region *region, uint32_t rank) {
    int32_t attempt;
    memcpy(&attempt, region->memory, sizeof attempt);
    for (size_t i = sizeof attempt; i < BYTES; i++) {
        if (((const uint8_t *)region->memory)[i] != (uint8_t)(rank + (uint32_t)attempt + i)) {
            return NONE;
        }
    }
    return attempt;
}

static int look(const struct worker *w, int32_t *out) {
    struct state_region region;
    char name[NAME_BYTES];
    int fd = -1;
    name_of(w->rank, name);
    int code = holder_get(w->holder, name, &fd);
    if (code == MUSTER_ENOENT) {
        return MUSTER_OK;
    }
    code = code ? code : state_region_adopt(fd, BYTES, &region);
    if (code == MUSTER_OK) {
        *out = attempt_in(&region, w->rank);
        state_region_free(&region);
        (void)close(fd);
        (void)printf("rank %u found attempt %d\n", w->rank, *out);
    }
    return code;
}

/* Which attempt is this? That after the last one in which all put something. */
static int count_attempts(struct worker *w) {
    int32_t last = NONE;
    int code = look(w, &last);
    code = code ? code : muster_all_reduce(w->group, &last, &last, 1, MUSTER_INT32, MUSTER_OP_MIN, NULL);
    w->attempt = last + 1;
    return code;
}

static int leave(const struct worker *w) {
    struct state_region region;
    char name[NAME_BYTES];
    name_of(w->rank, name);
    int code = state_region_create(NULL, "a state", BYTES, &region);
    code = code ? code : holder_put(w->holder, name, region.segment.fd);
    if (code == MUSTER_OK) {
        fill(&region, w->rank, w->attempt); /* as training does: in memory that is held already */
    }
    return code;
}

static void look_for_others(const struct worker *w) {
    const char *per_node_text = getenv("LOCAL_WORLD_SIZE");
    unsigned long per_node = per_node_text ? strtoul(per_node_text, NULL, 10) : 0;
    for (uint32_t other = 0; per_node > 0 && other < muster_group_size(w->group); other++) {
        char name[NAME_BYTES];
        int fd = -1;
        name_of(other, name);
        if (other / per_node != w->rank / per_node && holder_get(w->holder, name, &fd) != MUSTER_ENOENT) {
            (void)printf("rank %u found what rank %u has put\n", w->rank, other);
        }
    }
}

static int work(const struct worker *w, long attempts) {
    if (w->attempt + 1 < attempts) {
        int code = leave(w);
        code = code ? code : muster_barrier(w->group, NULL);
        look_for_others(w);
        code = code ? code : muster_barrier(w->group, NULL);
        if (code == MUSTER_OK && w->rank == 0) {
            (void)kill(w->victim, SIGKILL);
        }
        if (code == MUSTER_OK) {
            (void)pause();
        }
        return code;
    }
    char name[NAME_BYTES];
    name_of(w->rank, name);
    return holder_drop(w->holder, name);
}

int main(int argc, char **argv) {
    struct worker w = {.victim = argc > 2 ? getppid() : getpid()};
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    int code = muster_group_create_env(NULL, &w.group);
    w.rank = code ? 0 : muster_group_rank(w.group);
    code = code ? code : holder_open(&w.holder);
    code = code ? code : count_attempts(&w);
    code = code ? code : work(&w, argc > 1 ? strtol(argv[1], NULL, 10) : 1);
    if (code) {
        (void)fprintf(stderr, "held_worker: %s\n", muster_detail());
    } else {
        (void)printf("rank %u of %s is done\n", w.rank, getenv("MUSTER_HELD_SOCKET"));
    }
    holder_close(w.holder);
    muster_group_free(w.group);
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
