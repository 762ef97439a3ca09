/* What verifying reads: a whole snapshot once; one that is damaged twice, the second time to name its tensors. Reads
 * are counted where they reach the kernel (the linker puts __wrap_pread() in the place of pread()). */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "train/archive/archive.h"

enum { TENSORS = 5, ELEMENTS = 300000, HEADER_BYTES_MAX = 4096 };
#define TENSOR_BYTES ((uint64_t)ELEMENTS * sizeof(float))

static char folder[] = "archive_verify_test-XXXXXX";
static uint64_t bytes_read;

ssize_t __real_pread(int file, void *bytes, size_t count, off_t offset);
ssize_t __wrap_pread(int file, void *bytes, size_t count, off_t offset);

ssize_t __wrap_pread(int file, void *bytes, size_t count, off_t offset) {
    ssize_t got = __real_pread(file, bytes, count, offset);
    bytes_read += got > 0 ? (uint64_t)got : 0;
    return got;
}

/* What was told. */
struct heard {
    uint64_t done;
    unsigned sentences, tensors; /* of the sentences, those that begin with a tensor */
    char last[MUSTER_DETAIL_MAX];
    uint64_t give_up_at; /* 0: never */
};

static int hear(void *context, const char *sentence, uint64_t done) {
    struct heard *heard = context;
    heard->done += done;
    if (sentence) {
        heard->sentences++;
        heard->tensors += strncmp(sentence, "tensor ", 7) == 0;
        (void)snprintf(heard->last, sizeof heard->last, "%s", sentence);
    }
    return heard->give_up_at && heard->done >= heard->give_up_at ? MUSTER_ECANCELED : 0;
}

/* Saves a snapshot of step 3, and finds its data file. */
static uint64_t save(char path[256]) {
    static float values[ELEMENTS];
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
    struct muster_tensor tensors[TENSORS];
    struct stat info;
    for (size_t i = 0; i < ELEMENTS; i++) {
        values[i] = (float)i;
    }
    for (size_t i = 0; i < TENSORS; i++) {
        tensors[i] = (struct muster_tensor){
            .name = names[i], .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {ELEMENTS}, .data = values};
    }
    const struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(tensors, TENSORS, NULL, 0);
    assert_int_equal(muster_snapshot_save(folder, 3, &state, NULL), 0);
    char text[8192] = "", name[128] = "";
    (void)snprintf(path, 256, "%s/step-3.json", folder);
    FILE *manifest = fopen(path, "re");
    assert_non_null(manifest);
    assert_true(fread(text, 1, sizeof text - 1, manifest) > 0);
    assert_int_equal(fclose(manifest), 0);
    const char *at = strstr(text, "step-3-");
    assert_true(at && sscanf(at, "%100[^\"]", name) == 1);
    (void)snprintf(path, 256, "%s/%s", folder, name);
    assert_int_equal(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

static struct heard verify(int wanted_code, uint64_t give_up_at) {
    struct archive *archive = NULL;
    struct heard heard = {.give_up_at = give_up_at};
    assert_int_equal(archive_open(folder, &archive), 0);
    bytes_read = 0;
    assert_int_equal(archive_verify(archive, hear, &heard), wanted_code);
    archive_close(archive);
    return heard;
}

static void flip(const char *path, off_t at) {
    uint8_t byte = 0;
    int file = open(path, O_RDWR | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(__real_pread(file, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    assert_int_equal(close(file), 0);
}

static void a_whole_snapshot_is_read_once(void **state) {
    (void)state;
    char path[256];
    uint64_t bytes = save(path);
    struct heard heard = verify(0, 0);
    assert_int_equal(heard.sentences, 0);
    assert_int_equal(heard.done, bytes);
    assert_int_equal(bytes_read, bytes);
}

static void damaged_tensors_are_named_by_a_second_look(void **state) {
    (void)state;
    char path[256];
    uint64_t bytes = save(path), data_at = bytes - TENSORS * TENSOR_BYTES;
    flip(path, (off_t)(data_at + TENSOR_BYTES + 7));
    flip(path, (off_t)(data_at + 3 * TENSOR_BYTES));
    struct heard heard = verify(0, 0);
    assert_int_equal(heard.sentences, 3); /* the file, and two tensors of it */
    assert_int_equal(heard.tensors, 2);
    assert_non_null(strstr(heard.last, "tensor d: "));
    assert_int_equal(heard.done, bytes);
    assert_in_range(bytes_read, bytes + TENSORS * TENSOR_BYTES, 2 * bytes);
}

/* Another name in the header, which is still one: the file is not as it was written. */
static void a_damaged_header_is_damage(void **state) {
    (void)state;
    char path[256], header[HEADER_BYTES_MAX + 1] = "";
    uint64_t bytes = save(path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(file >= 0);
    assert_true(__real_pread(file, header, HEADER_BYTES_MAX, 8) > 0); /* behind its length */
    assert_int_equal(close(file), 0);
    const char *name = strstr(header, "\"a\"");
    assert_non_null(name);
    flip(path, 8 + (name + 1 - header));
    struct heard heard = verify(0, 0);
    assert_int_equal(heard.sentences, 2);
    assert_int_equal(heard.tensors, 1);
    assert_int_equal(heard.done, bytes);
}

static void who_is_told_can_end_it(void **state) {
    (void)state;
    char path[256];
    uint64_t bytes = save(path);
    struct heard heard = verify(MUSTER_ECANCELED, 1);
    assert_true(heard.done > 0 && heard.done < bytes);
    assert_int_equal(bytes_read, heard.done);
    flip(path, (off_t)bytes - 1);
    assert_int_equal(verify(MUSTER_ECANCELED, bytes).sentences, 0); /* its last block; what is found is not told */
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) > 0 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_snapshot_is_read_once),
        cmocka_unit_test(damaged_tensors_are_named_by_a_second_look),
        cmocka_unit_test(a_damaged_header_is_damage),
        cmocka_unit_test(who_is_told_can_end_it),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
