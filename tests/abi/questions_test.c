/* Questions: what gives a value and no code. They stand in sentences about failures, as in
 * printf("rank %u: %s", muster_group_rank(group), muster_detail()): whatever they are asked, the detail stays. */
#include <muster/muster.h>

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SENTENCE "rank 3 has left"

static struct muster_group *group;
static struct muster_ddp *ddp;
static struct muster_fsdp *fsdp;
static struct muster_optimizer *optimizer;
static struct muster_sampler *sampler;

/* ASKS(name, calls ...): good and bad ones. */
#define ASKS(name, ...)                                                                                                \
    static void ask_##name(void) {                                                                                     \
        (void)(__VA_ARGS__);                                                                                           \
    }
ASKS(muster_group_rank, muster_group_rank(group), muster_group_rank(NULL))
ASKS(muster_group_size, muster_group_size(group), muster_group_size(NULL))
ASKS(muster_group_name, muster_group_name(group), muster_group_name(NULL))
ASKS(muster_group_root_rank, muster_group_root_rank(NULL, 0), muster_group_root_rank(group, 7))
ASKS(muster_group_host_count, muster_group_host_count(group), muster_group_host_count(NULL))
ASKS(muster_group_host_of, muster_group_host_of(NULL, 0), muster_group_host_of(group, 7))
ASKS(muster_group_local_rank, muster_group_local_rank(group), muster_group_local_rank(NULL))
ASKS(muster_group_local_size, muster_group_local_size(group), muster_group_local_size(NULL))
ASKS(muster_group_engine, muster_group_engine(group), muster_group_engine(NULL))
ASKS(muster_group_engine_reason, muster_group_engine_reason(group), muster_group_engine_reason(NULL))
ASKS(muster_ddp_hook_bfloat16, muster_ddp_hook_bfloat16())
ASKS(muster_ddp_hook_float16, muster_ddp_hook_float16())
ASKS(muster_ddp_gradient, muster_ddp_gradient(ddp, 0), muster_ddp_gradient(ddp, 7), muster_ddp_gradient(NULL, 0))
ASKS(muster_ddp_was_used, muster_ddp_was_used(ddp, 0), muster_ddp_was_used(ddp, 7), muster_ddp_was_used(NULL, 0))
ASKS(muster_fsdp_range_count, muster_fsdp_range_count(fsdp), muster_fsdp_range_count(NULL))
ASKS(muster_fsdp_offset, muster_fsdp_offset(fsdp, 0), muster_fsdp_offset(fsdp, 7), muster_fsdp_offset(NULL, 0))
ASKS(muster_fsdp_keep_note, muster_fsdp_keep_note(fsdp), muster_fsdp_keep_note(NULL))
ASKS(muster_optimizer_learning_rate, muster_optimizer_learning_rate(optimizer), muster_optimizer_learning_rate(NULL))
ASKS(muster_optimizer_group_learning_rate, muster_optimizer_group_learning_rate(optimizer, 7),
     muster_optimizer_group_learning_rate(NULL, 0))
ASKS(muster_optimizer_tensor_count, muster_optimizer_tensor_count(optimizer), muster_optimizer_tensor_count(NULL))
ASKS(muster_clip_scale, muster_clip_scale(-1, -1))
ASKS(muster_sampler_epoch, muster_sampler_epoch(sampler), muster_sampler_epoch(NULL))
ASKS(muster_sampler_consumed, muster_sampler_consumed(sampler), muster_sampler_consumed(NULL))
ASKS(muster_sampler_left, muster_sampler_left(sampler), muster_sampler_left(NULL))
ASKS(muster_state_block_data, muster_state_block_data(NULL, 0))
ASKS(muster_state_note, muster_state_note(NULL))
ASKS(muster_state_outlives, muster_state_outlives())
ASKS(muster_state_bytes, muster_state_bytes(NULL))
ASKS(muster_state_background_bytes, muster_state_background_bytes(NULL))
ASKS(muster_store_port, muster_store_port(NULL))
ASKS(muster_trace_enabled, muster_trace_enabled())
ASKS(muster_type_bytes, muster_type_bytes((enum muster_type)99))
ASKS(muster_type_name, muster_type_name((enum muster_type)99))
ASKS(muster_reduction_name, muster_reduction_name((enum muster_reduction)99))
ASKS(muster_version_text, muster_version_text())
ASKS(muster_strerror, muster_strerror(99))
ASKS(muster_detail, muster_detail())
ASKS(muster_work_done, muster_work_done(NULL))

