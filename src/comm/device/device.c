/* Places of buffers, and contexts; see device.h. */
#include "comm/device/device.h"

#include "base/status.h"

enum device_place device_place_of(const void *pointer) {
    const struct cuda_library *cuda = cuda_library_if_open();
    unsigned type = 0;
    if (!cuda || !pointer) {
        return DEVICE_PLACE_HOST;
    }
    /* An address that the driver does not know is an error of its: ordinary memory. */
    unsigned result = cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, device_address(pointer));
    return result == CUDA_OK && type == CUDA_MEMORY_DEVICE ? DEVICE_PLACE_DEVICE : DEVICE_PLACE_HOST;
}

int device_number_of(const void *pointer) {
    const struct cuda_library *cuda = cuda_library_if_open();
    unsigned is_managed = 0;
    int number = -1;
    if (device_place_of(pointer) == DEVICE_PLACE_HOST) {
        return -1;
    }
    unsigned result = cuda->pointer_attribute(&is_managed, CUDA_POINTER_IS_MANAGED, device_address(pointer));
    if (result != CUDA_OK || is_managed ||
        cuda->pointer_attribute(&number, CUDA_POINTER_DEVICE_ORDINAL, device_address(pointer)) != CUDA_OK) {
        return -1;
    }
    return number;
}

/* Of a thread that has no current context. */
static int choose_number(const struct cuda_library *cuda, uint32_t local, int *out) {
    if (cuda->devices > 1 && local >= (uint32_t)cuda->devices) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "this is process %u of its host (from 0), and the CUDA driver sees %d GPUs: start fewer, or "
                           "set each one's GPU first (cudaSetDevice(), torch.cuda.set_device())",
                           local, cuda->devices);
    }
    *out = cuda->devices == 1 ? 0 : (int)local;
    return 0;
}

static int retain(const struct cuda_library *cuda, uint32_t local, struct device *device) {
    int code = choose_number(cuda, local, &device->number), handle = 0;
    if (code) {
        return code;
    }
    unsigned result = cuda->device_get(&handle, device->number);
    if (result == CUDA_OK) {
        result = cuda->primary_context_retain(&device->context, handle);
    }
    if (result != CUDA_OK) {
        return cuda_fail(cuda, result, "open the GPU");
    }
    device->number = handle;
    device->is_retained = true;
    return 0;
}

int device_open(uint32_t local, struct device *out) {
    const struct cuda_library *cuda = cuda_library();
    if (!cuda) {
        return MUSTER_EUNSUPPORTED;
    }
    struct device device = {.cuda = cuda};
    unsigned result = cuda->context_current(&device.context);
    if (result == CUDA_OK && device.context) {
        result = cuda->context_device(&device.number);
    }
    int code = result != CUDA_OK ? cuda_fail(cuda, result, "ask for the current GPU") : 0;
    if (code == 0 && !device.context) {
        code = retain(cuda, local, &device);
    }
    if (code == 0) {
        *out = device;
    }
    return code;
}

void device_close(struct device *device) {
    if (device->is_retained) {
        (void)device->cuda->primary_context_release(device->number);
    }
    device->is_retained = false;
}

int device_enter(const struct device *device, struct CUctx_st **out_previous) {
    const struct cuda_library *cuda = device->cuda;
    unsigned result = cuda->context_current(out_previous);
    if (result == CUDA_OK && *out_previous != device->context) {
        result = cuda->context_set_current(device->context);
    }
    return result == CUDA_OK ? 0 : cuda_fail(cuda, result, "take up the GPU's context");
}

void device_leave(const struct device *device, struct CUctx_st *previous) {
    if (previous != device->context) {
        (void)device->cuda->context_set_current(previous);
    }
}
