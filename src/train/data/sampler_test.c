/* The distributed sampler: lengths and places for many sizes against a plain reading of PyTorch's rule, recorded
 * orders, and going on with another number of ranks. tests/peer/test_sampler.py compares with PyTorch itself. */
#include <muster/sampler.h>

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES_MAX = 64, TAKEN_MAX = 4096 };

static struct muster_sampler *make(uint64_t count, uint32_t rank, uint32_t ranks, bool shuffle, bool drop_last) {
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_sampler *sampler = NULL;
    options.sample_count = count, options.rank = rank, options.world_size = ranks;
    options.shuffle = shuffle, options.drop_last = drop_last, options.seed = 5;
    assert_int_equal(muster_sampler_create(&options, &sampler), 0);
    return sampler;
}

/* Written down as PyTorch does it: a list is made longer or shorter, then every world_size-th is taken. */
static size_t by_the_book(uint64_t count, uint32_t rank, uint32_t ranks, bool drop_last, uint64_t *out) {
    uint64_t list[2 * TAKEN_MAX];
    size_t each = drop_last ? count / ranks : (count + ranks - 1) / ranks, length = 0;
    while (length < each * ranks) {
        list[length] = length < count ? length : list[length - count];
        length++;
    }
    for (size_t i = 0; i < each; i++) {
        out[i] = list[i * ranks + rank];
    }
    return each;
}

static void places_are_dealt_out_as_pytorch_does(void **state) {
    (void)state;
    static uint64_t wanted[TAKEN_MAX], got[TAKEN_MAX];
    for (uint64_t count = 0; count <= SAMPLES_MAX; count++) {
        for (uint32_t ranks = 1; ranks <= 17; ranks++) {
            for (uint32_t rank = 0; rank < ranks; rank++) {
                for (int drop = 0; drop < 2; drop++) {
                    struct muster_sampler *sampler = make(count, rank, ranks, false, drop);
                    size_t length = by_the_book(count, rank, ranks, drop, wanted);
                    assert_int_equal(muster_sampler_left(sampler), length);
                    assert_int_equal(muster_sampler_take(sampler, got, TAKEN_MAX), length);
                    assert_memory_equal(got, wanted, length * sizeof got[0]);
                    assert_int_equal(muster_sampler_take(sampler, got, TAKEN_MAX), 0);
                    assert_int_equal(muster_sampler_consumed(sampler), length * ranks);
                    muster_sampler_free(sampler);
                }
            }
        }
    }
}

/* Each sample once, whatever the numbers, also when an epoch is taken up again by fewer or more ranks. */
static void uneven_deals_out_every_sample_once(void **state) {
    (void)state;
    for (uint64_t count = 0; count <= SAMPLES_MAX; count++) {
        for (uint32_t ranks = 1; ranks <= 9; ranks++) {
            unsigned seen[SAMPLES_MAX] = {0};
            for (uint32_t rank = 0; rank < ranks; rank++) {
                struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
                struct muster_sampler *sampler = NULL;
                uint64_t got[SAMPLES_MAX], begin = count / 3;
                options.sample_count = count, options.rank = rank, options.world_size = ranks;
                options.uneven = true;
                assert_int_equal(muster_sampler_create(&options, &sampler), 0);
                assert_int_equal(muster_sampler_resume(sampler, 1, begin), 0);
                uint64_t left = muster_sampler_left(sampler);
                assert_true(left == (count - begin) / ranks || left == (count - begin) / ranks + 1);
                assert_int_equal(muster_sampler_take(sampler, got, SAMPLES_MAX), left);
                assert_int_equal(muster_sampler_left(sampler), 0);
                assert_true(muster_sampler_consumed(sampler) <= count);
                for (uint64_t i = 0; i < left; i++) {
                    seen[got[i]]++;
                }
                muster_sampler_free(sampler);
            }
            uint64_t once = 0;
            for (uint64_t i = 0; i < count; i++) {
                assert_true(seen[i] <= 1);
                once += seen[i];
            }
            assert_int_equal(once, count - count / 3);
        }
    }
    struct muster_sampler_options both = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_sampler *sampler = NULL;
    both.uneven = both.drop_last = true;
    assert_int_equal(muster_sampler_create(&both, &sampler), MUSTER_EINVAL);
}

