"""Accelerate with DistributedDataParallel; with FRAMEWORKS_FSDP=1, with FSDP2 (fsdp_version=2)."""

import os

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, PartialState
from torch.utils.data import DataLoader

import common

is_sharded = os.environ.get("FRAMEWORKS_FSDP") == "1"
plugin = None
if is_sharded:
    # Accelerate chooses FSDP where it has found an accelerator, and never on a CPU. All that follows is its own code.
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000,
                                            state_dict_type="SHARDED_STATE_DICT", cpu_ram_efficient_loading=False)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
assert accelerator.is_fsdp2 == is_sharded
model = common.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(common.dataset(), batch_size=common.BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

done = 0
saves = sorted((int(name) for name in os.listdir(common.CHECKPOINTS) if name.isdigit()), reverse=True) if os.path.isdir(common.CHECKPOINTS) else []
if saves:
    done = saves[0]
    accelerator.load_state(os.path.join(common.CHECKPOINTS, str(done)))
    common.resumed(done)
while done < common.STEPS:
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        common.step_done(done)
    aside = os.path.join(common.CHECKPOINTS, f"{done}.part")
    accelerator.save_state(aside)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename(aside, os.path.join(common.CHECKPOINTS, str(done)))
backend = common.backend_of()
state = accelerator.get_state_dict(model)
common.finished(list(state.values()) if accelerator.is_main_process else [], backend)
accelerator.end_training()
