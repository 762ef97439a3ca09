#!/usr/bin/env python3
# Programs of Open MPI as workers: their world is the worker group, in every attempt, on one node and on several.
# waits: yes
import os
import sys

import jobs
from jobs import Job

DEBIAN = jobs.found(jobs.LIBRARIES + "libmpi.so.40")
PMIX = jobs.found(jobs.LIBRARIES + "libpmix.so.2")
NEWER = jobs.of_folder("MUSTER_MPI5_OPENMPI", "libmpi.so.40")
MPICH = jobs.found(jobs.LIBRARIES + "libmpich.so.12")


def worlds():
    jobs.expect_worlds(DEBIAN)


def other_worlds():
    jobs.expect_other_worlds(DEBIAN)
    Job(DEBIAN, mode="--mpi=pmix").expect_world()


def other_deaths():
    Job(DEBIAN, what="killed-before", nodes=(2, 1)).expect_world(attempt=1)
    Job(DEBIAN, what="killed-guardian", nodes=(2,)).expect_world(attempt=1)


def departures():
    jobs.expect_departures(DEBIAN)


def other_departures():
    jobs.expect_other_departures(DEBIAN)


def a_node_comes_late():
    Job(DEBIAN, what="alone", nodes=(1, 2)).expect("asleep").expect_world()


def preloaded():
    Job(DEBIAN, nodes=(2,), options=["--preload=json"]).expect_world()


def data_on_request():
    """Data of a rank is asked for when it is needed, not brought to all beforehand."""
    Job(DEBIAN, nodes=(2, 1), variables={"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}).expect_world()


def fences_that_bring_nothing():
    """So that a node asks another one. Open MPI does not do this by default, nor the next."""
    by_hand("lazy", range(5))


def fences_of_some_ranks():
    by_hand("some", (1, 3))


def by_hand(what, meeting):
    job = Job(PMIX, what=what, nodes=(2, 2, 1), mode="--mpi=pmix", worker=jobs.PMIX_WORKER)
    for rank in range(5):
        job.expect(f"pmix: rank {rank} has {7 * sum(meeting)}\n")


def without_library():
    """A user of Open MPI learns what is missing; programs of MPICH's family do not need it."""
    with jobs.library_as("libpmix.so.2") as folder:
        Job(DEBIAN, mode="--mpi=pmix", nodes=(2,), code=1, folder=folder).expect(
            "--mpi: PMIx's library cannot be opened .*: install it .libpmix2 of Debian and Ubuntu")
        if MPICH:
            Job(MPICH, nodes=(2,), folder=folder).expect_world().expect("each rank of a program of Open MPI is a world of its own")


def with_a_library_that_crashes():
    """It takes the server with it, and nobody else."""
    path = os.path.join(os.path.dirname(jobs.BINARY), "tests", "mpi", "libcrashing_pmix.so")
    with jobs.library_as("libpmix.so.2", path) as folder:
        Job(DEBIAN, mode="--mpi=pmix", nodes=(2,), code=1, folder=folder).expect(
            "--mpi: the MPI server has ended by SIGABRT before the workers could start")
        if MPICH:
            Job(MPICH, nodes=(2,), folder=folder, what="killed").expect_world(attempt=1).expect("another one is started, without PMIx")


if DEBIAN is None or PMIX is None:
    print("SKIP: no Open MPI (package libopenmpi3) or no PMIx (libpmix2)")
    sys.exit(77)
jobs.cases.run([worlds, other_worlds, other_deaths, departures, other_departures, a_node_comes_late, preloaded, data_on_request, fences_that_bring_nothing, fences_of_some_ranks,
                without_library, with_a_library_that_crashes])
if NEWER:
    jobs.expect_all(NEWER)
