#!/usr/bin/env python3
# The program of docs/deterministic-world.md builds, and prints the same number in every world.
import os
import re
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MUSTER = os.environ["MUSTER_BINARY"]
LIBRARY = os.path.dirname(MUSTER)


def main():
    with open(os.path.join(TOP, "docs", "deterministic-world.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```c\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    (source,) = [block for block in blocks if "int main(" in block]
    with tempfile.TemporaryDirectory() as folder:
        program, path = os.path.join(folder, "world"), os.path.join(folder, "world.c")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-I" + os.path.join(TOP, "include"),
                        "-o", program, path, "-L" + LIBRARY, "-Wl,-rpath," + LIBRARY, "-lmuster"], check=True)
        printed = [subprocess.run([MUSTER, "run", "--standalone", f"--nproc-per-node={ranks}", "--no-python", program],
                                  stdout=subprocess.PIPE, check=True, text=True, timeout=100).stdout for ranks in range(1, 9)]
    assert re.fullmatch(r"0x1\.[0-9a-f]+p[+-]\d+\n", printed[0]), printed
    assert all(line == printed[0] for line in printed), printed
    print("ok every world prints the same number")
    return 0


if __name__ == "__main__":
    sys.exit(main())
