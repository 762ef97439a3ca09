"""Several nodes on one machine: forming, failures that cross nodes, departures, arrivals, spares."""

import contextlib
import os
import signal
import time

import jobs
from nodes import BACKEND, Pair, gloo

FORM_S = 30
# torchrun needs 41 to 45 s for a departure (or never notices), a silence is 15; Muster's promise is 200 ms, measured by the
# benchmarks.
CHANGE_S = 10
# torchrun's agents read the state once a second: 0.9 to 1.1 s until A's workers are told of a failure on B, 2.2 s until
# all run again. The least of a few turns is compared, which a loaded machine does not push over the bound.
TOLD_S, AGAIN_S = 0.5, 1.5
FIRST_CALL = "--rdzv-conf=last_call_timeout=1"  # A alone in a 1:2 job would wait 30 s for others at first


def case_two_nodes_form():
    """Two nodes of two workers form one world, work, and both launchers exit 0."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2")
        starts = pair.start_both()
        jobs.check(len({(s.addr, s.port) for s in starts}) == 1, f"MASTER_ADDR and MASTER_PORT differ: {starts}")
        jobs.check(sorted(s.group for s in starts) == [0, 0, 1, 1], f"group ranks {starts}")
        pair.finish(starts)
        scratch.expect_nobody()


def case_failure_reaches_the_other_node():
    """A failure on B stops A's workers at once and all run again, and so does one on A."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2", options=["--max-restarts=6"])
        starts = pair.start_both()
        told_s, again_s = {"A": [], "B": []}, {"A": [], "B": []}
        for victim_node in "BABABA":
            mark = scratch.channel.mark()
            victim = pair.workers_of(starts, victim_node)[0]
            killed_ns = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            told = scratch.channel.expect(3, "signal", FORM_S, since=mark, signo=int(signal.SIGTERM))
            starts = pair.expect_world(4, FORM_S, mark)
            told_s[victim_node].append((max(s.ns for s in told) - killed_ns) / 1e9)
            again_s[victim_node].append((max(s.ns for s in starts) - killed_ns) / 1e9)
        pair.finish(starts)
        for node in "AB":
            print(f"death on {node}: told after {min(told_s[node]):.4f} s, all run after {min(again_s[node]):.4f} s")
            jobs.check(min(told_s[node]) < TOLD_S, f"a death on {node} is told after {told_s[node]} s")
            jobs.check(min(again_s[node]) < AGAIN_S, f"after a death on {node} all run again after {again_s[node]} s")


def case_only_the_node_that_failed_pauses():
    """Restarts that pause: the node that failed waits before it joins again, the other waits for it and is charged nothing."""
    jobs.isolate()
    for backend in ("c10d", "muster"):
        with jobs.Scratch() as scratch:
            options = ["--max-restarts=2", "--restart-backoff=30"]
            pair = Pair(scratch, nnodes="2", options=options, backend=backend)
            starts = pair.start_both()
            for _ in range(2):
                mark = scratch.channel.mark()
                jobs.tell_exit(pair.workers_of(starts, "B")[0].pid, 3)
                starts = pair.expect_world(4, FORM_S, mark)
            pair.finish(starts)
            pair.agents["B"].wait_line("restarting in 0.5 s: 2 attempts have failed", 0)
            jobs.check("restarting in" not in pair.agents["A"].err(), pair.agents["A"].tail())
            scratch.expect_nobody()


