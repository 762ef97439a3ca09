/* Ownership of struct launch_config; what its values mean is in launch.h. */
#include "agent/launch/launch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"

int launch_strings_append(struct launch_strings *strings, const char *text) {
    char *copy = strdup(text);
    char **items = copy ? realloc(strings->items, (strings->count + 2) * sizeof *items) : NULL;
    if (items == NULL) {
        free(copy);
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu texts", strings->count + 1);
    }
    items[strings->count++] = copy;
    items[strings->count] = NULL;
    strings->items = items;
    return 0;
}

void launch_strings_done(struct launch_strings *strings) {
    for (size_t i = 0; i < strings->count; i++) {
        free(strings->items[i]);
    }
    free(strings->items);
    *strings = (struct launch_strings){0};
}

void launch_config_init(struct launch_config *config) {
    *config = (struct launch_config){0};
}

struct secret_text *launch_secret_create(void) {
    struct secret_text *secret = mmap(NULL, sizeof *secret, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (secret == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(secret, sizeof *secret, MADV_WIPEONFORK);
    (void)madvise(secret, sizeof *secret, MADV_DONTDUMP);
    return secret;
}

void launch_secret_free(struct secret_text *secret) {
    if (secret) {
        explicit_bzero(secret, sizeof *secret);
        (void)munmap(secret, sizeof *secret);
    }
}

void launch_config_done(struct launch_config *config) {
    char *texts[] = {config->not_given,    config->backend_name,      config->run_id,
                     config->endpoint,     config->local_addr,        config->role,
                     config->title,        config->log_dir,           config->entry_point,
                     config->outcome_path, config->signals_to_handle, config->program_path,
                     config->preload};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        free(texts[i]);
    }
    launch_secret_free(config->secret);
    free(config->local_ranks_filter);
    launch_strings_done(&config->command);
    launch_strings_done(&config->duplicate_stdout_filters);
    launch_strings_done(&config->duplicate_stderr_filters);
    launch_config_init(config);
}
