/* From facts to findings. Pure: each check is a function of the facts alone. */
#ifndef DOCTOR_JUDGE_H
#define DOCTOR_JUDGE_H

#include "doctor/facts.h"
#include "doctor/finding.h"

/* Names of variables that the launcher reads (PET_NNODES ...), for telling the misspelt from the known. */
struct doctor_known_variables {
    const char *const *names; /* borrowed */
    size_t count;
};

/* All checks of one node that are in `wanted` (those of several nodes: nodes.h), in the order of the table; each gives
 * at least one finding, and an ok one only where there is nothing worse. */
void doctor_judge(const struct doctor_facts *facts, doctor_checks wanted, const struct doctor_known_variables *known,
                  struct doctor_findings *out);

void doctor_judge_names(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_interfaces(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_ports(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_clock(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_limits(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_memory(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_temporary(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_kernel(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_processors(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_gpus(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_infiniband(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_nccl(const struct doctor_facts *facts, struct doctor_findings *out);
void doctor_judge_environment(const struct doctor_facts *facts, const struct doctor_known_variables *known,
                              struct doctor_findings *out);

/* "8.0 GiB" into `out`, which it returns. */
#define DOCTOR_BYTES_TEXT_MAX 24
const char *doctor_bytes_text(uint64_t bytes, char out[DOCTOR_BYTES_TEXT_MAX]);

#endif
