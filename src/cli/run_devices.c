/* Counting GPUs and processors without any GPU library; see run_devices.h. */
#include "cli/run_devices.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/suggest.h"

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

static uint32_t count_installed(const struct run_machine *machine) {
    uint32_t count = count_entries(machine->root, "/proc/driver/nvidia/gpus", "");
    /* In a container the driver's folder lists all GPUs and /dev only the ones handed over. */
    uint32_t nodes = count_entries(machine->root, "/dev", "nvidia");
    return nodes > 0 && (count == 0 || nodes < count) ? nodes : count;
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

uint32_t run_devices_count(const struct run_machine *machine) {
    uint32_t installed = count_installed(machine);
    const char *list = run_machine_variable(machine, "CUDA_VISIBLE_DEVICES");
    return installed > 0 && list != NULL ? count_visible(list, installed) : installed;
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
    const char *list = run_machine_variable(machine, "CUDA_VISIBLE_DEVICES");
    if (count_installed(machine) > 0 && list != NULL) {
        return status_fail(MUSTER_EINVAL,
                           "Cuda is not available: --nproc-per-node=gpu, but CUDA_VISIBLE_DEVICES='%.100s' leaves "
                           "none of the %" PRIu32 " GPUs visible",
                           list, count_installed(machine));
    }
    return status_fail(MUSTER_EINVAL, "Cuda is not available: --nproc-per-node=gpu, but this machine shows no NVIDIA "
                                      "GPU (no /dev/nvidia0); use --nproc-per-node=cpu or a number");
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
    log_info("--nproc-per-node=%s: %" PRIu32 " worker%s, one for each %s", text, *out, str_plural(*out),
             devices > 0 ? "GPU" : "processor");
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