static void take_all(struct muster_sampler *sampler, uint64_t *out, size_t count) {
    for (size_t have = 0; have < count;) {
        size_t got = muster_sampler_take(sampler, out + have, 3);
        assert_true(got > 0 && got <= 3);
        have += got;
    }
}

/* From a second implementation, in Python (docs/snapshots.md). Orders must never change: a resumed job would mix two.
 */
static void recorded_orders(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        int64_t epoch;
        uint64_t order[10];
    } known[] = {
        {0, 0, {5, 3, 8, 2, 0, 6, 7, 1, 4, 9}},
        {0, 1, {3, 5, 4, 6, 9, 1, 7, 0, 2, 8}},
        {1, 0, {3, 5, 2, 8, 0, 6, 4, 1, 7, 9}},
    };
    static uint64_t large[60000];
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_sampler *sampler = NULL;
    for (size_t i = 0; i < 3; i++) {
        uint64_t got[10];
        options.sample_count = 10, options.seed = known[i].seed;
        assert_int_equal(muster_sampler_create(&options, &sampler), 0);
        muster_sampler_set_epoch(sampler, known[i].epoch);
        take_all(sampler, got, 10);
        assert_memory_equal(got, known[i].order, sizeof got);
        muster_sampler_free(sampler);
    }
    options.sample_count = 60000, options.seed = 12345;
    assert_int_equal(muster_sampler_create(&options, &sampler), 0);
    muster_sampler_set_epoch(sampler, 7);
    assert_int_equal(muster_sampler_take(sampler, large, 60000), 60000);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 60000; i++) {
        sum += i * large[i] % 2147483647;
    }
    assert_int_equal(sum, 41826361616725);
    assert_true(large[0] == 31860 && large[59999] == 21644);
    muster_sampler_free(sampler);
}

static void every_world_size_has_the_same_order(void **state) {
    (void)state;
    uint64_t alone[SAMPLES_MAX];
    struct muster_sampler *sampler = make(60, 0, 1, true, false);
    muster_sampler_set_epoch(sampler, 3);
    take_all(sampler, alone, 60);
    muster_sampler_free(sampler);
    for (uint32_t ranks = 2; ranks <= 7; ranks++) {
        for (uint32_t rank = 0; rank < ranks; rank++) {
            uint64_t got[SAMPLES_MAX];
            sampler = make(60, rank, ranks, true, false);
            muster_sampler_set_epoch(sampler, 3);
            size_t count = muster_sampler_take(sampler, got, SAMPLES_MAX);
            assert_int_equal(count, (60 + ranks - 1) / ranks);
            for (size_t i = 0; i < count; i++) {
                assert_int_equal(got[i], alone[(i * ranks + rank) % 60]);
            }
            muster_sampler_free(sampler);
        }
    }
}

/* Each epoch is a permutation, and no two epochs or seeds of these are the same. */
static void epochs_and_seeds_differ(void **state) {
    (void)state;
    uint64_t orders[16][SAMPLES_MAX];
    struct muster_sampler *sampler = make(SAMPLES_MAX, 0, 1, true, false);
    for (int64_t epoch = 0; epoch < 16; epoch++) {
        bool seen[SAMPLES_MAX] = {false};
        muster_sampler_set_epoch(sampler, epoch);
        assert_int_equal(muster_sampler_epoch(sampler), epoch);
        take_all(sampler, orders[epoch], SAMPLES_MAX);
        for (size_t i = 0; i < SAMPLES_MAX; i++) {
            assert_true(orders[epoch][i] < SAMPLES_MAX && !seen[orders[epoch][i]]);
            seen[orders[epoch][i]] = true;
        }
        for (int64_t before = 0; before < epoch; before++) {
            assert_memory_not_equal(orders[before], orders[epoch], sizeof orders[epoch]);
        }
    }
    muster_sampler_set_epoch(sampler, 2); /* going back gives the same again */
    uint64_t again[SAMPLES_MAX];
    take_all(sampler, again, SAMPLES_MAX);
    assert_memory_equal(again, orders[2], sizeof again);
    muster_sampler_free(sampler);
}

/* Every sample is first as often as any other: 8 samples, 80,000 epochs, 10,000 expected each; 5 standard deviations of
 * a binomial distribution are 5 * sqrt(80000 * 1/8 * 7/8) = 468. */
