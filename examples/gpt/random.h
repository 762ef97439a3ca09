/* Random numbers without a state: each is a function of what it is for. So they do not depend on the order in which
 * they are drawn, nor on the process that draws them, and a training that is resumed draws the same ones.
 *
 * 64 bits: the finalizer of SplitMix64 (Steele, Lea, Flood 2014). 32 bits, for loops: two rounds of multiply and shift,
 * with the constants of Wellons' "lowbias32". */
#ifndef EXAMPLES_GPT_RANDOM_H
#define EXAMPLES_GPT_RANDOM_H

#include <stdint.h>

/* What a number is for; the first word that is mixed with the seed. */
enum random_use { RANDOM_WEIGHTS = 1, RANDOM_BATCH, RANDOM_DROPOUT, RANDOM_SAMPLE };

static inline uint64_t random_mix(uint64_t key, uint64_t word) {
    uint64_t x = key + (word + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* In (0, 1). */
static inline double random_unit(uint64_t bits) {
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* Number i of the row that has this key. */
static inline uint32_t random_element(uint64_t key, uint32_t i) {
    uint32_t x = i * UINT32_C(0x9e3779b9) + (uint32_t)key;
    x = (x ^ (x >> 16)) * UINT32_C(0x7feb352d);
    x = (x ^ (x >> 15) ^ (uint32_t)(key >> 32)) * UINT32_C(0x846ca68b);
    return x ^ (x >> 16);
}

#endif
