/* The simulator's command line: one seed, many seeds, or a size to be measured. See docs/simulation.md. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "sim_kernel.h"
#include "sim_memory.h"
#include "sim_world_impl.h"

enum { PROGRESS_EVERY = 1000, DELAY_MS_MAX = 10000, BEATS_MAX = 100, CUT_NODES_MAX = 60 };

struct settings {
    uint64_t seed, count;
    uint32_t nodes, endpoints, beats;
    int64_t delay_us;
    bool c10d, muster, statics, traces, measures, progresses, preempts, pauses, cuts, is_strict;
    bool ends_at_first; /* violation */
};

struct totals {
    uint64_t worlds, events, rounds, violations;
    double began_s;
};

static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int number) {
    (void)number;
    is_interrupted = 1;
}

/* The world that runs, for who has to say where the program broke off. */
static struct sim_world_options running;

static const char *backend_name(enum rdzv_backend backend) {
    return backend == RDZV_BACKEND_C10D ? "c10d" : backend == RDZV_BACKEND_STATIC ? "static" : "muster";
}

/* An assertion of the code under test, or worse: the program ends anyway. */
static void on_crash(int number) {
    (void)signal(number, SIG_DFL);
    (void)dprintf( // NOLINT(bugprone-signal-handler)
        STDOUT_FILENO, "CRASH backend=%s seed=%" PRIu64 " time=%.6f s step=%" PRIu64 ": signal %d\n",
        backend_name(running.backend), running.seed, (double)sim_kernel.now_us / (double)SIM_S,
        sim_kernel.counts.events, number);
    (void)raise(number);
}

static double now_s(void) {
    struct timespec now;
    (void)__real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void on_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    sim_trace("host %u: %s", sim_kernel.current ? sim_kernel.current->index : 0, text);
}

/* ---- seeds ---- */

static void run_one(const struct settings *s, uint64_t seed, enum rdzv_backend backend, struct totals *totals) {
    struct sim_world_options options = {.seed = seed,
                                        .backend = backend,
                                        .node_count = s->nodes,
                                        .endpoint_count = s->endpoints,
                                        .preempts = s->preempts,
                                        .pauses = s->pauses,
                                        .cuts = s->cuts,
                                        .is_strict = s->is_strict,
                                        .traces = s->traces};
    struct sim_world_result result;
    running = options;
    sim_world_run(&options, &result);
    totals->worlds++;
    totals->events += result.events;
    totals->rounds += result.round_count;
    if (result.violation) {
        totals->violations++;
        (void)printf("VIOLATION backend=%s seed=%" PRIu64 " nodes=%u time=%.6f s step=%" PRIu64 ": %s\n"
                     "  replay: make sim SEED=%" PRIu64 " NODES=%u BACKEND=%s ENDPOINTS=%u%s%s TRACE=1\n",
                     backend_name(backend), seed, result.node_count, (double)result.end_us / (double)SIM_S,
                     result.events, result.violation, seed, s->nodes, backend_name(backend), s->endpoints,
                     s->preempts ? " PREEMPT=1"
                     : s->pauses ? " PAUSE=1"
                     : s->cuts   ? " CUTS=1"
                                 : "",
                     s->is_strict ? " STRICT=1" : "");
        (void)fflush(stdout);
    }
}

static void report(const struct totals *totals, FILE *to, const char *end) {
    double took_s = now_s() - totals->began_s;
    (void)fprintf(to,
                  "%" PRIu64 " jobs, %" PRIu64 " rounds, %" PRIu64 " events in %.1f s (%.0f jobs/s, %.0f events/s), "
                  "%" PRIu64 " violations%s",
                  totals->worlds, totals->rounds, totals->events, took_s, (double)totals->worlds / took_s,
                  (double)totals->events / took_s, totals->violations, end);
}

static int run_seeds(const struct settings *s) {
    struct totals totals = {.began_s = now_s()};
    uint64_t done = 0;
    for (; done < s->count && !is_interrupted && !(s->ends_at_first && totals.violations > 0); done++) {
        if (s->muster) {
            run_one(s, s->seed + done, RDZV_BACKEND_MUSTER, &totals);
        }
        if (s->c10d) {
            run_one(s, s->seed + done, RDZV_BACKEND_C10D, &totals);
        }
        if (s->statics) {
            run_one(s, s->seed + done, RDZV_BACKEND_STATIC, &totals);
        }
        if (s->progresses && done % PROGRESS_EVERY == PROGRESS_EVERY - 1) {
            report(&totals, stderr, "\r");
        }
    }
    (void)printf("seeds %" PRIu64 " to %" PRIu64 "%s: ", s->seed, s->seed + done - (done > 0),
                 is_interrupted ? " (interrupted)" : "");
    report(&totals, stdout, "\n");
    return totals.violations > 0 || (totals.rounds == 0 && s->count > 1); /* one job alone may be one without a world */
}

/* ---- measuring ---- */

