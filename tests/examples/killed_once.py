"""Runs a worker's script as if it had been started itself. In the first attempt rank 1 is killed after its backward pass number STEP:
STEP SCRIPT [ARGUMENT...]."""

import os
import runpy
import signal
import sys

from torch.optim import optimizer

step = int(sys.argv[1])
sys.argv = sys.argv[2:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
steps = 0


def kill_in_time(*_):
    global steps
    steps += 1
    if steps == step:
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    optimizer.register_optimizer_step_pre_hook(kill_in_time)
runpy.run_path(sys.argv[0], run_name="__main__")
