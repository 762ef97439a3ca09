"""One job of a muster agent and a torchrun agent, in both orders, through forming, failure, departure and arrival."""

import contextlib
import os
import signal

import etcd
import jobs
from nodes import BACKEND, Pair, gloo

ORDERS = (("muster", "torchrun"), ("torchrun", "muster"))
CHANGE_S = 60
# torchrun counts a node as dead after keep_alive_interval x 3, then waits for the last call.
FAST = ["--rdzv-conf=last_call_timeout=2,keep_alive_interval=1", "--max-restarts=3"]


def finish(pair, starts):
    pair.finish(starts, 90)
    pair.scratch.expect_nobody()


def mixed(test):
    jobs.need_torch()
    if BACKEND.startswith("etcd"):
        etcd.need_python_etcd()
    jobs.isolate()
    for kinds in ORDERS:
        print(f"A is {kinds[0]}, B is {kinds[1]}", flush=True)
        with jobs.Scratch() as scratch:
            test(scratch, kinds)


def end_what_torchrun_leaves(pair, starts):
    """Kills B's workers if B, which has been signalled, is a torchrun."""
    for s in pair.workers_of(starts, "B") if pair.kinds[1] == "torchrun" else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(s.pid, signal.SIGKILL)


def case_mixed_form_and_fail():
    """A job of muster and torchrun forms, and a failure on either node restarts all of it."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, nnodes="2", options=FAST)
        starts = pair.start_both(60)
        jobs.check(len({(s.addr, s.port) for s in starts}) == 1, f"two masters: {starts}")
        for node in "BA":
            mark = scratch.channel.mark()
            os.kill(pair.workers_of(starts, node)[0].pid, signal.SIGKILL)
            starts = pair.expect_world(4, CHANGE_S, mark)
        finish(pair, starts)

    mixed(test)


def case_mixed_order():
    """Without --local-addr ranks follow the machine's full name, then the process id, whatever kind a node is of."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, nnodes="2", options=FAST)
        for index in range(2):
            pair.start(index, local_addr=None)
        starts = pair.expect_world(4, CHANGE_S, 0)
        first = min("AB", key=lambda name: pair.agents[name].pid)  # pids wrap
        jobs.check({pair.agent_of(s) for s in starts if s.group == 0} == {first}, f"{first} is not rank 0: {starts}")
        finish(pair, starts)

    mixed(test)


def case_mixed_arrival():
    """A node of the other kind arrives in a running 1:2 job and is taken in, whoever came first."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, options=FAST)
        pair.start(0)
        pair.expect_world(2, CHANGE_S, 0)
        mark = scratch.channel.mark()
        pair.start(1)
        finish(pair, pair.expect_world(4, CHANGE_S, mark))

    mixed(test)


def case_mixed_arrival_of_a_first_rank():
    """A node of the other kind arrives and becomes rank 0: the workers of both still meet in one store."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, options=FAST, **gloo(scratch))
        pair.start(0, local_addr="127.0.0.9")
        pair.expect_world(2, CHANGE_S, 0, "formed")
        mark = scratch.channel.mark()
        pair.start(1)
        starts = pair.expect_world(4, CHANGE_S, mark)
        jobs.check({pair.agent_of(s) for s in starts if s.group == 0} == {"B"}, f"B is not rank 0: {starts}")
        finish(pair, pair.expect_world(4, CHANGE_S, mark, "formed"))

    mixed(test)


