"""The cases of a test in Python: functions that run one after the other, a line each.

MUSTER_TEST_EXCEPT names files, with ':' between them, of lines "PROGRAM CASE  # why", PROGRAM being the script's name without .py:
tests/tiers, which says what `make test` leaves to `make test-all`. (base/testing/parts_test_support.h does the same for programs in C.)
"""

import os
import sys

PROGRAM = os.path.splitext(os.path.basename(sys.argv[0]))[0]


def _left_out():
    found = {}
    for path in filter(None, os.environ.get("MUSTER_TEST_EXCEPT", "").split(":")):
        with open(path, encoding="utf-8") as file:
            for line in file:
                words, _, reason = line.partition("#")
                if words.split()[:1] == [PROGRAM] and len(words.split()) == 2:
                    found[words.split()[1]] = reason.strip()
    return found


LEFT_OUT = _left_out()


def wanted(name):
    """Is this part of the test to be played?"""
    if name in LEFT_OUT:
        print(f"[ EXCEPTED ] {name}: {LEFT_OUT[name]}", flush=True)
    return name not in LEFT_OUT


def chosen(functions):
    """Those of them that are named on the command line, by default all that are not left out."""
    return [function for function in functions
            if function.__name__ in sys.argv[1:] or (not sys.argv[1:] and wanted(function.__name__))]


def run(functions):
    """One after the other."""
    for function in chosen(functions):
        function()
        print(f"ok {function.__name__}", flush=True)
