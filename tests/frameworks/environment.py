"""The Python environment of tests/frameworks: PyTorch, the frameworks of versions.txt, and this checkout's backend.

It lies in a build folder, apart from .venv: it has a gigabyte, and other packages than the tests may have.
"""

import hashlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.dirname(os.path.abspath(os.environ.get("MUSTER_BINARY", os.path.join(TOP, "build", "muster"))))
MUSTER = os.path.join(BUILD, "muster")
SCRIPTS = os.path.join(HERE, "scripts")


def say(text):
    print(f"frameworks: {text}", file=sys.stderr, flush=True)


def versions():
    """(what is installed with its dependencies, what without), as pip takes them."""
    with open(os.path.join(HERE, "versions.txt"), encoding="ascii") as file:
        with_, _, without = file.read().partition("# --no-deps\n")
    return tuple([line for line in part.splitlines() if line and not line.startswith("#")] for part in (with_, without))


def pip(python, *arguments):
    done = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments], stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=False, env=dict(os.environ, DS_BUILD_OPS="0", DS_ACCELERATOR="cpu"))
    if done.returncode:
        sys.exit(f"frameworks: pip could not install {' '.join(arguments)}:\n{done.stderr}")


def tell_of_cuda(python):
    names = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True).stdout.split()
    heavy = [name for name in names if name.startswith(("nvidia", "cuda", "triton"))]
    if heavy:
        say(f"the environment has packages for GPUs, which nothing here needs: {', '.join(heavy)}")


def make(folder):
    """The environment's interpreter; made where it is missing or versions.txt has changed."""
    with open(os.path.join(HERE, "versions.txt"), "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "versions")
    if os.path.exists(stamp) and open(stamp, encoding="ascii").read() == wanted:
        return python
    say(f"making {folder} (a gigabyte, some minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    base = os.environ.get("MUSTER_TEST_PYTHON") or sys.executable  # the backend was compiled for this version of Python
    subprocess.run([base, "-m", "venv", folder], check=True)
    with_, without = versions()
    torch = [line for line in with_ if line.startswith("torch==")]
    pip(python, *torch)  # first and alone: the others then keep it
    pip(python, *with_)
    pip(python, "--no-deps", "--no-build-isolation", *without)
    tell_of_cuda(python)
    # DeepSpeed compiles a part of itself when it is first used: not in a job, which might be killed in it and leave its lock behind.
    subprocess.run([python, "-c", "from deepspeed.comm.torch import build_shm_op; build_shm_op()"], env=variables(python, folder), check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with open(stamp, "w", encoding="ascii") as file:
        file.write(wanted)
    return python


def variables(python, folder):
    """What every job runs with. folder: the caches of frameworks, which are not to be those of the user."""
    ours = ("MUSTER_", "PET_", "ACCELERATE_", "TORCHELASTIC_", "FRAMEWORKS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return dict(kept, PATH=os.path.dirname(python) + os.pathsep + os.environ["PATH"], PYTHONPATH=os.path.join(BUILD, "python"),
                MUSTER_BINARY=MUSTER, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", PYTHONUNBUFFERED="1", DS_ACCELERATOR="cpu",
                HF_HOME=os.path.join(folder, "huggingface"), HF_HUB_OFFLINE="1", TORCH_EXTENSIONS_DIR=os.path.join(folder, "extensions"))
