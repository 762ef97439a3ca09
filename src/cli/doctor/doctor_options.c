/* Parses the command line of `muster doctor`; see doctor_options.h. */
#include "cli/doctor/doctor_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/lookalike.h"
#include "cli/command/options.h"
#include "doctor/meet.h"
#include "doctor/nodes.h"
#include "rendezvous/backends.h"

enum { PORT_DEFAULT = 29400, MASTER_PORT_DEFAULT = 29500, SECONDS_MAX = 86400 };

/* A number of an option, from 1 to `max`. */
static int parse_number(const char *name, const char *text, int64_t max, int64_t *out) {
    if (!str_parse_i64(text, out) || *out < 1 || *out > max) {
        return status_fail(MUSTER_EINVAL, "%s %.100s: a number from 1 to %lld is expected", name, text, (long long)max);
    }
    return 0;
}

static int parse_timeout(const char *text, struct doctor_options *out) {
    int64_t seconds = 0;
    int code = parse_number("--timeout", text, SECONDS_MAX, &seconds);
    out->join_ms = seconds * 1000;
    return code;
}

/* ---- words of its own ---- */

/* One that is not `muster run`'s. *is_own: it is such a word. MUSTER_EINVAL. */
static int parse_own(int argc, char **argv, int *at, struct doctor_options *out, bool *is_own) {
    const char *word = argv[*at], *value;
    bool missing = false;
    int code = 0;
    *is_own = true;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        out->wants_help = true;
    } else if (strcmp(word, "--list") == 0) {
        out->wants_list = true;
    } else if (strcmp(word, "--json") == 0) {
        out->wants_json = true;
    } else if ((value = cli_option_value(argc, argv, at, "--only", &missing)) != NULL) {
        code = missing ? 0 : doctor_checks_parse(value, &out->wanted);
    } else if ((value = cli_option_value(argc, argv, at, "--timeout", &missing)) != NULL) {
        code = missing ? 0 : parse_timeout(value, out);
    } else {
        *is_own = false;
    }
    return missing ? status_fail(MUSTER_EINVAL, "%.100s needs a value", word) : code;
}

/* The others go to `line`, which has room for all and a script, if there is none. */
static int separate(int argc, char **argv, struct doctor_options *out, char **line, int *line_count) {
    static char dashes[] = "--", script[] = "train.py";
    bool has_script = false;
    for (int i = 1; i < argc && !out->wants_help; i++) {
        bool is_own = false;
        int code = parse_own(argc, argv, &i, out, &is_own);
        if (code != 0) {
            return code;
        }
        if (is_own) {
            continue;
        }
        int words = options_count_words(argc, argv, i);
        int end = words > 0 ? i + words : argc; /* a script: all behind it is its own */
        has_script = words == 0;
        for (; i < end; i++) {
            line[(*line_count)++] = argv[i];
        }
        i--;
    }
    if (!has_script) {
        line[(*line_count)++] = dashes;
        line[(*line_count)++] = script;
    }
    return 0;
}

/* ---- of `muster run` ---- */

static bool is_given(const struct options *options, enum option_id id) {
    return options->values[id].source == OPTION_FROM_COMMAND_LINE;
}

/* Of MIN:MAX, MAX. */
static int take_nodes(const struct options *options, struct doctor_options *out) {
    const char *text = options->values[OPTION_NNODES].text, *colon = strchr(text, ':');
    int64_t count = 0;
    int code = parse_number("--nnodes", colon != NULL ? colon + 1 : text, DOCTOR_NODES_MAX, &count);
    out->node_count = (uint32_t)count;
    return code;
}

