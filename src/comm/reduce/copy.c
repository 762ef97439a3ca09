/* Copies past the caches. A store that misses the caches first reads the line that it is going to overwrite; a
 * streaming store does not, so a copy into a buffer that is larger than the caches moves a third less memory. */
#include "comm/reduce/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <emmintrin.h>

enum { STREAM_UNIT = 64 };

void comm_copy_past_caches(void *to, const void *from, size_t bytes) {
    unsigned char *out = to;
    const unsigned char *in = from;
    if (bytes < 2 * STREAM_UNIT || to == from) {
        if (bytes > 0 && to != from) {
            memcpy(to, from, bytes);
        }
        return;
    }
    size_t head = (STREAM_UNIT - (uintptr_t)out % STREAM_UNIT) % STREAM_UNIT;
    memcpy(out, in, head);
    out += head, in += head, bytes -= head;
    for (; bytes >= STREAM_UNIT; bytes -= STREAM_UNIT, out += STREAM_UNIT, in += STREAM_UNIT) {
        __m128i a = _mm_loadu_si128((const __m128i_u *)in), b = _mm_loadu_si128((const __m128i_u *)in + 1);
        __m128i c = _mm_loadu_si128((const __m128i_u *)in + 2), d = _mm_loadu_si128((const __m128i_u *)in + 3);
        _mm_stream_si128((__m128i *)(void *)out, a);
        _mm_stream_si128((__m128i *)(void *)out + 1, b);
        _mm_stream_si128((__m128i *)(void *)out + 2, c);
        _mm_stream_si128((__m128i *)(void *)out + 3, d);
    }
    _mm_sfence(); /* release stores do not order streaming ones: others may be told of this memory next */
    memcpy(out, in, bytes);
}
#else
void comm_copy_past_caches(void *to, const void *from, size_t bytes) {
    if (bytes > 0 && to != from) {
        memcpy(to, from, bytes);
    }
}
#endif
