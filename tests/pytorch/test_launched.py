# needs: torch
# timeout: 300
"""The backend in scripts that a launcher has started: by its name, and in place of gloo in a script that does not know it. Under `muster run`
and under torchrun, also by the agent's restart of the group."""

import os
import subprocess
import sys
import tempfile

import ranks

HERE = os.path.dirname(os.path.abspath(__file__))
MUSTER = os.path.join(ranks.BUILD, "muster")
MUSTER_RUN = [MUSTER, "run", "--standalone", "--nproc-per-node=2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]


def started(launcher, script, *arguments, **variables):
    environment = dict(os.environ, PYTHONPATH=ranks.PACKAGE, PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1", **variables)
    environment.pop("MUSTER_AS_GLOO", None) if "MUSTER_AS_GLOO" not in variables else None
    with tempfile.TemporaryDirectory(prefix="muster-launched-") as folder:  # torchrun leaves its own in there
        done = subprocess.run([*launcher, os.path.join(HERE, script), *arguments], env={**environment, "TMPDIR": folder}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def lines(launcher, *arguments, **variables):
    return [line for line in started(launcher, "launched.py", *arguments, **variables) if " ProcessGroup" in line]


def test_by_name():
    assert lines(MUSTER_RUN, "muster", "trains", TORCH_DEVICE_BACKEND_AUTOLOAD="0") == ["muster ProcessGroupMuster 6"] * 2


def test_under_torchrun():
    assert lines(TORCHRUN, "muster") == ["muster ProcessGroupMuster 6"] * 2


def test_in_place_of_gloo():
    assert lines(MUSTER_RUN, "", MUSTER_AS_GLOO="1") == ["undefined ProcessGroupMuster 6"] * 2
    assert lines(MUSTER_RUN, "cpu:gloo", MUSTER_AS_GLOO="1") == ["cpu:gloo ProcessGroupMuster 6"] * 2


def test_in_place_of_gloos_class():
    assert lines(MUSTER_RUN, "gloo", "by class", "trains", MUSTER_AS_GLOO="1") == ["gloo ProcessGroupMuster and ProcessGroupMuster 12"] * 2
    assert lines(MUSTER_RUN, "gloo", "by class") == ["gloo ProcessGroupGloo and ProcessGroupGloo 12"] * 2


def test_untidy_ends():
    for way in ("abruptly", "with works", "with messages"):
        assert started(MUSTER_RUN, "ending.py", way) == ["at the end"] * 2


def test_one_that_does_not_fit_is_told():
    script = "import muster._built; muster._built.TORCH = '1.13.0'; import torch"
    done = subprocess.run([sys.executable, "-c", script], env=dict(os.environ, PYTHONPATH=ranks.PACKAGE), text=True,
                          stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0 and "was compiled for PyTorch 1.13.0, and this is" in done.stderr, done.stderr


if __name__ == "__main__":
    ranks.main(globals())
