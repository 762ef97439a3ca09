#!/usr/bin/env python3
# Ctrl-C at any moment of a run of examples/mnist: the job ends, and nothing of it is left.
# computes: yes
"""Usage: test_mnist_interrupted.py [--count N] [--seed N]"""
import argparse
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
import trainers  # noqa: E402

PATIENCE_S = 60
EPOCHS = 20


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "muster" in name}


def interrupt(moment_s):
    """The moment is any: from before the launcher's first instruction to the training's last steps."""
    before = shared_memory()
    with jobs.Scratch() as scratch:
        command = trainers.command(2, "mnist", f"--epochs={EPOCHS}", f"--snapshot={scratch.path('snapshot')}")
        launcher = scratch.start("mnist", command, env=scratch.env(OMP_NUM_THREADS=1))
        time.sleep(moment_s)
        os.kill(launcher.pid, signal.SIGINT)
        code = launcher.wait(PATIENCE_S)
        assert code in (0, 1, -signal.SIGINT), f"after {moment_s:.3f} s: exit code {code}\n{launcher.tail()}"
        scratch.expect_nobody(PATIENCE_S)
        left = os.listdir(scratch.path("tmp"))
        assert not left, f"after {moment_s:.3f} s: {left} in TMPDIR"
        assert not shared_memory() - before, f"after {moment_s:.3f} s: {shared_memory()} in /dev/shm"
        return code


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=12 if trainers.cases.wanted("all_moments") else 3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    codes = [interrupt(chance.random() ** 2 * 1.5) for _ in range(options.count)]
    print(f"ok {options.count} interruptions (seed {options.seed}), exit codes {codes}")


main()
