/* See floats.h. Large arrays lie in huge pages where the system has them: a step is 4 % faster, because products walk
 * through matrices in strides of many pages. */
#include "floats.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fail.h"

static const size_t HUGE_PAGE = (size_t)2 << 20;

float *floats_allocate(size_t count) {
    if (count < HUGE_PAGE / sizeof(float)) {
        return allocate(count, sizeof(float));
    }
    if (count > (SIZE_MAX - HUGE_PAGE) / sizeof(float)) {
        fail("out of memory");
    }
    size_t bytes = (count * sizeof(float) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    float *memory = aligned_alloc(HUGE_PAGE, bytes);
    if (memory == NULL) {
        fail("out of memory (%zu bytes)", bytes);
    }
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: without it the results are the same */
    memset(memory, 0, bytes);
    return memory;
}
