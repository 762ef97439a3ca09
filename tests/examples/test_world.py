#!/usr/bin/env python3
# A deterministic world: with --virtual-ranks, examples/mnist and examples/gpt end with the same bits on any number of ranks,
# when that number changes in the middle of an epoch, and when ranks are killed.
# computes: yes
import ctypes
import glob
import os
import re
import signal
import socket
import subprocess
import tempfile

import trainers

# 262 images a training epoch, of which the last step has 10: virtual ranks get 2 and 1 of them.
IMAGES, TEST_IMAGES = 262, 24
MNIST = ("--virtual-ranks=6", "--batch=12", "--epochs=1000", "--optimizer=adamw")
# The learning rate rises all the time, so it does not depend on --steps.
GPT = ("--virtual-ranks=5", "--batch=13", "--n-layer=2", "--n-embd=48", "--n-head=3", "--block-size=32", "--sample=0", "--lr=10",
       "--warm-up=1000000", "--save-every=0", "--evaluate-every=0", "--report-every=20")
THREADS = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}  # with virtual ranks a rank uses one all the same
RESTARTS = ("--restart-backoff=0", "--max-restarts=5")


def mnist_in_worlds_of_1_4_2_and_3():
    """Each world goes on from the snapshot of the one before, at any step; a worker of the largest one is killed."""
    with tempfile.TemporaryDirectory() as folder:
        data = trainers.small_data(folder, IMAGES, TEST_IMAGES)
        trainers.run(0, "mnist", *MNIST, data, "--steps=270", f"--snapshot={folder}/whole", environment=THREADS)
        arguments = (*MNIST, data, f"--snapshot={folder}/parts")
        trainers.run(1, "mnist", *arguments, "--steps=7")
        with trainers.Launcher(trainers.command(4, "mnist", *arguments, "--steps=240", launcher_options=RESTARTS)) as launcher:
            victim = int(launcher.wait_for(r"^rank [0-3] of 4: pid (\d+)")[1])
            launcher.wait_for(r"^epoch 2/")
            os.kill(victim, signal.SIGKILL)
            step = int(launcher.wait_for(r"^from memory of epoch \d+, step (\d+)")[1])
            assert launcher.finish() == 0 and 20 <= step < 240, launcher.text
        trainers.run(2, "mnist", *arguments, "--steps=255")
        trainers.run(3, "mnist", *arguments, "--steps=270")
        trainers.assert_same_bits(trainers.snapshot(f"{folder}/parts"), trainers.snapshot(f"{folder}/whole"))


def without_virtual_ranks_the_bits_differ():
    """So the test above can fail."""
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 3):
            trainers.run(ranks, "gpt", *GPT[1:], "--steps=5", f"--snapshot={folder}/{ranks}")
        one, other = trainers.snapshot(f"{folder}/1"), trainers.snapshot(f"{folder}/3")
        assert one.keys() == other.keys() and one != other


def gpt_in_one_job_that_grows_and_shrinks():
    """1, 4, 2 and 3 ranks, each of a node that joins or leaves at some step, and a rank is killed. The state stays in memory."""
    with socket.socket() as held, tempfile.TemporaryDirectory() as folder:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a node may listen there, and the kernel gives it to nobody else
        held.bind(("", 0))
        node = ["--nnodes=1:4", "--nproc-per-node=1", *RESTARTS, "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{held.getsockname()[1]}", "--rdzv-conf=last_call_timeout=1",
                "--preempt-signal=SIGUSR1", "--no-python", trainers.program("gpt"), *GPT, "--steps=900000",
                f"--snapshot={folder}/parts"]
        with trainers.node(0, node) as stays:
            train_for_a_while(stays)
            with trainers.node(1, node), trainers.node(2, node) as third, trainers.node(3, node) as fourth:
                went_on(stays, 4)
                for leaves in (third, fourth):
                    leaves.process.terminate()
                    leaves.finish()
                went_on(stays, 2)
                with trainers.node(4, node):
                    os.kill(went_on(stays, 3), signal.SIGKILL)
                    went_on(stays, 3)
                    stays.process.send_signal(signal.SIGUSR1)
                    stopped = int(stays.wait_for(r"^asked to stop: stopping after step (\d+)")[1])
                    stays.finish()
        steps = [int(number) for number in re.findall(r"^from step (\d+), which was in memory: ", stays.text, re.MULTILINE)]
        assert len(steps) >= 4 and steps == sorted(steps), stays.text
        assert not re.search("^from (scratch|the snapshot)", stays.text.partition("from step")[2], re.MULTILINE), stays.text
        trainers.run(0, "gpt", *GPT, f"--steps={stopped}", f"--snapshot={folder}/whole", environment=THREADS)
        trainers.assert_same_bits(trainers.snapshot(f"{folder}/parts"), trainers.snapshot(f"{folder}/whole"))


