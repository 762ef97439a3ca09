"""How a job of two nodes ends: a node that is done may go, a failure for good reaches the other one, each with its cause."""

import contextlib
import json
import os
import signal
import time

import jobs
from machines import Hub
from nodes import BACKEND, Pair, gloo

FORM_S = 30
# Each round of the legacy etcd backend waits for more nodes.
QUICK = ["--rdzv-conf=last_call_timeout=2"] if BACKEND == "etcd" else []


def other(node):
    return "AB"["AB".index(node) ^ 1]


def end_workers(pair, starts, node, code=0):
    for s in pair.workers_of(starts, node):
        jobs.tell_exit(s.pid, code)


def wait_done(agent):
    """Until the agent is done, and whoever holds the rendezvous knows it."""
    agent.wait_line("workers have succeeded; waiting for the other nodes", FORM_S)


def finish_and_go(scratch, pair, starts, done, how):
    """The workers of `done` succeed; while its agent waits for the other node it gets the signal `how`."""
    os.environ["LOGLEVEL"] = "INFO"
    end_workers(pair, starts, done)
    agent = pair.agents[done]
    wait_done(agent)
    agent.signal(how)
    agent.expect(jobs.SOON_S, -signal.SIGKILL if how == signal.SIGKILL else 0)


def expect_healthy_end(scratch, pair, starts, node, mark):
    """The workers of `node` were not touched, end when they are told, and so does its agent."""
    end_workers(pair, starts, node)
    pair.agents[node].expect(jobs.SOON_S, 0)
    jobs.check(not scratch.channel.select("signal", since=mark), f"workers were stopped\n{pair.agents[node].tail()}")
    jobs.check(not scratch.channel.select("start", since=mark), f"workers were started anew\n{pair.agents[node].tail()}")


def case_done_node_may_go():
    """A node that has succeeded is signalled or killed, hosting the rendezvous or not: the other one's workers run on, exit 0."""
    os.environ["LOGLEVEL"] = "INFO"
    jobs.isolate()
    for nnodes in ("2", "1:2"):
        for done in "AB":
            if BACKEND in ("muster3", "etcd-v3") and nnodes == "1:2" and done == "A":
                continue  # another world could follow elsewhere (docs/known-bugs.md)
            for how in (signal.SIGTERM, signal.SIGKILL):
                with jobs.Scratch() as scratch:
                    pair = Pair(scratch, nnodes=nnodes, options=QUICK)
                    starts = pair.start_both()
                    mark = scratch.channel.mark()
                    finish_and_go(scratch, pair, starts, done, how)
                    expect_healthy_end(scratch, pair, starts, other(done), mark)
                    if pair.etcd:
                        pair.etcd.stop()
                    scratch.expect_nobody()


# Judges silence after 2 s.
SHORT = ["--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"]


def lose_power_when_done(scratch, done, nnodes, backend, gap_s, options=SHORT):
    """The machine of a node that is done loses power, and nobody is told. The other one works on for gap_s."""
    hub = Hub()
    is_static = backend == "static"
    conf = [] if is_static else [*options, *QUICK]
    pair = Pair(scratch, nnodes=nnodes, options=conf, backend="c10d" if is_static else backend, hub=hub)
    ranks = [["--rdzv-backend=static", f"--node-rank={i}"] if is_static else [] for i in (0, 1)]
    starts = start_two(pair, ranks) if is_static else pair.start_both()
    mark = scratch.channel.mark()
    end_workers(pair, starts, done)
    wait_done(pair.agents[done])
    hub.lose_power(done, pair.agents[done])
    time.sleep(gap_s)
    expect_healthy_end(scratch, pair, starts, other(done), mark)
    pair.close()
    scratch.expect_nobody()


def case_done_node_loses_power():
    """A node that has succeeded loses power, hosting the rendezvous or not: the silence is judged while the other one's workers
    run, and they run on, exit 0."""
    os.environ["LOGLEVEL"] = "INFO"
    jobs.isolate()
    for backend, done in ((BACKEND, "A"), (BACKEND, "B"), *((("static", "B"),) if BACKEND == "c10d" else ())):
        with jobs.Scratch() as scratch:
            lose_power_when_done(scratch, done, "2", backend, gap_s=4)


