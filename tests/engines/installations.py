"""The libraries that tests/engines has: where they are, what their processes need, and what they leave behind."""

import contextlib
import functools
import glob
import os
import shutil
import subprocess
import sys
import time

# mpirun refuses root, and more processes than processors, until told otherwise. In containers processes may not read each other's
# memory. UCX warns of memory that a killed process has left.
QUIET = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
         "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
         "OMPI_MCA_btl_sm_single_copy_mechanism": "none", "UCX_LOG_LEVEL": "error"}
STARTERS = ("mpirun", "muster run")
# What MPIs name the memory that the processes of a host share, in /dev/shm.
SHARED_NAMES = ("mpich_shar_tmp*", "mpich_shm_*", "ucx_shm_posix_*", "vader_segment.*", "sm_segment.*", "psm2_shm.*", "osc_rdma.*", "osc_sm.*")


@functools.cache
def mpirun_input():
    """A standard input without bytes and without an end. MPICH's mpirun passes an end on to the host of the processes, and dies of
    SIGPIPE if they are through by then: one run in 300 of a short program."""
    return os.pipe()[0]  # the other end stays open for as long as this process lives


class Mpi:
    """variable: names the folder of an installation; package: its name and version at a registry; library: in its lib/."""

    def __init__(self, name, mpirun, variable=None, package=None, library=None):
        self.name, self.mpirun, self.variable, self.package, self.library = name, mpirun, variable, package, library
        self.command, self.variables = None, {}

    def find(self, environment):
        """None, or why it is not there. environment: a folder to install into."""
        if not self.variable:
            self.command = shutil.which(self.mpirun)
            return None if self.command else f"{self.mpirun} is not installed"
        folder = os.environ.get(self.variable) or self.install(environment)
        if not folder:
            return f"{self.variable} names no folder, and {'=='.join(self.package)} could not be installed"
        self.command = os.path.join(folder, "bin", "mpiexec")
        self.variables = {"MUSTER_MPI_LIBRARY": os.path.join(folder, "lib", self.library)}
        for path in (self.command, self.variables["MUSTER_MPI_LIBRARY"]):
            if not os.path.exists(path):
                return f"{path} is missing"
        return None if os.access(self.command, os.X_OK) else f"{self.command} is no program (chmod +x bin/*)"

    def install(self, environment):
        name, version = self.package
        target = os.path.join(environment, f"{name}-{version}")
        found = glob.glob(os.path.join(target, "**", "bin", "mpiexec"), recursive=True)
        if not found:
            subprocess.run([sys.executable, "-m", "venv", target], check=False, stdout=subprocess.DEVNULL)
            subprocess.run([os.path.join(target, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-deps", f"{name}=={version}"], check=False)
            found = glob.glob(os.path.join(target, "**", "bin", "mpiexec"), recursive=True)
        folders = [os.path.dirname(os.path.dirname(path)) for path in found]
        return next((folder for folder in folders if os.path.exists(os.path.join(folder, "lib", self.library))), None)


MPIS = (
    Mpi("Open MPI of the system", "mpirun.openmpi"),
    Mpi("MPICH of the system", "mpirun.mpich"),
    Mpi("Open MPI 5", None, "MUSTER_MPI5_OPENMPI", ("openmpi", "5.0.11"), "libmpi.so.40"),
    Mpi("MPICH 5", None, "MUSTER_MPI5_MPICH", ("mpich", "5.0.2"), "libmpi.so.12"),
    Mpi("MPICH 5 (standard ABI)", None, "MUSTER_MPI5_MPICH", ("mpich", "5.0.2"), "libmpi_abi.so.1"),
)


class NcclDouble:
    """A double of NCCL, on that of the CUDA driver, as the build makes them (src/comm/nccl/nccl_double_test_support.h); folder: below
    build/doubles. The tests fork the ranks themselves."""

    def __init__(self, version, folder):
        self.name, self.folder, self.variables = f"NCCL {version} (double)", folder, {}

    def find(self, build):
        """None, or why it is not there."""
        doubles = os.path.join(build, "doubles")
        self.variables = {"MUSTER_CUDA_LIBRARY": os.path.join(doubles, "libcuda.so.1"),
                          "MUSTER_NCCL_LIBRARY": os.path.join(doubles, self.folder, "libnccl.so.2")}
        return next((f"{path} is missing" for path in self.variables.values() if not os.path.exists(path)), None)


NCCL_DOUBLES = (NcclDouble("2.29", "."), NcclDouble("2.27", "nccl-2.27"), NcclDouble("2.18", "nccl-2.18"))


def why_no_starter(starter, build):
    """None: the starter is there."""
    if starter == "mpirun":
        return None
    text = subprocess.run([os.path.join(build, "muster"), "run", "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return None if "--mpi" in text.stdout else "this muster run has no --mpi"


def command_of(mpi, starter, build):
    """To which a number and a program are appended."""
    return f"{mpi.command} -n" if starter == "mpirun" else f"{build}/muster run --mpi --no-python --nproc-per-node"


def libraries_of(mpi, starter="mpirun"):
    """For mpi_failures: the library that a program of this MPI loads itself, and one of the other family, if its mpirun is there.
    (muster run starts programs of any MPI.)"""
    own, other, other_mpirun = ("libmpi.so.40", "libmpich.so.12", "mpirun.mpich") if mpi.name.startswith("Open") else (
        "libmpich.so.12", "libmpi.so.40", "mpirun.openmpi")
    found = {"MUSTER_TEST_OWN_MPI": mpi.variables.get("MUSTER_MPI_LIBRARY", own)}
    if starter == "mpirun" and shutil.which(other_mpirun):
        found["MUSTER_TEST_OTHER_MPI"] = other
    return found


def mapped_files():
    """What any living process has of /dev/shm."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            found.update(line.split()[5] for line in file if " /dev/shm/" in line)
    return found


def leftovers():
    return {path for name in SHARED_NAMES for path in glob.glob(os.path.join("/dev/shm", name))}


@contextlib.contextmanager
def leftovers_removed():
    """Killed processes leave their shared memory. What has come meanwhile, is this user's, and nobody has any more, is removed."""
    before = leftovers()
    try:
        yield
    finally:
        young_s, now_s, mapped = 2, time.time(), mapped_files()
        for path in leftovers() - before - mapped:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if status.st_uid == os.getuid() and now_s - status.st_mtime > young_s:
                    os.unlink(path)
