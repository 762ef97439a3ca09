#!/usr/bin/env python3
# Programs of Open MPI as workers: their world is the worker group, in every attempt, on one node and on several.
# timeout: 300
# waits: yes
import os
import sys

import jobs
from jobs import Job

DEBIAN = jobs.found(jobs.LIBRARIES + "libmpi.so.40")
PMIX = jobs.found(jobs.LIBRARIES + "libpmix.so.2")
NEWER = jobs.of_folder("MUSTER_MPI5_OPENMPI", "libmpi.so.40")
MPICH = jobs.found(jobs.LIBRARIES + "libmpich.so.12")


def details(library):
    Job(library, mode="--mpi=pmix").expect_world()
    Job(library, nodes=(1, 2, 1)).expect_world()
    Job(library, what="killed-before", nodes=(2, 1)).expect_world(attempt=1)
    Job(library, what="killed-guardian", nodes=(2,)).expect_world(attempt=1)
    Job(library, what="alone", nodes=(1, 2)).expect("asleep").expect_world()
    Job(library, nodes=(2,), options=["--preload=json"]).expect_world()
    # Data of a rank is asked for when it is needed, not brought to all beforehand.
    Job(library, nodes=(2, 1), variables={"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": "0"}).expect_world()


def by_hand():
    """What Open MPI does not do by default: fences that bring nothing, so that a node asks another one, and fences of some ranks."""
    for what, meeting in (("lazy", range(5)), ("some", (1, 3))):
        job = Job(PMIX, what=what, nodes=(2, 2, 1), mode="--mpi=pmix", worker=jobs.PMIX_WORKER)
        for rank in range(5):
            job.expect(f"pmix: rank {rank} has {7 * sum(meeting)}\n")


def without_library(library):
    """A user of Open MPI learns what is missing; programs of MPICH's family do not need it."""
    with jobs.library_as("libpmix.so.2") as folder:
        Job(library, mode="--mpi=pmix", nodes=(2,), code=1, folder=folder).expect(
            "--mpi: PMIx's library cannot be opened .*: install it .libpmix2 of Debian and Ubuntu")
        if MPICH:
            Job(MPICH, nodes=(2,), folder=folder).expect_world().expect("each rank of a program of Open MPI is a world of its own")


def with_a_library_that_crashes(library):
    """It takes the server with it, and nobody else."""
    path = os.path.join(os.path.dirname(jobs.BINARY), "tests", "mpi", "libcrashing_pmix.so")
    with jobs.library_as("libpmix.so.2", path) as folder:
        Job(library, mode="--mpi=pmix", nodes=(2,), code=1, folder=folder).expect(
            "--mpi: the MPI server has ended by SIGABRT before the workers could start")
        if MPICH:
            Job(MPICH, nodes=(2,), folder=folder, what="killed").expect_world(attempt=1).expect("another one is started, without PMIx")


if DEBIAN is None or PMIX is None:
    print("SKIP: no Open MPI (package libopenmpi3) or no PMIx (libpmix2)")
    sys.exit(77)
jobs.expect_all(DEBIAN)
details(DEBIAN)
by_hand()
without_library(DEBIAN)
with_a_library_that_crashes(DEBIAN)
if NEWER:
    jobs.expect_all(NEWER)
