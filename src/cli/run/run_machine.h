/* What the command line is checked against: variables, files and devices of this machine. Handed in, so that tests
 * can bring their own. */
#ifndef CLI_RUN_MACHINE_H
#define CLI_RUN_MACHINE_H

#include <stdint.h>

#include "cli/command/options.h"
#include "cli/run/starter.h"

struct run_machine {
    options_lookup *lookup; /* environment variables */
    void *ctx;
    const char *root;       /* "" or a folder that stands for / where /proc and /dev are read */
    const char *executable; /* path of this program, or NULL */
    const char *called_as;  /* as the caller wrote it: a link to it, perhaps; or NULL */
    bool is_torchrun;       /* called under that name: the line was written for PyTorch's launcher */
    bool has_terminal;      /* on stdin */
    void (*look)(const struct starter_query *query, struct starter_sight *out); /* NULL: no ancestors are seen */
};

static inline const char *run_machine_variable(const struct run_machine *machine, const char *name) {
    return machine->lookup(machine->ctx, name);
}

#endif
