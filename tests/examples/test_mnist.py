#!/usr/bin/env python3
# Whole runs of examples/mnist: the same bits where the same bits are promised, snapshots, other numbers of workers.
# computes: yes
"""Whole runs of examples/mnist. Parameters after 8 steps are compared through the snapshots they end with."""

import os
import re
import signal
import socket
import subprocess
import tempfile

import trainers

STEPS = ("--steps=8",)
FINAL = re.compile(r"final test accuracy: ([\d.]+) %")


def small_data(folder):
    """For what does not depend on how well it learns: 10 steps an epoch."""
    return trainers.small_data(folder, 640, tests=64)


def train(workers, folder, *arguments):
    """Tensors of the snapshot that a run ends with."""
    trainers.run(workers, "mnist", f"--snapshot={folder}", *arguments)
    return trainers.snapshot(folder)


def parameters(tensors):
    names = [name for name in tensors if re.fullmatch(r"(conv|norm|dense)\d\.(weight|bias)", name)]
    assert len(names) in (8, 12), sorted(tensors)
    return names


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if one[name] != other[name]]
    assert not different, f"different bits in {different}"


def two_runs_agree_bit_for_bit():
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            data = small_data(folder)
            runs = [train(workers, os.path.join(folder, name), data, *STEPS) for name in "ab"]
            assert_same_bits(*runs)


def two_ranks_equal_one_process_with_two_half_batches():
    for options in (("--optimizer=sgd",), ("--optimizer=adadelta",), ("--optimizer=adamw", "--lr=0.002")):
        with tempfile.TemporaryDirectory() as folder:
            data = small_data(folder)
            one = train(1, os.path.join(folder, "one"), data, "--no-batch-norm", "--micro-batches=2", *options, *STEPS)
            two = train(2, os.path.join(folder, "two"), data, "--no-batch-norm", *options, *STEPS)
            names = parameters(one)
            assert_same_bits({name: one[name] for name in names}, {name: two[name] for name in names})


def two_ranks_equal_one_process_to_rounding():
    """Values are below 1, where a float has a spacing of 6e-8; 8 steps, each of which moves a value by sums that are
    rounded differently, leave a few of these between the two (PyTorch: 9e-8 and 1.2e-7 in the same comparison). Adadelta
    divides by the size of the gradient, which enlarges the relative error of small ones."""
    for options in (("--optimizer=sgd", "--lr=0.1"), ("--optimizer=adadelta", "--lr=0.3")):
        with tempfile.TemporaryDirectory() as folder:
            data = small_data(folder)
            one = train(1, os.path.join(folder, "one"), data, "--no-batch-norm", *options, *STEPS)
            two = train(2, os.path.join(folder, "two"), data, "--no-batch-norm", *options, *STEPS)
            apart = trainers.largest_difference(one, two, parameters(one))
            print(f"   {options[0]}: largest difference {apart:.2g}")
            assert 0 < apart < 2e-6, apart


def synchronised_batch_norm_equals_one_process_to_rounding():
    """After three steps: later a pixel that wins its window by less than a rounding wins in one run only, and the two go
    apart, as any two runs with different rounding do."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--optimizer=sgd", "--steps=3", small_data(folder))
        one = train(1, os.path.join(folder, "one"), *options)
        two = train(2, os.path.join(folder, "two"), "--sync-batch-norm", *options)
        own = train(2, os.path.join(folder, "own"), *options)  # each worker with its own statistics
        # The biases before a normalisation have gradients of zero but for rounding: their values tell nothing.
        names = [name for name in parameters(one) if not re.fullmatch(r"conv\d\.bias", name)]
        apart = trainers.largest_difference(one, two, names)
        unsynchronised = trainers.largest_difference(one, own, names)
        print(f"   largest difference {apart:.2g}; without synchronising {unsynchronised:.2g}")
        assert apart < 4e-6 and unsynchronised > 1e-4


def a_resumed_run_ends_with_the_same_bits():
    with tempfile.TemporaryDirectory() as folder:
        parts, whole = os.path.join(folder, "parts"), os.path.join(folder, "whole")
        data = small_data(folder)
        train(2, parts, "--epochs=1", data)
        resumed = trainers.run(2, "mnist", f"--snapshot={parts}", "--epochs=2", data)
        assert "from the snapshot of epoch 1" in resumed, resumed
        assert_same_bits(trainers.snapshot(parts), train(2, whole, "--epochs=2", data))


def other_numbers_of_workers_go_on_from_a_snapshot():
    """One epoch of so few images is not enough for that accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        data = trainers.small_data(folder, 1600, tests=1000)
        train(2, folder, "--epochs=1", data)
        for epoch, workers in ((2, 1), (3, 3)):
            text = trainers.run(workers, "mnist", f"--snapshot={folder}", f"--epochs={epoch}", data)
            assert f"from the snapshot of epoch {epoch - 1}" in text, text
            assert f"epoch {epoch}/{epoch}: " in text and f"{workers} worker" in text, text
        assert float(FINAL.search(text).group(1)) > 90, text