static void first_places_are_even(void **state) {
    (void)state;
    int counts[8] = {0};
    struct muster_sampler *sampler = make(8, 0, 1, true, false);
    for (int64_t epoch = 0; epoch < 80000; epoch++) {
        uint64_t first = 0;
        muster_sampler_set_epoch(sampler, epoch);
        assert_int_equal(muster_sampler_take(sampler, &first, 1), 1);
        counts[first]++;
    }
    for (size_t i = 0; i < 8; i++) {
        assert_in_range(counts[i], 10000 - 468, 10000 + 468);
    }
    muster_sampler_free(sampler);
}

/* An epoch of which `first_ranks` ranks do `rounds`, then `ranks` the rest: all samples once, then the padding. */
static void resume_elsewhere(uint64_t count, uint32_t first_ranks, size_t rounds, uint32_t ranks, bool drop) {
    unsigned seen[SAMPLES_MAX] = {0};
    uint64_t consumed = 0, total = 0;
    for (int part = 0; part < 2; part++) {
        uint32_t now = part == 0 ? first_ranks : ranks;
        uint64_t after = 0;
        for (uint32_t rank = 0; rank < now; rank++) {
            uint64_t got[TAKEN_MAX];
            struct muster_sampler *sampler = make(count, rank, now, true, drop);
            muster_sampler_resume(sampler, 9, consumed);
            size_t taken = muster_sampler_take(sampler, got, part == 0 ? rounds : TAKEN_MAX);
            for (size_t i = 0; i < taken; i++) {
                seen[got[i]]++;
            }
            total += taken;
            after = muster_sampler_consumed(sampler);
            muster_sampler_free(sampler);
        }
        consumed = after;
    }
    unsigned once = 0, twice = 0;
    for (uint64_t i = 0; i < count; i++) {
        once += seen[i] == 1;
        twice += seen[i] == 2;
        assert_true(seen[i] <= 2);
    }
    assert_int_equal(total, consumed);
    if (drop) {
        assert_true(twice == 0 && once == total && count - total < ranks + first_ranks);
    } else {
        assert_true(once + twice == count && twice == total - count && twice < ranks + first_ranks);
    }
}

static void another_world_size_goes_on_without_doubles(void **state) {
    (void)state;
    for (uint32_t first = 1; first <= 6; first++) {
        for (uint32_t second = 1; second <= 6; second++) {
            for (size_t rounds = 0; rounds * first <= 50; rounds += 3) {
                resume_elsewhere(50, first, rounds, second, false);
                resume_elsewhere(50, first, rounds, second, true);
            }
        }
    }
}

static void the_same_world_size_goes_on_as_if_nothing_had_happened(void **state) {
    (void)state;
    for (uint64_t count = 1; count <= 40; count++) {
        for (int drop = 0; drop < 2; drop++) {
            uint64_t whole[SAMPLES_MAX], resumed[SAMPLES_MAX];
            struct muster_sampler *sampler = make(count, 2, 3, true, drop);
            size_t length = muster_sampler_take(sampler, whole, SAMPLES_MAX);
            for (size_t stop = 0; stop <= length; stop++) {
                muster_sampler_set_epoch(sampler, 0);
                assert_int_equal(muster_sampler_take(sampler, resumed, stop), stop);
                muster_sampler_resume(sampler, 0, muster_sampler_consumed(sampler));
                assert_int_equal(muster_sampler_left(sampler), length - stop);
                assert_int_equal(muster_sampler_take(sampler, resumed + stop, SAMPLES_MAX), length - stop);
                assert_memory_equal(whole, resumed, length * sizeof whole[0]);
            }
            muster_sampler_free(sampler);
        }
    }
}

/* ---- virtual ranks ---- */

enum { VIRTUAL_RANKS = 13, VIRTUAL_BATCH = 3, RESIZES = 1000 };

/* The step's samples of virtual rank v, whoever has it now, in the order of the step. */
static size_t take_virtual(uint64_t count, uint32_t v, int64_t epoch, uint64_t consumed, uint64_t *out) {
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_sampler *sampler = NULL;
    options.sample_count = count;
    options.rank = v;
    options.world_size = VIRTUAL_RANKS;
    options.uneven = true;
    options.seed = 5;
    assert_int_equal(muster_sampler_create(&options, &sampler), 0);
    muster_sampler_resume(sampler, epoch, consumed);
    size_t taken = muster_sampler_take(sampler, out, VIRTUAL_BATCH);
    muster_sampler_free(sampler);
    return taken;
}

