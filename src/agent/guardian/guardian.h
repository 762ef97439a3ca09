/* The workers' parent: a small process, forked early by the agent, that starts, signals, kills and reaps.
 *
 * The agent and the guardian watch each other. When the agent ends in whatever way, the guardian's socket reports it
 * and the guardian kills everything below it and ends. When the guardian ends unexpectedly, parent-death signals kill
 * the workers, and their orphans fall to the agent (both are child subreapers), which kills them and calls on_lost.
 * Then another guardian can take its place. Only processes that are provably descendants are ever signalled.
 * docs/adr/0001-guardian.md and 0019-guardian-replaced.md have the reasons.
 *
 * A call that gives MUSTER_ECLOSED has lost the guardian: on_lost follows, unless it has been called.
 *
 * One thread: that of the loop. Callbacks come from the loop, never from inside the calls below, and may make any of
 * them. No call blocks, guardian_close() excepted. */
#ifndef AGENT_GUARDIAN_H
#define AGENT_GUARDIAN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct guardian;

/* Limits: workers alive at once; bytes of argv and environment of one worker, terminators included; strings in
 * each of the two; bytes waiting for a guardian that does not read. */
#define GUARDIAN_WORKERS_MAX 4096
#define GUARDIAN_SPAWN_BYTES_MAX (8u << 20)
#define GUARDIAN_STRINGS_MAX (1u << 16)
#define GUARDIAN_QUEUE_BYTES_MAX (256u << 20)
#define GUARDIAN_LEFTOVERS_MAX 4

/* How long guardian_kill_all() insists before it counts a process as unkillable (uninterruptible in the kernel, or
 * under another user's name), says so in the log, and calls on_gone all the same. */
#define GUARDIAN_KILL_PATIENCE_MS 10000

struct guardian_spawn {
    const char *const *argv;  /* NULL-terminated; argv[0] is looked up in the PATH of envp when it has no slash */
    const char *const *envp;  /* NULL-terminated */
    int stdout_fd, stderr_fd; /* -1 = the agent's own; borrowed until the call returns */
    const cpu_set_t *cpus;    /* NULL = the agent's affinity */
    size_t cpus_bytes;
    bool is_preloaded; /* a fork of the preload server, if that can be */
    int given_fd;      /* above 2: the process has it as GUARDIAN_GIVEN_FD; 0 = none; borrowed until the call returns */
};

#define GUARDIAN_GIVEN_FD 3 /* the number of given_fd in the process that has been started */

struct guardian_exit {
    uint32_t id;
    pid_t pid;
    int wait_status; /* as from waitpid */
    int64_t at_ns;   /* CLOCK_MONOTONIC when the guardian was woken for it */
    uint64_t order;  /* order of death: smaller died first */
    bool oom_killed; /* the cgroup counted a victim of the out-of-memory killer; false when it cannot be known */
    bool core_dumped;
    uint32_t cpu_limit_s; /* it was killed when it had used so much processor time (RLIMIT_CPU); 0: not */
};

#define GUARDIAN_QUIET_MS 200    /* what workers left behind may end by itself */
#define GUARDIAN_LINGERING_MAX 8 /* processes that are named */
#define GUARDIAN_COMMAND_BYTES 96

struct guardian_lingerer {
    int32_t pid;
    uint32_t spared;
    int32_t rank;                         /* of the worker that started it, by its environment; -1: not known */
    char command[GUARDIAN_COMMAND_BYTES]; /* cut; bytes as its owner wrote them */
};

struct guardian_lingering {
    uint32_t count;        /* processes that have been told to end */
    uint32_t spared_count; /* and that are left alone, without their descendants */
    uint32_t named_count;
    struct guardian_lingerer named[GUARDIAN_LINGERING_MAX];
};

