"""Jobs on this machine that are stopped before their end, for the tests of pre-emption."""
import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402

MUSTER = os.environ["MUSTER_BINARY"]
TOY = os.path.join(os.path.dirname(MUSTER), "examples", "toy")
PREEMPTED = 75
WITHOUT_END = "100000000"
PATIENCE_S = 60
jobs.isolate()  # where it can be had: so that no port is taken by a stranger


class Agent:
    """A launcher and its output, stderr included. Whoever waits for one of them reads from all, so that none is held up."""

    reading = {}
    all = []

    def __init__(self, folder, options, command):
        self.pipe_end, pipe = os.pipe()
        self.text = ""
        environment = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR=folder, MUSTER_SCHEDULER="none")
        self.process = subprocess.Popen([MUSTER, "run", *options, *command], env=environment, stdin=subprocess.DEVNULL,
                                        stdout=pipe, stderr=subprocess.STDOUT)
        os.close(pipe)
        Agent.reading[self.pipe_end] = self
        Agent.all.append(self)

    @staticmethod
    def read_all(until_s):
        ready, _, _ = select.select(Agent.reading, [], [], max(0.0, until_s - time.monotonic()))
        assert ready, "waiting for too long: " + "\n".join(agent.text[-3000:] for agent in Agent.all)
        for end in ready:
            piece = os.read(end, 1 << 16)
            Agent.reading[end].text += piece.decode(errors="replace")
            if not piece:
                del Agent.reading[end]

    def wait_for(self, pattern):
        until_s = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            assert self.pipe_end in Agent.reading, f"ended without '{pattern}':\n{self.text[-4000:]}"
            Agent.read_all(until_s)

    def end(self, code):
        until_s = time.monotonic() + PATIENCE_S
        while self.pipe_end in Agent.reading:
            Agent.read_all(until_s)
        got = self.process.wait(timeout=PATIENCE_S)
        assert got == code, f"exit code {got}, not {code}:\n{self.text[-6000:]}"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        Agent.reading.pop(self.pipe_end, None)
        Agent.all.remove(self)
        os.close(self.pipe_end)


def wait_until_served(agent, address, port):
    """Until the agent holds its endpoint, so that the next one takes the next."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return
        assert agent.process.poll() is None, "ended before it served"


@contextlib.contextmanager
def job(backend, nodes, command, options=(), per_node=2, endpoint_count=1):
    """`nodes` agents on this machine, the first of which serve an endpoint each, if there are several. Nothing of theirs
    is left in their temporary folder afterwards, unless one of them was killed."""
    with tempfile.TemporaryDirectory() as folder:
        port = jobs.free_port()
        addresses = [f"127.0.0.{1 + i}" for i in range(endpoint_count)]
        meet = ["--standalone"] if backend == "standalone" else [
            f"--nnodes={nodes}", f"--rdzv-backend={backend}",
            "--rdzv-endpoint=" + ",".join(f"{address}:{port}" for address in addresses), "--rdzv-id=preempt",
            "--local-addr=127.0.0.1"]
        agents = []
        try:
            for index in range(nodes):
                agents.append(Agent(folder, [*meet, f"--nproc-per-node={per_node}", "--log-dir=/dev/null",
                                                          *options], command))
                if 1 < endpoint_count > index:
                    wait_until_served(agents[-1], addresses[index], port)
            yield agents
        finally:
            for agent in agents:
                agent.close()
        killed = any(agent.process.returncode == -signal.SIGKILL for agent in agents)
        left = [] if killed else os.listdir(folder)
        assert left == [], f"left behind: {left}"


def toy(total, snapshots):
    return ["--no-python", TOY, total, "1000000", f"--snapshot={snapshots}"]


def stopped_after(agents, per_node=2):
    """The epoch after which each rank stopped: the same."""
    found = [(int(rank), int(epoch)) for agent in agents
             for rank, epoch in re.findall(r"\[rank (\d+)\] asked to stop: stopping after epoch (\d+)", agent.text)]
    assert sorted(rank for rank, _ in found) == list(range(per_node * len(agents))), found
    assert len({epoch for _, epoch in found}) == 1, found
    return found[0][1]
