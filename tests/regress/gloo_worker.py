"""A PyTorch worker: forms a gloo group, checks one all-reduce, stamps `formed`, then waits to be told.

    gloo_worker.py CHANNEL

Signals as in bench's stamp_worker: SIGTERM and its like are stamped and kill it, SIGRTMIN+n makes it exit with n.
"""

import os
import signal
import sys
import time

START_NS = time.monotonic_ns()
WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT} | set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
CHANNEL = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]


def stamp(name, when_ns, more=""):
    line = f"{name} ns={when_ns} pid={os.getpid()} rank={os.environ['RANK']} attempt={ATTEMPT}{more}\n"
    os.write(CHANNEL, line.encode())


def form():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    world = dist.get_world_size()
    if int(total.item()) != world * (world + 1) // 2:
        sys.exit(f"all_reduce of {world} ranks gave {total.item()}")
    stamp("formed", time.monotonic_ns(), f" world={world}")


def obey():
    while True:
        number = signal.sigwait(WATCHED)
        if number >= signal.SIGRTMIN:
            stamp("exit", time.monotonic_ns())
            os._exit(number - signal.SIGRTMIN)
        stamp("signal", time.monotonic_ns(), f" signo={int(number)}")
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    stamp("start", START_NS, f" world={os.environ['WORLD_SIZE']} group={os.environ['GROUP_RANK']}")
    # While torch is imported and the group formed, the default actions stand: a worker can be stopped at any time.
    form()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    stamp("ready", time.monotonic_ns())
    obey()
