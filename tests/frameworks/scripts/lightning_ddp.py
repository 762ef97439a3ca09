"""Lightning's Trainer with the strategy ddp, and its checkpoints."""

import glob
import logging
import os

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader

import common

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = common.model()

    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Notes(Callback):
    def on_train_start(self, trainer, module):
        if trainer.global_step:
            common.resumed(trainer.global_step)

    def on_train_batch_end(self, trainer, module, *_):
        common.step_done(trainer.global_step)

    def on_train_end(self, trainer, module):
        common.finished(module.parameters(), common.backend_of())


loader = DataLoader(common.dataset(), batch_size=common.BATCH)
saver = ModelCheckpoint(common.CHECKPOINTS, filename="{epoch:02d}", save_top_k=-1, every_n_epochs=1)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=common.STEPS // common.EPOCH, logger=False, callbacks=[saver, Notes()],
                            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=True)
saves = sorted(glob.glob(os.path.join(common.CHECKPOINTS, "*.ckpt")))
trainer.fit(Module(), loader, ckpt_path=saves[-1] if saves else None)
