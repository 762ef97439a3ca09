/* Why a job has failed, as one node tells the others: the worker that failed first, where it ran, how it ended, and
 * its last words. A JSON object in the nodes' store (docs/rendezvous.md, "How a job ends"). Pure. */
#ifndef RENDEZVOUS_CAUSE_H
#define RENDEZVOUS_CAUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDZV_CAUSE_HOST_MAX 256 /* bytes, terminator included; so the others */
#define RDZV_CAUSE_HOW_MAX 256
#define RDZV_CAUSE_WORDS_MAX 2048
#define RDZV_CAUSE_AGE_MAX_US (INT64_C(3600) * 1000000) /* more is no age that anything can follow from */
#define RDZV_CAUSE_JSON_MAX 32768 /* bytes of the record that are read; more is no record of ours */
#define RDZV_CAUSE_TEXT_MAX (RDZV_CAUSE_HOST_MAX + RDZV_CAUSE_HOW_MAX + 96)

struct rdzv_cause {
    char host[RDZV_CAUSE_HOST_MAX]; /* where the worker ran */
    uint32_t rank, local_rank;
    int64_t pid;
    int wait_status;                  /* as from waitpid */
    int64_t time_s;                   /* by the clock of that node; never compared with another's */
    int64_t age_us;                   /* how long ago it died when this was told; negative: not known */
    bool is_victim;                   /* it has said that it fails because another rank is gone */
    bool is_final;                    /* that node's restarts are used up: the job has failed */
    bool is_told;                     /* `words` are all that it will say */
    char how[RDZV_CAUSE_HOW_MAX];     /* a clause: "killed by SIGSEGV (Segmentation fault)" */
    char words[RDZV_CAUSE_WORDS_MAX]; /* the end of its stderr, or the message of its error file; may be empty */
};

/* malloc'd; NULL without memory. Texts that are not UTF-8 are left out. */
char *rdzv_cause_write(const struct rdzv_cause *cause);
/* The same in `bytes_max` at most: of the last words the end. */
char *rdzv_cause_write_within(const struct rdzv_cause *cause, size_t bytes_max);
/* Texts that are too long are cut. MUSTER_ECORRUPT, and *out as it was. */
int rdzv_cause_read(const char *text, size_t len, struct rdzv_cause *out);

/* When a worker died, by the clock of the node that compares. Clocks of two nodes are never compared: each says how
 * long ago it was. */
enum { RDZV_DEATH_UNSURE_MS = 4 };
/* A node that hears of another one's failure, and of none of its own, says so only after this time: ranks that fail
 * because of one of its workers may be faster than the word that this one has ended. */
enum { RDZV_NOTHING_FAILED_MS = 50 };
/* How long the others have to say what has failed on them, which takes an agent on a machine with far more processes
 * than processors more than 100 ms; and how much longer if all that is known is victims. */
enum { RDZV_OTHERS_MS = 300, RDZV_CULPRIT_MS = 400 };

struct rdzv_death {
    bool is_known;
    bool is_victim;
    int64_t at_ms;
    int64_t early_ms; /* its peers may have noticed it so much before that */
};

/* The system closes the sockets of a process that is killed before its parent can wait for it. Peers fail meanwhile,
 * and may have ended first: on a busy machine that takes tens of milliseconds. SIGKILL comes from outside, so such a
 * worker is no victim. Other signals may follow from the end of a peer, so only what is usual is granted; PyTorch's
 * processes may abort then, and launchers end workers by SIGTERM, so nothing is. 0 for a worker that exited. */
int64_t rdzv_cause_early_ms(int wait_status);
/* Of a record that is told, or heard, now. */
struct rdzv_death rdzv_cause_death(const struct rdzv_cause *cause, int64_t now_ms);
/* The rule by which one failure is the cause of the job's end, and the other one is not. A victim is none as long as
 * there is one that is no victim: ranks of libmuster end within a millisecond of the one by which they fail. One
 * that was killed is the first also if it died a little later. Where it does not tell, the one stays that was
 * heard first: by more than a tick of the kernel, which is as exactly as it is known how long a record was on its way.
 * A death that is not known is not compared. */
bool rdzv_death_is_older(const struct rdzv_death *death, const struct rdzv_death *first);
/* Two records of one death: a record seems younger by as long as it was on its way, so the older one is nearer to the
 * truth. */
void rdzv_death_refine(struct rdzv_death *death, const struct rdzv_death *again);

/* "rank 3 (pid 77) on host b: killed by SIGSEGV". Returns `out`. */
const char *rdzv_cause_describe(const struct rdzv_cause *cause, char out[RDZV_CAUSE_TEXT_MAX]);

#endif
