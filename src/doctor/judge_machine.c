/* Clock, limits, memory, temporary folder, kernel and processors; see judge.h. */
#include "doctor/judge.h"

#include <inttypes.h>
#include <string.h>

#include "base/str.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)

/* ---- clock ---- */

#define YEAR_2025_US INT64_C(1735689600000000)
enum { STEP_US = 20000, LARGE_ERROR_US = 1000000, LARGE_FREQUENCY_PPM = 400 };

void doctor_judge_clock(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_clock *clock = &facts->clock;
    size_t before = out->count;
    if (clock->realtime_us < YEAR_2025_US) {
        doctor_advise(
            doctor_find(out, DOCTOR_CLOCK, DOCTOR_ERROR, "the clock stands before 2025"),
            "Set it (timedatectl set-ntp true): certificates are not valid yet, and files look newer than now");
    }
    if (clock->stepped_us > STEP_US || clock->stepped_us < -STEP_US) {
        doctor_advise(doctor_find(out, DOCTOR_CLOCK, DOCTOR_WARNING, "the clock has just been set, by %.3f s",
                                  (double)clock->stepped_us / 1e6),
                      "c10d judges nodes by each other's clocks, and drops one whose clock jumps: let it settle first");
    }
    if (clock->has_state && !clock->is_synchronised) {
        doctor_advise(doctor_find(out, DOCTOR_CLOCK, DOCTOR_WARNING, "the clock is not synchronised"),
                      "Start chrony or systemd-timesyncd (`timedatectl` shows it). In a container that is the host's "
                      "business. Logs of several nodes cannot be compared otherwise");
    } else if (clock->has_state && clock->max_error_us > LARGE_ERROR_US) {
        doctor_advise(doctor_find(out, DOCTOR_CLOCK, DOCTOR_NOTE, "the clock may be wrong by %.1f s",
                                  (double)clock->max_error_us / 1e6),
                      "The time servers have not been heard for long: `chronyc tracking` or `timedatectl`");
    }
    if (clock->frequency_ppm > LARGE_FREQUENCY_PPM || clock->frequency_ppm < -LARGE_FREQUENCY_PPM) {
        doctor_advise(
            doctor_find(out, DOCTOR_CLOCK, DOCTOR_WARNING, "the clock is corrected by %.0f millionths",
                        clock->frequency_ppm),
            "At 500 the correction ends and the clock drifts: the time source is bad, or the machine's timer");
    }
    if (strcmp(clock->source, "hpet") == 0 || strcmp(clock->source, "acpi_pm") == 0 ||
        strcmp(clock->source, "jiffies") == 0) {
        doctor_advise(doctor_find(out, DOCTOR_CLOCK, DOCTOR_NOTE, "the kernel reads the clock from %s", clock->source),
                      "Each look at it costs a microsecond instead of 20 ns; the kernel has given tsc up, see `dmesg`");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_CLOCK, DOCTOR_OK, "%s%s%s", clock->has_state ? "synchronised" : "steady",
                          clock->source[0] ? ", read from " : "", clock->source);
    }
}

/* ---- limits ---- */

enum { FILES_SOFT_FEW = 4096, FILES_BASE = 1024, FILES_PER_NODE = 10, PROCESSES_FEW = 4096, PROCESSES_LEFT_FEW = 512 };
#define LOCKED_FEW_BYTES (64 * MIB)

static const char *limit_text(uint64_t value, char out[32]) {
    (void)str_format(out, 32, value == DOCTOR_UNLIMITED ? "unlimited" : "%" PRIu64, value);
    return out;
}

static void judge_files(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_limit *files = &facts->limits.files;
    uint64_t needed = FILES_BASE + (uint64_t)facts->node_count * FILES_PER_NODE;
    if (files->hard < needed) {
        doctor_advise(doctor_find(out, DOCTOR_LIMITS, DOCTOR_WARNING,
                                  "at most %" PRIu64 " open files, even when the limit is raised", files->hard),
                      "The node that serves the rendezvous of %u node%s wants %" PRIu64 ": raise `nofile` in "
                      "/etc/security/limits.conf, LimitNOFILE= of the unit, or --ulimit nofile= of the container",
                      facts->node_count, facts->node_count == 1 ? "" : "s", needed);
    } else if (files->soft < FILES_SOFT_FEW) {
        doctor_advise(
            doctor_find(out, DOCTOR_LIMITS, DOCTOR_NOTE, "workers start with %" PRIu64 " open files", files->soft),
            "Data loaders run into it (\"Too many open files\"): `ulimit -n %" PRIu64 "` before the job",
            files->hard < 65536 ? files->hard : UINT64_C(65536));
    }
}

