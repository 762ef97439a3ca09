/* What the MPI of a worker makes of that worker (--mpi). Without this, the other ranks would wait for ever for one that
 *
 * - calls MPI_Abort() and waits to be ended,
 * - speaks no PMI-1 over its socket,
 * - closes its connection to the MPI server between MPI_Init() and MPI_Finalize(), or before others wait for it there,
 *   and goes on (MPICH's launcher Hydra, too, ends the job for the former),
 * - exits with 0 between the two, or without having called MPI_Init() when others have.
 *
 * Each of them has failed, whatever its exit code. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "agent/agent_mpi_impl.h"
#include "base/log.h"
#include "base/str.h"

enum {
    KILL_MS = 2000, /* from SIGTERM to SIGKILL, for a worker that has failed and runs */
    LEFT_MS = 500,  /* a process that ends closes its descriptors a moment before that: is it one? */
    EXIT_CODE_MASK = 0xFF,
    EXIT_CODE_SHIFT = 8, /* in a wait status */
};

static const char without_init[] = "exited with code 0 without MPI_Init(), which other ranks had called";

/* `how`: a clause about the worker, for the report; NULL: its exit code says it. */
static void fail(struct agent *a, uint32_t local_rank, int code, const char *how) {
    struct agent_worker *worker = &a->workers[local_rank];
    worker->mpi_failed = true;
    worker->mpi_code = code;
    worker->mpi_how = how;
}

static void fail_alone(struct agent *a, uint32_t local_rank, const char *how) {
    log_error("rank %u %s: the other ranks would wait for it", a->world.base_global_rank + local_rank, how);
    fail(a, local_rank, EXIT_FAILURE, how);
}

static void signal_failed(struct agent *a, int signal_number) {
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        if (a->workers[i].mpi_failed && !a->workers[i].ended) {
            (void)guardian_signal_worker(a->guardian, i, signal_number);
        }
    }
}

static void on_kill(uv_timer_t *timer) {
    struct agent_mpi *mpi = timer->data;
    mpi->has_killed = true;
    signal_failed(mpi->agent, SIGKILL);
}

/* What follows is the failure of a worker. */
static void end_failed(struct agent *a) {
    signal_failed(a, SIGTERM);
    (void)uv_timer_start(&a->mpi->timer, on_kill, KILL_MS, 0);
}

/* Whoever leaves while a group is stopped does as it is told. Survivors of a failure cannot call MPI_Finalize(). */
static bool leaving_fails(const struct agent *a) {
    return a->mpi && !a->config->survivors_continue && a->machine.state == AGENT_STATE_RUNNING &&
           a->signalled_at_ns == 0;
}

/* ---- while it runs ---- */

/* Its library waits to be ended by whoever has started it. */
static void on_abort(struct agent *a, const struct mpi_said *said) {
    log_error("rank %u has called MPI_Abort() with the code %d%s%.500s", a->world.base_global_rank + said->local_rank,
              said->number, said->text[0] != '\0' ? ": " : "", said->text);
    int code = said->number & EXIT_CODE_MASK;
    fail(a, said->local_rank, code != 0 ? code : EXIT_FAILURE, NULL);
    end_failed(a);
}

static void on_broken(struct agent *a, const struct mpi_said *said) {
    log_error("rank %u does not speak PMI-1 as it should: %.500s", a->world.base_global_rank + said->local_rank,
              said->text);
    fail(a, said->local_rank, EXIT_FAILURE, "did not speak PMI-1, by which programs of MPI find each other");
    end_failed(a);
}

static void on_left_late(uv_timer_t *timer) {
    const struct agent_mpi *mpi = timer->data;
    struct agent *a = mpi->agent;
    for (uint32_t i = 0; i < a->config->nproc && leaving_fails(a); i++) {
        const struct agent_worker *worker = &a->workers[i];
        if (worker->mpi_left && !worker->ended && !worker->mpi_failed) {
            bool is_inside = mpi_stages_get(&a->mpi->stages, i) == MPI_STAGE_INSIDE;
            fail_alone(a, i,
                       is_inside ? "closed its connection to the MPI server between MPI_Init() and MPI_Finalize()"
                                 : "closed its connection to the MPI server, and other ranks waited for it in MPI");
            end_failed(a);
        }
    }
}

