/* See fsdp_record_test_support.h. The fakes stand in place of muster_comm's groups and of state_region.c. */
#include "train/model/fsdp_record_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/memory.h>

#include "base/status.h"
#include "comm/group/mark.h"
#include "train/peers/peer_find.h"
#include "train/units/fsdp_impl.h"

/* The recording under way. */
struct recorder {
    struct record *out;
    const struct record_program *program;
    uint32_t call_counts[RECORD_GROUPS];
    uint32_t unit; /* of the next call: group_mark_unit() */
    uint8_t version;
    bool is_held_over;
    uint32_t presence_step; /* of which the ranks say who has data */
    const void *slots[RECORD_SLOTS_MAX];
    uint32_t slot_count;
};
static struct recorder *recorder;

struct muster_group {
    enum record_group what;
    uint32_t rank, size;
};

struct muster_work {
    struct record_event event; /* its RETURN */
};

static void note(struct record_event event) {
    struct record *out = recorder->out;
    assert_true(out->count < RECORD_EVENTS_MAX);
    event.version = recorder->version;
    out->events[out->count++] = event;
}

/* The call, and its return now or with a handle. */
static int note_call(struct muster_group *group, struct record_event event, struct muster_work **work) {
    event.group = (uint8_t)group->what;
    event.number = (uint8_t)recorder->call_counts[group->what]++;
    event.kind = RECORD_CALL;
    note(event);
    event.kind = RECORD_RETURN;
    if (!work) {
        note(event);
        return MUSTER_OK;
    }
    struct muster_work *handle = test_malloc(sizeof *handle);
    handle->event = event;
    *work = handle;
    return MUSTER_OK;
}

/* ---- collectives ---- */

int muster_work_wait(struct muster_work **work) {
    if (*work) {
        note((*work)->event);
        test_free(*work);
        *work = NULL;
    }
    return MUSTER_OK;
}

bool muster_work_done(const struct muster_work *work) {
    (void)work;
    return recorder->program->are_reductions_done;
}

void group_mark_unit(struct muster_group *group, uint32_t unit) {
    (void)group;
    recorder->unit = unit;
}

/* By which a step begins, or, of floats, the sums of a column. */
int muster_all_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      enum muster_reduction reduction, struct muster_work **work) {
    (void)reduction;
    if (type == MUSTER_INT32) {
        memcpy(receive, send, count * sizeof(int32_t));
        return note_call(group, (struct record_event){.call = RECORD_MEETING}, work);
    }
    return note_call(group, (struct record_event){.call = RECORD_REDUCTION, .gets_nothing = count == 0}, work);
}

int muster_reduce_scatter_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                            enum muster_type type, enum muster_reduction reduction, struct muster_work **work) {
    (void)send, (void)receive, (void)type, (void)reduction;
    return note_call(group,
                     (struct record_event){.call = RECORD_REDUCTION,
                                           .unit = (uint8_t)recorder->unit,
                                           .gets_nothing = counts[group->rank] == 0},
                     work);
}

static uint8_t slot_of(const void *memory) {
    for (uint32_t i = 0; i < recorder->slot_count; i++) {
        const char *begin = recorder->slots[i];
        if ((const char *)memory >= begin && (const char *)memory < begin + 4096) {
            return (uint8_t)i;
        }
    }
    return RECORD_STORE;
}

int muster_all_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                        enum muster_type type, struct muster_work **work) {
    (void)send, (void)counts, (void)type;
    return note_call(
        group, (struct record_event){.call = RECORD_GATHER, .unit = (uint8_t)recorder->unit, .slot = slot_of(receive)},
        work);
}

int muster_barrier(struct muster_group *group, struct muster_work **work) {
    return note_call(group, (struct record_event){.call = RECORD_MEETING}, work);
}

static bool has_data(const struct record_program *program, uint32_t rank, uint32_t step) {
    return !program->is_uneven || rank != program->out_of_data || step < program->data_steps;
}