static void judge_processes(const struct doctor_limits *limits, struct doctor_findings *out) {
    char text[32];
    if (limits->processes.soft < PROCESSES_FEW) {
        doctor_advise(doctor_find(out, DOCTOR_LIMITS, DOCTOR_WARNING, "at most %s processes and threads of this user",
                                  limit_text(limits->processes.soft, text)),
                      "Workers with data loaders and OpenMP start thousands of threads: raise `nproc` in "
                      "/etc/security/limits.conf");
    }
    uint64_t left = limits->container_processes - limits->container_processes_used;
    if (limits->container_processes != DOCTOR_UNLIMITED && left < PROCESSES_LEFT_FEW) {
        doctor_advise(doctor_find(out, DOCTOR_LIMITS, DOCTOR_WARNING,
                                  "the container may start %" PRIu64 " more processes and threads", left),
                      "Raise its limit (--pids-limit, TasksMax= of the unit, podPidsLimit)");
    }
}

void doctor_judge_limits(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_limits *limits = &facts->limits;
    size_t before = out->count;
    char text[32], bytes[DOCTOR_BYTES_TEXT_MAX];
    judge_files(facts, out);
    judge_processes(limits, out);
    if (facts->fabric.count > 0 && limits->locked_bytes.soft < LOCKED_FEW_BYTES) {
        doctor_advise(doctor_find(out, DOCTOR_LIMITS, DOCTOR_ERROR, "only %s may be locked, and there is InfiniBand",
                                  doctor_bytes_text(limits->locked_bytes.soft, bytes)),
                      "Memory for RDMA has to be locked (\"ibv_reg_mr failed\"): `memlock unlimited` in "
                      "/etc/security/limits.conf, LimitMEMLOCK=infinity, or --ulimit memlock=-1");
    }
    if (out->count == before) {
        char cores[DOCTOR_BYTES_TEXT_MAX];
        (void)doctor_find(out, DOCTOR_LIMITS, DOCTOR_OK, "%s open files, core files %s",
                          limit_text(limits->files.soft, text),
                          limits->core_bytes.soft == DOCTOR_UNLIMITED ? "of any size"
                          : limits->core_bytes.soft == 0              ? "off"
                                                         : doctor_bytes_text(limits->core_bytes.soft, cores));
    }
}

/* ---- memory ---- */

#define SHM_SMALL_BYTES (1 * GIB)
#define LEFT_SMALL_BYTES (1 * GIB)

static void judge_shm(const struct doctor_memory *memory, struct doctor_findings *out) {
    char text[DOCTOR_BYTES_TEXT_MAX], of[DOCTOR_BYTES_TEXT_MAX];
    if (!memory->has_shm || memory->shm_is_read_only) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_ERROR, "/dev/shm %s",
                                  memory->has_shm ? "is read-only" : "is missing"),
                      "PyTorch's data loaders and NCCL need it: mount -t tmpfs tmpfs /dev/shm");
    } else if (memory->shm_bytes < SHM_SMALL_BYTES) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_WARNING, "/dev/shm has %s",
                                  doctor_bytes_text(memory->shm_bytes, text)),
                      "Data loaders and NCCL keep buffers there and die of SIGBUS when it is full. Start the container "
                      "with --shm-size=8g or --ipc=host; in Kubernetes, mount an emptyDir of medium Memory there");
    } else if (memory->shm_free_bytes < memory->shm_bytes / 10) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_WARNING, "/dev/shm is full: %s of %s are left",
                                  doctor_bytes_text(memory->shm_free_bytes, text),
                                  doctor_bytes_text(memory->shm_bytes, of)),
                      "Remove what earlier jobs have left there: ls -lt /dev/shm");
    }
    if (memory->has_shm && !memory->shm_is_tmpfs) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_WARNING, "/dev/shm is on a disk"),
                      "What is shared there goes through a file system: mount -t tmpfs tmpfs /dev/shm");
    }
}