def case_restart_that_needs_a_done_node():
    """With restarts left a worker fails after the other node has succeeded: the job fails at once, and names that node; within
    the minimum of nodes it goes on."""
    os.environ["LOGLEVEL"] = "INFO"
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2", options=["--max-restarts=3", *QUICK])
        starts = pair.start_both()
        end_workers(pair, starts, "B")
        wait_done(pair.agents["B"])
        jobs.tell_exit(pair.workers_of(starts, "A")[0].pid, 3)
        pair.agents["A"].expect(jobs.SOON_S, 1)
        pair.agents["B"].expect(jobs.SOON_S, 0)
        said = pair.agents["A"].err()
        jobs.check("succeeded" in said and str(pair.agents["B"].pid) in said, f"B is not named\n{pair.agents['A'].tail()}")
        if pair.etcd:
            pair.etcd.stop()
        scratch.expect_nobody()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="1:2", options=["--max-restarts=3", *QUICK])
        starts = pair.start_both()
        end_workers(pair, starts, "B")
        wait_done(pair.agents["B"])
        mark = scratch.channel.mark()
        jobs.tell_exit(pair.workers_of(starts, "A")[0].pid, 3)
        pair.finish(pair.expect_world(2, FORM_S, mark))
        scratch.expect_nobody()


def case_mixed_done_torchrun_falls_silent():
    """A torchrun node is done and waits in its exit barrier, where its heartbeats stop: Muster's workers run on, both exit 0."""
    os.environ["LOGLEVEL"] = "INFO"
    jobs.need_torch()
    jobs.isolate()
    for kinds in (("muster", "torchrun"), ("torchrun", "muster")):
        with jobs.Scratch() as scratch:
            # In a job of fixed size a silent node keeps its place anyway.
            pair = Pair(scratch, kinds=kinds, options=["--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"])
            starts = pair.start_both(60)
            ours = "AB"[kinds.index("muster")]
            mark = scratch.channel.mark()
            end_workers(pair, starts, other(ours))
            pair.agents[ours].wait_line("a node has gone after its workers had succeeded", FORM_S)
            expect_healthy_end(scratch, pair, starts, ours, mark)
            pair.agents[other(ours)].expect(jobs.SOON_S, 0)
            if pair.etcd:
                pair.etcd.stop()
            scratch.expect_nobody()


DYING = """
import os, signal, sys, time
rank, victim_s = int(os.environ["RANK"]), float(sys.argv[2])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
with open(sys.argv[1], "a") as channel:
    channel.write(f"start ns={time.monotonic_ns()} pid={os.getpid()} rank={rank} world={os.environ['WORLD_SIZE']}\\n")
if signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) == signal.SIGUSR2:
    sys.exit(0)
if sys.argv[3] in ("any", str(rank)):
    sys.stderr.write(f"last words of rank {rank}\\n")
    os._exit(9)
time.sleep(victim_s)
sys.stderr.write(f"rank {rank} has lost its peer\\n")
os._exit(1)
"""


def root_cause(agent):
    """What stands below "Root Cause" in its report."""
    return agent.err().partition("Root Cause")[2]


def script_of(scratch):
    path = scratch.path("dying.py")
    with open(path, "w", encoding="utf-8") as out:
        out.write(DYING)
    return path


def start_two(pair, options=((), ())):
    pair.start(0, options=options[0])
    jobs.wait_port(pair.port, pair.agents["A"], FORM_S)
    pair.start(1, options=options[1])
    return pair.expect_world(4, FORM_S, 0)


def expect_cause(pair, name, rank):
    cause = root_cause(pair.agents[name])
    jobs.check(f"rank      : {rank} " in cause, f"rank {rank} is not the cause\n{pair.agents[name].tail()}")
    jobs.check(f"last words of rank {rank}" in cause, f"without last words\n{pair.agents[name].tail()}")


def final_failure(static, rank, backend=BACKEND):
    with jobs.Scratch() as scratch:
        ranks = [["--rdzv-backend=static", f"--node-rank={i}"] if static else [] for i in (0, 1)]
        worker = [script_of(scratch), scratch.channel.path, "60", str(rank)]
        backend = "c10d" if static else backend
        pair = Pair(scratch, nnodes="2", options=["--max-restarts=0"], worker=worker, backend=backend)
        starts = start_two(pair, ranks)
        culprit = next(s for s in starts if s.rank == rank)
        os.kill(culprit.pid, signal.SIGUSR1)
        for name in "AB":
            pair.agents[name].expect(jobs.SOON_S, 1)
        expect_cause(pair, other(pair.agent_of(culprit)), rank)
        if pair.etcd:
            pair.etcd.stop()
        scratch.expect_nobody()


