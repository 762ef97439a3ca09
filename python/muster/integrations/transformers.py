"""For Hugging Face's Trainer: Trainer(..., callbacks=[StopCallback()])."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from . import stop_agreed

__all__ = ["StopCallback"]


class StopCallback(TrainerCallback):
    """After a step at which all ranks agree to stop, Trainer saves a checkpoint as it always does, and train() returns.

    The program then ends as usual; `trainer.train(resume_from_checkpoint=True)` goes on at the next start. `stopped` says whether this was so.
    every: ranks ask each other after so many steps.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step % self.every == 0 and stop_agreed():
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True
        return control
