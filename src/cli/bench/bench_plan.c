/* Operations, formulas and options of `muster bench`; see bench_plan.h. */
#include "cli/bench/bench_plan.h"

#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"

const struct bench_operation_info bench_operations[BENCH_OPERATION_COUNT] = {
#define BENCH_OPERATION_INFO(id, name, is_divided, reduces, has_root) {name, is_divided, reduces, has_root},
    BENCH_OPERATION_TABLE(BENCH_OPERATION_INFO)
#undef BENCH_OPERATION_INFO
};

bool bench_has_place(enum bench_operation operation, bool is_in_place) {
    switch (operation) {
    case BENCH_BROADCAST:
        return is_in_place;
    case BENCH_SENDRECV:
    case BENCH_BARRIER:
        return !is_in_place;
    default:
        return true;
    }
}

uint64_t bench_count(enum bench_operation operation, uint64_t bytes, size_t element_bytes, uint32_t ranks) {
    uint64_t count = bytes / element_bytes;
    return bench_operations[operation].is_divided ? count / ranks : count;
}

uint64_t bench_bytes(enum bench_operation operation, uint64_t count, size_t element_bytes, uint32_t ranks) {
    return count * element_bytes * (bench_operations[operation].is_divided ? ranks : 1);
}

double bench_bus_factor(enum bench_operation operation, uint32_t ranks) {
    double others = (double)(ranks - 1) / ranks;
    if (operation == BENCH_ALL_REDUCE) {
        return 2 * others;
    }
    return bench_operations[operation].is_divided ? others : 1;
}

uint64_t bench_next(const struct bench_options *options, uint64_t bytes) {
    uint64_t next = options->step_bytes > 0 ? bytes + options->step_bytes : bytes * options->factor;
    return next > bytes && next <= options->end_bytes ? next : 0;
}

bool bench_parse_bytes(const char *text, uint64_t *out) {
    const char *rest = str_read_bytes(text, out);
    return rest && *rest == '\0' && *out <= BENCH_BYTES_MAX;
}

/* ---- the command line ---- */

/* nccl-tests' names beside ours. */
static const struct {
    const char *name;
    enum muster_type type;
} type_names[] = {{"half", MUSTER_FLOAT16}, {"float", MUSTER_FLOAT32}, {"double", MUSTER_FLOAT64}};

