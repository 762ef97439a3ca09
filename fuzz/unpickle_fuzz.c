/* Fuzzes the machine of pickles with PyTorch's classes: whatever it accepts can be looked through without end of its
 * arrays, and whatever it refuses has a sentence. */
#include <assert.h>
#include <stdint.h>

#include "base/formats/unpickle.h"

#include <muster/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VALUES_MAX = 1 << 16 };

static void check_value(const struct unpickled *tree, const struct unpickle_value *value, const uint8_t *data,
                        size_t size) {
    assert(value->kind != UNPICKLE_MARK);
    if (value->kind == UNPICKLE_TEXT || value->kind == UNPICKLE_BYTES || value->kind == UNPICKLE_BIG) {
        assert(value->bytes >= data && value->bytes + value->size <= data + size);
    } else if (value->kind >= UNPICKLE_TUPLE) {
        assert(value->index < tree->node_count);
    }
}

static int read_and_look(const uint8_t *data, size_t size, bool takes_others) {
    static const struct unpickle_class list[] = {
        {"collections", "OrderedDict", 0, 0},
        {"torch", "FloatStorage", 0, 0},
        {"torch", "Size", 0, 0},
        {"torch", "float32", 0, 0},
        {"torch._utils", "_rebuild_tensor_v2", 0, 0},
        {"torch.distributed.checkpoint.filesystem", "_StorageInfo", 0, 0},
        {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata", 0, 0},
        {"torch.distributed.checkpoint.metadata", "Metadata", 0, 0},
        {"torch.distributed.checkpoint.metadata", "MetadataIndex", 0, 0},
        {"torch.distributed.checkpoint.metadata", "TensorProperties", 0, 0},
        {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata", 0, 0},
    };
    struct unpickled tree;
    const struct unpickle_classes classes = {
        .list = list, .count = sizeof list / sizeof *list, .takes_others = takes_others, .others_role = 0};
    int code = unpickle(data, size, classes, VALUES_MAX, &tree);
    if (code) {
        assert((code == MUSTER_ECORRUPT || code == MUSTER_ELIMIT) && muster_detail()[0] != '\0');
        return 0;
    }
    check_value(&tree, &tree.root, data, size);
    for (uint32_t i = 0; i < tree.node_count; i++) {
        const struct unpickle_node *node = &tree.nodes[i];
        const struct unpickle_value object = {.kind = UNPICKLE_OBJECT, .index = i};
        uint32_t count = 0;
        assert(unpickled_class(&tree, &object)->module != NULL);
        for (uint32_t at = node->head; at != UNPICKLE_NIL; at = tree.items[at].next) {
            assert(at < tree.item_count && ++count <= node->count);
            check_value(&tree, &tree.items[at].value, data, size);
        }
        assert(count == node->count);
    }
    unpickled_done(&tree);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int code = read_and_look(data, size, false);
    return code ? code : read_and_look(data, size, true);
}
