"""Agents and guardians that get no time for a while, one of them or all at once: stopped, frozen, suspended, moved."""

import contextlib
import os
import signal
import threading
import time

import jobs
from nodes import BACKEND, Pair

FORM_S = 30
END_S = 60
AGAIN_S = 3  # a restart would show by then: two intervals after the pause
# Others are silent after two seconds.
QUICK = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"
HELD_BRIEFLY = [f"{QUICK},hold_timeout=4", "--shutdown-timeout=1"]


def launcher_processes(agent, with_workers):
    """The agent, its guardian, and perhaps what they have started."""
    parents = {int(name): jobs.parent(int(name)) for name in os.listdir("/proc") if name.isdigit()}

    def is_below(pid):
        while pid > 1 and pid != agent.pid:
            pid = parents.get(pid, 0)
        return pid == agent.pid

    program = jobs.executable(agent.pid)
    return [p for p in parents if is_below(p) and (with_workers or jobs.executable(p) == program)]


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def freezer():
    """The root of a hierarchy of control groups that can freeze, its file and the words for it; None: there is none, or not for us."""
    for root, name, words in (
        ("/sys/fs/cgroup/freezer", "freezer.state", ("FROZEN", "THAWED")),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", ("1", "0")),
        ("/sys/fs/cgroup", "cgroup.freeze", ("1", "0")),
    ):
        if os.path.exists(f"{root}/cgroup.procs") and os.access(root, os.W_OK):
            return root, name, words
    return None


@contextlib.contextmanager
def frozen(pids):
    """In a control group that freezes them, as `docker pause` and suspended containers do: no signal, no SIGCHLD."""
    root, name, (freeze, thaw) = freezer()
    folder = f"{root}/muster-test-{os.getpid()}-{threading.get_ident()}"
    os.mkdir(folder)
    try:
        for pid in pids:
            write(f"{folder}/cgroup.procs", str(pid))
        write(f"{folder}/{name}", freeze)
        yield
    finally:
        write(f"{folder}/{name}", thaw)
        while pids := read(f"{folder}/cgroup.procs").split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    write(f"{root}/cgroup.procs", pid)
        os.rmdir(folder)


@contextlib.contextmanager
def paused(agents, with_workers=False, by_freezer=False):
    """Guardians first: an agent that sees its guardian stopped would not mind, but so nobody is told of anything."""
    pids = [p for agent in agents for p in sorted(launcher_processes(agent, with_workers), reverse=True)]
    if by_freezer:
        with frozen(pids):
            yield
        return
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a worker's own, which has ended meanwhile
                jobs.stop(pid)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Static(Pair):
    """Two nodes with --node-rank and --master-addr."""

    def start(self, index, name=None, **more):
        self.options = [f"--node-rank={index}", "--master-addr=127.0.0.1", f"--master-port={self.port}"]
        return super().start(index, name, **more)


def pair_of(scratch, options, backend=BACKEND):
    if backend == "static":
        return Static(scratch, nnodes="2", backend=backend)
    if backend == "muster-3":
        ports = [jobs.free_port() for _ in range(3)]
        pair = Pair(scratch, nnodes="2", options=options, backend="muster", endpoint=",".join(f"127.0.0.1:{p}" for p in ports))
        pair.port = ports[0]
        return pair
    return Pair(scratch, nnodes="2", options=options, backend=backend)


def end_all(scratch, pair, starts, mark):
    """Has all workers end well, and those that are started after all; the agents' exit codes."""
    told, deadline = set(), time.monotonic() + END_S
    while time.monotonic() < deadline and any(agent.wait(0.1) is None for agent in pair.agents.values()):
        for s in [*starts, *scratch.channel.select("start", since=mark)]:
            if s.pid not in told:
                told.add(s.pid)
                with contextlib.suppress(ProcessLookupError):
                    jobs.tell_exit(s.pid, 0)
    return [agent.wait(0) for agent in pair.agents.values()]


def pause_all(scratch, pause_s, options, with_workers=False, at_the_end=False, backend=BACKEND, by_freezer=False):
    """A job of two nodes is paused in the middle, or while its workers end: nothing starts again, all exit 0. Returns the
    number of workers that were started a second time, and the exit codes."""
    pair = pair_of(scratch, options, backend)
    starts = pair.start_both(FORM_S)
    mark = scratch.channel.mark()
    with paused(pair.agents.values(), with_workers, by_freezer):
        if at_the_end:
            for s in starts:
                jobs.tell_exit(s.pid, 0)
        time.sleep(pause_s)
    if not at_the_end:
        scratch.channel.wait(1, "start", AGAIN_S, since=mark)
    codes = end_all(scratch, pair, [] if at_the_end else starts, mark)
    again = len(scratch.channel.select("start", since=mark))
    errors = "\n".join(agent.tail() for agent in pair.agents.values()) if again or codes != [0, 0] else ""
    for agent in pair.agents.values():
        if agent.wait(0) is None:
            agent.signal(signal.SIGKILL)
    if pair.etcd:
        pair.etcd.stop()
    return again, codes, errors


