/* See idx.h. zlib reads plain files as well as compressed ones. */
#include "idx.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "fail.h"

enum {
    SIDE = 28,
    PIXELS = SIDE * SIDE,
    CLASSES = 10,
    COUNT_MAX = 1000000, /* images: more is a damaged file */
    TYPE_UBYTE = 8,
};

/* ---- Files ---- */

/* Opens FOLDER/PART-NAME, or the same with .gz; its full name is in `path`. */
static gzFile open_file(const char *folder, const char *part, const char *name, char path[PATH_MAX]) {
    static const char *const endings[] = {"", ".gz"};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, PATH_MAX, "%s/%s-%s%s", folder, part, name, endings[i]);
        gzFile file = gzopen(path, "rb");
        if (file != NULL) {
            return file;
        }
    }
    fail("%s has no %s-%s (or .gz): --data DIR must name a folder with MNIST's four IDX files", folder, part, name);
}

static void read_bytes(gzFile file, const char *path, void *to, size_t bytes) {
    uint8_t *next = to;
    while (bytes > 0) {
        int got = gzread(file, next, bytes > INT_MAX ? INT_MAX : (unsigned)bytes);
        if (got <= 0) {
            fail("%s ends too early or is damaged", path);
        }
        next += got;
        bytes -= (size_t)got;
    }
}

static uint32_t big_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Reads the header: two zero bytes, the type, the number of dimensions, each dimension. Gives the first dimension; the
 * others must be `side`. */
static size_t read_header(gzFile file, const char *path, uint8_t dims, uint32_t side) {
    uint8_t start[4], dim[4];
    const uint8_t expected[4] = {0, 0, TYPE_UBYTE, dims};
    read_bytes(file, path, start, sizeof start);
    if (memcmp(start, expected, sizeof start) != 0) {
        fail("%s is no IDX file of bytes with %d dimensions", path, dims);
    }
    read_bytes(file, path, dim, sizeof dim);
    uint32_t count = big_endian(dim);
    for (int i = 1; i < dims; i++) {
        read_bytes(file, path, dim, sizeof dim);
        if (big_endian(dim) != side) {
            fail("%s: images are not %u x %u", path, side, side);
        }
    }
    if (count == 0 || count > COUNT_MAX) {
        fail("%s: %u items: not between 1 and %d", path, count, COUNT_MAX);
    }
    return count;
}

/* A whole file of `dims` dimensions: *count items of `item_bytes`. */
static uint8_t *read_file(const char *folder, const char *part, const char *name, uint8_t dims, size_t item_bytes,
                          size_t *count) {
    char path[PATH_MAX];
    gzFile file = open_file(folder, part, name, path);
    *count = read_header(file, path, dims, SIDE);
    uint8_t *items = allocate(*count, item_bytes);
    read_bytes(file, path, items, *count * item_bytes);
    (void)gzclose(file);
    return items;
}

/* ---- Sets ---- */

void image_set_read(const char *folder, const char *part, struct image_set *out) {
    size_t label_count = 0;
    out->pixels = read_file(folder, part, "images-idx3-ubyte", 3, PIXELS, &out->count);
    out->labels = read_file(folder, part, "labels-idx1-ubyte", 1, 1, &label_count);
    if (label_count != out->count) {
        fail("%s: %zu images, but %zu labels", folder, out->count, label_count);
    }
    for (size_t i = 0; i < out->count; i++) {
        if (out->labels[i] >= CLASSES) {
            fail("%s: label %zu is %d: not a digit", folder, i, out->labels[i]);
        }
    }
}

void image_set_free(struct image_set *set) {
    free(set->pixels);
    free(set->labels);
    *set = (struct image_set){0};
}

void image_set_gather(const struct image_set *set, const uint64_t *indices, size_t count, float *images,
                      uint8_t *labels) {
    const float mean = 0.1307F, deviation = 0.3081F; /* of the pixels of full MNIST, from 0 to 1 */
    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = set->pixels + indices[i] * PIXELS;
        for (size_t pixel = 0; pixel < PIXELS; pixel++) {
            images[i * PIXELS + pixel] = ((float)from[pixel] / 255.0F - mean) / deviation;
        }
        labels[i] = set->labels[indices[i]];
    }
}
