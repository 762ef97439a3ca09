"""Warm processes of spare nodes: taking over is not to be told from a usual start, but by the time it takes."""

import glob
import json
import os
import signal

import jobs
from nodes import BACKEND, Pair

FORM_S = 60
IMPORTS = "decimal,nothing_of_that_name"
HELD = r"this spare holds 2 warm processes, \d+ MB each"


class WarmPair(Pair):
    """Nodes A and B, and spares of Python workers."""

    def __init__(self, scratch, *options, script=(), **more):
        os.makedirs(scratch.path("facts"), exist_ok=True)
        script = list(script) or [os.path.join(jobs.HERE, "warm_facts.py")]
        os.environ.update(LOGLEVEL="INFO", MUSTER_WARM_IMPORTS=IMPORTS)
        native = ["--rdzv-backend=muster"] if BACKEND != "etcd-v3" else []
        options = [*native, "--spares=2", "--max-restarts=3", *options]
        worker = [*script, scratch.channel.path, scratch.path("facts"), "two words", "${local_rank}"]
        super().__init__(scratch, nnodes="2", options=options, worker=worker, **more)

    def start_spare(self, name="C", options=()):
        """Its warm processes have imported."""
        spare = self.start(1, name=name, options=options)
        spare.wait_line(HELD, FORM_S)
        return spare

    def warm_pids(self, name):
        """Of the agent's guardian's children, who are all that it has."""
        agent = self.agents[name].pid
        return [pid for pid in self.scratch.pids() if jobs.parent(jobs.parent(pid)) == agent]

    def lose(self, name):
        mark = self.channel.mark()
        self.agents[name].signal(signal.SIGKILL)
        return self.expect_world(4, FORM_S, mark)

    def facts_of(self, stamp):
        with open(self.scratch.path("facts", str(stamp.pid)), encoding="utf-8") as text:
            return json.load(text)


def same_start(warm, cold):
    """What differs between two starts of different nodes differs as it has to, nothing else does."""
    jobs.check(warm["imported"] and not cold["imported"], "it is not the warm one that has imported")
    theirs, ours = dict(cold, imported=None), dict(warm, imported=None)
    jobs.check(ours.pop("excepthook") in ("show", theirs.pop("excepthook")), f"excepthook {warm['excepthook']}")
    cold_variables, variables = theirs.pop("environment"), ours.pop("environment")
    for key, value in theirs.items():
        jobs.check(ours[key] == value, f"{key}: cold {value}, warm {ours[key]}")
    jobs.check(sorted(variables) == sorted(cold_variables), f"{set(variables) ^ set(cold_variables)}")
    may_differ = {"GROUP_RANK", "ROLE_RANK", "RANK", "TORCHELASTIC_ERROR_FILE", "MASTER_PORT", "MUSTER_STOP_PATH", "MUSTER_HELD_SOCKET"}
    for name in set(variables) - may_differ:
        jobs.check(variables[name] == cold_variables[name], f"{name}: {cold_variables[name]}, warm {variables[name]}")


def take_over(scratch, pair, options=()):
    starts = pair.start_both()
    pair.start_spare(options=options)
    waiting = pair.warm_pids("C")
    jobs.check(len(waiting) == 2, f"{len(waiting)} warm processes")
    starts = pair.lose("B")
    spare = pair.workers_of(starts, "C")
    jobs.check(sorted(s.pid for s in spare) == sorted(waiting), f"the workers {spare} are not those that waited, {waiting}")
    cold = {f["environment"]["LOCAL_RANK"]: f for f in map(pair.facts_of, pair.workers_of(starts, "A"))}
    for stamp in spare:
        facts = pair.facts_of(stamp)
        jobs.check(facts["environment"]["RANK"] == str(stamp.rank), f"{facts['environment']}")
        same_start(facts, cold[facts["environment"]["LOCAL_RANK"]])
    return starts


def case_warm_spare_takes_over():
    """A spare's waiting processes become the workers of a killed node: a script sees no difference to a usual start."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch, "--redirects=3", f"--log-dir={scratch.path('logs')}")
        starts = take_over(scratch, pair)
        ranks = sorted(s.rank for s in pair.workers_of(starts, "C"))
        pair.finish(starts)
        jobs.check("nothing_of_that_name cannot be imported" in pair.agents["C"].err(), pair.agents["C"].tail())
        for stream in ("stdout", "stderr"):
            found = [open(path, encoding="utf-8").read() for path in glob.glob(scratch.path("logs", "*", "*", "*", stream + ".log"))]
            for rank in ranks:
                jobs.check(found.count(f"{stream} of rank {rank}\n") >= 1, f"{stream} of rank {rank}: {found}")
        scratch.expect_nobody()


def case_warm_module_takes_over():
    """The same for `-m`."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        with open(os.path.join(jobs.HERE, "warm_facts.py"), encoding="utf-8") as text:
            scratch.write("some_module.py", text.read())
        pair = WarmPair(scratch, script=["-m", "some_module"])
        pair.finish(take_over(scratch, pair))
        scratch.expect_nobody()


