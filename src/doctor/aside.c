/* Children, their pipes and the deadline; see aside.h. An answer travels as its bytes; a zero-length write cannot be
 * told, so the end of a finished work is one byte after the last answer. */
#include "doctor/aside.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

static void write_all(int fd, const void *bytes, size_t count) {
    if (file_write_all(fd, bytes, count, -1) != 0) {
        _exit(1); /* nobody listens any more */
    }
}

void aside_tell(const struct aside_job *job) {
    write_all(job->fd, job->answer, job->answer_bytes);
}

static _Noreturn void be_child(struct aside_job *job, int fd, pid_t parent) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    job->fd = fd;
    job->work(job);
    aside_tell(job);
    write_all(fd, "", 1);
    _exit(0);
}

static int job_start(struct aside_job *job) {
    int ends[2];
    job->is_answered = job->is_finished = false;
    job->incoming_bytes = 0;
    job->incoming = malloc(job->answer_bytes);
    if (!job->incoming) {
        return status_fail(MUSTER_ENOMEM, "no memory for an answer");
    }
    if (pipe2(ends, O_CLOEXEC) != 0) {
        int code = status_fail_errno(errno, "open a pipe");
        free(job->incoming);
        return code;
    }
    pid_t parent = getpid();
    job->pid = fork();
    if (job->pid == 0) {
        be_child(job, ends[1], parent);
    }
    int error_number = errno;
    (void)close(ends[1]);
    if (job->pid < 0) {
        (void)close(ends[0]);
        free(job->incoming);
        return status_fail_errno(error_number, "start a process");
    }
    job->fd = ends[0];
    return 0;
}

/* Reads what is there. False: the pipe has ended. */
static bool job_read(struct aside_job *job) {
    ssize_t n = read(job->fd, job->incoming + job->incoming_bytes, job->answer_bytes - job->incoming_bytes);
    if (n <= 0) {
        /* One byte behind a whole answer is the sign of the end. */
        job->is_finished = n == 0 && job->is_answered && job->incoming_bytes == 1;
        return n < 0 && errno == EINTR;
    }
    job->incoming_bytes += (size_t)n;
    if (job->incoming_bytes == job->answer_bytes) {
        memcpy(job->answer, job->incoming, job->answer_bytes);
        job->is_answered = true;
        job->incoming_bytes = 0;
    }
    return true;
}

static void job_end(struct aside_job *job) {
    (void)close(job->fd);
    job->fd = -1;
    free(job->incoming);
    job->incoming = NULL;
    (void)kill(job->pid, SIGKILL);
    /* One that hangs in the kernel (a dead file server) cannot be waited for: it is left to whoever inherits it. */
    for (int tries = 0; tries < 100 && waitpid(job->pid, NULL, WNOHANG) == 0; tries++) {
        (void)poll(NULL, 0, 1);
    }
}

static void wait_for_answers(struct aside_job *jobs, size_t count, int64_t deadline_ns) {
    struct pollfd polls[ASIDE_JOBS_MAX];
    size_t open_count = count;
    for (size_t i = 0; i < count; i++) {
        polls[i] = (struct pollfd){.fd = jobs[i].fd, .events = POLLIN};
    }
    while (open_count > 0) {
        int64_t left_ms = clock_remaining_ms(deadline_ns);
        int ready = left_ms > 0 ? poll(polls, count, (int)left_ms) : 0;
        if (ready == 0) {
            return;
        }
        for (size_t i = 0; ready > 0 && i < count; i++) {
            if (polls[i].fd >= 0 && polls[i].revents && !job_read(&jobs[i])) {
                polls[i].fd = -1;
                open_count--;
            }
        }
    }
}

int aside_run(struct aside_job *jobs, size_t count, int64_t timeout_ms) {
    assert(count <= ASIDE_JOBS_MAX);
    int64_t deadline_ns = clock_deadline_ns(clock_monotonic_ns(), timeout_ms);
    int code = 0;
    size_t started = 0;
    while (started < count && code == 0) {
        assert(jobs[started].answer_bytes > 1);
        code = job_start(&jobs[started]);
        started += code == 0;
    }
    if (code == 0) {
        wait_for_answers(jobs, count, deadline_ns);
    }
    for (size_t i = 0; i < started; i++) {
        job_end(&jobs[i]);
    }
    return code;
}