/* By which a row meets, and all ranks say who has data. */
int muster_all_gather(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work) {
    const struct record_program *program = recorder->program;
    (void)send;
    if (group->what == RECORD_ROW) {
        return note_call(group, (struct record_event){.call = RECORD_MEETING}, work);
    }
    if (type != MUSTER_UINT8 || count != 1) {
        return status_fail(MUSTER_EINVAL, "the fake gathers units, and who has data");
    }
    uint32_t step = recorder->presence_step++;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        uint32_t part = rank % program->columns * program->rows + rank / program->columns;
        ((uint8_t *)receive)[part] = !has_data(program, rank, step) ? PRESENCE_OUT_OF_DATA
                                     : program->steps[step] == 'S'  ? PRESENCE_WITH_SYNC
                                                                    : PRESENCE_WITHOUT_SYNC;
    }
    return note_call(group, (struct record_event){.call = RECORD_MEETING}, work);
}

int muster_broadcast(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t root,
                     struct muster_work **work) {
    (void)group, (void)buffer, (void)count, (void)type, (void)root, (void)work;
    return status_fail(MUSTER_EINVAL, "the fake broadcasts nothing");
}

/* Of virtual ranks, which nobody has here: fsdp->virtual is NULL. */
int muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                        const size_t *receive_counts, enum muster_type type, struct muster_work **work) {
    (void)group, (void)send, (void)send_counts, (void)receive, (void)receive_counts, (void)type, (void)work;
    return status_fail(MUSTER_EINVAL, "the fake exchanges nothing");
}

/* ---- the rest of a group, and memory ---- */

int muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                       const struct muster_group_options *options, struct muster_group **out) {
    (void)parent, (void)color, (void)key, (void)options, (void)out;
    return status_fail(MUSTER_EINVAL, "the fake splits nothing");
}

int muster_coalesce_begin(struct muster_group *group) {
    (void)group;
    return status_fail(MUSTER_EINVAL, "the fake coalesces nothing");
}

int muster_coalesce_end(struct muster_group *group, struct muster_work **work) {
    (void)group, (void)work;
    return MUSTER_OK;
}

uint32_t muster_group_host_of(const struct muster_group *group, uint32_t rank) {
    (void)group, (void)rank;
    return 0;
}

uint32_t muster_group_rank(const struct muster_group *group) {
    return group->rank;
}

uint32_t muster_group_size(const struct muster_group *group) {
    return group->size;
}

int muster_group_status(struct muster_group *group) {
    (void)group;
    return MUSTER_OK;
}

void muster_group_abort(struct muster_group *group, const char *reason) {
    (void)group;
    fail_msg("aborted: %s", reason);
}

/* There is none but the test's own. */
void muster_group_free(struct muster_group *group) {
    assert_null(group);
}

void mesh_abort(const struct mesh *mesh, const char *reason) {
    (void)mesh;
    fail_msg("aborted: %s", reason);
}

int muster_alloc(struct muster_group *group, size_t bytes, void **out) {
    (void)group;
    *out = test_calloc(1, bytes);
    return MUSTER_OK;
}

void muster_free(struct muster_group *group, void *memory) {
    (void)group;
    if (memory) {
        test_free(memory);
    }
}

/* Of slots. That all ranks of a row make them together is not counted as a meeting: the rules hold without. */
int state_region_create(struct muster_group *group, const char *what, size_t bytes, struct state_region *out) {
    (void)group, (void)what;
    assert_true(recorder->slot_count < RECORD_SLOTS_MAX && bytes <= 4096);
    *out = (struct state_region){.memory = test_calloc(1, 4096), .bytes = bytes};
    recorder->slots[recorder->slot_count++] = out->memory;
    return MUSTER_OK;
}

/* Nothing is kept here: fsdp->kept is NULL. */
int copies_open(const struct copies_options *options, struct copies **out) {
    (void)options;
    (void)out;
    return status_fail(MUSTER_EUNSUPPORTED, "no state is kept here");
}

