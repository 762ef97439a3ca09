"""Several endpoints (muster): the serving host dies, is cut off, or never comes; what the others do."""

import os
import signal

import certificates
import jobs
from machines import Hub, run

FORM_S = 30
# The promise is a second; the median is some milliseconds (bench/failover). A loaded machine gets more.
AGAIN_S = 10  # a silence is 15


class Trio:
    """Agents a, b, c (and more) of one job on loopback, one worker each; the first three serve an endpoint each."""

    def __init__(self, scratch, nnodes="2:3", options=()):
        self.scratch = scratch
        self.port = jobs.free_port()
        self.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        self.nnodes = nnodes
        self.options = list(options)
        self.agents = {}

    def endpoints(self):
        return ",".join(f"{address}:{self.port}" for address in self.addresses)

    def start(self, name, endpoints=None, options=()):
        self.agents[name] = self.scratch.start(
            name,
            [
                *self.inside(name),
                *jobs.launcher_command("muster"),
                f"--nnodes={self.nnodes}",
                "--nproc-per-node=1",
                "--rdzv-backend=muster",
                "--rdzv-id=trio",
                f"--rdzv-endpoint={endpoints or self.endpoints()}",
                *self.options,
                *options,
                *jobs.worker(self.scratch),
            ],
        )
        return self.agents[name]

    def inside(self, _name):
        """What a command that is to run on this agent's machine begins with."""
        return []

    def start_serving(self, index, options=()):
        """Starts the agent that is to serve endpoint `index`: those before it are taken, or it would take them."""
        agent = self.start("abc"[index], options=options)
        jobs.wait_port(self.port, agent, FORM_S, self.addresses[index])
        return agent

    def start_all(self):
        mark = self.scratch.channel.mark()
        for index in range(3):
            self.start_serving(index)
        return self.expect_world(3, mark)

    def expect_world(self, world, mark, timeout_s=FORM_S):
        stamps = self.scratch.channel.expect(world, "start", timeout_s, since=mark, world=world)
        ranks = sorted(s.rank for s in stamps[:world])
        jobs.check(ranks == list(range(world)), f"ranks {ranks} instead of 0..{world - 1}")
        return stamps[:world]

    def starts_since(self, mark):
        return self.scratch.channel.select("start", since=mark)

    def finish(self, stamps):
        for s in stamps:
            jobs.tell_exit(s.pid, 0)
        for agent in self.agents.values():
            if not agent.signalled:
                agent.expect(FORM_S, 0)


def kill_each(scratch, trio):
    starts = trio.start_all()
    for victim in range(3):
        mark = scratch.channel.mark()
        killed_ns = trio.agents["abc"[victim]].signal(signal.SIGKILL)
        trio.agents["abc"[victim]].expect(FORM_S)
        again = trio.expect_world(2, mark)
        took_s = (max(s.ns for s in again) - killed_ns) / 1e9
        print(f"{'abc'[victim]} killed: all run again after {took_s * 1000:.1f} ms")
        jobs.check(took_s < AGAIN_S, f"the others ran again only after {took_s:.1f} s")
        jobs.check({s.attempt for s in again} == {0}, f"a restart was consumed: {again}")
        jobs.check(len(trio.starts_since(mark)) == 2, f"workers were started twice: {trio.starts_since(mark)}")
        mark = scratch.channel.mark()
        trio.start_serving(victim)
        starts = trio.expect_world(3, mark)
    trio.finish(starts)
    scratch.expect_nobody()


def case_serving_hosts_are_killed():
    """The serving host is killed, each in turn, and comes back: the others run again at once, each worker group stopped
    and started once for the loss, and once more for the newcomer; nobody is left when the job ends."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        kill_each(scratch, Trio(scratch))


def case_serving_hosts_are_killed_tls():
    """The same, with a secret and all that agents say in TLS."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        certificates.make(scratch.root)
        with open(scratch.path("secret"), "w", encoding="ascii", opener=lambda name, how: os.open(name, how, 0o600)) as file:
            file.write("the secret of the three\n")
        conf = f"--rdzv-conf={certificates.conf(scratch.root)},secret_file={scratch.path('secret')}"
        kill_each(scratch, Trio(scratch, options=[conf]))


def case_last_node_goes_on():
    """A 1:3 job loses its serving host twice: the last node goes on alone."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        trio = Trio(scratch, nnodes="1:3")
        starts = trio.start_all()
        for victim, left in (("a", 2), ("b", 1)):
            mark = scratch.channel.mark()
            trio.agents[victim].signal(signal.SIGKILL)
            starts = trio.expect_world(left, mark)
        trio.finish(starts)
        scratch.expect_nobody()


# A first world of fewer than all begins no sooner than the members of an unknown one before it must have stopped.
EARLY = ["--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2", "--shutdown-timeout=1"]
ABSENT = "10.9.9.9"  # no interface of isolate()'s network leads there


def case_first_endpoint_is_absent():
    """The first host of the list cannot be reached: the job forms at the second, as no two halves of it could."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        trio = Trio(scratch, nnodes="2:3", options=EARLY)
        trio.addresses[0] = ABSENT
        mark = scratch.channel.mark()
        trio.start_serving(1)
        trio.start_serving(2)
        trio.finish(trio.expect_world(2, mark))
        scratch.expect_nobody()


