/* The job's store as the launcher's environment names it (PyTorch's env:// method). */
#include <stdlib.h>
#include <string.h>

#include <muster/store.h>

#include "base/status.h"
#include "base/str.h"

static int variable(const char *name, const char **out) {
    *out = getenv(name);
    if (*out && (*out)[0] != '\0') {
        return 0;
    }
    return status_fail(MUSTER_EINVAL, "the environment variable %s is not set", name);
}

/* Names all that is missing at once, and what there is: a variable that was forgotten, or one that was left over. */
static int check_all_set(void) {
    static const char *const names[] = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"};
    char missing[64] = "", present[64] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        char *list = text && *text ? present : missing;
        size_t used = strlen(list);
        (void)str_format(list + used, sizeof missing - used, "%s%s", used > 0 ? ", " : "", names[i]);
    }
    if (missing[0] == '\0') {
        return 0;
    }
    return present[0] == '\0'
               ? status_fail(MUSTER_EINVAL,
                             "no launcher: %s are not set; start this program with muster run, or set them", missing)
               : status_fail(MUSTER_EINVAL,
                             "in the environment %s %s not set, but %s %s; start this program with muster run, or set "
                             "all four or none",
                             missing, strchr(missing, ',') ? "are" : "is", present,
                             strchr(present, ',') ? "are" : "is");
}

static int number(const char *name, int64_t min, int64_t max, int64_t *out) {
    const char *text = NULL;
    int code = variable(name, &text);
    if (code) {
        return code;
    }
    if (!str_parse_i64(text, out) || *out < min || *out > max) {
        return status_fail(MUSTER_EINVAL,
                           "the environment variable %s is '%.64s'; a number from %lld to %lld is needed", name, text,
                           (long long)min, (long long)max);
    }
    return 0;
}

int muster_store_open_env(int64_t timeout_ms, struct muster_store **out) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    int64_t rank = 0, world_size = 0, port = 0;
    if (!out) {
        return status_fail_null("muster_store_open_env", "out");
    }
    int code = check_all_set();
    code = code ? code : variable("MASTER_ADDR", &options.host);
    code = code ? code : number("MASTER_PORT", 0, UINT16_MAX, &port);
    code = code ? code : number("WORLD_SIZE", 1, UINT32_MAX, &world_size);
    code = code ? code : number("RANK", 0, world_size - 1, &rank);
    if (code) {
        return code;
    }
    const char *agent_store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    options.port = (uint16_t)port;
    options.world_size = (uint32_t)world_size;
    options.is_host = rank == 0 && !(agent_store && strcmp(agent_store, "True") == 0);
    if (strncmp(options.host, "127.", 4) == 0 || strcmp(options.host, "::1") == 0) {
        options.bind_host = options.host; /* all ranks connect to it: nobody of another machine can be meant */
    }
    if (timeout_ms != MUSTER_STORE_DEFAULT) {
        options.timeout_ms = timeout_ms;
    }
    return muster_store_open_tcp(&options, out);
}
