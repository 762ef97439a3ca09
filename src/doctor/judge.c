/* All checks of a node in their order; see judge.h. */
#include "doctor/judge.h"

/* What was asked and has neither answered nor failed. */
static void judge_late(enum doctor_check check, struct doctor_findings *out) {
    const char *cause = "Run it again with --only, and look at `dmesg`";
    if (check == DOCTOR_MEMORY) {
        cause = "The file system of /dev/shm, or /proc, hangs: look at `dmesg`";
    } else if (check == DOCTOR_TEMPORARY) {
        cause =
            "A temporary folder on a file server that does not answer holds up every job: set TMPDIR to a local one";
    } else if (check == DOCTOR_GPUS) {
        cause = "A driver that hangs or crashes programs will do so to workers: look at `dmesg` for Xid lines, reset "
                "the GPU, or restart the machine";
    }
    struct doctor_finding *finding =
        doctor_find(out, check, DOCTOR_WARNING, "no answer within %d s, or the program that asked has crashed",
                    (int)(DOCTOR_TIMEOUT_MS / 1000));
    doctor_advise(finding, "%s", cause);
}

static void judge_one(const struct doctor_facts *facts, enum doctor_check check,
                      const struct doctor_known_variables *known, struct doctor_findings *out) {
    typedef void judge_fn(const struct doctor_facts *facts, struct doctor_findings *out);
    static judge_fn *const judges[DOCTOR_CHECK_COUNT] = {
        [DOCTOR_NAMES] = doctor_judge_names,           [DOCTOR_INTERFACES] = doctor_judge_interfaces,
        [DOCTOR_PORTS] = doctor_judge_ports,           [DOCTOR_CLOCK] = doctor_judge_clock,
        [DOCTOR_LIMITS] = doctor_judge_limits,         [DOCTOR_MEMORY] = doctor_judge_memory,
        [DOCTOR_TEMPORARY] = doctor_judge_temporary,   [DOCTOR_KERNEL] = doctor_judge_kernel,
        [DOCTOR_PROCESSORS] = doctor_judge_processors, [DOCTOR_GPUS] = doctor_judge_gpus,
        [DOCTOR_INFINIBAND] = doctor_judge_infiniband, [DOCTOR_NCCL] = doctor_judge_nccl,
    };
    if (check == DOCTOR_ENVIRONMENT) {
        doctor_judge_environment(facts, known, out);
    } else if (judges[check]) {
        judges[check](facts, out);
    }
}

void doctor_judge(const struct doctor_facts *facts, doctor_checks wanted, const struct doctor_known_variables *known,
                  struct doctor_findings *out) {
    for (unsigned i = 0; i < DOCTOR_CHECK_COUNT; i++) {
        enum doctor_check check = (enum doctor_check)i;
        if (!(wanted & DOCTOR_CHECK_BIT(check)) || check == DOCTOR_NODES || check == DOCTOR_NETWORK) {
            continue;
        }
        if (facts->answered & DOCTOR_CHECK_BIT(check)) {
            judge_one(facts, check, known, out);
        } else {
            judge_late(check, out);
        }
    }
}