void doctor_judge_memory(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_memory *memory = &facts->memory;
    size_t before = out->count;
    char text[DOCTOR_BYTES_TEXT_MAX], of[DOCTOR_BYTES_TEXT_MAX];
    judge_shm(memory, out);
    if (memory->has_container_limit && memory->container_left_bytes < LEFT_SMALL_BYTES) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_WARNING, "the container has %s left of %s",
                                  doctor_bytes_text(memory->container_left_bytes, text),
                                  doctor_bytes_text(memory->container_bytes, of)),
                      "The kernel kills workers beyond it; files in /dev/shm count. Raise the limit, or use less");
    }
    if (memory->total_bytes > 0 && memory->available_bytes < memory->total_bytes / 20) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_WARNING, "%s of %s of memory are available",
                                  doctor_bytes_text(memory->available_bytes, text),
                                  doctor_bytes_text(memory->total_bytes, of)),
                      "Something else uses it: ps aux --sort=-rss | head");
    }
    if (memory->overcommit == 2) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_WARNING, "vm.overcommit_memory is 2"),
                      "CUDA reserves far more addresses than it uses and fails: sysctl vm.overcommit_memory=0");
    }
    if (strcmp(memory->huge_pages, "never") == 0) {
        doctor_advise(
            doctor_find(out, DOCTOR_MEMORY, DOCTOR_NOTE, "transparent huge pages are off"),
            "Large buffers cost more page faults: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    }
    if (memory->total_bytes == 0) {
        doctor_advise(doctor_find(out, DOCTOR_MEMORY, DOCTOR_NOTE, "how much memory there is cannot be read"),
                      "/proc/meminfo tells it: mount /proc");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_MEMORY, DOCTOR_OK, "%s available, /dev/shm %s",
                          doctor_bytes_text(memory->available_bytes, text), doctor_bytes_text(memory->shm_bytes, of));
    }
}

/* ---- the temporary folder ---- */

#define TEMPORARY_SMALL_BYTES (256 * MIB)

void doctor_judge_temporary(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_temporary *temporary = &facts->temporary;
    size_t before = out->count;
    char text[DOCTOR_BYTES_TEXT_MAX];
    const char *from = temporary->variable[0] ? temporary->variable : "no variable";
    if (!temporary->takes_files) {
        doctor_advise(doctor_find(out, DOCTOR_TEMPORARY, DOCTOR_ERROR, "no file can be written into %s: %s",
                                  temporary->path, temporary->reason),
                      "Logs and error files go there (named by %s): set TMPDIR to a folder that can be written to",
                      from);
    } else if (temporary->free_bytes < TEMPORARY_SMALL_BYTES || temporary->free_files == 0) {
        doctor_advise(doctor_find(out, DOCTOR_TEMPORARY, DOCTOR_WARNING, "%s has %s%s left", temporary->path,
                                  temporary->free_files == 0 ? "no inodes, " : "",
                                  doctor_bytes_text(temporary->free_bytes, text)),
                      "Logs and error files go there: clear it, or set TMPDIR (or --log-dir) to another folder");
    }
    if (temporary->takes_files && temporary->forbids_execution) {
        doctor_advise(doctor_find(out, DOCTOR_TEMPORARY, DOCTOR_NOTE, "%s is mounted noexec", temporary->path),
                      "torch.compile, Triton and extensions load code from there: set TMPDIR to another folder");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_TEMPORARY, DOCTOR_OK, "%s, %s free", temporary->path,
                          doctor_bytes_text(temporary->free_bytes, text));
    }
}

/* ---- the kernel ---- */

