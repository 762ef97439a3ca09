/* The options of `muster run`, once: the parser, the help, the completions and the tests of the manual page are all
 * derived from this list. Everything but the rows marked OWN is torchrun's.
 *
 * X(ID, kind, scope, group, short letter or 0, name, environment variable or NULL, default or NULL,
 *   choices or NULL ("a b c"), value's name in the help, help)
 *
 * A name with inner dashes is also known with underscores. Rows are in torchrun's order, which is the order in which an
 * ambiguous prefix lists its candidates. The default is text, as if it had been typed. */
#ifndef CLI_OPTION_TABLE_H
#define CLI_OPTION_TABLE_H

#include "rendezvous/backends.h"

/* X(ID, title): the sections of the help. */
#define OPTION_GROUP_TABLE(X)                                                                                          \
    X(NODES, "Nodes and workers")                                                                                      \
    X(PROGRAM, "What is run")                                                                                          \
    X(RENDEZVOUS, "Rendezvous: how the nodes find each other")                                                         \
    X(STATIC, "Static rendezvous (the default when --master-port or --rdzv-endpoint is given)")                        \
    X(FAILURES, "Failures and the end")                                                                                \
    X(LOGS, "Output of the workers")                                                                                   \
    X(BINDING, "Devices and processors")                                                                               \
    X(OTHER, "Other")

