/* Exit codes in torchelastic's words; see wait_status.h. */
#include "agent/report/wait_status.h"

#include <sys/wait.h>

int report_exit_code(int wait_status) {
    return WIFSIGNALED(wait_status) ? -WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}
