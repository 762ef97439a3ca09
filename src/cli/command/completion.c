/* Writing the completion scripts; see completion.h. */
#include "cli/command/completion.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/command_table.h"
#include "cli/command/options.h"
#include "rendezvous/backends.h"

/* What to offer as a value, where it is not free text: words, or a kind of file. */
struct value_hint {
    const char *words;
    enum option_id id;
    bool is_folder;
};

/* As `muster doctor --list` says; tests/proc/test_completion.py compares. */
#define DOCTOR_CHECKS                                                                                                  \
    "names interfaces ports clock limits memory temporary kernel processors gpus infiniband nccl environment nodes "   \
    "network"

static const struct value_hint hints[] = {
    {"auto cpu gpu", OPTION_NPROC_PER_NODE, false},
    {&RDZV_BACKEND_WORDS[1], OPTION_RDZV_BACKEND, false},
    {"null console", OPTION_EVENT_LOG_HANDLER, false},
    {"0 1 2 3", OPTION_REDIRECTS, false},
    {"0 1 2 3", OPTION_TEE, false},
    {"default", OPTION_LOGS_SPECS, false},
    {NULL, OPTION_LOG_DIR, true},
};

static const char *value_words(const struct option_spec *spec) {
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (hints[i].id == spec->id) {
            return hints[i].words;
        }
    }
    return spec->choices;
}

static bool value_is_file(const struct option_spec *spec) {
    return spec->id == OPTION_OUTCOME;
}

static bool value_is_folder(const struct option_spec *spec) {
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (hints[i].id == spec->id) {
            return hints[i].is_folder;
        }
    }
    return false;
}

/* bash */

/* "-r|--redirects" or "--log-dir|--log_dir" */
static int append_pattern(struct buf *out, const struct option_spec *spec) {
    char underscored[OPTION_SPELLING_MAX];
    int rc = 0;
    if (spec->letter != 0) {
        rc = buf_printf(out, "-%c|", spec->letter);
    }
    rc = rc ? rc : buf_printf(out, "%s", spec->name);
    if (rc == 0 && option_spelling(spec, true, underscored)) {
        rc = buf_printf(out, "|%s", underscored);
    }
    return rc;
}

/* Its value stands behind a "=", or there is none. */
static int append_bash_optional(struct buf *out, const struct option_spec *spec) {
    return buf_printf(out,
                      ")\n"
                      "        if [[ $equals ]]; then\n"
                      "            mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$current\")\n"
                      "            return\n"
                      "        fi\n"
                      "        ;;\n",
                      value_words(spec));
}

static int append_bash_values(struct buf *out) {
    int rc = buf_printf(out, "    case $previous in\n");
    for (size_t i = 0; i < OPTION_COUNT && rc == 0; i++) {
        const struct option_spec *spec = &option_specs[i];
        if (!option_takes_value(spec)) {
            continue;
        }
        rc = buf_printf(out, "    ");
        rc = rc ? rc : append_pattern(out, spec);
        if (option_may_be_bare(spec)) {
            rc = rc ? rc : append_bash_optional(out, spec);
            continue;
        }
        if (value_is_folder(spec)) {
            rc = rc ? rc : buf_printf(out, ")\n        mapfile -t COMPREPLY < <(compgen -d -- \"$current\")\n");
        } else if (value_is_file(spec)) {
            rc = rc ? rc : buf_printf(out, ")\n        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n");
        } else {
            const char *words = value_words(spec);
            rc = rc ? rc
                    : buf_printf(out, ")\n        mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$current\")\n",
                                 words ? words : "");
        }
        rc = rc ? rc : buf_printf(out, "        return\n        ;;\n");
    }
    return rc ? rc : buf_printf(out, "    esac\n");
}

