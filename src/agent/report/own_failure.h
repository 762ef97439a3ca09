/* Did the program make itself fail? Or was it ended from outside: then it has not failed, and nothing that it had in
 * memory can be why. */
#ifndef AGENT_REPORT_OWN_FAILURE_H
#define AGENT_REPORT_OWN_FAILURE_H

#include "agent/report/report.h"

#define OWN_FAILURE_SIZE 40

/* "exit 1 in start 3" or "signal 11 in start 3"; or "": the worker was ended by somebody, by the out-of-memory killer,
 * or because another worker was gone. entry: the root cause. start: how often this agent had started workers then, so
 * that no two texts of an agent are alike. */
void own_failure_describe(const struct report_entry *entry, uint32_t start, char out[OWN_FAILURE_SIZE]);

#endif
