"""The extension module that is the backend "muster" of torch.distributed: one for each minor version of PyTorch, beside each other in the package.

setup.py and tools/build-backend compile it with this. PyTorch is looked at and not imported, which takes seconds.
"""

import atexit
import glob
import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import sysconfig
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
NATIVE = os.path.join(HERE, "native")  # in an archive of sources
TOP = NATIVE if os.path.isdir(NATIVE) else os.path.dirname(HERE)
SOURCES = os.path.join(HERE, "csrc")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def torch_folder():
    """Of the PyTorch that is here; None: there is none."""
    found = importlib.util.find_spec("torch")
    return found and found.submodule_search_locations[0]


def torch_version():
    return runpy.run_path(os.path.join(torch_folder(), "version.py"))["__version__"]


def numbers(version):
    """Of the minor version."""
    return tuple(int(part) for part in version.split(".")[:2])


def oldest_version():
    """The first of pytorch-versions."""
    with open(os.path.join(HERE, "pytorch-versions"), encoding="ascii") as file:
        return next(line.split()[0] for line in file if not line.startswith("#"))


def module_name():
    """That of the PyTorch that is here, such as _torch_2_13. python/muster/distributed.py looks for it."""
    return "_torch_{}_{}".format(*numbers(torch_version()))


def of_this_python(package):
    """Those in a folder, as {name of the module: path}."""
    found = glob.glob(os.path.join(glob.escape(package), "_torch_*" + SUFFIX))
    return {os.path.basename(path)[: -len(SUFFIX)]: path for path in found}


def is_current(path):
    """Is it newer than its sources, and than the way in which they are compiled?"""
    sources = [entry.path for folder in (SOURCES, os.path.join(TOP, "include", "muster")) for entry in os.scandir(folder)]
    return os.path.exists(path) and all(os.path.getmtime(path) >= os.path.getmtime(one) for one in [*sources, os.path.abspath(__file__)])


class Compilation:
    """One that is under way since this was made. It needs PyTorch's and Python's headers; link() also libmuster.so."""

    def __init__(self, *flags):
        without = "pip install ./python installs the package without it"
        if numbers(torch_version()) < numbers(oldest_version()):
            raise SystemExit(f"the backend for PyTorch needs {oldest_version()} or later, and this is {torch_version()}: {without}")
        compiler = os.environ.get("CXX", "c++")
        if not shutil.which(compiler):
            raise SystemExit(f"the backend for PyTorch needs a C++ compiler, and there is no {compiler}: {without}")
        handle, self.object = tempfile.mkstemp(prefix="muster-backend-", suffix=".o")
        os.close(handle)
        atexit.register(self.end)
        headers = os.path.join(torch_folder(), "include")
        command = [compiler, "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", *flags, f"-DTORCH_EXTENSION_NAME={module_name()}",
                   "-I" + os.path.join(TOP, "include")]
        for folder in (headers, os.path.join(headers, "torch", "csrc", "api", "include"), sysconfig.get_path("include")):
            command += ["-isystem", folder]
        self.process = self._start([*command, "-c", os.path.join(SOURCES, "process_group.cpp"), "-o", self.object])

    @staticmethod
    def _start(command):
        print(shlex.join(command), flush=True)
        return subprocess.Popen(command)

    def link(self, library_folder, target):
        """Waits, and publishes it whole: whoever imports it now is not to see half a file. Whoever does has loaded PyTorch before."""
        if self.process.wait():
            raise SystemExit("the backend for PyTorch cannot be compiled: the compiler's words are above")
        new = target + ".new"
        command = [self.process.args[0], "-shared", self.object, "-o", new, "-L" + os.path.join(torch_folder(), "lib"), "-ltorch_python", "-ltorch",
                   "-ltorch_cpu", "-lc10", "-L" + library_folder, "-lmuster", "-Wl,-rpath,$ORIGIN"]
        if self._start(command).wait():
            raise SystemExit("the backend for PyTorch cannot be linked: the linker's words are above")
        os.replace(new, target)
        self.end()

    def end(self):
        """Leaves nothing, also where nobody has linked it."""
        self.process.kill()
        self.process.wait()
        if os.path.exists(self.object):
            os.unlink(self.object)
