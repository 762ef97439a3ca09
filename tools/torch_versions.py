"""The versions of PyTorch that Muster works with, and where their environments are kept."""

import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def tested():
    """Those of python/pytorch-versions, the oldest first."""
    with open(os.path.join(TOP, "python", "pytorch-versions"), encoding="ascii") as file:
        return [line.split()[0] for line in file if line.strip() and not line.startswith("#")]


def environment(version):
    """Where the environment of a version is kept, or would be: in MUSTER_TORCH_ENVS or, by default, in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("MUSTER_TORCH_ENVS") or os.path.join(cache, "muster")
    return os.path.join(folder, f"torch-{version}-py{sys.version_info.major}.{sys.version_info.minor}")


def making(version, packages):
    """The command that makes it, or adds the packages that it lacks."""
    return [sys.executable, os.path.join(TOP, "tools", "torch-env"), version, environment(version), *packages]


def interpreter(folder):
    return os.path.join(folder, "bin", "python")


def has_version(python, version):
    code = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip() == version
