/* How much memory a trainer takes. */
#ifndef EXAMPLES_COMMON_MEMORY_H
#define EXAMPLES_COMMON_MEMORY_H

/* Of this process, in MiB, now and at most so far; 0 when the kernel does not say. */
double memory_now_mib(void);
double memory_peak_mib(void);

#endif
