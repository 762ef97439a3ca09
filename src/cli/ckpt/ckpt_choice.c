/* --only and --skip; see ckpt.h. */
#include <string.h>

#include "base/status.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static int add(const char **list, size_t *count, const char *name, const char *above, bool missing) {
    if (missing || above[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "%s needs a name", name);
    }
    if (*count == CKPT_NAMES_MAX) {
        return status_fail(MUSTER_EINVAL, "%s can be given %d times", name, CKPT_NAMES_MAX);
    }
    list[(*count)++] = above;
    return 0;
}

bool ckpt_choice_option(struct ckpt_choice *choice, int argc, char **argv, int *at, int *code) {
    bool missing = false;
    const char *above = cli_option_value(argc, argv, at, "--only", &missing);
    if (above) {
        *code = add(choice->only, &choice->only_count, "--only", above, missing);
        return true;
    }
    above = cli_option_value(argc, argv, at, "--skip", &missing);
    if (above) {
        *code = add(choice->skip, &choice->skip_count, "--skip", above, missing);
    }
    return above != NULL;
}

static bool is_below(const char *name, const char *const *above, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(above[i]);
        if (strncmp(name, above[i], length) == 0 && (name[length] == '\0' || name[length] == '.')) {
            return true;
        }
    }
    return false;
}

bool ckpt_choice_takes(const struct ckpt_choice *choice, const char *name) {
    return (choice->only_count == 0 || is_below(name, choice->only, choice->only_count)) &&
           !is_below(name, choice->skip, choice->skip_count);
}