static int take_master(const struct options *options, struct doctor_options *out) {
    char text[NET_HOST_MAX + 16];
    const char *host = options->values[OPTION_MASTER_ADDR].text;
    const bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
    long long port =
        is_given(options, OPTION_MASTER_PORT) ? options->values[OPTION_MASTER_PORT].integer : MASTER_PORT_DEFAULT;
    if (!str_format(text, sizeof text, "%s%s%s:%lld", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port)) {
        return status_fail(MUSTER_EINVAL, "--master-addr is longer than a host's name can be");
    }
    return net_endpoint_list_parse(text, MASTER_PORT_DEFAULT, &out->endpoints);
}

/* An etcd is no node: the nodes do not meet there, and its addresses may be URLs. So may be the path of a file. */
static bool has_nodes_endpoint(const struct options *options) {
    enum rdzv_backend backend;
    if (strstr(options->values[OPTION_RDZV_CONF].text, "store_type=file") != NULL ||
        !rdzv_backend_find(options->values[OPTION_RDZV_BACKEND].text, &backend)) {
        return false;
    }
    enum rdzv_endpoint_form form = rdzv_backend_endpoint(backend);
    return form != RDZV_ENDPOINT_ETCD && form != RDZV_ENDPOINT_URLS;
}

static int take(const struct options *options, struct doctor_options *out) {
    int code = is_given(options, OPTION_NNODES) ? take_nodes(options, out) : 0;
    const char *endpoint = options->values[OPTION_RDZV_ENDPOINT].text;
    if (code != 0) {
        return code;
    }
    if (options->values[OPTION_STANDALONE].on || !has_nodes_endpoint(options)) {
        out->node_count = out->node_count > 0 ? 1 : 0;
        return 0;
    }
    if (is_given(options, OPTION_RDZV_ENDPOINT) && endpoint[0] != '\0') {
        return net_endpoint_list_parse(endpoint, PORT_DEFAULT, &out->endpoints);
    }
    return is_given(options, OPTION_MASTER_ADDR) ? take_master(options, out) : 0;
}

/* The job's variables are among what is examined. */
static const char *no_variable(void *ctx, const char *name) {
    (void)ctx;
    (void)name;
    return NULL;
}

/* Pasted from a page, an option is none, and would be a script. */
static int check_script(const struct options *options, char **line) {
    char note[512];
    return access(options->script, F_OK) != 0 &&
                   lookalike_find((int)(options->script_args - line), line, note, sizeof note)
               ? status_fail(MUSTER_EINVAL, "%s", note)
               : 0;
}

static int parse_line(int count, char **line, struct doctor_options *out) {
    struct options options;
    enum options_verdict verdict = options_parse(count, line, no_variable, NULL, &options);
    if (verdict == OPTIONS_VERSION) {
        return status_fail(MUSTER_EINVAL, "--version: `muster version` shows it");
    }
    int code = verdict == OPTIONS_OK ? check_script(&options, line) : MUSTER_EINVAL;
    return code ? code : take(&options, out);
}

static int check(const struct doctor_options *options) {
    if (options->node_count > 1 && options->endpoints.count == 0) {
        return status_fail(MUSTER_EINVAL, "--nnodes needs --rdzv-endpoint: where the nodes meet");
    }
    doctor_checks between = DOCTOR_CHECK_BIT(DOCTOR_NODES) | DOCTOR_CHECK_BIT(DOCTOR_NETWORK);
    if (options->node_count < 2 && (options->wanted & ~between) == 0) {
        return status_fail(MUSTER_EINVAL, "the checks nodes and network need --nnodes, and other nodes");
    }
    return 0;
}

int doctor_options_parse(int argc, char **argv, struct doctor_options *out) {
    char **line = calloc((size_t)argc + 2, sizeof *line);
    int count = 0;
    *out = (struct doctor_options){.wanted = DOCTOR_CHECKS_ALL, .join_ms = MEET_JOIN_MS_DEFAULT};
    if (line == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for the command line");
    }
    int code = separate(argc, argv, out, line, &count);
    if (code == 0 && !out->wants_help) {
        code = parse_line(count, line, out);
    }
    free(line);
    return code == 0 && !out->wants_help ? check(out) : code;
}
