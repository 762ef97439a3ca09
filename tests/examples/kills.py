"""Jobs in which somebody is killed again and again, and what they end with. For tests, and for a long series:

    tests/examples/kills.py [--count N] [--seed S] [--program gpt|mnist] [--sharding ddp|fsdp|hybrid]
                            [--victim rank|guardian|agent] [--hosts 1|2] [--per-host N] [--backend c10d|muster]
                            [--parts-every N] [--copies N]

kills N processes in all, at any moment, in jobs of 20 kills each, and compares every job's last snapshot with that of a job that
nobody disturbed. Two hosts are two agents of this machine whose ranks share no memory (MUSTER_HOST_ID); an agent that is killed
takes its host's state with it, and is replaced at once. With c10d the second agent alone is killed, since the first holds the store.
--parts-every: every rank saves its part of the state of every Nth step while it trains. --copies: with fsdp on two hosts, a copy of
the state on the other host every N steps; then agents may be killed.
MUSTER_BINARY names the launcher; the trainers are in examples/ beside it.
"""

import argparse
import os
import queue
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import trainers

GPT = ("--n-layer=2", "--n-head=2", "--n-embd=36", "--block-size=32", "--batch=8", "--evaluate-every=0", "--report-every=1",
       "--save-every=0", "--sample=0", "--dropout=0.1")
STARTED = re.compile(r"^rank (\d+) of (\d+): pid (\d+), restart (\d+)")
STEPPED = re.compile(r"^step \d+/")
LATE = "still waiting for a world"
FOUND = re.compile(r"^from (?:step (\d+), which was in memory|memory of epoch \d+, step (\d+)): ")
PATIENCE_S = 120
KEPT = 2  # checkpoints in a folder
STEPS = {"gpt": 3000, "mnist": 400}  # of a job in a long series: longer than 20 kills take


class Tally:
    """What the jobs came to: steps at which they went on, and seconds from a kill until that was known, and until the next step was
    made: the next forward pass began before that."""

    def __init__(self):
        self.kills, self.resumed, self.seconds, self.stepped, self.scratch = 0, [], [], [], 0


class Layout:
    """Who runs where, how they meet, and who is killed. nodes: --nnodes, by default the hosts that begin. endpoints: how many hosts can
    serve the rendezvous."""

    def __init__(self, victim="rank", hosts=1, per_host=2, backend="c10d", nodes=None, endpoints=None):
        self.victim, self.hosts, self.per_host, self.backend = victim, hosts, per_host, backend
        self.nodes = nodes or str(hosts)
        self.endpoints = endpoints or (hosts if backend == "muster" else 1)

    @property
    def ranks(self):
        return self.hosts * self.per_host

    def meeting(self, host, ports):
        """The options by which the agent of a host finds the others."""
        if self.nodes == "1" and self.backend == "c10d":
            return ["--standalone"]
        if self.backend == "static":
            master, port = ports[0].split(":")
            where = [f"--master-addr={master}", f"--master-port={port}", f"--node-rank={host}"]
        else:
            where = [f"--rdzv-endpoint={','.join(ports)}"]
        return [f"--nnodes={self.nodes}", f"--rdzv-backend={self.backend}", "--rdzv-id=kills", *where, trainers.address(host)]


