#!/usr/bin/env python3
# examples/pytorch/gpt_train.py under DistributedDataParallel and FSDP2: it runs unchanged under torchrun and muster run, a killed job goes on
# from its snapshot as if nothing had been, and how the model is spread changes nothing. And all examples there when they are asked to stop.
# needs: torch numpy
# computes: yes
import json
import os
import re
import subprocess
import tempfile

import forks
import pytorch_preempted
import trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "..", "examples", "pytorch", "gpt_train.py")
STEPS, SAVE_EVERY, KILLED_IN = 12, 4, 7
SMALL = ["--n-layer=2", "--n-head=2", "--n-embd=32", "--block-size=32", "--batch=4", "--evaluate-every=0", "--report-every=1",
         f"--steps={STEPS}", "--warm-up=5", "--lr=0.01", "--sample=20", f"--save-every={SAVE_EVERY}"]
TOLERANCE = 1e-5  # of a loss of 4: sums of float32 in another order


def run(launcher, snapshot, *options, script=(SCRIPT,), workers=2):
    """Output of a training that ends well."""
    arguments = ["--standalone", f"--nproc-per-node={workers}", "--max-restarts=1", *script, *SMALL, f"--snapshot={snapshot}", *options]
    if launcher == "torchrun":
        code, text = forks.become({"arguments": arguments})
    else:
        done = subprocess.run([trainers.MUSTER, "run", *arguments], env=forks.ENVIRONMENT, text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=forks.PATIENCE_S)
        code, text = done.returncode, done.stdout
    assert code == 0, f"exit code {code}:\n{text}"
    return text


def curve(text):
    """(step, "loss L, norm N") of each line of a step, in order."""
    return [(int(step), rest) for step, rest in re.findall(rf"^step (\d+)/{STEPS}: (loss [\d.]+, norm [\d.]+)", text, re.MULTILINE)]


def written(text):
    """What the model writes at the end."""
    return re.search(r"^median step: .*\n((?:.|\n)*)", text, re.MULTILINE).group(1)


LOAD = """import hashlib, json, torch
saved = torch.load(PATH, weights_only=True)
bits = {name: hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest() for name, value in saved["model"].items()}
print(json.dumps({"losses": saved["losses"], "model": bits}))"""


def load(path):
    """The losses of a snapshot, and of each tensor a digest of its bits."""
    code, text = forks.become({"code": LOAD.replace("PATH", repr(path))})
    assert code == 0, text
    return json.loads(text)


def goes_on_after_a_kill(sharding):
    with tempfile.TemporaryDirectory() as folder:
        whole = run("torchrun", f"{folder}/whole.pt", f"--sharding={sharding}")
        expected = curve(whole)
        assert [step for step, _ in expected] == list(range(1, STEPS + 1)), whole
        text = run("muster run", f"{folder}/killed.pt", f"--sharding={sharding}",
                   script=(os.path.join(HERE, "killed_once.py"), str(KILLED_IN), SCRIPT))
        before, restart, after = text.partition(f"from the snapshot of step {SAVE_EVERY}: ")
        assert restart and "exitcode: -9" in before and "restart 1" in before, text
        assert before.count("from scratch: ") == 1 and curve(before) == expected[:KILLED_IN - 1], text
        assert curve(after) == expected[SAVE_EVERY:], text
        assert written(text) == written(whole), text
        one, other = load(f"{folder}/whole.pt"), load(f"{folder}/killed.pt")
        assert one["losses"] == other["losses"] and len(one["losses"]) == STEPS
        assert one["model"] and one["model"] == other["model"], (one["model"], other["model"])


def ddp_goes_on_after_a_kill():
    goes_on_after_a_kill("ddp")


def fsdp_goes_on_after_a_kill():
    goes_on_after_a_kill("fsdp")


def losses(*runs):
    """Of one training, of which each of the runs does a part. While the rate rises it does not depend on the number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        for workers, sharding, steps in runs:
            run("muster run", f"{folder}/one.pt", "--dropout=0", "--sample=0", f"--warm-up={STEPS}", f"--sharding={sharding}",
                f"--steps={steps}", workers=workers)
        return load(f"{folder}/one.pt")["losses"]


def the_same_however_it_is_spread():
    """Also when a job goes on with the model spread in another way."""
    expected, found = losses((2, "ddp", STEPS)), losses((1, "none", STEPS // 2), (2, "fsdp", STEPS))
    assert len(expected) == STEPS and expected[-1] < expected[0] - 0.3, expected  # what learns nothing agrees with anything
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    print(f"largest difference of a loss {worst:.1e}")
    assert worst < TOLERANCE, f"{found}\n{expected}"


trainers.main([ddp_goes_on_after_a_kill, fsdp_goes_on_after_a_kill, the_same_however_it_is_spread, pytorch_preempted.the_tutorial_is_asked_to_stop,
               pytorch_preempted.mnist_is_asked_to_stop, pytorch_preempted.gpt_is_asked_to_stop])
