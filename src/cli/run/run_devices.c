/* Counting GPUs and processors without any GPU library; see run_devices.h. */
#include "cli/run/run_devices.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/launch.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/suggest.h"

/* Entries of root/path whose name is `prefix` and digits; with an empty prefix, all but hidden ones. */
static uint32_t count_entries(const char *root, const char *path, const char *prefix) {
    char full[PATH_MAX];
    DIR *folder = str_format(full, sizeof full, "%s%s", root, path) ? opendir(full) : NULL;
    if (folder == NULL) {
        return 0;
    }
    uint32_t count = 0;
    size_t n = strlen(prefix);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL && count < RUN_DEVICES_MAX;) {
        const char *rest = entry->d_name + n;
        if (n == 0) {
            count += entry->d_name[0] != '.';
        } else if (strncmp(entry->d_name, prefix, n) == 0) {
            count += *rest != '\0' && rest[strspn(rest, "0123456789")] == '\0';
        }
    }
    (void)closedir(folder);
    return count;
}

static uint32_t count_nvidia(const struct run_machine *machine) {
    uint32_t count = count_entries(machine->root, "/proc/driver/nvidia/gpus", "");
    /* In a container the driver's folder lists all GPUs and /dev only the ones handed over. */
    uint32_t nodes = count_entries(machine->root, "/dev", "nvidia");
    return nodes > 0 && (count == 0 || nodes < count) ? nodes : count;
}

/* A node of the kernel's KFD topology is a GPU if it has SIMD units. A container sees all nodes, and the render devices
 * that it was given. */
static bool is_amd_gpu(const struct run_machine *machine, const char *node) {
    char path[PATH_MAX], line[128];
    bool fits = str_format(path, sizeof path, "%s/sys/class/kfd/kfd/topology/nodes/%s/properties", machine->root, node);
    FILE *file = fits ? fopen(path, "re") : NULL;
    unsigned long simd_count = 0, render_minor = 0;
    while (file && fgets(line, sizeof line, file)) {
        (void)sscanf(line, "simd_count %lu", &simd_count);
        (void)sscanf(line, "drm_render_minor %lu", &render_minor);
    }
    if (file) {
        (void)fclose(file);
    }
    fits = str_format(path, sizeof path, "%s/dev/dri/renderD%lu", machine->root, render_minor);
    return simd_count > 0 && (render_minor == 0 || (fits && access(path, F_OK) == 0));
}

static uint32_t count_amd(const struct run_machine *machine) {
    char path[PATH_MAX];
    if (!str_format(path, sizeof path, "%s/dev/kfd", machine->root) || access(path, F_OK) != 0 ||
        !str_format(path, sizeof path, "%s/sys/class/kfd/kfd/topology/nodes", machine->root)) {
        return 0;
    }
    DIR *folder = opendir(path);
    uint32_t count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL && count < RUN_DEVICES_MAX;) {
        count += entry->d_name[0] != '.' && is_amd_gpu(machine, entry->d_name);
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

static uint32_t count_installed(const struct run_machine *machine) {
    uint32_t nvidia = count_nvidia(machine);
    return nvidia > 0 ? nvidia : count_amd(machine);
}

/* The leading number of an entry, as strtol reads it; -1 where there is none. */
static long device_number(const char *text) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    return end == text || errno != 0 ? -1 : value;
}

/* The rules of the CUDA runtime: the list ends at its first invalid entry, and naming a device twice is an error that
 * leaves none. Entries that name a device by its identity (GPU-..., MIG-...) are taken as they are. */
