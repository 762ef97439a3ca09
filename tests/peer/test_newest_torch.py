#!/usr/bin/env python3
# What meets PyTorch, with the newest version of python/pytorch-versions, where `make torch-matrix` has made its environment before.
# waits: yes
"""Usage: test_newest_torch.py; MUSTER_BINARY names the program. Three rows of the matrix, which take minutes."""
import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tools"))
import torch_versions  # noqa: E402


def main():
    newest = torch_versions.tested()[-1]
    place = torch_versions.environment(newest)
    if not os.path.exists(torch_versions.interpreter(place)):
        print(f"SKIP: there is no PyTorch {newest} in {place} (make torch-matrix VERSIONS={newest} makes it)")
        sys.exit(77)
    os.environ["MUSTER_TEST_JOBS"] = "2"  # this is one test among others
    os.environ.pop("MUSTER_TEST_ALL", None)
    os.execv(sys.executable, [sys.executable, os.path.join(TOP, "tools", "torch-matrix"), "--only", "launcher,hook,record", newest])


main()
