/* Communication hooks that come with the library: gradients travel as 16-bit floats. */
#include <muster/ddp.h>

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

static int compress(struct muster_group *group, const struct muster_ddp_bucket *bucket, enum muster_type type,
                    struct muster_work **work) {
    void *data = bucket->gradients;
    if (is_compressed(bucket)) {
        narrow_floats(type, bucket->scratch, bucket->type, data, bucket->count);
        data = bucket->scratch;
    } else {
        type = bucket->type;
    }
    return muster_all_reduce(group, data, data, bucket->count, type, reduction_of(group, bucket), work);
}

static int decompress(struct muster_group *group, const struct muster_ddp_bucket *bucket, enum muster_type type) {
    if (is_compressed(bucket)) {
        widen_floats(bucket->type, bucket->gradients, type, bucket->scratch, bucket->count);
    }
    if (reduction_of(group, bucket) == MUSTER_OP_SUM) {
        reduce_finish(bucket->type, MUSTER_OP_AVERAGE, bucket->gradients, bucket->count, bucket->divisor);
    }
    return MUSTER_OK;
}

#define DEFINE_HOOK(name, type)                                                                                        \
    static int name##_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,         \
                            struct muster_work **work) {                                                               \
        (void)context;                                                                                                 \
        return compress(group, bucket, type, work);                                                                    \
    }                                                                                                                  \
    static int name##_finish(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket) {      \
        (void)context;                                                                                                 \
        return decompress(group, bucket, type);                                                                        \
    }                                                                                                                  \
    const struct muster_ddp_hook *muster_ddp_hook_##name(void) {                                                       \
        static const struct muster_ddp_hook hook = {sizeof hook,  #name,         sizeof(uint16_t),                     \
                                                    name##_start, name##_finish, NULL};                                \
        return &hook;                                                                                                  \
    }

DEFINE_HOOK(bfloat16, MUSTER_BFLOAT16)
DEFINE_HOOK(float16, MUSTER_FLOAT16)

bool ddp_hook_is_of_host(const struct muster_ddp_hook *hook) {
    return hook->start == bfloat16_start || hook->start == float16_start;
}
