"""What the training scripts share: the data, the model, the notes that tests/frameworks/run reads, and the death of rank 1.

Each script trains STEPS steps, in epochs of EPOCH steps, saves at the end of each epoch by its framework's own means, and goes on from
the newest save when it is started again. It calls step_done() after each step, and finished() at its end.
"""

import hashlib
import json
import os
import signal
import time

import torch
from torch import nn

STEPS, EPOCH, BATCH = 20, 5, 4  # BATCH samples a rank and step, on two ranks
KILL_AFTER = 12  # two steps past a save, which are lost
FOLDER = os.environ["FRAMEWORKS_FOLDER"]
CHECKPOINTS = os.path.join(FOLDER, "checkpoints")


def note(**what):
    """One line, in one write: all ranks of all attempts append to the same file."""
    line = json.dumps({"time": time.monotonic(), **what}) + "\n"
    file = os.open(os.path.join(FOLDER, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode())
    os.close(file)


def attempt():
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def step_done(step, rank=None):
    """step: how many the model has seen, over all attempts. Rank 1 dies here where it is to die."""
    rank = int(os.environ["RANK"]) if rank is None else rank
    note(step=step, rank=rank, attempt=attempt())
    if os.environ.get("FRAMEWORKS_KILL") == "1" and attempt() == 0 and rank == 1 and step == KILL_AFTER:
        note(killed=os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


def resumed(step, rank=None):
    """step: how many the state that was found has seen."""
    note(resumed=step, rank=int(os.environ["RANK"]) if rank is None else rank, attempt=attempt())


def finished(tensors, backend, rank=None):
    """tensors: the whole parameters, in the model's order (rank 0's count). backend: backend_of() what has added up the gradients."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    with open(f"/proc/{os.getppid()}/comm", encoding="ascii") as file:
        parent = file.read().strip()
    note(finished=digest.hexdigest(), rank=int(os.environ["RANK"]) if rank is None else rank, backend=backend, parent=parent)


def backend_of(group=None):
    """The class that moves the bytes: a program that asks for gloo may have got another one."""
    import torch.distributed as dist
    group = group or dist.distributed_c10d._get_default_group()
    return type(group._get_backend(torch.device("cpu"))).__name__


def dataset():
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(2 * BATCH * EPOCH, 16, generator=random)
    return torch.utils.data.TensorDataset(inputs, inputs @ torch.randn(16, 1, generator=random))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
