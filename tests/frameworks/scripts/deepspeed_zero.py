"""DeepSpeed's ZeRO, of the stage that FRAMEWORKS_STAGE says."""

import os

import deepspeed
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import common

settings = {
    "train_micro_batch_size_per_gpu": common.BATCH,
    "zero_optimization": {"stage": int(os.environ["FRAMEWORKS_STAGE"])},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
}
deepspeed.init_distributed(dist_backend=os.environ.get("FRAMEWORKS_BACKEND"))
engine, _, _, _ = deepspeed.initialize(model=common.model(), config=settings)
loader = DataLoader(common.dataset(), batch_size=common.BATCH, sampler=DistributedSampler(common.dataset(), shuffle=False))

done = 0
if os.path.exists(os.path.join(common.CHECKPOINTS, "latest")):
    _, state = engine.load_checkpoint(common.CHECKPOINTS)
    done = state["done"]
    common.resumed(done)
while done < common.STEPS:
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        done += 1
        common.step_done(done)
    engine.save_checkpoint(common.CHECKPOINTS, tag=str(done), client_state={"done": done})
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    common.finished(engine.module.parameters(), common.backend_of())
deepspeed.comm.destroy_process_group()
