#!/usr/bin/env python3
# The programs of docs/snapshots.md: the C one builds, is killed and goes on; the Python one knows the sampler's order.
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LIBRARY = os.path.dirname(os.environ["MUSTER_BINARY"])
ORDERS = """
#include <stdio.h>
#include <stdlib.h>
#include <muster/sampler.h>
int main(int argc, char **argv) {
    struct muster_sampler_options options = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_sampler *sampler = NULL;
    uint64_t sample = 0;
    options.sample_count = strtoull(argv[1], NULL, 10);
    options.seed = strtoull(argv[2], NULL, 10);
    if (argc != 4 || muster_sampler_create(&options, &sampler) != 0) {
        return 1;
    }
    muster_sampler_set_epoch(sampler, strtoll(argv[3], NULL, 10));
    while (muster_sampler_take(sampler, &sample, 1) == 1) {
        printf("%llu ", (unsigned long long)sample);
    }
    muster_sampler_free(sampler);
    return 0;
}
"""


def build(folder, name, source):
    path = os.path.join(folder, name + ".c")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    program = os.path.join(folder, name)
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-I" + os.path.join(TOP, "include"),
                    "-o", program, path, "-L" + LIBRARY, "-Wl,-rpath," + LIBRARY, "-lmuster", "-lm"], check=True)
    return program


def check_program(folder, source):
    program = build(folder, "resume", source)
    whole = subprocess.run([program, os.path.join(folder, "whole")], stdout=subprocess.PIPE, check=True, text=True).stdout
    lines = whole.splitlines()
    assert len(lines) == 21 and lines[-1] == "weights 1.000 2.000 3.000 4.000", whole
    # Killed after some epoch's line, again and again; the numbers are those of the run that was left alone.
    again = os.path.join(folder, "again")
    for stop in (1, 6, 13):
        with subprocess.Popen(["stdbuf", "-oL", program, again], stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith(f"epoch {stop}:"):
                    process.kill()
                    break
    last = subprocess.run([program, again], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    assert last[0].startswith("going on after step "), last
    assert last[-1] == lines[-1] and set(last[2 if last[1].startswith("step") else 1:]) <= set(lines), (last, lines)


def check_order(folder, source):
    program, names = build(folder, "orders", ORDERS), {}
    exec(source, names)  # pylint: disable=exec-used
    for count, seed, epoch in [(1, 0, 0), (2, 5, 1), (10, 0, 0), (1000, 2**63 + 11, 7), (777, 1, 123456789)]:
        answer = subprocess.run([program, str(count), str(seed), str(epoch)], stdout=subprocess.PIPE, check=True, text=True)
        assert list(map(int, answer.stdout.split())) == names["order"](count, seed, epoch), (count, seed, epoch)


def main():
    for tool in (os.environ.get("CC", "cc"), "stdbuf"):
        if not shutil.which(tool):
            print(f"SKIP: {tool} is not installed")
            sys.exit(77)
    with open(os.path.join(TOP, "docs", "snapshots.md"), encoding="utf-8") as file:
        page = file.read()
    with tempfile.TemporaryDirectory(prefix="muster-page-") as folder:
        check_program(folder, re.search(r"```c\n(.*?)```", page, re.S).group(1))
        check_order(folder, re.search(r"```python\n(.*?)```", page, re.S).group(1))
    print("the programs of the page do what it says")


main()