def case_unreachable_endpoint_could_serve_others():
    """Where a world could run at an endpoint that cannot be reached, a smaller one than the largest does not begin, and
    the endpoint is named; it does when the missing node comes."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        trio = Trio(scratch, nnodes="1:3", options=EARLY)
        trio.addresses[0] = ABSENT
        mark = scratch.channel.mark()
        trio.start_serving(1)
        trio.start_serving(2)
        trio.agents["b"].wait_line(f"still waiting for a world.*{ABSENT}.*at an endpoint that cannot be asked", FORM_S)
        jobs.check(not trio.starts_since(mark), "a world was formed")
        trio.start("d")
        trio.finish(trio.expect_world(3, mark))
        scratch.expect_nobody()


def case_other_list_of_endpoints():
    """A node that was given another list of endpoints ends at once, and is told why."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        trio = Trio(scratch)
        starts = trio.start_all()
        other = trio.start("d", endpoints=",".join(reversed(trio.endpoints().split(","))))
        other.expect(FORM_S, 1)
        jobs.check("same list of endpoints" in other.err(), f"the reason is not told\n{other.tail()}")
        del trio.agents["d"]
        trio.finish(starts)
        scratch.expect_nobody()


def case_other_job_at_the_endpoints():
    """Who comes with another --rdzv-id to the endpoints of a job is refused at once, as with one endpoint; the job goes on."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        trio = Trio(scratch, nnodes="2")
        mark = scratch.channel.mark()
        trio.start_serving(0)
        trio.start_serving(1)
        starts = trio.expect_world(2, mark)
        other = trio.start("other", options=["--rdzv-id=other"])
        other.expect(FORM_S, 1)
        for words in ('is held by the job "trio"', "endpoints of its own"):
            jobs.check(words in other.err(), f"the reason is not told\n{other.tail()}")
        del trio.agents["other"]
        trio.finish(starts)
        scratch.expect_nobody()


class Machines(Trio):
    """The same with a machine for each agent, which can be cut off without a word."""

    def __init__(self, scratch, names, **more):
        super().__init__(scratch, **more)
        self.hub = Hub()
        self.addresses = [f"10.77.0.{number}" for number in (1, 2, 3)]
        for number, name in enumerate(names, 1):
            self.hub.add(name, f"10.77.0.{number}")

    def inside(self, name):
        return self.hub.machines[name].inside()

    def start_serving(self, index, options=()):
        return self.start("abc"[index], options=options)

    def finish(self, stamps):
        super().finish(stamps)
        self.hub.close()


def of_agent(stamps, agent):
    return [s for s in stamps if jobs.parent(jobs.parent(s.pid)) == agent.pid]


QUICK = ["--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2", "--shutdown-timeout=1"]


def expect_dead_when_told(machines, starts, names, mark):
    """The workers of the agents that are cut off are dead when the others' are first told to stop, which is before these
    run again: in the time between lies what a busy machine may need to kill."""
    cut_off = [s.pid for name in names for s in of_agent(starts, machines.agents[name])]
    jobs.check(len(cut_off) == len(names), f"not one worker each: {cut_off}")
    others = [s.pid for s in starts if s.pid not in cut_off]
    machines.scratch.channel.expect(1, "signal", FORM_S, since=mark, pid=others[0])
    late = [pid for pid in cut_off if jobs.alive(pid)]
    jobs.check(not late, f"workers of a cut-off node are at work while the others form the next world: {late}")


def case_serving_host_is_cut_off():
    """The serving host is cut off without a word: its workers stop first, then the others go on at the next endpoint.
    When the network heals, it joins them there."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        machines = Machines(scratch, "abc", nnodes="1:3", options=QUICK)
        starts = machines.start_all()
        mark = scratch.channel.mark()
        on_a = of_agent(starts, machines.agents["a"])
        machines.hub.cut_off("a")
        again = machines.expect_world(2, mark)
        stopped = scratch.channel.select("signal", since=mark, pid=on_a[0].pid)
        jobs.check(stopped, "the cut-off host's worker was not stopped")
        jobs.check(stopped[0].ns < min(s.ns for s in again), "it was stopped after the others had started")
        machines.agents["a"].wait_line("only a majority goes on", FORM_S)
        jobs.check(len(machines.starts_since(mark)) == 2, "the cut-off host has started workers")
        mark = scratch.channel.mark()
        machines.hub.heal("a")
        machines.finish(machines.expect_world(3, mark))
        scratch.expect_nobody()


