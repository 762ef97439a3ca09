/* Reads command lines from stdin and writes what muster makes of them, one JSON object a line each way: the other half
 * of test_options.py.
 *
 * In:  {"argv": [...], "env": {...}}
 * Out: {"verdict": "ok"|"help"|"version"|"completion"|"usage"|"invalid", "detail": text, "values": {name: value},
 *       "script": text, "args": [...], "config": {...} or null when a later check failed} */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cli/run/run_config.h"

#define WORDS_MAX 256

static const char *lookup(void *ctx, const char *name) {
    return json_string_value(json_object_get(ctx, name));
}

static json_t *strings(char *const *items, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, json_string(items[i]));
    }
    return list;
}

static json_t *value_json(const struct option_spec *spec, const struct option_value *value) {
    if (!option_takes_value(spec)) {
        return json_boolean(value->on);
    }
    if (value->text == NULL) {
        return json_null();
    }
    if (spec->kind == OPTION_KIND_INTEGER) {
        return json_integer(value->integer);
    }
    return spec->kind == OPTION_KIND_REAL ? json_sprintf("%.17g", value->real) : json_string(value->text);
}

static json_t *values_json(const struct options *options) {
    json_t *out = json_object();
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        json_object_set_new(out, option_specs[i].name, value_json(&option_specs[i], &options->values[i]));
    }
    return out;
}

static json_t *stream_json(const struct launch_stream_map *map) {
    json_t *out = json_array();
    for (size_t i = 0; i < sizeof map->by_rank; i++) {
        json_array_append_new(out, json_integer(map->is_map ? map->by_rank[i] : map->all));
    }
    return out;
}

static json_t *config_json(const struct launch_config *c) {
    return json_pack("{s:i,s:i,s:i,s:s,s:s,s:s,s:s?,s:s,s:i,s:f,s:o,s:s,s:o,s:o,s:b,s:o,s:o,s:I,s:b,s:b,s:i,s:s}",
                     "min_nodes", (int)c->rdzv.min_nodes, "max_nodes", (int)c->rdzv.max_nodes, "nproc", (int)c->nproc,
                     "backend", c->backend_name, "endpoint", c->endpoint, "run_id", c->run_id, "local_addr",
                     c->local_addr, "role", c->role, "max_restarts", (int)c->max_restarts, "monitor_interval",
                     c->monitor_interval_s, "command", strings(c->command.items, c->command.count), "title", c->title,
                     "redirects", stream_json(&c->redirects), "tee", stream_json(&c->tee), "filtered",
                     c->local_ranks_filtered, "stdout_filters",
                     strings(c->duplicate_stdout_filters.items, c->duplicate_stdout_filters.count), "stderr_filters",
                     strings(c->duplicate_stderr_filters.items, c->duplicate_stderr_filters.count), "shutdown_ms",
                     (json_int_t)c->shutdown_timeout_ms, "virtual_local_rank", c->virtual_local_rank, "omp",
                     c->omp_defaulted, "node_rank", (int)c->rdzv.node_rank, "signals", c->signals_to_handle);
}

static const char *verdict_name(enum options_verdict verdict) {
    static const char *const names[] = {"ok", "help", "version", "completion", "usage", "invalid"};
    return names[verdict];
}

static json_t *run_case(json_t *input) {
    const char *argv[WORDS_MAX];
    json_t *words = json_object_get(input, "argv"), *env = json_object_get(input, "env");
    int argc = (int)json_array_size(words);
    for (int i = 0; i < argc && i < WORDS_MAX; i++) {
        argv[i] = json_string_value(json_array_get(words, (size_t)i));
    }
    struct options options;
    struct launch_config config;
    struct run_machine machine = {.lookup = lookup, .ctx = env, .root = "/nonexistent"};
    launch_config_init(&config);
    status_clear();
    enum options_verdict verdict = options_parse(argc, (char *const *)argv, lookup, env, &options);
    json_t *out = json_object();
    json_object_set_new(out, "verdict", json_string(verdict_name(verdict)));
    if (verdict == OPTIONS_OK) {
        bool fine = run_config_build(&options, &machine, &config) == 0;
        json_object_set_new(out, "values", values_json(&options));
        json_object_set_new(out, "script", json_string(options.script));
        json_object_set_new(out, "args", strings((char *const *)options.script_args, options.script_arg_count));
        json_object_set_new(out, "config", fine ? config_json(&config) : json_null());
    }
    json_object_set_new(out, "detail", json_string(muster_detail()));
    launch_config_done(&config);
    return out;
}

int main(void) {
    json_error_t error;
    for (json_t *input; (input = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, &error)) != NULL;) {
        json_t *out = run_case(input);
        if (json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF) {
            return 1;
        }
        json_decref(out);
        json_decref(input);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
