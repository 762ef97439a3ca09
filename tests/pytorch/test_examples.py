# needs: torch numpy
"""The programs of examples/pytorch with --backend=muster: they train to their end, and have the losses that they have on gloo."""

import os
import re
import subprocess
import sys
import tempfile

import common

sys.path.insert(1, os.path.join(common.TOP, "tests", "examples"))
os.environ["PYTHONPATH"] = common.PACKAGE  # also of forks.TEMPLATE
import forks  # noqa: E402

EXAMPLES = os.path.join(common.TOP, "examples", "pytorch")
SMALL_GPT = ["--n-layer=1", "--n-head=2", "--n-embd=32", "--block-size=32", "--batch=4", "--evaluate-every=0", "--report-every=1", "--steps=4",
             "--warm-up=2", "--sample=0", "--sharding=fsdp"]


def losses(script, *arguments, backend):
    """What the program says of its losses, without the times."""
    with tempfile.TemporaryDirectory(prefix="muster-examples-") as folder:
        environment = dict(forks.ENVIRONMENT, TMPDIR=folder)
        done = subprocess.run([os.path.join(common.BUILD, "muster"), "run", "--standalone", "--nproc-per-node=2", os.path.join(EXAMPLES, script), *arguments,
                               f"--backend={backend}", f"--snapshot={folder}/one.pt"], env=environment, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250, check=False)
    assert done.returncode == 0, done.stdout
    found = sorted(re.findall(r"loss [\d.]+", done.stdout))
    assert found, done.stdout
    return found


def same_losses(*program):
    assert losses(*program, backend="muster") == losses(*program, backend="gloo"), program


def test_the_same_losses_of_gpt():
    same_losses("gpt_train.py", *SMALL_GPT)


def test_the_same_losses_of_the_tutorial():  # tools/demo-pytorch has mnist_ddp.py
    same_losses("multigpu_torchrun.py", "2", "1")


def test_a_backend_that_is_not_there_is_told():
    done = subprocess.run([os.path.join(common.BUILD, "muster"), "run", "--standalone", "--nproc-per-node=1", os.path.join(EXAMPLES, "multigpu_torchrun.py"),
                           "1", "1", "--backend=nonsense"], env=forks.ENVIRONMENT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250, check=False)
    assert done.returncode == 1 and "nonsense" in done.stdout, done.stdout


if __name__ == "__main__":
    common.main(globals())
