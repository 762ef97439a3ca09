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
    return status_fail(MUSTER_EINVAL,
                       "the environment variable %s is not set; start this program with muster run, or set RANK, "
                       "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                       name);
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
    int code = variable("MASTER_ADDR", &options.host);
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
    if (timeout_ms != MUSTER_STORE_DEFAULT) {
        options.timeout_ms = timeout_ms;
    }
    return muster_store_open_tcp(&options, out);
}
