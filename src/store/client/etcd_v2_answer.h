/* Answers of etcd's v2 API as data: JSON to a node and its children, or an error in etcd's words.
 *
 * Pure: bytes in, a struct out; memory is taken for as much as the bytes describe. Numbers that do not fit, wrong types
 * and missing fields are MUSTER_EPROTOCOL; fields that nobody here needs are skipped. */
#ifndef STORE_ETCD_V2_ANSWER_H
#define STORE_ETCD_V2_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* errorCode of etcd: only those that are told apart. */
enum etcd_v2_error {
    ETCD_V2_OK = 0,
    ETCD_V2_KEY_NOT_FOUND = 100,
    ETCD_V2_COMPARE_FAILED = 101,
    ETCD_V2_NOT_A_FILE = 102,
    ETCD_V2_NODE_EXIST = 105,
    ETCD_V2_RAFT_INTERNAL = 300, /* from here to 399: the cluster is busy with itself */
    ETCD_V2_INDEX_CLEARED = 401, /* of a watch: read again */
};

struct etcd_v2_node {
    const char *key;   /* never NULL */
    const char *value; /* NULL: a folder, or a node that has been deleted */
    bool is_folder;
    uint64_t modified_index;
};

struct etcd_v2_answer {
    long error;          /* enum etcd_v2_error or another of etcd's */
    const char *message; /* of an error; never NULL */
    const char *action;  /* "get", "set", "create", "delete", "expire" ...; never NULL */
    uint64_t index;      /* of the whole store when it answered: X-Etcd-Index; 0: not told */
    struct etcd_v2_node node;
    struct etcd_v2_node *children; /* of a folder: one level */
    size_t child_count;
    void *json; /* what the texts lie in */
};

/* index_header: X-Etcd-Index or "". An answer that is no answer of this API: MUSTER_EPROTOCOL, MUSTER_EUNSUPPORTED
 * (this etcd does not offer v2), MUSTER_ENOMEM. On success give it to etcd_v2_answer_done(). */
int etcd_v2_answer_read(long http_code, const uint8_t *body, size_t len, const char *index_header,
                        struct etcd_v2_answer *out);
void etcd_v2_answer_done(struct etcd_v2_answer *answer);

#endif
