/* The parts of gather.h, each for one part of the facts. All block. Those that take a job run aside. */
#ifndef DOCTOR_GATHER_IMPL_H
#define DOCTOR_GATHER_IMPL_H

#include "doctor/aside.h"
#include "doctor/facts.h"

/* question: struct doctor_name_question; answer: struct doctor_name. */
struct doctor_name_question {
    char host[NET_HOST_MAX];
    bool is_own;
};
void doctor_ask_name(const struct aside_job *job);

/* question: struct net_endpoint; answer: struct doctor_port. */
void doctor_ask_port(const struct aside_job *job);

/* No question; answers: the parts of the facts of these names. */
void doctor_ask_memory(const struct aside_job *job);
void doctor_ask_temporary(const struct aside_job *job);
void doctor_ask_gpus(const struct aside_job *job);
void doctor_ask_kernel(const struct aside_job *job);

/* These only read what the kernel has at hand. `names`: of the endpoint's hosts, looked up already. */
void doctor_read_interfaces(const struct doctor_name *names, uint32_t count, struct doctor_interfaces *out);
void doctor_read_port_range(struct doctor_ports *out);
void doctor_read_clock(struct doctor_clock *out);
void doctor_read_limits(struct doctor_limits *out);
void doctor_read_processors(struct doctor_processors *out);
void doctor_read_fabric(struct doctor_fabric *out);
void doctor_read_torchrun(const char *search_path, struct doctor_torchrun *out);
void doctor_read_environment(char *const *environment, struct doctor_environment *out);

/* The first line of a small file, without its end; "" when it cannot be read. */
bool doctor_read_line(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
