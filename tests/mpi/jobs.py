"""Jobs of MPI programs under `muster run --mpi`: starting them, on one node and on several that are one machine, and judging what they
print (worker.py)."""
import contextlib
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cases  # noqa: E402, F401  for those who import this

BINARY = os.environ["MUSTER_BINARY"]
FOLDER = os.path.dirname(os.path.abspath(__file__))
WORKER, PMIX_WORKER = os.path.join(FOLDER, "worker.py"), os.path.join(FOLDER, "pmix_worker.py")
LIBRARIES = "/usr/lib/*-linux-gnu/"
LIMIT_S = 100


def found(*patterns):
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            return path
    return None


def of_folder(variable, name):
    """An MPI that this machine's packages do not have, in a folder that a variable names; None, and it is said, without it."""
    folder = os.environ.get(variable)
    path = found(os.path.join(folder, "lib", name)) if folder else None
    if path is None:
        print(f"SKIP a part: {variable} names no folder with lib/{name}")
    return path


@contextlib.contextmanager
def library_as(name, path=None):
    """A folder in which a library is found under another name; without `path`, a file that is none."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if path is None:
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write("no library\n")
        else:
            shutil.copy(path, os.path.join(folder, name))
        yield folder


def kill_guardian(agent):
    """The process between the agent and its workers."""
    with open(f"/proc/{agent.pid}/task/{agent.pid}/children", encoding="ascii") as text:
        children = text.read().split()
    assert len(children) == 1, f"the children of the agent are {children}"
    os.kill(int(children[0]), signal.SIGKILL)


class Job:
    """One node, or several: `nodes` has the workers of each. Temporary files go to a folder of the job's own, which must be empty in the
    end."""

    def __init__(self, library, what="none", nodes=(4,), options=(), mode="--mpi", code=0, variables=None, folder=None, worker=WORKER, backend="c10d"):
        self.command = [*options, "--max-restarts=1" if what.startswith("killed") else "--max-restarts=0", *([mode] if mode else []),
                        worker, library, what]
        self.what, self.nodes, self.library = what, nodes, library
        self.codes, self.output, self.backend, self.started = [], "", backend, []
        folders = os.pathsep.join(filter(None, [folder, os.path.dirname(library), os.environ.get("LD_LIBRARY_PATH")]))
        with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
            self.environment = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR=temporary, LD_LIBRARY_PATH=folders, **(variables or {}))
            if os.path.exists(os.path.join(os.path.dirname(library), "libopen-pal.so.80")):
                self.environment["OPAL_PREFIX"] = os.path.dirname(os.path.dirname(library))
            if what == "killed-guardian":  # Open MPI 4 leaves its shared memory behind then
                self.environment["OMPI_MCA_btl_vader_backing_directory"] = temporary
            if len(nodes) == 1:
                self.run_one()
            else:
                self.run_several()
            self.left = [name for name in os.listdir(temporary) if name.startswith("muster-mpi")]
        if self.codes != [code] * len(nodes):
            self.fail(f"exit codes {self.codes}, not {code}")
        if self.left:
            self.fail(f"left behind: {self.left}")

    def fail(self, why):
        for agent in self.started:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        sys.exit(f"{self.library}, {self.what}, nodes {self.nodes}: {why}\n{' '.join(self.command)}\n{self.output}")

    def start(self, *options):
        agent = subprocess.Popen([BINARY, "run", *options, *self.command], env=self.environment, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(agent)
        return agent

    def await_sleep(self, agent, workers):
        while self.output.count("asleep") < workers:
            line = agent.stdout.readline()
            if not line:
                self.fail("its workers have not started")
            self.output += line

    def run_one(self):
        agent = self.start("--standalone", f"--nproc-per-node={self.nodes[0]}")
        if self.what == "killed-guardian":
            self.await_sleep(agent, self.nodes[0])
            kill_guardian(agent)
        self.finish([agent])

    def run_several(self):
        """Each agent has an address of its own. The port is one that the kernel gives to nobody else meanwhile. `alone`: the second one
        comes when the first one's workers run."""
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("", 0))
            port = held.getsockname()[1]
            agents = [self.start(*self.node_options(0, self.nodes[0], port))]
            if self.what == "alone":
                self.await_sleep(agents[0], self.nodes[0])
            agents += [self.start(*self.node_options(number, workers, port)) for number, workers in enumerate(self.nodes) if number > 0]
            self.finish(agents)

    def node_options(self, number, workers, port):
        meet = [f"--rdzv-backend={self.backend}", f"--rdzv-endpoint=127.0.0.1:{port}", f"--local-addr=127.0.0.{number + 1}"]
        if self.backend == "static":
            meet = [f"--node-rank={number}", "--master-addr=localhost", f"--master-port={port}"]
        nodes = [f"--nnodes={len(self.nodes)}"]
        if self.what == "alone":
            nodes = [f"--nnodes=1:{len(self.nodes)}", "--rdzv-conf=last_call_timeout=1"]
        return [*nodes, *meet, f"--nproc-per-node={workers}"]

    def finish(self, agents):
        try:
            for agent in agents:
                self.output += agent.communicate(timeout=LIMIT_S)[0]
                self.codes.append(agent.returncode)
        except subprocess.TimeoutExpired:
            for agent in agents:
                agent.kill()
                self.output += agent.communicate()[0]
            self.fail("it does not end")

    def expect(self, *patterns):
        for pattern in patterns:
            if not re.search(pattern, self.output):
                self.fail(f"not there: {pattern}")
        return self

    def expect_world(self, attempt=0):
        """Each rank once, in a world of all, with those of its node near it. With c10d each node counts its own failures, so that the
        attempt is the same on one node only."""
        size, expected, base = sum(self.nodes), [], 0
        for workers in self.nodes:
            for rank in range(base, base + workers):
                expected.append(f"rank {rank} of {size}, is {rank}, sum {size * (size + 1) // 2}, near {workers}")
            base += workers
        lines = re.findall(r"^attempt (\d): (.*)$", self.output, re.MULTILINE)
        if sorted(line for _, line in lines) != sorted(expected):
            self.fail(f"the world is not {expected}")
        if len(self.nodes) == 1 and any(int(number) != attempt for number, _ in lines):
            self.fail(f"it is not attempt {attempt}")
        return self


