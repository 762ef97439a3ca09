/* A worker of libmuster for meetings.py: makes the group of the launcher's environment, twice where the launcher serves
 * the store, and computes until it is told to end.
 *
 *     meet_worker CHANNEL
 *
 * It stamps `ask` before it asks for its first group and `met` when the last one has added up a number of every rank.
 * SIGRTMIN to one rank has all ranks exit with 0. A call that fails is said on stderr, and the exit code is 1. */
#include <muster/collective.h>
#include <muster/group.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stamp.h"

enum { PATIENCE_MS = 60000, PAUSE_NS = 2000000 };

static volatile sig_atomic_t ends;

static void on_signal(int number) {
    (void)number;
    ends = 1;
}

static const char *environment_or(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value ? value : fallback;
}

static void stamp(int channel, const char *name) {
    char more[256];
    (void)snprintf(more, sizeof more, " rank=%.16s world=%.16s group=%.16s attempt=%.16s", environment_or("RANK", "-"),
                   environment_or("WORLD_SIZE", "-"), environment_or("GROUP_RANK", "-"),
                   environment_or("TORCHELASTIC_RESTART_COUNT", "-"));
    stamp_write(channel, name, stamp_now_ns(), more);
}

static int meet(struct muster_group **out) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = PATIENCE_MS;
    int code = muster_group_create_env(&options, out);
    int32_t count = 1;
    code = code ? code : muster_all_reduce(*out, &count, &count, 1, MUSTER_INT32, MUSTER_OP_SUM, NULL);
    if (code == 0 && count != (int32_t)muster_group_size(*out)) {
        (void)fprintf(stderr, "meet_worker: %d ranks of %u\n", (int)count, muster_group_size(*out));
        return EXIT_FAILURE;
    }
    return code;
}

static int work(struct muster_group *group) {
    const struct timespec pause = {0, PAUSE_NS};
    for (int32_t all_end = 0; !all_end;) {
        (void)nanosleep(&pause, NULL);
        all_end = ends;
        int code = muster_all_reduce(group, &all_end, &all_end, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL);
        if (code) {
            return code;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_signal};
    struct muster_group *group = NULL;
    int channel = argc > 1 ? stamp_open(argv[1]) : -1;
    if (channel < 0 || sigaction(SIGRTMIN, &action, NULL) != 0) {
        (void)fputs("usage: meet_worker CHANNEL\n", stderr);
        return 2;
    }
    stamp(channel, "ask");
    int code = meet(&group);
    if (code == 0 && strcmp(environment_or("TORCHELASTIC_USE_AGENT_STORE", ""), "True") == 0) {
        muster_group_free(group);
        group = NULL;
        code = meet(&group);
    }
    if (code == 0) {
        stamp(channel, "met");
        code = work(group);
    }
    if (code) {
        (void)fprintf(stderr, "meet_worker: %s\n", muster_detail());
    }
    muster_group_free(group);
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
