/* See slow_disk_test_support.h. */
#include "train/background/slow_disk_test_support.h"

struct slow_disk slow;

static int slow_create(void *ctx, int folder_handle, const char *name) {
    if (slow.is_shut) {
        (void)sem_post(&slow.arrived);
        while (sem_wait(&slow.gate) != 0) {
        }
    }
    int error = atomic_exchange(&slow.error, 0);
    return error ? -error : snapshot_io_system.create(ctx, folder_handle, name);
}

const struct snapshot_io *slow_disk_init(struct rank *rank, bool is_shut) {
    slow.io = snapshot_io_system;
    slow.io.create = slow_create;
    slow.is_shut = is_shut;
    rank_check(rank, sem_init(&slow.gate, 0, 0) == 0 && sem_init(&slow.arrived, 0, 0) == 0);
    return &slow.io;
}

void slow_disk_await(void) {
    while (sem_wait(&slow.arrived) != 0) {
    }
}

void slow_disk_open(void) {
    slow.is_shut = false;
    (void)sem_post(&slow.gate);
}
