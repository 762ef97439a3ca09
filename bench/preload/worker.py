"""A worker of bench/preload/run: stamps its first line, imports PyTorch, meets the others, takes a step, and waits: worker.py CHANNEL"""

import os
import signal
import sys
import time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # waited for below, whenever it comes
channel = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)


def stamp(name):
    line = f"{name} ns={time.monotonic_ns()} pid={os.getpid()} rank={os.environ['RANK']} attempt={os.environ['TORCHELASTIC_RESTART_COUNT']}\n"
    os.write(channel, line.encode())


stamp("line")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo")
dist.barrier()
stamp("met")
signal.sigwait({signal.SIGUSR1})  # the memory of a worker that idles is measured here
weights = torch.ones(256, 256, requires_grad=True)
(weights @ weights).sum().backward()
dist.all_reduce(weights.grad)
stamp("step")
while True:
    signal.pause()
