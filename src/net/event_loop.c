/* libuv's loop with one thread. libuv decides once a process, by a variable that no option replaces in those versions.
 */
#include "net/event_loop.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"

static const char variable[] = "UV_USE_IO_URING";

int event_loop_init(uv_loop_t *loop) {
    /* What the user set stays, for us and for the workers, who inherit the environment. */
    bool ours = getenv(variable) == NULL;
    if (ours && setenv(variable, "0", 1) != 0) {
        return status_fail(MUSTER_ENOMEM, "no memory for an environment variable");
    }
    int rc = uv_loop_init(loop);
    if (ours) {
        (void)unsetenv(variable);
    }
    return rc == 0 ? MUSTER_OK : status_fail(MUSTER_ESYSTEM, "cannot create an event loop: %s", uv_strerror(rc));
}
