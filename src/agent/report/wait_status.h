/* How a process ended, as torchelastic puts it. */
#ifndef AGENT_REPORT_WAIT_STATUS_H
#define AGENT_REPORT_WAIT_STATUS_H

/* "SIGTERM", or NULL for numbers without a name (torchelastic's names, which are Python's). */
const char *report_signal_name(int signal_number);

/* torchelastic's exit code: the code, or minus the signal. */
int report_exit_code(int wait_status);

#endif
