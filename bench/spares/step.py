"""A worker of bench/spares/run: imports PyTorch, takes one step, stamps it, and waits to be ended: step.py CHANNEL"""

import os
import signal
import sys
import time

import torch

weights = torch.ones(64, 64, requires_grad=True)
(weights @ weights).sum().backward()
line = f"step ns={time.monotonic_ns()} pid={os.getpid()} rank={os.environ['RANK']} world={os.environ['WORLD_SIZE']}\n"
os.write(os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC), line.encode())
signal.pause()