/* The loop that finds out whether the script has been named already. */
static int append_bash_script(struct buf *out) {
    int rc = buf_printf(out, "    for ((i = first; i < COMP_CWORD; i++)); do\n"
                             "        case ${COMP_WORDS[i]} in\n"
                             "        =) ;;\n"
                             "        ");
    for (size_t i = 0; i < OPTION_COUNT && rc == 0; i++) {
        if (option_may_be_bare(&option_specs[i])) {
            rc = append_pattern(out, &option_specs[i]);
            rc = rc ? rc : buf_printf(out, ") [[ ${COMP_WORDS[i + 1]} == = ]] && i=$((i + 2)) ;;\n        ");
        }
    }
    bool first = true;
    for (size_t i = 0; i < OPTION_COUNT && rc == 0; i++) {
        if (!option_takes_value(&option_specs[i]) || option_may_be_bare(&option_specs[i])) {
            continue;
        }
        rc = first ? 0 : buf_printf(out, "|");
        rc = rc ? rc : append_pattern(out, &option_specs[i]);
        first = false;
    }
    return rc ? rc
              : buf_printf(out, ")\n"
                                "            [[ ${COMP_WORDS[i + 1]} == = ]] && i=$((i + 1))\n"
                                "            i=$((i + 1))\n"
                                "            ((i < COMP_CWORD)) || break\n"
                                "            ;;\n"
                                "        -*) ;;\n"
                                "        *)\n"
                                "            mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
                                "            return\n"
                                "            ;;\n"
                                "        esac\n"
                                "    done\n");
}

static int append_bash_options(struct buf *out) {
    int rc = buf_printf(out, "    if [[ $current == -* ]]; then\n        words='");
    for (size_t i = 0; i < OPTION_COUNT && rc == 0; i++) {
        rc = buf_printf(out, "%s%s", i > 0 ? " " : "", option_specs[i].name);
    }
    return rc ? rc
              : buf_printf(out, "'\n"
                                "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
                                "    else\n"
                                "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
                                "    fi\n");
}

/* Verbs, then options of the verb, then files. */
static const char bash_ckpt[] =
    "        ckpt)\n"
    "            if ((COMP_CWORD == 2)); then\n"
    "                words='ls show verify diff import reshard export prune --help'\n"
    "            elif [[ $current == -* ]]; then\n"
    "                words='--help'\n"
    "                case ${COMP_WORDS[2]} in\n"
    "                import) words+=' --to --step --only --skip' ;;\n"
    "                reshard) words+=' --to --ranks --step --keep --only --skip' ;;\n"
    "                export) words+=' --to --shard-size --rename --only --skip' ;;\n"
    "                show) words+=' --only --skip --json' ;;\n"
    "                diff) words+=' --only --skip' ;;\n"
    "                prune) words+=' --keep' ;;\n"
    "                esac\n"
    "            elif [[ ! $previous =~ ^--(only|skip|step|keep|ranks|rename|shard-size)$ ]]; then\n"
    "                mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
    "                return\n"
    "            fi\n"
    "            ;;\n";

