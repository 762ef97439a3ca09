/* GPUs and InfiniBand of this machine; see gather_impl.h. NVIDIA's libraries are opened at run time, in a child. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/library.h"
#include "base/str.h"
#include "doctor/gather_impl.h"

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

/* Entries of a folder that are `prefix` and a number. */
static uint32_t count_numbered(const char *folder, const char *prefix) {
    uint32_t count = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        size_t n = strlen(prefix);
        bool is_one = strncmp(entry->d_name, prefix, n) == 0 && entry->d_name[n] != '\0' &&
                      entry->d_name[n + strspn(entry->d_name + n, "0123456789")] == '\0';
        count += is_one;
    }
    if (dir) {
        (void)closedir(dir);
    }
    return count;
}

/* Display and 3D controllers of NVIDIA's. */
static uint32_t count_on_bus(void) {
    uint32_t count = 0;
    DIR *dir = opendir("/sys/bus/pci/devices");
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char vendor[16], class[16];
        bool is_gpu = doctor_read_line(vendor, sizeof vendor, "/sys/bus/pci/devices/%s/vendor", entry->d_name) &&
                      doctor_read_line(class, sizeof class, "/sys/bus/pci/devices/%s/class", entry->d_name) &&
                      strcmp(vendor, "0x10de") == 0 && str_has_prefix(class, "0x03");
        count += is_gpu;
    }
    if (dir) {
        (void)closedir(dir);
    }
    return count;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...": the word of digits and dots. */
static void read_driver_version(char *out, size_t size) {
    char line[256];
    out[0] = '\0';
    if (!doctor_read_line(line, sizeof line, "/proc/driver/nvidia/version")) {
        return;
    }
    char *rest = line;
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        if (strchr(word, '.') && word[strspn(word, "0123456789.")] == '\0') {
            (void)str_copy(out, size, word);
            return;
        }
    }
}

static bool is_in_path(const char *program) {
    const char *at = getenv("PATH");
    bool found = false;
    while (at && *at && !found) {
        char path[4096];
        size_t n = strcspn(at, ":");
        found = str_format(path, sizeof path, "%.*s/%s", (int)n, at, program) && access(path, X_OK) == 0;
        at += n + (at[n] == ':');
    }
    return found;
}

/* ---- the libraries ---- */

/* Their functions, of which all that are used here have one of these forms (nvml.h, cuda.h). */
typedef int call_nothing(void);
typedef int call_flags(unsigned flags);
typedef int call_count(int *out);
typedef int call_count_unsigned(unsigned *out);
typedef int call_text(char *out, unsigned size);
typedef const char *call_error_text(int code);

static void *open_library(const char *name, struct doctor_library *out) {
    const char *reason;
    void *library = library_open(name, &reason);
    out->is_loaded = library != NULL;
    out->is_found = library || !strstr(reason, "No such file");
    (void)str_format(out->reason, sizeof out->reason, "%s", library ? "" : reason);
    return library;
}

#define FIND(library, name, out) library_find((library), (name), &(out), sizeof(out))

static void ask_management(struct doctor_gpus *gpus) {
    call_nothing *init = NULL;
    call_error_text *text = NULL;
    call_text *version = NULL;
    call_count_unsigned *count = NULL;
    unsigned devices = 0;
    struct doctor_library *library = &gpus->management;
    void *handle = open_library("libnvidia-ml.so.1", library);
    if (!handle || !FIND(handle, "nvmlInit_v2", init)) {
        return;
    }
    library->code = init();
    if (library->code != 0 && FIND(handle, "nvmlErrorString", text)) {
        (void)str_format(library->reason, sizeof library->reason, "%s", text(library->code));
    }
    if (library->code == 0 && FIND(handle, "nvmlSystemGetDriverVersion", version)) {
        (void)version(gpus->library_version, sizeof gpus->library_version);
    }
    if (library->code == 0 && FIND(handle, "nvmlDeviceGetCount_v2", count) && count(&devices) == 0) {
        library->device_count = (int32_t)devices;
    }
}

static void ask_compute(struct doctor_gpus *gpus) {
    call_flags *init = NULL;
    call_count *count = NULL;
    int devices = 0;
    struct doctor_library *library = &gpus->compute;
    void *handle = open_library("libcuda.so.1", library);
    if (!handle || !FIND(handle, "cuInit", init)) {
        return;
    }
    library->code = init(0);
    if (library->code == 0 && FIND(handle, "cuDeviceGetCount", count) && count(&devices) == 0) {
        library->device_count = devices;
    }
}

void doctor_ask_gpus(const struct aside_job *job) {
    struct doctor_gpus *gpus = job->answer;
    *gpus = (struct doctor_gpus){.pci_count = count_on_bus(),
                                 .device_count = count_numbered("/dev", "nvidia"),
                                 .has_control = exists("/dev/nvidiactl"),
                                 .has_uvm = exists("/dev/nvidia-uvm"),
                                 .has_smi = is_in_path("nvidia-smi"),
                                 .has_amd = exists("/dev/kfd")};
    read_driver_version(gpus->driver_version, sizeof gpus->driver_version);
    if (gpus->device_count > 0) {
        ask_management(gpus);
        ask_compute(gpus);
    }
}

/* ---- InfiniBand ---- */

static void read_port(const char *device, unsigned number, struct doctor_fabric *out) {
    struct doctor_fabric_port *port = &out->ports[out->count++];
    port->port = number;
    (void)str_format(port->device, sizeof port->device, "%s", device);
    (void)doctor_read_line(port->state, sizeof port->state, "/sys/class/infiniband/%s/ports/%u/state", device, number);
    (void)doctor_read_line(port->layer, sizeof port->layer, "/sys/class/infiniband/%s/ports/%u/link_layer", device,
                           number);
    (void)doctor_read_line(port->rate, sizeof port->rate, "/sys/class/infiniband/%s/ports/%u/rate", device, number);
}

void doctor_read_fabric(struct doctor_fabric *out) {
    *out = (struct doctor_fabric){.verbs_count = count_numbered("/dev/infiniband", "uverbs"),
                                  .has_peer_memory = exists("/sys/module/nvidia_peermem")};
    DIR *dir = opendir("/sys/class/infiniband");
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char path[DOCTOR_PATH_MAX];
        for (unsigned port = 1; entry->d_name[0] != '.' && out->count < DOCTOR_FABRIC_PORTS_MAX; port++) {
            if (!str_format(path, sizeof path, "/sys/class/infiniband/%s/ports/%u", entry->d_name, port) ||
                !exists(path)) {
                break;
            }
            read_port(entry->d_name, port, out);
        }
    }
    if (dir) {
        (void)closedir(dir);
    }
}
