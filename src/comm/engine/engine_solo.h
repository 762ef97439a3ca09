/* The engine of a group of one rank: every collective is a copy from `send` to `receive`, or nothing. */
#ifndef COMM_ENGINE_SOLO_H
#define COMM_ENGINE_SOLO_H

#include "comm/engine/engine.h"

struct memory;

/* memory: of the context; borrowed. MUSTER_ENOMEM. */
int engine_solo_create(struct memory *memory, struct engine **out);

#endif
