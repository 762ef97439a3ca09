#!/usr/bin/env python3
# A job with a secret under a flood of strangers from several addresses: it forms, fails and forms again, and ends well.
"""Usage: test_rendezvous_flood.py; MUSTER_BINARY names the program.

Two agents run a job whose workers fail twice, all the time among thousands of connections that are silent, slow, cut, forged,
too long or no protocol at all. The job must not notice, and the agent that serves it must not keep what was thrown at it. How
long the nodes take to run again with and without the flood is printed: a figure, which nothing depends on.
"""
import collections
import os
import random
import re
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PATIENCE_S = 120
FAILURES = 2
CALLS_EACH = 3000  # strangers' connections before each attempt of the workers is let go on
HELD_MAX = 6000
GROWTH_MAX_MIB = 32  # of the serving agent: 16,384 silent connections and 4096 strangers have to fit
ADDRESSES = [f"127.0.0.{last}" for last in range(10, 18)]
HELLO = b"MUSTER\r\n"
WORKER = """
import os, sys, time
folder, attempt = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(f"{folder}/start.{attempt}.{os.environ['RANK']}", "w") as out:
    out.write(str(time.monotonic_ns()))
deadline = time.monotonic() + 120
while not os.path.exists(f"{folder}/go.{attempt}"):
    time.sleep(0.005)
    if time.monotonic() > deadline:
        sys.exit(3)
if attempt < FAILURES and os.environ["RANK"] == "1":
    with open(f"{folder}/end.{attempt}", "w") as out:
        out.write(str(time.monotonic_ns()))
    sys.exit(1)
while attempt < FAILURES:
    time.sleep(1)
""".replace("FAILURES", str(FAILURES))


def frame(kind, fields):
    return struct.pack("<IB", 1 + len(fields), kind) + fields


def greet(rng):
    return frame(7, struct.pack("<H", 1) + rng.randbytes(32))


def words(rng):
    """What a stranger says; None: a byte of a good beginning at a time."""
    return rng.choice([
        b"", b"M", HELLO, HELLO + greet(rng), HELLO + greet(rng) + frame(8, rng.randbytes(32)),
        HELLO + greet(rng)[: rng.randrange(39)], HELLO + frame(1, rng.randbytes(200)), HELLO + b"\xff\xff\xff\xff",
        HELLO + greet(rng) * 2, HELLO + frame(6, b""), HELLO + b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(64),
        HELLO + struct.pack("<IB", 8188, 7) + bytes(4000), None,
    ])


class Flood(threading.Thread):
    def __init__(self, port):
        super().__init__()
        self.port, self.rng = port, random.Random(1)
        self.calls, self.turned_away, self.is_over, self.trouble = 0, 0, False, None
        self.held, self.slow = collections.deque(), collections.deque()

    def call(self):
        plain = socket.socket()
        plain.bind((ADDRESSES[self.calls % len(ADDRESSES)], 0))
        plain.setblocking(False)
        self.calls += plain.connect_ex(("127.0.0.1", self.port)) in (0, 115)
        said = words(self.rng)
        self.held.append(plain)
        if said is None:
            self.slow.append((plain, HELLO + greet(self.rng)))
        elif said:
            self.send(plain, said)
        if self.rng.randrange(10) == 0:  # and is gone, with a reset
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            plain.close()

    def send(self, plain, said):
        try:
            plain.send(said)
            return True
        except OSError:
            self.turned_away += 1
            return False

    def run(self):
        try:
            while not self.is_over:
                self.call()
                if self.slow:
                    plain, rest = self.slow.popleft()
                    if self.send(plain, rest[:1]) and len(rest) > 1:
                        self.slow.append((plain, rest[1:]))
                while len(self.held) > HELD_MAX:
                    self.held.popleft().close()
        except Exception as trouble:  # pylint: disable=broad-except
            self.trouble = trouble
        for plain in self.held:
            plain.close()

    def wait_for(self, calls):
        while self.calls < calls:
            if self.trouble:
                raise self.trouble
            time.sleep(0.01)

    def end(self):
        self.is_over = True
        self.join()
        if self.trouble:
            raise self.trouble


def memory_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024


def node(port, folder, host):
    environment = {**os.environ, "MUSTER_SECRET": "the secret of this job"}
    return subprocess.Popen(
        [BINARY, "run", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2", "--max-restarts=3",
         f"--rdzv-conf=is_host={host},join_timeout=100", "--no-python", sys.executable, "-c", WORKER, folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def number(path):
    """What a worker has written there; waits for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (os.path.exists(path) and os.path.getsize(path) > 0):
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} never came")
        time.sleep(0.002)
    with open(path, encoding="ascii") as file:
        return int(file.read())


def run_job(with_flood):
    port = jobs.free_port()
    again_ms = []
    with tempfile.TemporaryDirectory() as folder:
        nodes = [node(port, folder, 1)]
        before = None
        flood = Flood(port)
        try:
            with socket.socket() as probe:  # the host is there
                while probe.connect_ex(("127.0.0.1", port)) != 0:
                    time.sleep(0.01)
            before = memory_mib(nodes[0].pid)
            if with_flood:
                flood.start()
                flood.wait_for(CALLS_EACH)
            nodes.append(node(port, folder, 0))
            for attempt in range(FAILURES + 1):
                starts = [number(f"{folder}/start.{attempt}.{rank}") for rank in range(2)]
                if attempt > 0:
                    again_ms.append((max(starts) - number(f"{folder}/end.{attempt - 1}")) / 1e6)
                if with_flood:
                    flood.wait_for((attempt + 2) * CALLS_EACH)
                    growth = memory_mib(nodes[0].pid) - before
                    if growth > GROWTH_MAX_MIB:
                        raise SystemExit(f"the serving agent has grown by {growth:.1f} MiB")
                with open(f"{folder}/go.{attempt}", "w", encoding="ascii"):
                    pass
            for one in nodes:
                text, _ = one.communicate(timeout=PATIENCE_S)
                if one.returncode != 0:
                    raise SystemExit(f"an agent has ended with {one.returncode}:\n{text}")
        except SystemExit:
            for one in nodes:
                one.kill()
                print(f"what agent {one.pid} said:\n{one.communicate()[0]}", file=sys.stderr)
            raise
        finally:
            if with_flood and flood.ident:
                flood.end()
            for one in nodes:
                if one.poll() is None:
                    one.kill()
                    one.wait()
    if with_flood:
        print(f"{flood.calls} connections of strangers from {len(ADDRESSES)} addresses, {flood.turned_away} found closed; "
              f"the serving agent grew by {growth:.1f} MiB")
    return statistics.median(again_ms)


def main():
    lack = jobs.isolate()
    if lack:
        print(f"in the machine's own network: {lack}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    quiet_ms = run_job(False)
    loud_ms = run_job(True)
    print(f"a failure until all run again: {quiet_ms:.0f} ms undisturbed, {loud_ms:.0f} ms in the flood")


main()
