/* In the place of PMIx's library: it does not survive being opened. */
#include <stdlib.h>

__attribute__((constructor)) static void crash(void) {
    abort();
}
