#!/usr/bin/env python3
# What meets PyTorch, with the newest version of python/pytorch-versions, where `make torch-matrix` has made its environment before.
# waits: yes
"""Usage: test_newest_torch.py; MUSTER_BINARY names the program. Three rows of the matrix, which take minutes."""
import importlib.machinery
import importlib.util
import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(TOP, "tools", "torch-matrix")


def main():
    sys.dont_write_bytecode = True  # beside the tool
    loader = importlib.machinery.SourceFileLoader("torch_matrix", TOOL)
    matrix = importlib.util.module_from_spec(importlib.util.spec_from_loader("torch_matrix", loader))
    loader.exec_module(matrix)
    newest = matrix.versions_of_the_file()[-1]
    place = matrix.environment(newest)
    if not os.path.exists(os.path.join(place, "bin", "python")):
        print(f"SKIP: there is no PyTorch {newest} in {place} (make torch-matrix VERSIONS={newest} makes it)")
        sys.exit(77)
    os.environ["MUSTER_TEST_JOBS"] = "2"  # this is one test among others
    os.environ.pop("MUSTER_TEST_ALL", None)
    os.execv(sys.executable, [sys.executable, TOOL, "--only", "launcher,hook,record", newest])


main()
