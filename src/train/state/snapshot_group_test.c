/* Snapshots of a group, with ranks that are threads and two collectives of the test's own: who saves, which snapshot
 * all load, and what a rank gets that has none. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/mark.h"
#include "train/state/snapshot_io.h"

#include <muster/collective.h>
#include <muster/snapshot.h>

enum { RANKS = 4, PATH_BYTES = 256, BYTES_MAX = 1 << 17 };

/* ---- a group of threads, linked in place of the real one ---- */

struct shared {
    pthread_barrier_t barrier;
    uint8_t bytes[RANKS][BYTES_MAX];
};

struct muster_group {
    uint32_t rank;
    struct shared *shared;
};

static void meet(struct muster_group *group) {
    (void)pthread_barrier_wait(&group->shared->barrier);
}

int muster_all_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      enum muster_reduction reduction, struct muster_work **work) {
    int64_t *out = receive;
    if (type != MUSTER_INT64 || reduction != MUSTER_OP_MIN || work || count * 8 > BYTES_MAX) {
        abort();
    }
    memcpy(group->shared->bytes[group->rank], send, count * 8);
    meet(group);
    for (size_t i = 0; i < count; i++) {
        out[i] = INT64_MAX;
        for (size_t rank = 0; rank < RANKS; rank++) {
            int64_t theirs = 0;
            memcpy(&theirs, group->shared->bytes[rank] + i * 8, 8);
            out[i] = theirs < out[i] ? theirs : out[i];
        }
    }
    meet(group);
    return 0;
}

int muster_broadcast(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t root,
                     struct muster_work **work) {
    size_t bytes = count * muster_type_bytes(type);
    if (work || root >= RANKS || bytes > BYTES_MAX) {
        abort();
    }
    if (group->rank == root) {
        memcpy(group->shared->bytes[root], buffer, bytes);
    }
    meet(group);
    memcpy(buffer, group->shared->bytes[root], bytes);
    meet(group);
    return 0;
}

uint32_t muster_group_rank(const struct muster_group *group) {
    return group->rank;
}

uint32_t muster_group_size(const struct muster_group *group) {
    (void)group;
    return RANKS;
}

const char *muster_group_engine(const struct muster_group *group) {
    (void)group;
    return "threads";
}

void *group_stream(const struct muster_group *group) {
    (void)group;
    return NULL;
}

/* ---- ranks ---- */

struct rank {
    struct muster_group group;
    pthread_t thread;
    char folder[PATH_BYTES];
    float weights[5];
    int64_t epoch;
    double loss;
    char note[16];
    struct muster_tensor tensor;
    struct muster_value values[3];
    struct muster_snapshot_state state;
    bool saves;
    int64_t step;
    int code;
    char detail[MUSTER_DETAIL_MAX];
    struct muster_snapshot_found found;
};

static struct shared shared;
static struct rank ranks[RANKS];
static char top[PATH_BYTES / 2];

static int set_up(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-group-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
    assert_int_equal(pthread_barrier_init(&shared.barrier, NULL, RANKS), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *r = &ranks[i];
        *r = (struct rank){.group = {i, &shared}, .epoch = -1, .loss = -1};
        r->tensor = (struct muster_tensor){
            .name = "w", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {5}, .data = r->weights};
        r->values[0] = muster_value_integer("epoch", &r->epoch);
        r->values[1] = muster_value_real("loss", &r->loss);
        r->values[2] = muster_value_text("note", r->note, sizeof r->note);
        r->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(&r->tensor, 1, r->values, 3);
        assert_true(str_format(r->folder, sizeof r->folder, "%s/host%" PRIu32, top, i / 2)); /* two ranks a host */
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_true(folder_remove(ranks[i].folder) >= 0);
    }
    assert_int_equal(pthread_barrier_destroy(&shared.barrier), 0);
    return rmdir(top);
}

static void fill(struct rank *r, int64_t step) {
    for (int i = 0; i < 5; i++) {
        r->weights[i] = (float)step + (float)i;
    }
    r->epoch = step;
    r->loss = 1.0 / (double)step;
    (void)snprintf(r->note, sizeof r->note, "step %" PRId64, step);
}

static void run(void *(*work)(void *)) {
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]), 0);
    }
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
    }
}

static void *save_work(void *arg) {
    struct rank *r = arg;
    fill(r, r->step);
    r->code = muster_snapshot_save_group(&r->group, r->saves, r->folder, r->step, &r->state, NULL);
    (void)str_copy(r->detail, sizeof r->detail, muster_detail());
    return NULL;
}