int completion_bash(struct buf *out) {
    int rc = buf_printf(
        out,
        "# Completion of muster and torchrun for bash: source this file, or put it into\n"
        "# ~/.local/share/bash-completion/completions/ as muster and as torchrun.\n"
        "# Written by `muster completion bash`.\n"
        "# shellcheck shell=bash\n"
        "_muster()\n"
        "{\n"
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
        "    local first=1 equals= words i\n"
        "    COMPREPLY=()\n"
        "    [[ $previous == = || $current == = ]] && equals=yes\n"
        "    [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
        "    [[ $current == = ]] && current=\n"
        "    if [[ ${COMP_WORDS[0]##*/} != torchrun ]]; then\n"
        "        words=\n"
        "        ((COMP_CWORD == 1)) && words='%s'\n"
        "        case ${COMP_WORDS[1]} in\n"
        "        completion) words=${words:-bash zsh tcsh} ;;\n"
        "        help) words=${words:-%s} ;;\n"
        "        bench)\n"
        "            if [[ $current == -* ]]; then\n"
        "                words='--ranks --engine --memory --tune --tune=links -b -e -f -i -n -w -c -o -d -r --help'\n"
        "            elif [[ $previous == -o ]]; then\n"
        "                words='sum prod min max avg band bor bxor'\n"
        "            elif [[ $previous == -d ]]; then\n"
        "                words='int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64'\n"
        "            elif [[ $previous == --memory ]]; then\n"
        "                words='private own'\n"
        "            elif [[ $previous != -* ]]; then\n"
        "                words='all_reduce broadcast reduce all_gather gather scatter'\n"
        "                words+=' reduce_scatter all_to_all sendrecv barrier all'\n"
        "            fi\n"
        "            ;;\n"
        "        trace)\n"
        "            if ((COMP_CWORD == 2)); then\n"
        "                words='merge report --help'\n"
        "            elif [[ $current == -* ]]; then\n"
        "                words='--output --help'\n"
        "            else\n"
        "                mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
        "                return\n"
        "            fi\n"
        "            ;;\n"
        "        store) words=${words:---port --host --help} ;;\n"
        "        status)\n"
        "            if [[ $previous == --*-file || $previous == --tls-* ]]; then\n"
        "                mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
        "                return\n"
        "            elif [[ $current == -* ]]; then\n"
        "                words='--watch --json --rdzv-id --secret-file --tls-cert --tls-key --tls-ca --help'\n"
        "            fi\n"
        "            ;;\n"
        "        fsdp)\n"
        "            if ((COMP_CWORD == 2)); then\n"
        "                words='plan --help'\n"
        "            elif [[ $previous == --units ]]; then\n"
        "                mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
        "                return\n"
        "            elif [[ $current == -* ]]; then\n"
        "                words='--gpt --units --hosts --ranks-per-host --states --bf16 --hybrid --prefetch'\n"
        "                words+=' --keep-gathered --memory --json --help'\n"
        "            fi\n"
        "            ;;\n"
        "%s"
        "        doctor)\n"
        "            if [[ $previous == --only ]]; then\n"
        "                words='" DOCTOR_CHECKS "'\n"
        "                i=\n"
        "                [[ $current == *,* ]] && i=${current%%,*},\n"
        "                mapfile -t COMPREPLY < <(compgen -P \"$i\" -W \"$words\" -- \"${current##*,}\")\n"
        "                return\n"
        "            elif [[ $previous == --nnodes || $previous == --timeout || $previous == --rdzv-endpoint ]]; then\n"
        "                return\n"
        "            else\n"
        "                words=${words:---rdzv-endpoint --nnodes --timeout --only --list --json --help}\n"
        "            fi\n"
        "            ;;\n"
        "        esac\n"
        "        if [[ -n $words || ${COMP_WORDS[1]} != run ]]; then\n"
        "            mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
        "            return\n"
        "        fi\n"
        "        first=2\n"
        "    fi\n",
        &COMMAND_WORDS[1], &COMMAND_WORDS_OWN[1], bash_ckpt);
    rc = rc ? rc : append_bash_script(out);
    rc = rc ? rc : append_bash_values(out);
    rc = rc ? rc : append_bash_options(out);
    return rc ? rc
              : buf_printf(out, "}\n"
                                "complete -o filenames -F _muster muster torchrun\n");
}

/* zsh */

/* The first sentence, without what _arguments and the quotes give a meaning to. */
static void format_summary(const char *help, char *out, size_t size) {
    size_t used = 0;
    for (const char *p = help; *p != '\0' && used + 2 < size; p++) {
        if ((*p == '.' && (p[1] == ' ' || p[1] == '\0')) || *p == ':' || *p == ';' || *p == '(') {
            break;
        }
        if (strchr("[]'`\\", *p) == NULL) {
            out[used++] = *p;
        }
    }
    while (used > 0 && out[used - 1] == ' ') {
        used--;
    }
    out[used] = '\0';
}

static int append_zsh_action(struct buf *out, const struct option_spec *spec) {
    char name[OPTION_SPELLING_MAX];
    if (!option_takes_value(spec)) {
        return 0;
    }
    size_t n = 0;
    for (const char *p = spec->value_name; *p != '\0' && n + 1 < sizeof name; p++) {
        if (strchr("[]:", *p) == NULL) {
            name[n++] = *p;
        }
    }
    name[n] = '\0';
    const char *words = value_words(spec);
    if (words != NULL) {
        return buf_printf(out, "%s:%s:(%s)", option_may_be_bare(spec) ? ":" : "", name, words);
    }
    return buf_printf(out, ":%s:%s", name, value_is_folder(spec) ? "_files -/" : value_is_file(spec) ? "_files" : "");
}

static int append_zsh_spec(struct buf *out, const struct option_spec *spec, const char *spelling, bool hidden) {
    char summary[128];
    format_summary(spec->help, summary, sizeof summary);
    int rc = buf_printf(out, "        '%s%s%s", hidden ? "!" : "", spelling,
                        option_may_be_bare(spec)    ? "=-"
                        : !option_takes_value(spec) ? ""
                        : spelling[1] == '-'        ? "="
                                                    : "+");
    rc = rc || hidden ? rc : buf_printf(out, "[%s]", summary);
    rc = rc ? rc : append_zsh_action(out, spec);
    return rc ? rc : buf_printf(out, "' \\\n");
}

