/* A plain driver for a fuzz target: replays a corpus and a fixed number of mutations of it.
 *
 *   NAME_replay [-m MUTATIONS] FILE|FOLDER ...
 *
 * There are 20,000 mutations, or 2,000 where the part "all_mutations" is left out of the run (tests/tiers).
 *
 * With it any compiler runs the fuzz targets, in every test run, and always on the same bytes: the mutations come from
 * a generator with a fixed seed. Each input is handed over in an allocation of exactly its size, so that a sanitizer or
 * valgrind sees a read past its end. Finding new paths is libFuzzer's job (`make fuzz`). */
#include "base/testing/parts_test_support.h"

#include <assert.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUTS_MAX = 4096, INPUT_BYTES_MAX = 1 << 20, GROWTH_BYTES_MAX = 64, EDITS_MAX = 6, PATH_BYTES_MAX = 4096 };

struct input {
    uint8_t *data; /* owned */
    size_t size;
};

static struct input inputs[INPUTS_MAX];
static size_t input_count;
static uint64_t random_state = UINT64_C(0x9e3779b97f4a7c15);

/* xorshift64*: repeatable, and good enough to choose edits. */
static uint32_t random_below(size_t limit) {
    assert(limit > 0);
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    uint64_t value = (random_state * UINT64_C(0x2545f4914f6cdd1d)) >> 32;
    return (uint32_t)(value % limit);
}

static bool read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return false;
    }
    uint8_t *bytes = malloc(INPUT_BYTES_MAX);
    size_t size = bytes ? fread(bytes, 1, INPUT_BYTES_MAX, file) : 0;
    bool good = bytes && !ferror(file) && feof(file) && input_count < INPUTS_MAX;
    (void)fclose(file);
    if (!good) {
        (void)fprintf(stderr, "%s: cannot be read, or too large or one too many\n", path);
        free(bytes);
        return false;
    }
    inputs[input_count++] = (struct input){.data = bytes, .size = size};
    return true;
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static bool read_path(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        perror(path);
        return false;
    }
    if (!S_ISDIR(info.st_mode)) {
        return read_file(path);
    }
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, is_visible, alphasort);
    bool good = count >= 0;
    for (int i = 0; i < count; i++) {
        char name[PATH_BYTES_MAX];
        int length = snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        good = good && length > 0 && (size_t)length < sizeof name && read_file(name);
        free(entries[i]);
    }
    free(entries);
    return good;
}

static void run(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (!exact) {
        (void)fprintf(stderr, "no memory for an input of %zu bytes\n", size);
        exit(1);
    }
    if (size > 0) {
        memcpy(exact, data, size);
    }
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

/* One edit in place: a flipped bit, a telling byte or length, a cut, a doubled or moved stretch, a splice. */
static size_t edit(uint8_t *bytes, size_t size, size_t room) {
    static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, '\n', '"', '=', ':', '{', '-', ','};
    size_t at = size > 0 ? random_below(size) : 0;
    size_t length = 1 + random_below(16);
    switch (size > 0 ? random_below(7) : 6) {
    case 0:
        bytes[at] ^= (uint8_t)(1U << random_below(8));
        return size;
    case 1:
        bytes[at] = telling[random_below(sizeof telling)];
        return size;
    case 2:
        bytes[at] = (uint8_t)random_below(256);
        return size;
    case 3:
        return random_below(size + 1);
    case 4:
        length = length > size - at ? size - at : length;
        memmove(bytes + at, bytes + at + length, size - at - length);
        return size - length;
    case 5:
        length = length > size - at ? size - at : length;
        length = length > room - size ? room - size : length;
        memmove(bytes + at + length, bytes + at, size - at);
        return size + length;
    default: {
        const struct input *other = &inputs[random_below(input_count)];
        size_t from = other->size > 0 ? random_below(other->size) : 0;
        length = length > other->size - from ? other->size - from : length;
        length = length > room - at ? room - at : length;
        if (length > 0) {
            memcpy(bytes + at, other->data + from, length);
        }
        return at + length > size ? at + length : size;
    }
    }
}

static void mutate_all(unsigned long mutations) {
    for (unsigned long i = 0; i < mutations; i++) {
        const struct input *chosen = &inputs[random_below(input_count)];
        size_t room = chosen->size + GROWTH_BYTES_MAX;
        uint8_t *bytes = calloc(1, room);
        if (!bytes) {
            (void)fprintf(stderr, "no memory for an input of %zu bytes\n", room);
            exit(1);
        }
        if (chosen->size > 0) {
            memcpy(bytes, chosen->data, chosen->size);
        }
        size_t size = chosen->size;
        for (size_t edits = 1 + random_below(EDITS_MAX); edits > 0; edits--) {
            size = edit(bytes, size, room);
        }
        run(bytes, size);
        free(bytes);
    }
}

int main(int argc, char **argv) {
    unsigned long mutations = part_is_wanted("all_mutations") ? 20000 : 2000;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "-m") == 0) {
        mutations = strtoul(argv[2], NULL, 10);
        first = 3;
    }
    for (int i = first; i < argc; i++) {
        if (!read_path(argv[i])) {
            return 1;
        }
    }
    if (input_count == 0) {
        (void)fprintf(stderr, "usage: %s [-m MUTATIONS] FILE|FOLDER ...: no input found\n", argv[0]);
        return 1;
    }
    run(NULL, 0);
    for (size_t i = 0; i < input_count; i++) {
        run(inputs[i].data, inputs[i].size);
    }
    mutate_all(mutations);
    (void)printf("%zu inputs and %lu mutations replayed\n", input_count, mutations);
    for (size_t i = 0; i < input_count; i++) {
        free(inputs[i].data);
    }
    return 0;
}
