"""Jobs of several hosts, between which the network is silent for a while: what the workers did, judged by what they say themselves.

A Job starts agents on the hosts of a network (hosts.py). Their workers stamp that they start and, ten times a second, that they live, with a clock that all
hosts of one machine share. From that follow the lives of workers: of which rank, on which host, from when to when. Two lives of one rank that overlap
are what must never be. The workers do nothing else, or add up numbers with each other all the time (WORKERS), until they are told to end, or to fail, by files.

Who is to run what, and what must hold, is in test_silence.py."""

import glob
import json
import os
import select
import time
import typing

import hosts
from hosts import jobs
import etcd

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 29400
PATIENCE_S = 60  # for what takes seconds at most
BACKENDS = ("c10d", "static", "muster", "muster3", "etcd-v2", "etcd-v3")  # muster3: muster with three endpoints
WORKERS = ("shell", "c", "gloo", "torch")  # torch: PyTorch with Muster's backend
SIZES = ("fixed", "elastic", "spare")
SECOND_NS = 1_000_000_000


class Times(typing.NamedTuple):
    """Settings of the agents, in seconds. cuts: how long to cut, in the place of 5, 20, 36 and 90 s with the defaults. (TCP sends again after a second or
    so, and a busy machine is late: so the shortest cut is a little shorter than the others.)"""

    interval_s: int
    attempts: int
    hold_s: int
    shutdown_s: int
    cuts: dict

    @property
    def silence_s(self):
        return self.interval_s * self.attempts

    def conf(self):
        return f"keep_alive_interval={self.interval_s},keep_alive_max_attempt={self.attempts},hold_timeout={self.hold_s}"


SHORT = Times(1, 3, 12, 2, {5: 0.7, 20: 4, 36: 6, 90: 9})
REAL = Times(5, 3, 180, 30, {5: 5, 20: 20, 36: 36, 90: 90})


class Life:
    """A worker from its first stamp to its last one. calls: how many it had done when."""

    def __init__(self, stamp, start_ns):
        self.rank, self.host, self.pid, self.attempt, self.world = stamp.rank, stamp.host, stamp.pid, stamp.attempt, stamp.world
        self.start_ns = self.last_ns = start_ns
        self.calls = []

    def __repr__(self):
        return f"rank {self.rank} on {self.host} (pid {self.pid} there, attempt {self.attempt}, world {self.world})"