def case_other_node_fails_for_good():
    """B has failed and closed the job: A's workers, which would do without it, are ended, and so is A, with 1."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        conf = "--rdzv-conf=keep_alive_interval=60"  # B's silence would end the wait, too, after three of them
        pair = Pair(scratch, nnodes="2", options=["--max-restarts=0", conf], backend="c10d")
        starts = pair.start_both()
        jobs.tell_exit(pair.workers_of(starts, "B")[0].pid, 3)
        pair.agents["B"].expect(jobs.SOON_S, 1)
        pair.agents["A"].expect(jobs.SOON_S, 1)
        scratch.expect_nobody()


def arrival(scratch, pair, name="start"):
    first = pair.start(0)
    starts = pair.expect_world(2, 90, 0, name)
    mark = scratch.channel.mark()
    jobs.check(first.wait(0) is None, "A ended")
    pair.start(1)
    return starts, pair.expect_world(4, 90, mark, name)


def case_node_arrives():
    """A node that arrives in a running 1:2 job is taken in; no restart is consumed."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, options=[FIRST_CALL])
        _, starts = arrival(scratch, pair)
        jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
        pair.finish(starts)
        scratch.expect_nobody()


def case_node_arrives_with_gloo():
    """The same with PyTorch gloo workers: the world of four computes."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, options=[FIRST_CALL], **gloo(scratch))
        _, formed = arrival(scratch, pair, name="formed")
        for worker in formed:
            scratch.channel.expect(1, "ready", 60, pid=worker.pid)
        pair.finish(formed, 60)


def departure(pair, how, scratch):
    """Both nodes run; B departs; returns seconds until A's workers run as a world of two."""
    pair.start_both()
    mark = scratch.channel.mark()
    left_ns = pair.agents["B"].signal(how)
    starts = pair.expect_world(2, 60, mark)
    jobs.check({s.group for s in starts} == {0}, f"not A's workers: {starts}")
    return starts, (max(s.ns for s in starts) - left_ns) / 1e9


def case_node_leaves():
    """B leaves a healthy 1:2 job (SIGTERM, SIGKILL): A goes on at once with WORLD_SIZE 2, no restart consumed."""
    jobs.isolate()
    for how in (signal.SIGTERM, signal.SIGKILL):
        with jobs.Scratch() as scratch:
            pair = Pair(scratch)
            starts, took_s = departure(pair, how, scratch)
            print(f"{how.name}: {took_s * 1000:.1f} ms")
            jobs.check(took_s < CHANGE_S, f"{how.name}: A ran again only after {took_s:.1f} s")
            jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
            pair.agents["B"].expect(jobs.SOON_S)
            pair.finish(starts)
            scratch.expect_nobody()


def case_node_leaves_and_a_worker_fails():
    """B is killed and a worker of A dies of it: one restart, at once, and A goes on with WORLD_SIZE 2."""
    jobs.isolate()
    for wait_s in (0, 0.002):  # A hears of the one or of the other first
        with jobs.Scratch() as scratch:
            pair = Pair(scratch, options=["--max-restarts=2"])
            starts = pair.start_both()
            mark = scratch.channel.mark()
            left_ns = pair.agents["B"].signal(signal.SIGKILL)
            time.sleep(wait_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pair.workers_of(starts, "A")[0].pid, signal.SIGKILL)
            starts = pair.expect_world(2, 60, mark)
            took_s = (max(s.ns for s in starts) - left_ns) / 1e9
            jobs.check(took_s < CHANGE_S, f"A ran again only after {took_s:.1f} s")
            pair.finish(starts)
            scratch.expect_nobody()


def case_node_leaves_with_gloo():
    """B is killed, and A's PyTorch workers form a group of two."""
    jobs.need_torch()
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, **gloo(scratch))
        agent = pair.start(0)
        jobs.wait_port(pair.port, agent, 30)
        pair.start(1)
        pair.expect_world(4, 90, 0, "formed")
        scratch.channel.expect(4, "ready", 30)
        mark = scratch.channel.mark()
        pair.agents["B"].signal(signal.SIGKILL)
        formed = pair.expect_world(2, 90, mark, "formed")
        scratch.channel.expect(2, "ready", 30, since=mark)
        pair.finish(formed, 60)
        scratch.expect_nobody()


