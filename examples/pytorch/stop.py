"""Is the job to stop before its end, because a node will be taken away? (muster run --preempt-signal, docs/schedulers.md)"""

import os

import torch
import torch.distributed as dist


def requested(device="cpu"):
    """All ranks ask together, at the end of a step, and get one answer: those that went on would wait for the others."""
    asked = torch.tensor([int(os.path.exists(os.environ.get("MUSTER_STOP_PATH", "")))], device=device)
    if dist.is_initialized():
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return bool(asked.item())
