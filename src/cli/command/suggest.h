/* "Did you mean": the known name that is nearest to what was typed. */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

#include <stddef.h>

/* The nearest of `count` names, or NULL when none is near enough to be meant. */
const char *suggest_nearest(const char *typed, const char *const *names, size_t count);

/* One candidate at a time, for lists that are not arrays: keeps the best seen so far in *distance (start with
 * suggest_limit(typed) + 1). Returns non-zero when `name` is the new best. */
int suggest_better(const char *typed, const char *name, unsigned *distance);

/* Largest distance at which a name still counts as meant. */
unsigned suggest_limit(const char *typed);

#endif