def case_node_comes_and_goes():
    """A 1:2 job shrinks and grows again, three times."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch)
        starts = pair.start_both()
        for turn in range(3):
            mark = scratch.channel.mark()
            pair.agents["B"].signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            pair.agents["B"].expect(jobs.SOON_S)
            pair.expect_world(2, FORM_S, mark)
            mark = scratch.channel.mark()
            pair.start(1)
            starts = pair.expect_world(4, FORM_S, mark)
        pair.finish(starts)


def case_silent_node_is_left_behind():
    """A frozen node that neither hosts nor leads is dead after keep_alive_interval x
    keep_alive_max_attempt, whatever its workers may take to stop; thawed, it comes back."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        conf = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"
        pair = Pair(scratch, options=[conf, f"--shutdown-timeout={10 * FORM_S}"])
        pair.start_both()
        pair.freeze("B", FORM_S)
        starts = pair.thaw("B", FORM_S)
        jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
        pair.finish(starts)
        scratch.expect_nobody()


def case_leaving_a_stopped_host():
    """Ctrl-C while the host is stopped: a node that waits for its first world ends at once, a member says what it waits for,
    and ends at the second one."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="3", backend="muster")
        host = pair.start(0)
        jobs.wait_port(pair.port, host, FORM_S)
        other = pair.start(1)
        other.wait_line("2 of 3 nodes have joined", FORM_S)
        jobs.stop(host.pid)
        other.signal(signal.SIGINT)
        other.expect(jobs.SOON_S, -signal.SIGINT)
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2", backend="muster")
        pair.start_both()
        jobs.stop(pair.agents["A"].pid)
        other = pair.agents["B"]
        other.signal(signal.SIGINT)
        other.wait_line("cannot report this node's end to the rendezvous", FORM_S)
        other.signal(signal.SIGINT)
        other.expect(jobs.SOON_S, 1)


def case_leaving_a_stopped_etcd():
    """Ctrl-C while etcd is stopped: what is waited for is said, and the second one ends the wait."""
    jobs.isolate()
    for backend in ("etcd-v2", "etcd-v3"):
        with jobs.Scratch() as scratch:
            pair = Pair(scratch, nnodes="2", backend=backend)
            agent = pair.start(0)
            agent.wait_line("1 of 2 nodes", FORM_S)
            jobs.stop(pair.etcd.process.pid)
            agent.signal(signal.SIGINT)
            agent.wait_line("cannot report this node's end to the rendezvous", FORM_S)
            agent.signal(signal.SIGINT)
            agent.expect(jobs.SOON_S, -signal.SIGINT)


def case_store_host_is_killed():
    """The node that hosts the store dies: the other ends with exit code 1 and a reason; nobody survives."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch)
        pair.start_both()
        pair.agents["A"].signal(signal.SIGKILL)
        pair.agents["B"].expect(60, 1)
        jobs.check(str(pair.port) in pair.agents["B"].err(), f"no reason given\n{pair.agents['B'].tail()}")
        scratch.expect_nobody()


def case_spare_exits_well():
    """A node beyond the maximum waits as a spare, and exits 0 when the job has succeeded without it. It says both."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2", kinds=("muster", "muster", "muster"))
        starts = pair.start_both()
        spare = pair.start(1, name="C", options=["--rdzv-conf=join_timeout=1"])  # which is not for spares
        spare.wait_line("waiting as a spare", jobs.SOON_S)
        jobs.check(spare.wait(2) is None, f"the spare did not wait\n{spare.tail()}")
        pair.finish(starts)
        spare.expect(jobs.SOON_S, 0)
        jobs.check("was not needed" in spare.err(), f"the spare ends without a word\n{spare.tail()}")
        jobs.check(len(scratch.channel.select("start")) == 4, "the spare started workers")


def case_one_node_job_refuses_a_second_agent():
    """Another agent of a job of one node ends with 1 at once, and says who runs and what to change; the job runs on."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="1")
        first = pair.start(0)
        starts = pair.expect_world(2, FORM_S, 0)
        for _ in range(2):
            second = pair.start(0, name="B")
            second.expect(jobs.SOON_S, 1)
            said = second.err()
            for part in (str(first.pid), "--rdzv-id", "--standalone"):
                jobs.check(part in said, f"{part} is not said\n{second.tail()}")
        del pair.agents["B"]
        pair.finish(starts)
        jobs.check(len(scratch.channel.select("start")) == 2, "the second agent started workers")


