/* Work that may hang or crash (name servers, drivers, network file systems), in child processes with a deadline: all
 * jobs side by side, the late ones killed. For processes of one thread. */
#ifndef DOCTOR_ASIDE_H
#define DOCTOR_ASIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ASIDE_JOBS_MAX 64

struct aside_job {
    /* Fills job->answer, in the child. What it returns with is handed over; so is what aside_tell() finds before. */
    void (*work)(const struct aside_job *job);
    const void *question; /* the work's; borrowed */
    void *answer;         /* plain data without pointers; untouched unless is_answered */
    size_t answer_bytes;

    /* Results. */
    bool is_answered; /* `answer` holds the last one that came whole */
    bool is_finished; /* the work came to its end; else it was late, or the child died */

    /* Private. */
    pid_t pid;
    int fd;
    uint8_t *incoming;
    size_t incoming_bytes;
};

/* In the child: hands over the answer as it stands, should the rest take too long. */
void aside_tell(const struct aside_job *job);

/* Runs all of them, at most ASIDE_JOBS_MAX, for at most `timeout_ms`. Blocks. MUSTER_ENOMEM, MUSTER_ESYSTEM: nothing
 * was run. */
int aside_run(struct aside_job *jobs, size_t count, int64_t timeout_ms);

#endif