enum guardian_preload_kind {
    GUARDIAN_PRELOAD_READY,    /* it has imported; text: what, and how long that took */
    GUARDIAN_PRELOAD_REFUSED,  /* it cannot serve, and ends; text: why */
    GUARDIAN_PRELOAD_LEFT_OUT, /* it starts over without a module; text: which, and why */
    GUARDIAN_PRELOAD_ENDED,    /* the process `pid` has ended, with `wait_status` */
    GUARDIAN_PRELOAD_AS_USUAL  /* worker `id`, meant to be a fork of it, is started as usual; text: why */
};

#define GUARDIAN_PRELOAD_TEXT_BYTES 1024

struct guardian_preload_news {
    uint32_t kind; /* enum guardian_preload_kind */
    uint32_t id;
    int32_t pid;
    int32_t wait_status;
    char text[GUARDIAN_PRELOAD_TEXT_BYTES];
};

struct guardian_callbacks {
    /* Every guardian_spawn() is answered by exactly one of the first two, unless the guardian is lost. */
    void (*on_spawned)(void *ctx, uint32_t id, pid_t pid);
    /* `why` is a sentence ("cannot start 'foo': No such file or directory"), valid during the call. ECANCELED: it was
     * told to end before. */
    void (*on_spawn_failed)(void *ctx, uint32_t id, int error_number, const char *why);
    /* A worker's leader ended. Its descendants stay until guardian_kill_all(). */
    void (*on_exit)(void *ctx, const struct guardian_exit *exit);
    /* Answer to each guardian_kill_all(), and to a guardian_dismiss(): no worker and no descendant is left but those
     * that guardian_dismiss() spares; every on_exit came before. */
    void (*on_gone)(void *ctx);
    /* The guardian died; what it had started has been killed. Only guardian_replace() and guardian_close() make sense
     * now, and may be called from here. */
    void (*on_lost)(void *ctx);
    /* Between guardian_dismiss() and its answer, when there is anybody to tell of. Up to two times: those that got
     * SIGTERM, and those that are left alone in the end. NULL: not wanted. */
    void (*on_lingering)(void *ctx, const struct guardian_lingering *lingering);
    /* Before on_lost: how a process ended that fell to the agent, a worker for instance. NULL: not wanted. */
    void (*on_orphan)(void *ctx, pid_t pid, int wait_status);
    /* Of the preload server; `news` is valid during the call. NULL: not wanted. */
    void (*on_preload)(void *ctx, const struct guardian_preload_news *news);
};

/* Forks the guardian. `callbacks` is copied; all of them must be set, but for those that may be NULL. Call early,
 * before descriptors that should not be doubled are open and before threads: the guardian is a fork of the caller that
 * closes everything but 0, 1, 2. Makes the caller a child subreaper unless it has children already; from here on the
 * process must start no children by other means. MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int guardian_create(uv_loop_t *loop, const struct guardian_callbacks *callbacks, void *ctx, struct guardian **out);

/* After on_lost: puts another guardian, the same program started anew (guardian_main()), into the place of *g, with its
 * callbacks, and closes the lost one. It knows nothing of what that one was told (guardian_keep_outcome() and so on),
 * and its workers' limits and ignored signals are as when the first was made. Call it when the program may have any
 * threads and memory. Takes about a millisecond. On failure *g is the lost one. MUSTER_ESYSTEM, MUSTER_ENOMEM,
 * MUSTER_EUNSUPPORTED (what the lost one had started may not have ended, since orphans do not fall to this process). */
int guardian_replace(struct guardian **g);

/* First thing in main() of a program that calls guardian_replace(): where the program was started by that, this call is
 * the guardian, and does not return. */
void guardian_main(int argc, char **argv);

/* Asks for a worker under the caller's `id`, in a session of its own. All of `spawn` is copied or duplicated.
 * MUSTER_EINVAL (empty argv), MUSTER_ELIMIT (limits above), MUSTER_ECLOSED (guardian lost), MUSTER_ENOMEM,
 * MUSTER_ESYSTEM (descriptor cannot be duplicated). */
int guardian_spawn(struct guardian *g, uint32_t id, const struct guardian_spawn *spawn);

