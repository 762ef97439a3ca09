#!/usr/bin/env python3
# Does the network of hosts.py fail as it is told to? What the other tests of this folder stand on.
# waits: yes
"""Programs on two hosts talk over TCP, while the network does something to them. together.py says how to run one case."""
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import hosts  # noqa: E402
import jobs  # noqa: E402
import together  # noqa: E402

PORT = 7000
SILENT_S = 0.7  # nothing comes for so long: it does not come
TALK = """
import os, select, socket, sys
where, port = sys.argv[1], int(sys.argv[2])

def tell(text):
    os.write(1, text.encode() + bytes([10]))

link = socket.create_connection((where, port), 20) if where != "-" else socket.create_server(("", port)).accept()[0]
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
tell("connected")
while True:
    for ready in select.select([link, 0], [], [])[0]:
        if ready == 0:
            link.sendall(os.read(0, 100))
            continue
        try:
            text = link.recv(100).decode()
        except OSError as why:
            text = why.strerror
        tell(text or "closed")
"""


class Talker:
    """A program on a host that sends what it is told, and prints what it gets."""

    def __init__(self, scratch, host, where):
        self.ours, theirs = os.pipe()
        theirs_in, self.says = os.pipe()
        command = [sys.executable, "-u", "-c", TALK, where, str(PORT)]
        self.process = host.start(scratch, f"talker{len(scratch.processes)}", command, stdout=theirs, stdin=theirs_in)
        os.close(theirs)
        os.close(theirs_in)

    def say(self, text):
        os.write(self.says, text.encode())

    def hears(self, within_s=jobs.SOON_S):
        """A line, or None."""
        ready = select.select([self.ours], [], [], within_s)[0]
        return os.read(self.ours, 200).decode().split("\n")[0] if ready else None

    def expect(self, text, within_s=jobs.SOON_S):
        heard = self.hears(within_s)
        jobs.check(heard == text, f"{heard} instead of {text}\n{self.process.tail()}")


class Pair:
    """A program on each of two hosts, connected by name."""

    def __init__(self, network, scratch):
        self.network = network
        self.server = Talker(scratch, network.hosts["host0"], "-")
        jobs.wait_port(PORT, self.server.process, jobs.SOON_S)
        self.client = Talker(scratch, network.hosts["host1"], "host0")
        for one in (self.server, self.client):
            one.expect("connected")

    def expect_passes(self):
        for one, other in ((self.server, self.client), (self.client, self.server)):
            one.say("word")
            other.expect("word")


def with_pair(test):
    with hosts.Network(["host0", "host1"]) as network, jobs.Scratch() as scratch:
        test(network, Pair(network, scratch))


def what_is_cut_comes_later():
    """In the directions that are cut, and not in the other one."""
    def test(network, pair):
        for way, silent in (("both", (pair.client, pair.server)), ("out", (pair.server,)), ("in", (pair.client,))):
            pair.expect_passes()
            network.cut("host1", way=way)
            pair.client.say("up")
            pair.server.say("down")
            for one in silent:
                jobs.check(one.hears(SILENT_S) is None, f"{way}: something has come through")
            network.heal()
            pair.client.expect("down")
            pair.server.expect("up")

    with_pair(test)


def a_pair_is_cut_and_others_are_not():
    def test(network, pair):
        network.cut("host0", hosts.HERE)
        pair.expect_passes()
        network.cut("host0", "host1")
        pair.client.say("up")
        jobs.check(pair.server.hears(SILENT_S) is None, "something has come through")
        network.heal()
        pair.server.expect("up")

    with_pair(test)


def losses_and_delays_are_made_up_for():
    def test(network, pair):
        network.lose("host1", 0.3)
        for _ in range(5):
            pair.expect_passes()
        network.heal()
        network.delay("host1", 0.3)
        begun = time.monotonic()
        pair.expect_passes()
        jobs.check(time.monotonic() - begun >= 0.6, "nothing was late")

    with_pair(test)