def case_static_job_keeps_its_port():
    """The same with static: the second agent finds the port taken, and says what to change."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        arguments = [f"--master-port={jobs.free_port()}", *jobs.worker(scratch)]
        first = scratch.run("muster", *arguments, name="first")
        worker = scratch.channel.expect(1, "start", FORM_S)[0]
        second = scratch.run("muster", *arguments, name="second")
        second.expect(jobs.SOON_S, 1)
        said = second.err()
        jobs.check("the port is taken" in said and "--standalone" in said, f"it is not said\n{second.tail()}")
        jobs.tell_exit(worker.pid, 0)
        first.expect(jobs.SOON_S, 0)


def case_agent_comes_too_late():
    """An agent that comes when the job is over, which a file tells: exit code 1, and it says that it had no part in it."""
    jobs.isolate()
    for code in (0, 1):
        with jobs.Scratch() as scratch:
            arguments = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={scratch.path('store')}", "--no-python"]
            scratch.run("muster", *arguments, "sh", "-c", f"exit {code}", name="first").expect(jobs.SOON_S, code)
            late = scratch.run("muster", *arguments, "true", name="late")
            late.expect(jobs.SOON_S, 1)
            said = late.err()
            jobs.check("too late" in said and "no part in it" in said, f"it is not said\n{late.tail()}")


def case_spare_takes_over():
    """A spare takes the place of a node that is killed."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2")
        pair.start_both()
        spare = pair.start(1, name="C")
        jobs.check(spare.wait(1) is None, f"the spare did not wait\n{spare.tail()}")
        mark = scratch.channel.mark()
        pair.agents["B"].signal(signal.SIGKILL)
        starts = pair.expect_world(4, FORM_S, mark)
        pair.finish(starts)


def case_different_backends_are_told():
    """A node that looks for a coordinator where another hosts a c10d rendezvous ends at once, and says why; the other way
    round, the host says so."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2")
        host = pair.start(0, options=["--rdzv-backend=c10d"])
        jobs.wait_port(pair.port, host, 30)
        other = pair.start(1, options=["--rdzv-backend=muster"])
        other.expect(30, 1)
        jobs.check("no coordinator" in other.err(), f"the reason is not told\n{other.tail()}")
        host.signal(signal.SIGTERM)
        host.expect(30)
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2")
        host = pair.start(0, options=["--rdzv-backend=muster"])
        jobs.wait_port(pair.port, host, 30)
        other = pair.start(1, options=["--rdzv-backend=c10d"])
        host.wait_line(r"has --rdzv-backend=c10d \(here muster\)", 60)
        for agent in (host, other):
            agent.signal(signal.SIGTERM)
            agent.expect(30)


def case_missing_node_is_named():
    """When no world forms within seconds the agent says who is here and who is missing."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        pair = Pair(scratch, nnodes="2", options=["--rdzv-conf=join_timeout=8"])
        agent = pair.start(0)
        agent.expect(40, 1)
        said = agent.err().lower()
        if BACKEND in ("muster", "etcd-v3"):
            jobs.check(f"1 of 2 nodes have joined: 127.0.0.1 (pid {agent.pid})" in said, f"not named\n{agent.tail()}")
        jobs.check("missing" in said or "waiting for" in said or "1 of 2" in said, f"nobody is missed\n{agent.tail()}")
        jobs.check("rendezvoustimeouterror" in said, f"torchrun's name for it is missing\n{agent.tail()}")
        jobs.check("0 of 2 nodes are here" not in said, f"this node is not counted\n{agent.tail()}")
        if pair.etcd:
            pair.etcd.stop()
        scratch.expect_nobody()


