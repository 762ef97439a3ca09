/* What the two files of checkpoints in the background share: fsdp_background.c has the thread, fsdp_background_start.c
 * what it is given. */
#ifndef TRAIN_FSDP_BACKGROUND_IMPL_H
#define TRAIN_FSDP_BACKGROUND_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/units/fsdp_background.h"
#include "train/units/fsdp_parts.h"

/* What is to be saved. The program's thread writes it while nothing is RUNNING, the other one reads it while it is. */
struct fsdp_request {
    char *folder;
    int64_t step;
    const void *copy; /* which is committed */
    struct fsdp_frozen_parts parts;
    void *room; /* where the state is copied first; NULL: it is saved from the copy */
    struct muster_checkpoint_options options;
};

struct fsdp_background {
    struct muster_group *group; /* of the threads */
    const struct snapshot_io *io;
    int (*save)(struct fsdp_background *background); /* the request, in the thread */
    pthread_t thread;
    bool has_thread;
    struct fsdp_request request;
    enum muster_fsdp_overlap overlap;
    void *room;
    size_t room_bytes;
    atomic_bool gives_up;   /* the request is: its memory is needed */
    atomic_bool is_awaited; /* somebody waits for the request to be done */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_running, is_reading, is_ending;
    struct muster_fsdp_background_statistics numbers;
};

/* NULL: no memory, with the sentence. */
struct fsdp_background *fsdp_background_allocate(void);
/* Once it has its group, and what saves. MUSTER_ESYSTEM. */
int fsdp_background_start_thread(struct fsdp_background *background);

/* The thread needs the copy no more. context: the background. */
void fsdp_background_has_read(void *context);

bool fsdp_background_is_running(struct fsdp_background *background);
/* Until nothing is RUNNING: the result of the last save. */
int fsdp_background_wait(struct fsdp_background *background);
/* The request is the thread's, until nothing is RUNNING. */
void fsdp_background_hand_over(struct fsdp_background *background);
static inline void fsdp_background_forget(struct fsdp_request *request) {
    fsdp_frozen_parts_done(&request->parts);
    free(request->folder);
    *request = (struct fsdp_request){.folder = NULL};
}

#endif
