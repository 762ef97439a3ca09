/* The system's disk with a gate in its way, and with errors: for tests of saves that take as long as the test wants. */
#ifndef TRAIN_SLOW_DISK_TEST_SUPPORT_H
#define TRAIN_SLOW_DISK_TEST_SUPPORT_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/group/ranks_test_support.h"
#include "train/state/snapshot_io.h"

/* One a process. */
struct slow_disk {
    struct snapshot_io io;
    sem_t gate, arrived;
    atomic_bool is_shut;
    atomic_int error; /* of the next create, or 0 */
};
extern struct slow_disk slow;

/* is_shut: no file is made until slow_disk_open(). Between saves. The disk is slow.io. */
const struct snapshot_io *slow_disk_init(struct rank *rank, bool is_shut);

/* Until a save has come to the gate. */
void slow_disk_await(void);
void slow_disk_open(void);

#endif
