"""Do all ranks meet again after a failure? Jobs of several nodes for case_meetings.py and soak-meet.

The axes of the matrix; a new one, or a new value, belongs here, into case_meetings.py's sample and into CONTRIBUTING.md:

    backend   c10d, static, etcd-v2, etcd, etcd-v3, muster
    nodes     2, 3; one worker each
    harm      first    a worker on the node of rank 0 is killed
              other    a worker on the last node is killed
              twice    a worker on the last node is killed, and so is its successor, once all have met again
              meeting  a worker on the last node is killed, and so is its successor, as soon as it asks for its group
              agent    the agent of a node that serves nothing is killed, and another one takes its place
              guardian the guardian process of the last node is killed (under torchrun, which has none, the worker)
    worker    libmuster (meet_worker.c), gloo (gloo_worker.py)
    agents    muster, torchrun, and one of each in both orders (c10d and static alone)

Nodes count their restarts for themselves, so these counts differ from node to node after `other`, `twice`, `meeting`,
`agent` and `guardian`: nothing that all ranks share may depend on them.
"""

import contextlib
import os
import signal
import time

import etcd
import jobs

BACKENDS = ("c10d", "static", "etcd-v2", "etcd", "etcd-v3", "muster")
NODES = (2, 3)
HARMS = ("first", "other", "twice", "meeting", "agent", "guardian")
WORKERS = ("libmuster", "gloo")
AGENTS = (("muster",), ("torchrun",), ("muster", "torchrun"), ("torchrun", "muster"))

START_S = 60  # PyTorch is imported by every worker at once
MET = {"libmuster": "met", "gloo": "formed"}


