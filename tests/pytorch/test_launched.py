# needs: torch
"""The backend in scripts that a launcher has started: by its name, and in place of gloo in a script that does not know it. Under `muster run`
and under torchrun, also by the agent's restart of the group."""

import contextlib
import ctypes
import functools
import glob
import importlib.machinery
import importlib.metadata
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


@contextlib.contextmanager
def package_with(backends):
    """The path of a package as the one under test, with these backends in place of its own: {name without suffix: what is in the file}."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    with tempfile.TemporaryDirectory(prefix="muster-launched-") as folder:
        os.mkdir(os.path.join(folder, "muster"))
        for inside in ("", "muster"):
            for name in os.listdir(os.path.join(common.PACKAGE, inside)):
                if name != "muster" and not name.startswith("_torch_"):
                    os.symlink(os.path.join(common.PACKAGE, inside, name), os.path.join(folder, inside, name))
        for name, content in backends.items():
            with open(os.path.join(folder, "muster", name + suffix), "wb") as file:
                file.write(content)
        yield folder


def ask():
    import torch.distributed as dist

    dist.init_process_group("muster", store=dist.HashStore(), rank=0, world_size=1)


def says(package, does=ask, wish="0"):
    """(0 or 1, what is said) where that package is installed: a fork of this process does what PyTorch does at its import, and then that."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch.distributed  # noqa: F401 - once for all forks

    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 2)
            os.environ["MUSTER_AS_GLOO"] = wish
            sys.path.insert(0, package)
            code = 1
            try:
                import muster_autoload
                muster_autoload.autoload()
                does()
                code = 0
            except BaseException as error:  # noqa: BLE001 - sys.exit() too
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(code)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read()


def test_one_that_does_not_fit_is_told():
    """Also to who asks for it; and who wants it in gloo's place hears of it on every rank, or goes no further."""
    with package_with({"_torch_1_9": b"", "_torch_1_13": b""}) as package:
        for does, wish, code, words in ((ask, "0", 1, "RuntimeError: muster's backend "), (int, "require", 1, "MUSTER_AS_GLOO=require: muster's backend "),
                                        (int, "1", 0, "MUSTER_AS_GLOO has no effect, and this rank is on gloo: ")):
            ended, said = says(package, does, wish)
            assert ended == code and words in said and "was compiled for PyTorch 1.9, 1.13, and this is" in said, (wish, ended, said)
            assert wish != "0" or 'UserWarning: the backend "muster" cannot be used' in said, said
            assert "pip install" in said, said


def test_one_that_cannot_be_loaded_is_told():
    ours = ".".join(importlib.metadata.version("torch").split(".")[:2])
    with package_with({"_torch_" + ours.replace(".", "_"): b"nothing that can be loaded"}) as package:
        ended, said = says(package)
        assert ended == 1 and f"RuntimeError: muster's backend for PyTorch {ours} does not fit" in said and "pip install" in said, said


def test_one_among_several_is_chosen():
    """Those of other versions could not even be loaded. Without any, only who asks hears of it."""
    [ours] = glob.glob(os.path.join(glob.escape(common.PACKAGE), "muster", "_torch_{}_{}.*".format(*importlib.metadata.version("torch").split(".")[:2])))
    with open(ours, "rb") as file:
        backends = {os.path.basename(ours).split(".")[0]: file.read()}
    backends.update({f"_torch_{version}": b"" for version in ("2_1", "2_99", "3_0")})
    with package_with(backends) as package:
        assert says(package) == (0, "")
    with package_with({}) as package:
        assert says(package, int) == (0, "")
        ended, said = says(package)
        assert ended == 1 and "RuntimeError: muster was installed without its backend" in said and "pip install" in said, said


def test_barriers_are_settled_at_import():
    """While the process has one thread: later the kernel takes more than 10 ms."""
    def is_registered():
        membarrier, get_registrations, global_expedited = {"x86_64": 324, "aarch64": 283}[os.uname().machine], 1 << 9, 1 << 2
        found = ctypes.CDLL(None).syscall(membarrier, get_registrations, 0, 0)
        assert found < 0 or found & global_expedited, found  # below 0: Linux before 6.3

    assert says(common.PACKAGE, is_registered) == (0, "")


if __name__ == "__main__":
    common.main(globals())
