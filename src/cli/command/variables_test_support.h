/* For tests of what variables of the environment do: a few in place of the real ones. */
#ifndef CLI_VARIABLES_TEST_SUPPORT_H
#define CLI_VARIABLES_TEST_SUPPORT_H

/* A lookup. variables: "NAME=value" each, NULL behind the last; or NULL itself: none. */
const char *variables_lookup(void *variables, const char *name);

#endif
