/* Reading tensors from pieces of files: any shape, strides and cut gives what element by element gives; and what the
 * lists refuse. Whole files of PyTorch's are read in tests/peer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/archive/archive_impl.h"

enum { FILE_BYTES = 12 << 20, CASES = 300 };

static uint8_t *content; /* of the file */
static char path[] = "archive_read_test-XXXXXX";

static int make_file(void **state) {
    (void)state;
    int fd = mkstemp(path);
    content = malloc(FILE_BYTES);
    assert_non_null(content);
    assert_true(fd >= 0);
    for (uint32_t i = 0, random = 1; i < FILE_BYTES; i++) {
        random = random * 1664525 + 1013904223;
        content[i] = (uint8_t)(random >> 24);
    }
    assert_int_equal(write(fd, content, FILE_BYTES), FILE_BYTES);
    return close(fd);
}

static int remove_file(void **state) {
    (void)state;
    free(content);
    return unlink(path);
}

static struct archive *open_archive(void) {
    uint32_t file = 0;
    struct archive *archive = calloc(1, sizeof *archive);
    assert_non_null(archive);
    crc32_init(&archive->crc);
    assert_int_equal(archive_add_file(archive, path, true, &file), 0);
    return archive;
}

static uint32_t below(uint32_t *random, uint32_t limit) {
    *random = *random * 1664525 + 1013904223;
    return (*random >> 8) % limit;
}

/* Strides in any order of the dimensions, some with gaps, some 0; all elements lie within `elements`. */
static void choose_strides(uint32_t *random, uint32_t dim_count, struct archive_piece *piece, uint64_t elements) {
    uint32_t order[MUSTER_TENSOR_DIMS_MAX] = {0};
    uint64_t stride = 1;
    for (uint32_t i = 0; i < dim_count; i++) {
        uint32_t at = below(random, 3) == 0 ? below(random, i + 1) : i; /* mostly row-major */
        order[i] = order[at];
        order[at] = i;
    }
    for (uint32_t i = dim_count; i-- > 0;) {
        uint64_t extent = piece->size[order[i]] + (below(random, 4) == 0 ? 1 : 0);
        bool is_expanded = stride > elements / extent || below(random, 10) == 0;
        piece->stride[order[i]] = is_expanded ? 0 : stride;
        stride *= is_expanded ? 1 : extent;
    }
}

static void check_element(const struct archive *archive, const uint8_t *have, uint64_t element) {
    const struct archive_tensor *tensor = &archive->tensors[0];
    uint64_t at[MUSTER_TENSOR_DIMS_MAX] = {0}, rest = element;
    for (uint32_t i = tensor->dim_count; i-- > 0;) {
        at[i] = rest % tensor->shape[i];
        rest /= tensor->shape[i];
    }
    for (uint32_t p = 0; p < tensor->piece_count; p++) {
        const struct archive_piece *piece = &archive->pieces[p];
        uint64_t from = piece->data_at;
        bool is_inside = true;
        for (uint32_t i = 0; i < tensor->dim_count; i++) {
            is_inside = is_inside && at[i] >= piece->start[i] && at[i] - piece->start[i] < piece->size[i];
            from += (at[i] - piece->start[i]) * piece->stride[i] * tensor->element_bytes;
        }
        if (is_inside) {
            assert_memory_equal(have + element * tensor->element_bytes, content + from, tensor->element_bytes);
            return;
        }
    }
    fail_msg("element %llu is in no piece", (unsigned long long)element);
}

/* A limit that is no multiple of anything but has room for one element, or none. */
static uint64_t any_most(uint32_t *random, uint64_t tensor_bytes) {
    uint64_t part = tensor_bytes / (1 + below(random, 20));
    return below(random, 2) == 0 ? UINT64_MAX : part < sizeof(uint64_t) ? sizeof(uint64_t) : part;
}

static void check_tensor(struct archive *archive, uint64_t most) {
    const struct archive_tensor *tensor = &archive->tensors[0];
    uint8_t *have = malloc(tensor->bytes + 1);
    const void *block = NULL;
    uint64_t bytes = 0;
    assert_non_null(have);
    for (uint64_t done = 0; done < tensor->bytes; done += bytes) {
        assert_int_equal(archive_next(archive, 0, most, &block, &bytes), 0);
        assert_true(bytes > 0 && bytes <= tensor->bytes - done && bytes <= ARCHIVE_BLOCK_BYTES && bytes <= most);
        memcpy(have + done, block, bytes);
    }
    uint64_t elements = tensor->bytes / tensor->element_bytes, step = elements > 5000 ? elements / 4999 : 1;
    for (uint64_t i = 0; i < elements; i += step) {
        check_element(archive, have, i);
    }
    check_element(archive, have, elements - 1);
    free(have);
}

