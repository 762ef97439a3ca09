/* Fuzzes the readers of other programs' files. The first byte of an input says what the rest is:
 *
 *   F   a file: torch.save or safetensors
 *   I   an index of safetensors files, all of which are one small file
 *   D   a distributed checkpoint: two bytes with the length of .metadata, that, and its one file
 *
 * What is accepted has tensors that can be read to the end, in pieces of any size, or fail with a sentence. */
#include <assert.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/archive/archive.h"
#include "train/state/checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An input may promise as much; reading more of it finds nothing new. */
#define READ_BYTES_MAX ((uint64_t)64 << 20)
#define PIECES_BYTES_MAX ((uint64_t)1 << 16)

enum { TENSORS_READ_MAX = 4 };

static char folder[] = "/tmp/archive_fuzz-XXXXXX";
static const char *const names[] = {"file", ".metadata", "__0_0.distcp", "model.safetensors.index.json",
                                    "a.safetensors"};

static void remove_folder(void) {
    if (chdir(folder) == 0) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            (void)unlink(names[i]);
        }
    }
    (void)rmdir(folder);
}

/* Anew, since some file systems bring a file that is truncated and written again to the disk at once. */
static void put(const char *name, const uint8_t *data, size_t size) {
    (void)unlink(name);
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    (void)close(fd);
}

static void enter_folder(void) {
    static bool is_there;
    static const char shard[] = "\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
                                "            \0\0\0\0\0\0\0\0";
    if (!is_there) {
        is_there = true;
        assert(mkdtemp(folder) && chdir(folder) == 0);
        (void)atexit(remove_folder);
        put("a.safetensors", (const uint8_t *)shard, sizeof shard - 1);
    }
}

/* The checksum of a tensor's bytes, as far as they are read; at most `most` bytes at a time. Tensors that are read to
 * their end only, since each read goes on where the last one ended. False: they cannot be read. */
static bool read_tensor(struct archive *archive, size_t index, uint64_t most, uint64_t *out_checksum) {
    const struct archive_tensor *tensor = archive_tensor(archive, index);
    struct checksum checksum;
    const void *block = NULL;
    uint64_t bytes = 0;
    checksum_init(&checksum);
    for (uint64_t done = 0; done < tensor->bytes && done < READ_BYTES_MAX; done += bytes) {
        if (archive_next(archive, index, most, &block, &bytes) != 0) {
            assert(muster_detail()[0] != '\0');
            return false;
        }
        assert(bytes > 0 && bytes <= tensor->bytes - done && bytes <= most);
        checksum_add(&checksum, block, (size_t)bytes);
    }
    *out_checksum = checksum_value(&checksum);
    return true;
}

static int hear(void *context, const char *sentence, uint64_t done) {
    (void)done;
    *(unsigned *)context += sentence != NULL;
    return 0;
}

/* A tensor gives the same in blocks and, if it is small, in pieces. Verifying tells of those that cannot be read. */
static void read_all(struct archive *archive, uint64_t piece) {
    uint64_t all = 0;
    unsigned bad = 0, told = 0;
    for (size_t i = 0; i < archive_tensor_count(archive); i++) {
        const struct archive_tensor *tensor = archive_tensor(archive, i);
        uint64_t whole = 0, pieces = 0;
        all += tensor->bytes < READ_BYTES_MAX ? tensor->bytes : READ_BYTES_MAX;
        if (i >= TENSORS_READ_MAX) {
            continue;
        }
        if (!read_tensor(archive, i, UINT64_MAX, &whole)) {
            bad++;
        } else if (tensor->bytes <= PIECES_BYTES_MAX) {
            assert(read_tensor(archive, i, tensor->element_bytes + piece, &pieces) && pieces == whole);
        }
    }
    if (all < READ_BYTES_MAX) {
        assert(archive_verify(archive, hear, &told) == 0 && told >= bad);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct archive *archive = NULL;
    const char *source = "file";
    if (size < 3) {
        return 0;
    }
    enter_folder();
    if (data[0] == 'D') {
        size_t length = (size_t)(data[1] | data[2] << 8);
        length = length < size - 3 ? length : size - 3;
        put(".metadata", data + 3, length);
        put("__0_0.distcp", data + 3 + length, size - 3 - length);
        source = ".";
    } else {
        source = data[0] == 'I' ? "model.safetensors.index.json" : "file";
        put(source, data + 1, size - 1);
    }
    int code = archive_open(source, &archive);
    assert(code == 0 || (code < 0 && muster_detail()[0] != '\0'));
    if (code == 0) {
        read_all(archive, data[size - 1]);
    }
    archive_close(archive);
    return 0;
}
