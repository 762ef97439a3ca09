"""For Lightning: Trainer(..., callbacks=[StopCallback("checkpoints/stop.ckpt")])."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback  # the package's older name

from . import stop_agreed

__all__ = ["StopCallback"]


class StopCallback(Callback):
    """After a batch at which all ranks agree to stop, the state of the training is saved to `path`, and fit() returns.

    `trainer.fit(model, ckpt_path=path)` goes on at the next start. `stopped` says whether this was so. every: ranks ask each other after so
    many batches.
    """

    def __init__(self, path: str, every: int = 1) -> None:
        self.path = path
        self.every = every
        self.stopped = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not self.stopped and (batch_idx + 1) % self.every == 0 and stop_agreed():
            self.stopped = True
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True
