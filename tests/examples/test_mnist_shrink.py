#!/usr/bin/env python3
# examples/mnist --shrink: workers are killed in the middle of an epoch, the others train on to the same accuracy.
# computes: yes
"""Workers started by hand meet in a store that none of them hosts, or are started by `muster run --survivors=continue`; some are
killed at moments drawn by lot, and nobody is started again. MUSTER_TEST_RUNS says how many such runs there are (2: one that loses one worker, one that loses two), MUSTER_TEST_SEED which (it is
printed), MUSTER_TEST_EPOCHS how long they train; `make soak-shrink` makes many long ones."""

import math
import os
import random
import re
import signal
import subprocess
import tempfile
import time

import trainers

WORKERS, EPOCHS = 4, int(os.environ.get("MUSTER_TEST_EPOCHS", "6"))
FINAL = re.compile(r"^final test accuracy: ([\d.]+) %", re.MULTILINE)
WANTED = 95 if EPOCHS >= 10 else 90  # short ones end near 96 %
FEW, FEW_EPOCHS, WANTED_OF_FEW = 640, 13, 80  # images; enough epochs for a kill to come in time on a busy machine
LEFT = re.compile(r"^(\d) workers? left: going on in epoch (\d+), after step (\d+)$", re.MULTILINE)


class Store:
    """`muster store` on a port that the kernel chose."""

    def __enter__(self):
        self.process = subprocess.Popen([trainers.MUSTER, "store", "--port", "0"], text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        self.port = self.process.stdout.readline().strip().rsplit(":", 1)[1]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()


def few(folder):
    """The options for a short training."""
    return f"--epochs={FEW_EPOCHS}", trainers.small_data(folder, FEW, tests=500)


def start(store, arguments):
    """The workers, whose output comes in one stream."""
    read, write = os.pipe()
    workers = []
    for rank in range(WORKERS):
        environment = dict(trainers.ENVIRONMENT, MASTER_ADDR="127.0.0.1", MASTER_PORT=store.port, RANK=str(rank),
                           WORLD_SIZE=str(WORKERS), TORCHELASTIC_USE_AGENT_STORE="True")
        workers.append(subprocess.Popen(trainers.command(0, "mnist", f"--epochs={EPOCHS}", "--shrink", *arguments),
                                        env=environment, stdin=subprocess.DEVNULL, stdout=write, stderr=write))
    os.close(write)
    return workers, os.fdopen(read, encoding="utf-8")


def run(victims, arguments=()):
    """victims: {epoch: (rank, share)}: the rank is killed when `share` of the time of the shortest epoch so far has passed
    since that one ended: after a longer one, on a busy machine, it might all be over. A rank that is killed at the end of an epoch
    takes that epoch's line along; then the next line counts, and the next victim waits until the others have gone on. Returns the output; every other worker must end well."""
    due = sorted(victims.items())
    with Store() as store:
        workers, stream = start(store, arguments)
        lines, last, shortest, killed, shrunk = [], math.inf, math.inf, set(), 0
        with stream:
            for line in stream:
                lines.append(line)
                shrunk += bool(LEFT.search(line))
                done = re.match(r"epoch (\d+)/", line)
                if done:
                    shortest, last = min(shortest, time.monotonic() - last), time.monotonic()
                elif "images to train on" in line:
                    last = time.monotonic()
                if done and due and due[0][0] <= int(done.group(1)) and shrunk == len(killed):
                    _, (rank, share) = due.pop(0)
                    time.sleep(shortest * share)
                    workers[rank].send_signal(signal.SIGKILL)
                    killed.add(rank)
        ends = [worker.wait() for worker in workers]
    text = "".join(lines)
    assert ends == [-signal.SIGKILL if rank in killed else 0 for rank in range(WORKERS)], f"{ends}\n{text}"
    return text


def accuracy(text):
    return float(FINAL.search(text).group(1))


def draw():
    seed = int(os.environ.get("MUSTER_TEST_SEED", time.time_ns() % 1000000))
    print(f"   MUSTER_TEST_SEED={seed}")
    return random.Random(seed)


def lose(lot, count, arguments=()):
    """The accuracy of a run that loses so many workers, and the steps after which it went on."""
    ranks = lot.sample(range(WORKERS), 2)
    victims = {lot.randint(1, 2): (ranks[0], lot.random())}
    if count == 2:
        victims[lot.randint(3, 4)] = (ranks[1], lot.random())
    text = run(victims, arguments)
    left = LEFT.findall(text)
    assert [int(found[0]) for found in left] == [WORKERS - 1 - n for n in range(len(victims))], text
    assert re.search(rf"^rank \d: cannot .*rank {ranks[0]} \(pid \d+ on host .*killed", text, re.MULTILINE), text
    print(f"   killed {victims}: went on after steps {[int(found[2]) for found in left]}, {accuracy(text)} %")
    return accuracy(text), text


def survivors_go_on():
    with tempfile.TemporaryDirectory() as folder:
        found, text = lose(draw(), 2, few(folder))
    assert found >= WANTED_OF_FEW, text


def survivors_reach_the_same_accuracy():
    lot = draw()
    is_long = EPOCHS >= 10  # what whole short runs reach lies too near to 95 % to say more
    whole = accuracy(run({})) if is_long else 0.0
    for i in range(int(os.environ.get("MUSTER_TEST_RUNS", "2"))):
        found, text = lose(lot, 1 + i % 2)
        if is_long:
            print(f"   {whole} % undisturbed")
        assert found >= WANTED and found >= whole - 1, text


def a_snapshot_holds_what_the_survivors_go_on_from():
    """And batch normalisation over all workers, whose calls fail in the middle of a pass, too."""
    with tempfile.TemporaryDirectory() as folder:
        data = trainers.small_data(folder, FEW, tests=100)
        text = run({1: (0, 0.2)}, (f"--snapshot={folder}", "--sync-batch-norm", "--epochs=6", data))
        (left,) = LEFT.findall(text)
        assert left[0] == str(WORKERS - 1), text
        resumed = trainers.run(2, "mnist", f"--snapshot={folder}", "--epochs=7", data)
        assert "from the snapshot of epoch 6" in resumed, resumed


def survivors_go_on_under_the_launcher():
    with tempfile.TemporaryDirectory() as folder:
        lose_the_first(WANTED_OF_FEW, *few(folder))


def survivors_under_the_launcher_reach_the_same_accuracy():
    lose_the_first(90, "--epochs=6")


def lose_the_first(wanted, *arguments):
    """The first worker is the one that dies: the store is the launcher's, and goes on without it."""
    command = trainers.command(3, "mnist", "--shrink", *arguments, launcher_options=("--survivors=continue",))
    with subprocess.Popen(command, env=dict(trainers.ENVIRONMENT, LOGLEVEL="INFO"), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as launcher:
        lines, victim = [], None
        for line in launcher.stdout:
            lines.append(line)
            started = re.search(r"worker started: local_rank 0, rank 0, pid (\d+)", line)
            victim = int(started.group(1)) if started else victim
            if line.startswith("epoch 1/"):
                os.kill(victim, signal.SIGKILL)
    text = "".join(lines)
    assert launcher.returncode == 0, f"exit code {launcher.returncode}\n{text}"
    (left,) = LEFT.findall(text)
    assert left[0] == "2", text
    assert "without 1 of its 3 workers: failed rank 0" in text, text
    assert text.count("worker started") == 3, text
    print(f"   under the launcher: went on after step {left[2]}, {accuracy(text)} %")
    assert accuracy(text) >= wanted, text


if __name__ == "__main__":
    trainers.main([survivors_go_on_under_the_launcher, survivors_under_the_launcher_reach_the_same_accuracy, survivors_go_on,
                   survivors_reach_the_same_accuracy, a_snapshot_holds_what_the_survivors_go_on_from])
