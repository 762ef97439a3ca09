#!/usr/bin/env python3
# The state of examples/gpt and examples/mnist outlives ranks, guardians and hosts that are killed: the job goes on at a committed
# step, reads no file, and ends with the bits of an undisturbed one. make soak-kept kills many more, in
# more kinds of jobs.
# computes: yes
import os
import random
import signal
import socket
import tempfile

import kills
import trainers

CHANCE = random.Random(1)
KILLS = 3  # in a job
STEPS = 250  # of a GPT on one host: more than they take


def killed_ranks_lose_no_committed_step():
    kill_some("gpt", kills.Layout(), "ddp", STEPS)


def killed_ranks_of_mnist_lose_no_committed_step():
    kill_some("mnist", kills.Layout(), "", 40)


def kill_some(program, layout, sharding, steps, parts_every=0, copies=0):
    """A quick machine may be through before all have been killed."""
    tally = kills.Tally()
    kills.compare(program, layout, KILLS, kills.arguments_of(program, sharding, steps, parts_every, copies), CHANCE, 0.1, tally)
    assert tally.kills > 0 and tally.resumed == sorted(tally.resumed), tally.resumed


def so_do_killed_guardians():
    """Their workers die with them."""
    kill_some("gpt", kills.Layout("guardian"), "fsdp", STEPS)


def so_do_killed_hosts_that_somebody_has_a_copy_of():
    """An agent takes its host's memory along, and the other host gives a copy of it."""
    kill_some("gpt", kills.Layout("agent", 2, 1), "ddp", STEPS)


def a_killed_host_comes_back_from_copies_of_its_part():
    """With full sharding nobody else has its part, but for the copy on the other host. The agent that stays has all of it."""
    kill_some("gpt", kills.Layout("agent", 2, 1), "fsdp", STEPS, copies=5)


def killed_in_a_save_they_leave_whole_checkpoints():
    """Every rank's thread saves its part of the committed state nearly all the time."""
    kill_some("gpt", kills.Layout(), "fsdp", STEPS, parts_every=3)


def hosts_killed_in_a_save_leave_whole_checkpoints():
    kill_some("gpt", kills.Layout("agent", 2, 2, "muster"), "hybrid", STEPS, parts_every=3)


def who_dies_after_the_last_commit_leaves_the_last_snapshot_to_others():
    """A rank is killed while the model is evaluated, which comes before the snapshot. Rank 0 prints the step's line; where the kill
    came before the victim had committed that step, another job is tried."""
    resumed = 0
    while resumed != 10:
        with tempfile.TemporaryDirectory() as folder:
            resumed = kill_one_after_the_line_of_step_10(folder)
            trainers.snapshot(folder)
        assert resumed >= 9, resumed


def kill_one_after_the_line_of_step_10(folder):
    command = trainers.command(2, "gpt", *kills.GPT, "--n-embd=144", "--steps=10", f"--snapshot={folder}",
                               launcher_options=("--restart-backoff=0", "--max-restarts=1"))
    with trainers.Launcher(command) as launcher:
        victim = int(launcher.wait_for(r"^rank [01] of 2: pid (\d+)")[1])
        launcher.wait_for("^step 10/10: ")
        os.kill(victim, signal.SIGKILL)
        resumed = launcher.wait_for(r"^from step (\d+), which was in memory: ")
        assert launcher.finish() == 0, launcher.text
    return int(resumed[1])


def a_node_that_joins_gets_a_copy():
    one_joins_and_leaves("ddp")


def a_node_that_joins_gets_parts_of_the_hosts_memory():
    one_joins_and_leaves("fsdp")


def one_joins_and_leaves(sharding):
    """Who stays goes on after the step that was committed."""
    with socket.socket() as held, tempfile.TemporaryDirectory() as folder:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a node may listen there, and the kernel gives it to nobody else
        held.bind(("", 0))
        node = ["--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=3", "--restart-backoff=0",
                "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{held.getsockname()[1]}", "--rdzv-conf=last_call_timeout=1",
                "--preempt-signal=SIGUSR1", "--no-python", trainers.program("gpt"), *kills.GPT, "--steps=1000000",
                "--report-every=20", f"--sharding={sharding}", f"--snapshot={folder}"]
        with trainers.node(0, node) as stays:
            stays.wait_for(r"^step 40/")
            with trainers.node(1, node) as joins:
                joins.wait_for(r"^rank [23] of 4: ")
                joined = int(stays.wait_for(r"^from step (\d+), which was in memory: ")[1])
                stays.wait_for(rf"^step {joined // 20 * 20 + 60}/")
                joins.process.terminate()
                joins.finish()
            left = int(stays.wait_for(r"^from step (\d+), which was in memory: ")[1])
            assert joined >= 40 and left >= joined + 40, (joined, left)
            stays.wait_for(rf"^step {left // 20 * 20 + 60}/")
            stays.process.send_signal(signal.SIGUSR1)
            stopped = int(stays.wait_for(r"^asked to stop: stopping after step (\d+)")[1])
            stays.finish()
        assert stopped > left, (stopped, left)


trainers.main([killed_ranks_lose_no_committed_step, killed_ranks_of_mnist_lose_no_committed_step, so_do_killed_guardians,
               so_do_killed_hosts_that_somebody_has_a_copy_of, a_killed_host_comes_back_from_copies_of_its_part,
               killed_in_a_save_they_leave_whole_checkpoints, hosts_killed_in_a_save_leave_whole_checkpoints,
               who_dies_after_the_last_commit_leaves_the_last_snapshot_to_others, a_node_that_joins_gets_a_copy,
               a_node_that_joins_gets_parts_of_the_hosts_memory])