class Job:
    """One job; `agents` are the launchers of the first node, the second and so on, the last one of all others."""

    def __init__(self, scratch, backend, nodes, worker, agents=("muster",)):
        self.scratch = scratch
        self.channel = scratch.channel
        self.backend = backend
        self.nodes = nodes
        self.worker = worker
        self.kinds = [agents[min(node, len(agents) - 1)] for node in range(nodes)]
        self.agents = []
        self.etcd = etcd.Etcd(scratch) if backend.startswith("etcd") else None
        self.port = self.etcd.port if self.etcd else jobs.free_port()

    def start(self, node):
        """Starts the agent of this node, in the place of one that has ended."""
        if self.backend == "static":
            meeting = [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={self.port}"]
        else:
            meeting = [f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=meetings", "--local-addr=127.0.0.1"]
            meeting += ["--rdzv-conf=last_call_timeout=2,keep_alive_interval=1"] if "torchrun" in self.kinds else []
        name = f"{self.kinds[node]}{len(self.agents)}"
        if self.worker == "libmuster":
            env = self.scratch.env()
            program = ["--no-python", jobs.program("meet_worker"), self.channel.path]
        else:
            env = jobs.gloo_env(self.scratch)
            program = [os.path.join(jobs.HERE, "gloo_worker.py"), self.channel.path, "--computes"]
        agent = self.scratch.run(
            self.kinds[node], f"--nnodes={self.nodes}", "--nproc-per-node=1", f"--rdzv-backend={self.backend}",
            "--max-restarts=10000", "--monitor-interval=0.1", *(["--restart-backoff=0"] if self.kinds[node] == "muster" else []), *meeting, *program,
            name=name, env=dict(env, MUSTER_HOST_ID=f"node{node}"),
        )  # fmt: skip
        self.agents[node:node + 1] = [agent]

    def begin(self):
        """Starts all agents; returns the stamps of the first meeting."""
        self.start(0)
        if not self.etcd:
            jobs.wait_port(self.port, self.agents[0], START_S)
        for node in range(1, self.nodes):
            self.start(node)
        return self.expect_met(0, START_S)[0]

    def tails(self):
        return "\n".join(agent.tail() for agent in self.agents)

    def latest(self, since):
        """The last stamp of each rank that says that it has met all others, if these ranks live."""
        found = {s.rank: s for s in self.channel.select(MET[self.worker], since, world=self.nodes)}
        return [found[rank] for rank in sorted(found)] if all(jobs.alive(s.pid) for s in found.values()) else []

    def expect_met(self, since, timeout_s=jobs.SOON_S):
        """Waits until all ranks have met; their stamps, and the seconds from the last one's asking to the last one's
        having met."""
        deadline = time.monotonic() + timeout_s
        count = self.nodes
        while len(met := self.latest(since)) < self.nodes:
            for agent in self.agents:
                jobs.check(agent.signalled or agent.wait(0) is None, f"{agent.name} has ended\n{self.tails()}")
            left = deadline - time.monotonic()
            jobs.check(left > 0, f"{len(met)} of {self.nodes} ranks met within {timeout_s} s\n{self.channel.stamps[-12:]}\n{self.tails()}")
            count += self.channel.wait(count, MET[self.worker], min(left, 0.2), since) is not None
        pids = {s.pid for s in met}
        asked = max(s.ns for s in self.channel.stamps if s.name == "ask" and s.pid in pids)
        return met, (max(s.ns for s in met) - asked) / 1e9

    def agent_of(self, stamp):
        """The agent that started this worker, while it lives."""
        pid, by_pid = stamp.pid, {agent.pid: agent for agent in self.agents}
        while pid > 1 and pid not in by_pid:
            pid = jobs.parent(pid)
        return by_pid.get(pid)

    def kill(self, stamp):
        """Kills that worker; where the stamps of what follows begin."""
        mark = self.channel.mark()
        os.kill(stamp.pid, signal.SIGKILL)
        return mark

    def kill_guardian(self, stamp):
        """Kills the process that holds that worker, and the worker with it."""
        mark, kind = self.channel.mark(), self.kinds[self.agents.index(self.agent_of(stamp))]
        os.kill(jobs.parent(stamp.pid) if kind == "muster" else stamp.pid, signal.SIGKILL)
        return mark

    def kill_while_meeting(self, stamp):
        """Kills that worker, and the next one of its node as soon as it asks for its group."""
        agent, mark = self.agent_of(stamp), self.kill(stamp)
        deadline = time.monotonic() + jobs.SOON_S
        while not (asking := [s for s in self.channel.select("ask", mark) if self.agent_of(s) is agent]):
            jobs.check(time.monotonic() < deadline, f"{agent.name} does not start its worker again\n{self.tails()}")
            self.channel.wait(len(self.channel.select("ask", mark)) + 1, "ask", 0.2, mark)
        return self.kill(asking[-1])

    def replace_agent(self, met):
        """Kills the agent of the last node (torchrun leaves its workers behind: them as well), and starts another."""
        agent, mark = self.agents[-1], self.channel.mark()
        workers = [s.pid for s in met if self.agent_of(s) is agent]
        agent.signal(signal.SIGKILL)
        agent.wait(jobs.SOON_S)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.start(self.nodes - 1)
        return mark

    def harm(self, what, met):
        """Does it, waits until all have met again; their stamps, and the worst time."""
        by_node = sorted(met, key=lambda s: s.group)
        if what == "first":
            return self.expect_met(self.kill(by_node[0]))
        if what == "agent":
            return self.expect_met(self.replace_agent(met), START_S)
        if what == "guardian":
            return self.expect_met(self.kill_guardian(by_node[-1]))
        if what == "meeting":
            return self.expect_met(self.kill_while_meeting(by_node[-1]))
        met, took_s = self.expect_met(self.kill(by_node[-1]))
        if what == "twice":
            met, second_s = self.expect_met(self.kill(max(met, key=lambda s: s.group)))
            took_s = max(took_s, second_s)
        return met, took_s

    def finish(self, met):
        """Has all workers end well, and so all agents."""
        jobs.tell_exit(met[0].pid, 0)
        for agent in self.agents:
            agent.expect(START_S, 0)
        if self.etcd:
            self.etcd.stop()
