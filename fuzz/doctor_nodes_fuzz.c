/* What nodes tell each other under muster doctor --nnodes, and what is made of it: the input is read as a node and as a
 * pair; what is accepted is in range, can be told again, and can be judged. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "doctor/nodes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void judge_node(const struct doctor_node *node) {
    static struct doctor_findings findings;
    struct doctor_node both[2] = {*node, {.host = "another", .addr = "10.0.0.1", .port = 1}}, again;
    struct buf text;
    assert(node->port > 0 && strlen(node->host) < sizeof node->host);
    buf_init(&text, DOCTOR_RECORD_BYTES_MAX);
    if (doctor_node_write(node, &text) == 0) {
        int code = doctor_node_read(buf_bytes(&text), text.len, &again);
        assert(code == 0 && again.port == node->port);
    }
    buf_done(&text);
    findings.count = 0;
    doctor_judge_nodes(both, 2, &findings);
    assert(findings.count > 0);
}

static void judge_pair(struct doctor_pair pair) {
    static struct doctor_findings findings;
    struct doctor_node both[2] = {{.host = "a"}, {.host = "b"}};
    double scratch[1];
    assert(pair.from < DOCTOR_NODES_MAX && pair.to < DOCTOR_NODES_MAX && pair.from != pair.to);
    pair.from = 0; /* as those who read it set it */
    pair.to = 1;
    findings.count = 0;
    doctor_judge_pairs(both, 2, &pair, 1, scratch, &findings);
    assert(findings.count > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct doctor_node node;
    struct doctor_pair pair;
    if (doctor_node_read(data, size, &node) == 0) {
        judge_node(&node);
    }
    if (doctor_pair_read(data, size, &pair) == 0) {
        judge_pair(pair);
    }
    return 0;
}
