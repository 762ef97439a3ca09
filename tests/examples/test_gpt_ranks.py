#!/usr/bin/env python3
# examples/gpt on several ranks: they compute what one process does, and go on when ranks are killed, stopped, added or taken away.
# computes: yes
import os
import re
import signal
import socket
import tempfile

import trainers

SMALL = ("--n-layer=2", "--n-head=2", "--n-embd=36", "--block-size=32", "--evaluate-every=0", "--report-every=10", "--sample=0",
         "--warm-up=10")
PREEMPTED = 75
ASK_FIRST = ("--preempt-signal=SIGUSR1", "--preempt-grace=100")


def train(ranks, folder, *options, launcher_options=()):
    """Tensors of the snapshot that a run ends with."""
    trainers.run(ranks, "gpt", *SMALL, f"--snapshot={folder}", *options, launcher_options=launcher_options)
    return trainers.snapshot(folder)


def same_losses(ranks, batch, *options):
    """Sums are rounded differently: a float has 6e-8, and AdamW divides small gradients by their size."""
    steps = 20
    with tempfile.TemporaryDirectory() as folder:
        runs = {count: trainers.losses(train(count, f"{folder}/{count}", f"--steps={steps}", f"--batch={batch}", "--lr=0.003",
                                    "--sharding=ddp" if count else "--sharding=none", *options), steps)
                for count in (0, *ranks)}
    expected = runs.pop(0)
    assert expected[-1] < expected[0] - 0.5, expected  # else nothing has been compared
    for count, found in runs.items():
        apart = max(abs(a - b) / b for a, b in zip(found, expected))
        print(f"   {batch} sequences on {count}: {apart:.1e} apart")
        assert apart < 1e-5, (count, found, expected)


def ranks_compute_what_one_process_does():
    same_losses((1, 2, 3, 4), 12, "--dropout=0")


def dropout_does_not_depend_on_ranks():
    same_losses((2, 3), 12, "--dropout=0.2", "--tied", "--checkpoint")


def shares_may_differ():
    same_losses((2, 4), 7, "--dropout=0.1")
    same_losses((3,), 2, "--dropout=0.1")  # one rank has nothing to do
    text = trainers.run(3, "gpt", *SMALL, "--steps=1", "--batch=2")
    assert "1 of 3 ranks have nothing to do" in text, text


def a_killed_rank_changes_no_bit():
    options = ("--steps=400", "--save-every=20", "--batch=4", "--dropout=0.2", "--forget")
    with tempfile.TemporaryDirectory() as folder:
        command = trainers.command(2, "gpt", *SMALL, *options, f"--snapshot={folder}/killed", launcher_options=("--max-restarts=1",))
        with trainers.Launcher(command) as launcher:
            pid = int(launcher.wait_for(r"rank 1 of 2: pid (\d+), restart 0")[1])
            launcher.wait_for(r"^step 50/")
            os.kill(pid, signal.SIGKILL)
            step = int(launcher.wait_for(r"^from the snapshot of step (\d+): ")[1])
            assert launcher.finish() == 0 and "restart 1" in launcher.text, launcher.text
        assert 40 <= step < 400 and step % 20 == 0, step
        killed = trainers.snapshot(f"{folder}/killed")
        trainers.losses(killed, 400)
        trainers.assert_same_bits(killed, train(2, f"{folder}/whole", *options))


def asked_to_stop_all_ranks_do():
    options = ("--steps=400", "--save-every=0", "--batch=4", "--dropout=0.2")
    with tempfile.TemporaryDirectory() as folder:
        command = trainers.command(2, "gpt", *SMALL, *options, f"--snapshot={folder}/stopped", launcher_options=ASK_FIRST)
        with trainers.Launcher(command) as launcher:
            launcher.wait_for(r"^step 10/")
            launcher.process.send_signal(signal.SIGUSR1)
            step = launcher.wait_for(r"^asked to stop: stopping after step (\d+)$")[1]
            assert launcher.finish() == PREEMPTED and "median step" not in launcher.text, launcher.text
        text = trainers.run(2, "gpt", *SMALL, *options, f"--snapshot={folder}/stopped", launcher_options=ASK_FIRST)
        assert f"from the snapshot of step {step}: " in text, text
        trainers.assert_same_bits(trainers.snapshot(f"{folder}/stopped"), train(2, f"{folder}/whole", *options))


STEP_LOSS = r"^step (\d+)/\d+: loss ([\d.]+)"


def wait_for_step(launcher, least):
    while int(launcher.wait_for(STEP_LOSS)[1]) < least:
        pass


def reported(text):
    return {int(step): float(loss) for step, loss in re.findall(STEP_LOSS, text, re.MULTILINE)}


def nodes_join_and_leave():
    """One node, two, one again: the losses are those of one process."""
    options = (*SMALL, "--steps=100000", "--save-every=20", "--batch=6", "--lr=0.0003", "--dropout=0.1")
    with socket.socket() as held, tempfile.TemporaryDirectory() as folder:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a node may listen there, and the kernel gives it to nobody else
        held.bind(("", 0))
        node = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{held.getsockname()[1]}", "--rdzv-conf=last_call_timeout=1", *ASK_FIRST, "--no-python",
                trainers.program("gpt"), *options, f"--snapshot={folder}/snapshots"]
        with trainers.node(0, node) as stays:
            stays.wait_for(r"^rank 0 of 1: ")
            wait_for_step(stays, 40)
            with trainers.node(1, node) as leaves:
                leaves.wait_for(r"^rank 1 of 2: ")
                stays.wait_for(r"^rank 0 of 2: ")
                stays.wait_for(r"^from step [1-9]\d*, which was in memory: ")
                wait_for_step(stays, 100)
                leaves.process.terminate()
                leaves.finish()
            stays.wait_for(r"^rank 0 of 1: ")
            again = int(stays.wait_for(r"^from step (\d+), which was in memory: ")[1])
            wait_for_step(stays, again + 20)
            stays.process.send_signal(signal.SIGUSR1)
            assert stays.finish() == PREEMPTED, stays.text
        assert again >= 80, stays.text
        found = reported(stays.text)
        with trainers.Launcher(trainers.command(0, "gpt", *options)) as alone:
            wait_for_step(alone, max(found))
            expected = reported(alone.text)
    apart = max(abs(loss - expected[step]) for step, loss in found.items())
    print(f"   {max(found)} steps, alone again from {again} on: losses {apart:.1e} apart")
    assert apart < 3e-4, (found, expected)  # four decimals are shown


def text_is_written_once():
    with tempfile.TemporaryDirectory() as folder:
        text = trainers.run(2, "gpt", *SMALL, "--steps=5", "--sample=50", "--prompt=KING ", f"--snapshot={folder}")
        alone = trainers.run(0, "gpt", "--sample-only", "--sample=50", "--prompt=KING ", f"--snapshot={folder}")
        assert text.count("KING ") == 1 and text.endswith(alone), (text, alone)


def mistakes_are_explained():
    text = trainers.run(2, "gpt", *SMALL, "--sharding=none", expect=1)
    assert "--sharding=none is for one process; here are 2" in text, text
    assert "not none, ddp, fsdp or hybrid" in trainers.run(0, "gpt", "--sharding=x", expect=2)


trainers.main([ranks_compute_what_one_process_does, dropout_does_not_depend_on_ranks, shares_may_differ,
               a_killed_rank_changes_no_bit, asked_to_stop_all_ranks_do, nodes_join_and_leave, text_is_written_once, mistakes_are_explained])
