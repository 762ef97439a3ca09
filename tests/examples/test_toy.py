#!/usr/bin/env python3
# Whole runs of examples/toy: snapshots every so many epochs, going on from them with other numbers of workers.
import os
import re
import tempfile

import trainers


def losses(text):
    return [float(loss) for loss in re.findall(r"\[rank 0\] epoch \d+: .*loss ([\d.]+)", text)]


def learns_and_saves_every_so_many_epochs():
    with tempfile.TemporaryDirectory() as folder:
        text = trainers.run(2, "toy", "12", "5", f"--snapshot={folder}/s")
        assert re.findall(r"epoch (\d+): snapshot saved", text) == ["5", "10"], text
        assert len(losses(text)) == 12 and losses(text)[-1] < losses(text)[0] / 2, text
        assert "32 steps of 32" in text, text  # 2,048 samples on two workers
        assert re.search(r"samples/s, [\d.]+ % of the time in communication", text), text
        assert "loss of steps 1 to 384:" in text, text


def goes_on_with_other_numbers_of_workers():
    with tempfile.TemporaryDirectory() as folder:
        trainers.run(1, "toy", "4", "2", f"--snapshot={folder}/s", "--batch-size=64")
        text = trainers.run(3, "toy", "6", "2", f"--snapshot={folder}/s")
        assert "going on from the snapshot of epoch 4" in text and len(losses(text)) == 2, text
        assert re.search(r"loss of steps 1 to (\d+):", text)[1] == str(4 * 32 + 2 * 22), text  # the curve goes on, too
        assert "going on" in trainers.run(2, "toy", "6", "2", f"--snapshot={folder}/s")  # nothing is left to do


def two_runs_agree_bit_for_bit():
    with tempfile.TemporaryDirectory() as folder:
        for name in "ab":
            trainers.run(2, "toy", "3", "3", f"--snapshot={folder}/{name}")
        assert trainers.snapshot(f"{folder}/a") == trainers.snapshot(f"{folder}/b")


def falls_back_to_the_last_whole_snapshot():
    with tempfile.TemporaryDirectory() as folder:
        trainers.run(1, "toy", "4", "2", f"--snapshot={folder}/s")
        (newest,) = [name for name in os.listdir(f"{folder}/s") if re.fullmatch(r"step-4-.*\.safetensors", name)]
        with open(f"{folder}/s/{newest}", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x7f")
        text = trainers.run(2, "toy", "5", "5", f"--snapshot={folder}/s")
        assert "going on from the snapshot of epoch 2" in text and "step-4" in text, text


def mistakes_are_explained():
    for arguments in ((), ("1",), ("1", "x"), ("0", "1"), ("1", "1", "--batch-size=0"), ("1", "1", "--nonsense")):
        text = trainers.run(0, "toy", *arguments, expect=2)
        assert "--help" in text, text
    assert "TOTAL_EPOCHS SAVE_EVERY" in trainers.run(0, "toy", "--help")


trainers.main([learns_and_saves_every_so_many_epochs, goes_on_with_other_numbers_of_workers, two_runs_agree_bit_for_bit,
               falls_back_to_the_last_whole_snapshot, mistakes_are_explained])
