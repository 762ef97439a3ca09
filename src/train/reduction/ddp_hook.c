/* Communication hooks that come with the library: gradients travel as 16-bit floats. On a GPU, kernels convert them. */
#include <muster/ddp.h>

#include "base/status.h"
#include "comm/device/device_kernels.h"
#include "comm/group/group_device.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/ddp_impl.h"
#include "train/reduction/narrow.h"

static bool is_compressed(const struct muster_ddp_bucket *bucket) {
    return bucket->type == MUSTER_FLOAT32 || bucket->type == MUSTER_FLOAT64;
}

/* Averages when all ranks count; otherwise the sum is divided afterwards, in the wider type. */
static enum muster_reduction reduction_of(const struct muster_group *group, const struct muster_ddp_bucket *bucket) {
    return bucket->divisor == muster_group_size(group) ? MUSTER_OP_AVERAGE : MUSTER_OP_SUM;
}

/* ---- where gradients are ---- */

/* On a GPU: the ddp, which is the context of its hook there, and has the kernels. NULL: on the host. A program's own
 * hook that calls these has none. */
static int find_ddp(void *context, const struct muster_ddp_bucket *bucket, const struct muster_ddp **out) {
    *out = device_place_of(bucket->gradients) == DEVICE_PLACE_DEVICE ? context : NULL;
    return *out || device_place_of(bucket->gradients) == DEVICE_PLACE_HOST
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL, "gradients in memory of a GPU: there the library's 16-bit hooks work only "
                                            "as options.hook itself, not from within another hook");
}

static int narrow(const struct muster_ddp *ddp, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                  enum muster_type type) {
    struct device_stream stream;
    if (!ddp) {
        narrow_floats(type, bucket->scratch, bucket->type, bucket->gradients, bucket->count);
        return MUSTER_OK;
    }
    int status = group_device(group, &stream);
    return status ? status
                  : device_kernels_narrow(ddp->kernels, &stream, type, bucket->scratch, bucket->type, bucket->gradients,
                                          bucket->count);
}

static int widen(const struct muster_ddp *ddp, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                 enum muster_type type) {
    struct device_stream stream;
    if (!ddp) {
        widen_floats(bucket->type, bucket->gradients, type, bucket->scratch, bucket->count);
        return MUSTER_OK;
    }
    int status = group_device(group, &stream);
    return status ? status
                  : device_kernels_widen(ddp->kernels, &stream, bucket->type, bucket->gradients, type, bucket->scratch,
                                         bucket->count);
}

/* ---- the hooks ---- */

static int compress(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                    enum muster_type type, struct muster_work **work) {
    void *data = is_compressed(bucket) ? bucket->scratch : bucket->gradients;
    const struct muster_ddp *ddp = NULL;
    int status = find_ddp(context, bucket, &ddp);
    if (status == MUSTER_OK && is_compressed(bucket)) {
        status = narrow(ddp, group, bucket, type);
    } else {
        type = bucket->type;
    }
    return status ? status
                  : muster_all_reduce(group, data, data, bucket->count, type, reduction_of(group, bucket), work);
}

static int decompress(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                      enum muster_type type) {
    const struct muster_ddp *ddp = NULL;
    int status = find_ddp(context, bucket, &ddp);
    status = status == MUSTER_OK && is_compressed(bucket) ? widen(ddp, group, bucket, type) : status;
    if (status != MUSTER_OK || reduction_of(group, bucket) == MUSTER_OP_AVERAGE) {
        return status;
    }
    if (ddp) {
        return ddp_memory_divide(ddp, bucket->type, bucket->gradients, bucket->count, bucket->divisor);
    }
    reduce_finish(bucket->type, MUSTER_OP_AVERAGE, bucket->gradients, bucket->count, bucket->divisor);
    return MUSTER_OK;
}

#define DEFINE_HOOK(name, type)                                                                                        \
    static int name##_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,         \
                            struct muster_work **work) {                                                               \
        return compress(context, group, bucket, type, work);                                                           \
    }                                                                                                                  \
    static int name##_finish(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket) {      \
        return decompress(context, group, bucket, type);                                                               \
    }                                                                                                                  \
    const struct muster_ddp_hook *muster_ddp_hook_##name(void) {                                                       \
        static const struct muster_ddp_hook hook = {sizeof hook,  #name,         sizeof(uint16_t),                     \
                                                    name##_start, name##_finish, NULL};                                \
        return &hook;                                                                                                  \
    }

DEFINE_HOOK(bfloat16, MUSTER_BFLOAT16)
DEFINE_HOOK(float16, MUSTER_FLOAT16)

bool ddp_hook_narrows(const struct muster_ddp_hook *hook) {
    return hook->start == bfloat16_start || hook->start == float16_start;
}
