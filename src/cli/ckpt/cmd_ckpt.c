/* `muster ckpt`: finds the verb. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"

static const char program[] = "muster ckpt";

#define VERB_NAME(verb, help) #verb,
static const char *const names[] = {CKPT_VERB_TABLE(VERB_NAME)};
#define VERB_CALL(verb, help) ckpt_##verb,
static int (*const calls[])(int argc, char **argv) = {CKPT_VERB_TABLE(VERB_CALL)};
enum { VERB_COUNT = sizeof names / sizeof *names };

#define VERB_WORD(verb, help) " " #verb
#define VERB_LINE(verb, help) "  " #verb "\n      " help "\n"

static const char help_text[] = "usage: muster ckpt VERB ...\n"
                                "\n"
                                "Works on saved states of training. The verbs are:\n"
                                "\n" CKPT_VERB_TABLE(VERB_LINE) "\n"
                                                                "muster ckpt VERB --help tells more of each.\n";

int cmd_ckpt(int argc, char **argv) {
    char text[256];
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        return cli_print(help_text);
    }
    for (size_t i = 0; argc > 1 && i < VERB_COUNT; i++) {
        if (strcmp(argv[1], names[i]) == 0) {
            return calls[i](argc - 1, argv + 1);
        }
    }
    (void)str_format(text, sizeof text, "%s%.100s%s; the verbs are" CKPT_VERB_TABLE(VERB_WORD), argc > 1 ? "'" : "",
                     argc > 1 ? argv[1] : "a verb is needed", argc > 1 ? "' is not known" : "");
    cli_error(program, true, text);
    return CLI_EXIT_USAGE;
}
