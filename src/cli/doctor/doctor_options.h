/* The command line of `muster doctor`: words of its own, and a whole line of `muster run` around them. */
#ifndef CLI_DOCTOR_OPTIONS_H
#define CLI_DOCTOR_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "doctor/finding.h"
#include "net/endpoint.h"

struct doctor_options {
    struct net_endpoint_list endpoints;
    uint32_t node_count; /* 0: not given */
    int64_t join_ms;
    doctor_checks wanted;
    bool wants_list, wants_json, wants_help;
};

/* argv[0] is not looked at. MUSTER_EINVAL with a sentence; MUSTER_ENOMEM. */
int doctor_options_parse(int argc, char **argv, struct doctor_options *out);

#endif