class Job:
    """times: SHORT or REAL; conf: more settings, `,key=value`; count: how many numbers workers in C add up. Rank 0 is on host0, which serves the store or the coordinator."""

    def __init__(self, network, scratch, backend, size="fixed", worker="shell", times=SHORT, conf="", count=1,
                 members=("host0", "host1")):
        self.network, self.scratch, self.backend, self.size, self.times, self.members = network, scratch, backend, size, times, members
        self.worker, self.conf, self.count = worker, conf, count
        self.agents = {}  # name -> process
        if worker in ("gloo", "torch"):
            jobs.need_torch()
        if worker == "torch" and not glob.glob(os.path.join(glob.escape(self._package()), "muster", "_torch_*")):
            raise jobs.Skip("the backend of torch.distributed was not built (tools/build-backend)")
        self.lives = []
        self._living = {}  # (host, pid) -> its last Life
        self._read = 0  # stamps that are in self.lives
        self._asked = 0.0  # when etcd was asked who leads
        self.files = scratch.path("files")
        os.mkdir(self.files)
        self._behind_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()  # shells read the one, we the other
        self.etcd = etcd.Etcd(scratch, address=hosts.HERE_ADDRESS) if backend.startswith("etcd") else None
        self.port = self.etcd.port if self.etcd else PORT  # where agents agree
        network.note(self.port)

    # ------------------------------------------------------------------- agents

    @staticmethod
    def _package():
        return os.path.join(os.path.dirname(jobs.muster_binary()), "python")

    def _worker(self):
        folder = [self.scratch.channel.path, self.files]
        if self.worker == "shell":
            return ["--no-python", os.path.join(HERE, "shell_worker"), *folder]
        if self.worker == "c":
            return ["--no-python", jobs.program("hosts_worker"), *folder, str(self.count)]
        return ["--no-python", jobs.python(), os.path.join(HERE, "torch_worker.py"), *folder, {"gloo": "gloo", "torch": "muster"}[self.worker]]

    def _meeting(self, host, node_rank):
        if self.backend == "static":
            return [f"--node-rank={node_rank}", "--master-addr=host0", f"--master-port={PORT}"]
        backend = "muster" if self.backend == "muster3" else self.backend
        endpoint = f"host0:{PORT}"
        if self.backend == "muster3":
            endpoint = ",".join(f"host{number}:{PORT}" for number in range(3))
        elif self.etcd:
            endpoint = self.etcd.endpoint
        return [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", "--rdzv-id=hold"]

    def start(self, host, node_rank=None, name=None, launcher="muster", options=()):
        """An agent on this host. node_rank (static): by default the number of the host."""
        node_rank = host.removeprefix("host") if node_rank is None else node_rank
        conf = f"--rdzv-conf={self.times.conf()}{self.conf}"
        nodes = "1:2" if self.size == "elastic" else "2"
        command = [*jobs.launcher_command(launcher), f"--nnodes={nodes}", "--nproc-per-node=1", "--max-restarts=3", *self._meeting(host, node_rank)]
        if launcher == "muster":
            command += [conf, f"--shutdown-timeout={self.times.shutdown_s}"]
        more = {"OMP_NUM_THREADS": 1, **({"PYTHONPATH": self._package()} if self.worker == "torch" else {})}
        name = name or host
        self.agents[name] = self.network.hosts[host].start(self.scratch, f"{name}.{len(self.scratch.processes)}",
                                                           [*command, *options, *self._worker()], self.scratch.env(**more))  # fmt: skip
        return self.agents[name]

    def wait_served(self):
        """Until host0 serves the others, or leads."""
        agent = self.agents["host0"]
        if self.backend == "etcd-v3":
            self.until(self.leader, PATIENCE_S, "no leader")
        elif not self.etcd:
            jobs.wait_port(PORT, agent, PATIENCE_S)

    def leader(self):
        """etcd-v3: the port where the leader serves; None: there is none."""
        value = etcd.keys(self.etcd).get("/muster/hold/leader")
        if value is None:
            return None
        self.port = json.loads(value)["port"]
        self.network.note(self.port)
        return self.port

    def begin(self):
        """The members, and a spare if there is to be one. Until their workers run and, if they do, talk."""
        self.start(self.members[0])
        self.wait_served()
        for host in self.members[1:]:
            self.start(host)
        self.until(self.runs, PATIENCE_S, "the job does not begin")
        if self.size == "spare":
            spare = self.start("host2")
            spare.wait_line("spare", PATIENCE_S)

    # ------------------------------------------------------------------- workers

    def look(self):
        """Reads what has been stamped."""
        for stamp in self.scratch.channel.stamps[self._read :] if self.scratch.channel.mark() else ():
            when_ns = stamp.ns if "ns" in stamp.fields else int(float(stamp.up) * SECOND_NS) - self._behind_ns
            if stamp.name == "start":
                life = self._living[stamp.host, stamp.pid] = Life(stamp, when_ns)
                self.lives.append(life)
            life = self._living.get((stamp.host, stamp.pid))
            if life:
                life.last_ns = max(life.last_ns, when_ns)
                life.calls.append((when_ns, stamp.calls))
        self._read = len(self.scratch.channel.stamps)

    def until(self, condition, timeout_s, failure=None):
        """Reads stamps until the condition, a function, holds. It is asked after each stamp and each end of an agent. Returns what it says; after
        `timeout_s` something false, or fails, with `failure` in the message."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.look()
            found = condition()
            left = deadline - time.monotonic()
            if found or left <= 0:
                jobs.check(found or not failure, f"{failure} within {timeout_s} s\n{self.told()}")
                return found
            poller = select.poll()
            poller.register(self.scratch.channel.fd, select.POLLIN)
            for agent in self.agents.values():
                if agent.wait(0) is None:
                    poller.register(agent.pidfd, select.POLLIN)
            poller.poll(min(left, 1) * 1000)  # etcd and files tell nobody

    def pass_time(self, seconds):
        """For what is said to last so long: a cut."""
        self.until(lambda: False, seconds)

    def living(self, within_s=0.6):
        """Workers that have stamped a moment ago."""
        now = time.monotonic_ns()
        return [life for life in self._living.values() if now - life.last_ns < within_s * SECOND_NS]

    def talks_since(self, life, since_ns):
        """When this worker finished the first call that it did not begin before `since_ns`; None: not yet. One that calls nobody: when it stamped."""
        later = [(when, calls) for when, calls in life.calls if when > since_ns]
        if self.worker == "shell":
            return later[0][0] if later else None
        before = max([calls for when, calls in life.calls if when <= since_ns], default=0)
        return next((when for when, calls in later if calls > before + 1), None)

    def runs(self, since_ns=0, world=None):
        """Does a whole world run, and its workers talk since then? The time since when, or None."""
        living = self.living()
        world = world or (living[-1].world if living else None)
        of_world = [life for life in living if life.world == world]
        times = [self.talks_since(life, max(since_ns, life.start_ns)) for life in of_world]
        whole = sorted(life.rank for life in of_world) == list(range(world or 0)) and world == (2 if self.size != "elastic" else world)
        return max(times) if whole and times and all(times) else None

    def agreed(self, since_ns):
        """When the last member was answered at the rendezvous, of a question that it asked after `since_ns`; None: not yet."""
        if self.backend == "etcd-v3" and time.monotonic() - self._asked > 0.5:
            self._asked = time.monotonic()
            self.leader()
        times = [self.network.answered_after(host, self.port, since_ns) for host in self.members]
        known = [when for when in times if when]
        needed = len(self.members) - (self.backend != "etcd-v2")  # who serves asks itself
        return max(known) if len(known) >= needed else None

    def overlaps(self):
        """Pairs of lives of one rank, and how many seconds they have in common."""
        self.look()
        lives = sorted(self.lives, key=lambda life: life.start_ns)
        found = []
        for number, life in enumerate(lives):
            found += [(life, later, (min(life.last_ns, later.last_ns) - later.start_ns) / SECOND_NS)
                      for later in lives[number + 1 :] if later.rank == life.rank and later.start_ns < life.last_ns]  # fmt: skip
        return found

    # ------------------------------------------------------------------- ends

    def tell(self, name):
        """A file by which workers end (`end`, `end.HOST`) or fail (`fail.HOST`)."""
        with open(os.path.join(self.files, name), "w", encoding="ascii"):
            pass

    def ended(self, names=None):
        return all(self.agents[name].wait(0) is not None for name in names or self.agents)

    def codes(self):
        return {name: agent.wait(0) for name, agent in self.agents.items()}

    def told(self):
        """What agents have said, for who reads of a failure."""
        return "\n".join(f"--- {name}\n{agent.tail()}" for name, agent in self.agents.items())