static uint32_t count_visible(const char *list, uint32_t installed) {
    bool seen[RUN_DEVICES_MAX] = {false};
    uint32_t count = 0;
    for (const char *p = list; *p != '\0' && count < RUN_DEVICES_MAX;) {
        p += strspn(p, " \t");
        if (str_has_prefix(p, "GPU-") || str_has_prefix(p, "MIG-")) {
            count++;
        } else {
            long number = device_number(p);
            if (number < 0 || number >= (long)installed) {
                break;
            }
            if (seen[number]) {
                return 0;
            }
            seen[number] = true;
            count++;
        }
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return count;
}

/* One list after the other: HIP's numbers count what ROCr's leaves. PyTorch takes CUDA's name for HIP's, too. */
static uint32_t apply_lists(const struct run_machine *machine, uint32_t installed, const char **last) {
    bool is_amd = count_nvidia(machine) == 0;
    const char *const names[] = {is_amd ? "ROCR_VISIBLE_DEVICES" : NULL, is_amd ? "HIP_VISIBLE_DEVICES" : NULL,
                                 "CUDA_VISIBLE_DEVICES"};
    uint32_t count = installed;
    for (size_t i = 0; i < sizeof names / sizeof *names && count > 0; i++) {
        const char *list = names[i] ? run_machine_variable(machine, names[i]) : NULL;
        if (list) {
            *last = names[i];
            count = count_visible(list, count);
            i += i == 1; /* HIP's name comes before CUDA's */
        }
    }
    return count;
}

uint32_t run_devices_count(const struct run_machine *machine) {
    const char *last = NULL;
    return apply_lists(machine, count_installed(machine), &last);
}

uint32_t run_processors_count(void) {
    enum { LARGEST = 1 << 16 };
    for (int cpus = CPU_SETSIZE; cpus <= LARGEST; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        if (set == NULL) {
            break;
        }
        int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        bool too_small = count == 0 && errno == EINVAL;
        CPU_FREE(set);
        if (count > 0 || !too_small) {
            return count > 0 ? (uint32_t)count : 1;
        }
    }
    return 1;
}

static int fail_word(const char *text) {
    static const char *const words[] = {"auto", "cpu", "gpu", "xpu"};
    const char *nearest = suggest_nearest(text, words, sizeof words / sizeof *words);
    return status_fail(MUSTER_EINVAL,
                       "Unsupported nproc_per_node value: '%.100s' for --nproc-per-node; a number of at least 1, auto, "
                       "cpu or gpu is expected%s%s%s",
                       text, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static int fail_no_gpu(const struct run_machine *machine) {
    const char *last = NULL;
    uint32_t installed = count_installed(machine);
    if (apply_lists(machine, installed, &last) == 0 && last != NULL) {
        return status_fail(MUSTER_EINVAL,
                           "Cuda is not available: --nproc-per-node=gpu, but %s='%.100s' leaves none of the %" PRIu32
                           " GPUs visible",
                           last, run_machine_variable(machine, last), installed);
    }
    return status_fail(MUSTER_EINVAL,
                       "Cuda is not available: --nproc-per-node=gpu, but this machine shows no GPU of NVIDIA's (no "
                       "/dev/nvidia0) or AMD's (no /dev/kfd with a GPU); use --nproc-per-node=cpu or a number");
}

static int count_word(const struct run_machine *machine, const char *text, uint32_t *out) {
    bool is_auto = strcmp(text, "auto") == 0, is_gpu = strcmp(text, "gpu") == 0;
    if (strcmp(text, "xpu") == 0) {
        return status_fail(MUSTER_EINVAL, "Xpu is not available: --nproc-per-node=xpu is not supported here; give the "
                                          "number of workers");
    }
    if (!is_auto && !is_gpu && strcmp(text, "cpu") != 0) {
        return fail_word(text);
    }
    uint32_t devices = is_auto || is_gpu ? run_devices_count(machine) : 0;
    if (is_gpu && devices == 0) {
        return fail_no_gpu(machine);
    }
    *out = devices > 0 ? devices : run_processors_count();
    if (is_auto && devices == 0) {
        log_warning("--nproc-per-node=auto: no GPU was found, so %" PRIu32 " worker%s start%s, one for each processor",
                    *out, str_plural(*out), *out == 1 ? "s" : "");
    } else {
        log_info("--nproc-per-node=%s: %" PRIu32 " worker%s, one for each %s", text, *out, str_plural(*out),
                 devices > 0 ? "GPU" : "processor");
    }
    return 0;
}

int run_nproc_parse(const struct run_machine *machine, const char *text, uint32_t *out) {
    int64_t number = 0;
    if (!options_parse_integer(text, &number)) {
        return count_word(machine, text, out);
    }
    if (number < 1) {
        return status_fail(MUSTER_EINVAL, "--nproc-per-node=%.100s: at least one worker is needed", text);
    }
    if (number > LAUNCH_WORKERS_MAX) {
        return status_fail(MUSTER_EINVAL, "--nproc-per-node=%.100s: one agent starts at most %d workers", text,
                           LAUNCH_WORKERS_MAX);
    }
    *out = (uint32_t)number;
    return 0;
}
