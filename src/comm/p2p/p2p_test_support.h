/* For tests of messages and of what is built on them: several ranks, as processes or as threads, that share what a
 * context would give them: contacts, bells, rings, and a thread each that attends to p2p. No store, no group.
 *
 *     static int body(struct job_rank *rank, void *argument) {
 *         job_check(job_send(rank, job_envelope(1 - rank->rank, 3), bytes, sizeof bytes) == 0);
 *         return 0;
 *     }
 *     ...
 *     job_run(4, body, NULL, NULL);     // asserts that all end with 0
 *
 * Processes die with the test's, and with an alarm that no honest test reaches. */
#ifndef COMM_P2P_TEST_SUPPORT_H
#define COMM_P2P_TEST_SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/node/node.h"
#include "comm/p2p/p2p.h"

enum { JOB_RANKS_MAX = 32, JOB_NOTICES_MAX = 64, JOB_ALARM_S = 120, JOB_MARKS_MAX = 64 };
#define JOB_DEADLINE_MS 60000

struct job_shared;

struct job_rank {
    uint32_t rank, size;
    struct p2p *p2p;
    struct tls *tls; /* NULL: none */
    struct comm_waiter waiter;
    struct node *node;             /* with has_nodes */
    uint32_t hosts[JOB_RANKS_MAX]; /* of each rank, numbered from 0 in the order of first ranks */
    struct job_shared *job;
    pthread_t attendant;
    int wake[2]; /* ends the attendant */
    /* what the notice hook was told */
    _Atomic uint32_t notice_count;
    struct p2p_notice notices[JOB_NOTICES_MAX];
};

typedef int job_body(struct job_rank *rank, void *argument);

struct job_options {
    bool as_threads;
    uint32_t ranks_per_host; /* neighbouring ranks share a host, with rings among them; 0: no rings */
    const uint32_t *host_of; /* per rank, in place of neighbouring ones; ranks_per_host is then the most on a host */
    bool has_nodes;          /* the ranks of a host share a node, too */
    bool may_read_peers;
    uint32_t stream_count;         /* 0: as p2p chooses */
    uint32_t lost_after_ms;        /* likewise */
    uint32_t path_lost_after_ms;   /* likewise */
    const struct link_plan *plans; /* of the parent's memory */
    size_t plan_count;
    struct p2p_zero_copy zero_copy;         /* all 0: as the environment says */
    void (*prepare)(struct job_rank *rank); /* called in each before its links are made; NULL: nothing to do */
    bool leave_silently;                    /* without p2p_free(): processes only */
};

struct job;

struct job *job_start(uint32_t size, job_body *body, void *argument, const struct job_options *options);
void job_kill(struct job *job, uint32_t rank);
pid_t job_pid(const struct job *job, uint32_t rank);
/* The body's result; -1000 - signal of a process that was killed. */
int job_wait(struct job *job, uint32_t rank);
void job_free(struct job *job);
/* All of it; fails the test if a rank ends with other than 0. */
void job_run(uint32_t size, job_body *body, void *argument, const struct job_options *options);

/* Among ranks and the test: `mark` (0 ... JOB_MARKS_MAX - 1) counts; wait until it has reached `count`. */
void job_mark(struct job_shared *job, uint32_t mark);
void job_await(struct job_shared *job, uint32_t mark, uint32_t count);
struct job_shared *job_shared(struct job *job);
int64_t job_mark_time_ns(struct job_shared *job, uint32_t mark); /* of the last count */

/* Port and addresses of a rank, as in its contact. */
uint16_t job_port(struct job_shared *job, uint32_t rank);
const uint8_t *job_contact(struct job_shared *job, uint32_t rank, size_t *out_len);

/* Messages of the tests' group, in the lane P2P_MESSAGES, made of bytes. */
struct p2p_envelope job_envelope(uint32_t peer, uint64_t tag);
/* Post, which must be possible. */
void job_post_send(struct job_rank *rank, struct p2p_request *request, struct p2p_envelope to, const void *buffer,
                   size_t bytes);
void job_post_receive(struct job_rank *rank, struct p2p_request *request, struct p2p_envelope from, void *buffer,
                      size_t bytes);
/* Waits for one request, and gives its code. */
int job_wait_for(struct job_rank *rank, struct p2p_request *request);
/* Bytes of it that have been moved so far, here or by the attendant. */
size_t job_moved(struct job_rank *rank, const struct p2p_request *request);
/* All of it; what posting, or else waiting, gave. */
int job_send(struct job_rank *rank, struct p2p_envelope to, const void *buffer, size_t bytes);
int job_receive(struct job_rank *rank, struct p2p_envelope from, void *buffer, size_t bytes);

/* What no other message of a row has, as far as it is long enough: the first 4 bytes are its place. */
void job_fill(uint8_t *bytes, size_t count, uint32_t place);
bool job_is_filled(const uint8_t *bytes, size_t count, uint32_t place);

int64_t job_deadline(void);
/* Floats that are equal only in value do not count. */
bool job_same_bits(const void *a, const void *b, size_t bytes);

/* Ends the rank, saying where, if the condition does not hold. */
#define job_check(condition)                                                                                           \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            job_failed(__FILE__, __LINE__, #condition);                                                                \
        }                                                                                                              \
    } while (0)
_Noreturn void job_failed(const char *file, int line, const char *condition);

#endif