/* Cuts the tensor along one dimension. */
static void add_pieces(struct archive *archive, uint32_t *random) {
    const struct archive_tensor *tensor = &archive->tensors[0];
    uint32_t along = tensor->dim_count > 0 ? below(random, tensor->dim_count) : 0;
    uint64_t whole = tensor->dim_count > 0 ? tensor->shape[along] : 1;
    for (uint64_t at = 0, size = 0; at < whole; at += size) {
        struct archive_piece piece = {.data_at = below(random, 100)};
        size = 1 + below(random, (uint32_t)(whole - at));
        memcpy(piece.size, tensor->shape, sizeof piece.size);
        if (tensor->dim_count > 0) {
            piece.start[along] = at;
            piece.size[along] = size;
        }
        choose_strides(random, tensor->dim_count, &piece, (FILE_BYTES - 100) / tensor->element_bytes);
        assert_int_equal(archive_add_piece(archive, &piece), 0);
    }
}

static void any_shape_strides_and_cut(void **state) {
    (void)state;
    static const uint32_t element_bytes[] = {1, 2, 4, 8};
    for (uint32_t seed = 0; seed < CASES; seed++) {
        uint32_t random = seed * 2654435761u + 1, dim_count = below(&random, 5);
        uint64_t shape[MUSTER_TENSOR_DIMS_MAX] = {0};
        for (uint32_t i = 0; i < dim_count; i++) {
            shape[i] = 1 + below(&random, seed % 10 == 0 && i < 3 ? 170 : 9);
        }
        struct archive_type type = {MUSTER_UINT8, element_bytes[below(&random, 4)], "any"};
        struct archive *archive = open_archive();
        assert_int_equal(archive_add_tensor(archive, "t", type, dim_count, shape), 0);
        add_pieces(archive, &random);
        assert_int_equal(archive_check_cover(archive, &archive->tensors[0]), 0);
        uint64_t most = any_most(&random, archive->tensors[0].bytes);
        check_tensor(archive, most);
        check_tensor(archive, UINT64_MAX); /* it begins again */
        archive_close(archive);
    }
}

static void a_checksum_is_compared_when_all_was_read(void **state) {
    (void)state;
    uint64_t shape[2] = {3, 2 << 20};
    struct archive_type type = {MUSTER_UINT8, 1, "uint8"};
    for (int right = 0; right < 2; right++) {
        struct archive *archive = open_archive();
        struct archive_piece piece = {.data_at = 5, .size = {3, 2 << 20}, .stride = {2 << 20, 1}};
        piece.crc = crc32_add(&archive->crc, 0, content + 5, (size_t)6 << 20) + (right ? 0 : 1);
        assert_int_equal(archive_add_tensor(archive, "t", type, 2, shape), 0);
        assert_int_equal(archive_add_piece(archive, &piece), 0);
        const void *block;
        uint64_t bytes = 0;
        assert_int_equal(archive_next(archive, 0, UINT64_MAX, &block, &bytes), 0);
        archive->tensors[0].element = 0; /* from the beginning */
        assert_int_equal(archive_next(archive, 0, UINT64_MAX, &block, &bytes), 0);
        assert_int_equal(archive_next(archive, 0, UINT64_MAX, &block, &bytes), right ? 0 : MUSTER_ECORRUPT);
        archive_close(archive);
    }
}

/* Two tensors in turns, each with a checksum: both go on where they were left, and both checksums are compared. */
static void tensors_are_read_in_turns(void **state) {
    (void)state;
    enum { BYTES = 100000 };
    for (uint32_t wrong = 0; wrong < 3; wrong++) { /* 1, 2: the tensor whose checksum does not fit */
        struct archive *archive = open_archive();
        uint64_t shape[1] = {BYTES}, done[2] = {0, 0};
        struct archive_type type = {MUSTER_UINT8, 1, "uint8"};
        int code = 0;
        for (uint32_t i = 0; i < 2; i++) {
            struct archive_piece piece = {.data_at = 7 + i, .size = {BYTES}, .stride = {1}};
            piece.crc = crc32_add(&archive->crc, 0, content + 7 + i, BYTES) + (wrong == i + 1);
            assert_int_equal(archive_add_tensor(archive, i == 0 ? "a" : "b", type, 1, shape), 0);
            assert_int_equal(archive_add_piece(archive, &piece), 0);
        }
        for (uint32_t random = 1, turn = 0; code == 0 && done[0] + done[1] < 2 * BYTES; turn = below(&random, 2)) {
            const void *block = NULL;
            uint64_t bytes = 0;
            uint32_t i = done[turn] < BYTES ? turn : 1 - turn;
            code = archive_next(archive, i, 1 + below(&random, 9000), &block, &bytes);
            if (code == 0) {
                assert_memory_equal(block, content + 7 + i + done[i], bytes);
                done[i] += bytes;
            }
        }
        assert_int_equal(code, wrong ? MUSTER_ECORRUPT : 0);
        assert_int_equal(wrong == 1 ? strncmp(muster_detail(), "tensor a", 8) : 0, 0);
        archive_close(archive);
    }
}

