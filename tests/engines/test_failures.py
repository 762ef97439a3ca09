#!/usr/bin/env python3
# What happens on the engine 'mpi' when ranks die, are stopped, abort, or make different calls, and where MPI cannot be used
# (mpi_failures.c): with the system's MPIs, and with those that MUSTER_MPI5_OPENMPI and MUSTER_MPI5_MPICH name. And jobs that mpirun itself
# has started: it ends well with them, and who survives a killed rank can tell.
import glob
import os
import re
import subprocess
import sys
import tempfile

import installations

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cases  # noqa: E402

BUILD = os.path.dirname(os.path.abspath(os.environ["MUSTER_BINARY"]))
FAILURES, JOB = (os.path.join(BUILD, "tests", "engines", name) for name in ("mpi_failures", "mpi_job"))
# So that mpirun leaves the other processes alone when one dies. Those of MPICH end them, even with -disable-auto-cleanup.
LENIENT = {"Open MPI of the system": ["--mca", "orte_enable_recovery", "1"]}
# Of mpi_failures, where most of it is left out: a death, an abort, and a program that has begun MPI itself.
FEW = ("a_death_between_calls_fails_the_next", "an_abort_is_told_with_its_reason", "who_has_begun_MPI_may_share_it")


def environment_of(mpi):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "PRTE_", "MUSTER_"))}
    environment.update(installations.QUIET, OMP_NUM_THREADS="1")
    environment.update(mpi.variables)
    return environment


def check_failures(mpi):
    environment = environment_of(mpi)
    environment.update(MUSTER_TEST_STARTER=installations.command_of(mpi, "mpirun", BUILD), MUSTER_TEST_PATIENCE_MS="180000",
                       MUSTER_TEST_RELAY=os.path.join(BUILD, "tests", "engines", "starter_relay"), **installations.libraries_of(mpi))
    if "MUSTER_TEST_EXCEPT" in os.environ:
        environment["MUSTER_TEST_EXCEPT"] = os.environ["MUSTER_TEST_EXCEPT"]
    texts = []
    for only in [{}] if cases.wanted(f"all_on_{mpi.name.replace(' ', '_')}") else [{"MUSTER_TEST_ONLY": name} for name in FEW]:
        done = subprocess.run([FAILURES], env=dict(environment, **only), stdin=installations.mpirun_input(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=500, check=False)
        texts.append("\n".join(line for line in done.stdout.splitlines() if re.match(r"\[ |.*(rank|ERROR)", line)))
        assert done.returncode == 0, f"{mpi.name}: exit code {done.returncode}\n{texts[-1]}"
        assert not only or "[       OK ]" in texts[-1], f"{mpi.name}: no test is called {only}"
    text = "\n".join(texts)
    told_us = [int(us) for us in re.findall(r"told after (\d+) us", text)]
    told = f"; survivors were told within {max(told_us) / 1000:.0f} ms" if told_us else ""
    print(f"ok {mpi.name}: {text.count('[       OK ]')} passed{told}", flush=True)


def run_job(mpi, what, options=()):
    """What it has printed, and what its ranks have written for themselves."""
    with tempfile.TemporaryDirectory() as folder:
        command = [mpi.command, *options, "-n", "3", JOB, os.path.join(folder, "meet"), what]
        done = subprocess.run(command, env=environment_of(mpi), stdin=installations.mpirun_input(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=60, check=False)
        told = []
        for path in sorted(glob.glob(os.path.join(folder, "*.told-*"))):
            with open(path, encoding="utf-8") as file:
                told.append(file.read())
        return done.returncode, done.stdout, told


def check_jobs(mpi):
    code, text, told = run_job(mpi, "end")
    assert code == 0 and not told, f"{mpi.name}: a job that ends well gives {code}: {text} {told}"
    assert sorted(re.findall(r"rank (\d) of 3: 3 on mpi", text)) == ["0", "1", "2"], text
    _, text, told = run_job(mpi, "unfreed")
    assert len(re.findall(r"rank \d of 3: 3 on mpi", text)) == 3 and not told, f"{mpi.name}: {text} {told}"
    code, text, told = run_job(mpi, "killed", LENIENT.get(mpi.name, ()))
    if mpi.name in LENIENT:
        ranks = [match[1] for match in (re.match(r"rank (\d): .*rank 1 \(pid \d+ on host \S+\) was killed by signal 9", line) for line in told) if match]
        assert ranks == ["0", "2"], f"{mpi.name}: exit code {code}: {text} {told}"
    else:
        assert code != 0, f"{mpi.name}: a job whose rank 1 is killed gives 0: {text}"
    print(f"ok {mpi.name}: mpirun ends with the job{', and survivors tell' if mpi.name in LENIENT else ''}", flush=True)


if not os.path.exists(FAILURES):
    print(f"SKIP: {FAILURES} is not built")
    sys.exit(77)
ran = 0
for installation in installations.MPIS:
    if installation.variable and not os.environ.get(installation.variable):
        print(f"SKIPPED {installation.name}: {installation.variable} names no folder with bin/mpiexec and lib/", flush=True)
        continue
    why_not = installation.find(None)
    if why_not:
        print(f"SKIPPED {installation.name}: {why_not}", flush=True)
        continue
    ran += 1
    with installations.leftovers_removed():
        check_jobs(installation)
        check_failures(installation)
if not ran:
    print("SKIP: no MPI to test with")
    sys.exit(77)