static void on_left(struct agent *a, uint32_t local_rank) {
    a->workers[local_rank].mpi_left = true;
    if (!uv_is_active((const uv_handle_t *)&a->mpi->left_timer)) {
        (void)uv_timer_start(&a->mpi->left_timer, on_left_late, LEFT_MS, 0);
    }
}

/* One has ended before, and was taken for a program without MPI: a success. It is reported as the failure that it turns
 * out to be; the one that now waits is ended for it. */
static void on_begun(struct agent *a, uint32_t local_rank) {
    for (uint32_t i = 0; i < a->config->nproc && leaving_fails(a); i++) {
        struct agent_worker *worker = &a->workers[i];
        if (worker->ended && worker->wait_status == 0 && mpi_stages_get(&a->mpi->stages, i) == MPI_STAGE_NONE) {
            fail_alone(a, i, without_init);
            worker->wait_status = EXIT_FAILURE << EXIT_CODE_SHIFT;
            fail(a, local_rank, EXIT_FAILURE, "was ended: it waited in MPI_Init() for a rank that had exited");
            end_failed(a);
            return;
        }
    }
}

void agent_mpi_on_rank(struct agent *a, enum mpi_frame kind, const struct mpi_said *said) {
    const struct agent_worker *worker = said->local_rank < a->config->nproc ? &a->workers[said->local_rank] : NULL;
    if (!worker || worker->ended || worker->mpi_failed || a->mpi->waits) {
        return;
    }
    if (kind == MPI_FRAME_ABORT) {
        on_abort(a, said);
    } else if (kind == MPI_FRAME_BROKEN) {
        on_broken(a, said);
    } else if (kind == MPI_FRAME_LEFT) {
        on_left(a, said->local_rank);
    } else {
        on_begun(a, said->local_rank);
    }
}

/* ---- when it has ended ---- */

static bool others_are_inside(const struct agent_mpi *mpi) {
    for (uint32_t i = 0; i < mpi->stages.count; i++) {
        if (mpi_stages_get(&mpi->stages, i) == MPI_STAGE_INSIDE) {
            return true;
        }
    }
    return false;
}

static void judge_success(struct agent *a, uint32_t local_rank) {
    enum mpi_stage stage = mpi_stages_get(&a->mpi->stages, local_rank);
    if (stage == MPI_STAGE_INSIDE) {
        fail_alone(a, local_rank, "exited with code 0 between MPI_Init() and MPI_Finalize()");
    } else if (stage == MPI_STAGE_NONE && others_are_inside(a->mpi)) {
        fail_alone(a, local_rank, without_init);
    }
}

/* It has ended badly, and not by a signal from here: that says more than what its MPI had done. A process whose devices
 * take long to be closed may have been killed before. */
static bool speaks_for_itself(const struct agent *a, int wait_status) {
    if (WIFEXITED(wait_status)) {
        return WEXITSTATUS(wait_status) != 0;
    }
    bool has_killed = a->mpi && a->mpi->has_killed;
    return WTERMSIG(wait_status) != SIGTERM && (WTERMSIG(wait_status) != SIGKILL || !has_killed);
}

int agent_mpi_rank_end(struct agent *a, uint32_t local_rank, int wait_status) {
    struct agent_worker *worker = &a->workers[local_rank];
    if (!worker->mpi_failed && wait_status == 0 && leaving_fails(a)) {
        judge_success(a, local_rank);
    }
    if (worker->mpi_how && speaks_for_itself(a, wait_status)) {
        worker->mpi_how = NULL;
        return wait_status;
    }
    return worker->mpi_failed ? worker->mpi_code << EXIT_CODE_SHIFT : wait_status;
}
