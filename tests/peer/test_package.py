#!/usr/bin/env python3
# The Python package: its wheel in an environment of its own, its archive of sources, and what does not fit together.
# needs: setuptools>=77
"""Usage: test_package.py [CASE ...]; MUSTER_BINARY names the program. No network is used.

The wheel takes program and library of this build (MUSTER_PREBUILT), and the backend that tools/build-backend has compiled there; where it has
not, and in a case of its own, the backend is compiled, if PyTorch is here.
"""
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
import cases  # noqa: E402

PACKAGE = os.path.join(TOP, "python")
BUILD = os.path.dirname(os.path.abspath(os.environ["MUSTER_BINARY"]))
HAS_PIP = importlib.util.find_spec("pip") is not None
SAFE = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
# Each rank trains on its part of the data, and compares with a training on all of it. It writes its line at once: print() writes the end of
# the line apart where Python does not buffer, and the other rank's line may come between.
DDP = """import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("muster")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
data, wanted = torch.randn(4 * size, 8), torch.randn(4 * size, 1)
alone, model = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
model.load_state_dict(alone.state_dict())
model, mine = DistributedDataParallel(model), slice(4 * rank, 4 * rank + 4)
for parameters, chosen, forward in ((alone.parameters(), slice(None), alone), (model.parameters(), mine, model)):
    descent = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(5):
        descent.zero_grad()
        torch.nn.functional.mse_loss(forward(data[chosen]), wanted[chosen]).backward()
        descent.step()
same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(alone.parameters(), model.module.parameters()))
os.write(1, f"rank {rank} of {size}: {dist.get_backend()} {'as alone' if same else 'NOT as alone'}\\n".encode())
dist.destroy_process_group()
"""
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "PYTHON"))}


def check(right, text):
    if not right:
        sys.exit(text)


def run(*command, fails=False, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **{"env": CLEAN, **options})
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stderr if fails else done.stdout


def build(kind, prebuilt=BUILD, name="build"):
    """By the backend that pip calls; the folder of its temporary files is ours."""
    into = os.path.join(FOLDER, name)
    os.makedirs(into, exist_ok=True)
    environment = dict(CLEAN, MUSTER_PREBUILT=prebuilt, MUSTER_PACKAGE_BUILD=os.path.join(into, kind))
    code = f"import sys, setuptools.build_meta as b; print('made', b.build_{kind}(sys.argv[1]))"
    lines = run(sys.executable, "-c", code, into, cwd=PACKAGE, env=environment)
    return os.path.join(into, re.search(r"^made (.*)$", lines, re.MULTILINE).group(1))


@functools.cache
def installed():
    """The wheel, and the Python of an environment of its own that has it."""
    wheel, home = build("wheel"), os.path.join(FOLDER, "venv")
    python = os.path.join(home, "bin", "python")
    run(sys.executable, "-m", "venv", *(["--without-pip"] if HAS_PIP else []), home)
    install(python, wheel)
    return wheel, python


def install(python, wheel, *options):
    """By the pip that is here, if there is one: to give the environment one of its own takes as long as the rest."""
    pip = [sys.executable, "-m", "pip", "--python", python] if HAS_PIP else [python, "-m", "pip"]
    run(*pip, "install", "--no-index", "--no-deps", "--disable-pip-version-check", *options, wheel, env=dict(CLEAN, PATH=os.path.dirname(python)))


def version():
    with open(os.path.join(TOP, "include", "muster", "version.h"), encoding="utf-8") as header:
        return re.search(r'VERSION_TEXT "([^"]+)"', header.read()).group(1)


def the_wheel_in_an_environment_of_its_own():
    wheel, python = installed()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [facts] = [archive.read(name).decode() for name in names if name.endswith("/METADATA")]
        for name in names:
            if name.startswith("muster/_torch_"):  # where PyTorch starts, it does (python/csrc/old_libc.hpp)
                versions = run("readelf", "--version-info", "--wide", archive.extract(name, FOLDER))
                for library, most in (("GLIBC_2", 28), ("GLIBCXX_3.4", 24)):
                    newest = max(int(minor) for minor in re.findall(re.escape(library) + r"\.(\d+)", versions))
                    check(newest <= most, f"{name} needs symbols of {library}.{newest}")
    licences = {name.rsplit("/", 1)[-1] for name in names if "/licenses/" in name}
    for line in ("Author: the Muster developers", "License-Expression: BSD-3-Clause AND "):
        check(f"\n{line}" in facts, f"no line {line} in the wheel's facts")
    check(licences == {"LICENSE", "libuv.txt", "jansson.txt", "xxhash.txt"}, f"licences in {wheel}: {licences}")
    for name in ("muster/__init__.py", "muster/libmuster.so", "muster/py.typed"):
        check(name in names, f"{name} is not in {sorted(names)}")
    check(any(name.endswith(".data/scripts/muster") for name in names), f"the program is not in {sorted(names)}")
    program = os.path.join(os.path.dirname(python), "muster")
    with open(program, "rb") as file:
        check(file.read(4) == b"\x7fELF", "bin/muster is not the program itself")
    check(run(program, "--version") == f"muster {version()}\n", "the program's version")
    check(run(python, "-m", "muster", "--version") == f"muster {version()}\n", "python -m muster")
    lines = run(python, "-m", "muster", "run", "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", "echo rank $RANK")
    check(sorted(lines.split("\n"))[1:] == ["rank 0", "rank 1"], lines)
    code = """import sys, muster
print(muster.__version__, muster.program(), "torch" in sys.modules or "numpy" in sys.modules, muster.stop_requested(), help(muster) is None)
with muster.Store.open_tcp("127.0.0.1", 0, is_host=True, bind_host="127.0.0.1") as store:
    store.set("a", "b")
    print(store.get("a"))"""
    said = run(python, "-c", code, cwd=FOLDER)
    check(f"{version()} {os.path.realpath(program)} False False True\nb'b'" in said, said)
    check("muster.record" in said and "MUSTER_LAUNCH" in said, "help(muster) does not teach")


