/* Worker environment and argv against what torchrun 2.13 hands to its workers. */
#include "agent/launch/environment.h"
#include "base/hold.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/status.h>

static char role[] = "trainer";
static char run_id[] = "job7";
static char handled[] = "SIGTERM,SIGINT";

static struct launch_config config_of(uint32_t nproc) {
    return (struct launch_config){
        .nproc = nproc, .max_restarts = 3, .role = role, .run_id = run_id, .signals_to_handle = handled};
}

static const struct rdzv_world world = {.round = 4,
                                        .group_rank = 1,
                                        .group_world_size = 2,
                                        .base_global_rank = 4,
                                        .global_world_size = 6,
                                        .base_role_rank = 4,
                                        .role_world_size = 6,
                                        .master_addr = "10.0.0.1",
                                        .master_port = 29511,
                                        .use_agent_store = true};

static const char *value_of(const struct launch_strings *list, const char *name) {
    const char *found = NULL;
    for (size_t i = 0; i < list->count; i++) {
        if (strncmp(list->items[i], name, strlen(name)) == 0 && list->items[i][strlen(name)] == '=') {
            assert_null(found); /* each name once */
            found = list->items[i] + strlen(name) + 1;
        }
    }
    return found;
}

static void all_variables_are_there(void **state) {
    (void)state;
    struct launch_config config = config_of(2);
    config.omp_defaulted = true;
    struct environment_worker worker = {.local_rank = 1, .restart_count = 2, .error_file = "/logs/error.json"};
    const char *inherited[] = {"PATH=/bin", "RANK=99", "MASTER_ADDR=old", "HOME=/root", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    const char *want[][2] = {{"PATH", "/bin"},
                             {"HOME", "/root"},
                             {"RANK", "5"},
                             {"LOCAL_RANK", "1"},
                             {"GROUP_RANK", "1"},
                             {"ROLE_RANK", "5"},
                             {"WORLD_SIZE", "6"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"ROLE_WORLD_SIZE", "6"},
                             {"ROLE_NAME", "trainer"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29511"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_MAX_RESTARTS", "3"},
                             {"TORCHELASTIC_RUN_ID", "job7"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
                             {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
                             {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                             {"OMP_NUM_THREADS", "1"}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_non_null(value_of(&out, want[i][0]));
        assert_string_equal(value_of(&out, want[i][0]), want[i][1]);
    }
    assert_int_equal(out.count, sizeof want / sizeof want[0]);
    assert_null(out.items[out.count]);
    launch_strings_done(&out);
}

static void maximum_of_restarts_is_the_jobs_where_it_counts(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = ""};
    const char *inherited[] = {NULL};
    struct rdzv_world counting = world;
    counting.job_counts_restarts = true;
    counting.max_restarts = 7;
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &counting, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "TORCHELASTIC_MAX_RESTARTS"), "7");
    launch_strings_done(&out);
}

static void stop_path_is_told_where_there_is_one(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = "", .stop_path = "/tmp/muster_stop_1"};
    const char *inherited[] = {"MUSTER_STOP_PATH=/tmp/outer", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "MUSTER_STOP_PATH"), "/tmp/muster_stop_1");
    launch_strings_done(&out);
}

/* Workers would stop, and exit with 0, when another job is asked to. */
static void stop_path_is_never_an_outer_jobs(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = ""};
    const char *inherited[] = {"MUSTER_STOP_PATH=/tmp/outer", "HOME=/root", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_null(value_of(&out, "MUSTER_STOP_PATH"));
    assert_string_equal(value_of(&out, "HOME"), "/root");
    launch_strings_done(&out);
}

static void socket_of_held_memory_is_never_an_outer_jobs(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = "", .held_socket = "muster-held-1"};
    const char *inherited[] = {"MUSTER_HELD_SOCKET=muster-held-outer", "HOME=/root", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "MUSTER_HELD_SOCKET"), "muster-held-1");
    launch_strings_done(&out);
    assert_int_equal(environment_build_early(&config, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "MUSTER_HELD_SOCKET"), "muster-held-1");
    launch_strings_done(&out);
    worker.held_socket = NULL;
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_null(value_of(&out, "MUSTER_HELD_SOCKET"));
    assert_string_equal(value_of(&out, "HOME"), "/root");
    assert_null(out.items[out.count]);
    launch_strings_done(&out);
}

static void failure_of_the_attempt_before_is_never_an_outer_jobs(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = "", .failed_by = "exit 3"};
    const char *inherited[] = {"MUSTER_FAILED_BY=signal 11", "HOME=/root", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "MUSTER_FAILED_BY"), "exit 3");
    launch_strings_done(&out);
    worker.failed_by = NULL;
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_null(value_of(&out, "MUSTER_FAILED_BY"));
    assert_string_equal(value_of(&out, "HOME"), "/root");
    launch_strings_done(&out);
}

