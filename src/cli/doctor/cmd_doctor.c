/* `muster doctor`: checks a node before a job. What is looked at and what it means is src/doctor/'s. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/help.h"
#include "cli/command/options.h"
#include "cli/doctor/doctor_options.h"
#include "cli/doctor/doctor_text.h"
#include "doctor/gather.h"
#include "doctor/judge.h"

static const char program[] = "muster doctor";

static const char help_text[] =
    "usage: muster doctor [--rdzv-endpoint HOST[:PORT],...] [--only CHECK,...] [--json]\n"
    "       muster doctor --nnodes N --rdzv-endpoint HOST[:PORT] ...   (on N nodes at once)\n"
    "       muster doctor [--only CHECK,...] OPTIONS-OF-MUSTER-RUN SCRIPT ...\n"
    "\n"
    "Checks this node before a job: names, network, ports, clock, limits, memory, kernel,\n"
    "processors, GPUs, InfiniBand and variables. Each finding says what to do. Nothing is\n"
    "changed, and nothing of this waits longer than 4 seconds.\n"
    "\n"
    "With --nnodes the nodes meet at the endpoint, which one of them serves. They compare what\n"
    "they are like, and measure latency, bandwidth and clocks of each pair, one pair a node\n"
    "at a time; the node that serves the endpoint prints that.\n"
    "\n"
    "A whole line of muster run may follow: the options are checked as it does, and those that\n"
    "say where the nodes meet are used.\n"
    "\n"
    "  --rdzv-endpoint HOST[:PORT],...\n"
    "                  where the nodes will meet: these names and ports are tried as well\n"
    "                  (port: 29400 when left out)\n"
    "  --nnodes N      nodes that run this command together (of MIN:MAX: MAX)\n"
    "  --timeout SECONDS\n"
    "                  with --nnodes: how long to wait for the others (default: 60)\n"
    "  --only CHECK,...\n"
    "                  these checks alone\n"
    "  --list          show the names of the checks\n"
    "  --json          one JSON object instead of text\n"
    "  -h, --help      show this text\n"
    "\n"
    "The exit code is 0 unless a finding is an error; then it is 1. A note is worth knowing,\n"
    "a warning may make a job fail, hang or be slow, with an error it will not run.\n";

/* Without --nnodes, an endpoint that is not this machine's loopback means that there will be other nodes. */
static uint32_t node_count(const struct doctor_options *options) {
    bool has_others = false;
    for (size_t i = 0; i < options->endpoints.count && !has_others; i++) {
        struct net_addresses addresses;
        has_others = net_resolve_numeric(options->endpoints.list[i].host, 0, &addresses) != 0 ||
                     !net_address_is_loopback((const struct sockaddr *)&addresses.list[0].sockaddr);
    }
    return has_others && options->node_count > 1 ? options->node_count : has_others && options->node_count == 0 ? 2 : 1;
}

/* The variables that stand in for options. */
static struct doctor_known_variables known_variables(const char *names[OPTION_COUNT]) {
    struct doctor_known_variables known = {.names = names};
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (option_specs[i].variable) {
            names[known.count++] = option_specs[i].variable;
        }
    }
    return known;
}

static int append_findings(struct buf *out, const struct doctor_findings *findings, const struct meeting *meeting,
                           bool as_json) {
    char node[NET_HOST_MAX] = "";
    (void)gethostname(node, sizeof node - 1);
    if (as_json) {
        return doctor_json(out, node, findings, meeting);
    }
    bool has_colours = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    int code = meeting ? doctor_text_matrix(out, meeting) : 0;
    return code ? code : doctor_text(out, findings, help_width(), has_colours);
}

static int print_findings(const struct doctor_findings *findings, const struct meeting *meeting, bool as_json) {
    struct buf out;
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    int code = append_findings(&out, findings, meeting, as_json);
    if (code == 0 && !cli_write(STDOUT_FILENO, &out)) {
        code = status_fail(MUSTER_ESYSTEM, "the findings could not be written to stdout");
    }
    buf_done(&out);
    return code;
}

/* ---- with other nodes ---- */

/* The one that serves the endpoint prints what there is between the nodes; the first one, if none of them does. */
static uint32_t printing_rank(const struct meeting *meeting) {
    for (uint32_t i = 0; i < meeting->node_count; i++) {
        if (meeting->nodes[i].is_serving) {
            return i;
        }
    }
    return 0;
}

