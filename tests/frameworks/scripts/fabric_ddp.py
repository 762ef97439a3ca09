"""Lightning Fabric with the strategy ddp, and its checkpoints."""

import os

import lightning
import torch
from torch.utils.data import DataLoader

import common

fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
if "LT_CLI_USED" not in os.environ:  # `fabric run` has done it, and refuses a second time
    fabric.launch()
model = common.model()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
loader = fabric.setup_dataloaders(DataLoader(common.dataset(), batch_size=common.BATCH))

state = {"model": model, "optimizer": optimizer, "done": 0}
saves = sorted(name for name in os.listdir(common.CHECKPOINTS) if name.endswith(".ckpt")) if os.path.isdir(common.CHECKPOINTS) else []
if saves:
    fabric.load(os.path.join(common.CHECKPOINTS, saves[-1]), state)
    common.resumed(state["done"])
while state["done"] < common.STEPS:
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        state["done"] += 1
        common.step_done(state["done"])
    fabric.save(os.path.join(common.CHECKPOINTS, f"{state['done']:03d}.ckpt"), state)
common.finished(model.parameters(), common.backend_of())
