#!/usr/bin/env python3
# Every call of libmuster's MPI shims (tests/engines/mpi_check.c) with real MPIs: those of the system, and newer ones in folders
# with bin/mpiexec and lib/, which MUSTER_MPI5_OPENMPI (Open MPI 5) and MUSTER_MPI5_MPICH (MPICH 5) name.
import os
import re
import shutil
import subprocess
import sys

import installations

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cases  # noqa: E402

CHECK = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "tests", "engines", "mpi_check")
LEVELS = {"single": "0", "funneled": "1", "serialized": "2", "multiple": "3"}


def run(command, code=0, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "MUSTER_MPI_LIBRARY"}
    environment.update(installations.QUIET, OMP_NUM_THREADS="1", **variables)
    done = subprocess.run(command, env=environment, stdin=installations.mpirun_input(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == (code == 0), f"{command} {variables}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def check(starter, ranks, version, abi, level="serialized", **variables):
    text = run([starter, "-n", str(ranks), CHECK, LEVELS[level]], **variables)
    done = sorted(re.findall(r"done (\d) of (\d): ", text))
    assert done == [(str(rank), str(ranks)) for rank in range(ranks)], text
    for line in re.findall("done .*", text):
        assert re.search(rf"done . of .: {version}, {abi}, MPI \d\.\d, ", line), f"not {version}, {abi}: {line}"
    return text


def check_installation(starter, version, abi, **variables):
    for ranks in (2, 4):
        if cases.wanted(f"{ranks}_ranks_of_{abi.replace(' ', '_')}"):
            print(check(starter, ranks, version, abi, **variables).splitlines()[-1], flush=True)
    for level in LEVELS:
        if level != "serialized":  # it has been that
            check(starter, 2, version, abi, level, **variables)


def of_system(starter, version, abi):
    """Found without help: by who has started the ranks."""
    path = shutil.which(starter)
    if not path:
        return f"{starter} is not installed"
    check_installation(path, version, abi)
    # The program has loaded it already, for all to see.
    library = os.path.realpath(re.search(r"(/\S*libmpi\S*)$", check(path, 2, version, abi), re.M).group(1))
    assert library in check(path, 2, version, abi, LD_PRELOAD=library)
    return None


def of_folder(variable, libraries):
    folder = os.environ.get(variable)
    if not folder:
        return f"{variable} names no folder with bin/mpiexec and lib/"
    starter = os.path.join(folder, "bin", "mpiexec")
    assert os.access(starter, os.X_OK), f"{starter} is no program (what unpacks a wheel may not set its mode: chmod +x bin/*)"
    for name, version, abi in libraries:
        path = os.path.join(folder, "lib", name)
        check_installation(starter, version, abi, MUSTER_MPI_LIBRARY=path)
        # By its name, where the loader finds it; MPICH's own ABI goes before the standard's.
        if name != "libmpi_abi.so.1":
            text = check(starter, 2, version, abi, LD_LIBRARY_PATH=os.path.dirname(path))
            assert path in text, f"{path} was not taken: {text}"
    return None


def two_at_once():
    """A program that has loaded one and is told to take another."""
    library = shutil.which("mpirun.openmpi") and shutil.which("mpirun.mpich") and "libmpi.so.40"
    if not library:
        return "not installed, both: mpirun.openmpi, mpirun.mpich"
    text = run([CHECK], code=1, LD_PRELOAD=library, MUSTER_MPI_LIBRARY="libmpich.so.12")
    assert "MUSTER_MPI_LIBRARY=libmpich.so.12: the program has loaded another MPI already" in text, text
    return None


CASES = {
    "Open MPI of the system": lambda: of_system("mpirun.openmpi", r"Open MPI v[\d.]+", "Open MPI"),
    "MPICH of the system": lambda: of_system("mpirun.mpich", r"MPICH [\d.]+", "MPICH"),
    "Open MPI 5": lambda: of_folder("MUSTER_MPI5_OPENMPI", [("libmpi.so.40", r"Open MPI v5[\d.]+", "Open MPI")]),
    "MPICH 5": lambda: of_folder("MUSTER_MPI5_MPICH", [("libmpi.so.12", r"MPICH 5[\d.]+", "MPICH"),
                                                       ("libmpi_abi.so.1", r"MPICH 5[\d.]+", "standard")]),
    "two MPIs in one process": two_at_once,
}
if not os.path.exists(CHECK):
    print(f"SKIP: {CHECK} is not built")
    sys.exit(77)
skipped = {}
for case, function in CASES.items():
    reason = function()
    if reason:
        skipped[case] = reason
        print(f"SKIPPED {case}: {reason}", flush=True)
    else:
        print(f"ok {case}", flush=True)
if len(skipped) == len(CASES):
    print("SKIP: no MPI to test with")
    sys.exit(77)
