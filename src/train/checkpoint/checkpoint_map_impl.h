/* What writing and reading maps share. */
#ifndef TRAIN_CHECKPOINT_MAP_IMPL_H
#define TRAIN_CHECKPOINT_MAP_IMPL_H

#define CHECKPOINT_MAP_FORMAT "muster-checkpoint-map"
enum { CHECKPOINT_MAP_VERSION = 1 };

#endif