static int append_zsh_option(struct buf *out, const struct option_spec *spec) {
    char other[OPTION_SPELLING_MAX];
    int rc = append_zsh_spec(out, spec, spec->name, false);
    if (rc == 0 && spec->letter != 0) {
        (void)str_format(other, sizeof other, "-%c", spec->letter);
        rc = append_zsh_spec(out, spec, other, false);
    }
    if (rc == 0 && option_spelling(spec, true, other)) {
        rc = append_zsh_spec(out, spec, other, true);
    }
    return rc;
}

#define COMMAND_ROW(name, help) {#name, help},

static int append_zsh_commands(struct buf *out) {
    static const char *const commands[][2] = {COMMAND_TABLE(COMMAND_ROW)};
    char summary[128];
    int rc = 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands && rc == 0; i++) {
        format_summary(commands[i][1], summary, sizeof summary);
        rc = buf_printf(out, " \\\n            '%s[%s]'", commands[i][0], summary);
    }
    return rc;
}

int completion_zsh(struct buf *out) {
    int rc = buf_printf(
        out, "#compdef muster torchrun\n"
             "# Completion of muster and torchrun for zsh: put this file into a folder of $fpath as _muster.\n"
             "# Written by `muster completion zsh`.\n"
             "_muster_run() {\n"
             "    _arguments -s -S -A '-*' \\\n");
    for (size_t i = 0; i < OPTION_COUNT && rc == 0; i++) {
        rc = append_zsh_option(out, &option_specs[i]);
    }
    rc = rc ? rc
            : buf_printf(out, "        '1:script:_files' \\\n"
                              "        '*:argument:_files'\n"
                              "}\n"
                              "\n"
                              "_muster() {\n"
                              "    if [[ ${words[1]:t} == torchrun ]]; then\n"
                              "        _muster_run\n"
                              "    elif ((CURRENT == 2)); then\n"
                              "        _values command");
    rc = rc ? rc : append_zsh_commands(out);
    return rc ? rc
              : buf_printf(
                    out,
                    "\n"
                    "    else\n"
                    "        local command=${words[2]}\n"
                    "        shift words\n"
                    "        ((CURRENT--))\n"
                    "        case $command in\n"
                    "        run) _muster_run ;;\n"
                    "        store) _arguments '--port=[port to serve]:port:' '--host=[address to serve]:host:' "
                    "'--help[show help]' ;;\n"
                    "        bench) _arguments '*:operation:(all_reduce broadcast reduce all_gather gather scatter "
                    "reduce_scatter all_to_all sendrecv barrier all)' '--ranks=[ranks to start]:ranks:' "
                    "'--engine=[what carries the calls out]:engine:(auto muster mpi nccl)' "
                    "'--memory=[buffers]:kind:(private own)' '--tune=-[print a table of algorithms, or of "
                    "links]::what:(links)' "
                    "'-b[smallest size]:bytes:' '-e[largest size]:bytes:' "
                    "'-f[factor]:factor:' '-i[step]:bytes:' '-n[timed calls]:count:' '-w[calls before]:count:' "
                    "'-c[check]:check:(0 1)' '-o[reduction]:reduction:(sum prod min max avg band bor bxor)' "
                    "'-d[type]:type:(int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 "
                    "float64)' "
                    "'-r[root]:rank:' '--help[show help]' ;;\n"
                    "        trace) _arguments '1:what:(merge report)' '2:folder:_files -/' "
                    "'(-o --output)'{-o,--output=}'[the file to write]:file:_files' '--help[show help]' ;;\n"
                    "        status) _arguments '1:endpoint:' '--watch[keep it live]' '--json[for programs]' "
                    "'--rdzv-id=[name of the job]:id:' '--secret-file=[secret of the job]:file:_files' "
                    "'--tls-cert=[certificate]:file:_files' '--tls-key=[its key]:file:_files' "
                    "'--tls-ca=[authority of all members]:file:_files' "
                    "'--help[show help]' ;;\n"
                    "        doctor) _arguments '--rdzv-endpoint=[where the nodes meet]:endpoint:' "
                    "'--nnodes=[nodes that run this together]:count:' '--timeout=[to wait for them]:seconds:' "
                    "'--only=[these checks]:checks:_values -s , check " DOCTOR_CHECKS
                    "' '--list[list the checks]' '--json[for programs]' "
                    "'--help[show help]' ;;\n"
                    "        fsdp) _arguments '1:what:(plan)' '--gpt=[layers,heads,width,context,vocabulary]:numbers:' "
                    "'--units=[a model as JSON]:file:_files' '--hosts=[hosts]:count:' "
                    "'--ranks-per-host=[ranks on each]:count:' '--states=[values of the optimizer]:count:' "
                    "'--bf16[compute in bfloat16]' '--hybrid[shard within hosts]' "
                    "'--prefetch=[units gathered ahead]:count:(0 1 2 3 4 5 6 7 8)' "
                    "'--keep-gathered[until the backward pass]' '--memory=[of a host]:size:' "
                    "'--json[for programs]' '--help[show help]' ;;\n"
                    "        ckpt) _arguments '1:verb:(ls show verify diff import reshard export prune)'"
                    " '*:source:_files' '--to=[where it goes]:path:_files' '--step=[of what is written]:number:' "
                    "'--ranks=[parts of the checkpoint]:number:'"
                    " '--keep=[how many stay]:number:' '--shard-size=[of each file]:size:'"
                    " '*--rename=[other names]:old=new:' '*--only=[names that begin so]:prefix:'"
                    " '*--skip=[names that begin so]:prefix:' '--json[for programs]' '--help[show help]' ;;\n"
                    "        completion) _values shell bash zsh tcsh ;;\n"
                    "        help) _values command" COMMAND_WORDS_OWN " ;;\n"
                    "        esac\n"
                    "    fi\n"
                    "}\n"
                    "\n"
                    "_muster \"$@\"\n");
}

