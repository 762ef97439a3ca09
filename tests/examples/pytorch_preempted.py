"""The examples with PyTorch are asked to stop: all workers do after one epoch or step, the launcher ends with 75, and they go on to an end
that leaves no thread of gloo's, which could abort them there. Cases of test_pytorch_gpt.py, whose workers are forks of the same process."""

import os
import re
import signal
import subprocess
import sys
import tempfile

import forks
import trainers

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "pytorch")
PREEMPTED = 75
ASK_FIRST = ["--preempt-signal=SIGUSR1", "--preempt-grace=100"]
REAL = dict(trainers.ENVIRONMENT, PYTHON_EXEC=sys.executable)  # an interpreter that ends as usual


def run(script, *arguments, notice_at=None, environment=forks.ENVIRONMENT):
    """Its output; the notice comes when `notice_at` has been said."""
    command = [trainers.MUSTER, "run", "--standalone", "--nproc-per-node=2", *ASK_FIRST, os.path.join(HERE, "threads_left.py"),
               os.path.join(EXAMPLES, script), *arguments]
    with subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as launcher:
        try:
            text = ""
            while notice_at and not re.search(notice_at, text):
                line = launcher.stdout.readline()
                assert line, text
                text += line
            if notice_at:
                launcher.send_signal(signal.SIGUSR1)
            text += launcher.stdout.read()
        finally:
            launcher.kill()
        assert launcher.wait() == (PREEMPTED if notice_at else 0) and text.count("threads left: 1") == 2, text
    return text


def stopped_after(text):
    epochs = re.findall(r"asked to stop: stopping after (?:epoch|step) (\d+)", text)  # two workers' lines may run into each other
    assert len(epochs) == 2 and len(set(epochs)) == 1 and "did not exit with 0" not in text, text
    return int(epochs[0])


def the_tutorial_is_asked_to_stop():
    with tempfile.TemporaryDirectory() as folder:
        snapshot = f"--snapshot={folder}/toy.pt"
        epoch = stopped_after(run("multigpu_torchrun.py", "1000000", "1000000", snapshot, notice_at="epoch 2:"))
        text = run("multigpu_torchrun.py", str(epoch + 2), "1", snapshot, environment=REAL)
        assert f"resuming after epoch {epoch + 1} of" in text, text


def mnist_is_asked_to_stop():
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--snapshot={folder}/mnist.pt", trainers.small_data(folder, 500)]  # how well it learns is other tests' affair
        epoch = stopped_after(run("mnist_ddp.py", "--epochs=1000", *options, notice_at="epoch 1/"))
        text = run("mnist_ddp.py", f"--epochs={epoch + 1}", *options)
        assert f"from snapshot of epoch {epoch}:" in text and "final test accuracy" in text, text


def gpt_is_asked_to_stop():
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--snapshot={folder}/gpt.pt", "--sharding=fsdp", "--n-layer=2", "--n-head=2", "--n-embd=32", "--report-every=1", "--sample=9"]
        step = stopped_after(run("gpt_train.py", "--steps=100000", *options, notice_at="step 2/"))
        text = run("gpt_train.py", f"--steps={step + 1}", *options)
        assert f"from the snapshot of step {step}: " in text and "median step" in text, text
