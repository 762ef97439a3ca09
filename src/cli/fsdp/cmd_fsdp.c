/* `muster fsdp plan`: what a model will need when it is sharded. The model is fsdp_model.c's, the numbers and words are
 * fsdp_report.c's and fsdp_text.c's. */
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/fsdp/fsdp_report.h"

static const char program[] = "muster fsdp";

static const char help_text[] =
    "usage: muster fsdp plan --gpt LAYERS,HEADS,WIDTH,CONTEXT,VOCABULARY [options]\n"
    "       muster fsdp plan --units FILE [options]\n"
    "\n"
    "Prints what a model needs of the memory of a host and of a rank when its parameters,\n"
    "gradients and optimizer are sharded (muster/fsdp.h), next to what it needs when every\n"
    "rank has everything (DDP). Nothing is started.\n"
    "\n"
    "  --gpt LAYERS,HEADS,WIDTH,CONTEXT,VOCABULARY\n"
    "                  a GPT with minGPT's shapes: a unit for the embeddings, one for each\n"
    "                  block, one for what comes last\n"
    "  --units FILE    any model, as JSON: [{\"name\": \"first\", \"parameters\": [{\"name\":\n"
    "                  \"weight\", \"count\": 4096, \"block\": 64, \"frozen\": false}]}]\n"
    "  --hosts N       hosts (default: 1)\n"
    "  --ranks-per-host N\n"
    "                  ranks on each of them (default: 1)\n"
    "  --states N      values that the optimizer keeps for each parameter (default: 2, AdamW)\n"
    "  --bf16          compute with bfloat16 parameters; gradients and their way are bfloat16\n"
    "  --hybrid        shard within a host, every host has everything\n"
    "  --prefetch N    units gathered ahead between hosts, 0 to 8 (default: 1)\n"
    "  --keep-gathered keep gathered units from the forward to the backward pass\n"
    "  --memory SIZE   of a host, such as 8GiB: say whether it fits, and what would make it\n"
    "  --json          one JSON object instead of text\n"
    "  -h, --help      show this text\n"
    "\n"
    "The exit code is 0; with --memory it is 1 when the model does not fit.\n";

struct fsdp_options {
    const char *gpt, *units;
    struct fsdp_question question;
    bool wants_json, wants_help;
};

/* ---- the command line ---- */

static int parse_number(const char *name, const char *text, int64_t least, int64_t most, uint32_t *out) {
    int64_t value;
    if (!str_parse_i64(text, &value) || value < least || value > most) {
        return status_fail(MUSTER_EINVAL, "%s %.100s: a number from %lld to %lld is expected", name, text,
                           (long long)least, (long long)most);
    }
    *out = (uint32_t)value;
    return 0;
}

/* "512", "8G", "7.5GiB": powers of 1024. */
static int parse_memory(const char *text, uint64_t *out) {
    static const char units[] = "KMGTP";
    char digits[32];
    size_t used = strcspn(text, units);
    const char *unit = text[used] != '\0' ? strchr(units, text[used]) : NULL;
    const char *rest = unit ? text + used + 1 : text + used;
    double value = 0, factor = unit ? (double)(UINT64_C(1) << (10 * (unit - units + 1))) : 1;
    bool is_right = used < sizeof digits && (rest[0] == '\0' || strcmp(rest, "iB") == 0);
    if (is_right) {
        memcpy(digits, text, used);
        digits[used] = '\0';
        is_right = str_parse_double(digits, &value) && value * factor >= 1 && value * factor < 9e18;
    }
    *out = is_right ? (uint64_t)(value * factor) : 0;
    return is_right ? 0 : status_fail(MUSTER_EINVAL, "--memory %.100s: a size such as 512M or 8GiB is expected", text);
}

static int parse_flag(const char *word, struct fsdp_options *out) {
    struct muster_fsdp_options *options = &out->question.options;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        out->wants_help = true;
    } else if (strcmp(word, "--json") == 0) {
        out->wants_json = true;
    } else if (strcmp(word, "--bf16") == 0) {
        options->compute_type = options->gradient_type = options->reduce_type = MUSTER_BFLOAT16;
    } else if (strcmp(word, "--hybrid") == 0) {
        options->sharding = MUSTER_FSDP_HYBRID;
    } else if (strcmp(word, "--keep-gathered") == 0) {
        options->reshard_after_forward = false;
    } else {
        return status_fail(MUSTER_EINVAL,
                           "'%.100s' is not understood; --gpt, --units, --hosts, --ranks-per-host, --states, --bf16, "
                           "--hybrid, --prefetch, --keep-gathered, --memory, --json and --help are known",
                           word);
    }
    return 0;
}

