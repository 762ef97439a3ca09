/* Variables of tests; see variables_test_support.h. */
#include "cli/command/variables_test_support.h"

#include <stddef.h>
#include <string.h>

const char *variables_lookup(void *variables, const char *name) {
    size_t n = strlen(name);
    for (const char *const *variable = variables; variable != NULL && *variable != NULL; variable++) {
        if (strncmp(*variable, name, n) == 0 && (*variable)[n] == '=') {
            return *variable + n + 1;
        }
    }
    return NULL;
}
