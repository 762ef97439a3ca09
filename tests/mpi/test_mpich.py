#!/usr/bin/env python3
# Programs of MPICH's family as workers: their world is the worker group, in every attempt, on one node and on several.
# waits: yes
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

import jobs
from jobs import Job

DEBIAN = jobs.found(jobs.LIBRARIES + "libmpich.so.12")
NEWER = jobs.of_folder("MUSTER_MPI5_MPICH", "libmpi.so.12")


def worlds():
    jobs.expect_worlds(DEBIAN)


def other_worlds():
    jobs.expect_other_worlds(DEBIAN)
    Job(DEBIAN, mode="--mpi=pmi1").expect_world()
    Job(DEBIAN, mode=None, variables={"PET_MPI": "pmi1"}).expect_world()
    Job(DEBIAN, nodes=(2, 2), options=["--rdzv-id=static"], variables={"PMI_RANK": "0", "PMI_SIZE": "1"}).expect_world()


def killed_under_backend_static():
    Job(DEBIAN, what="killed", nodes=(2, 1), backend="static").expect_world()


def killed_under_backend_muster():
    Job(DEBIAN, what="killed", nodes=(2, 1), backend="muster").expect_world()


def other_deaths():
    Job(DEBIAN, what="killed-before", nodes=(2, 1)).expect_world(attempt=1)
    Job(DEBIAN, what="killed", nodes=(1, 2)).expect_world(attempt=1)
    Job(DEBIAN, what="abort0", nodes=(3,), code=1).expect(r"MPI_Abort\(\) with the code 0", r"exitcode  : 1")


def departures():
    jobs.expect_departures(DEBIAN)
    jobs.expect_left(DEBIAN, "inside", "garbage", "did not speak PMI-1")


def other_departures():
    jobs.expect_other_departures(DEBIAN)
    for where in "before", "barrier":
        jobs.expect_left(DEBIAN, where, "garbage", "did not speak PMI-1", nodes=(4,))
    jobs.expect_left(DEBIAN, "before", "close", "closed its connection to the MPI server, and other ranks waited for it in MPI")


def killed_guardian():
    Job(DEBIAN, what="killed-guardian", nodes=(2,)).expect_world(attempt=1)


def a_node_comes_late():
    Job(DEBIAN, what="alone", nodes=(1, 2)).expect("asleep").expect_world()


def without_the_option():
    """Nobody tells MPI anything: each rank is alone."""
    alone = Job(DEBIAN, mode=None, nodes=(2,))
    alone.expect("rank 0 of 1, is 0", "rank 0 of 1, is 1")


def preloaded():
    """Forks of the preload server have their sockets, too."""
    job = Job(DEBIAN, what="killed", nodes=(3,), options=["--preload=json"], variables={"LOGLEVEL": "INFO"})
    job.expect_world(attempt=1).expect("the preload server .* is ready: json")
    if "as usual" in job.output:
        job.fail("workers were no forks")


@contextlib.contextmanager
def asleep(library, stderr=None, **variables):
    """A job whose two workers sleep behind MPI_Init(). Whatever happens, it does not outlive this."""
    agent = subprocess.Popen([jobs.BINARY, "run", "--standalone", "--mpi", "--nproc-per-node=2", jobs.WORKER, library, "sleep"],
                             env=dict(os.environ, OMP_NUM_THREADS="1", **variables), stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        lines = agent.stdout.readline() + agent.stdout.readline()
        assert lines.count("asleep") == 2, lines
        yield agent
    finally:
        agent.kill()
        agent.wait()


def interrupted():
    """SIGINT for the agent is SIGINT for the workers."""
    with asleep(DEBIAN, stderr=subprocess.STDOUT) as agent:
        agent.send_signal(signal.SIGINT)
        output = agent.communicate(timeout=jobs.LIMIT_S)[0]
    assert agent.returncode == 1 and "closing signal SIGINT" in output and "MPI server" not in output, (agent.returncode, output)


def killed_agent():
    """Nothing of it is left: no process, no folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        with asleep(DEBIAN, TMPDIR=temporary) as agent:
            agent.kill()
            agent.stdout.read()  # ends with the last process that has it
        until_s = time.monotonic() + jobs.LIMIT_S
        while [name for name in os.listdir(temporary) if name.startswith("muster-mpi")]:
            assert time.monotonic() < until_s, os.listdir(temporary)
            time.sleep(0.01)


def without_the_store():
    Job(DEBIAN, nodes=(1, 1), code=1, variables={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}).expect(
        "--mpi: ranks of several nodes meet in the agents' store, which TORCH_DISABLE_SHARE_RDZV_TCP_STORE turns off")


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("mpich_shm_")}


if DEBIAN is None:
    print("SKIP: no MPICH (package libmpich12)")
    sys.exit(77)
jobs.cases.run([worlds, other_worlds, killed_under_backend_static, killed_under_backend_muster, other_deaths, departures,
                other_departures, killed_guardian, a_node_comes_late,
                without_the_option, preloaded, interrupted, killed_agent, without_the_store])
if NEWER:
    before = shared_memory()
    jobs.expect_all(NEWER)
    for name in shared_memory() - before:  # MPICH 5 leaves it when a rank is killed, whoever has started it
        os.unlink("/dev/shm/" + name)
