/* libuv's loop with one thread. libuv decides once a process, by a variable that no option replaces in those versions.
 */
#include "net/event_loop.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/status.h"

enum { DESCRIPTORS_MIN = 16 };
static const char variable[] = "UV_USE_IO_URING";

/* libuv itself aborts when it gets none for its signals. */
static int expect_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < DESCRIPTORS_MIN) {
        return status_fail(MUSTER_ESYSTEM, "fewer than %d open files are allowed; raise the limit (ulimit -n)",
                           DESCRIPTORS_MIN);
    }
    return MUSTER_OK;
}

int event_loop_init(uv_loop_t *loop) {
    int code = expect_descriptors();
    if (code) {
        return code;
    }
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

void event_loop_wake(uv_timer_t *timer) {
    uv_stop(timer->loop); /* until this turn ends */
}