static void judge_meeting(const struct meeting *meeting, struct doctor_findings *findings) {
    uint32_t printing = printing_rank(meeting);
    double *scratch = calloc(meeting->pair_count + 1, sizeof *scratch);
    if (meeting->rank != printing) {
        (void)doctor_find(findings, DOCTOR_NODES, DOCTOR_OK, "%u have met; %.100s prints what there is between them",
                          meeting->node_count, meeting->nodes[printing].host);
    } else if (scratch) {
        doctor_judge_nodes(meeting->nodes, meeting->node_count, findings);
        doctor_judge_pairs(meeting->nodes, meeting->node_count, meeting->pairs, meeting->pair_count, scratch, findings);
    }
    if (meeting->trouble[0] != '\0') {
        doctor_advise(
            doctor_find(findings, DOCTOR_NETWORK, DOCTOR_ERROR, "the nodes have lost each other: %.200s",
                        meeting->trouble),
            "One of them has ended or hangs, or the network is cut: see what the others say, and run it again");
    }
    free(scratch);
}

/* Meets the others at the first host of the endpoint. True: *out is to be printed here, and freed anyway. */
static bool meet_others(const struct doctor_options *options, const struct doctor_facts *facts,
                        struct doctor_findings *findings, struct meeting *out) {
    const struct doctor_name *name = &facts->names[1];
    struct meet_options where = {.host = name->addresses[0],
                                 .port = (uint16_t)options->endpoints.list[0].port,
                                 .may_host = name->local_count > 0,
                                 .node_count = options->node_count,
                                 .join_ms = options->join_ms};
    int code = name->address_count > 0 ? meet(&where, facts, out)
                                       : status_fail(MUSTER_ERESOLVE, "the address of %.100s is not known", name->host);
    if (code != 0) {
        doctor_advise(
            doctor_find(findings, DOCTOR_NETWORK, DOCTOR_ERROR, "the nodes have not met: %.220s", muster_detail()),
            "Run the same command on all nodes within %lld s; one of them must have the endpoint's address, "
            "and its port must be free",
            (long long)(options->join_ms / 1000));
        return false;
    }
    judge_meeting(out, findings);
    return out->rank == printing_rank(out);
}

/* ---- all of it ---- */

/* What the checks between nodes need to know of this one. */
static doctor_checks needed_checks(const struct doctor_options *options) {
    bool is_meeting = options->node_count > 1;
    return is_meeting ? DOCTOR_CHECKS_ALL : options->wanted;
}

static int look_and_judge(const struct doctor_options *options, struct doctor_facts *facts,
                          struct doctor_findings *findings) {
    const char *names[OPTION_COUNT];
    struct doctor_known_variables known = known_variables(names);
    struct meeting meeting = {.node_count = 0};
    int code = doctor_gather(needed_checks(options), &options->endpoints, node_count(options), environ, facts);
    if (code != 0) {
        return code;
    }
    facts->is_meeting = options->node_count > 1;
    doctor_judge(facts, options->wanted, &known, findings);
    bool is_printed = facts->is_meeting && meet_others(options, facts, findings, &meeting);
    code = print_findings(findings, is_printed ? &meeting : NULL, options->wants_json);
    meeting_done(&meeting);
    return code;
}

static int examine(const struct doctor_options *options) {
    struct doctor_facts *facts = malloc(sizeof *facts);
    struct doctor_findings *findings = calloc(1, sizeof *findings);
    int code = facts && findings ? look_and_judge(options, facts, findings)
                                 : status_fail(MUSTER_ENOMEM, "no memory to look at this machine");
    int exit_code = code == 0 && doctor_count(findings, DOCTOR_ERROR) == 0 ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    if (code != 0) {
        cli_error(program, false, muster_detail());
    }
    free(findings);
    free(facts);
    return exit_code;
}

static int print_list(void) {
    struct buf out;
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    bool fine = doctor_text_list(&out) == 0 && cli_write(STDOUT_FILENO, &out);
    buf_done(&out);
    if (!fine) {
        cli_error(program, false, "the list could not be written to stdout");
    }
    return fine ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

int cmd_doctor(int argc, char **argv) {
    struct doctor_options options;
    int code = doctor_options_parse(argc, argv, &options);
    if (code != 0) {
        cli_error(program, code == MUSTER_EINVAL, muster_detail());
        return code == MUSTER_EINVAL ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE;
    }
    if (options.wants_help) {
        return cli_print(help_text);
    }
    return options.wants_list ? print_list() : examine(&options);
}