def case_final_failure_reaches_all():
    """A worker fails for good on one node: the other one ends its healthy workers at once, exits 1, and reports that worker, its
    node and its last words; static as well."""
    jobs.isolate()
    for static in (False, True) if BACKEND == "c10d" else (False,):
        for rank in (0, 3):
            final_failure(static, rank)


def victims(victim_s, backend=BACKEND, held_s=0.0):
    """held_s: the agent of the node whose rank dies first gets no time until so much later than the victims have died."""
    with jobs.Scratch() as scratch:
        worker = [script_of(scratch), scratch.channel.path, victim_s, "3"]
        static = backend == "static"
        pair = Pair(scratch, nnodes="2", options=["--max-restarts=0"], worker=worker, backend="c10d" if static else backend)
        ranks = [["--rdzv-backend=static", f"--node-rank={i}"] if static else [] for i in (0, 1)]
        starts = start_two(pair, [[f"--outcome={scratch.path(f'{name}.json')}", *rank] for name, rank in zip("AB", ranks)])
        first = next(s for s in starts if s.rank == 3)
        slow = pair.agents[pair.agent_of(first)]
        # A record seems younger by as long as it was on its way. On a busy machine that is more than lies between the deaths.
        launchers = {jobs.parent(s.pid) for s in starts} | {agent.pid for agent in pair.agents.values()}
        is_exact = jobs.put_before_all_others(launchers)
        if held_s:
            jobs.stop(slow.pid)
        os.kill(first.pid, signal.SIGUSR1)
        deadline = time.monotonic() + FORM_S
        while jobs.process_state(first.pid) and time.monotonic() < deadline:
            time.sleep(0.001)  # until its guardian has seen its end; on a busy machine it may die after its victims otherwise
        for s in starts:
            if s.rank != 3:
                with contextlib.suppress(ProcessLookupError):  # rank 2, which the agent has stopped
                    os.kill(s.pid, signal.SIGUSR1)
        if held_s:
            time.sleep(float(victim_s) + held_s)
            os.kill(slow.pid, signal.SIGCONT)
        causes = {}
        for name in "AB":
            pair.agents[name].expect(jobs.SOON_S, 1)
            with open(scratch.path(f"{name}.json"), encoding="ascii") as text:
                told = json.load(text)
            jobs.check(told["result"] != "success", f"{told}")
            causes[name] = told["root_cause"]["rank"]
        jobs.check(causes["A"] == causes["B"], f"the nodes name two causes: {causes}")
        # An etcd on a busy disk takes longer for a write, too (docs/rendezvous.md).
        if victim_s != "0.01" or (is_exact and backend not in ("etcd", "etcd-v2")):
            jobs.check(causes["A"] == 3, f"other causes than rank 3: {causes}")
            for name in "AB":
                expect_cause(pair, name, 3)
        if pair.etcd:
            pair.etcd.stop()
        scratch.expect_nobody()


def case_victims_of_another_node():
    """A rank dies, and those of the other node die of it, 0 to 0.5 s later: both nodes name the rank that died first; static as
    well."""
    jobs.isolate()
    for backend in (BACKEND, "static") if BACKEND == "c10d" else (BACKEND,):
        for victim_s in ("0.01", "0.1", "0.5"):
            victims(victim_s, backend)
        victims("0.01", backend, held_s=0.01)


def rank_is_killed(backend, which, worker):
    """Ranks of a group compute, libmuster's or PyTorch's. One is killed, and the others fail because of it: both nodes name it."""
    is_gloo, is_static = worker == "gloo", backend == "static"
    if is_gloo:
        jobs.need_torch()
    with jobs.Scratch() as scratch:
        program = gloo(scratch) if is_gloo else {"worker": ["--no-python", jobs.program("meet_worker"), scratch.channel.path]}
        program["worker"] += ["--computes"] if is_gloo else []
        pair = Pair(scratch, nnodes="2", options=["--max-restarts=0"], backend="c10d" if is_static else backend, **program)
        for i, name in enumerate("AB"):
            own = ["--rdzv-backend=static", f"--node-rank={i}"] if is_static else []
            pair.start(i, options=[f"--outcome={scratch.path(f'{name}.json')}", *own])
            jobs.wait_port(pair.port, pair.etcd.process if pair.etcd else pair.agents["A"], 60)
        stamps = pair.expect_world(4, 60, 0, "formed" if is_gloo else "met")
        scratch.channel.expect(4, "ready" if is_gloo else "met", 60)
        first = stamps[which]
        time.sleep(0.05)  # into the computing
        os.kill(first.pid, signal.SIGKILL)
        for name in "AB":
            pair.agents[name].expect(60, 1)
            with open(scratch.path(f"{name}.json"), encoding="ascii") as text:
                told = json.load(text)
            said = "\n".join(agent.tail() for agent in pair.agents.values())
            cause = (told["root_cause"] or {"rank": "none"})["rank"]
            jobs.check(cause == first.rank, f"{name} names rank {cause}, not {first.rank}: {told}\n{said}")
        pair.close()
        scratch.expect_nobody()