void copies_close(struct copies *copies) {
    (void)copies;
}

size_t copies_sources(const struct copies *copies, const struct copies_source **out, int64_t *out_step) {
    (void)copies, (void)out, (void)out_step;
    return 0;
}

int copies_settle(struct copies *copies, struct muster_group *group) {
    (void)copies, (void)group;
    return MUSTER_OK;
}

int64_t copies_step(const struct copies *copies) {
    (void)copies;
    return COMMIT_NOTHING;
}

void *copies_current(const struct copies *copies) {
    (void)copies;
    return NULL;
}

ptrdiff_t copies_delta(const struct copies *copies) {
    (void)copies;
    return 0;
}

void copies_begin(struct copies *copies) {
    (void)copies;
}

bool copies_is_begun(const struct copies *copies) {
    (void)copies;
    return false;
}

void *copies_extra(const struct copies *copies) {
    (void)copies;
    return NULL;
}

void peer_finds_free(struct peer_finds *finds) {
    (void)finds;
}

bool copies_is_given_up(const struct copies *copies) {
    (void)copies;
    return false;
}

ptrdiff_t copies_commit(struct copies *copies, int64_t step) {
    (void)copies;
    (void)step;
    return 0;
}

size_t copies_bytes(const struct copies *copies) {
    (void)copies;
    return 0;
}

void state_region_free(struct state_region *region) {
    test_free(region->memory);
}

/* ---- an fsdp of one rank ---- */

struct stage {
    struct muster_group groups[RECORD_GROUPS];
    struct muster_fsdp *fsdp;
};

static void place_rank(const struct record_program *program, struct record *out, struct stage *stage) {
    bool is_hybrid = program->options.sharding == MUSTER_FSDP_HYBRID;
    uint32_t size = out->rows * out->columns, part = out->column * out->rows + out->row;
    stage->groups[RECORD_ALL] = (struct muster_group){RECORD_ALL, part, size};
    stage->groups[RECORD_ROW] = (struct muster_group){RECORD_ROW, out->column, out->columns};
    stage->groups[RECORD_COLUMN] = (struct muster_group){RECORD_COLUMN, out->row, out->rows};
    struct muster_group *all = &stage->groups[RECORD_ALL];
    struct muster_group *row = out->rows == 1 ? all : &stage->groups[RECORD_ROW];
    stage->fsdp->mesh = (struct mesh){.group = all,
                                      .rows = out->rows,
                                      .columns = out->columns,
                                      .row = out->row,
                                      .column = out->column,
                                      .part_count = is_hybrid ? out->columns : size,
                                      .part = is_hybrid ? out->column : part,
                                      .shard = is_hybrid ? row : all,
                                      .row_group = out->columns > 1 ? row : NULL,
                                      .column_group = out->rows > 1 ? &stage->groups[RECORD_COLUMN] : NULL};
}

