/* The numbers of `muster fsdp plan`, what it advises, and the models that it takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/folder_test_support.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/fsdp/fsdp_report.h"

static const char gpt2[] = "12,12,768,1024,50257";

static struct fsdp_question question_of(uint32_t hosts, uint32_t ranks) {
    return (struct fsdp_question){
        .hosts = hosts, .ranks_per_host = ranks, .states = 2, .options = MUSTER_FSDP_OPTIONS_INIT};
}

static void a_gpt_has_the_shapes_of_mingpt(void **state) {
    (void)state;
    struct fsdp_model model;
    size_t all = 0, learning = 0;
    assert_int_equal(fsdp_model_gpt(gpt2, &model), 0);
    assert_int_equal(fsdp_model_count(&model, &all, &learning), 0);
    assert_int_equal(model.unit_count, 14);
    assert_int_equal(all, 163037184); /* minGPT's gpt2, whose last layer has weights of its own */
    assert_int_equal(learning, all);
    assert_string_equal(model.units[0].name, "embedding");
    assert_string_equal(model.units[12].name, "h.11");
    assert_string_equal(model.units[12].parameters[2].name, "h.11.attn.c_attn.weight");
    assert_int_equal(model.units[12].parameters[2].count, 3 * 768 * 768);
    assert_string_equal(model.units[13].name, "final");
    fsdp_model_free(&model);
}

static void bad_gpts_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "12",
                                        "12,12,768,1024",
                                        "12,12,768,1024,50257,1",
                                        "12,12,768,1024,50257,",
                                        "0,12,768,1024,50257",
                                        "-1,12,768,1024,50257",
                                        "12,12,767,1024,50257",
                                        "12,12,768,1024,x",
                                        "12,12,99999999999999999999,1024,50257",
                                        "5000,12,768,1024,50257",
                                        "12,12,768,1024,16777217"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct fsdp_model model;
        assert_int_equal(fsdp_model_gpt(texts[i], &model), MUSTER_EINVAL);
        assert_true(strstr(muster_detail(), "--gpt") != NULL);
    }
}

/* What each side needs, from the counts alone. */
static void numbers_are_those_of_the_formulas(void **state) {
    (void)state;
    struct fsdp_model model;
    struct fsdp_report report;
    struct fsdp_question question = question_of(1, 4);
    const uint64_t bytes = UINT64_C(163037184) * 4, largest = UINT64_C(39383808) * 4; /* wte and wpe */
    assert_int_equal(fsdp_model_gpt(gpt2, &model), 0);
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_true(report.fsdp.parameter_bytes == bytes && report.fsdp.state_bytes == 2 * bytes);
    assert_true(report.fsdp.copy_bytes == 0 && report.fsdp.gathered_bytes == 0);
    assert_true(report.fsdp.gradient_bytes == 2 * largest);
    assert_true(report.fsdp.shard_bytes >= bytes / 4 && report.fsdp.shard_bytes < bytes / 4 + 14 * 4 * 64);
    assert_true(report.fsdp_bytes == 3 * bytes + 4 * (report.fsdp.shard_bytes + 2 * largest));
    assert_true(report.ddp_bytes == 4 * 4 * bytes);
    assert_int_equal(report.largest, 0);
    question.hosts = 2;
    question.options.compute_type = MUSTER_BFLOAT16;
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_true(report.fsdp.gathered_bytes == 3 * largest / 2); /* three slots of 2 bytes an element */
    assert_true(report.fsdp.parameter_bytes < bytes / 2 + 14 * 64 && report.ddp_bytes == 4 * 4 * bytes);
    fsdp_model_free(&model);
}

static bool advises(const struct fsdp_report *report, const char *change) {
    for (size_t i = 0; i < report->advice_count; i++) {
        if (strcmp(report->advice[i].change, change) == 0) {
            return true;
        }
    }
    return false;
}

