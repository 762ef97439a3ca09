#!/usr/bin/env python3
# examples/mnist is asked to stop in the middle of an epoch, and goes on: to the same bits as a run that was never stopped.
# computes: yes
import re
import signal
import subprocess
import tempfile

import trainers

WORKERS = 2
PREEMPTED = 75
DATA = tempfile.TemporaryDirectory()
TRAIN = ["--epochs=3", "--seed=3", trainers.small_data(DATA.name, 1600, tests=500)]
ASK_FIRST = ["--preempt-signal=SIGUSR1", "--preempt-grace=100"]


def stop_early(folder):
    """Where it stopped: the epoch, and the step."""
    command = trainers.command(WORKERS, "mnist", *TRAIN, f"--snapshot={folder}", launcher_options=ASK_FIRST)
    with subprocess.Popen(command, env=trainers.ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as launcher:
        try:
            text = ""
            while "images to train on" not in text:
                line = launcher.stdout.readline()
                assert line, text
                text += line
            launcher.send_signal(signal.SIGUSR1)
            text += launcher.stdout.read()
        finally:
            launcher.kill()
        assert launcher.wait() == PREEMPTED, text
    assert "did not exit with 0" not in text and "final test accuracy" not in text, text
    return re.search(r"asked to stop: stopping in epoch (\d+), after step (\d+)$", text, re.M).groups()


with tempfile.TemporaryDirectory() as stopped, tempfile.TemporaryDirectory() as whole:
    epoch, step = stop_early(stopped)
    assert epoch == "1" and int(step) % 10 == 0, (epoch, step)
    goes_on = trainers.run(WORKERS, "mnist", *TRAIN, f"--snapshot={stopped}", launcher_options=ASK_FIRST)
    assert f"from the snapshot of epoch 0, step {step}: " in goes_on, goes_on
    assert re.search(r"^final test accuracy: 9\d\.\d\d %", goes_on, re.M), goes_on
    trainers.run(WORKERS, "mnist", *TRAIN, f"--snapshot={whole}")
    one, other = trainers.snapshot(stopped), trainers.snapshot(whole)
    assert one.keys() == other.keys() and all(one[name] == other[name] for name in one), "another model came out"
print("ok")
