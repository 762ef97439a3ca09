/* See fsdp_victim.h. */
#include "fsdp_victim.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/virtual_ranks.h>

#include "base/clock.h"
#include "train/units/fsdp_virtual.h"

enum { UNITS = 5 };
static const char *const unit_names[UNITS] = {"embedding", "block 0", "block 1", "block 2", "head"};
static const char *const parameter_names[UNITS][2] = {{"embedding.w", "embedding.b"},
                                                      {"block0.w", "block0.b"},
                                                      {"block1.w", "block1.b"},
                                                      {"block2.w", "block2.b"},
                                                      {"head.w", "head.b"}};

struct trainer {
    struct rank *rank;
    const struct plan *plan;
    struct outcome *outcome;
    struct muster_group *group;
    struct muster_fsdp *fsdp;
    struct muster_optimizer *optimizer;
    uint32_t calls;
    bool leaves; /* the victim has decided to */
};

#define PROBLEM(outcome, ...)                                                                                          \
    do {                                                                                                               \
        if ((outcome)->problem[0] == '\0') {                                                                           \
            (void)snprintf((outcome)->problem, sizeof(outcome)->problem, __VA_ARGS__);                                 \
        }                                                                                                              \
    } while (0)

/* ---- training ---- */

/* After each call of the victim. true: it leaves. */
static bool ends_here(struct trainer *t) {
    const struct plan *plan = t->plan;
    bool is_own = plan->harm == HARM_EXIT || plan->harm == HARM_LEAVE;
    if (!is_own || t->rank->rank != plan->victim || ++t->calls != plan->calls_before) {
        return t->leaves;
    }
    rank_mark(t->rank, MARK_ENDED);
    if (plan->harm == HARM_EXIT) {
        _exit(EXIT_CODE);
    }
    t->leaves = true;
    return true;
}

static int use_unit(struct trainer *t, size_t unit, enum muster_fsdp_pass pass) {
    struct muster_fsdp_view view;
    int status = muster_fsdp_acquire(t->fsdp, unit, pass, &view);
    if (status || ends_here(t)) {
        return status;
    }
    size_t width = muster_type_bytes(t->plan->options.gradient_type);
    if (view.gradients && !view.add) {
        memset(view.gradients, 0, fsdp_shape(t->fsdp, (uint32_t)unit)->counts[UNIT_LEARNS] * width);
    }
    status = muster_fsdp_release(t->fsdp, unit, pass);
    (void)ends_here(t);
    return status;
}

static int pass_over(struct trainer *t, enum muster_fsdp_pass pass) {
    int status = 0;
    for (size_t i = 0; status == 0 && !t->leaves && i < UNITS; i++) {
        status = use_unit(t, pass == MUSTER_FSDP_FORWARD ? i : UNITS - 1 - i, pass);
    }
    return status;
}

static int run_pass(struct trainer *t, enum muster_fsdp_step_kind kind) {
    int status = muster_fsdp_begin(t->fsdp, kind);
    status = status || ends_here(t) ? status : pass_over(t, MUSTER_FSDP_FORWARD);
    status = status || t->leaves ? status : pass_over(t, MUSTER_FSDP_BACKWARD);
    if (status == 0 && !t->leaves) {
        status = muster_fsdp_finish(t->fsdp);
        (void)ends_here(t);
    }
    return status;
}

/* One pass, or one for each virtual rank. */
static int run_part(struct trainer *t, enum muster_fsdp_step_kind kind) {
    uint32_t first = 0, stride = 0, count = 1;
    int status = 0;
    if (t->plan->options.virtual_ranks > 0) {
        status = muster_virtual_turns(t->group, t->plan->options.virtual_ranks, &first, &stride, &count);
    }
    for (uint32_t i = 0; status == 0 && !t->leaves && i < count; i++) {
        status = run_pass(t, kind);
    }
    return status;
}

static int optimize(struct trainer *t) {
    double squares = 0;
    int status = muster_fsdp_squared_norm(t->fsdp, &squares);
    if (status == 0 && !ends_here(t)) {
        status = muster_fsdp_step(t->fsdp, t->optimizer, muster_clip_scale(sqrt(squares), 1));
        (void)ends_here(t);
    }
    return status;
}

static int run_step(struct trainer *t, uint32_t step) {
    bool has_before = t->plan->before != MUSTER_FSDP_STEP && step % 2 == 1;
    int status = has_before ? run_part(t, t->plan->before) : 0;
    status = status || t->leaves ? status : run_part(t, MUSTER_FSDP_STEP);
    return status || t->leaves ? status : optimize(t);
}

/* ---- making and leaving ---- */

static int fill(void *context, size_t unit, size_t parameter, float *values) {
    const struct plan *plan = context;
    (void)unit;
    for (size_t i = 0; i < plan->count; i++) {
        values[i] = (float)parameter;
    }
    return 0;
}