/* A world that becomes another one 1,000 times, at any step: each epoch has each sample once, and a step's samples are
 * those of a world that never changed. */
static void virtual_ranks_use_each_sample_once_through_resizes(void **state) {
    (void)state;
    enum { SAMPLES = 1009 }; /* no multiple of anything */
    static uint8_t seen[SAMPLES];
    struct muster_sampler *undisturbed[VIRTUAL_RANKS];
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    options.sample_count = SAMPLES, options.world_size = VIRTUAL_RANKS, options.uneven = true, options.seed = 5;
    for (uint32_t v = 0; v < VIRTUAL_RANKS; v++) {
        options.rank = v;
        assert_int_equal(muster_sampler_create(&options, &undisturbed[v]), 0);
    }
    uint64_t chance = 1, consumed = 0, resizes = 0;
    int64_t epoch = 0;
    uint32_t ranks = 1;
    while (resizes < RESIZES || consumed > 0) {
        chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t next = chance >> 63 ? 1 + (uint32_t)(chance >> 33) % VIRTUAL_RANKS : ranks;
        resizes += next != ranks;
        ranks = next;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            for (uint32_t v = VIRTUAL_RANKS * rank / ranks; v < VIRTUAL_RANKS * (rank + 1) / ranks; v++) {
                uint64_t samples[VIRTUAL_BATCH], expected[VIRTUAL_BATCH];
                size_t taken = take_virtual(SAMPLES, v, epoch, consumed, samples);
                assert_int_equal(muster_sampler_take(undisturbed[v], expected, VIRTUAL_BATCH), taken);
                assert_memory_equal(samples, expected, taken * sizeof *samples);
                for (size_t i = 0; i < taken; i++) {
                    assert_int_equal(seen[samples[i]]++, 0);
                }
            }
        }
        uint64_t left = SAMPLES - consumed, most = VIRTUAL_RANKS * VIRTUAL_BATCH;
        consumed += left < most ? left : most;
        if (consumed == SAMPLES) {
            for (size_t i = 0; i < SAMPLES; i++) {
                assert_int_equal(seen[i], 1);
            }
            memset(seen, 0, sizeof seen);
            consumed = 0;
            epoch++;
            for (uint32_t v = 0; v < VIRTUAL_RANKS; v++) {
                muster_sampler_set_epoch(undisturbed[v], epoch);
            }
        }
    }
    assert_true(epoch > 10);
    for (uint32_t v = 0; v < VIRTUAL_RANKS; v++) {
        muster_sampler_free(undisturbed[v]);
    }
}

static void bad_options_are_refused(void **state) {
    (void)state;
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_sampler *sampler = NULL;
    options.rank = 1;
    assert_int_equal(muster_sampler_create(&options, &sampler), MUSTER_EINVAL);
    options.world_size = 0;
    assert_int_equal(muster_sampler_create(&options, &sampler), MUSTER_EINVAL);
    options.world_size = 2, options.sample_count = MUSTER_SAMPLER_SAMPLES_MAX + UINT64_C(1);
    assert_int_equal(muster_sampler_create(&options, &sampler), MUSTER_ELIMIT);
    options.sample_count = 0;
    assert_int_equal(muster_sampler_create(&options, &sampler), 0);
    uint64_t none = 0;
    assert_int_equal(muster_sampler_take(sampler, &none, 1), 0);
    muster_sampler_resume(sampler, 0, UINT64_C(1) << 60);
    assert_int_equal(muster_sampler_left(sampler), 0);
    muster_sampler_free(sampler);
    muster_sampler_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_are_dealt_out_as_pytorch_does),
        cmocka_unit_test(uneven_deals_out_every_sample_once),
        cmocka_unit_test(recorded_orders),
        cmocka_unit_test(every_world_size_has_the_same_order),
        cmocka_unit_test(epochs_and_seeds_differ),
        cmocka_unit_test(first_places_are_even),
        cmocka_unit_test(another_world_size_goes_on_without_doubles),
        cmocka_unit_test(the_same_world_size_goes_on_as_if_nothing_had_happened),
        cmocka_unit_test(virtual_ranks_use_each_sample_once_through_resizes),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