def has_torch():
    if importlib.util.find_spec("torch") is None:
        print(f"SKIP: {sys.executable} has no PyTorch: the wheel has no backend, and no training is run")
        return False
    return True


def trains(python, *options):
    """PyTorch's DDP on the backend of the wheel, in an environment that has PyTorch: the one here is made visible in it."""
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    with open(os.path.join(site, "here.pth"), "w", encoding="utf-8") as file:
        file.write(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)) + "\n")
    script = os.path.join(FOLDER, "ddp.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(DDP)
    alone = dict(CLEAN, PATH=os.path.dirname(python), OMP_NUM_THREADS="1", TMPDIR=FOLDER)  # PyTorch leaves a folder there
    lines = run("muster", "run", "--standalone", "--nproc-per-node=2", *options, script, env=alone, cwd=FOLDER)
    said = sorted(line for line in lines.split("\n") if line)
    check(said == ["rank 0 of 2: muster as alone", "rank 1 of 2: muster as alone"], lines)


def a_training_without_a_compiler():
    """Of forks of a process that has imported PyTorch, once."""
    if has_torch():
        trains(installed()[1], "--preload=torch,torch._dynamo")


def a_backend_that_is_compiled_here():
    """As where nobody has called tools/build-backend: the build folder has program and library alone."""
    if has_torch():
        plain = os.path.join(FOLDER, "plain")
        os.mkdir(plain)
        for name in ("muster", "libmuster.so"):
            os.symlink(os.path.join(BUILD, name), os.path.join(plain, name))
        install(installed()[1], build("wheel", plain, "compiled"), "--force-reinstall")
        trains(installed()[1])


def what_does_not_fit_is_refused():
    """In one sentence that has the command, whatever does not fit: the library's version, its machine, or the program's version."""
    python = installed()[1]
    site = run(python, "-c", "import muster, os; print(os.path.dirname(muster.__file__))").strip()
    stale = os.path.join(FOLDER, "stale.c")
    for name, text in (("other", 'const char *muster_version_text(void) { return "0.0.9"; }'), ("none", "int nothing;")):
        with open(stale, "w", encoding="ascii") as file:
            file.write(text)
        library = os.path.join(FOLDER, f"lib{name}.so")
        run(os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, stale)
        said = run(python, "-c", "import muster", fails=True, env=dict(CLEAN, MUSTER_LIBRARY=library)).strip().split("\n")[-1]
        check(said.startswith("ImportError: muster") and "pip install" in said, said)
        check(("0.0.9" in said) == (name == "other"), said)
    damaged = os.path.join(FOLDER, "machine.so")
    with open(os.path.join(site, "libmuster.so"), "rb") as file:
        image = bytearray(file.read())
    image[18:20] = (243 if image[18] != 243 else 62).to_bytes(2, "little")  # e_machine: another one
    with open(damaged, "wb") as file:
        file.write(image)
    said = run(python, "-c", "import muster", fails=True, env=dict(CLEAN, MUSTER_LIBRARY=damaged)).strip().split("\n")[-1]
    check(said.startswith("ImportError: muster") and "for this machine" in said and "pip install" in said, said)
    said = run(python, "-c", "import muster", fails=True, env=dict(CLEAN, MUSTER_LIBRARY="/nowhere.so")).strip().split("\n")[-1]
    check("there is no /nowhere.so" in said and "pip install" in said, said)
    program = os.path.join(FOLDER, "muster-old")
    with open(program, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\necho muster 0.0.9\n")
    os.chmod(program, 0o755)
    said = run(python, "-m", "muster", "run", fails=True, env=dict(CLEAN, MUSTER_BINARY=program))
    check("is muster 0.0.9, and this module is" in said and said.count("\n") == 1, said)


def the_archive_of_sources_compiles():
    """All sources are in it: CMake finds them, and the commands that would build program and library can be listed."""
    archive = build("sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(os.path.dirname(archive), **SAFE)
    top = archive[: -len(".tar.gz")]
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py", "native/CMakeLists.txt", "native/src/cli/main.c",
                 "native/include/muster/store.h"):
        check(os.path.isfile(os.path.join(top, name)) and not os.path.islink(os.path.join(top, name)), f"{name} is not in {archive}")
    tests = [name for _, _, names in os.walk(top) for name in names if name.endswith("_test.c")]
    check(not tests, f"tests are in {archive}: {tests[:3]}")
    if not shutil.which("ninja"):
        print("ninja is not installed: the commands of the archive's build are not listed")
        return
    native = os.path.join(FOLDER, "native")
    run("cmake", "-S", os.path.join(top, "native"), "-B", native, "-G", "Ninja", "-DMUSTER_PACKAGE=ON")
    check("libmuster.so" in run("ninja", "-C", native, "-n", "muster", "libmuster_shared"), "libmuster.so would not be built")
    environment = dict(CLEAN, MUSTER_PREBUILT=BUILD)
    without_torch = "import sys; sys.modules['torch'] = None; import setuptools.build_meta as b; b.build_wheel(sys.argv[1])" # no second backend
    run(sys.executable, "-c", without_torch, FOLDER, cwd=top, env=environment)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="muster-package-") as FOLDER:
        cases.run([the_wheel_in_an_environment_of_its_own, a_training_without_a_compiler, what_does_not_fit_is_refused,
                   the_archive_of_sources_compiles, a_backend_that_is_compiled_here])
