#!/usr/bin/env python3
# muster run under real MPI launchers (Open MPI's mpirun, MPICH's Hydra), one agent on each of two hosts that are one machine.
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys

import namespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "engines"))
import installations  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PROGRAM = os.path.join(os.path.dirname(BINARY), "tests", "comm", "comm_launched")  # of libmuster
THREE = ["done 0 of 3", "done 1 of 3", "done 2 of 3"]
SHOW = ["--log-dir=/dev/null", "--no-python", "sh", "-c",
        "echo rank=$RANK of=$WORLD_SIZE run=$TORCHELASTIC_RUN_ID at=$MASTER_ADDR"]
TWO = ["rank=0 of=2", "rank=1 of=2"]


def launch(*command, code=0, **variables):
    environment = dict(os.environ, OMP_NUM_THREADS="1", **variables)
    done = subprocess.run(command, env=environment, stdin=installations.mpirun_input(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    ended = done.returncode == 0 if code == 0 else done.returncode != 0
    assert ended, f"{command}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def expect(text, *patterns):
    for pattern in patterns:
        assert re.search(pattern, text), f"not there: {pattern}\n{text}"


def ranks(text):
    return sorted(re.findall(r"rank=\d of=\d", text))


def remote_shell(folder):
    """In the place of ssh: hosts are names of this machine."""
    path = f"{folder}/shell"
    with open(path, "w", encoding="ascii") as file:
        file.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nshift\nexec sh -c "$*"\n')
    os.chmod(path, 0o755)
    return path


def meet(*command, what="none", **variables):
    text = launch(*command, PROGRAM, what, MUSTER_DEBUG="INFO", **variables)
    assert sorted(re.findall(r"done \d of \d", text)) == THREE, text
    return text


def programs_of_open_mpi(folder):
    """libmuster's ranks started by mpirun itself, without muster run."""
    mpirun = [shutil.which("mpirun.openmpi"), "--allow-run-as-root", "--oversubscribe", "-np", "3"]
    expect(meet(*mpirun), "Open MPI's mpirun has started rank 2 of 3")
    expect(meet(*mpirun, what="twice"), "second group: .*PMIx: a process can make one group")
    apart = ["--host", "n1:2,n2:1", "--mca", "plm_rsh_agent", remote_shell(folder), "--mca", "oob_tcp_if_include", "lo"]
    meet(*mpirun, *apart, "-x", "MUSTER_DEBUG")
    meet(*mpirun, "-x", "MASTER_ADDR=127.0.0.1", "-x", "MASTER_PORT=29511")


def programs_of_mpich(folder):
    mpirun = [shutil.which("mpirun.mpich")]
    expect(meet(*mpirun, "-np", "3"), "a PMI process manager has started rank 2 of 3")
    expect(meet(*mpirun, "-np", "3", what="twice"), "second group: .*a process can make one group")
    meet(*mpirun, "-launcher", "ssh", "-launcher-exec", remote_shell(folder), "-hosts", "n1,n2", "-ppn", "2", "-np", "3")
    meet(*mpirun, "-np", "3", "-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "MASTER_PORT", "29512")
    expect(launch(*mpirun, "-np", "1", PROGRAM, "none"), "done 0 of 1")


AGENT = " ".join(shlex.quote(word) for word in (BINARY, "run", *SHOW))


def one_job_of_whatever_is_started(mpirun):
    """A shell, and a namespace of processes, as containers have them, from which no daemon is seen."""
    for line in (["sh", "-c", f"{AGENT}; true"], ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", f"{AGENT}; true"]):
        assert ranks(launch(*mpirun, *line)) == TWO, line


def inherited(mpirun):
    """Whoever has nothing but the variables is none of mpirun's agents: each is a job of its own."""
    variables = launch(*mpirun, "sh", "-c", "test ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} != 1 || env").splitlines()
    found = dict(line.split("=", 1) for line in variables if line.startswith(("OMPI_", "PMI_", "PMIX_", "MPI_")))
    text = launch(BINARY, "run", *SHOW, **found)
    assert ranks(text) == ["rank=0 of=1"], text
    expect(text, "no daemon of it has started this process: going on here alone")


def open_mpi(folder):
    mpirun = [shutil.which("mpirun.openmpi"), "--allow-run-as-root", "--oversubscribe"]
    apart = ["--host", "n1,n2", "--map-by", "ppr:1:node", "--mca", "plm_rsh_agent", remote_shell(folder), "--mca",
             "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo"]
    assert ranks(launch(*mpirun, "-np", "1", BINARY, "run", *SHOW)) == ["rank=0 of=1"]
    text = launch(*mpirun, *apart, "-x", "LOGLEVEL", BINARY, "run", *SHOW, LOGLEVEL="INFO")
    assert ranks(text) == TWO, text
    expect(text, r"scheduler: Open MPI job \d+, agent 1 of 2: --nnodes=2 --rdzv-backend=muster --rdzv-id=mpi-\d+ "
                 r"--node-rank=1 --rdzv-endpoint=[\d.]+:\d+", r"run=mpi-\d+")
    text = launch(*mpirun, *apart, "-x", "MASTER_ADDR=n1", BINARY, "run", "--rdzv-backend=static", *SHOW)
    assert ranks(text) == TWO, text
    expect(launch(*mpirun, "-np", "2", BINARY, "run", *SHOW, code=1),
           "2 agents have been started on the same nodes.*mpirun --map-by ppr:1:node")
    expect(launch(*mpirun, *apart, BINARY, "run", "--standalone", *SHOW), "--standalone says that a job has one node")
    expect(launch(*mpirun, *apart, BINARY, "run", "--log-dir=/dev/null", "--no-python", "sh", "-c",
                  'test "$RANK" = 0 && exec sleep 100; exit 7', code=1), "exitcode +: 7")
    assert ranks(launch(*mpirun, "-np", "2", BINARY, "run", "--nnodes=2", *SHOW)) == TWO
    one_job_of_whatever_is_started([*mpirun, *apart])
    inherited([*mpirun, "-np", "2"])


def launch_with_hydra(*command):
    """One that fails. Hydra drops now and then all that processes which end with an error at once have said, those of
    any program (docs/known-bugs.md)."""
    for _ in range(20):
        if text := launch(*command, code=1):
            return text
    raise AssertionError(f"{command}: never a word")


def mpich(folder):
    mpirun = [shutil.which("mpirun.mpich")]
    apart = ["-launcher", "ssh", "-launcher-exec", remote_shell(folder), "-hosts", "n1,n2", "-ppn", "1", "-np", "2"]
    assert ranks(launch(*mpirun, "-np", "1", BINARY, "run", *SHOW)) == ["rank=0 of=1"]
    text = launch(*mpirun, *apart, "-genv", "MASTER_ADDR", "n1", BINARY, "run", *SHOW)
    assert ranks(text) == TWO, text
    one_job_of_whatever_is_started([*mpirun, *apart, "-genv", "MASTER_ADDR", "n1"])
    inherited([*mpirun, "-np", "2"])
    expect(launch_with_hydra(*mpirun, *apart, BINARY, "run", *SHOW), "does not say on which host its first process runs")
    expect(launch_with_hydra(*mpirun, "-np", "2", BINARY, "run", *SHOW), "2 agents have been started on the same nodes")


scratch = namespace.enter({socket.gethostname(): 1, "n1": 1, "n2": 2})
done = []
for name, case in (("mpirun.openmpi", programs_of_open_mpi), ("mpirun.mpich", programs_of_mpich), ("mpirun.openmpi", open_mpi),
                   ("mpirun.mpich", mpich)):
    if shutil.which(name):
        case(scratch)
        done.append(name)
        print(f"ok {case.__name__}", flush=True)
    else:
        print(f"SKIPPED {case.__name__}: {name} is not installed")
if not done:
    namespace.skip("not installed: mpirun.openmpi, mpirun.mpich")
