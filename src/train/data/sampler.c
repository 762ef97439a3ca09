/* The distributed sampler; see muster/sampler.h. Pure: it decides, and touches nothing but its own memory. */
#include <muster/sampler.h>

#include <inttypes.h>
#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"

struct muster_sampler {
    struct muster_sampler_options options;
    uint32_t *order; /* places to samples; NULL without shuffle */
    int64_t epoch;
    uint64_t begin; /* the first place dealt out since the last set_epoch or resume */
    uint64_t end;   /* the place after the last one; end - begin goes round evenly, but with uneven */
    uint64_t taken; /* by this rank, since then */
};

/* ---- the generator ---- */

struct generator {
    uint64_t state[4];
};

static uint64_t splitmix64(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The seed is mixed before the epoch is added: seed 0, epoch 1 is not seed 1, epoch 0. */
static struct generator generator_of(uint64_t seed, int64_t epoch) {
    struct generator generator;
    uint64_t state = splitmix64(&seed) + (uint64_t)epoch;
    for (size_t i = 0; i < 4; i++) {
        generator.state[i] = splitmix64(&state);
    }
    return generator;
}

static uint64_t rotate_left(uint64_t x, int bits) {
    return (x << bits) | (x >> (64 - bits));
}

/* xoshiro256**, version 1.0. */
static uint64_t generator_next(struct generator *generator) {
    uint64_t *s = generator->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* A number below `limit` (> 0), all alike likely: the upper half of number * limit, where the few numbers that would
 * make some results likelier are drawn again. */
static uint32_t generator_below(struct generator *generator, uint32_t limit) {
    uint64_t product = (generator_next(generator) >> 32) * limit;
    if ((uint32_t)product < limit) {
        uint32_t threshold = (uint32_t)-limit % limit;
        while ((uint32_t)product < threshold) {
            product = (generator_next(generator) >> 32) * limit;
        }
    }
    return (uint32_t)(product >> 32);
}

static void shuffle(struct muster_sampler *sampler) {
    struct generator generator = generator_of(sampler->options.seed, sampler->epoch);
    uint32_t count = (uint32_t)sampler->options.sample_count;
    for (uint32_t i = 0; i < count; i++) {
        sampler->order[i] = i;
    }
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = generator_below(&generator, i), last = sampler->order[i - 1];
        sampler->order[i - 1] = sampler->order[j];
        sampler->order[j] = last;
    }
}

/* ---- dealing out ---- */

static void begin(struct muster_sampler *sampler, int64_t epoch, uint64_t consumed) {
    uint64_t count = sampler->options.sample_count, ranks = sampler->options.world_size;
    uint64_t left = consumed < count ? count - consumed : 0;
    uint64_t rounds = sampler->options.drop_last ? left / ranks : (left + ranks - 1) / ranks;
    uint64_t dealt = sampler->options.uneven ? left : rounds * ranks;
    if (sampler->epoch != epoch) {
        sampler->epoch = epoch;
        if (sampler->order) {
            shuffle(sampler);
        }
    }
    sampler->begin = consumed;
    sampler->end = consumed + dealt;
    sampler->taken = 0;
}

int muster_sampler_resume(struct muster_sampler *sampler, int64_t epoch, uint64_t consumed) {
    if (!sampler) {
        return status_fail_null("muster_sampler_resume", "sampler");
    }
    begin(sampler, epoch, consumed);
    return 0;
}

int muster_sampler_set_epoch(struct muster_sampler *sampler, int64_t epoch) {
    return muster_sampler_resume(sampler, epoch, 0);
}

int64_t muster_sampler_epoch(const struct muster_sampler *sampler) {
    return sampler ? sampler->epoch : MUSTER_EINVAL;
}

uint64_t muster_sampler_consumed(const struct muster_sampler *sampler) {
    if (!sampler) {
        return 0;
    }
    uint64_t place = sampler->begin + sampler->taken * sampler->options.world_size;
    return place < sampler->end ? place : sampler->end; /* the last round may be short */
}

uint64_t muster_sampler_left(const struct muster_sampler *sampler) {
    if (!sampler) {
        return 0;
    }
    uint64_t places = sampler->end - sampler->begin, ranks = sampler->options.world_size;
    bool has_more = sampler->options.rank < places % ranks; /* never, where it goes round */
    return places / ranks + (has_more ? 1 : 0) - sampler->taken;
}

size_t muster_sampler_take(struct muster_sampler *sampler, uint64_t *out, size_t count) {
    if (!sampler || (!out && count > 0)) {
        (void)status_fail_null("muster_sampler_take", sampler ? "out" : "sampler");
        return 0;
    }
    uint64_t left = muster_sampler_left(sampler), ranks = sampler->options.world_size;
    size_t given = left < count ? (size_t)left : count;
    for (size_t i = 0; i < given; i++) {
        uint64_t place = sampler->begin + (sampler->taken + i) * ranks + sampler->options.rank;
        place %= sampler->options.sample_count; /* padding goes on at the beginning */
        out[i] = sampler->order ? sampler->order[place] : place;
    }
    sampler->taken += given;
    return given;
}

/* ---- */

int muster_sampler_create(const struct muster_sampler_options *options, struct muster_sampler **out) {
    struct muster_sampler_options own = MUSTER_SAMPLER_OPTIONS_INIT;
    if (!options || !out) {
        return status_fail_null("muster_sampler_create", options ? "out" : "options");
    }
    int code = sized_read_options(&own, sizeof own, options, "muster_sampler_options", "MUSTER_SAMPLER_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (own.uneven && own.drop_last) {
        return status_fail(MUSTER_EINVAL, "a sampler with uneven and drop_last: one or the other");
    }
    if (own.world_size == 0 || own.rank >= own.world_size) {
        return status_fail(MUSTER_EINVAL, "a sampler for rank %" PRIu32 " of %" PRIu32, own.rank, own.world_size);
    }
    if (own.sample_count > MUSTER_SAMPLER_SAMPLES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a data set of %" PRIu64 " samples; at most %" PRIu32 " can be dealt out",
                           own.sample_count, MUSTER_SAMPLER_SAMPLES_MAX);
    }
    struct muster_sampler *sampler = calloc(1, sizeof *sampler);
    size_t count = (size_t)own.sample_count;
    if (sampler && own.shuffle) {
        sampler->order = calloc(count ? count : 1, sizeof *sampler->order);
    }
    if (!sampler || (own.shuffle && !sampler->order)) {
        free(sampler);
        return status_fail(MUSTER_ENOMEM, "no memory for an order of %zu samples", count);
    }
    sampler->options = own;
    sampler->epoch = -1; /* so that epoch 0 is shuffled */
    begin(sampler, 0, 0);
    *out = sampler;
    return 0;
}

void muster_sampler_free(struct muster_sampler *sampler) {
    if (sampler) {
        free(sampler->order);
        free(sampler);
    }
}
