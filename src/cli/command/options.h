/* The parser of `muster run`'s command line: words and variables in, raw values out.
 *
 * It gives Python argparse's verdicts on torchrun's options (docs/adr/0003-own-option-parser.md) and is pure: no
 * output, no exit, no environment but the callback's, no allocation. What the values mean is run_config.c's business.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/command/option_table.h"

enum option_kind {
    OPTION_KIND_HELP,
    OPTION_KIND_VERSION,
    OPTION_KIND_FLAG,
    OPTION_KIND_TEXT,
    OPTION_KIND_INTEGER,
    OPTION_KIND_REAL,
    OPTION_KIND_CHOICE,
    OPTION_KIND_COMPLETION, /* a choice, of the shell whose completions are printed: it ends the parse, as help does */
    OPTION_KIND_CHOICE_OR_BARE, /* --name=CHOICE, or --name alone, whose text is "": it takes no other word */
};

/* Own options match only when spelled in full, so that every prefix keeps torchrun's meaning. */
enum option_scope { OPTION_SCOPE_TORCHRUN, OPTION_SCOPE_OWN };

enum option_group {
#define OPTION_GROUP_ENUM(id, title) OPTION_GROUP_##id,
    OPTION_GROUP_TABLE(OPTION_GROUP_ENUM)
#undef OPTION_GROUP_ENUM
        OPTION_GROUP_COUNT
};

enum option_id {
#define OPTION_ID_ENUM(id, ...) OPTION_##id,
    OPTION_TABLE(OPTION_ID_ENUM)
#undef OPTION_ID_ENUM
        OPTION_COUNT
};

struct option_spec {
    enum option_id id;
    enum option_kind kind;
    enum option_scope scope;
    enum option_group group;
    char letter; /* 0: no short form */
    const char *name;
    const char *variable;
    const char *fallback;
    const char *choices; /* separated by blanks */
    const char *value_name;
    const char *help;
};

extern const struct option_spec option_specs[OPTION_COUNT];
extern const char *const option_group_titles[OPTION_GROUP_COUNT];

#define OPTION_SPELLING_MAX 64 /* bytes of a name, terminator included */

/* Writes the name with dashes or with underscores. False when both are the same and `underscores` was asked for. */
bool option_spelling(const struct option_spec *spec, bool underscores, char out[OPTION_SPELLING_MAX]);

/* Does the option take a value? */
bool option_takes_value(const struct option_spec *spec);

/* Can it stand without one? */
bool option_may_be_bare(const struct option_spec *spec);

enum option_source {
    OPTION_FROM_DEFAULT,
    OPTION_FROM_SCHEDULER, /* run_scheduler.h; never from options_parse() */
    OPTION_FROM_ENVIRONMENT,
    OPTION_FROM_COMMAND_LINE
};

struct option_value {
    enum option_source source;
    const char *text; /* borrowed from argv, the environment or the table; NULL: not given, no default */
    int64_t integer;  /* OPTION_KIND_INTEGER; a number beyond int64 becomes the nearest one */
    double real;      /* OPTION_KIND_REAL; may be infinite or not a number */
    bool on;          /* OPTION_KIND_FLAG */
};

struct options {
    struct option_value values[OPTION_COUNT];
    const char *script;
    char *const *script_args; /* within argv */
    size_t script_arg_count;
};

enum options_verdict {
    OPTIONS_OK,
    OPTIONS_HELP,       /* --help came before any error */
    OPTIONS_VERSION,    /* --version, likewise */
    OPTIONS_COMPLETION, /* --print-completion, likewise: its value names the shell */
    OPTIONS_USAGE,      /* not understood: exit 2; muster_detail() has the sentence */
    OPTIONS_INVALID,    /* a PET_ variable of a flag is not a number: exit 1; likewise */
};

/* Value of a variable, or NULL. The text is borrowed as long as the options are used. */
typedef const char *options_lookup(void *ctx, const char *name);

/* Parses `argc` words (without the program's name). `out` borrows them; it is fully written only with OPTIONS_OK. */
enum options_verdict options_parse(int argc, char *const *argv, options_lookup *lookup, void *ctx, struct options *out);

/* How many words the option at argv[at] takes, with its name: 1 or 2. 0: it is no option, and would be the script. */
int options_count_words(int argc, char *const *argv, int at);

/* Longest number, in digits, that Python's int() converts. */
#define OPTIONS_DIGITS_MAX 4300

/* Python's int(text), with values beyond int64 cut to the nearest one. */
bool options_parse_integer(const char *text, int64_t *out);

/* Python's float(text). */
bool options_parse_real(const char *text, double *out);

#endif
