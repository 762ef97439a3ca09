/* GPUs and InfiniBand; see judge.h. */
#include "doctor/judge.h"

#include <string.h>

#include "base/str.h"

/* ---- GPUs ---- */

/* Codes of the two libraries that say more than "failed" (nvml.h, cuda.h). */
enum {
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_NO_PERMISSION = 4,
    NVML_VERSION_MISMATCH = 18,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 802,
    CUDA_DRIVER_MISMATCH = 803,
    CUDA_COMPATIBILITY = 804,
    CUDA_UNKNOWN = 999,
};

static const char *management_advice(int32_t code) {
    switch (code) {
    case NVML_VERSION_MISMATCH:
        return "The driver has been updated and the old one is still loaded: restart the machine, or in a container, "
               "start it anew";
    case NVML_DRIVER_NOT_LOADED:
        return "Load the driver: modprobe nvidia, and look at `dmesg`";
    case NVML_NO_PERMISSION:
        return "Open /dev/nvidia* to this user: ls -l /dev/nvidia*";
    default:
        return "nvidia-smi and `dmesg` (lines with Xid or NVRM) say more";
    }
}

static const char *compute_advice(int32_t code) {
    switch (code) {
    case CUDA_NO_DEVICE:
        return "CUDA_VISIBLE_DEVICES hides all GPUs, or the container was started without them (--gpus all)";
    case CUDA_NOT_READY:
        return "NVLink switches have to be set up first: systemctl start nvidia-fabricmanager";
    case CUDA_DRIVER_MISMATCH:
        return "The driver has been updated and the old one is still loaded: restart the machine";
    case CUDA_COMPATIBILITY:
        return "This GPU cannot run a CUDA newer than its driver: take a driver or an image that fit each other";
    case CUDA_UNKNOWN:
        return "Often /dev/nvidia-uvm is missing or broken: modprobe nvidia_uvm; look at `dmesg`";
    default:
        return "nvidia-smi and `dmesg` (lines with Xid or NVRM) say more";
    }
}

static void judge_libraries(const struct doctor_gpus *gpus, struct doctor_findings *out) {
    const struct doctor_library *management = &gpus->management, *compute = &gpus->compute;
    if (!management->is_loaded) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, management->is_found ? DOCTOR_ERROR : DOCTOR_WARNING,
                                  "libnvidia-ml.so.1 cannot be loaded: %s", management->reason),
                      "Install the driver's libraries of version %s; in a container, start it with --gpus all",
                      gpus->driver_version[0] ? gpus->driver_version : "the kernel module");
    } else if (management->code != 0) {
        doctor_advise(
            doctor_find(out, DOCTOR_GPUS, DOCTOR_ERROR, "libnvidia-ml does not start: %s", management->reason), "%s",
            management_advice(management->code));
    }
    if (!compute->is_loaded) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, DOCTOR_ERROR, "libcuda.so.1 cannot be loaded: %s", compute->reason),
                      "Install the driver's CUDA library of version %s; in a container, NVIDIA_DRIVER_CAPABILITIES "
                      "must hold compute",
                      gpus->driver_version[0] ? gpus->driver_version : "the kernel module");
    } else if (compute->code != 0) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, DOCTOR_ERROR, "libcuda does not start: error %d", compute->code),
                      "%s", compute_advice(compute->code));
    }
}

