"""What the workers of test_launch.py run, by way of muster.launch or PyTorch's elastic_launch."""
import os
import signal
import sys


def where():
    """Under Muster workers have a socket of their agent's."""
    return "muster" if "MUSTER_HELD_SOCKET" in os.environ else "torch"


def multiply(x, text):
    return int(os.environ["RANK"]), where(), x * text, os.environ.get("OMP_NUM_THREADS")


def fails_at_one(text):
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    signal.pause()


def exits_at_one():
    if os.environ["RANK"] == "1":
        sys.exit(7)
    signal.pause()


def dies_once():
    if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def cannot_return():
    return lambda: 0
