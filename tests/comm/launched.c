/* A worker for test_launchers.py: makes the group of the launcher's environment and all_reduces until something happens
 * to rank 1: `launched kill|stop|sleep|none`. `launched twice` then makes a second group in the same way. */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/record.h>

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* HASTY_MS: where a rank hangs, so long the others wait for it; a healthy one that gets no processor for as long would
 * be taken for another. */
enum { PATIENCE_MS = 60000, HASTY_MS = 4000, CALLS_BEFORE = 20, CALLS = 100 };

static void suffer(const char *harm) {
    if (strcmp(harm, "kill") == 0) {
        (void)raise(SIGKILL);
    } else if (strcmp(harm, "stop") == 0) {
        (void)raise(SIGSTOP);
    } else if (strcmp(harm, "sleep") == 0) {
        (void)pause();
    }
}

int main(int argc, char **argv) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *group = NULL;
    options.timeout_ms = PATIENCE_MS;
    int code = muster_group_create_env(&options, &group);
    struct muster_group *hasty = NULL;
    bool hangs = argc > 1 && (strcmp(argv[1], "stop") == 0 || strcmp(argv[1], "sleep") == 0);
    options.timeout_ms = hangs ? HASTY_MS : PATIENCE_MS;
    code = code ? code : muster_group_split(group, 0, 0, &options, &hasty);
    for (int i = 0; i < CALLS && code == 0; i++) {
        if (i == CALLS_BEFORE && muster_group_rank(group) == 1 && argc > 1) {
            suffer(argv[1]);
        }
        float value = 1;
        code = muster_all_reduce(hasty, &value, &value, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
    }
    if (code) {
        (void)fprintf(stderr, "launched: %s\n", muster_detail());
        (void)muster_record_error("launched: %s", muster_detail());
        return EXIT_FAILURE;
    }
    if (argc > 1 && strcmp(argv[1], "twice") == 0) {
        struct muster_group *second = NULL;
        code = muster_group_create_env(&options, &second);
        (void)printf("second group: %s\n", code ? muster_detail() : "made");
        muster_group_free(second);
    }
    (void)printf("done %u of %u\n", muster_group_rank(group), muster_group_size(group));
    muster_group_free(hasty);
    muster_group_free(group);
    return EXIT_SUCCESS;
}