static void another_hold_timeout_is_told(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = ""};
    const char *inherited[] = {NULL};
    struct launch_strings out = {0};
    config.rdzv.conf.hold_timeout_ms = HOLD_DEFAULT_MS;
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_null(value_of(&out, "MUSTER_HOLD_TIMEOUT"));
    launch_strings_done(&out);
    config.rdzv.conf.hold_timeout_ms = 12000;
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "MUSTER_HOLD_TIMEOUT"), "12");
    launch_strings_done(&out);
}

static void key_of_losses_is_told_where_survivors_go_on(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = ""};
    const char *inherited[] = {"MUSTER_LOST_KEY=muster/lost/9", NULL};
    struct rdzv_world third = world;
    struct launch_strings out = {0};
    third.round = 3;
    assert_int_equal(environment_build(&config, &third, &worker, inherited, &out), 0);
    assert_null(value_of(&out, "MUSTER_LOST_KEY")); /* an outer job's */
    launch_strings_done(&out);
    config.survivors_continue = true;
    assert_int_equal(environment_build(&config, &third, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "MUSTER_LOST_KEY"), "muster/lost/3");
    launch_strings_done(&out);
    assert_int_equal(environment_build_early(&config, &worker, inherited, &out), 0);
    assert_null(value_of(&out, "MUSTER_LOST_KEY"));
    launch_strings_done(&out);
}

/* What imports may look at is there; what is not known yet is not, wherever it would come from. */
static void early_environment_has_nothing_of_a_world(void **state) {
    (void)state;
    struct launch_config config = config_of(2);
    config.virtual_local_rank = config.omp_defaulted = true;
    struct environment_worker worker = {.local_rank = 1, .error_file = "/logs/error.json"};
    const char *inherited[] = {"RANK=99", "CUDA_VISIBLE_DEVICES=4,5", "MASTER_ADDR=old", "HOME=/root", NULL};
    static const char *const absent[] = {"RANK",
                                         "GROUP_RANK",
                                         "ROLE_RANK",
                                         "WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TORCHELASTIC_RESTART_COUNT",
                                         "TORCHELASTIC_ERROR_FILE"};
    struct launch_strings out = {0};
    assert_int_equal(environment_build_early(&config, &worker, inherited, &out), 0);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        assert_null(value_of(&out, absent[i]));
    }
    assert_string_equal(value_of(&out, "LOCAL_RANK"), "0");
    assert_string_equal(value_of(&out, "CUDA_VISIBLE_DEVICES"), "5");
    assert_string_equal(value_of(&out, "OMP_NUM_THREADS"), "1");
    assert_string_equal(value_of(&out, "HOME"), "/root");
    assert_string_equal(value_of(&out, "LOCAL_WORLD_SIZE"), "2");
    assert_null(out.items[out.count]);
    launch_strings_done(&out);
}

static void inherited_settings_are_kept(void **state) {
    (void)state;
    struct launch_config config = config_of(1);
    struct environment_worker worker = {.local_rank = 0, .error_file = ""};
    const char *inherited[] = {"TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "OMP_NUM_THREADS=7", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
    assert_string_equal(value_of(&out, "OMP_NUM_THREADS"), "7");
    assert_string_equal(value_of(&out, "TORCHELASTIC_ERROR_FILE"), "");
    launch_strings_done(&out);
}

static void virtual_rank_picks_one_device(void **state) {
    (void)state;
    struct launch_config config = config_of(3);
    config.virtual_local_rank = true;
    const char *inherited[] = {"CUDA_VISIBLE_DEVICES=4, 7 ", NULL};
    const char *unset[] = {NULL};
    struct environment_worker worker = {.local_rank = 1, .error_file = ""};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "CUDA_VISIBLE_DEVICES"), "7");
    assert_string_equal(value_of(&out, "LOCAL_RANK"), "0");
    assert_string_equal(value_of(&out, "RANK"), "5");
    launch_strings_done(&out);

    assert_int_equal(environment_build(&config, &world, &worker, unset, &out), 0);
    assert_string_equal(value_of(&out, "CUDA_VISIBLE_DEVICES"), "1");
    launch_strings_done(&out);

    const char *rocm[] = {"CUDA_VISIBLE_DEVICES=0,1", "HIP_VISIBLE_DEVICES=6,3", NULL};
    assert_int_equal(environment_build(&config, &world, &worker, rocm, &out), 0);
    assert_string_equal(value_of(&out, "CUDA_VISIBLE_DEVICES"), "3");
    assert_string_equal(value_of(&out, "HIP_VISIBLE_DEVICES"), "3");
    launch_strings_done(&out);
    const char *empty[] = {"CUDA_VISIBLE_DEVICES=0,1", "HIP_VISIBLE_DEVICES=", NULL};
    assert_int_equal(environment_build(&config, &world, &worker, empty, &out), 0);
    assert_string_equal(value_of(&out, "CUDA_VISIBLE_DEVICES"), "1");
    assert_string_equal(value_of(&out, "HIP_VISIBLE_DEVICES"), "");
    launch_strings_done(&out);

    worker.local_rank = 2;
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "CUDA_VISIBLE_DEVICES=4, 7"));
    launch_strings_done(&out);
    assert_int_equal(environment_build(&config, &world, &worker, rocm, &out), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "GPUs in HIP_VISIBLE_DEVICES=6,3"));
    launch_strings_done(&out);
}

