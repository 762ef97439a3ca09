/* What signals are called. The C library's own tables came with glibc 2.32. Pure. */
#ifndef AGENT_REPORT_SIGNAL_NAME_H
#define AGENT_REPORT_SIGNAL_NAME_H

#include <stddef.h>

/* "SIGTERM". Python's names: of the real-time signals only the first and the last have one. NULL: none. */
const char *signal_name(int number);

/* "Terminated", as strsignal() says it in English. NULL: it has no name either, or is a real-time signal. */
const char *signal_words(int number);

/* The number of the signal that is named by the `len` bytes of `name`, 0: none. No real-time signals. */
int signal_from_name(const char *name, size_t len);

#endif