void doctor_judge_kernel(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_kernel *kernel = &facts->kernel;
    size_t before = out->count;
    if (!kernel->has_subreaper) {
        doctor_advise(doctor_find(out, DOCTOR_KERNEL, DOCTOR_ERROR, "a process cannot take in its orphans here"),
                      "`muster run` needs prctl(PR_SET_CHILD_SUBREAPER), of Linux 3.4: a filter of system calls "
                      "(seccomp) forbids it");
    }
    if (!kernel->has_pidfd) {
        doctor_advise(
            doctor_find(out, DOCTOR_KERNEL, DOCTOR_NOTE, "pidfd_open() is missing (Linux %s)", kernel->release),
            "The death of a neighbour is noticed a little later. Linux 5.3 has it; a filter of system calls "
            "(seccomp) may forbid it");
    }
    if (!kernel->has_memfd) {
        doctor_advise(
            doctor_find(out, DOCTOR_KERNEL, DOCTOR_WARNING, "memfd_create() is missing (Linux %s)", kernel->release),
            "libmuster's ranks share memory through it, and use TCP without. A filter of system calls "
            "(seccomp) may forbid it");
    }
    if (!kernel->reads_memory || kernel->ptrace_scope > 1) {
        char scope[48] = "";
        if (kernel->reads_memory) {
            (void)str_format(scope, sizeof scope, " (kernel.yama.ptrace_scope is %d)", kernel->ptrace_scope);
        }
        doctor_advise(doctor_find(out, DOCTOR_KERNEL, DOCTOR_NOTE,
                                  "ranks cannot read each other's memory (process_vm_readv)%s", scope),
                      "Messages on one host are copied twice instead of once. Containers: --cap-add=SYS_PTRACE; "
                      "else sysctl kernel.yama.ptrace_scope=1");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_KERNEL, DOCTOR_OK, "Linux %s: pidfd, memfd, process_vm_readv", kernel->release);
    }
}

/* ---- processors ---- */

static void judge_omp(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_processors *processors = &facts->processors;
    const char *text = doctor_variable(&facts->environment, "OMP_NUM_THREADS");
    int64_t threads = 0;
    if (!text) {
        return;
    }
    char first[16];
    size_t n = strcspn(text, ","); /* a number for each level of nesting */
    bool fits = n < sizeof first;
    if (fits) {
        memcpy(first, text, n);
        first[n] = '\0';
    }
    if (!fits || !str_parse_i64(first, &threads) || threads <= 0) {
        doctor_advise(
            doctor_find(out, DOCTOR_PROCESSORS, DOCTOR_WARNING, "OMP_NUM_THREADS=%s is no number above 0", text),
            "OpenMP ignores it and starts a thread for each processor in every worker; set it to processors "
            "/ workers");
    } else if (threads > processors->allowed_count) {
        doctor_advise(doctor_find(out, DOCTOR_PROCESSORS, DOCTOR_WARNING,
                                  "OMP_NUM_THREADS=%s, and %u processors may be used", text, processors->allowed_count),
                      "More threads than processors wait for each other; set it to processors / workers");
    }
}

void doctor_judge_processors(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_processors *processors = &facts->processors;
    size_t before = out->count;
    if (processors->quota > 0 && processors->quota < processors->allowed_count) {
        doctor_advise(doctor_find(out, DOCTOR_PROCESSORS, DOCTOR_WARNING,
                                  "%u processors, but time for %.1f (the container's quota)", processors->allowed_count,
                                  processors->quota),
                      "Programs count processors and start as many threads, which the quota then stops for tens of "
                      "milliseconds: set OMP_NUM_THREADS, or give the container whole processors (cpuset)");
    }
    if (processors->allowed_count < processors->online_count) {
        doctor_advise(doctor_find(out, DOCTOR_PROCESSORS, DOCTOR_NOTE,
                                  "%u of the %u processors may be used here (affinity)", processors->allowed_count,
                                  processors->online_count),
                      "Workers inherit that. It is taskset's, the scheduler's or the container's choice: srun "
                      "--cpus-per-task, cpuset");
    }
    if (processors->numa_count > 1 && processors->balances_numa) {
        doctor_advise(doctor_find(out, DOCTOR_PROCESSORS, DOCTOR_NOTE,
                                  "the kernel moves memory between %u NUMA nodes (kernel.numa_balancing)",
                                  processors->numa_count),
                      "It costs more than it gives where workers are bound: sysctl kernel.numa_balancing=0 and "
                      "--numa-binding=node");
    }
    judge_omp(facts, out);
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_PROCESSORS, DOCTOR_OK, "%u%s", processors->allowed_count,
                          processors->numa_count > 1 ? "; --numa-binding=node binds workers to their NUMA node" : "");
    }
}