def case_mixed_third_node():
    """A job of both kinds takes in a third node. A torchrun that stays rank 0 does not publish its address again, and one
    that stays a member does not read the new rank 0's: the muster node tells the one, and keeps to the other's. (A torchrun
    that comes as rank 0 to another torchrun is beyond its reach: the two never meet, with or without it.)"""
    jobs.need_torch()
    jobs.isolate()
    for kinds, newcomers_rank in ((("torchrun", "muster", "torchrun"), 2), (("muster", "torchrun", "muster"), 0)):
        print(f"{', '.join(kinds[:2])}, then {kinds[2]} as group rank {newcomers_rank}", flush=True)
        with jobs.Scratch() as scratch:
            pair = Pair(scratch, kinds, nnodes="2:3", options=FAST, **gloo(scratch))
            if newcomers_rank == 0:
                pair.addresses = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
            agent = pair.start(0)
            jobs.wait_port(pair.port, agent, 60)
            pair.start(1)
            pair.expect_world(4, CHANGE_S, 0, "formed")
            mark = scratch.channel.mark()
            pair.start(2)
            formed = pair.expect_world(6, CHANGE_S, mark, "formed")
            ranks = {s.group for s in pair.workers_of(formed, "C")}
            jobs.check(BACKEND == "etcd" or ranks == {newcomers_rank}, f"C has another rank: {formed}")  # legacy: by arrival
            finish(pair, formed)


def case_mixed_departure():
    """B is killed. A muster survivor goes on by itself; a torchrun one as soon as one of its workers fails."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, options=FAST)
        starts = pair.start_both(60)
        mark = scratch.channel.mark()
        pair.agents["B"].signal(signal.SIGKILL)
        end_what_torchrun_leaves(pair, starts)
        if kinds[0] == "torchrun":
            os.kill(pair.workers_of(starts, "A")[0].pid, signal.SIGKILL)
        starts = pair.expect_world(2, CHANGE_S, mark)
        finish(pair, starts)

    mixed(test)


def case_mixed_farewell():
    """B leaves by SIGTERM; the other kind goes on with a world of two, its workers being healthy."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, options=FAST)
        starts = pair.start_both(60)
        mark = scratch.channel.mark()
        pair.agents["B"].signal(signal.SIGTERM)
        pair.agents["B"].expect(30, 1)
        end_what_torchrun_leaves(pair, starts)  # now and then, when it has only just started them
        starts = pair.expect_world(2, CHANGE_S, mark)
        jobs.check({s.attempt for s in starts} == {0}, f"a restart was consumed: {starts}")
        finish(pair, starts)

    mixed(test)


def case_mixed_in_a_file():
    """Both kinds meet in a shared file (store_type=file), and run again after a failure on either node."""

    def test(scratch, kinds):
        options = [FAST[0] + ",store_type=file", *FAST[1:]]
        pair = Pair(scratch, kinds, nnodes="2", options=options, endpoint=scratch.path("rendezvous"))
        pair.start(0)
        pair.start(1)
        starts = pair.expect_world(4, CHANGE_S, 0)
        for node in "BA":
            mark = scratch.channel.mark()
            os.kill(pair.workers_of(starts, node)[0].pid, signal.SIGKILL)
            starts = pair.expect_world(4, CHANGE_S, mark)
        finish(pair, starts)

    mixed(test)


def case_mixed_gloo_group():
    """PyTorch workers of a muster node and a torchrun node compute together, in both orders, and again after a failure
    on either node (between two torchruns they never do: the restarted group reads the dead one's addresses)."""

    def test(scratch, kinds):
        pair = Pair(scratch, kinds, nnodes="2", options=FAST, **gloo(scratch))
        agent = pair.start(0)
        jobs.wait_port(pair.port, agent, 60)
        pair.start(1)
        starts = pair.expect_world(4, 60, 0)
        formed = pair.expect_world(4, 120, 0, "formed")
        for node in "BA":
            mark = scratch.channel.mark()
            os.kill(pair.workers_of(starts, node)[0].pid, signal.SIGKILL)
            starts = pair.expect_world(4, CHANGE_S, mark)
            formed = pair.expect_world(4, CHANGE_S, mark, "formed")
            jobs.check({s.stale for s in formed} == {0}, f"keys of the dead are in the store: {formed}")
        finish(pair, formed)

    mixed(test)