/* Each change is one that fits, and no smaller number of hosts does. */
static void what_would_fit_fits(void **state) {
    (void)state;
    struct fsdp_model model;
    struct fsdp_report report, other;
    struct fsdp_question question = question_of(1, 4);
    question.memory_bytes = UINT64_C(3200) << 20;
    assert_int_equal(fsdp_model_gpt(gpt2, &model), 0);
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_true(report.fsdp_bytes > question.memory_bytes && report.advice_count > 0);
    assert_true(advises(&report, "--ranks-per-host 2"));
    for (size_t i = 0; i < report.advice_count; i++) {
        assert_true(report.advice[i].bytes <= question.memory_bytes);
    }
    for (uint32_t hosts = 2; hosts < 10; hosts++) {
        char change[32];
        struct fsdp_question more = question;
        more.hosts = hosts;
        (void)str_format(change, sizeof change, "--hosts %u", hosts);
        assert_int_equal(fsdp_report_make(&model, &more, &other), 0);
        assert_int_equal(advises(&report, change), other.fsdp_bytes <= question.memory_bytes);
        if (other.fsdp_bytes <= question.memory_bytes) {
            break;
        }
    }
    question.memory_bytes = 1000;
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_int_equal(report.advice_count, 0);
    question.memory_bytes = UINT64_C(1) << 40;
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_int_equal(report.advice_count, 0); /* it fits as it is */
    fsdp_model_free(&model);
}

static void options_between_hosts_are_advised(void **state) {
    (void)state;
    struct fsdp_model model;
    struct fsdp_report report;
    struct fsdp_question question = question_of(4, 1);
    question.options.reshard_after_forward = false;
    question.memory_bytes = UINT64_C(1700) << 20;
    assert_int_equal(fsdp_model_gpt(gpt2, &model), 0);
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_true(report.fsdp_bytes > question.memory_bytes && advises(&report, "without --keep-gathered"));
    question.options.reshard_after_forward = true;
    question.options.sharding = MUSTER_FSDP_HYBRID;
    assert_int_equal(fsdp_report_make(&model, &question, &report), 0);
    assert_true(report.fsdp_bytes > question.memory_bytes && advises(&report, "without --hybrid"));
    fsdp_model_free(&model);
}

/* ---- models from files ---- */

static char folder[] = "/tmp/muster-fsdp-report-XXXXXX";

static int read_text(const char *text, struct fsdp_model *out) {
    char path[128];
    (void)str_format(path, sizeof path, "%s/model", folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    return fsdp_model_read(path, out);
}

static void a_file_describes_any_model(void **state) {
    (void)state;
    struct fsdp_model model;
    size_t all = 0, learning = 0;
    assert_int_equal(read_text("[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\", \"count\": 100, \"block\": 10},"
                               "{\"name\": \"b\", \"count\": 7, \"frozen\": true}]},"
                               "{\"parameters\": [{\"count\": 3, \"name\": \"c\"}], \"name\": \"z\"}]",
                               &model),
                     0);
    assert_int_equal(fsdp_model_count(&model, &all, &learning), 0);
    assert_int_equal(all, 110);
    assert_int_equal(learning, 103);
    assert_int_equal(model.units[0].parameters[0].block, 10);
    assert_string_equal(model.units[1].name, "z");
    assert_string_equal(model.units[1].parameters[0].name, "c");
    fsdp_model_free(&model);
}

static void bad_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } files[] = {
        {"", "line 1"},
        {"[", "line 1"},
        {"{}", "list of units"},
        {"[]", "list of units"},
        {"[1]", "unit 0: an object"},
        {"[{\"name\": \"a\"}]", "unit 0: an object"},
        {"[{\"name\": \"a\", \"parameters\": {}}]", "unit 0: an object"},
        {"[{\"name\": \"a\", \"parameters\": [], \"more\": 1}]", "unit 0: an object"},
        {"[{\"name\": \"a\", \"parameters\": [3]}]", "parameter 0: an object"},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\", \"count\": -1}]}]", "\"count\" is unknown or"},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\", \"count\": 1.5}]}]", "\"count\" is unknown or"},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": 7, \"count\": 1}]}]", "\"name\" is unknown or"},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\", \"shape\": [1]}]}]", "\"shape\" is unknown or"},
        {"[{\"name\": \"a\", \"name\": \"b\", \"parameters\": []}]", "duplicate"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct fsdp_model model;
        assert_int_equal(read_text(files[i].text, &model), MUSTER_EINVAL);
        if (!strstr(muster_detail(), files[i].says)) {
            fail_msg("%s: %s", files[i].text, muster_detail());
        }
        assert_null(model.units);
    }
}

