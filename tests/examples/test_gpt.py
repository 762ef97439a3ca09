#!/usr/bin/env python3
# Whole runs of examples/gpt: it learns, goes on from snapshots as if nothing had been, and writes text.
# computes: yes
import glob
import os
import re
import tempfile

import trainers

SMALL = ("--n-layer=2", "--n-head=2", "--n-embd=32", "--block-size=32", "--batch=4", "--evaluate-every=0", "--report-every=1",
         "--sample=0", "--warm-up=10")


def train(*options, expect=0):
    return trainers.run(0, "gpt", *SMALL, *options, expect=expect)


def losses(text):
    return [float(loss) for loss in re.findall(r"^step \d+/\d+: loss ([\d.]+)", text, re.MULTILINE)]


def the_demo_heals_learns_and_writes():
    check_demo(is_short=True, steps=400)


def the_whole_demo():
    check_demo(is_short=False, steps=600)


def check_demo(is_short, steps):
    """It wants the loss, the text, and that the state was found in memory after the kill. That step may be printed twice."""
    with tempfile.TemporaryDirectory() as folder:
        text = trainers.demo("demo-gpt", "--report-every=1", f"--plot={folder}/loss.svg", is_short=is_short)
        with open(f"{folder}/loss.svg", encoding="utf-8") as file:
            assert "<polyline" in file.read()
    assert f"loss of steps 1 to {steps}:" in text, text
    found = dict(re.findall(r"^  step (\d+)/\d+: loss ([\d.]+)", text, re.MULTILINE))
    assert sorted(map(int, found)) == list(range(1, steps + 1)), text
    assert 4.0 < float(found["1"]) < 4.4, text  # log 67 = 4.2: all characters are equally likely at first
    found = [float(loss) for loss in list(found.values())[-10:]]
    assert sum(found) / 10 < 2.6, text


def goes_on_bit_for_bit():
    with tempfile.TemporaryDirectory() as folder:
        options = ("--steps=20", "--save-every=10", f"--snapshot={folder}")
        whole = train(*options)
        expected = trainers.snapshot(folder)
        for path in glob.glob(f"{folder}/step-20*"):
            os.remove(path)
        text = train(*options)
        assert losses(text) == losses(whole)[10:], text
        assert trainers.snapshot(folder) == expected


def checkpoints_change_nothing():
    with tempfile.TemporaryDirectory() as folder:
        for name, options in (("kept", ()), ("computed", ("--checkpoint",))):
            train("--steps=5", "--dropout=0.3", f"--snapshot={folder}/{name}", *options)
        assert trainers.snapshot(f"{folder}/kept") == trainers.snapshot(f"{folder}/computed")


def writes_text():
    with tempfile.TemporaryDirectory() as folder:
        train("--steps=5", f"--snapshot={folder}")
        one, other = (trainers.run(0, "gpt", "--sample-only", f"--snapshot={folder}", "--sample=60", "--prompt=KING ")
                      for _ in range(2))
        assert one == other and one.startswith("KING ") and len(one) == len("KING ") + 60 + 1, one
        text = trainers.run(0, "gpt", "--sample-only", f"--snapshot={folder}", "--prompt=#", expect=1)
        assert "no character number 35" in text, text


def mistakes_are_explained():
    for options, words in ((("--n-head=3",), "not a multiple"), (("--steps=x",), "not a whole number"),
                           (("--sample-only",), "needs --snapshot"), (("--nonsense",), "--help"), (("x",), "what is"),
                           (("--check=x",), "go together")):
        text = train(*options, expect=2)
        assert words in text, text
    assert "cannot open" in train("--data=/nowhere", expect=1)
    text = train("--steps=60", "--lr=1000", "--weight-decay=1000", "--warm-up=0", expect=1)
    assert re.search(r"step \d+: the gradients are no numbers any more", text), text
    assert "--block-size" in trainers.run(0, "gpt", "--help")


trainers.main([the_demo_heals_learns_and_writes, the_whole_demo, goes_on_bit_for_bit, checkpoints_change_nothing, writes_text,
               mistakes_are_explained])
