#!/usr/bin/env python3
# Agents of two versions whose protocols differ: both sides say so, with both numbers, and nobody who works is disturbed.
# waits: yes
"""other_muster, in tests/ beside the program, is the program with the next number. MUSTER_OLD names another one, from before there were numbers."""
import os
import re
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402

OWN = os.environ["MUSTER_BINARY"]
OTHER = os.environ.get("MUSTER_OLD") or os.path.join(os.path.dirname(OWN), "tests", "other_muster")
IS_OLD = "MUSTER_OLD" in os.environ
PATIENCE_S = 100


class Agent:
    def __init__(self, program, port, nnodes, backend, rank=0):
        meet = [f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}"] if backend == "static" else [
            f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1"]
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

    def end(self, *codes):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.said += self.process.communicate(timeout=PATIENCE_S)[0]
        jobs.check(self.process.returncode in codes, f"{self.process.returncode}:\n{self.said}")


# Both numbers, in either order; the second form is that of agents from before.
NUMBERS = r"protocol \d+\b.*protocol \d+\b|version \d+ of the protocol, this is version \d+"


def refuse(first, second, nnodes):
    """The native backend. The first agent hosts, and works if it may; the second one is refused."""
    port = jobs.free_port()
    host = Agent(first, port, nnodes, "muster")
    try:
        host.until("begins" if nnodes.startswith("1") else "still waiting|leads each host")
        guest = Agent(second, port, nnodes, "muster")
        guest.until(NUMBERS)
        host.until(NUMBERS)
        jobs.check(guest.process.wait(PATIENCE_S) == 1, f"it ends at once:\n{guest.said}")
        guest.end(1)
        jobs.check(host.said.count("begins") == nnodes.startswith("1"), host.said)
    finally:
        host.end(-signal.SIGTERM, 1)


def warn(backend, first, second):
    """Where agents share PyTorch's state they go on as with torchrun's, and say so. Who is from before there were numbers cannot."""
    port = jobs.free_port()
    agents = [Agent(first, port, "2", backend, 0)]
    try:
        agents[0].until("leads each host|still waiting")
        agents.append(Agent(second, port, "2", backend, 1))
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


if __name__ == "__main__":
    cases.run([who_waits_and_who_comes_are_told, who_works_is_not_disturbed, c10d_says_so_and_goes_on, static_says_so_and_goes_on])
