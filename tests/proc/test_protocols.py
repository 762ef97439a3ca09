#!/usr/bin/env python3
# Agents of two versions whose protocols differ: both sides say so, with both numbers, and nobody who works is disturbed.
# waits: yes
"""other_muster, in tests/ beside the program, is the program with the next number. MUSTER_OLD names another one, of any version."""
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
PATIENCE_S = 100


class Agent:
    def __init__(self, program, port, nnodes, backend):
        self.process = subprocess.Popen(
            [program, "run", f"--nnodes={nnodes}", f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-conf=last_call_timeout=1", "--no-python", "sh", "-c", "echo begins; exec sleep 1000"],
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


# Both numbers, in either order.
NUMBERS = r"protocol \d+\b.*protocol \d+\b"


def meet(first, second, nnodes, backend="muster"):
    """The first one hosts, and works if it may; the second one is refused."""
    port = jobs.free_port()
    host = Agent(first, port, nnodes, backend)
    try:
        host.until("begins" if nnodes.startswith("1") else "still waiting|leads each host")
        guest = Agent(second, port, nnodes, backend)
        guest.until(NUMBERS)
        host.until(NUMBERS)
        jobs.check(guest.process.wait(PATIENCE_S) == 1, f"it ends at once:\n{guest.said}")
        guest.end(1)
        jobs.check("another" not in host.said and host.said.count("begins") == nnodes.startswith("1"), host.said)
    finally:
        host.end(-signal.SIGTERM, 1)


def who_waits_and_who_comes_are_told():
    meet(OWN, OTHER, "2")
    meet(OTHER, OWN, "2")


def who_works_is_not_disturbed():
    meet(OWN, OTHER, "1:2")
    meet(OTHER, OWN, "1:2")


if __name__ == "__main__":
    cases.run([who_waits_and_who_comes_are_told, who_works_is_not_disturbed])
