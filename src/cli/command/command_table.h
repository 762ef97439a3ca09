/* The subcommands, once: main.c, the help and the completions are made from this list, and tests compare the manual
 * page with it.
 *
 * X(name, help): cmd_name() runs it. Help for zsh ends at a parenthesis or a colon (completion.c). */
#ifndef CLI_COMMAND_TABLE_H
#define CLI_COMMAND_TABLE_H

/* Those that have a help of their own. */
#define COMMAND_TABLE_OWN(X)                                                                                           \
    X(run, "start the workers of a job on this node (torchrun's command line)")                                        \
    X(store, "serve a key-value store for jobs, on a port")                                                            \
    X(bench, "time collectives over sizes, with the columns of nccl-tests")                                            \
    X(trace, "join the traces of a job for Perfetto, or report on them")                                               \
    X(doctor, "check this node before a job: names, network, limits, GPUs")                                            \
    X(status, "show a running job: nodes, rounds, restarts and their causes")                                          \
    X(fsdp, "say what a model needs of memory when it is sharded")                                                     \
    X(ckpt, "look at checkpoints, import and export them")                                                             \
    X(completion, "print the completions for bash or zsh")

#define COMMAND_TABLE(X)                                                                                               \
    COMMAND_TABLE_OWN(X)                                                                                               \
    X(help, "show this text, or that of a command: muster help run")                                                   \
    X(version, "show the version")

/* As literals: " run store ...". */
#define COMMAND_WORD(name, help) " " #name
#define COMMAND_WORDS_OWN COMMAND_TABLE_OWN(COMMAND_WORD)
#define COMMAND_WORDS COMMAND_TABLE(COMMAND_WORD)

#endif