static int parse_type(const char *text, enum muster_type *out) {
    for (int i = 0; i < MUSTER_TYPE_COUNT; i++) {
        if (strcmp(text, muster_type_name((enum muster_type)i)) == 0) {
            *out = (enum muster_type)i;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++) {
        if (strcmp(text, type_names[i].name) == 0) {
            *out = type_names[i].type;
            return 0;
        }
    }
    return status_fail(MUSTER_EINVAL, "-d %.60s: a type such as float32, bfloat16 or int64 is expected", text);
}

static const struct {
    const char *name;
    enum muster_reduction reduction;
} reduction_names[] = {
    {"sum", MUSTER_OP_SUM},     {"prod", MUSTER_OP_PRODUCT}, {"min", MUSTER_OP_MIN},    {"max", MUSTER_OP_MAX},
    {"avg", MUSTER_OP_AVERAGE}, {"band", MUSTER_OP_BIT_AND}, {"bor", MUSTER_OP_BIT_OR}, {"bxor", MUSTER_OP_BIT_XOR},
};

static int parse_reduction(const char *text, enum muster_reduction *out) {
    for (size_t i = 0; i < sizeof reduction_names / sizeof *reduction_names; i++) {
        if (strcmp(text, reduction_names[i].name) == 0) {
            *out = reduction_names[i].reduction;
            return 0;
        }
    }
    return status_fail(MUSTER_EINVAL, "-o %.60s: sum, prod, min, max, avg, band, bor or bxor is expected", text);
}

static int parse_number(const char *name, const char *text, uint32_t max, uint32_t *out) {
    int64_t value;
    if (!str_parse_i64(text, &value) || value < 0 || value > max) {
        return status_fail(MUSTER_EINVAL, "%s %.60s: a number from 0 to %u is expected", name, text, max);
    }
    *out = (uint32_t)value;
    return 0;
}

static int parse_size(const char *name, const char *text, uint64_t *out) {
    return bench_parse_bytes(text, out)
               ? 0
               : status_fail(MUSTER_EINVAL, "%s %.60s: a number of bytes such as 8, 64K or 1G is expected", name, text);
}

static int parse_memory(const char *text, bool *out) {
    *out = strcmp(text, "own") == 0;
    return *out || strcmp(text, "private") == 0
               ? 0
               : status_fail(MUSTER_EINVAL, "--memory %.60s: private or own is expected", text);
}

static int parse_operation(const char *text, struct bench_options *out) {
    bool known = false;
    for (int i = 0; i < BENCH_OPERATION_COUNT; i++) {
        if (strcmp(text, "all") == 0 || strcmp(text, bench_operations[i].name) == 0) {
            out->operations[i] = known = true;
        }
    }
    return known ? 0
                 : status_fail(MUSTER_EINVAL,
                               "'%.60s' is no operation; all_reduce, broadcast, reduce, all_gather, gather, scatter, "
                               "reduce_scatter, all_to_all, sendrecv, barrier and all are",
                               text);
}

static int set_option(const char *name, const char *value, struct bench_options *out) {
    uint32_t number = 0;
    int code;
    switch (name[1]) {
    case 'b':
        return parse_size(name, value, &out->begin_bytes);
    case 'e':
        return parse_size(name, value, &out->end_bytes);
    case 'i':
        return parse_size(name, value, &out->step_bytes);
    case 'f':
        code = parse_number(name, value, 1 << 20, &number);
        out->factor = number;
        return code;
    case 'n':
        return parse_number(name, value, BENCH_ITERATIONS_MAX, &out->iterations);
    case 'w':
        return parse_number(name, value, BENCH_ITERATIONS_MAX, &out->warm_up);
    case 'c':
        code = parse_number(name, value, 1, &number);
        out->checks = number == 1;
        return code;
    case 'd':
        return parse_type(value, &out->type);
    case 'o':
        return parse_reduction(value, &out->reduction);
    case 'r':
        return parse_number(name, value, BENCH_RANKS_MAX - 1, &out->root);
    default:
        if (strcmp(name, "--memory") == 0) {
            return parse_memory(value, &out->uses_own_memory);
        }
        if (strcmp(name, "--engine") == 0) {
            out->engine = value; /* the group knows which there are */
            return 0;
        }
        code = parse_number(name, value, BENCH_RANKS_MAX, &out->ranks);
        return code || out->ranks > 0 ? code
                                      : status_fail(MUSTER_EINVAL, "%s %.40s: a number from 1 to %d is expected", name,
                                                    value, (int)BENCH_RANKS_MAX);
    }
}

static int parse_word(int argc, char **argv, int *at, struct bench_options *out) {
    static const char *const names[] = {"-b", "-e", "-i", "-f",      "-n",       "-w",      "-c",
                                        "-d", "-o", "-r", "--ranks", "--memory", "--engine"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool missing = false;
        const char *value = cli_option_value(argc, argv, at, names[i], &missing);
        if (missing) {
            return status_fail(MUSTER_EINVAL, "%s needs a value", names[i]);
        }
        if (value != NULL) {
            return set_option(names[i], value, out);
        }
    }
    if (strcmp(argv[*at], "--tune") == 0) {
        out->tunes = true;
        return 0;
    }
    if (strcmp(argv[*at], "--tune=links") == 0) {
        out->tunes_links = true;
        return 0;
    }
    if (argv[*at][0] == '-') {
        return status_fail(MUSTER_EINVAL, "'%.60s' is not understood", argv[*at]);
    }
    return parse_operation(argv[*at], out);
}

static int check_options(const struct bench_options *options) {
    bool is_float = options->type == MUSTER_FLOAT16 || options->type == MUSTER_BFLOAT16 ||
                    options->type == MUSTER_FLOAT32 || options->type == MUSTER_FLOAT64;
    if (options->begin_bytes == 0 || options->begin_bytes > options->end_bytes) {
        return status_fail(MUSTER_EINVAL, "-b must be >= 1 and -e >= -b");
    }
    if (options->step_bytes == 0 && options->factor < 2) {
        return status_fail(MUSTER_EINVAL, "-f must be >= 2");
    }
    if (options->tunes && options->tunes_links) {
        return status_fail(MUSTER_EINVAL, "--tune and --tune=links are two measurements: give one of them");
    }
    if ((options->tunes || options->tunes_links) && options->engine && strcmp(options->engine, "muster") != 0) {
        return status_fail(MUSTER_EINVAL, "--tune measures Muster's own engine, which --engine %.20s does not use",
                           options->engine);
    }
    if (is_float && options->reduction >= MUSTER_OP_BIT_AND) {
        return status_fail(MUSTER_EINVAL, "bit operations are for integers: choose a type such as -d int32");
    }
    return 0;
}

int bench_options_parse(int argc, char **argv, struct bench_options *out) {
    *out = (struct bench_options){.begin_bytes = 8,
                                  .end_bytes = 64 << 20,
                                  .factor = 4,
                                  .warm_up = 5,
                                  .checks = true,
                                  .type = MUSTER_FLOAT32,
                                  .reduction = MUSTER_OP_SUM};
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            out->wants_help = true;
            return 0;
        }
        int code = parse_word(argc, argv, &i, out);
        if (code) {
            return code;
        }
    }
    for (int i = 0; i < BENCH_OPERATION_COUNT; i++) {
        any = any || out->operations[i];
    }
    out->operations[BENCH_ALL_REDUCE] = out->operations[BENCH_ALL_REDUCE] || !any;
    return check_options(out);
}