def case_static_two_nodes():
    """--node-rank and --master-addr: two static nodes form, and a failing one restarts."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        port = jobs.free_port()
        agents = [
            scratch.run(
                "muster",
                "--nnodes=2",
                "--nproc-per-node=2",
                f"--node-rank={rank}",
                "--master-addr=127.0.0.1",
                f"--master-port={port}",
                *jobs.worker(scratch),
                name=f"static{rank}",
            )
            for rank in (0, 1)
        ]
        starts = scratch.channel.expect(4, "start", FORM_S, world=4)
        jobs.check(sorted(s.rank for s in starts) == [0, 1, 2, 3], f"ranks {starts}")
        jobs.check({s.port for s in starts} == {port}, f"MASTER_PORT is not the endpoint's: {starts}")
        for s in starts:
            jobs.tell_exit(s.pid, 0)
        for agent in agents:
            agent.expect(jobs.SOON_S, 0)


def static_pair(scratch, *options):
    """Two static nodes of one worker each; agents by rank, and the stamps of their workers by rank."""
    port = jobs.free_port()
    common = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}", *options]
    agents = [
        scratch.run("muster", *common, f"--node-rank={rank}", *jobs.worker(scratch), name=f"static{rank}") for rank in (0, 1)
    ]
    return agents, expect_static_pair(scratch, 0)


def expect_static_pair(scratch, since):
    starts = scratch.channel.expect(2, "start", FORM_S, since=since, world=2)
    return sorted(starts, key=lambda s: s.rank)


def case_static_nodes_restart_together():
    """Static: a failure on one node starts the workers of both again, and is charged to that node alone."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        agents, starts = static_pair(scratch, "--max-restarts=1", "--restart-backoff=0")
        for victim in (1, 0):
            mark = scratch.channel.mark()
            jobs.tell_exit(starts[victim].pid, 3)
            starts = expect_static_pair(scratch, mark)
        mark = scratch.channel.mark()
        jobs.tell_exit(starts[1].pid, 3)  # its node has used its restart
        for agent in agents:
            agent.expect(jobs.SOON_S, 1)
        jobs.check(not scratch.channel.select("start", since=mark), "a third restart")
        scratch.expect_nobody()


def case_static_barrier_of_a_killed_node():
    """Static: a node that is done does not wait for one whose agent is killed, be it the host of the store or not."""
    jobs.isolate()
    for done in (0, 1):
        with jobs.Scratch() as scratch:
            agents, starts = static_pair(scratch)
            jobs.tell_exit(starts[done].pid, 0)
            jobs.check(agents[done].wait(0.5) is None, f"node rank {done} did not wait\n{agents[done].tail()}")
            agents[1 - done].signal(signal.SIGKILL)
            agents[done].expect(jobs.SOON_S, 0)
            agents[1 - done].wait(jobs.SOON_S)
            scratch.expect_nobody()


def survivors_pair(scratch, backend):
    """Two nodes of two workers each that go on without each other; the stamps by rank, agents by node rank. A is the host
    of the stores."""
    options = ["--survivors=continue"]
    if backend == "c10d":
        pair = Pair(scratch, nnodes="2", options=["--rdzv-backend=c10d", *options])
        starts = pair.start_both()
        agents = [pair.agents[name] for name in "AB"]
        groups = [pair.workers_of(starts, name) for name in "AB"]
        return agents, groups
    port = jobs.free_port()
    common = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}", *options]
    agents = [
        scratch.run("muster", *common, f"--node-rank={rank}", *jobs.worker(scratch), name=f"static{rank}")
        for rank in (0, 1)
    ]
    starts = scratch.channel.expect(4, "start", FORM_S, world=4)
    return agents, [[s for s in starts if s.group == rank] for rank in (0, 1)]


