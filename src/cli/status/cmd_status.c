/* `muster status`: how a job does, once or again and again. Asking is status_link.c's, the words are status_report.c's.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/status/status_link.h"
#include "cli/status/status_report.h"
#include "net/endpoint.h"
#include "net/event_loop.h"

static const char program[] = "muster status";

static const char help_text[] =
    "usage: muster status HOST[:PORT],... [--watch] [--json] [--rdzv-id ID]\n"
    "                     [--secret-file FILE]\n"
    "                     [--tls-cert FILE --tls-key FILE --tls-ca FILE]\n"
    "\n"
    "Shows the running job whose nodes meet at this --rdzv-endpoint: nodes and ranks, rounds,\n"
    "restarts and their causes, spares, and how long each phase took. For a job with\n"
    "--rdzv-backend=c10d, torchrun's included, it shows the state of the rendezvous. The job\n"
    "does not notice.\n"
    "\n"
    "  --watch         keep it live: the screen is drawn anew each second; what is not a\n"
    "                  terminal gets a line for each change. Ends with the job, or Ctrl-C\n"
    "  --json          the report as one JSON object; with --watch one a line, for each change\n"
    "  --rdzv-id ID    name of the job (default: none); c10d jobs and those with a secret are\n"
    "                  found by it\n"
    "  --secret-file FILE\n"
    "                  the job's secret, as with --rdzv-conf secret_file; or MUSTER_SECRET\n"
    "  --tls-cert FILE, --tls-key FILE, --tls-ca FILE\n"
    "                  for a job with TLS, as with --rdzv-conf tls_cert, tls_key and tls_ca\n"
    "  -h, --help      show this text\n"
    "\n"
    "The port is 29400 when left out. The exit code is 0 when there was a report, else 1.\n";

enum { PORT_DEFAULT = 29400, WATCH_MS = 1000, SCREEN_ROWS_DEFAULT = 24, CLOCK_TEXT_MAX = 16 };

struct status_options {
    struct net_endpoint_list endpoints;
    const char *run_id, *secret_file;
    struct tls_files tls;
    bool is_watching, wants_json, wants_help;
};

/* ---- the command line ---- */

static int parse_word(int argc, char **argv, int *at, struct status_options *out) {
    const char *word = argv[*at], *value;
    bool missing = false;
    int code = 0;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        out->wants_help = true;
    } else if (strcmp(word, "--watch") == 0) {
        out->is_watching = true;
    } else if (strcmp(word, "--json") == 0) {
        out->wants_json = true;
    } else if ((value = cli_option_value(argc, argv, at, "--rdzv-id", &missing)) != NULL) {
        out->run_id = value;
    } else if ((value = cli_option_value(argc, argv, at, "--secret-file", &missing)) != NULL) {
        out->secret_file = value;
    } else if ((value = cli_option_value(argc, argv, at, "--tls-cert", &missing)) != NULL) {
        out->tls.certificate = value;
    } else if ((value = cli_option_value(argc, argv, at, "--tls-key", &missing)) != NULL) {
        out->tls.key = value;
    } else if ((value = cli_option_value(argc, argv, at, "--tls-ca", &missing)) != NULL) {
        out->tls.authority = value;
    } else if (word[0] == '-' || out->endpoints.count > 0) {
        return status_fail(MUSTER_EINVAL,
                           "'%.100s' is not understood; one endpoint, --watch, --json, --rdzv-id, --secret-file, "
                           "--tls-cert, --tls-key, "
                           "--tls-ca and --help are known",
                           word);
    } else {
        code = net_endpoint_list_parse(word, PORT_DEFAULT, &out->endpoints);
    }
    return missing ? status_fail(MUSTER_EINVAL, "%.100s needs a value", word) : code;
}

static int parse_options(int argc, char **argv, struct status_options *out) {
    *out = (struct status_options){.run_id = "none"};
    int code = 0;
    for (int i = 1; i < argc && code == 0 && !out->wants_help; i++) {
        code = parse_word(argc, argv, &i, out);
    }
    if (code == 0 && !out->wants_help && out->endpoints.count == 0) {
        code = status_fail(MUSTER_EINVAL, "name the job's --rdzv-endpoint, such as: muster status node0:29400");
    }
    const struct tls_files *tls = &out->tls;
    bool is_whole = !tls->certificate == !tls->key && !tls->key == !tls->authority; /* all, or none */
    if (code == 0 && !out->wants_help && !is_whole) {
        code = status_fail(MUSTER_EINVAL, "TLS needs all of --tls-cert, --tls-key and --tls-ca");
    }
    return code;
}

/* NULL without one. */
static int load_secret(const struct status_options *options, struct secret **out) {
    struct secret_text text;
    int code = secret_text_load(options->secret_file, getenv("MUSTER_SECRET"), &text);
    if (code == 0 && text.len > 0) {
        code = secret_create(&text, out);
    }
    secret_text_wipe(&text);
    return code;
}

/* ---- what is printed ---- */

static size_t screen_rows(void) {
    struct winsize size = {0};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 4 ? size.ws_row : SCREEN_ROWS_DEFAULT;
}

/* As much of it as the screen has rows, over what was there. */
static int append_screen(struct buf *out, const json_t *report) {
    int code = buf_printf(out, "\x1b[H\x1b[J");
    size_t begin = out->len;
    code = code ? code : status_text(out, report, SIZE_MAX);
    size_t rows = screen_rows() - 1;
    for (size_t i = begin; i < out->len; i++) {
        if (buf_bytes(out)[i] == '\n' && --rows == 0) {
            out->len = i + 1;
        }
    }
    return code;
}

