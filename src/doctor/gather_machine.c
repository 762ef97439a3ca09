/* Clock, limits, memory, temporary folder, kernel and processors of this machine; see gather_impl.h. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/str.h"
#include "doctor/gather_impl.h"

#define TMPFS_MAGIC_NUMBER 0x01021994 /* linux/magic.h */

void doctor_read_clock(struct doctor_clock *out) {
    struct timex state = {.modes = 0};
    *out = (struct doctor_clock){.has_state = false};
    int code = adjtimex(&state);
    if (code >= 0) {
        out->has_state = true;
        out->is_synchronised = code != TIME_ERROR && !(state.status & STA_UNSYNC);
        out->max_error_us = state.maxerror;
        out->frequency_ppm = (double)state.freq / 65536.0;
    }
    (void)doctor_read_line(out->source, sizeof out->source,
                           "/sys/devices/system/clocksource/clocksource0/current_clocksource");
}

static struct doctor_limit read_limit(__rlimit_resource_t which) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    (void)getrlimit(which, &limit);
    return (struct doctor_limit){.soft = limit.rlim_cur == RLIM_INFINITY ? DOCTOR_UNLIMITED : limit.rlim_cur,
                                 .hard = limit.rlim_max == RLIM_INFINITY ? DOCTOR_UNLIMITED : limit.rlim_max};
}

void doctor_read_limits(struct doctor_limits *out) {
    *out = (struct doctor_limits){.files = read_limit(RLIMIT_NOFILE),
                                  .processes = read_limit(RLIMIT_NPROC),
                                  .locked_bytes = read_limit(RLIMIT_MEMLOCK),
                                  .core_bytes = read_limit(RLIMIT_CORE),
                                  .container_processes = DOCTOR_UNLIMITED};
    (void)cgroup_process_limit(&out->container_processes, &out->container_processes_used);
}

/* ---- memory ---- */

/* A line "MemTotal:   1234 kB" of /proc/meminfo. */
static void read_meminfo(struct doctor_memory *memory) {
    char text[4096] = "";
    FILE *file = fopen("/proc/meminfo", "re");
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        (void)fclose(file);
    }
    uint64_t kib = 0;
    memory->total_bytes = cgroup_field(text, "MemTotal: ", &kib) ? kib * 1024 : 0;
    memory->available_bytes = cgroup_field(text, "MemAvailable: ", &kib) ? kib * 1024 : 0;
}

/* The word in brackets of "always [madvise] never". */
static void read_chosen(const char *path, char *out, size_t size) {
    char line[64];
    out[0] = '\0';
    if (doctor_read_line(line, sizeof line, "%s", path)) {
        char *begin = strchr(line, '['), *end = begin ? strchr(begin, ']') : NULL;
        if (end) {
            *end = '\0';
            (void)str_copy(out, size, begin + 1);
        }
    }
}

void doctor_ask_memory(const struct aside_job *job) {
    struct doctor_memory *memory = job->answer;
    struct statvfs space;
    struct statfs kind;
    struct cgroup_room room;
    char text[16];
    int64_t number = 0;
    *memory = (struct doctor_memory){.overcommit = -1};
    memory->has_shm = statvfs("/dev/shm", &space) == 0;
    if (memory->has_shm) {
        memory->shm_bytes = (uint64_t)space.f_blocks * space.f_frsize;
        memory->shm_free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
        memory->shm_is_read_only = space.f_flag & ST_RDONLY;
        memory->shm_is_tmpfs = statfs("/dev/shm", &kind) == 0 && kind.f_type == TMPFS_MAGIC_NUMBER;
    }
    memory->has_container_limit = cgroup_memory_room(&room);
    if (memory->has_container_limit) {
        memory->container_bytes = room.limit_bytes;
        memory->container_left_bytes = room.left_bytes;
    }
    read_meminfo(memory);
    if (doctor_read_line(text, sizeof text, "/proc/sys/vm/overcommit_memory") && str_parse_i64(text, &number)) {
        memory->overcommit = (int32_t)number;
    }
    read_chosen("/sys/kernel/mm/transparent_hugepage/enabled", memory->huge_pages, sizeof memory->huge_pages);
}

