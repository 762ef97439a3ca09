/* Which part of the facts is read how, and all of them at once; see gather.h. */
#include "doctor/gather.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "doctor/gather_impl.h"

void doctor_read_environment(char *const *environment, struct doctor_environment *out) {
    static const char *const prefixes[] = {"NCCL_", "PET_", "MUSTER_SOCKET_", "GLOO_SOCKET_", "TORCHELASTIC_RUN_ID="};
    static const char *const names[] = {
        "OMP_NUM_THREADS",  "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "RANK",        "WORLD_SIZE", "LOCAL_RANK",
        "LOCAL_WORLD_SIZE", "GROUP_RANK",           "MASTER_ADDR",          "MASTER_PORT", "ROLE_RANK",  "NODE_RANK"};
    out->count = 0;
    for (char *const *at = environment; *at && out->count < DOCTOR_VARIABLES_MAX; at++) {
        struct doctor_variable *variable = &out->list[out->count];
        size_t n = strcspn(*at, "=");
        bool wanted = false;
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !wanted; i++) {
            wanted = str_has_prefix(*at, prefixes[i]);
        }
        for (size_t i = 0; i < sizeof names / sizeof *names && !wanted; i++) {
            wanted = strlen(names[i]) == n && memcmp(names[i], *at, n) == 0;
        }
        if (wanted && (*at)[n] == '=' && n < sizeof variable->name) {
            memcpy(variable->name, *at, n);
            variable->name[n] = '\0';
            (void)str_format(variable->value, sizeof variable->value, "%s", *at + n + 1); /* cut, if it is long */
            out->count++;
        }
    }
}

/* ---- torchrun ---- */

static bool is_this_program(const char *path) {
    struct stat own, other;
    return stat("/proc/self/exe", &own) == 0 && stat(path, &other) == 0 && own.st_dev == other.st_dev &&
           own.st_ino == other.st_ino;
}

void doctor_read_torchrun(const char *search_path, struct doctor_torchrun *out) {
    *out = (struct doctor_torchrun){.is_muster = false};
    for (const char *at = search_path; at && *at;) {
        char path[sizeof out->path];
        size_t n = strcspn(at, ":");
        bool found = str_format(path, sizeof path, "%.*s/torchrun", (int)n, at) && access(path, X_OK) == 0;
        bool is_muster = found && is_this_program(path);
        if (found && out->path[0] == '\0') {
            (void)str_copy(out->path, sizeof out->path, path);
            out->is_muster = is_muster;
        } else if (is_muster && !out->is_muster && out->other[0] == '\0') {
            (void)str_copy(out->other, sizeof out->other, path);
        }
        at += n + (at[n] == ':');
    }
}

/* ---- all of it ---- */

struct questions {
    struct doctor_name_question names[DOCTOR_NAMES_MAX];
    struct aside_job jobs[ASIDE_JOBS_MAX];
    size_t count;
    enum doctor_check checks[ASIDE_JOBS_MAX]; /* whose job it is */
};

static void ask(struct questions *questions, enum doctor_check check, void (*work)(const struct aside_job *job),
                const void *question, void *answer, size_t bytes) {
    questions->checks[questions->count] = check;
    questions->jobs[questions->count++] =
        (struct aside_job){.work = work, .question = question, .answer = answer, .answer_bytes = bytes};
}

static void ask_names(struct questions *questions, const struct net_endpoint_list *endpoints,
                      struct doctor_facts *out) {
    char own[NET_HOST_MAX] = "";
    (void)gethostname(own, sizeof own - 1);
    for (size_t i = 0; i <= endpoints->count; i++) {
        struct doctor_name_question *question = &questions->names[i];
        question->is_own = i == 0;
        (void)str_copy(question->host, sizeof question->host, i == 0 ? own : endpoints->list[i - 1].host);
        /* What is known should the look-up never end. */
        out->names[i].is_own = question->is_own;
        out->names[i].forward = DOCTOR_SILENT;
        (void)str_copy(out->names[i].host, sizeof out->names[i].host, question->host);
        ask(questions, DOCTOR_NAMES, doctor_ask_name, question, &out->names[i], sizeof out->names[i]);
    }
    out->name_count = (uint32_t)endpoints->count + 1;
}