/* Well-formed, but no model: the library says so. */
static void impossible_models_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
    } files[] = {
        {"[{\"name\": \"a\", \"parameters\": []}]", MUSTER_EINVAL},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\"}]}]", MUSTER_EINVAL},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\", \"count\": 10, \"block\": 3}]}]", MUSTER_EINVAL},
        {"[{\"name\": \"a\", \"parameters\": [{\"name\": \"w\", \"count\": 9223372036854775807}]}]", MUSTER_ELIMIT},
    };
    struct fsdp_question question = question_of(2, 2);
    struct fsdp_report report;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct fsdp_model model;
        assert_int_equal(read_text(files[i].text, &model), 0);
        assert_int_equal(fsdp_report_make(&model, &question, &report), files[i].code);
        fsdp_model_free(&model);
    }
}

static void too_many_ranks_are_refused(void **state) {
    (void)state;
    struct fsdp_model model;
    struct fsdp_report report;
    const struct fsdp_question too_many = question_of(256, 257), too_fine = question_of(65536, 1), none = {0};
    assert_int_equal(fsdp_model_gpt("100,1,8,8,8", &model), 0);
    assert_int_equal(fsdp_report_make(&model, &too_many, &report), MUSTER_EINVAL);
    assert_int_equal(fsdp_report_make(&model, &none, &report), MUSTER_EINVAL);
    assert_int_equal(fsdp_report_make(&model, &too_fine, &report), MUSTER_ELIMIT);
    assert_true(strstr(muster_detail(), "102 units on 65536 hosts of 1 ranks") != NULL);
    fsdp_model_free(&model);
    assert_int_equal(fsdp_model_gpt("1,1,16777216,1,1", &model), 0);
    const struct fsdp_question two = question_of(1, 2);
    assert_int_equal(fsdp_report_make(&model, &two, &report), MUSTER_ELIMIT);
    fsdp_model_free(&model);
}

/* ---- how it is written ---- */

