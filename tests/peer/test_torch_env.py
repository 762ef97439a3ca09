#!/usr/bin/env python3
# tools/torch-env: what it refuses to touch, what it takes as it is, and that it says why. (It makes an environment in `make torch-matrix`.)
"""Usage: test_torch_env.py [CASE ...]. Nothing is fetched."""
import os
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests"))
import cases  # noqa: E402


def torch_env(*arguments):
    done = subprocess.run([sys.executable, os.path.join(TOP, "tools", "torch-env"), *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check(got, code, text):
    if got[0] != code or text not in got[1]:
        sys.exit(f"exit code {got[0]} instead of {code}, or not '{text}': {got[1]}")


def environment(folder, note):
    with open(os.path.join(folder, "torch-env"), "w", encoding="ascii") as file:
        file.write(note)


def words_are_checked():
    check(torch_env("--help"), 0, "VERSION FOLDER")
    check(torch_env("2.15.0"), 1, "VERSION FOLDER")
    check(torch_env("2.15", "somewhere"), 1, "such as 2.15.0")


def an_environment_of_the_version_is_taken():
    with tempfile.TemporaryDirectory() as folder:
        environment(folder, "2.15.0 numpy\n")
        check(torch_env("2.15.0", folder), 0, "has PyTorch 2.15.0 already")
        check(torch_env("2.15.0", folder, "numpy"), 0, "has PyTorch 2.15.0 already")


def others_are_refused():
    with tempfile.TemporaryDirectory() as folder:
        environment(folder, "2.14.1\n")
        check(torch_env("2.15.0", folder), 1, "has PyTorch 2.14.1: name another folder")
        check(torch_env("2.15.0", os.path.join(folder, "torch-env")), 1, "is not an environment of this tool's")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "thesis"), "w", encoding="ascii"):
            pass
        check(torch_env("2.15.0", folder), 1, "is not an environment of this tool's")
        if os.listdir(folder) != ["thesis"]:
            sys.exit(f"{os.listdir(folder)}")


cases.run([words_are_checked, an_environment_of_the_version_is_taken, others_are_refused])