static void ask_ports(struct questions *questions, const struct net_endpoint_list *endpoints,
                      struct doctor_ports *out) {
    for (size_t i = 0; i < endpoints->count; i++) {
        struct doctor_port *port = &out->list[i];
        (void)str_copy(port->host, sizeof port->host, endpoints->list[i].host);
        port->port = (uint16_t)endpoints->list[i].port;
        ask(questions, DOCTOR_PORTS, doctor_ask_port, &endpoints->list[i], port, sizeof *port);
    }
    out->count = (uint32_t)endpoints->count;
}

static void read_at_hand(doctor_checks wanted, struct doctor_facts *out) {
    if (wanted & DOCTOR_CHECK_BIT(DOCTOR_PORTS)) {
        doctor_read_port_range(&out->ports);
    }
    if (wanted & DOCTOR_CHECK_BIT(DOCTOR_PROCESSORS)) {
        doctor_read_processors(&out->processors);
    }
    doctor_read_limits(&out->limits);
    doctor_read_fabric(&out->fabric); /* the limits depend on whether there is one */
}

int doctor_gather(doctor_checks wanted, const struct net_endpoint_list *endpoints, uint32_t node_count,
                  char *const *environment, struct doctor_facts *out) {
    struct questions questions = {.count = 0};
    *out = (struct doctor_facts){.node_count = node_count};
    int64_t realtime_us = clock_realtime_us(), monotonic_ns = clock_monotonic_ns();
    doctor_read_environment(environment, &out->environment);
    doctor_read_torchrun(getenv("PATH"), &out->torchrun);
    if (wanted & (DOCTOR_CHECK_BIT(DOCTOR_NAMES) | DOCTOR_CHECK_BIT(DOCTOR_INTERFACES))) {
        ask_names(&questions, endpoints, out);
    }
    if (wanted & DOCTOR_CHECK_BIT(DOCTOR_PORTS)) {
        ask_ports(&questions, endpoints, &out->ports);
    }
    const struct {
        enum doctor_check check;
        void (*work)(const struct aside_job *job);
        void *answer;
        size_t bytes;
    } parts[] = {
        {DOCTOR_MEMORY, doctor_ask_memory, &out->memory, sizeof out->memory},
        {DOCTOR_TEMPORARY, doctor_ask_temporary, &out->temporary, sizeof out->temporary},
        {DOCTOR_GPUS, doctor_ask_gpus, &out->gpus, sizeof out->gpus},
        {DOCTOR_KERNEL, doctor_ask_kernel, &out->kernel, sizeof out->kernel},
    };
    doctor_checks asked = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (wanted & DOCTOR_CHECK_BIT(parts[i].check)) {
            asked |= DOCTOR_CHECK_BIT(parts[i].check);
            ask(&questions, parts[i].check, parts[i].work, NULL, parts[i].answer, parts[i].bytes);
        }
    }
    int code = aside_run(questions.jobs, questions.count, DOCTOR_TIMEOUT_MS);
    if (code != 0) {
        return status_prefix(code, "look at this machine");
    }
    /* Names and ports stand for themselves: what was not answered is a fact about each. */
    out->answered = DOCTOR_CHECKS_ALL & ~asked;
    for (size_t i = 0; i < questions.count; i++) {
        if (questions.jobs[i].is_answered) {
            out->answered |= DOCTOR_CHECK_BIT(questions.checks[i]);
        }
    }
    read_at_hand(wanted, out);
    if (wanted & DOCTOR_CHECK_BIT(DOCTOR_INTERFACES)) {
        doctor_read_interfaces(out->names + 1, out->name_count - 1, &out->interfaces);
    }
    doctor_read_clock(&out->clock);
    out->clock.realtime_us = realtime_us;
    out->clock.stepped_us =
        clock_realtime_us() - realtime_us - (clock_monotonic_ns() - monotonic_ns) / (CLOCK_NS_PER_S / CLOCK_US_PER_S);
    return 0;
}