def gpt_sharded_in_worlds_of_1_4_2_and_3():
    """Checkpoints take the training from one kind of sharding and number of ranks to the next; a killed rank finds the state in memory."""
    with tempfile.TemporaryDirectory() as folder:
        train = ("gpt", *GPT, "--clip=0.5", "--parts")  # the norm is above that at first
        trainers.run(0, *train, "--steps=90", f"--snapshot={folder}/whole", environment=THREADS)
        parts = (*train, f"--snapshot={folder}/parts")
        trainers.run(1, *parts, "--sharding=fsdp", "--steps=7")
        command = trainers.command(4, *parts, "--sharding=fsdp", "--steps=60", launcher_options=RESTARTS)
        with trainers.Launcher(command) as launcher:
            victim = int(launcher.wait_for(r"^rank [0-3] of 4: pid (\d+)")[1])
            launcher.wait_for(r"^step 20/")
            os.kill(victim, signal.SIGKILL)
            step = int(launcher.wait_for(r"^from step (\d+), which was in memory")[1])
            assert launcher.finish() == 0 and 19 <= step < 60, launcher.text
        trainers.run(2, *parts, "--sharding=hybrid", "--steps=70")
        trainers.run(2, *parts, "--sharding=ddp", "--steps=80")
        trainers.run(3, *parts, "--sharding=fsdp", "--steps=90")
        same = subprocess.run([trainers.MUSTER, "ckpt", "diff", f"{folder}/parts", f"{folder}/whole"], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert same.returncode == 0, same.stdout


def went_on(launcher, ranks):
    """The world of so many ranks has trained for a while, after any that came before; the process of its rank 0."""
    pid = int(launcher.wait_for(rf"^rank 0 of {ranks}: pid (\d+)")[1])
    train_for_a_while(launcher)
    return pid


def train_for_a_while(launcher):
    step = int(launcher.wait_for(r"^step (\d+)/")[1])
    launcher.wait_for(rf"^step {step + 60}/")


def the_number_of_virtual_ranks_is_saved():
    """Another one is refused, unless it is asked for; states that were saved without it load; text does not depend on it."""
    with tempfile.TemporaryDirectory() as folder:
        data = trainers.small_data(folder, IMAGES, TEST_IMAGES)
        small = ("--n-layer=1", "--n-embd=16", "--n-head=1", "--block-size=8", "--batch=4", "--sample=0")
        for name, arguments in (("mnist", ("--batch=24", data, f"--snapshot={folder}/mnist")),
                                ("gpt", (*small, f"--snapshot={folder}/gpt")),
                                ("gpt", (*small, "--parts", f"--snapshot={folder}/gpt-parts"))):
            train = (name, *arguments)
            trainers.run(1, *train, "--virtual-ranks=2", "--steps=1")
            for other, why in (((), "now there is no --virtual-ranks"), (("--virtual-ranks=3",), "now there is --virtual-ranks=3")):
                text = trainers.run(1, *train, *other, "--steps=2", expect=1)
                assert "has had --virtual-ranks=2" in text and why in text and "--change-virtual-ranks" in text, text
            trainers.run(1, *train, "--virtual-ranks=2", "--steps=2")
            trainers.run(1, *train, "--virtual-ranks=3", "--change-virtual-ranks", "--steps=3")
            trainers.run(1, *train, "--virtual-ranks=3", "--steps=4")
            trainers.run(1, *train, "--virtual-ranks=2", "--steps=5", expect=1)
            if "--parts" not in arguments:
                if name == "gpt":
                    trainers.run(1, *train, "--sample-only")
                forget_virtual_ranks(f"{folder}/{name}")
                trainers.run(1, *train, "--virtual-ranks=2", "--steps=5")


def forget_virtual_ranks(folder):
    """Makes the newest snapshot one of a program that did not save the number."""
    (path,) = glob.glob(trainers.newest(folder, "step-") + ".json")
    with open(path, "rb+") as file:
        text, _, _ = file.read().rpartition(b',\n  "checksum"')
        text, found = re.subn(rb' *"virtual_ranks": \d+,\n', b"", text)
        assert found == 1
        xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
        xxh3.restype, xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
        file.seek(0)
        file.write(text + b',\n  "checksum": "%016x"\n}\n' % xxh3(text, len(text)))
        file.truncate()


def what_does_not_go_together_is_refused():
    for arguments, why in ((("mnist", "--virtual-ranks=2", "--micro-batches=2"), "neither with --micro-batches"),
                           (("mnist", "--virtual-ranks=2", "--sync-batch-norm"), "nor with --sync-batch-norm"),
                           (("gpt", "--virtual-ranks=9", "--batch=8"), "a larger --batch")):
        assert why in trainers.run(0, *arguments, expect=2)
    assert "needs --sharding=ddp, fsdp or hybrid" in trainers.run(1, "gpt", *GPT, "--sharding=none", expect=1)
    assert "3 ranks, but only 2 virtual ranks" in trainers.run(3, "gpt", *GPT, "--virtual-ranks=2", "--sharding=fsdp", expect=1)
    assert "3 ranks, but only 2 virtual ranks" in trainers.run(3, "mnist", "--virtual-ranks=2", expect=1)


trainers.main([mnist_in_worlds_of_1_4_2_and_3, without_virtual_ranks_the_bits_differ, gpt_in_one_job_that_grows_and_shrinks,
               gpt_sharded_in_worlds_of_1_4_2_and_3, the_number_of_virtual_ranks_is_saved, what_does_not_go_together_is_refused])
