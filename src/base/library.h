/* Shared libraries that are opened at run time: a program pays for none that it does not use, and starts where one that
 * it could do without is missing. Any thread. */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* Opens the library of that file name (`libssl.so.3`); its symbols are seen through library_find() alone. What is not
 * closed with dlclose() stays. NULL: *out_reason has the loader's words, until this thread's next call. */
void *library_open(const char *name, const char **out_reason);

/* The same, if the process has loaded it before: it is not loaded for this. From then on it stays. NULL: it is not
 * there.
 */
void *library_loaded(const char *name);

/* Copies the address of a function, of the library or of one that it depends on, to *out, a pointer to a function of
 * that type, `size` bytes. false, *out unchanged: there is none of that name. */
bool library_find(void *library, const char *name, void *out, size_t size);

#endif
