/* Memory of the workers that outlives them: the agent holds its descriptors, and gives them to whoever comes after a
 * worker that has died. It maps nothing and reads nothing; what is in the memory is the workers' business. The messages
 * are in base/held/held_wire.h, the workers' side is train/memory/holder.h, docs/formats/held.md has it all.
 *
 * Served are processes of the agent's own user. Nobody holds up the agent: who sends rubbish, does not read, or stays
 * away while others wait is disconnected. Memory is given back to the kernel on another thread, since that takes long.
 * All of it goes with the agent.
 *
 * One thread, that of the loop; no call blocks. */
#ifndef AGENT_HELD_H
#define AGENT_HELD_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct held;

/* Connections at once; one of a worker lasts as long as one of its calls. */
#define HELD_CONNECTIONS_MAX 16

/* Listens under a fresh name. names_max: at most so many names, each of which costs a descriptor, and HELD_NAMES_MAX.
 * MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int held_create(uv_loop_t *loop, size_t names_max, struct held **out);

/* For MUSTER_HELD_SOCKET of the workers; lives as long as `h`. */
const char *held_socket_name(const struct held *h);

/* How many pieces of memory are held; *out_bytes: of all. */
size_t held_count(const struct held *h, uint64_t *out_bytes);

/* Gives up everything that is held. NULL is fine; the memory of `h` goes when the loop has run its close callbacks. */
void held_close(struct held *h);

#endif
