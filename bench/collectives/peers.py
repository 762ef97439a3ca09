"""The libraries that bench/collectives compares, and how to run one of them once: every rank is a process that runs the
same loop (timing.c, gloo_peer.py) and rank 0 prints a line of JSON per case.

Ranks are bound to a processor each while there are as many processors, and left to the kernel otherwise.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """The peer did not run to its end; the text says what it printed."""


class Peer:
    """`name` is its column, `transport` the table it belongs to; why_not() says why it cannot run here, or None."""

    def __init__(self, name, transport, start, why_not, options=(), environment=None):
        self.name = name
        self.transport = transport
        self.start = start
        self.why_not = why_not
        self.options = list(options)
        self.environment = environment or {}

    def run(self, ranks, operation, sizes, seconds, timeout_s):
        """({bytes: microseconds}, version) of one operation."""
        arguments = [*self.options, "--seconds", str(seconds), operation, ",".join(str(size) for size in sizes)]
        processes = self.start(self, ranks, arguments)
        text = finish(processes, timeout_s)
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        version = next((line["version"] for line in lines if "version" in line), "unknown version")
        return {line["bytes"]: line["us"] for line in lines if line.get("operation") == operation}, version


def end(process):
    """Asks first: mpirun clears away its segments and its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()


def finish(processes, timeout_s):
    """The first process's output, when all of them have ended well; ends them all otherwise."""
    deadline = time.monotonic() + timeout_s
    try:
        out, _ = processes[0].communicate(timeout=timeout_s)
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
        codes = [process.returncode for process in processes]
        if any(codes):
            raise Failed(f"exit codes {codes}")
        return out
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s:.0f} s") from None
    finally:
        for process in processes:
            end(process)


def binder(ranks, rank):
    """Run in the new process: onto a processor of its own, if there are enough."""
    processors = sorted(os.sched_getaffinity(0))
    return (lambda: os.sched_setaffinity(0, {processors[rank]})) if ranks <= len(processors) else None


def start_by_environment(command):
    """Ranks that find each other as under a launcher: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE."""

    def start(peer, ranks, arguments):
        port = str(jobs.free_port())
        processes = []
        for rank in range(ranks):
            environment = {
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                **peer.environment,
            }
            environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            processes.append(
                subprocess.Popen(
                    command() + arguments,
                    env=environment,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    text=True,
                    preexec_fn=binder(ranks, rank),
                )
            )
        return processes

    return start


def mpirun():
    return shutil.which("mpirun.openmpi") or shutil.which("mpirun")


_mpi_folder = tempfile.TemporaryDirectory(prefix="muster-bench-")  # of Open MPI's session; goes with this process


def mpi_environment():
    permission = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **permission, "TMPDIR": _mpi_folder.name}


def start_by_mpirun(transport):
    def start(peer, ranks, arguments):
        bind = "core" if ranks <= len(os.sched_getaffinity(0)) else "none"
        command = [mpirun(), "-n", str(ranks), "--oversubscribe", "--bind-to", bind, "--mca", "pml", "ob1"]
        command += ["--mca", "btl", transport, "--mca", "btl_tcp_if_include", "lo"]
        command.append(jobs.program("collectives/mpi_peer"))
        return [subprocess.Popen(command + arguments, env=mpi_environment(), stdout=subprocess.PIPE, text=True)]

    return start


def muster_peer():
    return [jobs.program("collectives/muster_peer")]


def gloo_peer():
    return [jobs.python(), "-W", "ignore", os.path.join(HERE, "gloo_peer.py")]


def without_muster():
    return program_is_missing("collectives/muster_peer")


def without_mpi():
    if not mpirun():
        return "no mpirun (package openmpi-bin)"
    command = [mpirun(), "--version"]
    version = subprocess.run(command, env=mpi_environment(), capture_output=True, text=True, check=False)
    if "(Open MPI)" not in version.stdout and "OpenRTE" not in version.stdout:
        return f"{mpirun()} is not Open MPI's"
    return program_is_missing("collectives/mpi_peer")


def program_is_missing(name):
    try:
        jobs.program(name)
    except jobs.Failed as why:
        return str(why)
    return None


def without_torch():
    return None if jobs.torch_version() else f"no PyTorch in {jobs.python()} (MUSTER_TEST_PYTHON names another)"


NO_SHM = {"MUSTER_SHM": "0", "MUSTER_CMA": "0"}
PEERS = [
    Peer("muster", "shm", start_by_environment(muster_peer), without_muster),
    Peer("muster_alloc", "shm", start_by_environment(muster_peer), without_muster, options=["--own-memory"]),
    Peer("Open MPI", "shm", start_by_mpirun("self,vader"), without_mpi),
    Peer("gloo", "shm", start_by_environment(gloo_peer), without_torch),
    Peer("muster", "tcp", start_by_environment(muster_peer), without_muster, environment=NO_SHM),
    Peer("Open MPI", "tcp", start_by_mpirun("self,tcp"), without_mpi),
    Peer("gloo", "tcp", start_by_environment(gloo_peer), without_torch),
]
