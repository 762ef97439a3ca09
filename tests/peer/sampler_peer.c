/* The C half of test_sampler.py: for each line "SAMPLES RANK RANKS DROP_LAST" of stdin, without shuffle, the samples of
 * that rank as a line. */
#include <inttypes.h>
#include <stdio.h>

#include <muster/sampler.h>

int main(void) {
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    int drop_last = 0;
    options.shuffle = false;
    /* NOLINTNEXTLINE(cert-err34-c): the test's own text */
    while (scanf("%" SCNu64 " %" SCNu32 " %" SCNu32 " %d", &options.sample_count, &options.rank, &options.world_size,
                 &drop_last) == 4) {
        struct muster_sampler *sampler = NULL;
        options.drop_last = drop_last != 0;
        if (muster_sampler_create(&options, &sampler) != 0) {
            (void)fprintf(stderr, "%s\n", muster_detail());
            return 1;
        }
        uint64_t sample = 0;
        while (muster_sampler_take(sampler, &sample, 1) == 1) {
            (void)printf("%" PRIu64 " ", sample);
        }
        (void)printf("\n");
        muster_sampler_free(sampler);
    }
    return 0;
}