def expect_worlds(library):
    """What every MPI library must do here: a node, two nodes, a killed rank, and one that aborts."""
    Job(library).expect_world()
    Job(library, nodes=(2, 2)).expect_world()
    Job(library, what="killed", nodes=(3,)).expect_world(attempt=1)
    Job(library, what="abort7", nodes=(2,), code=1).expect(r"rank 1 has called MPI_Abort\(\) with the code 7", r"exitcode  : 7")


INSIDE = r"exited with code 0 between MPI_Init\(\) and MPI_Finalize\(\)"
UNBEGUN = r"exited with code 0 without MPI_Init\(\), which other ranks had called"
CLOSED = r"closed its connection to the MPI server between MPI_Init\(\) and MPI_Finalize\(\)"
KILLED = r"killed by SIGKILL"


def expect_left(library, where, how, status, nodes=(2,)):
    """Rank 1 leaves. The report names it, and the others do not wait."""
    job = Job(library, what=f"leave-{where}-{how}", nodes=nodes, code=1)
    job.expect(rf"Root Cause [^\0]*  rank      : 1 \([^\0]*  status    : {status}")


def expect_departures(library):
    """A rank leaves the others alone, with 0 as its exit code or without an end. Whoever has finalized may go, and so may programs that have
    nothing to do with MPI."""
    expect_left(library, "before", "exit0", UNBEGUN)
    expect_left(library, "early", "exit0", UNBEGUN)
    expect_left(library, "inside", "exit0", INSIDE)
    expect_left(library, "barrier", "close", CLOSED)
    Job(library, what="leave-finalized-exit0", nodes=(2,))
    Job(library, what="without-mpi", nodes=(2,))


def expect_other_departures(library):
    for nodes in (2,), (4,), (1, 1), (2, 2):
        for where, status in ("inside", INSIDE), ("barrier", INSIDE):
            expect_left(library, where, "exit0", status, nodes)
        for where in "inside", "barrier":
            expect_left(library, where, "close", CLOSED, nodes)
            expect_left(library, where, "abort", "exited with code 7", nodes)
        for where in "before", "inside", "barrier":
            expect_left(library, where, "exit3", "exited with code 3", nodes)
            expect_left(library, where, "kill", KILLED, nodes)
        Job(library, what="leave-finalized-close", nodes=nodes)
    for nodes in (2,), (4,):
        expect_left(library, "before", "exit0", UNBEGUN, nodes)
        expect_left(library, "finalized", "exit3", "exited with code 3", nodes)
        expect_left(library, "finalized", "kill", KILLED, nodes)


def expect_other_worlds(library):
    """And worlds of other shapes."""
    Job(library, nodes=(1,)).expect_world()
    Job(library, nodes=(3, 1)).expect_world()
    Job(library, nodes=(1, 2, 1)).expect_world()


def expect_all(library):
    expect_worlds(library)
    expect_other_worlds(library)
    expect_departures(library)
    expect_other_departures(library)