def case_warm_worker_fails_as_usual():
    """An exception of a worker that was warm ends the same way: traceback, exit code, restart."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch, "--max-restarts=0")
        starts = take_over(scratch, pair)
        os.kill(pair.workers_of(starts, "C")[0].pid, signal.SIGUSR1)
        spare = pair.agents["C"]
        spare.expect(jobs.SOON_S, 1)
        said = spare.err()
        trace = said[said.index("Traceback (most recent call last)") :]
        jobs.check("ValueError: as asked" in trace and "<string>" not in trace, f"not the usual traceback\n{trace}")
        jobs.check("exitcode  : 1" in said, f"no report\n{spare.tail()}")
        pair.agents["A"].expect(jobs.SOON_S, 1)
        scratch.expect_nobody()


def case_warm_workers_have_error_files():
    """A spare's agent is killed after it took over: the outcome has the error file that a worker wrote."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = scratch.path("outcome.json")
        pair = WarmPair(scratch)
        starts = pair.workers_of(take_over(scratch, pair, [f"--outcome={path}"]), "C")
        environment = pair.facts_of(starts[0])["environment"]
        with open(environment["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as text:
            text.write("{}")
        pair.agents["C"].signal(signal.SIGKILL)
        pair.agents["A"].signal(signal.SIGTERM)
        pair.agents["A"].expect(FORM_S)
        scratch.expect_nobody()
        with open(path, encoding="ascii") as text:
            workers = json.load(text)["workers"]
        wrote = {w["local_rank"]: w["error_file"] for w in workers}
        jobs.check(sorted(w["pid"] for w in workers) == sorted(s.pid for s in starts), f"{workers}")
        local_rank = int(environment["LOCAL_RANK"])
        jobs.check(wrote == {local_rank: environment["TORCHELASTIC_ERROR_FILE"], 1 - local_rank: None}, f"{wrote}")


def case_warm_processes_end_with_their_agent():
    """SIGTERM, SIGKILL and the end of the job leave no warm process."""
    jobs.isolate()
    for how in (signal.SIGTERM, signal.SIGKILL, None):
        with jobs.Scratch() as scratch:
            pair = WarmPair(scratch)
            starts = pair.start_both()
            spare = pair.start_spare()
            waiting = pair.warm_pids("C")
            jobs.check(len(waiting) == 2, f"{len(waiting)} warm processes")
            if how is not None:
                spare.signal(how)
                spare.expect(jobs.SOON_S)
                alive = [pid for pid in waiting if jobs.alive(pid)]
                if how == signal.SIGTERM:
                    jobs.check(not alive, f"{how.name} left {alive}")
            pair.finish(starts)
            scratch.expect_nobody()


def case_warm_process_that_dies_is_replaced():
    """The replacement takes over; the fourth death in a row leaves the worker to a usual start."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch)
        pair.start_both()
        spare = pair.start_spare()
        others = set(pair.warm_pids("C"))
        victim = min(others)
        others.remove(victim)
        for deaths in range(1, 5):
            os.kill(victim, signal.SIGKILL)
            if deaths < 4:
                spare.wait_line(HELD, FORM_S, times=deaths + 1)
                victim = next(pid for pid in pair.warm_pids("C") if pid not in others)
        spare.wait_line("this worker will be started when it is needed", FORM_S)
        starts = pair.lose("B")
        warm = [pair.facts_of(s)["imported"] for s in pair.workers_of(starts, "C")]
        jobs.check(sorted(warm) == [False, True], f"warm: {warm}")
        pair.finish(starts)
        scratch.expect_nobody()


def case_warm_processes_die_with_their_guardian():
    """Another guardian starts new ones, and the spare takes over as usual."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch)
        pair.start_both()
        spare = pair.start_spare()
        lost = pair.warm_pids("C")
        os.kill(jobs.parent(lost[0]), signal.SIGKILL)
        spare.wait_line(HELD, FORM_S, times=2)
        waiting = pair.warm_pids("C")
        jobs.check(len(waiting) == 2 and not set(waiting) & set(lost), f"{waiting} and {lost}")
        starts = pair.lose("B")
        jobs.check(sorted(s.pid for s in pair.workers_of(starts, "C")) == sorted(waiting), f"{starts}, {waiting}")
        pair.finish(starts)
        scratch.expect_nobody()


def case_spares_are_limited():
    """A node beyond --spares is refused with a sentence."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = WarmPair(scratch, "--spares=1")
        starts = pair.start_both()
        pair.start_spare()
        late = pair.start(1, name="D")
        late.expect(jobs.SOON_S, 1)
        jobs.check("1 spare node waits already" in late.err(), f"no reason\n{late.tail()}")
        del pair.agents["D"]
        pair.finish(starts)
        scratch.expect_nobody()
