/* The recorder's file: the last calls of a worker on its process groups, as its launcher reads them after its end. The
 * format stands in docs/formats/recorder.md; the writer is comm/observe/recorder.c. This is the reader, which trusts
 * nothing, and the names of the operations. Pure. */
#ifndef BASE_CALL_RECORD_H
#define BASE_CALL_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One table: name, value, text. The values stand in the recorder's file and in messages between hosts. */
#define CALL_OPERATION_TABLE(X)                                                                                        \
    X(COMM_BARRIER, 1, "barrier")                                                                                      \
    X(COMM_ALL_REDUCE, 2, "all_reduce")                                                                                \
    X(COMM_REDUCE, 3, "reduce")                                                                                        \
    X(COMM_BROADCAST, 4, "broadcast")                                                                                  \
    X(COMM_ALL_GATHER, 5, "all_gather")                                                                                \
    X(COMM_GATHER, 6, "gather")                                                                                        \
    X(COMM_SCATTER, 7, "scatter")                                                                                      \
    X(COMM_REDUCE_SCATTER, 8, "reduce_scatter")                                                                        \
    X(COMM_ALL_TO_ALL, 9, "all_to_all")                                                                                \
    X(COMM_SEND, 10, "send")                                                                                           \
    X(COMM_RECEIVE, 11, "receive")                                                                                     \
    X(COMM_MONITORED_BARRIER, 12, "monitored_barrier")                                                                 \
    X(COMM_SCAN, 13, "scan")                                                                                           \
    X(COMM_EXSCAN, 14, "exscan")

/* "all_reduce" and so on, "unknown operation". */
const char *call_operation_name(unsigned operation);

#define CALL_RECORD_MAGIC "MUSTCALL" /* the first 8 bytes */
enum {
    CALL_RECORD_VERSION = 1,
    CALL_RECORD_HEADER_BYTES = 128,
    CALL_RECORD_ENTRY_BYTES = 64,
    CALL_RECORD_ENTRIES = 128,       /* that the writer keeps */
    CALL_RECORD_ENTRIES_MAX = 65536, /* that a reader takes */
    CALL_RECORD_HOST_BYTES = 64,
    CALL_RECORD_GROUPS = 16, /* whose names the writer keeps */
    CALL_RECORD_GROUP_BYTES = 72,
    CALL_RECORD_NAME_BYTES = 64,
    CALL_RECORD_ENGINE_BYTES = 128
};
#define CALL_RECORD_FILE_BYTES                                                                                         \
    ((size_t)CALL_RECORD_HEADER_BYTES + (size_t)CALL_RECORD_ENTRIES * CALL_RECORD_ENTRY_BYTES +                        \
     (size_t)CALL_RECORD_GROUPS * (CALL_RECORD_GROUP_BYTES + CALL_RECORD_ENGINE_BYTES))
/* What follows the name of the launcher's error file. */
#define CALL_RECORD_SUFFIX ".calls"
#define CALL_RECORD_NO_PEER UINT32_MAX
#define CALL_RECORD_ROOT_GROUP 0u /* its id */

enum call_record_state { CALL_RECORD_BEGUN = 1, CALL_RECORD_FINISHED = 2, CALL_RECORD_FAILED = 3 };

enum call_record_named { CALL_RECORD_UNNAMED = 0, CALL_RECORD_NAMED = 1, CALL_RECORD_AMBIGUOUS = 2 };

struct call_record_header {
    uint32_t entry_count, group_count; /* group_count 0: a file without names */
    int32_t pid;
    uint32_t rank, world_size;
    int64_t realtime_us, monotonic_ns; /* the two clocks at one moment, by which other times become dates */
    uint64_t begun_count;              /* calls since the start */
    char host[CALL_RECORD_HOST_BYTES]; /* terminated */
};

struct call_record {
    uint64_t number;   /* of the process's calls, from 1 */
    uint64_t sequence; /* of the group's collectives, from 1: equal on all ranks; 0: a message */
    uint32_t group, group_size;
    uint8_t operation, type, reduction, state;
    uint64_t count;
    int64_t begin_ns, end_ns; /* monotonic; end 0: not ended */
    uint32_t peer;            /* root, or the other side of a message; CALL_RECORD_NO_PEER: none */
    int32_t status;           /* of a failed one */
    bool is_counted;          /* counts differ per rank; count is 0 */
};

/* false: the bytes are no such file. */
bool call_record_read_header(const uint8_t *data, size_t len, struct call_record_header *out);

/* The newest calls, at most `max`, oldest first; returns how many. Entries that were being written, or make no sense,
 * are left out. */
size_t call_record_read(const uint8_t *data, size_t len, struct call_record *out, size_t max);

/* false, with an empty text: the file does not have the group's name, or groups of two names had its number. Control
 * characters become '?'. */
bool call_record_group_name(const uint8_t *data, size_t len, uint32_t group, char out[CALL_RECORD_NAME_BYTES]);

/* What carries out the group's calls, and why: "mpi (as asked for)". False, with an empty text: the file does not say.
 * Of several groups with this id the newest counts. May be asked while the worker runs: a text that is being written
 * then may be read in part, and is whole at the next look. What is no printable UTF-8 becomes '?'. */
bool call_record_group_engine(const uint8_t *data, size_t len, uint32_t group, char out[CALL_RECORD_ENGINE_BYTES]);

/* "all_reduce of 1024 float32, sum (call 17 of group 'world'), begun": one call, without its times. group_name: empty
 * for none, "group 0" then. Returns `out`. */
char *call_record_format(const struct call_record *record, const char *group_name, char *out, size_t max);

#endif