def killed_half_way(folder, data):
    """Output and exit code of a run of two workers, one of which is killed after the second of eight epochs."""
    command = trainers.command(2, "mnist", "--epochs=8", "--forget", f"--snapshot={folder}", data, launcher_options=["--max-restarts=1"])
    with subprocess.Popen(command, env=trainers.ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as launcher:
        pid, lines = None, []
        for line in launcher.stdout:
            lines.append(line)
            found = re.search(r"rank 1 of 2: pid (\d+), restart 0", line)
            pid = int(found.group(1)) if found else pid
            if line.startswith("epoch 2/8") and "restart 1" not in "".join(lines):
                os.kill(pid, signal.SIGKILL)
    return "".join(lines), launcher.returncode


def a_killed_worker_changes_no_bit_of_the_result():
    with tempfile.TemporaryDirectory() as folder:
        killed, whole = os.path.join(folder, "killed"), os.path.join(folder, "whole")
        data = small_data(folder)
        text, code = killed_half_way(killed, data)
        assert code == 0 and "restart 1" in text and re.search(r"from the snapshot of epoch \d, step", text), f"{code}\n{text}"
        assert_same_bits(trainers.snapshot(killed), train(2, whole, "--epochs=8", data))


def a_survivor_says_who_is_gone():
    """Workers started by hand: nobody tells the other one to stop."""
    with socket.socket() as held, tempfile.TemporaryDirectory() as folder:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # rank 0 may listen there, and the kernel gives it to nobody else
        held.bind(("", 0))
        port = held.getsockname()[1]
        command = trainers.command(0, "mnist", "--epochs=1000", small_data(folder))
        workers = []
        for rank in range(2):
            environment = dict(trainers.ENVIRONMENT, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                               WORLD_SIZE="2")
            workers.append(subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT))
        for line in workers[0].stdout:
            if line.startswith("epoch 1/"):
                break
        workers[1].kill()
        text, _ = workers[0].communicate(timeout=60)
        workers[1].communicate()
        assert workers[0].returncode == 1 and re.search(r"mnist: cannot .*rank 1\b", text), text


def the_demo_heals_and_learns_in_little_memory():
    check_demo(is_short=True, steps=189)


def the_whole_demo():
    check_demo(is_short=False, steps=630)


def check_demo(is_short, steps):
    """It wants the accuracy, and that the state was found after the kill."""
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "loss.svg")
        text = trainers.demo("demo", f"--plot={picture}", is_short=is_short)
        assert float(re.search(r"peak memory ([\d.]+) MiB", text).group(1)) < 60, text
        assert f"loss of steps 1 to {steps}:" in text, text
        with open(picture, encoding="utf-8") as file:
            assert "<polyline" in file.read()


def trains_without_a_launcher():
    environment = trainers.ENVIRONMENT
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        text = trainers.run(0, "mnist", "--epochs=1", small_data(folder))
    assert "1 worker" in text, text


def mistakes_are_explained():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "train-images-idx3-ubyte"), "wb") as file:
            file.write(b"\0\0\x08\x03\0\0\0\x02")
        for arguments, code, words in ((("--batch=0",), 2, "not a whole number from 1"),
                                       (("--lr=x",), 2, "not a number above 0"),
                                       (("--optimizer=magic",), 2, "not adadelta"),
                                       (("--nonsense",), 2, "(see --help)"),
                                       (("more",), 2, "what is 'more'"),
                                       (("--sync-batch-norm", "--micro-batches=2"), 2, "--micro-batches"),
                                       ((f"--data={folder}/none",), 1, "train-images-idx3-ubyte"),
                                       ((f"--data={folder}",), 1, "ends too early")):
            text = trainers.run(0, "mnist", *arguments, expect=code)
            assert words in text, f"{arguments}: {text}"
    assert "--micro-batches" in trainers.run(0, "mnist", "--help")


if __name__ == "__main__":
    trainers.main([the_demo_heals_and_learns_in_little_memory, the_whole_demo, two_runs_agree_bit_for_bit, two_ranks_equal_one_process_with_two_half_batches,
                   two_ranks_equal_one_process_to_rounding, synchronised_batch_norm_equals_one_process_to_rounding,
                   a_resumed_run_ends_with_the_same_bits, other_numbers_of_workers_go_on_from_a_snapshot,
                   a_killed_worker_changes_no_bit_of_the_result, a_survivor_says_who_is_gone,
                   trains_without_a_launcher, mistakes_are_explained])