/* ---- tcsh ---- */

/* Lists are in parentheses; a word behind an option with choices is one of them, the first without a dash is a file. */
static int add_tcsh_command(struct buf *out, const char *command, const char *verbs) {
    char spelling[OPTION_SPELLING_MAX];
    int code = buf_printf(out, "complete %s", command);
    code = code || !verbs ? code : buf_printf(out, " 'p/1/(%s)/'", verbs);
    code = code ? code : buf_printf(out, " 'c/--/(");
    for (size_t i = 0; i < OPTION_COUNT && code == 0; i++) {
        (void)option_spelling(&option_specs[i], false, spelling);
        code = buf_printf(out, "%s%s", i > 0 ? " " : "", spelling + 2);
    }
    code = code ? code : buf_printf(out, ")/'");
    for (size_t i = 0; i < OPTION_COUNT && code == 0; i++) {
        (void)option_spelling(&option_specs[i], false, spelling);
        if (code == 0 && value_words(&option_specs[i])) {
            code = buf_printf(out, " 'n/%s/(%s)/'", spelling, value_words(&option_specs[i]));
        }
    }
    return code ? code : buf_printf(out, " 'p/*/f/'\n");
}

int completion_tcsh(struct buf *out) {
    int code = buf_printf(out, "# Completion of muster and torchrun for tcsh: source this file.\n"
                               "# Written by `muster completion tcsh`.\n");
    code = code ? code : add_tcsh_command(out, "torchrun", NULL);
    return code ? code : add_tcsh_command(out, "muster", &COMMAND_WORDS[1]);
}

/* ---- all of them ---- */

static const struct {
    const char *name;
    int (*write)(struct buf *out);
} shells[] = {{"bash", completion_bash}, {"zsh", completion_zsh}, {"tcsh", completion_tcsh}};

enum { SHELLS = sizeof shells / sizeof *shells };

/* SHELLS: there is none of that name. */
static size_t find_shell(const char *name) {
    size_t i = 0;
    while (i < SHELLS && strcmp(shells[i].name, name) != 0) {
        i++;
    }
    return i;
}

bool completion_knows(const char *shell) {
    return find_shell(shell) < SHELLS;
}

int completion_print(const char *shell, const char *program) {
    struct buf out;
    size_t at = find_shell(shell);
    assert(at < SHELLS);
    buf_init(&out, COMPLETION_BYTES_MAX);
    bool fine = shells[at].write(&out) == 0 && cli_write(STDOUT_FILENO, &out);
    buf_done(&out);
    if (!fine) {
        cli_error(program, false, "the script could not be written to stdout");
    }
    return fine ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
