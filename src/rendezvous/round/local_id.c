/* Counting the rendezvous of this process; see local_id.h. A file of its own: where many agents are simulated in one
 * process, each counts for itself. */
#include "rendezvous/round/local_id.h"

#include <stdatomic.h>

uint32_t rdzv_next_local_id(void) {
    static atomic_uint counter;
    return atomic_fetch_add(&counter, 1);
}
