/* `muster store`: the TCPStore server alone, in the foreground, until a signal ends it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/status.h"
#include "base/str.h"
#include "base/system/descriptors.h"
#include "cli/command/cli.h"
#include "cli/command/log_stderr.h"
#include "net/endpoint.h"
#include "net/event_loop.h"
#include "store/server/kv_server.h"

static const char program[] = "muster store";

static const char help_text[] = "usage: muster store [--port PORT] [--host ADDRESS]\n"
                                "\n"
                                "Serves a key-value store that speaks PyTorch's TCPStore protocol, until SIGINT or\n"
                                "SIGTERM. Prints \"listening on ADDRESS:PORT\" once clients can connect.\n"
                                "\n"
                                "  --port PORT     port to listen on; 0 lets the kernel choose a free one\n"
                                "                  (default: 29500)\n"
                                "  --host ADDRESS  address or name of this machine to listen on (default: 127.0.0.1).\n"
                                "                  0.0.0.0 or :: opens the store to the network. The protocol knows\n"
                                "                  no password: whoever reaches the port can read, change and delete\n"
                                "                  every key, so do this on trusted networks only.\n"
                                "  -h, --help      show this text\n"
                                "\n"
                                "Jobs may share one store: give each its own --rdzv-id. To use it in a job:\n"
                                "  muster run --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --rdzv-id=NAME ...\n";

enum { PORT_DEFAULT = 29500, PORT_MAX = 65535, OWN_DESCRIPTORS = 16 };

struct store_options {
    const char *host;
    uint16_t port;
    bool wants_help;
};

static int parse_port(const char *text, uint16_t *out) {
    int64_t port = 0;
    if (!str_parse_i64(text, &port) || port < 0 || port > PORT_MAX) {
        return status_fail(MUSTER_EINVAL, "--port %.100s: a number from 0 to %d is expected", text, PORT_MAX);
    }
    *out = (uint16_t)port;
    return 0;
}

static int parse_options(int argc, char **argv, struct store_options *out) {
    *out = (struct store_options){.host = "127.0.0.1", .port = PORT_DEFAULT};
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value;
        bool missing = false;
        int code = 0;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            out->wants_help = true;
            return 0;
        }
        if ((value = cli_option_value(argc, argv, &i, "--port", &missing)) != NULL) {
            code = missing ? 0 : parse_port(value, &out->port);
        } else if ((value = cli_option_value(argc, argv, &i, "--host", &missing)) != NULL) {
            out->host = value;
        } else {
            code = status_fail(MUSTER_EINVAL, "'%.100s' is not understood; --port, --host and --help are known", word);
        }
        if (missing) {
            code = status_fail(MUSTER_EINVAL, "%.100s needs a value", word);
        }
        if (code) {
            return code;
        }
    }
    return 0;
}

/* The sentence for a socket that could not be opened, with what to do. */
static void explain_failure(const struct store_options *options, int error_number) {
    char text[MUSTER_DETAIL_MAX + 256];
    if (error_number == EADDRINUSE) {
        (void)str_format(text, sizeof text,
                         "port %u on %.200s is taken by another program; choose another one with --port, or any free "
                         "one with --port 0",
                         options->port, options->host);
    } else if (error_number == EADDRNOTAVAIL) {
        (void)str_format(text, sizeof text,
                         "%.200s is not an address of this machine; give --host one that is (ip addr lists them)",
                         options->host);
    } else if (error_number == EACCES) {
        (void)str_format(text, sizeof text, "port %u needs privileges; choose one from 1024 on with --port",
                         options->port);
    } else {
        (void)str_format(text, sizeof text, "%s", muster_detail());
    }
    cli_error(program, false, text);
}

static void on_signal(uv_signal_t *handle, int number) {
    (void)number;
    uv_stop(handle->loop);
}

/* False when nobody can learn the port. */
static bool print_addresses(const struct net_addresses *addresses, uint16_t port) {
    for (size_t i = 0; i < addresses->count; i++) {
        struct net_address address = addresses->list[i];
        char text[NET_ADDRESS_TEXT_MAX];
        net_address_set_port((struct sockaddr *)&address.sockaddr, port);
        (void)printf("listening on %s\n", net_address_format((const struct sockaddr *)&address.sockaddr, text));
    }
    return fflush(stdout) == 0;
}

/* Serves until a signal comes. The loop is the caller's. */
static int serve(uv_loop_t *loop, const struct store_options *options, const struct net_addresses *addresses) {
    const struct sockaddr *list[NET_ADDRESSES_MAX];
    for (size_t i = 0; i < addresses->count; i++) {
        list[i] = (const struct sockaddr *)&addresses->list[i].sockaddr;
    }
    struct kv_server_options server_options = {.addresses = list, .address_count = addresses->count};
    struct kv_server *server = NULL;
    errno = 0;
    if (kv_server_create(loop, &server_options, &server)) {
        explain_failure(options, errno);
        return CLI_EXIT_FAILURE;
    }
    static const int numbers[] = {SIGINT, SIGTERM};
    uv_signal_t signals[2];
    for (size_t i = 0; i < 2; i++) {
        (void)uv_signal_init(loop, &signals[i]);
        (void)uv_signal_start(&signals[i], on_signal, numbers[i]);
    }
    bool known = print_addresses(addresses, kv_server_port(server));
    if (known) {
        (void)uv_run(loop, UV_RUN_DEFAULT);
    } else {
        cli_error(program, false, "the address could not be written to stdout");
    }
    for (size_t i = 0; i < 2; i++) {
        uv_close((uv_handle_t *)&signals[i], NULL);
    }
    kv_server_close(server);
    (void)uv_run(loop, UV_RUN_DEFAULT); /* the close callbacks */
    return known ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

int cmd_store(int argc, char **argv) {
    struct store_options options;
    struct net_addresses addresses;
    log_stderr_install(getenv("LOGLEVEL"));
    if (parse_options(argc, argv, &options)) {
        cli_error(program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    if (options.wants_help) {
        return cli_print(help_text);
    }
    if (net_resolve(options.host, options.port, &addresses)) {
        cli_error(program, false, muster_detail());
        return CLI_EXIT_FAILURE;
    }
    if (descriptors_limit() < OWN_DESCRIPTORS) {
        cli_error(program, false, "fewer than 16 open files are allowed; raise the limit (ulimit -Hn)");
        return CLI_EXIT_FAILURE;
    }
    descriptors_raise(); /* one a client */
    uv_loop_t loop;
    if (event_loop_init(&loop) != MUSTER_OK) {
        cli_error(program, false, muster_detail());
        return CLI_EXIT_FAILURE;
    }
    int code = serve(&loop, &options, &addresses);
    (void)uv_loop_close(&loop);
    return code;
}
