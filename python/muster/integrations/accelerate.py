"""For Accelerate, whose loops are the program's own:

    for batch in loader:
        ...
        if should_stop(accelerator):
            accelerator.save_state("checkpoint")
            break
"""

from __future__ import annotations

from typing import Any

from . import stop_agreed

__all__ = ["should_stop"]


def should_stop(accelerator: Any, every: int = 1) -> bool:
    """Do all ranks agree to stop after this step? All of them ask, at the same place of their loop. every: only at each so many calls."""
    asked = getattr(accelerator, "_muster_asked", 0) + 1
    accelerator._muster_asked = asked
    return asked % every == 0 and stop_agreed()
