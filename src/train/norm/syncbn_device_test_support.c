/* A batch norm on the host and one on a GPU; see syncbn_device_test_support.h. */
#include "train/norm/syncbn_device_test_support.h"

#include <string.h>

#include "comm/nccl/nccl_double_test_support.h"

/* One array, here and there. */
struct pair {
    void *host, **there;
    size_t bytes;
};
enum { PAIRS = 12, INPUTS = 2 };

static void list_pairs(struct norm *host, struct norm_there *there, struct pair out[PAIRS]) {
#define PAIR(member)                                                                                                   \
    { &host->member, (void **)&there->member, sizeof host->member }
    const struct pair pairs[PAIRS] = {
        PAIR(x),    PAIR(dy),   PAIR(y),        PAIR(dx),      PAIR(evaluated),       PAIR(weight),
        PAIR(bias), PAIR(mean), PAIR(variance), PAIR(tracked), PAIR(weight_gradient), PAIR(bias_gradient)};
#undef PAIR
    memcpy(out, pairs, sizeof pairs);
}

static void put_pairs(struct norms *norms, size_t from, size_t end) {
    struct pair pairs[PAIRS];
    list_pairs(&norms->host, &norms->there, pairs);
    for (size_t i = from; i < end; i++) {
        device_rank_put(&norms->d, *pairs[i].there, pairs[i].host, pairs[i].bytes);
    }
}

/* ---- life ---- */

void norms_begin(struct rank *rank, struct norms *out) {
    static const float weight[CHANNELS] = {0.75F, -1.5F, 1}, bias[CHANNELS] = {0.25F, 2, -1};
    struct pair pairs[PAIRS];
    memset(out, 0, sizeof *out);
    device_rank_start(rank, &out->d);
    rank_check_code(rank, muster_group_set_stream(out->d.group, out->d.stream), MUSTER_OK);
    memcpy(out->host.weight, weight, sizeof weight);
    memcpy(out->host.bias, bias, sizeof bias);
    for (size_t c = 0; c < CHANNELS; c++) {
        out->host.mean[c] = (float)c;
        out->host.variance[c] = 2;
    }
    list_pairs(&out->host, &out->there, pairs);
    for (size_t i = 0; i < PAIRS; i++) {
        *pairs[i].there = device_rank_allocate(&out->d, pairs[i].bytes, 1);
    }
    put_pairs(out, 0, PAIRS);
}

void norms_describe(struct norms *norms, unsigned arrays, double momentum) {
    struct norm *host = &norms->host;
    struct norm_there *there = &norms->there;
    struct muster_syncbn_options options = MUSTER_SYNCBN_OPTIONS_INIT;
    options.channels = CHANNELS;
    options.momentum = momentum;
    host->options = there->options = options;
#define TAKE(member, array, bit)                                                                                       \
    host->options.member = arrays & (bit) ? &host->array[0] : NULL;                                                    \
    there->options.member = arrays & (bit) ? there->array : NULL;
    TAKE(weight, weight, NORM_WEIGHT)
    TAKE(bias, bias, NORM_BIAS)
    TAKE(running_mean, mean, NORM_RUNNING)
    TAKE(running_variance, variance, NORM_RUNNING)
#undef TAKE
    host->options.batches_tracked = arrays & NORM_TRACKED ? &host->tracked : NULL;
    there->options.batches_tracked = arrays & NORM_TRACKED ? there->tracked : NULL;
}

void norms_make(struct norms *norms, unsigned arrays, double momentum) {
    norms_describe(norms, arrays, momentum);
    rank_check_code(norms->d.rank, muster_syncbn_create(norms->d.group, &norms->host.options, &norms->host.layer),
                    MUSTER_OK);
    rank_check_code(norms->d.rank, muster_syncbn_create(norms->d.group, &norms->there.options, &norms->there.layer),
                    MUSTER_OK);
}

void norms_end(struct norms *norms) {
    struct pair pairs[PAIRS];
    muster_syncbn_free(norms->host.layer);
    muster_syncbn_free(norms->there.layer);
    list_pairs(&norms->host, &norms->there, pairs);
    for (size_t i = 0; i < PAIRS; i++) {
        device_rank_release(&norms->d, *pairs[i].there, 1);
    }
    device_rank_end(&norms->d);
    rank_check(norms->d.rank, nccl_double_live() == 0);
    rank_check(norms->d.rank, cuda_double_live() == 0);
}

/* ---- steps ---- */

void norms_put(struct norms *norms) {
    put_pairs(norms, 0, INPUTS);
}

void norms_get(struct norms *norms, struct norm *out) {
    struct pair pairs[PAIRS];
    list_pairs(out, &norms->there, pairs);
    for (size_t i = 0; i < PAIRS; i++) {
        device_rank_get(&norms->d, pairs[i].host, *pairs[i].there, pairs[i].bytes);
    }
}

int norm_forward(struct norm *host, size_t images, size_t plane) {
    return muster_syncbn_forward(host->layer, host->x, images, plane, host->y);
}

int norm_backward(struct norm *host) {
    return muster_syncbn_backward(host->layer, host->x, host->dy, host->dx, host->weight_gradient, host->bias_gradient);
}

int norms_forward(struct norms *norms, size_t images, size_t plane) {
    const struct norm_there *there = &norms->there;
    return muster_syncbn_forward(there->layer, there->x, images, plane, there->y);
}

int norms_backward(struct norms *norms) {
    const struct norm_there *there = &norms->there;
    return muster_syncbn_backward(there->layer, there->x, there->dy, there->dx, there->weight_gradient,
                                  there->bias_gradient);
}