static void parts_must_tile_the_tensor(void **state) {
    (void)state;
    static const struct {
        uint64_t boxes[3][4]; /* start and size in two dimensions */
        const char *words;
    } cases[] = {
        {{{0, 0, 4, 3}, {0, 3, 4, 2}}, NULL},
        {{{0, 0, 1, 5}, {1, 0, 3, 2}, {1, 2, 3, 3}}, NULL},
        {{{0, 0, 4, 5}, {2, 0, 0, 5}}, NULL}, /* a rank without rows */
        {{{0, 0, 4, 3}}, "8 of its 20 elements are nowhere"},
        {{{0, 0, 4, 3}, {0, 2, 4, 3}}, "two parts overlap"},
        {{{0, 0, 4, 5}, {0, 0, 4, 5}}, "two parts overlap"},
        {{{0, 0, 4, 5}, {3, 4, 1, 1}}, "two parts overlap"},
        {{{1, 0, 4, 5}}, "leaves the tensor"},
        {{{0, 0, 5, 4}}, "leaves the tensor"},
        {{{UINT64_MAX, 0, 2, 5}}, "leaves the tensor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct archive *archive = open_archive();
        uint64_t shape[2] = {4, 5};
        struct archive_type type = {MUSTER_UINT8, 1, "uint8"};
        assert_int_equal(archive_add_tensor(archive, "t", type, 2, shape), 0);
        for (size_t box = 0; box < 3 && cases[i].boxes[box][3] > 0; box++) {
            struct archive_piece piece = {.file = 0};
            memcpy(piece.start, cases[i].boxes[box], 2 * sizeof *piece.start);
            memcpy(piece.size, cases[i].boxes[box] + 2, 2 * sizeof *piece.size);
            assert_int_equal(archive_add_piece(archive, &piece), 0);
        }
        int code = archive_check_cover(archive, &archive->tensors[0]);
        if (code != (cases[i].words ? MUSTER_ECORRUPT : 0) ||
            (cases[i].words && !strstr(muster_detail(), cases[i].words))) {
            fail_msg("case %zu: %d: %s", i, code, muster_detail());
        }
        archive_close(archive);
    }
}

static void a_file_that_ends_early_is_an_error(void **state) {
    (void)state;
    struct archive *archive = open_archive();
    uint8_t bytes[4], *copy = NULL;
    assert_int_equal(archive_read(archive, 0, FILE_BYTES - 4, bytes, 4), 0);
    assert_memory_equal(bytes, content + FILE_BYTES - 4, 4);
    assert_int_equal(archive_read(archive, 0, FILE_BYTES - 3, bytes, 4), MUSTER_ECORRUPT);
    assert_int_equal(archive_read(archive, 0, UINT64_MAX, bytes, 4), MUSTER_ECORRUPT);
    assert_int_equal(archive_read_new(archive, 0, 1, FILE_BYTES, UINT64_MAX, &copy), MUSTER_ECORRUPT);
    assert_int_equal(archive_read_new(archive, 0, 0, 11, 10, &copy), MUSTER_ELIMIT);
    archive_close(archive);
}

/* More files than are open at a time. */
static void many_files_are_read_in_turns(void **state) {
    (void)state;
    struct archive *archive = open_archive();
    for (uint32_t i = 1; i < 3 * ARCHIVE_OPEN_MAX; i++) {
        uint32_t file = 0;
        assert_int_equal(archive_add_file(archive, path, true, &file), 0);
        assert_int_equal(file, i);
    }
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 3 * ARCHIVE_OPEN_MAX; i++) {
            uint8_t byte = 0;
            assert_int_equal(archive_read(archive, i, i + round, &byte, 1), 0);
            assert_int_equal(byte, content[i + round]);
        }
    }
    archive_close(archive);
}

static void names_stay_in_their_folder(void **state) {
    (void)state;
    static const char *const names[] = {"", ".", "..", "../x", "/x", "a/b", "a\\b", "a\nb", "\xff"};
    struct archive *archive = open_archive();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t file = 0;
        assert_int_equal(archive_add_file_of(archive, ".", names[i], true, &file), MUSTER_ECORRUPT);
    }
    archive_close(archive);
}

static void the_checksum_is_that_of_zip(void **state) {
    (void)state;
    struct crc32 tables;
    crc32_init(&tables);
    assert_int_equal(crc32_add(&tables, 0, "123456789", 9), 0xCBF43926); /* its known check value */
    assert_int_equal(crc32_add(&tables, crc32_add(&tables, 0, "12345", 5), "6789", 4), 0xCBF43926);
    assert_int_equal(crc32_add(&tables, 0, "", 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read_in_turns),
        cmocka_unit_test(any_shape_strides_and_cut),
        cmocka_unit_test(a_checksum_is_compared_when_all_was_read),
        cmocka_unit_test(parts_must_tile_the_tensor),
        cmocka_unit_test(a_file_that_ends_early_is_an_error),
        cmocka_unit_test(many_files_are_read_in_turns),
        cmocka_unit_test(names_stay_in_their_folder),
        cmocka_unit_test(the_checksum_is_that_of_zip),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