#define QUESTION(name)                                                                                                 \
    { #name, ask_##name }
static const struct {
    const char *name;
    void (*ask)(void);
} questions[] = {
    QUESTION(muster_group_rank),
    QUESTION(muster_group_size),
    QUESTION(muster_group_name),
    QUESTION(muster_group_root_rank),
    QUESTION(muster_group_host_count),
    QUESTION(muster_group_host_of),
    QUESTION(muster_group_local_rank),
    QUESTION(muster_group_local_size),
    QUESTION(muster_group_engine),
    QUESTION(muster_group_engine_reason),
    QUESTION(muster_ddp_hook_bfloat16),
    QUESTION(muster_ddp_hook_float16),
    QUESTION(muster_ddp_gradient),
    QUESTION(muster_ddp_was_used),
    QUESTION(muster_fsdp_range_count),
    QUESTION(muster_fsdp_offset),
    QUESTION(muster_fsdp_keep_note),
    QUESTION(muster_optimizer_learning_rate),
    QUESTION(muster_optimizer_group_learning_rate),
    QUESTION(muster_optimizer_tensor_count),
    QUESTION(muster_clip_scale),
    QUESTION(muster_sampler_epoch),
    QUESTION(muster_sampler_consumed),
    QUESTION(muster_sampler_left),
    QUESTION(muster_state_block_data),
    QUESTION(muster_state_note),
    QUESTION(muster_state_outlives),
    QUESTION(muster_state_bytes),
    QUESTION(muster_state_background_bytes),
    QUESTION(muster_store_port),
    QUESTION(muster_trace_enabled),
    QUESTION(muster_type_bytes),
    QUESTION(muster_type_name),
    QUESTION(muster_reduction_name),
    QUESTION(muster_version_text),
    QUESTION(muster_strerror),
    QUESTION(muster_detail),
    QUESTION(muster_work_done),
};
enum { QUESTION_COUNT = sizeof questions / sizeof *questions };

static void leave_the_detail_alone(void **state) {
    (void)state;
    struct muster_failure failure;
    (void)setenv("MUSTER_HELD_SOCKET", "/no/agent/here", 1); /* for muster_state_outlives() */
    for (int i = 0; i < QUESTION_COUNT; i++) {
        (void)muster_fail(MUSTER_EPEER, SENTENCE);
        questions[i].ask();
        (void)muster_last_failure(&failure);
        if (strcmp(muster_detail(), SENTENCE) != 0 || failure.cause != MUSTER_EPEER) {
            fail_msg("%s: '%s', %d", questions[i].name, muster_detail(), failure.cause);
        }
    }
    (void)unsetenv("MUSTER_HELD_SOCKET");
}

/* Numbers have a code, too: where they are given, they leave the detail alone as well. */
static void so_do_numbers(void **state) {
    (void)state;
    struct muster_ddp_statistics of_ddp;
    struct muster_fsdp_statistics of_fsdp;
    struct muster_fsdp_memory memory;
    struct muster_fsdp_range range;
    struct muster_failure failure;
    struct muster_background_statistics background;
    struct muster_fsdp_copy_statistics copies;
    (void)muster_fail(MUSTER_EPEER, SENTENCE);
    assert_int_equal(muster_ddp_statistics(ddp, &of_ddp), 0);
    assert_int_equal(muster_fsdp_statistics(fsdp, &of_fsdp), 0);
    assert_int_equal(muster_fsdp_memory(fsdp, &memory), 0);
    assert_int_equal(muster_fsdp_range(fsdp, 0, &range), 0);
    assert_int_equal(muster_fsdp_background_statistics(fsdp, &background), 0);
    assert_int_equal(muster_fsdp_copy_statistics(fsdp, &copies), 0);
    assert_int_equal(muster_group_status(group), 0);
    assert_int_equal(muster_group_failure(group, &failure), 0);
    assert_string_equal(muster_detail(), SENTENCE);
}

/* ---- are these all? ---- */

static bool is_known(const char *name, size_t length) {
    for (int i = 0; i < QUESTION_COUNT; i++) {
        if (strlen(questions[i].name) == length && strncmp(questions[i].name, name, length) == 0) {
            return true;
        }
    }
    return length == strlen("muster_sampler_take") && strncmp(name, "muster_sampler_take", length) == 0; /* takes */
}

/* A declaration that begins a line and gives something else than int or nothing. */
static const char *question_of(const char *line) {
    static const char *const others[] = {"int ", "void ", "static ", "typedef ", "#", " ", "/"};
    const char *name = strstr(line, "muster_"), *bracket = name ? strchr(name, '(') : NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strncmp(line, others[i], strlen(others[i])) == 0 && strncmp(line, "void *", 6) != 0) {
            return NULL;
        }
    }
    while (bracket && name + strcspn(name, " (") < bracket) { /* "struct muster_x *muster_y(" */
        name = strstr(name + 1, "muster_");
    }
    return bracket ? name : NULL;
}

static void these_are_all(void **state) {
    (void)state;
    int found = 0;
    DIR *folder = opendir(HEADERS);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[4096], line[512];
        (void)snprintf(path, sizeof path, "%s/%s", HEADERS, entry->d_name);
        FILE *file = strstr(entry->d_name, ".h") ? fopen(path, "r") : NULL;
        while (file && fgets(line, sizeof line, file)) {
            const char *name = question_of(line);
            if (name && !is_known(name, strcspn(name, "("))) {
                fail_msg("%s: not in the table: %s", entry->d_name, line);
            }
            found += name ? 1 : 0;
        }
        if (file) {
            (void)fclose(file);
        }
    }
    (void)closedir(folder);
    assert_true(found >= QUESTION_COUNT);
}

static int make(void **state) {
    (void)state;
    static float data[4];
    static const struct muster_ddp_parameter parameters[] = {{"w", MUSTER_FLOAT32, 4, data, NULL}};
    static const struct muster_fsdp_parameter sharded[] = {{.name = "w", .count = 4}};
    static const struct muster_fsdp_unit units[] = {{"u", sharded, 1}};
    static const struct muster_optimizer_parameter learning[] = {{"w", data, 4}};
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    options.sample_count = 4;
    options.world_size = 1;
    int code = muster_group_create_env(NULL, &group);
    code = code ? code : muster_ddp_create(group, parameters, 1, NULL, 0, NULL, &ddp);
    code = code ? code : muster_fsdp_create(group, units, 1, NULL, &fsdp);
    code = code ? code : muster_optimizer_create_sgd(learning, 1, NULL, &optimizer);
    return code ? code : muster_sampler_create(&options, &sampler);
}

static int unmake(void **state) {
    (void)state;
    muster_sampler_free(sampler);
    muster_optimizer_free(optimizer);
    muster_fsdp_free(fsdp);
    muster_ddp_free(ddp);
    muster_group_free(group);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leave_the_detail_alone),
        cmocka_unit_test(so_do_numbers),
        cmocka_unit_test(these_are_all),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
