/* The variables of MPI launchers: Open MPI, MPICH's Hydra (Intel MPI, MVAPICH), other PMI and PMIx ones; see
 * scheduler.h. */
#include <inttypes.h>
#include <string.h>

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

/* Only mpirun's host is known to all. Rank 0 alone can see that it is on another one. */
static void check_first_is_at_mpirun(const struct scheduler_source *source, struct scheduler *out) {
    const char *mpirun = scheduler_variable(source, "OMPI_MCA_orte_hnp_uri");
    const char *local = scheduler_variable(source, "OMPI_MCA_orte_local_daemon_uri");
    if (!out->knows_rank || out->rank != 0 || mpirun == NULL || local == NULL || strcmp(mpirun, local) == 0 ||
        scheduler_variable(source, "MASTER_ADDR") != NULL) {
        return;
    }
    scheduler_doubt(out, "rank 0 is not on the host of mpirun, and only that one is known to all");
    out->host_count = 0;
}

/* In an allocation of Slurm's mpirun begins with its first node. Whether it goes on with the next ones is not known. */
static void take_slurm_host(const struct scheduler_source *source, struct scheduler *out) {
    const char *list = scheduler_variable(source, "SLURM_JOB_NODELIST");
    if (list != NULL) {
        (void)scheduler_first_hosts(list, out);
    }
    out->host_count = out->host_count > 1 ? 1 : out->host_count;
}

void scheduler_read_open_mpi(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", NULL};
    const char *job = scheduler_variable(source, "OMPI_MCA_ess_base_jobid");
    int64_t number = 0;
    if (!scheduler_agents(source, counts, out)) {
        return;
    }
    begin(out, "Open MPI");
    scheduler_rank(source, "OMPI_COMM_WORLD_RANK", out);
    (void)scheduler_number(source, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, out, &out->local_agents);
    if (job != NULL && str_parse_i64(job, &number) && number > 0) {
        (void)str_format(out->run_id, sizeof out->run_id, "mpi-%" PRId64, number);
        out->port = scheduler_port((uint64_t)number >> 16); /* below are the jobs of one mpirun */
        (void)str_format(out->where, sizeof out->where, "Open MPI job %" PRId64, number);
    }
    take_mpirun_host(scheduler_variable(source, "OMPI_MCA_orte_hnp_uri"), out);
    take_slurm_host(source, out);
    if (scheduler_variable(source, "SLURM_JOB_NODELIST") == NULL) {
        check_first_is_at_mpirun(source, out);
    }
    scheduler_master(source, out);
}

void scheduler_read_hydra(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"PMI_SIZE", NULL};
    if (scheduler_variable(source, "MPI_LOCALNRANKS") == NULL || !scheduler_agents(source, counts, out)) {
        return;
    }
    begin(out, "MPI (Hydra)");
    scheduler_rank(source, "PMI_RANK", out);
    (void)scheduler_number(source, "MPI_LOCALNRANKS", 1, out, &out->local_agents);
    take_slurm_host(source, out);
    scheduler_master(source, out);
}

static void read_pmi1(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"PMI_SIZE", NULL};
    if (scheduler_variable(source, "PMI_RANK") != NULL && scheduler_agents(source, counts, out)) {
        begin(out, "MPI (PMI)");
        scheduler_rank(source, "PMI_RANK", out);
    }
}

/* PMIx has no variable for the number of processes. */
static void read_pmix(const struct scheduler_source *source, struct scheduler *out) {
    const char *name_space = scheduler_variable(source, "PMIX_NAMESPACE");
    scheduler_rank(source, "PMIX_RANK", out);
    if (out->knows_rank) {
        begin(out, "MPI (PMIx)");
        (void)str_copy(out->run_id, sizeof out->run_id, name_space != NULL ? name_space : "");
    }
}

void scheduler_read_pmi(const struct scheduler_source *source, struct scheduler *out) {
    read_pmi1(source, out);
    if (out->kind == SCHEDULER_NONE) {
        read_pmix(source, out);
    }
    if (out->kind != SCHEDULER_NONE) {
        take_slurm_host(source, out);
        scheduler_master(source, out);
    }
}