static double used_s(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void print_figures(const char *what, const struct sim_world_figures *f, uint32_t nodes) {
    (void)printf("  %-12s %10.3f ms virtual, %8.3f s real, %9.1f messages and %11.0f bytes a node\n", what,
                 (double)f->virtual_us / 1e3, f->real_s, (double)f->sends / nodes, (double)f->bytes / nodes);
}

static int measure(const struct settings *s, enum rdzv_backend backend) {
    struct sim_world_options options = {.seed = s->seed,
                                        .backend = backend,
                                        .node_count = s->nodes,
                                        .measure = SIM_MEASURE_FAILURE,
                                        .delay_us = s->delay_us,
                                        .beats = s->beats};
    struct sim_world_result r;
    double began_s = used_s();
    sim_world_run(&options, &r);
    (void)printf("%s, %u nodes\n", backend_name(backend), r.node_count);
    print_figures("first world", &r.first, r.node_count);
    print_figures("failure", &r.next, r.node_count);
    bool fine = !r.violation && r.next.sends > 0;
    if (fine && r.node_count > 1) {
        options.measure = SIM_MEASURE_DEATH;
        sim_world_run(&options, &r);
        print_figures("death", &r.next, r.node_count - 1);
        fine = !r.violation && r.next.sends > 0;
    }
    if (fine && r.node_count > 2 && backend == RDZV_BACKEND_MUSTER && s->endpoints != 1) {
        options.measure = SIM_MEASURE_SERVER;
        options.endpoint_count = 3;
        sim_world_run(&options, &r);
        print_figures("server's", &r.next, r.node_count - 1);
        fine = !r.violation && r.next.sends > 0;
    }
    (void)printf("  %.2f s of processor time in all%s%s\n", used_s() - began_s, r.violation ? ": " : "",
                 r.violation ? r.violation : "");
    return !fine;
}

/* ---- options ---- */

static int usage(void) {
    (void)fputs(
        "usage: simulation [--seed N] [--count N] [--nodes N] [--backend muster|c10d|static] [--trace] [--progress]\n"
        "                  [--first] [--endpoints 1|2|3] [--preempt | --pause | --cuts] [--strict]\n"
        "       simulation --measure --nodes N [--backend muster|c10d] [--endpoints 1] [--delay MS]\n"
        "                  [--beats N]\n",
        stderr);
    return 2;
}

static bool parse_number(const char *text, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    *out = text ? strtoull(text, &end, 10) : 0;
    return text && *text && !*end && errno == 0;
}

static bool parse(int argc, char **argv, struct settings *s) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        uint64_t number = 0;
        if (strcmp(name, "--trace") == 0) {
            s->traces = true;
        } else if (strcmp(name, "--measure") == 0) {
            s->measures = true;
        } else if (strcmp(name, "--first") == 0) {
            s->ends_at_first = true;
        } else if (strcmp(name, "--progress") == 0) {
            s->progresses = true;
        } else if (strcmp(name, "--preempt") == 0) {
            s->preempts = true;
        } else if (strcmp(name, "--pause") == 0) {
            s->pauses = true;
        } else if (strcmp(name, "--cuts") == 0) {
            s->cuts = true;
        } else if (strcmp(name, "--strict") == 0) {
            s->is_strict = true;
        } else if (strcmp(name, "--backend") == 0 && i + 1 < argc) {
            name = argv[++i];
            s->c10d = strcmp(name, "c10d") == 0;
            s->muster = strcmp(name, "muster") == 0;
            s->statics = strcmp(name, "static") == 0;
            if (!s->c10d && !s->muster && !s->statics) {
                return false;
            }
        } else if (i + 1 < argc && parse_number(argv[++i], &number)) {
            if (strcmp(name, "--seed") == 0) {
                s->seed = number;
            } else if (strcmp(name, "--count") == 0) {
                s->count = number;
            } else if (strcmp(name, "--nodes") == 0) {
                s->nodes = (uint32_t)number;
            } else if (strcmp(name, "--delay") == 0 && number > 0 && number <= DELAY_MS_MAX) {
                s->delay_us = (int64_t)number * SIM_MS;
            } else if (strcmp(name, "--beats") == 0 && number > 0 && number <= BEATS_MAX) {
                s->beats = (uint32_t)number;
            } else if (strcmp(name, "--endpoints") == 0 && number <= 3) {
                s->endpoints = (uint32_t)number;
            } else {
                return false;
            }
        } else {
            return false;
        }
    }
    bool can_be_cut = s->nodes != 1 && s->nodes <= CUT_NODES_MAX;
    return s->count > 0 && (!s->cuts || can_be_cut);
}

int main(int argc, char **argv) {
    struct settings s = {.seed = 1, .count = 1, .c10d = true, .muster = true, .statics = true};
    if (!parse(argc, argv, &s)) {
        return usage();
    }
    json_set_alloc_funcs(sim_memory_counted_take, sim_memory_counted_give);
    json_object_seed(1);
    (void)signal(SIGINT, on_interrupt);
    (void)signal(SIGABRT, on_crash);
#ifndef __SANITIZE_ADDRESS__ /* which says more */
    (void)signal(SIGSEGV, on_crash);
#endif
    if (s.traces) {
        log_set_sink(on_log);
        log_set_level(LOG_LEVEL_DEBUG);
    }
    if (s.measures) {
        int muster = s.muster ? measure(&s, RDZV_BACKEND_MUSTER) : 0;
        return (s.c10d ? measure(&s, RDZV_BACKEND_C10D) : 0) || muster;
    }
    return run_seeds(&s);
}