static int make(struct trainer *t, const struct muster_fsdp_options *given) {
    const struct muster_adamw_options adamw = {sizeof adamw, 0.01, 0.9, 0.99, 1e-8, 0.1};
    const struct muster_optimizer_group groups[1] = {{.adamw = &adamw}};
    struct muster_fsdp_options options = *given;
    struct muster_fsdp_parameter parameters[UNITS][2];
    struct muster_fsdp_unit units[UNITS];
    options.fill = fill;
    options.fill_context = (void *)(uintptr_t)t->plan;
    for (size_t i = 0; i < UNITS; i++) {
        for (size_t j = 0; j < 2; j++) {
            parameters[i][j] = (struct muster_fsdp_parameter){.name = parameter_names[i][j], .count = t->plan->count};
        }
        units[i] = (struct muster_fsdp_unit){unit_names[i], parameters[i], 2};
    }
    int status = muster_fsdp_create(t->group, units, UNITS, &options, &t->fsdp);
    return status ? status : muster_fsdp_optimizer(t->fsdp, NULL, groups, 1, &t->optimizer);
}

static void unmake(struct trainer *t) {
    muster_optimizer_free(t->optimizer);
    muster_fsdp_free(t->fsdp);
    t->optimizer = NULL;
    t->fsdp = NULL;
}

static void hurry(const struct trainer *t, int64_t timeout_ms) {
    const struct mesh *mesh = &t->fsdp->mesh;
    const struct fsdp_virtual *v = t->fsdp->virtual;
    struct muster_group *const groups[] = {mesh->group,
                                           mesh->shard,
                                           mesh->row_group,
                                           mesh->column_group,
                                           v ? v->members_group : NULL,
                                           v ? v->hosts_group : NULL};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (groups[i]) {
            rank_hurry(groups[i], timeout_ms);
        }
    }
}

/* ---- afterwards ---- */

static int open_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

/* Memory of a group or of a state that is still mapped. */
static void look_for_memory(struct outcome *outcome) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        if (strstr(line, "/memfd:")) {
            PROBLEM(outcome, "still mapped: %s", line);
        }
    }
    if (maps) {
        (void)fclose(maps);
    }
}

/* It stays failed, says the same, and all survivors have heard of it before one leaves. */
static void check_failed(struct trainer *t) {
    struct outcome *outcome = t->outcome;
    int again = muster_fsdp_begin(t->fsdp, MUSTER_FSDP_STEP);
    if (again != outcome->code) {
        PROBLEM(outcome, "the next call gave '%s'", muster_strerror(again));
    }
    rank_mark(t->rank, MARK_HEARD);
    for (uint32_t other = 0; other < t->rank->size; other++) {
        if (other != t->plan->victim) {
            rank_await(t->rank, other, MARK_HEARD);
        }
    }
}

/* The survivors train on among themselves. Where hosts have become uneven, hybrid sharding cannot. */
static void go_on(struct trainer *t) {
    struct outcome *outcome = t->outcome;
    struct muster_fsdp_options options = t->plan->options;
    struct muster_group *failed = t->group;
    t->group = NULL;
    int status = muster_group_shrink(failed, RANKS_PATIENCE_MS, &t->group);
    muster_group_free(failed);
    if (status) {
        PROBLEM(outcome, "shrink gave '%s': %s", muster_strerror(status), muster_detail());
        return;
    }
    options.sharding = MUSTER_FSDP_FULL;
    status = make(t, &options);
    for (uint32_t step = 0; status == 0 && step < 2; step++) {
        status = run_step(t, step);
    }
    if (status) {
        PROBLEM(outcome, "training on gave '%s': %s", muster_strerror(status), muster_detail());
    }
    unmake(t);
    muster_group_free(t->group);
}

static void train_until_the_end(struct trainer *t) {
    struct outcome *outcome = t->outcome;
    int status = 0;
    for (uint32_t step = 0; status == 0 && !t->leaves; step++) {
        if (step == t->plan->steps_before && t->rank->rank == t->plan->victim) {
            rank_mark(t->rank, MARK_GOES);
        }
        status = run_step(t, step);
    }
    outcome->ended_ns = clock_monotonic_ns();
    outcome->code = status;
    (void)snprintf(outcome->detail, sizeof outcome->detail, "%s", status ? muster_detail() : "");
}

int fsdp_live(struct rank *rank, void *argument) {
    struct board *board = argument;
    struct trainer t = {.rank = rank, .plan = &board->plan, .outcome = &board->outcomes[rank->rank]};
    struct muster_store *store = rank_store(rank);
    int descriptors = open_descriptors();
    bool is_victim = rank->rank == t.plan->victim;
    rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, NULL, &t.group), 0);
    rank_check_code(rank, make(&t, &t.plan->options), 0);
    rank_mark(rank, MARK_MADE);
    for (uint32_t other = 0; other < rank->size; other++) {
        rank_await(rank, other, MARK_MADE);
    }
    hurry(&t, t.plan->timeout_ms);
    train_until_the_end(&t);
    if (!is_victim) {
        check_failed(&t);
    }
    unmake(&t);
    if (is_victim || t.plan->harm == HARM_STOP || t.plan->harm == HARM_LEAVE) {
        muster_group_free(t.group); /* who is stopped or has left could still come: shrinking would wait for it */
    } else {
        go_on(&t);
    }
    int left = open_descriptors();
    if (left != descriptors) {
        PROBLEM(t.outcome, "%d descriptors before, %d afterwards", descriptors, left);
    }
    look_for_memory(t.outcome);
    return 0;
}