static void *load_work(void *arg) {
    struct rank *r = arg;
    memset(r->weights, 0, sizeof r->weights);
    r->epoch = -1, r->loss = -1, r->note[0] = '\0';
    r->code = muster_snapshot_load_group(&r->group, r->folder, &r->state, &r->found);
    (void)str_copy(r->detail, sizeof r->detail, muster_detail());
    return NULL;
}

/* One of each host saves. */
static void save_everywhere(int64_t step) {
    for (size_t i = 0; i < RANKS; i++) {
        ranks[i].saves = i % 2 == 0;
        ranks[i].step = step;
    }
    run(save_work);
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].code, 0);
    }
}

static void assert_loaded(int64_t step) {
    run(load_work);
    for (size_t i = 0; i < RANKS; i++) {
        struct rank wanted = {.step = step};
        fill(&wanted, step);
        assert_int_equal(ranks[i].code, 0);
        assert_int_equal(ranks[i].found.step, step);
        assert_true(ranks[i].found.id == ranks[0].found.id);
        assert_memory_equal(ranks[i].weights, wanted.weights, sizeof wanted.weights);
        assert_true(ranks[i].epoch == step && ranks[i].loss == wanted.loss);
        assert_string_equal(ranks[i].note, wanted.note);
    }
}

/* ---- */

static void all_load_what_one_of_each_host_saved(void **state) {
    (void)state;
    save_everywhere(3);
    save_everywhere(7);
    assert_loaded(7);
}

static void a_host_that_is_behind_or_new_gets_it_from_another(void **state) {
    (void)state;
    save_everywhere(3);
    for (size_t i = 0; i < RANKS; i++) {
        ranks[i].saves = i == 3; /* host 1 alone has step 5 */
        ranks[i].step = 5;
    }
    run(save_work);
    assert_loaded(5);
    (void)str_copy(ranks[0].folder, sizeof ranks[0].folder, top); /* no snapshots there */
    assert_loaded(5);
    assert_true(str_format(ranks[0].folder, sizeof ranks[0].folder, "%s/host0", top));
}

static void the_same_step_of_two_lives_is_told_apart(void **state) {
    (void)state;
    save_everywhere(3);
    for (size_t i = 0; i < RANKS; i++) {
        ranks[i].saves = i == 2;
        ranks[i].step = 4;
    }
    run(save_work);
    fill(&ranks[0], 99); /* another state, under the same step, on host 0 */
    assert_int_equal(muster_snapshot_save(ranks[0].folder, 4, &ranks[0].state, NULL), 0);
    run(load_work);
    for (size_t i = 0; i < RANKS; i++) {
        assert_true(ranks[i].code == 0 && ranks[i].found.step == 4 && ranks[i].epoch == 99 &&
                    ranks[i].weights[4] == 103);
        assert_string_equal(ranks[i].note, "step 99");
    }
}

static void a_failure_of_one_is_told_to_all(void **state) {
    (void)state;
    for (size_t i = 0; i < RANKS; i++) {

        ranks[i].step = 1;
        ranks[i].saves = i % 2 == 0;
    }
    ranks[2].values[1].name = "epoch";
    run(save_work);
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].code, MUSTER_EINVAL);
        assert_string_equal(ranks[i].detail, "rank 2: save step 1: two values are named epoch");
    }
    ranks[2].values[1].name = "loss";
    save_everywhere(1);
    ranks[1].tensor.shape[0] = 4;
    run(load_work);
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].code, MUSTER_EINVAL);
        assert_string_equal(ranks[i].detail, "rank 1: load step 1: tensor w is float32 [5] in the file, float32 [4] in "
                                             "the program");
    }
}

static void nothing_anywhere_is_said_alike(void **state) {
    (void)state;
    run(load_work);
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].code, MUSTER_ENOENT);
        assert_non_null(strstr(ranks[i].detail, "rank 0: open the folder"));
    }
    save_everywhere(2);
    char path[2 * PATH_BYTES];
    for (size_t host = 0; host < 2; host++) {
        assert_true(str_format(path, sizeof path, "%s/host%zu/step-2.json", top, host));
        assert_int_equal(truncate(path, 50), 0);
        run(load_work);
        if (host == 0) {
            assert_true(ranks[0].code == 0 && ranks[0].found.step == 2 && ranks[0].epoch == 2);
        }
    }
    for (size_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].code, MUSTER_ECORRUPT);
        assert_non_null(strstr(ranks[i].detail, "rank 0: no snapshot in"));
    }
}

#define group_test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        group_test(all_load_what_one_of_each_host_saved),
        group_test(a_host_that_is_behind_or_new_gets_it_from_another),
        group_test(the_same_step_of_two_lives_is_told_apart),
        group_test(a_failure_of_one_is_told_to_all),
        group_test(nothing_anywhere_is_said_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
