"""Builds the package: program and library by CMake, the version from include/muster/version.h, and a wheel that any Python 3 takes.

Where PyTorch is, the backend for it is built as well (extension.py); the wheel is then for one Python. In a checkout the sources are one folder
up; an sdist has them in native/.

  MUSTER_PACKAGE_BUILD=DIR   build there and keep it, so that the next build is quick (make wheel)
  MUSTER_PREBUILT=DIR        take muster and libmuster.so from that build folder, and compile nothing of them (tests, tools/build-wheels); and
                             every backend that tools/build-backend has left there, for this Python and of these sources
"""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from distutils.command.build_scripts import build_scripts  # isort: skip; that of setuptools, which is imported first

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import extension  # noqa: E402
from extension import TOP  # noqa: E402

PACKAGE_BUILD = os.environ.get("MUSTER_PACKAGE_BUILD")
PREBUILT = os.environ.get("MUSTER_PREBUILT")
# What the sdist takes along to compile program and library.
SOURCES = ["CMakeLists.txt", "LICENSE", "cmake", "include", "src"]


def version():
    with open(os.path.join(TOP, "include", "muster", "version.h"), encoding="utf-8") as header:
        return re.search(r'MUSTER_VERSION_TEXT "([^"]+)"', header.read()).group(1)


def native_folder():
    return os.path.abspath(os.path.join(PACKAGE_BUILD or os.path.join(HERE, "build"), "native"))


@functools.cache
def backends():
    """{name of the module: its file, which is made already, or None: it is to be compiled}."""
    made = extension.of_this_python(os.path.join(os.path.abspath(PREBUILT), "python", "muster")) if PREBUILT else {}
    found = {name: path for name, path in made.items() if extension.is_current(path)}
    if extension.torch_folder():
        found.setdefault(extension.module_name(), None)
    return found


@functools.cache
def compilation():
    """Of the backend for the PyTorch that is here, under way."""
    return extension.Compilation("-g0")


@functools.cache
def build_native():
    """Program and library, built; where they are. The backend is compiled beside them: each of the two takes a minute."""
    if None in backends().values():
        compilation()
    if PREBUILT:
        found = os.path.abspath(PREBUILT)
    else:
        found = native_folder()
        if not shutil.which("cmake"):
            sys.exit("muster-launch: its program and library are compiled here, and that needs a C compiler, CMake, pkg-config, and the "
                     "headers of libuv, jansson, xxHash, OpenSSL and libcurl (on Debian and Ubuntu: tools/setup build)")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        subprocess.run(["cmake", "-S", TOP, "-B", found, *generator, "-DMUSTER_PACKAGE=ON", "-DMUSTER_WERROR=OFF"], check=True)
        jobs = str(len(os.sched_getaffinity(0)))
        subprocess.run(["cmake", "--build", found, "--parallel", jobs, "--target", "muster", "libmuster_shared"], check=True)
    for name in ("muster", "libmuster.so"):
        if not os.path.isfile(os.path.join(found, name)):
            sys.exit(f"muster-launch: {os.path.join(found, name)} is missing")
    return found


def copy_stripped(source, target):
    """Without what only a debugger reads; the names that backtraces need stay."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)
    if shutil.which("strip") and machine_of(source) == platform.machine():
        subprocess.run(["strip", "--strip-debug", target], check=True)


# Of ELF's e_machine.
MACHINES = {62: "x86_64", 183: "aarch64"}


def machine_of(path):
    """Which machine a program or library is for; the one here if it is another than those two."""
    with open(path, "rb") as file:
        return MACHINES.get(int.from_bytes(file.read(20)[18:], "little"), platform.machine())


SYSTEM = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux")  # on every machine that has a C library


# From which version of GLIBCXX_3.4 on a manylinux tag allows it: the libstdc++ of the systems with that C library.
CXX_TAGS = ((19, (2, 26)), (24, (2, 31)), (28, (2, 34)), (29, (2, 35)))
# On machines that have PyTorch, which loads them.
PYTORCH = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libstdc++.so.6", "libgcc_s.so.1")


def needs(path):
    """The libraries that a file names besides those of the system, and the newest symbols of the C library that it uses."""
    dynamic = subprocess.check_output(["readelf", "--dynamic", "--wide", path], text=True)
    symbols = subprocess.check_output(["readelf", "--version-info", "--wide", path], text=True)
    libraries = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) if not name.startswith(SYSTEM)]
    newest = [tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)]
    compiler = max(map(int, re.findall(r"GLIBCXX_3\.4\.(\d+)", symbols)), default=0)
    newest += [glibc for glibcxx, glibc in CXX_TAGS if compiler > glibcxx]
    return libraries, max(newest, default=(2, 17))


def copy_libraries(path, folder):
    """What the library needs besides the system's goes beside it (it looks there first: cmake/package.cmake)."""
    where = dict(re.findall(r"(\S+) => (/\S+)", subprocess.check_output(["ldd", path], text=True)))
    copied = []
    for name in needs(path)[0]:
        copy_stripped(os.path.realpath(where[name]), os.path.join(folder, name))
        copied.append(os.path.join(folder, name))
    return copied


