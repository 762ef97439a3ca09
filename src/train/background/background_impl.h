/* What the two files of checkpoints in the background share: background.c has the thread and who waits for it,
 * background_start.c what it is given. */
#ifndef TRAIN_BACKGROUND_IMPL_H
#define TRAIN_BACKGROUND_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "train/background/background.h"

/* What is to be saved. The program's thread writes it while nothing is RUNNING, the other one reads it while it is. */
struct background_save {
    char *folder;
    int64_t step;
    const void *copy; /* which is committed */
    struct frozen_state frozen;
    void *room; /* where the state is copied first; NULL: it is saved from the copy */
    struct muster_checkpoint_options options;
};

struct background {
    struct muster_group *group; /* of the threads */
    const struct snapshot_io *disk;
    int (*write)(struct background *background); /* the save, in the thread */
    pthread_t thread;
    bool has_thread;

    struct background_save save;
    enum muster_background_overlap overlap;
    void *room;
    size_t room_bytes;
    atomic_bool gives_up;   /* the save is: its memory is needed */
    atomic_bool is_awaited; /* somebody waits for the save to be done */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_running, is_reading, is_ending;
    struct muster_background_statistics numbers;
};

/* NULL: no memory, with the sentence. */
struct background *background_allocate(void);

/* Once it has its group, and what writes. MUSTER_ESYSTEM. */
int background_start_thread(struct background *background);

/* The thread needs the copy no more. context: the background. */
void background_has_read(void *context);

bool background_is_running(struct background *background);
void background_count_skipped(struct background *background);

/* The save is the thread's, until nothing is RUNNING. */
void background_hand_over(struct background *background);

static inline void background_forget(struct background_save *save) {
    frozen_state_done(&save->frozen);
    free(save->folder);
    *save = (struct background_save){.folder = NULL};
}

#endif
