#!/usr/bin/env python3
# examples/gpt is asked to stop while every rank saves its parts as training goes on. The committed state is on the disk before it ends,
# and the next job goes on from there, to the same bits as one that was never stopped.
# computes: yes
import os
import signal
import tempfile

import trainers

PREEMPTED = 75
STEPS = 1000000  # of a job that is to be stopped; the rate rises all the time, so it does not depend on them
MORE = 50
TRAIN = ("--n-layer=2", "--n-head=2", "--n-embd=36", "--block-size=32", "--batch=8", "--evaluate-every=0", "--report-every=10", "--sample=0",
         "--dropout=0.1", "--lr=10", "--warm-up=1000000", "--parts", "--save-every=7")
ASK_FIRST = ("--preempt-signal=SIGUSR1", "--preempt-grace=100")


def stop_early(*options):
    """The step after which it stopped."""
    with trainers.Launcher(trainers.command(2, "gpt", *TRAIN, f"--steps={STEPS}", *options, launcher_options=ASK_FIRST)) as launcher:
        launcher.wait_for(r"^step 20/")
        launcher.process.send_signal(signal.SIGUSR1)
        step = int(launcher.wait_for(r"^asked to stop: stopping after step (\d+)$")[1])
        assert launcher.finish() == PREEMPTED, launcher.text
    return step


def a_stopped_job_goes_on_from_its_committed_state():
    stopped_and_going_on("fsdp")


def with_ddp_too():
    stopped_and_going_on("ddp")


def stopped_and_going_on(sharding):
    with tempfile.TemporaryDirectory() as folder:
        options = (f"--sharding={sharding}", f"--snapshot={folder}/stopped")
        step = stop_early(*options)
        assert step >= 20 and os.path.exists(f"{folder}/stopped/checkpoint-{step}.json"), (step, os.listdir(f"{folder}/stopped"))
        to_the_end = (*TRAIN, f"--steps={step + MORE}")
        text = trainers.run(2, "gpt", *to_the_end, *options, launcher_options=ASK_FIRST)
        assert f"from the snapshot of step {step}: " in text, text
        trainers.run(2, "gpt", *to_the_end, f"--sharding={sharding}", f"--snapshot={folder}/whole")
        trainers.assert_same_bits(trainers.checkpoint(f"{folder}/stopped"), trainers.checkpoint(f"{folder}/whole"))


trainers.main([a_stopped_job_goes_on_from_its_committed_state, with_ddp_too])
