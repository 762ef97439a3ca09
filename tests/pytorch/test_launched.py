# needs: torch
"""The backend in scripts that a launcher has started: by its name, and in place of gloo in a script that does not know it. Under `muster run`
and under torchrun, also by the agent's restart of the group."""

import functools
import os
import subprocess
import sys
import tempfile

import common

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(common.TOP, "tests", "regress"))
import forked  # noqa: E402

MUSTER = os.path.join(common.BUILD, "muster")
MUSTER_RUN = [MUSTER, "run", "--standalone", "--nproc-per-node=2"]
FORKED = os.path.join(common.TOP, "tests", "examples", "forked_python")
TORCHRUN = [FORKED, os.path.join(os.path.dirname(sys.executable), "torchrun"), "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0"]
CACHE = tempfile.TemporaryDirectory(prefix="muster-launched-")  # PyTorch makes a folder when it is imported
USUAL = {name: value for name, value in os.environ.items() if name != "MUSTER_AS_GLOO"}
USUAL.update(PYTHONPATH=common.PACKAGE, OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=CACHE.name)


@functools.cache
def template(modules=(), **variables):
    """A process that has imported PyTorch, and with it what these variables make of the backend, and its address."""
    return forked.Template(sys.executable, TORCHRUN[1], modules, {**USUAL, **variables})


def by_forks(modules=(), **variables):
    """Variables for launchers whose workers are forked from such a process."""
    return {**variables, "PYTHON_EXEC": FORKED, "MUSTER_TEST_TEMPLATE": template(modules, **variables).address}


def started(launcher, script, *arguments, **variables):
    environment = {**USUAL, "PYTHON_EXEC": sys.executable, **variables}
    with tempfile.TemporaryDirectory(prefix="muster-launched-") as folder:  # torchrun leaves its own in there
        done = subprocess.run([*launcher, os.path.join(HERE, script), *arguments], env={**environment, "TMPDIR": folder}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def lines(launcher, *arguments, **variables):
    return [line for line in started(launcher, "launched.py", *arguments, **variables) if " ProcessGroup" in line]


DYNAMO = ("torch._dynamo",)  # DistributedDataParallel imports it


def test_by_name():
    """In interpreters of their own."""
    assert lines(MUSTER_RUN, "muster", "trains", TORCH_DEVICE_BACKEND_AUTOLOAD="0") == ["muster ProcessGroupMuster 6"] * 2


def test_under_torchrun():
    assert lines(TORCHRUN, "muster", **by_forks()) == ["muster ProcessGroupMuster 6"] * 2


def test_in_place_of_gloo():
    variables = by_forks(DYNAMO, MUSTER_AS_GLOO="1")
    assert lines(MUSTER_RUN, "", **variables) == ["undefined ProcessGroupMuster 6"] * 2
    assert lines(MUSTER_RUN, "cpu:gloo", **variables) == ["cpu:gloo ProcessGroupMuster 6"] * 2


def test_in_place_of_gloos_class():
    variables = by_forks(DYNAMO, MUSTER_AS_GLOO="1")
    assert lines(MUSTER_RUN, "gloo", "by class", "trains", **variables) == ["gloo ProcessGroupMuster and ProcessGroupMuster 12"] * 2
    assert lines(MUSTER_RUN, "gloo", "by class", **by_forks()) == ["gloo ProcessGroupGloo and ProcessGroupGloo 12"] * 2


def ends_untidily(way):
    """In interpreters of their own, too: how these end is what matters."""
    assert started(MUSTER_RUN, "ending.py", way) == ["at the end"] * 2


def test_an_abrupt_end():
    ends_untidily("abruptly")


def test_an_end_with_works():
    ends_untidily("with works")


def test_an_end_with_messages():
    ends_untidily("with messages")


def test_one_that_does_not_fit_is_told():
    """Also to who asks for it; and who wants it in gloo's place hears of it on every rank, or goes no further."""
    script = "import muster._built; muster._built.TORCH = '1.13.0'; import torch"
    asks = script + "; import torch.distributed as dist; dist.init_process_group('muster', store=dist.HashStore(), rank=0, world_size=1)"
    for program, wish, code, words in ((asks, "0", 1, "RuntimeError: muster's backend "), (script, "1", 0, "MUSTER_AS_GLOO has no effect, and this rank is on gloo: "),
                                       (script, "require", 1, "MUSTER_AS_GLOO=require: muster's backend ")):
        done = subprocess.run([sys.executable, "-c", program], env={**USUAL, "MUSTER_AS_GLOO": wish}, text=True, stderr=subprocess.PIPE, check=False)
        assert done.returncode == code and words in done.stderr and "was compiled for PyTorch 1.13.0, and this is" in done.stderr, (wish, done)
        assert wish != "0" or 'UserWarning: the backend "muster" cannot be used' in done.stderr, done.stderr
        assert "pip install" in done.stderr, done.stderr


if __name__ == "__main__":
    common.main(globals())
