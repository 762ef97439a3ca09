/* How a process ended, as torchelastic puts it. */
#ifndef AGENT_REPORT_WAIT_STATUS_H
#define AGENT_REPORT_WAIT_STATUS_H

/* torchelastic's exit code: the code, or minus the signal. */
int report_exit_code(int wait_status);

#endif
