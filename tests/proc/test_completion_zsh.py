#!/usr/bin/env python3
# The zsh completion offers what is right at each place of the line, in a real zsh on a terminal.
import os
import pty
import re
import select
import shutil
import sys
import tempfile
import time

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "completion")
PATIENCE_S = 30
# (the line before TAB; words that must then be on the screen)
CASES = [
    ("muster ", "run store completion help version"),
    ("muster run --nproc", "--nproc-per-node= auto cpu gpu"),
    ("muster run --numa-binding ", "node socket exclusive core-complex"),
    ("muster run --start-method=", "spawn fork forkserver"),
    ("muster run --sta", "--standalone --start-method"),
    ("muster run --rdzv-b", "--rdzv-backend="),
    ("muster run --standalone tr", "train.py"),
    ("muster run --standalone train.py fol", "folder/"),
    ("torchrun --max", "--max-restarts="),
    ("muster store --p", "--port="),
    ("muster completion ", "bash zsh"),
]


class Shell:
    """An interactive zsh with nothing but our completion."""

    def __init__(self, home):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "TERM": "dumb", "COLUMNS": "200"}
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        setup = f"PS1=; LISTMAX=1000; fpath=({os.path.abspath(FOLDER)} $fpath); autoload -Uz compinit; compinit -u -D"
        self.run(setup)

    def run(self, command):
        """Returns when it has ended."""
        self.type(f"{command}; print re''ady\n")
        if not self.shows(["ready"]):
            raise AssertionError(f"zsh does not end {command!r}: {self.screen!r}")

    def leave_line(self):
        """An interrupt would take along what is typed behind it."""
        os.write(self.fd, b"\x15")
        self.run(":")

    def type(self, text):
        self.screen = ""
        os.write(self.fd, text.encode())

    def shows(self, words):
        """Whether all words come onto the screen before the patience ends."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self.screen for word in words):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                return False
            try:
                text = os.read(self.fd, 65536).decode(errors="replace")
            except OSError:
                return False
            self.screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        return True

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def main():
    if not shutil.which("zsh"):
        print("SKIP: no zsh")
        return 77
    failures = 0
    with tempfile.TemporaryDirectory() as home:
        os.mkdir(os.path.join(home, "folder"))
        with open(os.path.join(home, "train.py"), "w", encoding="utf-8"):
            pass
        shell = Shell(home)  # one for all: it takes longer to start than to complete
        try:
            for line, wanted in CASES:
                shell.type(line + "\t\t")
                if not shell.shows(wanted.split()):
                    failures += 1
                    print(f"{line!r}: {wanted!r} is not on the screen: {shell.screen!r}")
                shell.leave_line()
        finally:
            shell.close()
    print(f"{len(CASES)} places, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