def case_cut_off_node_stops():
    """A node that does not serve is cut off: its worker is gone before the others run again, and it comes back."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        machines = Machines(scratch, "abc", nnodes="1:3", options=QUICK)
        starts = machines.start_all()
        mark = scratch.channel.mark()
        machines.hub.cut_off("c")
        expect_dead_when_told(machines, starts, "c", mark)
        machines.expect_world(2, mark)
        mark = scratch.channel.mark()
        machines.hub.heal("c")
        machines.finish(machines.expect_world(3, mark))
        scratch.expect_nobody()


def case_halves_of_a_partition():
    """Four nodes are cut in two halves: the one with the lowest rank goes on, the other waits with stopped workers, and
    all run together again when the network heals."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        machines = Machines(scratch, "abcd", nnodes="1:4", options=QUICK)
        run("ip", "link", "add", "other", "type", "bridge")
        run("ip", "link", "set", "other", "up")
        mark = scratch.channel.mark()
        for name in "abcd":
            machines.start(name)
        starts = machines.expect_world(4, mark)
        mark = scratch.channel.mark()
        for name in "cd":
            run("ip", "link", "set", machines.hub.machines[name].port, "master", "other")
        expect_dead_when_told(machines, starts, "cd", mark)
        machines.expect_world(2, mark)
        machines.agents["c"].wait_line("still waiting for a world.*of round", FORM_S)
        jobs.check(len(machines.starts_since(mark)) == 2, "both halves have started workers")
        mark = scratch.channel.mark()
        for name in "cd":
            machines.hub.heal(name)
        machines.finish(machines.expect_world(4, mark))
        scratch.expect_nobody()


class Named(Machines):
    """Machines with names, which can be given to others: those of pods stay, and their addresses do not."""

    NAMES = ("first", "second", "third")

    def __init__(self, scratch, names, **more):
        self.hosts = scratch.write("hosts", "")
        jobs.bind_mount(self.hosts, "/etc/hosts")
        super().__init__(scratch, names, **more)
        self.name({name: f"10.77.0.{number}" for number, name in enumerate(self.NAMES, 1)})
        self.addresses = self.NAMES

    def name(self, addresses):
        with open(self.hosts, "w", encoding="ascii") as out:
            out.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items()))


def isolate_with_names():
    why = jobs.isolate(mounts=True)
    if why:
        raise jobs.Skip(f"no namespaces for names of our own: {why}")


def name_moves(backend):
    isolate_with_names()
    with jobs.Scratch() as scratch:
        machines = Named(scratch, "ab", nnodes="2", options=[f"--rdzv-backend={backend}"])
        machines.addresses = ["first"]
        machines.name({"first": "10.77.0.9"})
        mark = scratch.channel.mark()
        machines.start("b").wait_line("still waiting for .*10.77.0.9:", FORM_S)
        machines.name({"first": "10.77.0.1"})
        machines.start("a")
        machines.finish(machines.expect_world(2, mark))
        scratch.expect_nobody()


def case_name_that_moves():
    """The endpoint's name means a host that is gone, until its successor starts: who waits there finds that."""
    name_moves("muster")


def case_name_that_moves_c10d():
    """The same with the store of c10d."""
    name_moves("c10d")


def case_host_that_comes_back_elsewhere():
    """The serving host goes for good, a successor with its name and another address comes, and then the next one goes:
    the one that is left serves no endpoint, and finds the successor."""
    isolate_with_names()
    with jobs.Scratch() as scratch:
        machines = Named(scratch, "abc", nnodes="2:3", options=QUICK)
        mark = scratch.channel.mark()
        for name in "ab":
            machines.start(name)
        machines.start("c", options=[f"{QUICK[0]},is_host=0"])
        machines.expect_world(3, mark)
        mark = scratch.channel.mark()
        machines.hub.cut_off("a")
        machines.expect_world(2, mark)
        machines.agents["a"].signal(signal.SIGKILL)
        machines.hub.add("d", "10.77.0.4")
        machines.name({"first": "10.77.0.4", "second": "10.77.0.2", "third": "10.77.0.3"})
        mark = scratch.channel.mark()
        machines.start("d")
        machines.expect_world(3, mark)
        mark = scratch.channel.mark()
        machines.hub.cut_off("b")
        starts = machines.expect_world(2, mark)
        machines.agents["b"].signal(signal.SIGKILL)
        machines.finish(starts)
        scratch.expect_nobody()


def case_successor_dies_as_well():
    """The place of a host that has died is served by a successor at another address, which dies in its turn: it is found
    dead as the first one was, and the last node goes on."""
    isolate_with_names()
    with jobs.Scratch() as scratch:
        machines = Named(scratch, "ab", nnodes="1:3", options=QUICK)
        machines.hub.add("c", "10.77.0.30")  # the last of them by rank: alone it is no majority with a living host
        machines.hub.add("d", "10.77.0.4")
        names = {"first": "10.77.0.1", "second": "10.77.0.2", "third": "10.77.0.30"}
        machines.name(names)
        machines.start_all()
        for victim, successor in (("b", "d"), ("a", None), ("d", None)):
            mark = scratch.channel.mark()
            machines.agents[victim].signal(signal.SIGKILL)
            starts = machines.expect_world(1 if victim == "d" else 2, mark)
            if successor:
                machines.name({**names, "second": "10.77.0.4"})
                mark = scratch.channel.mark()
                machines.start(successor)
                starts = machines.expect_world(3, mark)
        machines.finish(starts)
        scratch.expect_nobody()