static void arguments_are_substituted_like_a_template(void **state) {
    (void)state;
    static char *command[] = {"$local_rank/bin",
                              "a${local_rank}b",
                              "$local_rank",
                              "$$local_rank",
                              "$LOCAL_RANK",
                              "${local_rank",
                              "${other}",
                              "$local_rank_x",
                              "100$",
                              "$local_rank-$local_rank",
                              ""};
    static const char *want[] = {"$local_rank/bin",
                                 "a12b",
                                 "12",
                                 "$local_rank",
                                 "$LOCAL_RANK",
                                 "${local_rank",
                                 "${other}",
                                 "$local_rank_x",
                                 "100$",
                                 "12-12",
                                 ""};
    struct launch_config config = config_of(16);
    config.command = (struct launch_strings){.items = command, .count = sizeof command / sizeof command[0]};
    struct launch_strings out = {0};
    assert_int_equal(environment_command(&config, 12, &out), 0);
    assert_int_equal(out.count, config.command.count);
    for (size_t i = 0; i < out.count; i++) {
        assert_string_equal(out.items[i], want[i]);
    }
    assert_null(out.items[out.count]);
    launch_strings_done(&out);
}

/* What an outer starter of MPI has said goes; its users' own settings stay. */
static void mpi_is_told_anew(void **state) {
    (void)state;
    struct launch_config config = config_of(2);
    char *items[] = {(char[]){"PMI_FD=3"}, (char[]){"PMI_RANK=5"}, (char[]){"PMIX_RANK=5"}, NULL};
    const struct launch_strings mpi = {.items = items, .count = 3};
    struct environment_worker worker = {.local_rank = 1, .error_file = "", .mpi = &mpi};
    const char *inherited[] = {"PMI_RANK=0",
                               "PMI2_X=1",
                               "PMIX_NAMESPACE=outer",
                               "OMPI_COMM_WORLD_RANK=0",
                               "OMPI_MCA_ess=env",
                               "OMPI_MCA_btl=tcp",
                               "PMIX=1",
                               NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "PMI_FD"), "3");
    assert_string_equal(value_of(&out, "PMI_RANK"), "5");
    assert_string_equal(value_of(&out, "PMIX_RANK"), "5");
    assert_string_equal(value_of(&out, "OMPI_MCA_btl"), "tcp");
    assert_string_equal(value_of(&out, "PMIX"), "1");
    assert_null(value_of(&out, "PMI2_X"));
    assert_null(value_of(&out, "PMIX_NAMESPACE"));
    assert_null(value_of(&out, "OMPI_COMM_WORLD_RANK"));
    assert_null(value_of(&out, "OMPI_MCA_ess"));
    assert_string_equal(value_of(&out, "RANK"), "5");
    assert_null(out.items[out.count]);
    launch_strings_done(&out);
}

static void without_mpi_its_variables_stay(void **state) {
    (void)state;
    struct launch_config config = config_of(2);
    struct environment_worker worker = {.local_rank = 1, .error_file = ""};
    const char *inherited[] = {"PMI_RANK=0", "OMPI_MCA_ess=env", NULL};
    struct launch_strings out = {0};
    assert_int_equal(environment_build(&config, &world, &worker, inherited, &out), 0);
    assert_string_equal(value_of(&out, "PMI_RANK"), "0");
    assert_string_equal(value_of(&out, "OMPI_MCA_ess"), "env");
    launch_strings_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_variables_are_there),
        cmocka_unit_test(mpi_is_told_anew),
        cmocka_unit_test(without_mpi_its_variables_stay),
        cmocka_unit_test(maximum_of_restarts_is_the_jobs_where_it_counts),
        cmocka_unit_test(stop_path_is_told_where_there_is_one),
        cmocka_unit_test(stop_path_is_never_an_outer_jobs),
        cmocka_unit_test(socket_of_held_memory_is_never_an_outer_jobs),
        cmocka_unit_test(failure_of_the_attempt_before_is_never_an_outer_jobs),
        cmocka_unit_test(another_hold_timeout_is_told),
        cmocka_unit_test(key_of_losses_is_told_where_survivors_go_on),
        cmocka_unit_test(early_environment_has_nothing_of_a_world),
        cmocka_unit_test(inherited_settings_are_kept),
        cmocka_unit_test(virtual_rank_picks_one_device),
        cmocka_unit_test(arguments_are_substituted_like_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