class Team:
    """The launchers of one job. Their lines come in the order in which they are read."""

    def __init__(self, layout, options, command, environment=None):
        self.layout, self.options, self.command, self.environment = layout, options, command, environment or {}
        self.lines, self.text, self.left, self.readers = queue.Queue(), "", 0, []
        self.has_succeeded, self.late = False, []  # a job may end while an agent is replaced: nobody waits for the new one
        self.ports = []
        self.held = [self._hold(f"127.0.0.{1 + i}") for i in range(layout.endpoints)]
        self.launchers = []
        for host in range(layout.hosts):
            self.launchers.append(self.start(host))
            if layout.hosts > 1 and host < len(self.ports):
                self._wait_until_served(*self.ports[host].split(":"))

    def _hold(self, address):
        """A port that the kernel gives to nobody else. A node may listen there."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))  # at all addresses, as a node that serves others listens
        self.ports.append(f"{address}:{held.getsockname()[1]}")
        return held

    @staticmethod
    def _wait_until_served(address, port):
        """Polls: the first agent is to hold the store, or each of them its endpoint."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((address, int(port))) == 0:
                    return
            assert time.monotonic() < until_s, "the first agent does not serve the rendezvous"

    def start(self, host):
        """The launcher of a host."""
        launcher = subprocess.Popen(
            [trainers.MUSTER, "run", *self.layout.meeting(host, self.ports), f"--nproc-per-node={self.layout.per_host}", *self.options,
             "--no-python", *self.command],
            env=dict(trainers.ENVIRONMENT, MUSTER_HOST_ID=str(host), **self.environment), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.left += 1
        reader = threading.Thread(target=self._read, args=(launcher,))
        reader.start()
        self.readers.append(reader)
        return launcher

    def _read(self, launcher):
        for line in launcher.stdout:
            self.lines.put((launcher, time.monotonic(), line))
        self.lines.put((launcher, time.monotonic(), None))  # its end

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.terminate()  # it takes its workers with it
        for reader in self.readers:
            reader.join()
        for held in self.held:
            held.close()

    def next(self, patience_s=PATIENCE_S):
        """What is heard next: a launcher, when, and its line, or None at its end. None: nothing is heard for so long."""
        try:
            launcher, came_at, line = self.lines.get(timeout=patience_s)
        except queue.Empty:
            return None
        if line is None:
            self.left -= 1
            self.has_succeeded |= launcher.wait() == 0
        return launcher, came_at, line

    def __iter__(self):
        """Lines and when they came, until all launchers have ended."""
        while self.left > 0:
            heard = self.next()
            assert heard, f"nothing is heard for {PATIENCE_S} s\n{self.text}"
            launcher, came_at, line = heard
            if line is None:
                code = launcher.returncode
                assert code in (0, -signal.SIGKILL) or launcher in self.late, f"exit code {code}\n{self.text}"
                continue
            self.text += line
            if self.has_succeeded and LATE in line:
                self._dismiss_late()
            yield came_at, line

    def _dismiss_late(self):
        self.late += [launcher for launcher in self.launchers if launcher.poll() is None]
        for launcher in self.late:
            launcher.terminate()

    def kill(self, ranks, chance):
        """False when the victim has ended already."""
        try:
            if self.layout.victim == "agent":
                host = chance.randrange(0 if self.layout.backend == "muster" else 1, self.layout.hosts)
                if self.launchers[host].poll() is not None:
                    return False
                self.launchers[host].kill()
                self.launchers[host].wait()
                self.launchers[host] = self.start(host)
            else:
                pid = chance.choice(ranks)
                os.kill(pid if self.layout.victim == "rank" else parent(pid), signal.SIGKILL)
        except (ProcessLookupError, FileNotFoundError):
            return False
        return True

    def codes(self):
        return [launcher.wait() for launcher in self.launchers if launcher not in self.late]


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def job(program, layout, kills, arguments, folder, chance, pause, tally):
    """Runs a job, kills somebody each time that all have started and worked for a moment; its last snapshot."""
    options = ("--restart-backoff=0", f"--max-restarts={kills + 1}")
    command = [trainers.program(program), *arguments, f"--snapshot={folder}"]
    left, pids, killed_at, waits_since, steps_since = kills, {}, None, None, None
    with Team(layout, options, command) as team:
        for came_at, line in team:
            found, started = FOUND.match(line), STARTED.match(line)
            if found:
                tally.resumed.append(int(found[1] or found[2]))
                if waits_since is not None:
                    tally.seconds.append(came_at - waits_since)
                waits_since, steps_since = None, waits_since
            elif steps_since is not None and STEPPED.match(line):
                tally.stepped.append(came_at - steps_since)
                steps_since = None
            tally.scratch += line.startswith("from scratch")
            if not started:
                continue
            pids[int(started[1])] = int(started[3])
            if int(started[1]) == 0:
                waits_since = killed_at  # its next line says from where it goes on; that may be read after the next kill
            if len(pids) == layout.ranks and left > 0:
                time.sleep(chance.random() * pause)  # any moment will do
                killed_at = time.monotonic()
                if team.kill(list(pids.values()), chance):
                    left -= 1
                    pids = {}
        codes = team.codes()
    tally.kills += kills - left
    assert not any(codes), f"exit codes {codes}\n{team.text}"
    assert not re.search(r"\bnan\b", team.text), f"a number that is none\n{team.text}"
    assert os.path.isdir(folder), f"the job has ended well, and left no snapshot\n{team.text}"
    if "--parts" not in arguments:
        return trainers.snapshot(folder)
    assert len(os.listdir(folder)) <= KEPT * (2 + layout.ranks), f"left-overs of saves: {os.listdir(folder)}"
    return trainers.checkpoint(folder)


def compare(program, layout, kills, arguments, chance, pause, tally, whole=None):
    """A job with kills must end with the bits of one without, and only that may begin at the beginning. whole: those bits, if they
    are known. Returns them."""
    with tempfile.TemporaryDirectory() as folder:
        whole = whole or job(program, layout, 0, arguments, f"{folder}/whole", chance, pause, Tally())
        before = tally.scratch
        killed = job(program, layout, kills, arguments, f"{folder}/killed", chance, pause, tally)
        trainers.assert_same_bits(killed, whole)
        assert tally.scratch <= before + kills, "a committed state was not found"
    return whole


def arguments_of(program, sharding, steps, parts_every=0, copies=0):
    if program == "mnist":
        return f"--steps={steps}", "--epochs=1000"
    parts = ("--parts", f"--save-every={parts_every}") if parts_every > 0 else ()
    copying = (f"--copies={copies}",) if copies > 0 else ()
    return *GPT, f"--sharding={sharding}", f"--steps={steps}", *parts, *copying


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", choices=("gpt", "mnist"), default="gpt")
    parser.add_argument("--sharding", choices=("ddp", "fsdp", "hybrid"), default="fsdp")
    parser.add_argument("--victim", choices=("rank", "guardian", "agent"), default="rank")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1)
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--backend", choices=("c10d", "muster"), default="c10d")
    parser.add_argument("--parts-every", type=int, default=0)
    parser.add_argument("--copies", type=int, default=0)
    given = parser.parse_args()
    if given.victim == "agent" and (given.hosts == 1 or (given.sharding == "fsdp" and given.copies == 0)):
        parser.error("a state whose only host is lost is lost: --victim=agent needs --hosts=2, and ddp, hybrid or --copies")
    layout = Layout(given.victim, given.hosts, given.per_host, given.backend)
    chance, tally = random.Random(given.seed), Tally()
    whole = None
    while tally.kills < given.count:
        whole = compare(given.program, layout, min(20, given.count - tally.kills),
                        arguments_of(given.program, given.sharding, STEPS[given.program], given.parts_every, given.copies), chance, 0.3, tally, whole)
        print(f"{tally.kills} kills", flush=True)
    print(f"{tally.kills} {given.victim}s killed, {len(tally.resumed)} times a committed step was found, {tally.scratch} times none was there yet")
    for what, seconds in (("the state", sorted(tally.seconds)), ("the end of the next step", sorted(tally.stepped))):
        if seconds:
            print(f"from a kill to {what}: median {1e3 * statistics.median(seconds):.0f} ms, 99 % {1e3 * seconds[len(seconds) * 99 // 100]:.0f} ms, "
                  f"most {1e3 * seconds[-1]:.0f} ms ({len(seconds)} kills)")
    print("all jobs ended with the bits of an undisturbed one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
