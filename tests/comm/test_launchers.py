#!/usr/bin/env python3
# One C worker under `muster run` and under torchrun (where it is installed): it works unchanged, and what becomes of a
# killed or a hanging rank stands in the survivors' sentences; under muster, in the summary, with every rank's last call.
# waits: yes
import os
import subprocess
import sys
import tempfile

BINARY = os.environ["MUSTER_BINARY"]
WORKER = os.path.join(os.path.dirname(BINARY), "tests", "comm", "comm_launched")
TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
LAUNCHERS = {"muster": [BINARY, "run", "--standalone"]}
if os.access(TORCHRUN, os.X_OK):
    LAUNCHERS["torchrun"] = [TORCHRUN, "--standalone"]


def launch(launcher, harm):
    with tempfile.TemporaryDirectory() as folder:  # launchers leave the files of jobs that have failed
        done = subprocess.run([*LAUNCHERS[launcher], "--nproc-per-node=3", "--no-python", WORKER, harm],
                              env=dict(os.environ, TMPDIR=folder), capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


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