def a_firewall_forgets():
    """What belongs to an old connection is dropped, or refused; a new connection passes."""
    def test(network, pair):
        network.forget()
        pair.client.say("up")
        jobs.check(pair.server.hears(SILENT_S) is None, "something has come through")
        network.remember()
        pair.server.expect("up")
        network.forget(refuses=True)
        pair.client.say("up")
        pair.client.expect("Connection reset by peer")

    with_pair(test)
    with hosts.Network(["host0", "host1"]) as network, jobs.Scratch() as scratch:
        network.forget()
        Pair(network, scratch).expect_passes()


def a_host_reboots():
    """Nobody is told that its processes are gone; who speaks to them is refused. Its kernel says that it has begun anew."""
    def test(network, pair):
        def boot_id():
            with jobs.Scratch() as scratch:
                process = network.hosts["host0"].start(scratch, "boot", ["cat", "/proc/sys/kernel/random/boot_id"])
                process.expect(jobs.SOON_S, 0)
                return process.out()

        before = boot_id()
        network.hosts["host0"].reboot()
        pair.server.process.expect(jobs.SOON_S, -signal.SIGKILL)
        jobs.check(pair.client.hears(SILENT_S) is None, "the other host was told")
        pair.client.say("up")
        pair.client.expect("Connection reset by peer")
        jobs.check(before != boot_id(), "the boot id is the old one")

    with_pair(test)


def a_host_gets_another_address():
    def test(network, pair):
        network.hosts["host0"].readdress(f"{hosts.NETWORK}77")
        pair.client.say("up")
        jobs.check(pair.server.hears(SILENT_S) is None, "something has come to the old address")
        with jobs.Scratch() as scratch:
            os.kill(pair.server.process.pid, signal.SIGKILL)
            pair.server.process.expect(jobs.SOON_S)
            Pair(network, scratch).expect_passes()

    with_pair(test)


def answers_are_noted():
    def test(network, pair):
        network.note(PORT)
        begun = time.monotonic_ns()
        pair.server.say("down")
        pair.client.expect("down")
        jobs.check(network.answered_after("host1", PORT, begun) is None, "an answer without a question")
        pair.expect_passes()
        pair.expect_passes()
        jobs.check(network.answered_after("host1", PORT, begun) > begun, "no answer")
        jobs.check(network.answered_after("host0", PORT, begun) is None, "the server has not asked")

    with_pair(test)


def pids_are_translated():
    """A process sees another process id than this one does, and the kernels of both hosts count for themselves."""
    def test(network, pair):
        for name, one in (("host0", pair.server), ("host1", pair.client)):
            with open(f"/proc/{one.process.pid}/status", encoding="ascii") as status:
                inner = next(int(line.split()[-1]) for line in status if line.startswith("NSpid"))
            jobs.check(network.hosts[name].pid_here(inner) == one.process.pid, f"{inner} is not {one.process.pid}")

    with_pair(test)


LEAVES = """
import sys
sys.path.insert(0, %r)
import hosts, jobs, subprocess
network = hosts.Network(["host0"])
scratch = jobs.Scratch()
process = network.hosts["host0"].start(scratch, "sleeper", ["setsid", "sleep", "1000"])
print(process.pid, flush=True)
sys.stdin.read()
"""


def maker_ends(number, environment):
    maker = subprocess.Popen([sys.executable, "-c", LEAVES % HERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             text=True, env=environment)  # fmt: skip
    sleeper = int(maker.stdout.readline())
    os.kill(maker.pid, number)
    maker.communicate()
    deadline = time.monotonic() + jobs.SOON_S
    while jobs.alive(sleeper):  # nobody's child tells nobody
        jobs.check(time.monotonic() < deadline, f"after signal {number} a process is left")
        time.sleep(0.01)


def nothing_outlives_who_made_it():
    """However that ends: with a signal that ends it, or one that cannot be caught."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with tempfile.TemporaryDirectory() as folder:  # for files, which outlive a SIGKILL
            maker_ends(number, dict(os.environ, TMPDIR=folder))


CASES = {case.__name__: case for case in (
    what_is_cut_comes_later, a_pair_is_cut_and_others_are_not, losses_and_delays_are_made_up_for, a_firewall_forgets, a_host_reboots,
    a_host_gets_another_address, answers_are_noted, pids_are_translated, nothing_outlives_who_made_it)}  # fmt: skip

if __name__ == "__main__":
    sys.exit(together.main(__file__, list(CASES), lambda: list(CASES), lambda name, _: CASES[name](), {}))