/* Starts the preload server, a process that has imported what workers need and forks them (guardian_preload.h has its
 * protocol), in place of one that is there. Its stdout is the socket to the guardian, its stderr the agent's. From now
 * on workers with is_preloaded wait until it is ready, and are forks of it; whatever keeps it from that, they are
 * started as usual. It is no worker: guardian_kill_all() leaves it alone, and it ends with guardian_dismiss() and with
 * the guardian. on_preload tells of it. Errors as those of guardian_spawn(). */
int guardian_preload(struct guardian *g, const struct guardian_spawn *server);

/* Starts the companion of an attempt, a process that serves its workers. It is no worker: signals of the calls below do
 * not reach it, and it runs until the workers and their descendants are gone, in guardian_kill_all(), in
 * guardian_dismiss(), or at the end of the guardian. Then it gets SIGTERM, GUARDIAN_COMPANION_MS for its own end, and
 * SIGKILL. The same callbacks tell of it, under the caller's `id`, which is no worker's; its end comes before on_gone.
 * There is one at a time. Errors as those of guardian_spawn(). */
int guardian_companion(struct guardian *g, uint32_t id, const struct guardian_spawn *companion);
#define GUARDIAN_COMPANION_MS 2000

/* Sends a signal to the process group of every worker whose leader has not been reaped. MUSTER_ECLOSED. */
int guardian_signal(struct guardian *g, int signal_number);

/* Sends a signal to one worker's leader, if it has not been reaped. MUSTER_ECLOSED. */
int guardian_signal_worker(struct guardian *g, uint32_t id, int signal_number);

/* SIGKILL for every worker and descendant, repeated until none is left; on_gone answers. MUSTER_ECLOSED. */
int guardian_kill_all(struct guardian *g);

/* All workers have ended well: SIGTERM for what they left behind, a moment later, and on_gone when it has ended; a
 * guardian_kill_all() hurries. leaves_detached: what made a session of its own is left alone, by kill_all too, and when
 * the guardian ends. MUSTER_ECLOSED. */
int guardian_dismiss(struct guardian *g, bool leaves_detached);

/* Should the agent die, the guardian writes the outcome to `path`: `job` (outcome_format_job()) and what it knows of
 * workers 0 to worker_count - 1, those that are started from now on. All is copied. An empty path: no longer.
 * MUSTER_ELIMIT, MUSTER_ECLOSED, MUSTER_ENOMEM. */
int guardian_keep_outcome(struct guardian *g, const char *path, const char *job, uint32_t worker_count,
                          uint32_t base_global_rank, uint32_t base_role_rank);

/* Where worker `id` will leave its error record, for that outcome: of a warm process nobody knows when it is started.
 * Copied. Errors as above. */
int guardian_keep_error_file(struct guardian *g, uint32_t id, const char *path);

/* What the guardian clears away when the agent ends without doing it, killed for instance: the folders at and below
 * `path`, `folder_levels` of them, as far as nothing is in them; with 0, the FIFO `path`. At most
 * GUARDIAN_LEFTOVERS_MAX. MUSTER_ELIMIT, MUSTER_ECLOSED, MUSTER_ENOMEM. */
int guardian_clear_leftover(struct guardian *g, const char *path, int folder_levels);

/* After this time a guardian that has not answered is taken for stuck, killed, and on_lost called. By default beyond
 * GUARDIAN_KILL_PATIENCE_MS by two seconds; a shorter one is for tests with a guardian that they have stopped. */
void guardian_set_stuck_ms(struct guardian *g, uint64_t stuck_ms);

/* Ends the guardian process, and with it whatever is left, reaps it and frees (NULL is fine; the memory goes when the
 * loop has run its close callback). Waits for the guardian's end: well under a millisecond when nothing is left,
 * at most GUARDIAN_KILL_PATIENCE_MS and two seconds. No callback comes after it. */
void guardian_close(struct guardian *g);

/* The guardian's process id; 0 once it was lost. */
pid_t guardian_pid(const struct guardian *g);

#endif