static void make_fsdp(const struct record_program *program, struct record *out, struct stage *stage) {
    static const char *const names[RECORD_UNITS_MAX] = {"a", "b", "c", "d"};
    struct muster_fsdp_parameter parameters[RECORD_UNITS_MAX];
    struct muster_fsdp_unit units[RECORD_UNITS_MAX];
    struct unit_item *items;
    for (uint32_t i = 0; i < program->unit_count; i++) {
        parameters[i] = (struct muster_fsdp_parameter){.name = names[i], .count = program->counts[i]};
        units[i] = (struct muster_fsdp_unit){names[i], &parameters[i], 1};
    }
    assert_int_equal(fsdp_model_create(units, sizeof *units, program->unit_count, sizeof *parameters, &program->options,
                                       &stage->fsdp, &items),
                     MUSTER_OK);
    place_rank(program, out, stage);
    struct muster_fsdp *fsdp = stage->fsdp;
    bool gathers = program->options.sharding == MUSTER_FSDP_FULL && out->rows > 1;
    assert_int_equal(unit_layout_create(items, program->unit_count, program->unit_count, fsdp->mesh.part_count,
                                        gathers ? out->row : 0, gathers ? out->rows : 1, &fsdp->layout),
                     MUSTER_OK);
    free(items);
    size_t values_bytes = (fsdp->layout->stored_count + MUSTER_FSDP_ALIGNMENT) * sizeof(float);
    fsdp->values = (struct state_region){.memory = test_calloc(1, values_bytes), .bytes = values_bytes};
    fsdp->counts = test_calloc(out->rows * out->columns, sizeof *fsdp->counts);
    fsdp->met = test_calloc(out->columns, sizeof *fsdp->met);
    for (uint32_t i = 0; i < program->unit_count; i++) {
        fsdp->shard_at[i] = fsdp->shard_count;
        fsdp->shard_count += fsdp_own_part(fsdp, i, UNIT_LEARNS)->count;
        out->is_part_empty[i] = fsdp_own_part(fsdp, i, UNIT_LEARNS)->count == 0;
    }
    fsdp->shard = test_calloc(fsdp->shard_count + 1, sizeof(float));
    fsdp->active_count = out->rows * out->columns;
    if (program->is_uneven) {
        assert_int_equal(presence_create(fsdp->mesh.group, &fsdp->presence), MUSTER_OK);
    }
}

static void free_fsdp(struct muster_fsdp *fsdp) {
    fsdp_gather_free(fsdp);
    fsdp_buffers_free(fsdp);
    presence_free(&fsdp->presence);
    unit_layout_free(fsdp->layout);
    test_free(fsdp->values.memory);
    test_free(fsdp->counts);
    test_free(fsdp->met);
    test_free(fsdp->shard);
    free(fsdp);
}

/* ---- its program ---- */

static void check(int status) {
    if (status != MUSTER_OK) {
        fail_msg("%s", muster_detail());
    }
}

static void acquire(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, uint8_t *out_slot) {
    struct muster_fsdp_view view;
    check(muster_fsdp_acquire(fsdp, unit, pass, &view));
    *out_slot = slot_of(view.parameters);
    note((struct record_event){.kind = RECORD_HOLD, .unit = (uint8_t)unit, .slot = *out_slot});
}

/* The event comes first: from here on the rank does not look. */
static void release(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, uint8_t slot) {
    note((struct record_event){.kind = RECORD_RELEASE, .unit = (uint8_t)unit, .slot = slot});
    check(muster_fsdp_release(fsdp, unit, pass));
}

static void run_pass(struct muster_fsdp *fsdp, enum muster_fsdp_pass pass) {
    const struct record_program *program = recorder->program;
    size_t count = strlen(program->uses);
    uint8_t slots[16] = {0};
    uint32_t units[16] = {0};
    assert_true(count > 0 && count <= 16);
    for (size_t i = 0; i < count; i++) {
        units[i] = (uint32_t)(program->uses[pass == MUSTER_FSDP_FORWARD ? i : count - 1 - i] - '0');
        acquire(fsdp, units[i], pass, &slots[i]);
        if (program->holds_two && i > 0) {
            release(fsdp, units[i - 1], pass, slots[i - 1]);
        }
        bool is_last = i + 1 == count;
        if (is_last && program->holds_over && pass == MUSTER_FSDP_FORWARD && fsdp->kind != MUSTER_FSDP_EVALUATE) {
            recorder->is_held_over = true;
        } else if (!program->holds_two || is_last) {
            release(fsdp, units[i], pass, slots[i]);
        }
    }
    if (recorder->is_held_over && pass == MUSTER_FSDP_BACKWARD) {
        release(fsdp, units[0], MUSTER_FSDP_FORWARD, slots[0]);
        recorder->is_held_over = false;
    }
}

static void write_parts(void) {
    for (uint8_t unit = 0; unit < recorder->program->unit_count; unit++) {
        if (!recorder->out->is_part_empty[unit]) {
            note((struct record_event){.kind = RECORD_WRITE_FIRST, .unit = unit});
            note((struct record_event){.kind = RECORD_WRITE_LAST, .unit = unit});
        }
    }
    recorder->version++;
}

