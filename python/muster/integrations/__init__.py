"""Stops in good order for programs of frameworks: when a node will be taken away, all ranks save after the same step and end.

`muster run --preempt-signal=...` (or a scheduler that Muster knows) asks the workers to stop; each rank sees that at another moment. The
callbacks here let all ranks agree at the end of a step, save by the framework's own means, and end with exit code 0. The launcher
then ends with 75, and the next start goes on from what was saved.

    muster.integrations.transformers.StopCallback      Trainer(..., callbacks=[StopCallback()])
    muster.integrations.lightning.StopCallback         Trainer(..., callbacks=[StopCallback("checkpoints/stop.ckpt")])
    muster.integrations.accelerate.should_stop         if should_stop(accelerator): accelerator.save_state(...); break
    muster.integrations.stop_agreed                    for a loop of one's own

Without a launcher that can ask, or before it does, all of them cost one short all_reduce a step; `every=10` makes that one in ten steps.
"""

from __future__ import annotations

from typing import Any, Optional

from .._stop import stop_requested

__all__ = ["stop_agreed"]


def _device_of(group: Any) -> str:
    """One whose tensors the group's calls take: the CPU, if it is one of them. Backends' names do not tell: NCCL has several."""
    kinds = [device.type for device in group._device_types]
    return "cpu" if "cpu" in kinds or not kinds else str(kinds[0])


def stop_agreed(group: Optional[Any] = None) -> bool:
    """Has any rank's launcher asked its workers to stop? All ranks of the group call this together, and get one answer.

    group: of torch.distributed; None: the default group, or this process alone where there is none.
    """
    import torch
    import torch.distributed as dist

    asked = stop_requested()
    if not (dist.is_available() and dist.is_initialized()):
        return asked
    flag = torch.tensor([int(asked)], device=_device_of(group or dist.group.WORLD))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return bool(flag.item())
