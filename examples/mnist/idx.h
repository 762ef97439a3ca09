/* MNIST from its four IDX files, .gz or not: the 5,000 images of examples/data, or all 70,000 (same names, --data DIR).
 */
#ifndef EXAMPLES_MNIST_IDX_H
#define EXAMPLES_MNIST_IDX_H

#include <stddef.h>
#include <stdint.h>

struct image_set {
    size_t count;
    uint8_t *pixels; /* (count, 28, 28); 0: background */
    uint8_t *labels; /* (count), 0 to 9 */
};

/* Reads part "train" or "t10k" from `folder`. A file that is missing, damaged or no such set fails the program. */
void image_set_read(const char *folder, const char *part, struct image_set *out);
void image_set_free(struct image_set *set);

/* Copies the images `indices` to `images`, (count, 28, 28), scaled to mean 0 and deviation 1 of full MNIST, and their
 * labels to `labels`. */
void image_set_gather(const struct image_set *set, const uint64_t *indices, size_t count, float *images,
                      uint8_t *labels);

#endif