static int parse_word(int argc, char **argv, int *at, struct fsdp_options *out) {
    struct fsdp_question *question = &out->question;
    const char *word = argv[*at], *value;
    bool missing = false;
    int code = 0;
    if ((value = cli_option_value(argc, argv, at, "--gpt", &missing)) != NULL) {
        out->gpt = value;
    } else if ((value = cli_option_value(argc, argv, at, "--units", &missing)) != NULL) {
        out->units = value;
    } else if ((value = cli_option_value(argc, argv, at, "--hosts", &missing)) != NULL) {
        code = missing ? 0 : parse_number("--hosts", value, 1, MUSTER_GROUP_SIZE_MAX, &question->hosts);
    } else if ((value = cli_option_value(argc, argv, at, "--ranks-per-host", &missing)) != NULL) {
        code =
            missing ? 0 : parse_number("--ranks-per-host", value, 1, MUSTER_GROUP_SIZE_MAX, &question->ranks_per_host);
    } else if ((value = cli_option_value(argc, argv, at, "--states", &missing)) != NULL) {
        code = missing ? 0 : parse_number("--states", value, 0, FSDP_REPORT_STATES_MAX, &question->states);
    } else if ((value = cli_option_value(argc, argv, at, "--prefetch", &missing)) != NULL) {
        code = missing ? 0 : parse_number("--prefetch", value, 0, 8, &question->options.prefetch);
    } else if ((value = cli_option_value(argc, argv, at, "--memory", &missing)) != NULL) {
        code = missing ? 0 : parse_memory(value, &question->memory_bytes);
    } else {
        return parse_flag(word, out);
    }
    return missing ? status_fail(MUSTER_EINVAL, "%.100s needs a value", word) : code;
}

static int parse_options(int argc, char **argv, struct fsdp_options *out) {
    *out = (struct fsdp_options){
        .question = {.hosts = 1, .ranks_per_host = 1, .states = 2, .options = MUSTER_FSDP_OPTIONS_INIT}};
    int first = 1, code = 0;
    if (argc > 1 && argv[1][0] != '-') {
        if (strcmp(argv[1], "plan") != 0) {
            return status_fail(MUSTER_EINVAL,
                               "'%.100s' is not known; write: muster fsdp plan --gpt 12,12,768,1024,50257", argv[1]);
        }
        first = 2;
    }
    for (int i = first; i < argc && code == 0 && !out->wants_help; i++) {
        code = parse_word(argc, argv, &i, out);
    }
    if (code != 0 || out->wants_help) {
        return code;
    }
    if (first == 1) {
        return status_fail(MUSTER_EINVAL, "write: muster fsdp plan --gpt 12,12,768,1024,50257");
    }
    return !out->gpt == !out->units ? status_fail(MUSTER_EINVAL, "one of --gpt and --units is needed") : 0;
}

/* ---- the command ---- */

static int print_report(const struct fsdp_options *options, const struct fsdp_model *model,
                        const struct fsdp_report *report) {
    struct buf out;
    buf_init(&out, FSDP_REPORT_BYTES_MAX);
    int code = options->wants_json ? fsdp_report_json(&out, model, &options->question, report)
                                   : fsdp_report_text(&out, model, &options->question, report);
    if (code == 0 && !cli_write(STDOUT_FILENO, &out)) {
        code = status_fail(MUSTER_ESYSTEM, "the report could not be written to stdout");
    }
    buf_done(&out);
    return code;
}

int cmd_fsdp(int argc, char **argv) {
    struct fsdp_options options;
    struct fsdp_model model = {0};
    struct fsdp_report report = {0};
    if (parse_options(argc, argv, &options) != 0) {
        cli_error(program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    if (options.wants_help) {
        return cli_print(help_text);
    }
    int code = options.gpt ? fsdp_model_gpt(options.gpt, &model) : fsdp_model_read(options.units, &model);
    code = code ? code : fsdp_report_make(&model, &options.question, &report);
    code = code ? code : print_report(&options, &model, &report);
    if (code != 0) {
        cli_error(program, false, muster_detail());
    }
    fsdp_model_free(&model);
    bool fits = options.question.memory_bytes == 0 || report.fsdp_bytes <= options.question.memory_bytes;
    return code == 0 && fits ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
