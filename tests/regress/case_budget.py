"""Restart budgets of the native backend: the job's, whichever node fails, and told on all of them."""

import os
import signal

import jobs
from nodes import Pair

FORM_S = 30
NATIVE = "--rdzv-backend=muster"


def kill_one(scratch, pair, starts, name):
    """A worker of this node is killed; returns a mark before that."""
    mark = scratch.channel.mark()
    os.kill(pair.workers_of(starts, name)[0].pid, signal.SIGKILL)
    return mark


def case_restarts_of_the_job():
    """Failures of all nodes count together; workers of all see the count; the last one ends the job on every node."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        options = [NATIVE, "--max-restarts=2"]
        pair = Pair(scratch, nnodes="2", options=options)
        mark = scratch.channel.mark()
        jobs.wait_port(pair.port, pair.start(0), FORM_S)
        pair.start(1, options=["--max-restarts=9"])  # which is not the job's
        starts = pair.expect_world(4, FORM_S, mark)
        for attempt, victim in ((1, "B"), (2, "A")):
            starts = pair.expect_world(4, FORM_S, kill_one(scratch, pair, starts, victim))
            jobs.check({s.attempt for s in starts} == {attempt}, f"not attempt {attempt} everywhere: {starts}")
        rank = pair.workers_of(starts, "B")[0].rank
        kill_one(scratch, pair, starts, "B")
        for name in "AB":
            agent = pair.agents[name]
            agent.expect(jobs.SOON_S, 1)
            for text in (r"charged 1 failure \(1 of 2\)", r"charged 1 failure \(2 of 2\)"):
                agent.wait_line(text, jobs.SOON_S)
            agent.wait_line(r"its budget is spent: 3 failures within \d+ s, and 2 are allowed \(--max-restarts", 1)
        told = "this job allows 2 restarts"
        jobs.check(told in pair.agents["B"].err(), f"B is not told\n{pair.agents['B'].tail()}")
        jobs.check(told not in pair.agents["A"].err(), f"A is told\n{pair.agents['A'].tail()}")
        for name in "AB":
            cause = pair.agents[name].err().partition("Root Cause")[2]
            jobs.check(f"rank      : {rank} " in cause, f"{name} does not name rank {rank}\n{pair.agents[name].tail()}")
        scratch.expect_nobody()


def case_membership_changes_run_out():
    """A node that is lost when no change is allowed ends the job; failures are counted apart."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        options = [NATIVE, "--max-restarts=1", "--rdzv-conf=max_membership_changes=0,restart_window=600"]
        pair = Pair(scratch, options=options)
        starts = pair.start_both()
        starts = pair.expect_world(4, FORM_S, kill_one(scratch, pair, starts, "B"))
        pair.agents["A"].wait_line(r"charged 1 failure \(1 of 1 within 600 s\)", FORM_S)
        pair.agents["B"].signal(signal.SIGKILL)
        agent = pair.agents["A"]
        agent.expect(jobs.SOON_S, 1)
        agent.wait_line(r"1 membership change, and 0 are allowed \(--rdzv-conf max_membership_changes raises that\)", jobs.SOON_S)
        scratch.expect_nobody()


def case_preemptions_run_out():
    """A node whose agent is told to end leaves in good order: that is charged apart from changes, and can be limited."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        options = [NATIVE, "--rdzv-conf=max_membership_changes=0,max_preemptions=1"]
        pair = Pair(scratch, nnodes="1:3", options=options, kinds=("muster",) * 3)
        mark = scratch.channel.mark()
        jobs.wait_port(pair.port, pair.start(0), FORM_S)
        pair.start(1)
        pair.start(2)
        pair.expect_world(6, FORM_S, mark)
        mark = scratch.channel.mark()
        pair.agents["B"].signal(signal.SIGTERM)
        pair.expect_world(4, FORM_S, mark)
        agent = pair.agents["A"]
        agent.wait_line(r"charged 1 pre-emption \(1 of 1\)", FORM_S)
        pair.agents["C"].signal(signal.SIGTERM)
        agent.expect(jobs.SOON_S, 1)
        agent.wait_line(r"2 pre-emptions within \d+ s, and 1 is allowed \(--rdzv-conf max_preemptions raises that\)", jobs.SOON_S)
        scratch.expect_nobody()
