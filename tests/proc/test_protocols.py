#!/usr/bin/env python3
# Agents of two versions whose protocols differ: both sides say so, with both numbers, and nobody who works is disturbed.
# waits: yes
"""other_muster, in tests/ beside the program, is the program with the next number. MUSTER_OLD names another one, from before there were numbers."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import etcd  # noqa: E402
import jobs  # noqa: E402

OWN = os.environ["MUSTER_BINARY"]
OTHER = os.environ.get("MUSTER_OLD") or os.path.join(os.path.dirname(OWN), "tests", "other_muster")
IS_OLD = "MUSTER_OLD" in os.environ
PATIENCE_S = 100


class Agent:
    def __init__(self, program, endpoint, nnodes, backend, rank=0, run_id="job"):
        host, _, port = endpoint.rpartition(":")
        kind = ",store_type=file" if endpoint.startswith("/") else ""
        meet = [f"--node-rank={rank}", f"--master-addr={host}", f"--master-port={port}"] if backend == "static" else [
            f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run_id}",
            f"--rdzv-conf=last_call_timeout=1{kind}"]
        self.process = subprocess.Popen(
            [program, "run", f"--nnodes={nnodes}", *meet, "--no-python", "sh", "-c", "echo begins; exec sleep 1000"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=jobs.die_with_parent)
        self.said = ""

    def until(self, words):
        for line in self.process.stdout:
            self.said += line
            if re.search(words, line):
                return
        raise jobs.Failed(f"never '{words}':\n{self.said}")

    def until_there(self, is_there):
        while not is_there():
            jobs.check(self.process.poll() is None, "the agent has ended")
            time.sleep(0.01)

    def end(self, *codes):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.said += self.process.communicate(timeout=PATIENCE_S)[0]
        jobs.check(self.process.returncode in codes, f"{self.process.returncode}:\n{self.said}")


# Both numbers, in either order; the second form is that of agents from before.
NUMBERS = r"protocol \d+\b.*protocol \d+\b|version \d+ of the protocol, this is version \d+"


def loopback():
    return f"127.0.0.1:{jobs.free_port()}"


def refuse(first, second, nnodes):
    """The native backend. The first agent hosts, and works if it may; the second one is refused."""
    endpoint = loopback()
    host = Agent(first, endpoint, nnodes, "muster")
    try:
        host.until("begins" if nnodes.startswith("1") else "still waiting|leads each host")
        guest = Agent(second, endpoint, nnodes, "muster")
        guest.until(NUMBERS)
        host.until(NUMBERS)
        jobs.check(guest.process.wait(PATIENCE_S) == 1, f"it ends at once:\n{guest.said}")
        guest.end(1)
        jobs.check(host.said.count("begins") == nnodes.startswith("1"), host.said)
    finally:
        host.end(-signal.SIGTERM, 1)


def warn(backend, first, second, endpoint=None, is_there=None):
    """Where agents share PyTorch's state they go on as with torchrun's, and say so. Who is from before there were numbers cannot.

    is_there: has the first one written its state? None: its log says so."""
    endpoint = endpoint or loopback()
    run_id = "own-first" if first == OWN else "other-first"
    agents = [Agent(first, endpoint, "2", backend, 0, run_id)]
    try:
        if is_there:
            agents[0].until_there(lambda: is_there(run_id))
        else:
            agents[0].until("leads each host|still waiting")
        agents.append(Agent(second, endpoint, "2", backend, 1, run_id))
        for agent, program in zip(agents, (first, second)):
            if program == OWN or not IS_OLD:
                agent.until(NUMBERS)
            agent.until("begins")
    finally:
        for agent in agents:
            agent.end(-signal.SIGTERM, 1)


def who_waits_and_who_comes_are_told():
    for first, second in ((OWN, OTHER), (OTHER, OWN)):
        refuse(first, second, "2")


def who_works_is_not_disturbed():
    for first, second in ((OWN, OTHER), (OTHER, OWN)):
        refuse(first, second, "1:2")


def c10d_says_so_and_goes_on():
    for first, second in ((OWN, OTHER), (OTHER, OWN)):
        warn("c10d", first, second)


def static_says_so_and_goes_on():
    for first, second in ((OWN, OTHER), (OTHER, OWN)):
        warn("static", first, second)


def a_file_has_the_numbers():
    with tempfile.TemporaryDirectory() as folder:
        for first, second in ((OWN, OTHER), (OTHER, OWN)):
            path = os.path.join(folder, f"file-{first == OWN}")
            warn("c10d", first, second, path, lambda _, path=path: os.path.exists(path) and os.path.getsize(path) > 0)


def an_etcd_has_the_numbers():
    with jobs.Scratch() as scratch:
        server = etcd.Etcd(scratch)
        for backend, state in (("etcd-v2", "/torch/elastic/rendezvous/{}"), ("etcd", "/torchelastic/p2p/run_{}/rdzv/active_version")):
            for first, second in ((OWN, OTHER), (OTHER, OWN)):

                def is_there(run_id, state=state):
                    return "node" in server.ask("/v2/keys" + state.format(run_id))

                warn(backend, first, second, server.endpoint, is_there)


if __name__ == "__main__":
    cases.run([
        who_waits_and_who_comes_are_told, who_works_is_not_disturbed, c10d_says_so_and_goes_on, static_says_so_and_goes_on,
        a_file_has_the_numbers, an_etcd_has_the_numbers,
    ])