static void judge_nvidia(const struct doctor_gpus *gpus, struct doctor_findings *out) {
    size_t before = out->count;
    if (!gpus->driver_version[0]) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, DOCTOR_ERROR, "%u NVIDIA GPU%s, but no driver is loaded",
                                  gpus->pci_count, gpus->pci_count == 1 ? "" : "s"),
                      "Install and load NVIDIA's driver (modprobe nvidia); in a virtual machine or container the host "
                      "does it");
        return;
    }
    if (gpus->device_count == 0 || !gpus->has_control) {
        doctor_advise(
            doctor_find(out, DOCTOR_GPUS, DOCTOR_WARNING, "driver %s is loaded, but /dev/nvidia* %s missing here",
                        gpus->driver_version, gpus->device_count == 0 ? "are" : "(nvidiactl) is"),
            "In a container: start it with --gpus all (or a device plug-in); else run nvidia-smi once as root");
        return;
    }
    if (!gpus->has_uvm) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, DOCTOR_WARNING, "/dev/nvidia-uvm is missing"),
                      "CUDA does not start without: modprobe nvidia_uvm, or run nvidia-modprobe -u");
    }
    judge_libraries(gpus, out);
    if (gpus->library_version[0] && strcmp(gpus->library_version, gpus->driver_version) != 0) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, DOCTOR_ERROR, "the driver is %s, its libraries are %s",
                                  gpus->driver_version, gpus->library_version),
                      "Both must be of one version: restart the machine after an update");
    }
    if (!gpus->has_smi) {
        doctor_advise(doctor_find(out, DOCTOR_GPUS, DOCTOR_NOTE, "nvidia-smi is not in PATH"),
                      "It shows what the GPUs do; a package of the driver holds it");
    }
    if (out->count == before) {
        (void)doctor_find(out, DOCTOR_GPUS, DOCTOR_OK, "%d of NVIDIA, driver %s", gpus->compute.device_count,
                          gpus->driver_version);
    }
}

void doctor_judge_gpus(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_gpus *gpus = &facts->gpus;
    const char *visible = doctor_variable(&facts->environment, "CUDA_VISIBLE_DEVICES");
    if (gpus->pci_count > 0 || gpus->device_count > 0 || gpus->driver_version[0]) {
        judge_nvidia(gpus, out);
        if (visible) {
            doctor_advise(
                doctor_find(out, DOCTOR_GPUS, DOCTOR_NOTE, "CUDA_VISIBLE_DEVICES=%s: workers see no others", visible),
                "Unset it, unless that is wanted; --nproc-per-node=gpu counts what it leaves");
        }
    } else if (gpus->has_amd) {
        (void)doctor_find(out, DOCTOR_GPUS, DOCTOR_OK, "of AMD (/dev/kfd)");
    } else {
        (void)doctor_find(out, DOCTOR_GPUS, DOCTOR_OK, "none found");
    }
}

/* ---- InfiniBand ---- */

void doctor_judge_infiniband(const struct doctor_facts *facts, struct doctor_findings *out) {
    const struct doctor_fabric *fabric = &facts->fabric;
    size_t before = out->count;
    uint32_t active_count = 0;
    for (uint32_t i = 0; i < fabric->count; i++) {
        const struct doctor_fabric_port *port = &fabric->ports[i];
        bool is_active = str_has_prefix(port->state, "4:");
        active_count += is_active;
        if (!is_active) {
            doctor_advise(doctor_find(out, DOCTOR_INFINIBAND, DOCTOR_WARNING, "%s port %u (%s) is not active: %s",
                                      port->device, port->port, port->layer, port->state),
                          str_has_prefix(port->state, "2:")
                              ? "The link is up, but no subnet manager has set it up: start opensm, or ask whoever "
                                "keeps the fabric"
                              : "Look at the cable and the switch (ibstat), or leave it out: NCCL_IB_HCA=^%s",
                          port->device);
        }
    }
    if (fabric->count > 0 && fabric->verbs_count == 0) {
        doctor_advise(doctor_find(out, DOCTOR_INFINIBAND, DOCTOR_ERROR, "/dev/infiniband/uverbs* are missing"),
                      "RDMA is not possible here: modprobe ib_uverbs; containers: --device=/dev/infiniband");
    }
    if (active_count > 0 && facts->gpus.device_count > 0 && !fabric->has_peer_memory) {
        doctor_advise(doctor_find(out, DOCTOR_INFINIBAND, DOCTOR_NOTE, "nvidia_peermem is not loaded"),
                      "Without it (or dma-buf) data of GPUs goes through the host's memory: modprobe nvidia_peermem");
    }
    if (out->count == before && fabric->count > 0) {
        (void)doctor_find(out, DOCTOR_INFINIBAND, DOCTOR_OK, "%u port%s active, the first %s (%s)", active_count,
                          active_count == 1 ? "" : "s", fabric->ports[0].rate, fabric->ports[0].layer);
    } else if (fabric->count == 0) {
        (void)doctor_find(out, DOCTOR_INFINIBAND, DOCTOR_OK, "none found");
    }
}