/* ---- the temporary folder ---- */

/* A file without a name, where the file system has such; else one that loses it at once. Returns 0 or errno. */
static int try_file(const char *folder) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
        char path[DOCTOR_PATH_MAX + 32];
        (void)str_format(path, sizeof path, "%s/muster_doctor_XXXXXX", folder);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) {
            (void)unlink(path);
        }
    }
    if (fd < 0) {
        return errno;
    }
    static const char block[4096];
    int error_number = write(fd, block, sizeof block) == (ssize_t)sizeof block && fsync(fd) == 0 ? 0 : errno;
    (void)close(fd);
    return error_number;
}

/* The order in which the launcher looks for a place for its logs. */
void doctor_ask_temporary(const struct aside_job *job) {
    static const char *const variables[] = {"TMPDIR", "TEMP", "TMP"};
    struct doctor_temporary *temporary = job->answer;
    struct statvfs space;
    *temporary = (struct doctor_temporary){.path = "/tmp"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value && str_copy(temporary->path, sizeof temporary->path, value)) {
            (void)str_copy(temporary->variable, sizeof temporary->variable, variables[i]);
            break;
        }
        (void)str_copy(temporary->path, sizeof temporary->path, "/tmp");
    }
    int error_number = try_file(temporary->path);
    temporary->takes_files = error_number == 0;
    (void)str_format(temporary->reason, sizeof temporary->reason, "%s", strerror(error_number));
    if (statvfs(temporary->path, &space) == 0) {
        temporary->free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
        temporary->free_files = space.f_files == 0 ? UINT64_MAX : space.f_favail; /* some count no inodes */
        temporary->forbids_execution = space.f_flag & ST_NOEXEC;
    }
}

/* ---- the kernel ---- */

/* Of this very process: allowed wherever the call is. */
static bool reads_memory(void) {
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 && to == 1;
}

void doctor_ask_kernel(const struct aside_job *job) {
    struct doctor_kernel *kernel = job->answer;
    struct utsname name;
    char text[16];
    int64_t scope = -1;
    *kernel = (struct doctor_kernel){.ptrace_scope = -1};
    if (uname(&name) == 0) {
        (void)str_format(kernel->release, sizeof kernel->release, "%s", name.release);
    }
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0U);
    kernel->has_pidfd = fd >= 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    fd = (int)syscall(SYS_memfd_create, "doctor", 0U);
    kernel->has_memfd = fd >= 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    kernel->has_subreaper = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0; /* of this child alone */
    kernel->reads_memory = reads_memory();
    if (doctor_read_line(text, sizeof text, "/proc/sys/kernel/yama/ptrace_scope") && str_parse_i64(text, &scope)) {
        kernel->ptrace_scope = (int32_t)scope;
    }
}

/* ---- processors ---- */

/* Numbers in a list such as "0-3,8": how many. */
static uint32_t count_list(const char *text) {
    uint32_t count = 0;
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (end == text) {
            break;
        }
        if (*end == '-') {
            last = strtoul(end + 1, &end, 10);
        }
        count += last >= first ? (uint32_t)(last - first + 1) : 0;
        text = *end == ',' ? end + 1 : "";
    }
    return count;
}

void doctor_read_processors(struct doctor_processors *out) {
    char text[256];
    *out = (struct doctor_processors){.quota = 0};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    out->online_count = online > 0 ? (uint32_t)online : 1;
    out->allowed_count = out->online_count;
    enum { PROCESSORS_MAX = 1 << 14 };
    cpu_set_t *set = CPU_ALLOC(PROCESSORS_MAX);
    size_t size = CPU_ALLOC_SIZE(PROCESSORS_MAX);
    if (set && sched_getaffinity(0, size, set) == 0) {
        out->allowed_count = (uint32_t)CPU_COUNT_S(size, set);
    }
    CPU_FREE(set);
    (void)cgroup_cpu_quota(&out->quota);
    if (doctor_read_line(text, sizeof text, "/sys/devices/system/node/online")) {
        out->numa_count = count_list(text);
    }
    out->balances_numa =
        doctor_read_line(text, sizeof text, "/proc/sys/kernel/numa_balancing") && strcmp(text, "1") == 0;
}