static char *written(int (*write)(struct buf *out, const struct fsdp_model *model, const struct fsdp_question *question,
                                  const struct fsdp_report *report),
                     const struct fsdp_model *model, const struct fsdp_question *question) {
    struct fsdp_report report;
    struct buf out;
    buf_init(&out, FSDP_REPORT_BYTES_MAX);
    assert_int_equal(fsdp_report_make(model, question, &report), 0);
    assert_int_equal(write(&out, model, question, &report), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    char *text = strdup((char *)buf_bytes(&out));
    buf_done(&out);
    assert_non_null(text);
    return text;
}

static void a_table_is_for_people(void **state) {
    (void)state;
    struct fsdp_model model;
    struct fsdp_question question = question_of(1, 2);
    assert_int_equal(read_text("[{\"name\": \"a\\u001b[31m\", \"parameters\": [{\"name\": \"w\", \"count\": 1048576},"
                               "{\"name\": \"f\", \"count\": 1048576, \"frozen\": true}]}]",
                               &model),
                     0);
    char *text = written(fsdp_report_text, &model, &question);
    assert_string_equal(text, "2.1 million parameters, of which 1.0 million learn, in 1 unit; the largest, a?[31m, has "
                              "2.1 million\n"
                              "1 host of 2 ranks, 2 values of the optimizer for each parameter\n"
                              "\n"
                              "                                             FSDP          DDP\n"
                              "shared by the ranks of a host\n"
                              "  parameters                              8.0 MiB            -\n"
                              "  their bfloat16 copy                           -            -\n"
                              "  optimizer                               8.0 MiB            -\n"
                              "  units gathered from other hosts               -            -\n"
                              "of each rank\n"
                              "  parameters                                    -      8.0 MiB\n"
                              "  optimizer                                     -      8.0 MiB\n"
                              "  gradients                               2.0 MiB      4.0 MiB\n"
                              "  gradients of units under way            4.0 MiB            -\n"
                              "in all\n"
                              "  a host                                 28.0 MiB     40.0 MiB\n"
                              "  a rank, with its share of the host     14.0 MiB     20.0 MiB\n"
                              "on request, besides\n"
                              "  a host: state kept in memory           16.0 MiB            -\n"
                              "  a rank: saves in the background         8.0 MiB            -\n"
                              "\n"
                              "Activations, inputs and the program itself come on top.\n");
    free(text);
    question.memory_bytes = 25 << 20;
    text = written(fsdp_report_text, &model, &question);
    assert_non_null(strstr(text, "\nIt does not fit: FSDP needs 28.0 MiB of the 25.0 MiB of a host.\n"
                                 "It would fit with one of these:\n"));
    assert_non_null(strstr(text, "\n  --states 1 (SGD with momentum)       24.0 MiB a host\n"));
    free(text);
    question.memory_bytes = 1;
    text = written(fsdp_report_text, &model, &question);
    assert_non_null(strstr(text, "No option alone"));
    free(text);
    question.memory_bytes = 64 << 20;
    text = written(fsdp_report_text, &model, &question);
    assert_non_null(strstr(text, "\nIt fits: FSDP needs 28.0 MiB of the 64.0 MiB of a host.\nDDP fits as well"));
    free(text);
    fsdp_model_free(&model);
}

static void json_is_for_programs(void **state) {
    (void)state;
    struct fsdp_model model;
    struct fsdp_question question = question_of(2, 4);
    question.memory_bytes = 1 << 30;
    assert_int_equal(fsdp_model_gpt(gpt2, &model), 0);
    char *text = written(fsdp_report_json, &model, &question);
    json_t *tree = json_loads(text, 0, NULL);
    assert_non_null(tree);
    const json_t *fsdp = json_object_get(tree, "fsdp"), *fit = json_object_get(tree, "fit");
    json_int_t host = json_integer_value(json_object_get(fsdp, "host_bytes"));
    json_int_t rank = json_integer_value(json_object_get(fsdp, "rank_bytes"));
    assert_int_equal(json_integer_value(json_object_get(fsdp, "total_bytes")), host + 4 * rank);
    assert_int_equal(json_integer_value(json_object_get(tree, "parameters")), 163037184);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(tree, "ddp"), "total_bytes")),
                     INT64_C(163037184) * 4 * 4 * 4);
    assert_true(json_is_false(json_object_get(fit, "fsdp_fits")) && json_is_false(json_object_get(fit, "ddp_fits")));
    assert_true(json_is_array(json_object_get(fit, "would_fit")));
    json_decref(tree);
    free(text);
    fsdp_model_free(&model);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return folder_remove(folder) < 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt_has_the_shapes_of_mingpt),
        cmocka_unit_test(bad_gpts_are_refused),
        cmocka_unit_test(numbers_are_those_of_the_formulas),
        cmocka_unit_test(what_would_fit_fits),
        cmocka_unit_test(options_between_hosts_are_advised),
        cmocka_unit_test(a_file_describes_any_model),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(too_many_ranks_are_refused),
        cmocka_unit_test(a_table_is_for_people),
        cmocka_unit_test(json_is_for_programs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