static int append_change(struct buf *out, const json_t *report) {
    char text[CLOCK_TEXT_MAX];
    struct tm now;
    time_t seconds = (time_t)(clock_realtime_us() / CLOCK_US_PER_S);
    if (!localtime_r(&seconds, &now) || strftime(text, sizeof text, "%H:%M:%S", &now) == 0) {
        text[0] = '\0';
    }
    int code = buf_printf(out, "%s ", text);
    return code ? code : status_text_line(out, report);
}

static int print_report(const struct status_options *options, const json_t *report) {
    struct buf out;
    buf_init(&out, STATUS_TEXT_BYTES_MAX);
    bool is_screen = options->is_watching && isatty(STDOUT_FILENO);
    int code = options->wants_json ? cli_append_json(&out, report, options->is_watching ? JSON_COMPACT : JSON_INDENT(1))
               : is_screen ? append_screen(&out, report)
               : options->is_watching ? append_change(&out, report)
                                      : status_text(&out, report, SIZE_MAX);
    (void)signal(SIGPIPE, SIG_DFL); /* whoever reads this may have seen enough */
    if (code == 0 && !cli_write(STDOUT_FILENO, &out)) {
        code = status_fail(MUSTER_ESYSTEM, "the report could not be written to stdout");
    }
    (void)signal(SIGPIPE, SIG_IGN);
    buf_done(&out);
    return code;
}

/* ---- watching ---- */

struct watch {
    uv_signal_t interrupt;
    uv_timer_t tick;
    bool is_interrupted, is_time;
};

static void on_interrupt(uv_signal_t *handle, int number) {
    struct watch *watch = handle->data;
    (void)number;
    watch->is_interrupted = true;
}

static void on_tick(uv_timer_t *timer) {
    struct watch *watch = timer->data;
    watch->is_time = true;
    event_loop_wake(timer);
}

static void wait_a_second(uv_loop_t *loop, struct watch *watch) {
    watch->is_time = false;
    (void)uv_timer_start(&watch->tick, on_tick, WATCH_MS, 0);
    while (!watch->is_time && !watch->is_interrupted) {
        (void)uv_run(loop, UV_RUN_ONCE);
    }
}

/* Does nobody read the report any more? A pipe says so before anything is written to it. */
static bool is_unread(void) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Until the job is over, or the user has seen enough. Takes `report`. */
static int watch_job(uv_loop_t *loop, const struct status_options *options, struct status_link *link,
                     struct watch *watch, json_t *report) {
    bool is_screen = isatty(STDOUT_FILENO) && !options->wants_json;
    int code = print_report(options, report);
    while (code == 0 && !watch->is_interrupted && !status_is_over(report)) {
        json_t *next = NULL;
        wait_a_second(loop, watch);
        watch->is_interrupted |= is_unread();
        code = watch->is_interrupted ? MUSTER_ECANCELED : status_link_ask(link, &next);
        if (code == 0 && (is_screen || status_differs(report, next))) {
            code = print_report(options, next);
        }
        if (next) {
            json_decref(report);
            report = next;
        }
    }
    json_decref(report);
    if (code == MUSTER_ECLOSED) { /* the agent that served it has ended, as it does with its job */
        cli_error(program, false, muster_detail());
    }
    return code == MUSTER_ECANCELED || code == MUSTER_ECLOSED ? 0 : code;
}

static int ask(uv_loop_t *loop, const struct status_options *options, const struct secret *secret,
               const struct tls_context *tls) {
    struct watch watch = {.is_interrupted = false};
    const struct status_question question = {.endpoints = options->endpoints.list,
                                             .endpoint_count = options->endpoints.count,
                                             .run_id = options->run_id,
                                             .secret = secret,
                                             .tls = tls,
                                             .is_interrupted = &watch.is_interrupted};
    struct status_link *link = NULL;
    json_t *report = NULL;
    (void)uv_timer_init(loop, &watch.tick);
    (void)uv_signal_init(loop, &watch.interrupt);
    watch.tick.data = watch.interrupt.data = &watch;
    (void)uv_signal_start(&watch.interrupt, on_interrupt, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN); /* a coordinator that hangs up has said why */
    int code = status_link_open(loop, &question, &link, &report);
    if (code == 0 && options->is_watching) {
        code = watch_job(loop, options, link, &watch, report);
    } else if (code == 0) {
        code = print_report(options, report);
        json_decref(report);
    }
    status_link_close(link);
    uv_close((uv_handle_t *)&watch.interrupt, NULL);
    uv_close((uv_handle_t *)&watch.tick, NULL);
    (void)uv_run(loop, UV_RUN_DEFAULT); /* the close callbacks */
    return code;
}

int cmd_status(int argc, char **argv) {
    struct status_options options;
    if (parse_options(argc, argv, &options) != 0) {
        cli_error(program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    if (options.wants_help) {
        return cli_print(help_text);
    }
    uv_loop_t loop;
    struct secret *secret = NULL;
    struct tls_context *tls = NULL;
    int code = load_secret(&options, &secret);
    if (code == 0 && options.tls.certificate) {
        code = tls_context_create(&options.tls, &tls);
    }
    if (code == 0 && (code = event_loop_init(&loop)) == 0) {
        code = ask(&loop, &options, secret, tls);
        (void)uv_loop_close(&loop);
    }
    if (code != 0) {
        cli_error(program, false, muster_detail());
    }
    secret_free(secret);
    tls_context_free(tls);
    return code == 0 ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}