def expect_nothing(outcome):
    again, codes, errors = outcome
    jobs.check(again == 0, f"{again} workers were started again\n{errors}")
    jobs.check(codes == [0, 0], f"exit codes {codes}\n{errors}")


def case_pause_of_all_nodes():
    """All agents and guardians are stopped for longer than silence is allowed: no restart, exit 0."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        expect_nothing(pause_all(scratch, 3.5, [QUICK]))


def case_freeze_of_all_nodes():
    """The same by a control group that freezes them, their workers too."""
    if os.geteuid() != 0 or freezer() is None:
        raise jobs.Skip("freezing control groups needs root and a hierarchy that can be written")
    jobs.isolate()
    with jobs.Scratch() as scratch:
        expect_nothing(pause_all(scratch, 3.5, [QUICK], with_workers=True, by_freezer=True))


def case_pause_at_the_end():
    """All agents and guardians are stopped while the workers end well: exit 0."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        expect_nothing(pause_all(scratch, 3.5, [QUICK], at_the_end=True))


def case_needed_node_keeps_its_place():
    """One agent of a job of fixed size is stopped for longer than silence is allowed: it is said, no restart, exit 0."""
    jobs.isolate()
    for name in "B" if BACKEND == "muster" else "BA":  # a coordinator that is silent might have told the others another world
        with jobs.Scratch() as scratch:
            pair = Pair(scratch, nnodes="2", options=[QUICK])
            starts = pair.start_both()
            mark = scratch.channel.mark()
            other = pair.agents["AB".replace(name, "")]
            with paused([pair.agents[name]]):
                if name == "B":
                    other.wait_line("no sign of life from node", FORM_S)
                else:
                    time.sleep(3.5)  # the other one hears nothing, since the store is stopped as well
            if name == "B":
                other.wait_line("answers? again", FORM_S)
            scratch.channel.wait(1, "start", 1, since=mark)
            jobs.check(not scratch.channel.select("start", since=mark), f"workers were started again\n{other.tail()}")
            pair.finish(starts)
            scratch.expect_nobody()


WORKER = """
ending() { echo told >> told; sleep 1; echo done >> done; exit 0; }
trap ending TERM
echo started >> started
while :; do sleep 0.1; done
"""


def lines_of(scratch, name):
    with contextlib.suppress(FileNotFoundError):
        with open(scratch.path(name)) as file:
            return len(file.readlines())
    return 0


def wait_lines(scratch, name, count):
    deadline = time.monotonic() + FORM_S
    while lines_of(scratch, name) < count:
        jobs.check(time.monotonic() < deadline, f"{name} has not {count} lines")
        time.sleep(0.01)


def case_pause_while_workers_end():
    """What is paused while its workers obey SIGTERM leaves them the rest of their time."""
    with jobs.Scratch() as scratch:
        script = scratch.write("worker.sh", f"cd {scratch.path()}\n{WORKER}")
        agent = scratch.run("muster", "--standalone", "--nproc-per-node=2", "--shutdown-timeout=2", "--no-python", "sh", script)
        wait_lines(scratch, "started", 2)
        agent.signal(signal.SIGTERM)
        wait_lines(scratch, "told", 2)
        with paused([agent], with_workers=True):
            time.sleep(3)
        agent.wait(FORM_S)
        jobs.check(lines_of(scratch, "done") == 2, f"workers were killed\n{agent.tail()}")


def case_needed_node_is_replaced():
    """The same, but a third node comes: once the lease of the one that is stopped is over it takes the place. That one is a spare when it is back."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, ("muster",) * 3, nnodes="2", options=HELD_BRIEFLY)
        pair.start_both()
        mark = scratch.channel.mark()
        with paused([pair.agents["B"]]):
            pair.agents["A"].wait_line("no sign of life from node", FORM_S)
            pair.start(2, name="C")
            scratch.channel.expect(4, "start", FORM_S, since=mark, world=4)
        starts = [s for s in scratch.channel.select("start", since=mark) if jobs.alive(s.pid)]
        jobs.check(len(starts) == 4, f"{starts}")
        for s in starts:
            jobs.tell_exit(s.pid, 0)
        for name in "AC":
            pair.agents[name].expect(END_S, 0)
        pair.agents["B"].expect(END_S)
        scratch.expect_nobody()
