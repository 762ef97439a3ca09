/* A worker of libmuster for silence.py: adds up COUNT numbers (1) with the other ranks all the time, and says ten times
 * a second that it lives.
 *
 *     hosts_worker CHANNEL FOLDER [COUNT]
 *
 * It stamps `start`; from then on `tick`, from a thread of its own, with the number of calls that are done (`calls`).
 * All ranks exit with 0 once there is a file FOLDER/end. A rank that can remove FOLDER/fail.HOST, with the name of its
 * host, exits with 3. A call that fails is said on stderr, and the exit code is 1. */
#include <muster/collective.h>
#include <muster/group.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "stamp.h"

enum { PATIENCE_MS = 900000, PAUSE_NS = 10000000, TICK_NS = 100000000, FAILED_CODE = 3 };

static int channel;
static char host[64];
static _Atomic long calls;

static const char *environment_or(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value ? value : fallback;
}

static void stamp(const char *name) {
    char more[256];
    (void)snprintf(more, sizeof more, " rank=%.16s world=%.16s host=%s attempt=%.16s calls=%ld",
                   environment_or("RANK", "-"), environment_or("WORLD_SIZE", "-"), host,
                   environment_or("TORCHELASTIC_RESTART_COUNT", "-"), atomic_load(&calls));
    stamp_write(channel, name, stamp_now_ns(), more);
}

static void *tick(void *unused) {
    const struct timespec pause = {0, TICK_NS};
    for (;;) {
        (void)nanosleep(&pause, NULL);
        stamp("tick");
    }
    return unused;
}

static int work(struct muster_group *group, const char *folder, size_t count) {
    const struct timespec pause = {0, PAUSE_NS};
    char end[512], fail[512];
    (void)snprintf(end, sizeof end, "%s/end", folder);
    (void)snprintf(fail, sizeof fail, "%s/fail.%s", folder, host);
    int32_t *numbers = calloc(count, sizeof *numbers);
    int code = numbers ? 0 : MUSTER_ENOMEM;
    while (code == 0 && !numbers[0]) {
        (void)nanosleep(&pause, NULL);
        if (unlink(fail) == 0) {
            _exit(FAILED_CODE);
        }
        numbers[0] = access(end, F_OK) == 0;
        code = muster_all_reduce(group, numbers, numbers, count, MUSTER_INT32, MUSTER_OP_MAX, NULL);
        atomic_fetch_add(&calls, code == 0);
    }
    free(numbers);
    return code;
}

int main(int argc, char **argv) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *group = NULL;
    pthread_t ticks;
    options.timeout_ms = PATIENCE_MS;
    size_t count = argc == 4 ? strtoul(argv[3], NULL, 10) : 1;
    channel = argc == 3 || argc == 4 ? stamp_open(argv[1]) : -1;
    if (channel < 0 || count == 0 || gethostname(host, sizeof host - 1) != 0) {
        (void)fputs("usage: hosts_worker CHANNEL FOLDER [COUNT]\n", stderr);
        return 2;
    }
    stamp("start");
    if (pthread_create(&ticks, NULL, tick, NULL) != 0) {
        return 2;
    }
    int code = muster_group_create_env(&options, &group);
    code = code ? code : work(group, argv[2], count);
    if (code) {
        (void)fprintf(stderr, "hosts_worker: %s\n", muster_detail());
    }
    muster_group_free(group);
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
