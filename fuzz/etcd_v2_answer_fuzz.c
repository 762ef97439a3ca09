/* Fuzzes the reading of etcd's v2 answers. The first byte chooses the HTTP status. What is read is walked through
 * whole, so that a text or a child outside the answer shows. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/client/etcd_v2_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t walk(const struct etcd_v2_node *node) {
    assert(node->key);
    return strlen(node->key) + (node->value ? strlen(node->value) : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const long codes[] = {200, 201, 404, 412, 500};
    struct etcd_v2_answer answer;
    if (size == 0) {
        return 0;
    }
    long code = codes[data[0] % (sizeof codes / sizeof *codes)];
    if (etcd_v2_answer_read(code, data + 1, size - 1, "5", &answer) == 0) {
        size_t total = strlen(answer.message) + strlen(answer.action) + walk(&answer.node);
        for (size_t i = 0; i < answer.child_count; i++) {
            total += walk(&answer.children[i]);
        }
        assert(total < 2 * size); /* every text stands in the answer once */
        assert(answer.index == 5);
        etcd_v2_answer_done(&answer);
    }
    return 0;
}
