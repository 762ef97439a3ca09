/* The variables of MPI launchers: Open MPI, MPICH's Hydra (Intel MPI, MVAPICH), other PMI and PMIx ones; see
 * scheduler.h. */
#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/run/scheduler_impl.h"

static void begin(struct scheduler *out, const char *name) {
    out->kind = SCHEDULER_MPI;
    out->is_launched = out->is_on_node = true;
    (void)str_copy(out->where, sizeof out->where, name);
}

/* Of "1252720640.0;tcp://10.0.0.1,192.168.0.1:41407;...": 10.0.0.1, where mpirun runs, and with it rank 0, unless it
 * was told otherwise. */
static void take_mpirun_host(const char *uri, struct scheduler *out) {
    const char *start = uri != NULL ? strstr(uri, "tcp://") : NULL;
    if (start != NULL) {
        start += strlen("tcp://");
        out->host_count = 1;
        (void)str_format(out->hosts[0], sizeof out->hosts[0], "%.*s", (int)strcspn(start, ",:;"), start);
    }
}

static int check_first_is_at_mpirun(const struct scheduler_source *source, const struct scheduler *out) {
    const char *mpirun = scheduler_variable(source, "OMPI_MCA_orte_hnp_uri");
    const char *local = scheduler_variable(source, "OMPI_MCA_orte_local_daemon_uri");
    if (!out->knows_rank || out->rank != 0 || mpirun == NULL || local == NULL || strcmp(mpirun, local) == 0 ||
        scheduler_variable(source, "MASTER_ADDR") != NULL) {
        return MUSTER_OK;
    }
    return status_fail(MUSTER_EINVAL,
                       "Open MPI: rank 0 is not on the host of mpirun, and only that one is known to all: give "
                       "--rdzv-endpoint=HOST:PORT with a host of the job, or mpirun -x MASTER_ADDR=HOST");
}

/* In an allocation of Slurm's mpirun begins with its first node. Whether it goes on with the next ones is not known. */
static int take_slurm_host(const struct scheduler_source *source, struct scheduler *out) {
    const char *list = scheduler_variable(source, "SLURM_JOB_NODELIST");
    int rc = list != NULL ? scheduler_first_hosts(list, out) : MUSTER_OK;
    out->host_count = out->host_count > 1 ? 1 : out->host_count;
    return rc;
}

int scheduler_read_open_mpi(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", NULL};
    const char *job = scheduler_variable(source, "OMPI_MCA_ess_base_jobid");
    int64_t number = 0;
    bool found = false;
    if (scheduler_variable(source, counts[0]) == NULL) {
        return MUSTER_OK;
    }
    begin(out, "Open MPI");
    int rc = scheduler_agents(source, counts, out);
    rc = rc ? rc : scheduler_number(source, "OMPI_COMM_WORLD_RANK", 0, &out->rank, &out->knows_rank);
    rc = rc ? rc : scheduler_number(source, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, &out->local_agents, &found);
    if (rc == MUSTER_OK && job != NULL && str_parse_i64(job, &number) && number > 0) {
        (void)str_format(out->run_id, sizeof out->run_id, "mpi-%" PRId64, number);
        out->port = scheduler_port((uint64_t)number >> 16); /* below are the jobs of one mpirun */
        (void)str_format(out->where, sizeof out->where, "Open MPI job %" PRId64, number);
    }
    take_mpirun_host(scheduler_variable(source, "OMPI_MCA_orte_hnp_uri"), out);
    rc = rc ? rc : take_slurm_host(source, out);
    if (rc == MUSTER_OK && scheduler_variable(source, "SLURM_JOB_NODELIST") == NULL) {
        rc = check_first_is_at_mpirun(source, out);
    }
    return rc ? rc : scheduler_master(source, out);
}

int scheduler_read_hydra(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"PMI_SIZE", NULL};
    bool found = false;
    if (scheduler_variable(source, "PMI_SIZE") == NULL || scheduler_variable(source, "MPI_LOCALNRANKS") == NULL) {
        return MUSTER_OK;
    }
    begin(out, "MPI (Hydra)");
    int rc = scheduler_agents(source, counts, out);
    rc = rc ? rc : scheduler_number(source, "PMI_RANK", 0, &out->rank, &out->knows_rank);
    rc = rc ? rc : scheduler_number(source, "MPI_LOCALNRANKS", 1, &out->local_agents, &found);
    rc = rc ? rc : take_slurm_host(source, out);
    return rc ? rc : scheduler_master(source, out);
}

/* PMIx has no variable for the number of processes. */
int scheduler_read_pmi(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"PMI_SIZE", NULL};
    const bool is_pmi =
        scheduler_variable(source, "PMI_SIZE") != NULL && scheduler_variable(source, "PMI_RANK") != NULL;
    if (!is_pmi && scheduler_variable(source, "PMIX_RANK") == NULL) {
        return MUSTER_OK;
    }
    begin(out, is_pmi ? "MPI (PMI)" : "MPI (PMIx)");
    int rc = is_pmi ? scheduler_agents(source, counts, out) : MUSTER_OK;
    rc = rc ? rc : scheduler_number(source, is_pmi ? "PMI_RANK" : "PMIX_RANK", 0, &out->rank, &out->knows_rank);
    const char *name_space = scheduler_variable(source, "PMIX_NAMESPACE");
    if (!is_pmi && name_space != NULL) {
        (void)str_copy(out->run_id, sizeof out->run_id, name_space);
    }
    rc = rc ? rc : take_slurm_host(source, out);
    return rc ? rc : scheduler_master(source, out);
}
