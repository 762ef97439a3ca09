/* The C half of test_snapshot.py, and of the tests of muster ckpt.
 *
 *   snapshot_peer save FOLDER TENSOR ...          saves them, of bytes that count up from 0, as the snapshot of step 7
 *                                                 (or STEP)
 *   snapshot_peer checkpoint FOLDER TENSOR ...    the same as a checkpoint, by the ranks that the environment tells of
 *   snapshot_peer check FOLDER TENSOR ...         the ranks load the newest checkpoint, and compare: each what it would
 * save snapshot_peer load FILE TENSOR ...            loads them from any safetensors file, prints the bytes of each as
 * a line
 *
 * TENSOR is NAME:TYPE:SHAPE, TYPE the number of an enum muster_type, SHAPE as 2x3 or empty. In a checkpoint every
 * second one is cut; rank 0 has least of it. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/checkpoint.h>
#include <muster/snapshot.h>

enum { TENSORS_MAX = 64, FAILED = 1, USAGE = 2 };

static struct muster_tensor tensors[TENSORS_MAX];
static size_t counts[TENSORS_MAX]; /* bytes */

static int64_t step(void) {
    const char *text = getenv("STEP");
    return text ? strtoll(text, NULL, 10) : 7;
}

/* Takes the text apart in place; it must live on. */
static int parse(char *text, struct muster_tensor *tensor, size_t *bytes) {
    char *shape = strrchr(text, ':');
    if (!shape) {
        return USAGE;
    }
    *shape++ = '\0';
    char *type = strrchr(text, ':');
    if (!type) {
        return USAGE;
    }
    *type++ = '\0';
    *tensor = (struct muster_tensor){.name = text, .type = (enum muster_type)strtol(type, NULL, 10)};
    *bytes = muster_type_bytes(tensor->type);
    while (*shape && tensor->dim_count < MUSTER_TENSOR_DIMS_MAX) {
        char *end = NULL;
        uint64_t size = strtoull(shape, &end, 10);
        tensor->shape[tensor->dim_count++] = size;
        *bytes *= size;
        shape = *end ? end + 1 : end;
    }
    tensor->data = malloc(*bytes + 1);
    return tensor->data ? 0 : FAILED;
}

static void count_up(size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            ((uint8_t *)tensors[i].data)[j] = (uint8_t)(i + j);
        }
    }
}

static int save(const char *folder, size_t count) {
    int64_t epoch = 3;
    double accuracy = 0.9375;
    char note[] = "from C";
    struct muster_value values[] = {muster_value_integer("epoch", &epoch), muster_value_real("accuracy", &accuracy),
                                    muster_value_text("note", note, sizeof note)};
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(tensors, count, values, 3);
    count_up(count);
    return muster_snapshot_save(folder, step(), &state, NULL);
}

/* Of a rank: every second tensor is cut. */
struct share {
    struct muster_group *group;
    struct muster_tensor described[TENSORS_MAX];
    struct muster_checkpoint_chunk chunks[TENSORS_MAX];
    size_t chunk_count;
    struct muster_checkpoint_state state;
};

static int describe(struct share *share, size_t count) {
    share->chunk_count = 0;
    int code = muster_group_create_env(NULL, &share->group);
    if (code) {
        return code;
    }
    uint64_t rank = muster_group_rank(share->group), size = muster_group_size(share->group);
    memcpy(share->described, tensors, sizeof share->described);
    for (size_t i = 1; i < count; i += 2) {
        uint64_t bytes = muster_type_bytes(tensors[i].type), elements = counts[i] / bytes;
        uint64_t first = elements * rank * rank / (size * size);
        uint64_t end = elements * (rank + 1) * (rank + 1) / (size * size);
        share->described[i].data = NULL;
        share->chunks[share->chunk_count++] = (struct muster_checkpoint_chunk){
            .tensor = i, .first = first, .count = end - first, .data = (uint8_t *)tensors[i].data + first * bytes};
    }
    share->state = (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(share->described, count, share->chunks,
                                                                           share->chunk_count, NULL, 0);
    return 0;
}

static int save_checkpoint(const char *folder, size_t count) {
    static struct share share;
    int code = describe(&share, count);
    if (code) {
        return code;
    }
    count_up(count);
    code = muster_checkpoint_save(share.group, folder, step(), &share.state, NULL);
    muster_group_free(share.group);
    return code;
}

/* Are bytes [first, end) of a tensor those that count_up() gives? */
static bool counts_up(size_t tensor, uint64_t first, uint64_t end) {
    bool is_right = true;
    for (uint64_t j = first; j < end && is_right; j++) {
        is_right = ((const uint8_t *)tensors[tensor].data)[j] == (uint8_t)(tensor + j);
    }
    return is_right;
}

static int check_checkpoint(const char *folder, size_t count) {
    static struct share share;
    struct muster_checkpoint_found found;
    int code = describe(&share, count);
    if (code) {
        return code;
    }
    for (size_t i = 0; i < count; i++) {
        memset(tensors[i].data, 0xff, counts[i]);
    }
    code = muster_checkpoint_load_newest(share.group, folder, &share.state, NULL, &found);
    bool is_right = true;
    for (size_t i = 0; i < count && code == 0; i += 2) {
        is_right = is_right && counts_up(i, 0, counts[i]);
    }
    for (size_t i = 0; i < share.chunk_count && code == 0; i++) {
        const struct muster_checkpoint_chunk *chunk = &share.chunks[i];
        uint64_t bytes = muster_type_bytes(tensors[chunk->tensor].type);
        is_right = is_right && counts_up(chunk->tensor, chunk->first * bytes, (chunk->first + chunk->count) * bytes);
    }
    muster_group_free(share.group);
    if (!is_right) {
        (void)fprintf(stderr, "what was loaded is not what was saved\n");
        exit(FAILED);
    }
    return code;
}

static int load(const char *path, size_t count) {
    int code = muster_safetensors_load(path, tensors, count);
    for (size_t i = 0; i < count && code == 0; i++) {
        for (size_t j = 0; j < counts[i]; j++) {
            (void)printf("%02x", ((const uint8_t *)tensors[i].data)[j]);
        }
        (void)printf("\n");
    }
    return code;
}

int main(int argc, char **argv) {
    size_t count = 0;
    if (argc < 3 || argc - 3 > TENSORS_MAX) {
        return USAGE;
    }
    for (int i = 3; i < argc; i++, count++) {
        int code = parse(argv[i], &tensors[count], &counts[count]);
        if (code) {
            return code;
        }
    }
    int code = strcmp(argv[1], "save") == 0         ? save(argv[2], count)
               : strcmp(argv[1], "checkpoint") == 0 ? save_checkpoint(argv[2], count)
               : strcmp(argv[1], "check") == 0      ? check_checkpoint(argv[2], count)
                                                    : load(argv[2], count);
    if (code) {
        (void)fprintf(stderr, "%s: %s\n", muster_strerror(code), muster_detail());
    }
    for (size_t i = 0; i < count; i++) {
        free(tensors[i].data);
    }
    return code ? FAILED : 0;
}
