/* Memory of the simulation itself, apart from that of the code it runs: which is counted, so that a world that has
 * ended must have given back every block. */
#ifndef SIMULATION_SIM_MEMORY_H
#define SIMULATION_SIM_MEMORY_H

#include <stddef.h>

enum { SIM_FILES_A_CHUNK = 256 };

/* Zeroed. These end the program when there is none. */
void *sim_memory_take(size_t bytes);
void *sim_memory_resize(void *block, size_t bytes);
void sim_memory_give(void *block);

/* Blocks that the code under test holds. */
long sim_memory_live(void);

/* For libraries that have an allocator of their own choice (jansson). */
void *sim_memory_counted_take(size_t bytes);
void sim_memory_counted_give(void *block);

#endif
