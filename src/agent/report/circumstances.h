/* What is wrong around the workers when they have failed, and is no fault of theirs: a full disk below the log folder,
 * a working folder that was deleted. Looked at once, for the failure report. */
#ifndef AGENT_REPORT_CIRCUMSTANCES_H
#define AGENT_REPORT_CIRCUMSTANCES_H

#include <stddef.h>

#define CIRCUMSTANCES_SIZE 1200

/* Sentences, one a line; "" when nothing is wrong. `log_folder`: "" for none. */
void circumstances_describe(const char *log_folder, char out[CIRCUMSTANCES_SIZE]);

/* The working folder of this process has been deleted. */
int circumstances_folder_is_gone(void);

#endif