class BuildPackage(build_py):
    """The module, and libmuster.so in it."""

    def run(self):
        super().run()
        if not self.editable_mode:
            with open(os.path.join(self.build_lib, "muster", "_version.py"), "w", encoding="utf-8") as file:
                file.write(f'"""The version of this package."""\n\n__version__ = "{version()}"\n')
            folder = os.path.join(self.build_lib, "muster")
            library = os.path.realpath(os.path.join(build_native(), "libmuster.so"))
            copy_stripped(library, os.path.join(folder, "libmuster.so"))
            self.copied = [os.path.join(folder, "libmuster.so"), *([] if PREBUILT else copy_libraries(library, folder))]

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + getattr(self, "copied", [])


class BuildProgram(build_scripts):
    """The program itself as a script: pip installs it executable, and no Python comes between. (The usual command reads scripts as text.)"""

    def copy_scripts(self):
        target = os.path.join(self.build_dir, "muster")
        copy_stripped(os.path.join(build_native(), "muster"), target)
        return [target], [target]

    def get_source_files(self):
        return []


class BuildWheel(bdist_wheel):
    """Any Python 3, this kind of machine: manylinux where nothing but the C library is needed."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        python, abi, _ = super().get_tag()
        if self.distribution.ext_modules:
            return python, abi, self.platform_of_files(PYTORCH)
        return "py3", "none", self.platform_of_files()

    def platform_of_files(self, there=()):
        newest, inside, wanted, machine = (2, 17), set(there), set(), platform.machine()
        for folder, _, names in os.walk(self.bdist_dir or ""):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and (name == "muster" or ".so" in name):
                    machine = machine_of(path)
                    inside.add(name)
                    libraries, glibc = needs(path)
                    newest = max(newest, glibc)
                    wanted.update(libraries)
        if wanted - inside or inside == set(there):
            return f"linux_{machine}"
        return f"manylinux_{newest[0]}_{newest[1]}_{machine}"


class SourceArchive(sdist):
    """With the sources of program and library, in native/, and without their tests."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        target = os.path.join(base_dir, "native")
        for name in SOURCES:
            source = os.path.join(TOP, name)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(target, name), ignore=shutil.ignore_patterns("*_test.c", "*_test_support.[ch]"))
            else:
                os.makedirs(target, exist_ok=True)
                shutil.copyfile(source, os.path.join(target, name))


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class BuildBackends(build_ext):
    def build_extension(self, ext):
        made, target = backends()[ext.name.rpartition(".")[2]], self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if made:
            copy_stripped(made, target)
        else:
            compilation().link(build_native(), target)


def main():
    commands = {"build_py": BuildPackage, "build_ext": BuildBackends, "build_scripts": BuildProgram, "bdist_wheel": BuildWheel, "sdist": SourceArchive}
    options = {}
    if PACKAGE_BUILD:
        base = os.path.abspath(PACKAGE_BUILD)
        os.makedirs(base, exist_ok=True)
        options = {"build": {"build_base": base}, "egg_info": {"egg_base": base}}
    modules = [Extension(f"muster.{name}", [os.path.join("csrc", "process_group.cpp")]) for name in sorted(backends())]
    setup(version=version(), scripts=["muster-program"], cmdclass=commands, ext_modules=modules, distclass=Binary, options=options)


main()
