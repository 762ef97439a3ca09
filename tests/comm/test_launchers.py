#!/usr/bin/env python3
# One C worker under `muster run` and under torchrun (where it is installed): it works unchanged, and what becomes of a
# killed or a hanging rank stands in the survivors' sentences; under muster, in the summary, with every rank's last call.
# waits: yes
# torchruns are forks of a process that has imported PyTorch (tests/regress/forked.py).
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "regress"))
import forked  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
WORKER = os.path.join(os.path.dirname(BINARY), "tests", "comm", "comm_launched")
TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
LAUNCHERS = ["muster"]
if os.access(TORCHRUN, os.X_OK):
    LAUNCHERS.append("torchrun")
    TEMPLATE = forked.Template(sys.executable, TORCHRUN, (), dict(os.environ))
PATIENCE_S = 100


def launch(launcher, harm):
    arguments = ["--standalone", "--nproc-per-node=3", "--no-python", WORKER, harm]
    with tempfile.TemporaryDirectory() as folder:  # launchers leave the files of jobs that have failed
        environment = dict(os.environ, TMPDIR=folder)
        if launcher == "muster":
            done = subprocess.run([BINARY, "run", *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            return done.returncode, done.stdout + done.stderr
        with tempfile.TemporaryFile("w+", errors="replace") as output, open(os.devnull, encoding="utf-8") as nothing:
            child = forked.Child(TEMPLATE.address, {"arguments": arguments, "environment": environment, "folder": os.getcwd()}, (nothing, output, output))
            child.socket.settimeout(PATIENCE_S)
            code = child.exit_code()
            output.seek(0)
            return code, output.read()


def expect(launcher, harm, code, *texts):
    got, output = launch(launcher, harm)
    missing = [text for text in texts if text not in output]
    if got != code or missing:
        sys.exit(f"{launcher}, {harm}: exit code {got}, lacks {missing}\n{output}")


LAST = "last call : all_reduce of 1 float32, sum (call "
for name in LAUNCHERS:
    expect(name, "none", 0, "done 0 of 3", "done 1 of 3", "done 2 of 3")
    # The survivors may be told to stop by the launcher before they say so: it has seen the death as well.
    expect(name, "kill", 1, "exitcode  : -9")
    expect(name, "sleep", 1, "not done within 4.000 s; these ranks did not come: 1; rank 1 (pid ",
           "is alive; its last call was 20")
expect("muster", "kill", 1, LAST + "20 of group 'world.1:0'), finished")
expect("muster", "sleep", 1, LAST + "20 of group 'world.1:0'), finished", LAST + "21 of group 'world.1:0'), failed")