static void run_step(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    if (recorder->program->keeps_gathered) {
        fsdp->values_changed = false;
    }
    check(muster_fsdp_begin(fsdp, kind));
    run_pass(fsdp, MUSTER_FSDP_FORWARD);
    if (kind != MUSTER_FSDP_EVALUATE) {
        run_pass(fsdp, MUSTER_FSDP_BACKWARD);
    }
    check(muster_fsdp_finish(fsdp));
    if (fsdp->phase == FSDP_READY || recorder->program->writes_after_all_steps) {
        write_parts();
    }
}

static enum muster_fsdp_step_kind kind_of(char letter) {
    static const char letters[] = {[MUSTER_FSDP_STEP] = 'S',
                                   [MUSTER_FSDP_ACCUMULATE] = 'A',
                                   [MUSTER_FSDP_NO_SYNC] = 'N',
                                   [MUSTER_FSDP_EVALUATE] = 'E'};
    const char *found = memchr(letters, letter, sizeof letters);
    assert_non_null(found);
    return (enum muster_fsdp_step_kind)(found - letters);
}

/* Steps of the others, up to one that sends. Returns how many. */
static uint32_t shadow_steps(struct muster_fsdp *fsdp) {
    uint32_t first = recorder->presence_step;
    bool stepped = false;
    check(muster_fsdp_shadow(fsdp, &stepped));
    assert_true(stepped);
    write_parts();
    return recorder->presence_step - first;
}

static void run_steps(struct muster_fsdp *fsdp, uint32_t rank) {
    const struct record_program *program = recorder->program;
    for (uint32_t step = 0; program->steps[step] != '\0';) {
        if (has_data(program, rank, step)) {
            run_step(fsdp, kind_of(program->steps[step++]));
        } else {
            step += shadow_steps(fsdp);
        }
    }
}

void record_rank(const struct record_program *program, uint32_t row, uint32_t column, struct record *out) {
    struct recorder recording = {.out = out, .program = program};
    struct stage stage;
    *out = (struct record){.rows = program->rows, .columns = program->columns, .row = row, .column = column};
    recorder = &recording;
    make_fsdp(program, out, &stage);
    run_steps(stage.fsdp, row * program->columns + column);
    free_fsdp(stage.fsdp);
    recorder = NULL;
}

void record_describe(const struct record_event *event, char *text, size_t size) {
    static const char *const groups[] = {"all ranks", "its row", "its column"};
    char call[64] = "a meeting", place[32] = "where it is stored";
    if (event->call == RECORD_REDUCTION) {
        (void)snprintf(call, sizeof call, "the reduction of unit %u", event->unit);
    } else if (event->call == RECORD_GATHER) {
        (void)snprintf(call, sizeof call, "the gather of unit %u into slot %u", event->unit, event->slot);
    }
    if (event->slot != RECORD_STORE) {
        (void)snprintf(place, sizeof place, "in slot %u", event->slot);
    }
    switch ((enum record_kind)event->kind) {
    case RECORD_CALL:
        (void)snprintf(text, size, "comes to %s, call %u of %s", call, event->number, groups[event->group]);
        return;
    case RECORD_RETURN:
        (void)snprintf(text, size, "leaves %s, call %u of %s", call, event->number, groups[event->group]);
        return;
    case RECORD_HOLD:
        (void)snprintf(text, size, "begins to read unit %u %s, version %u", event->unit, place, event->version);
        return;
    case RECORD_RELEASE:
        (void)snprintf(text, size, "has read unit %u %s", event->unit, place);
        return;
    case RECORD_WRITE_FIRST:
        (void)snprintf(text, size, "writes half of its part of unit %u", event->unit);
        return;
    case RECORD_WRITE_LAST:
        (void)snprintf(text, size, "has written its part of unit %u", event->unit);
        return;
    }
}
