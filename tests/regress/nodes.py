"""Two-node jobs on one machine, for the cases and the benchmarks: agents A (the store's host or the leader, started first)
and B."""

import os
import signal
import time

import etcd
import jobs
import machines

WORKERS_A_NODE = 2
# Set by `run --backend NAME`. muster3: muster with three endpoints, of which each agent serves one.
BACKEND = os.environ.get("MUSTER_TEST_BACKEND", "c10d")


def gloo(scratch):
    """What makes a Pair's workers PyTorch's. A case starts up to thirty: with the torchruns, they share one import of it."""
    return {"worker": [os.path.join(jobs.HERE, "gloo_worker.py"), scratch.channel.path], "env": jobs.gloo_env(scratch)}


class Pair:
    """Agents of one job on loopback, each with two workers; `kinds` says which launcher each one is. hub: each on a machine of
    its own, called A and B.

    Each agent has an address of its own, by which it is ranked: A before B before C. With one address for all, the process
    ids would decide, and these wrap around at any moment."""

    def __init__(self, scratch, kinds=("muster", "muster"), nnodes="1:2", options=(), worker=None, endpoint=None, backend=BACKEND, env=None, hub=None):
        self.scratch = scratch
        self.channel = scratch.channel
        self.kinds = kinds
        self.hub = hub
        self.addresses = [f"{machines.NETWORK}{number}" if hub else f"127.0.0.{number}" for number in (1, 2, 3)]
        etcd_address = machines.HERE if hub else "127.0.0.1"
        self.etcd = etcd.Etcd(scratch, address=etcd_address) if backend.startswith("etcd") else None
        self.backend = backend.removesuffix("3") if backend == "muster3" else backend
        self.port = self.etcd.port if self.etcd else jobs.free_port()
        ports = [self.port] + [jobs.free_port() for _ in range(2 if backend == "muster3" else 0)]
        hosts = [etcd_address] if self.etcd else self.addresses
        self.endpoint = endpoint or ",".join(f"{host}:{port}" for host, port in zip(hosts, ports))
        for index, name in enumerate("AB" if hub else ""):
            hub.add(name, self.addresses[index])
        self.nnodes = nnodes
        self.options = list(options)
        self.worker = worker or jobs.worker(scratch)
        self.env = env
        self.agents = {}

    def start(self, index, name=None, stamped=False, options=(), local_addr=True):
        """Starts agent number `index` (0 = A). local_addr: in place of its own address; None: without one, so that the rank
        follows the process id."""
        name = name or "ABC"[index]
        local_addr = self.addresses[index] if local_addr is True else local_addr
        self.agents[name] = self.scratch.run(
            self.kinds[index],
            f"--nnodes={self.nnodes}",
            f"--nproc-per-node={WORKERS_A_NODE}",
            f"--rdzv-backend={self.backend}",
            "--rdzv-id=pair",
            f"--rdzv-endpoint={self.endpoint}",
            *([f"--local-addr={local_addr}"] if local_addr else []),
            *self.options,
            *options,
            *self.worker,
            name=name,
            stamped=stamped,
            env=self.env,
            inside=self.hub.machines[name].inside() if self.hub else (),
        )
        return self.agents[name]

    def start_both(self, timeout_s=30):
        """A, then B as soon as A's store listens, or A leads; returns the four `start` stamps."""
        mark = self.channel.mark()
        agent = self.start(0)
        jobs.wait_port(self.port, self.etcd.process if self.etcd else agent, timeout_s)
        if self.backend == "etcd-v3":
            self.wait_leader(agent, timeout_s)
        self.start(1)
        return self.expect_world(4, timeout_s, mark)

    def wait_leader(self, agent, timeout_s):
        """Waits until A has taken the leader's key: etcd listened before, and B could be faster. Polls etcd."""
        deadline = time.monotonic() + timeout_s
        while "/muster/pair/leader" not in etcd.keys(self.etcd):
            if agent.wait(0.02) is not None or time.monotonic() > deadline:
                raise jobs.Failed(f"{agent.name} does not lead\n{agent.tail()}")

    def freeze(self, name, timeout_s=30):
        """Stops this agent and waits until the other one runs without it; the seconds that this took."""
        mark, frozen_ns = self.channel.mark(), time.monotonic_ns()
        jobs.stop(self.agents[name].pid)
        starts = self.expect_world(WORKERS_A_NODE, timeout_s, mark)
        return (min(s.ns for s in starts) - frozen_ns) / 1e9

    def thaw(self, name, timeout_s=30):
        """Lets a stopped agent go on and waits until both run; their stamps."""
        mark = self.channel.mark()
        os.kill(self.agents[name].pid, signal.SIGCONT)
        return self.expect_world(2 * WORKERS_A_NODE, timeout_s, mark)

    def expect_world(self, world, timeout_s, mark, name="start"):
        """Waits until a group of `world` workers is complete: one stamp of each rank, all of that world size."""
        stamps = self.channel.wait(world, name, timeout_s, since=mark, world=world)
        if stamps is None:
            said = "\n".join(agent.tail() for agent in self.agents.values())
            raise jobs.Failed(f"no {world} x '{name}' within {timeout_s} s: {self.channel.stamps[mark:]}\n{said}")
        ranks = sorted(s.rank for s in stamps[:world])
        jobs.check(ranks == list(range(world)), f"ranks {ranks} instead of 0..{world - 1}")
        for s in stamps[:world]:
            self.agent_of(s)  # while they live
        return stamps[:world]

    def agent_of(self, stamp):
        """The name of the agent that started this worker; ranks do not tell, since process ids wrap around."""
        if "agent" not in stamp.fields:
            pid = stamp.pid
            names = {agent.pid: name for name, agent in self.agents.items()}
            while pid > 1 and pid not in names:
                pid = jobs.parent(pid)
            stamp.fields["agent"] = names.get(pid)
        return stamp.agent

    def workers_of(self, stamps, name):
        """The stamps of the workers that belong to agent A or B."""
        return [s for s in stamps if self.agent_of(s) == name]

    def finish(self, stamps, timeout_s=30):
        """Has the workers end well and expects every agent that was not signalled to exit 0."""
        for s in stamps:
            jobs.tell_exit(s.pid, 0)
        for agent in self.agents.values():
            if not agent.signalled:
                agent.expect(timeout_s, 0)
        self.close()

    def close(self):
        if self.etcd:
            self.etcd.stop()
        if self.hub:
            self.hub.close()