#define OPTION_TABLE(X)                                                                                                \
    X(HELP, OPTION_KIND_HELP, OPTION_SCOPE_TORCHRUN, OTHER, 'h', "--help", NULL, NULL, NULL, NULL,                     \
      "Show this text and end.")                                                                                       \
    X(NNODES, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, NODES, 0, "--nnodes", "PET_NNODES", "1:1", NULL, "N|MIN:MAX",   \
      "Nodes of the job: a number, or minimum and maximum (elastic: the job runs with any number between them).")      \
    X(NPROC_PER_NODE, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, NODES, 0, "--nproc-per-node", "PET_NPROC_PER_NODE",     \
      "1", NULL, "N|auto|cpu|gpu",                                                                                     \
      "Workers on this node: a number, gpu (one for each visible GPU), cpu (one for each processor this process may "  \
      "use), or auto (gpu if there is one, else cpu).")                                                                \
    X(RDZV_BACKEND, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, RENDEZVOUS, 0, "--rdzv-backend", "PET_RDZV_BACKEND",      \
      "static", NULL, "NAME", RDZV_BACKEND_HELP_TEXT)                                                                  \
    X(RDZV_ENDPOINT, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, RENDEZVOUS, 0, "--rdzv-endpoint", "PET_RDZV_ENDPOINT",   \
      "", NULL, "HOST[:PORT]",                                                                                         \
      "Where the nodes meet: an address of one of them, the same on all nodes. The agent that can bind it hosts the "  \
      "store. The default port is 29400 for c10d and muster. For muster and an etcd several may be given, with "       \
      "commas: when the host of one dies, the job goes on at the next.")                                               \
    X(RDZV_ID, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, RENDEZVOUS, 0, "--rdzv-id", "PET_RDZV_ID", "none", NULL, "ID", \
      "Name of the job, the same on all nodes; jobs with different names can share a store.")                          \
    X(RDZV_CONF, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, RENDEZVOUS, 0, "--rdzv-conf", "PET_RDZV_CONF", "", NULL,     \
      "KEY=VALUE,...",                                                                                                 \
      "Settings of the rendezvous, in seconds: join_timeout=600, last_call_timeout=30, close_timeout=30, "             \
      "heartbeat_timeout=5, keep_alive_interval=5, keep_alive_max_attempt=3, hold_timeout=180, read_timeout=60; "      \
      "is_host=0|1, "                                                                                                  \
      "store_type=tcp|file; for muster and etcd-v3: topology=LABEL, max_membership_changes=N, max_preemptions=N, "     \
      "restart_window=SECONDS, secret_file=FILE, allow=ADDRESSES, tls_cert=FILE, tls_key=FILE, "                       \
      "tls_ca=FILE; for etcd-v3: cacert, cert, key, user, password_file; for static: timeout=900.")                    \
    X(STANDALONE, OPTION_KIND_FLAG, OPTION_SCOPE_TORCHRUN, RENDEZVOUS, 0, "--standalone", "PET_STANDALONE", NULL,      \
      NULL, NULL,                                                                                                      \
      "One node on its own: c10d on a free local port with a random id. Overrides --rdzv-backend, --rdzv-endpoint "    \
      "and --rdzv-id.")                                                                                                \
    X(MAX_RESTARTS, OPTION_KIND_INTEGER, OPTION_SCOPE_TORCHRUN, FAILURES, 0, "--max-restarts", "PET_MAX_RESTARTS",     \
      "0", NULL, "N",                                                                                                  \
      "How often the workers are started again after a failure before the job fails. Nodes that come or go do not "    \
      "count. With the muster and etcd-v3 backends: the failures of all nodes together.")                              \
    X(MONITOR_INTERVAL, OPTION_KIND_REAL, OPTION_SCOPE_TORCHRUN, FAILURES, 0, "--monitor-interval",                    \
      "PET_MONITOR_INTERVAL", "0.1", NULL, "SECONDS",                                                                  \
      "Accepted and checked; muster learns of failures by events and does not poll.")                                  \
    X(START_METHOD, OPTION_KIND_CHOICE, OPTION_SCOPE_TORCHRUN, OTHER, 0, "--start-method", "PET_START_METHOD",         \
      "spawn", "spawn fork forkserver", "METHOD",                                                                      \
      "spawn, fork or forkserver: accepted and checked; workers are always new processes.")                            \
    X(EVENT_LOG_HANDLER, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, OTHER, 0, "--event-log-handler",                     \
      "PET_EVENT_LOG_HANDLER", "null", NULL, "NAME",                                                                   \
      "null, or console to write one JSON line for each event to stderr (needs LOGLEVEL=INFO or lower).")              \
    X(ROLE, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, NODES, 0, "--role", "PET_ROLE", "default", NULL, "NAME",          \
      "Role of this node's workers; shown in log prefixes and handed over as ROLE_NAME.")                              \
    X(MODULE, OPTION_KIND_FLAG, OPTION_SCOPE_TORCHRUN, PROGRAM, 'm', "--module", "PET_MODULE", NULL, NULL, NULL,       \
      "SCRIPT is a Python module: run it as `python -m SCRIPT`.")                                                      \
    X(NO_PYTHON, OPTION_KIND_FLAG, OPTION_SCOPE_TORCHRUN, PROGRAM, 0, "--no-python", "PET_NO_PYTHON", NULL, NULL,      \
      NULL, "SCRIPT is any program: start it directly, looked up in PATH.")                                            \
    X(RUN_PATH, OPTION_KIND_FLAG, OPTION_SCOPE_TORCHRUN, PROGRAM, 0, "--run-path", "PET_RUN_PATH", NULL, NULL, NULL,   \
      "Run the file SCRIPT through runpy, and record its exceptions in the error file. Wins over --no-python.")        \
    X(LOG_DIR, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, LOGS, 0, "--log-dir", "PET_LOG_DIR", NULL, NULL, "DIR",        \
      "Where log and error files go, as DIR/ID_RANDOM/attempt_N/RANK/; a new directory under the temporary one when "  \
      "left out. /dev/null: no files at all.")                                                                         \
    X(REDIRECTS, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, LOGS, 'r', "--redirects", "PET_REDIRECTS", "0", NULL,        \
      "WHAT",                                                                                                          \
      "Send streams to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or for single local ranks: "  \
      "0:3,1:2.")                                                                                                      \
    X(TEE, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, LOGS, 't', "--tee", "PET_TEE", "0", NULL, "WHAT",                  \
      "The same, but to files and to the console, each line with the worker's prefix.")                                \
    X(LOG_LINE_PREFIX_TEMPLATE, OPTION_KIND_TEXT, OPTION_SCOPE_OWN, LOGS, 0, "--log-line-prefix-template",             \
      "PET_LOG_LINE_PREFIX_TEMPLATE", "", NULL, "TEXT",                                                                \
      "Prefix of console lines in place of [${role_name}${local_rank}]: with these, ${rank} and ${hostname}. As "      \
      "torchrun has it from 2.14 on.")                                                                                 \
    X(LOCAL_RANKS_FILTER, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, LOGS, 0, "--local-ranks-filter",                    \
      "PET_LOCAL_RANKS_FILTER", "", NULL, "RANK,...",                                                                  \
      "Show only these local ranks on the console; files are not affected.")                                           \
    X(DUPLICATE_STDOUT_FILTERS, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, LOGS, 0, "--duplicate-stdout-filters",        \
      "PET_DUPLICATE_STDOUT_FILTERS", NULL, NULL, "TEXT,...",                                                          \
      "Copy the stdout lines of --tee that contain one of the texts to filtered_stdout.log (,, is a comma).")          \
    X(DUPLICATE_STDERR_FILTERS, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, LOGS, 0, "--duplicate-stderr-filters",        \
      "PET_DUPLICATE_STDERR_FILTERS", NULL, NULL, "TEXT,...", "The same for stderr, to filtered_stderr.log.")          \
    X(NODE_RANK, OPTION_KIND_INTEGER, OPTION_SCOPE_TORCHRUN, STATIC, 0, "--node-rank", "PET_NODE_RANK", "0", NULL,     \
      "N", "Rank of this node, 0 to nodes-1.")                                                                         \
    X(MASTER_ADDR, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, STATIC, 0, "--master-addr", "PET_MASTER_ADDR",             \
      "127.0.0.1", NULL, "HOST", "Address of node 0.")                                                                 \
    X(MASTER_PORT, OPTION_KIND_INTEGER, OPTION_SCOPE_TORCHRUN, STATIC, 0, "--master-port", "PET_MASTER_PORT", NULL,    \
      NULL, "PORT", "Port of the store on node 0; 29500 when left out in a job of several nodes.")                     \
    X(LOCAL_ADDR, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, RENDEZVOUS, 0, "--local-addr", "PET_LOCAL_ADDR", NULL,      \
      NULL, "ADDRESS", "Address under which the other nodes reach this one, where the host name does not lead here.")  \
    X(PRINT_COMPLETION, OPTION_KIND_COMPLETION, OPTION_SCOPE_OWN, OTHER, 0, "--print-completion", NULL, NULL,          \
      "bash zsh tcsh", "SHELL",                                                                                        \
      "Print the completions for a shell and end, as `muster completion` does. As torchrun has it from 2.14 on.")      \
    X(LOGS_SPECS, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, OTHER, 0, "--logs-specs", NULL, NULL, NULL, "NAME",         \
      "Only `default` exists: torchrun's Python plug-ins for the log layout cannot be loaded.")                        \
    X(NUMA_BINDING, OPTION_KIND_CHOICE, OPTION_SCOPE_TORCHRUN, BINDING, 0, "--numa-binding", NULL, NULL,               \
      "node socket exclusive core-complex", "MODE",                                                                    \
      "Bind each worker to processors near the GPU of its local rank: node, socket, exclusive or core-complex.")       \
    X(SIGNALS_TO_HANDLE, OPTION_KIND_TEXT, OPTION_SCOPE_TORCHRUN, FAILURES, 0, "--signals-to-handle",                  \
      "PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", NULL, "SIGNAL,...",                                    \
      "Signals that are passed on to the workers and end the job. SIGHUP only if it is named here or was not ignored " \
      "before (nohup).")                                                                                               \
    X(SHUTDOWN_TIMEOUT, OPTION_KIND_INTEGER, OPTION_SCOPE_TORCHRUN, FAILURES, 0, "--shutdown-timeout",                 \
      "PET_SHUTDOWN_TIMEOUT", NULL, NULL, "SECONDS",                                                                   \
      "Time between the signal and SIGKILL; else TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30.")                            \
    X(VIRTUAL_LOCAL_RANK, OPTION_KIND_FLAG, OPTION_SCOPE_TORCHRUN, BINDING, 0, "--virtual-local-rank",                 \
      "PET_VIRTUAL_LOCAL_RANK", NULL, NULL, NULL,                                                                      \
      "Every worker sees LOCAL_RANK=0 and only its own GPU in CUDA_VISIBLE_DEVICES.")                                  \
    X(MERGE_LOGS, OPTION_KIND_FLAG, OPTION_SCOPE_OWN, LOGS, 0, "--merge-logs", "MUSTER_MERGE_LOGS", NULL, NULL, NULL,  \
      "Show all workers' output as whole lines with the worker's prefix, without writing files. Not in torchrun.")     \
    X(STDERR_TAIL, OPTION_KIND_INTEGER, OPTION_SCOPE_OWN, FAILURES, 0, "--stderr-tail", "MUSTER_STDERR_TAIL", "20",    \
      NULL, "LINES",                                                                                                   \
      "Last lines of a failed worker's stderr shown in the failure report; 0 for torchrun's report unchanged. Not in " \
      "torchrun.")                                                                                                     \
    X(SPARES, OPTION_KIND_TEXT, OPTION_SCOPE_OWN, NODES, 0, "--spares", "MUSTER_SPARES", NULL, NULL, "N",              \
      "How many nodes beyond the maximum of --nnodes may wait for a place, with a preload server that has imported "   \
      "PyTorch. Without it any number may wait, without such a server. For the muster and etcd-v3 backends. Not in "   \
      "torchrun.")                                                                                                     \
    X(PRELOAD, OPTION_KIND_TEXT, OPTION_SCOPE_OWN, PROGRAM, 0, "--preload", "MUSTER_PRELOAD", NULL, NULL,              \
      "MODULE,...",                                                                                                    \
      "Import these modules once on each node, in a server, and make every worker of every attempt a fork of it: "     \
      "torch, for example. For Python programs. What cannot be forked safely is started as usual, and the log says "   \
      "why. A module that ends in ? may be missing. Not in torchrun.")                                                 \
    X(SURVIVORS, OPTION_KIND_CHOICE, OPTION_SCOPE_OWN, FAILURES, 0, "--survivors", "MUSTER_SURVIVORS", "stop",         \
      "stop continue", "WHAT",                                                                                         \
      "What the other workers do when one fails. stop: they end, as with torchrun. continue: they go on, for "         \
      "programs that can shrink their group; the job succeeds if one worker does. Not in torchrun.")                   \
    X(PREEMPT_SIGNAL, OPTION_KIND_TEXT, OPTION_SCOPE_OWN, FAILURES, 0, "--preempt-signal", "MUSTER_PREEMPT_SIGNAL",    \
      "none", NULL, "SIGNAL",                                                                                          \
      "Signal which says that this node will be taken away. Workers of all nodes are then asked to stop after a "      \
      "snapshot, and the exit code is 75. none: there is no such signal. SIGUSR1 under Slurm. Not in torchrun.")       \
    X(PREEMPT_GRACE, OPTION_KIND_INTEGER, OPTION_SCOPE_OWN, FAILURES, 0, "--preempt-grace", "MUSTER_PREEMPT_GRACE",    \
      "25", NULL, "SECONDS",                                                                                           \
      "Time between that signal and SIGKILL; workers that still run after half of it get SIGTERM. Not in "             \
      "torchrun.")                                                                                                     \
    X(PREEMPT_TERM, OPTION_KIND_CHOICE, OPTION_SCOPE_OWN, FAILURES, 0, "--preempt-term", "MUSTER_PREEMPT_TERM",        \
      "half", "half now", "WHEN",                                                                                      \
      "When workers get SIGTERM after that signal. half: after half of the time; they are asked to stop before. now: " \
      "at once, for programs that save only on SIGTERM. The exit code is 75 in both cases. Not in torchrun.")          \
    X(RESTART_BACKOFF, OPTION_KIND_REAL, OPTION_SCOPE_OWN, FAILURES, 0, "--restart-backoff", "MUSTER_RESTART_BACKOFF", \
      "30", NULL, "SECONDS",                                                                                           \
      "Longest pause before a restart. The first restart comes at once; while attempts fail within 10 s, the next "    \
      "ones wait 0.5 s, 1 s, 2 s and so on up to this. 0: never wait. Not in torchrun.")                               \
    X(DETACHED, OPTION_KIND_CHOICE, OPTION_SCOPE_OWN, FAILURES, 0, "--detached", "MUSTER_DETACHED", "leave",           \
      "stop leave", "WHAT",                                                                                            \
      "Processes that workers started and left running when all had succeeded. leave: those that made a session of "   \
      "their own (setsid) run on; the others get SIGTERM, and SIGKILL after the shutdown timeout. stop: all of them "  \
      "get it. Not in torchrun.")                                                                                      \
    X(OUTCOME, OPTION_KIND_TEXT, OPTION_SCOPE_OWN, FAILURES, 0, "--outcome", "MUSTER_OUTCOME", NULL, NULL, "FILE",     \
      "Write how the job ended on this node to FILE, as JSON: result, root cause, and for every worker exit code, "    \
      "signal, times and error file. Written also when the launcher is killed. Not in torchrun.")                      \
    X(SCHEDULER, OPTION_KIND_CHOICE, OPTION_SCOPE_OWN, NODES, 0, "--scheduler", "MUSTER_SCHEDULER", "auto",            \
      "auto slurm kubernetes mpi none", "NAME",                                                                        \
      "Scheduler whose variables fill in what was not given (nodes, rank, endpoint, id, workers): auto (the one that " \
      "started this agent), slurm, kubernetes, mpi, or none. Called as torchrun: none, unless this is given. Not in "  \
      "torchrun.")                                                                                                     \
    X(MPI, OPTION_KIND_CHOICE_OR_BARE, OPTION_SCOPE_OWN, PROGRAM, 0, "--mpi", "PET_MPI", "none",                       \
      "auto pmi1 pmix none", "MODE",                                                                                   \
      "Workers may be MPI programs: MPI's world is the worker group, in every attempt. pmi1: for MPICH and its "       \
      "family. pmix: for Open MPI, by libpmix.so.2. auto (--mpi alone): both, without pmix where that library is "     \
      "missing. none: nobody tells MPI's libraries anything. Not in torchrun.")                                        \
    X(USE_ENV, OPTION_KIND_FLAG, OPTION_SCOPE_OWN, OTHER, 0, "--use-env", NULL, NULL, NULL, NULL,                      \
      "Accepted and without effect: for commands written for python -m torch.distributed.launch.")                     \
    X(VERSION, OPTION_KIND_VERSION, OPTION_SCOPE_OWN, OTHER, 0, "--version", NULL, NULL, NULL, NULL,                   \
      "Show the version and end. Not in torchrun.")

#endif