def case_survivors_on_another_node():
    """--survivors=continue: a node whose workers all failed stays, with its stores, until the other's have ended."""
    jobs.isolate()
    for backend in ("c10d", "static"):
        with jobs.Scratch() as scratch:
            agents, groups = survivors_pair(scratch, backend)
            for s in groups[0]:
                os.kill(s.pid, signal.SIGKILL)
            agents[0].wait_line("Root Cause", jobs.SOON_S)
            jobs.tell_exit(groups[1][0].pid, 0)
            jobs.check(agents[0].wait(0.5) is None, f"{backend}: the stores are gone\n{agents[0].tail()}")
            jobs.wait_port(groups[1][0].port, agents[0], 5)
            jobs.tell_exit(groups[1][1].pid, 0)
            agents[1].expect(jobs.SOON_S, 0)
            agents[0].expect(jobs.SOON_S, 1)
            jobs.check(not scratch.channel.select("signal"), f"{backend}: a survivor was told to end")
            scratch.expect_nobody()


def case_survivors_of_a_killed_node():
    """--survivors=continue: a node that is killed stops nobody elsewhere, and is not waited for at the end."""
    jobs.isolate()
    for backend in ("c10d", "static"):
        for end_first in (False, True):
            with jobs.Scratch() as scratch:
                agents, groups = survivors_pair(scratch, backend)
                if end_first:  # A waits for B when B dies
                    for s in groups[0]:
                        jobs.tell_exit(s.pid, 0)
                    jobs.check(agents[0].wait(0.5) is None, f"{backend}: A did not wait\n{agents[0].tail()}")
                agents[1].signal(signal.SIGKILL)
                if not end_first:
                    if backend == "c10d":
                        agents[0].wait_line("this node's workers go on", jobs.SOON_S)
                    jobs.tell_exit(groups[0][0].pid, 3)
                    agents[0].wait_line("has failed; 1 of 2 workers", jobs.SOON_S)
                    jobs.tell_exit(groups[0][1].pid, 0)
                agents[0].expect(jobs.SOON_S, 0)
                jobs.check(len(scratch.channel.select("start")) == 4, f"{backend}: somebody was restarted")
                scratch.expect_nobody()


def case_survivors_of_a_node_that_does_not_start():
    """--survivors=continue: a node whose workers cannot be started closes the job, and is not waited for at the end."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        conf = "--rdzv-conf=keep_alive_interval=60"  # B's silence would end the wait, too, after three of them
        pair = Pair(scratch, nnodes="2", options=["--survivors=continue", conf], backend="c10d")
        mark = scratch.channel.mark()
        agent = pair.start(0)
        jobs.wait_port(pair.port, agent, 30)
        script = scratch.path("script")
        with open(script, "w", encoding="utf-8") as out:
            out.write("#!/absent/interpreter\n")
        os.chmod(script, 0o755)
        pair.worker = ["--no-python", script]
        pair.start(1)
        starts = scratch.channel.expect(2, "start", FORM_S, since=mark, world=4)
        pair.agents["B"].expect(jobs.SOON_S, 1)
        for s in starts:
            jobs.tell_exit(s.pid, 0)
        pair.agents["A"].expect(jobs.SOON_S, 0)
        scratch.expect_nobody()


def case_no_survivor_on_any_node():
    """--survivors=continue: the workers of both nodes fail, one node after the other: all start again together."""
    jobs.isolate()
    for first in "AB":
        with jobs.Scratch() as scratch:
            options = ["--rdzv-backend=c10d", "--survivors=continue", "--max-restarts=1"]
            pair = Pair(scratch, nnodes="2", options=options)
            starts = pair.start_both()
            mark = scratch.channel.mark()
            for name in (first, "B" if first == "A" else "A"):
                for s in pair.workers_of(starts, name):
                    os.kill(s.pid, signal.SIGKILL)
                pair.agents[name].wait_line(r"failed \(exitcode", 20, times=2)
            starts = pair.expect_world(4, FORM_S, mark)
            jobs.check({s.attempt for s in starts} == {1}, f"attempts {starts}")
            pair.finish(starts)
            scratch.expect_nobody()