def case_ranks_that_fail_because_of_another():
    """A rank of libmuster is killed, and those of both nodes end within a millisecond: both name the one that was killed; static
    as well. So it is with PyTorch's, some milliseconds later."""
    jobs.isolate()
    for backend in (BACKEND, "static") if BACKEND == "c10d" else (BACKEND,):
        for which in range(4):
            rank_is_killed(backend, which, "libmuster")
        rank_is_killed(backend, 3, "gloo")


# For the backends with a coordinator.
NATIVE = "muster" if BACKEND == "c10d" else BACKEND


def start_three(pair, world):
    """A, then B and C. Where two make the world, one of them is a spare: whichever came later."""
    pair.start(0)
    jobs.wait_port(pair.port, pair.agents["A"], FORM_S)
    if pair.backend == "etcd-v3":
        pair.wait_leader(pair.agents["A"], FORM_S)
    for index in (1, 2):
        pair.start(index)
    return pair.expect_world(world, FORM_S, 0)


def end_with_success(pair, starts, node):
    for s in pair.workers_of(starts, node):
        os.kill(s.pid, signal.SIGUSR2)
    pair.agents[node].wait_line("workers have succeeded; waiting for the other nodes", FORM_S)


def case_success_outlives_the_failure_of_others():
    """Three nodes, one has succeeded. A worker of another one fails, for good or with restarts left that would need the node that is
    done: both others exit 1 at once, each report names that worker, the one of the third as well; the first one keeps its 0."""
    os.environ["LOGLEVEL"] = "INFO"
    jobs.isolate()
    for restarts, done, fails in (("0", "A", "B"), ("3", "B", "A"), ("3", "A", "C")):
        with jobs.Scratch() as scratch:
            # Which rank is to fail is known when the world is; the script asks for it.
            pair = Pair(scratch, kinds=("muster",) * 3, nnodes="3", options=[f"--max-restarts={restarts}"],
                        worker=[script_of(scratch), scratch.channel.path, "60", "any"], backend=NATIVE)  # fmt: skip
            starts = start_three(pair, 6)
            end_with_success(pair, starts, done)
            first = pair.workers_of(starts, fails)[0]
            os.kill(first.pid, signal.SIGUSR1)
            third = next(name for name in "ABC" if name not in (done, fails))
            for name in (fails, third):
                pair.agents[name].expect(jobs.SOON_S, 1)
            pair.agents[done].expect(jobs.SOON_S, 0)
            expect_cause(pair, third, first.rank)
            if restarts != "0":
                said = pair.agents[third].err()
                named = "has succeeded" in said and str(pair.agents[done].pid) in said
                jobs.check(named, f"{done} is not named\n{pair.agents[third].tail()}")
            if pair.etcd:
                pair.etcd.stop()
            scratch.expect_nobody()


def case_spare_of_a_failed_job():
    """A job fails for good: its spare exits 1, and names the worker that failed, its node and its last words."""
    os.environ["LOGLEVEL"] = "INFO"
    os.environ["MUSTER_WARM_IMPORTS"] = "os"  # PyTorch is not needed
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, kinds=("muster",) * 3, nnodes="2", options=["--max-restarts=0", "--spares=1"],
                    worker=[script_of(scratch), scratch.channel.path, "60", "any"], backend=NATIVE)  # fmt: skip
        starts = start_three(pair, 4)
        spare = next(name for name in "ABC" if not pair.workers_of(starts, name))
        pair.agents[spare].wait_line("waiting as a spare", FORM_S)
        fails, third = (name for name in "ABC" if name != spare)
        first = pair.workers_of(starts, fails)[0]
        os.kill(first.pid, signal.SIGUSR1)
        for name in "ABC":
            pair.agents[name].expect(jobs.SOON_S, 1)
        for name in (third, spare):
            expect_cause(pair, name, first.rank)
        if pair.etcd:
            pair.etcd.stop()
        scratch.expect_nobody()
