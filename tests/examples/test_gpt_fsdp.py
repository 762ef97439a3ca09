#!/usr/bin/env python3
# examples/gpt with fsdp: it computes what ddp does, and its snapshots are those of ddp.
# computes: yes
import glob
import os
import shutil
import signal
import tempfile

import trainers

SMALL = ("--n-layer=2", "--n-head=2", "--n-embd=36", "--block-size=32", "--batch=12", "--evaluate-every=0", "--report-every=10",
         "--sample=0", "--warm-up=10", "--lr=0.003")
NO_CLIPPING = "--clip=1e9"
STEPS = 50


def train(ranks, folder, *options, environment=None):
    """Tensors of the snapshot that a run ends with."""
    trainers.run(ranks, "gpt", *SMALL, f"--snapshot={folder}", *options, environment=environment)
    return trainers.snapshot(folder)


def farthest(found, expected):
    return max(abs(a - b) / b for a, b in zip(found, expected))


def fsdp_is_ddp_bit_for_bit():
    """On one host, and without clipping: the norm is added up in another order."""
    is_ddp(3)


def on_other_numbers_of_ranks_too():
    is_ddp(1, 2, 4)


def is_ddp(*numbers):
    with tempfile.TemporaryDirectory() as folder:
        for ranks in numbers:
            options = (f"--steps={STEPS}", "--dropout=0.2", NO_CLIPPING, "--tied") if ranks == 3 else (f"--steps={STEPS}", NO_CLIPPING)
            ddp, fsdp, again = (train(ranks, f"{folder}/{ranks}-{number}", f"--sharding={sharding}", *options)
                                for number, sharding in enumerate(("ddp", "fsdp", "fsdp")))
            trainers.assert_same_bits(fsdp, ddp)
            trainers.assert_same_bits(fsdp, again)


def losses_are_those_of_one_process():
    losses_are_the_same(("float32", "bfloat16"), (3,))
    losses_are_the_same(("float32, hosts of one",), (2,))


def losses_are_those_of_one_process_on_any_number_of_ranks():
    losses_are_the_same(("float32", "bfloat16", "float32, hosts of one", "checkpoints"), (1, 2, 3, 4))


def losses_are_the_same(kinds, numbers):
    with tempfile.TemporaryDirectory() as folder:
        options = (f"--steps={STEPS}", "--dropout=0")
        expected = trainers.losses(train(0, f"{folder}/alone", *options), STEPS)
        assert expected[-1] < expected[0] - 0.5, expected  # else nothing has been compared
        for name, most, more, environment in (("float32", 1e-5, (), None), ("bfloat16", 5e-3, ("--bf16",), None),
                                              ("float32, hosts of one", 1e-5, (), {"MUSTER_SHM": "0"}),
                                              ("checkpoints", 1e-5, ("--checkpoint", "--tied"), None)):
            if name not in kinds:
                continue
            alone = expected
            if "--tied" in more:
                alone = trainers.losses(train(0, f"{folder}/{name}", *options, *more), STEPS)
            for ranks in numbers:
                found = trainers.losses(train(ranks, f"{folder}/{name}-{ranks}", "--sharding=fsdp", *options, *more,
                                              environment=environment), STEPS)
                apart = farthest(found, alone)
                print(f"   {name}, {ranks} ranks: {apart:.1e} apart")
                assert apart < most, (name, ranks, found, alone)


def any_sharding_goes_on():
    """From the middle of a run with fsdp on two ranks."""
    options = ("--steps=40", "--save-every=20", "--dropout=0.1")
    with tempfile.TemporaryDirectory() as folder:
        expected = trainers.losses(train(2, f"{folder}/whole", "--sharding=fsdp", *options), 40)
        for path in glob.glob(f"{folder}/whole/step-40*"):
            os.remove(path)
        for ranks, sharding in ((1, "none"), (3, "ddp"), (1, "fsdp"), (4, "fsdp")):
            shutil.copytree(f"{folder}/whole", f"{folder}/{sharding}-{ranks}")
            text = trainers.run(ranks, "gpt", *SMALL, f"--snapshot={folder}/{sharding}-{ranks}", f"--sharding={sharding}", *options)
            assert "from the snapshot of step 20: " in text, text
            found = trainers.losses(trainers.snapshot(f"{folder}/{sharding}-{ranks}"), 40)
            assert farthest(found, expected) < 1e-5, (sharding, ranks, found, expected)


def every_rank_saves_a_part():
    """Checkpoints of any number of ranks and any sharding go on with any other; an old snapshot does, too."""
    options = ("--steps=40", "--save-every=20", "--dropout=0.1", "--parts")
    with tempfile.TemporaryDirectory() as folder:
        whole = train(2, f"{folder}/whole", "--sharding=fsdp", *options[:-1])
        for saver, loader in (((2, "fsdp"), (3, "ddp")), ((3, "ddp"), (4, "fsdp")), ((1, "none"), (2, "fsdp"))):
            path = f"{folder}/{saver[1]}-{saver[0]}"
            trainers.run(saver[0], "gpt", *SMALL, f"--snapshot={path}", f"--sharding={saver[1]}", *options, "--steps=20")
            assert len(glob.glob(f"{path}/checkpoint-20-*.safetensors")) == saver[0], os.listdir(path)
            text = trainers.run(loader[0], "gpt", *SMALL, f"--snapshot={path}", f"--sharding={loader[1]}", *options[:-1], "--parts")
            assert "from the snapshot of step 20: " in text, text
            assert os.path.exists(f"{path}/checkpoint-40.json"), os.listdir(path)
        for name in glob.glob(f"{folder}/whole/step-40*"):
            os.remove(name)
        text = trainers.run(2, "gpt", *SMALL, f"--snapshot={folder}/whole", "--sharding=fsdp", *options)
        assert "from the snapshot of step 20: " in text and whole, text


def a_killed_rank_changes_no_bit():
    options = ("--steps=300", "--save-every=20", "--dropout=0.2", "--sharding=fsdp", "--forget")
    with tempfile.TemporaryDirectory() as folder:
        command = trainers.command(2, "gpt", *SMALL, *options, f"--snapshot={folder}/killed", launcher_options=("--max-restarts=1",))
        with trainers.Launcher(command) as launcher:
            pid = int(launcher.wait_for(r"rank 1 of 2: pid (\d+), restart 0")[1])
            launcher.wait_for(r"^step 50/")
            os.kill(pid, signal.SIGKILL)
            step = int(launcher.wait_for(r"^from the snapshot of step (\d+): ")[1])
            assert launcher.finish() == 0 and "restart 1" in launcher.text, launcher.text
        assert 40 <= step < 300 and step % 20 == 0, step
        trainers.assert_same_bits(trainers.snapshot(f"{folder}/killed"), train(2, f"{folder}/whole", *options))


def text_is_that_of_one_process():
    with tempfile.TemporaryDirectory() as folder:
        text = trainers.run(2, "gpt", *SMALL, "--steps=5", "--sharding=fsdp", "--sample=50", "--prompt=KING ", f"--snapshot={folder}")
        alone = trainers.run(0, "gpt", "--sample-only", "--sample=50", "--prompt=KING ", f"--snapshot={folder}")
        assert text.count("KING ") == 1 and text.endswith(alone), (text, alone)


trainers.main([fsdp_is_ddp_bit_for_bit, on_other_numbers_of_ranks_too, losses_are_those_of_one_process,
               losses_are_those_of_one_process_on_any_number_of_ranks, any_sharding_goes_on, every_rank_saves_a_part, a_killed_rank_changes_no_bit,
               text_is_that_of_one_process])
