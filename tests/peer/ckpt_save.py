"""A rank of three that saves distributed checkpoints as PyTorch's users do, and what they should be read as, whole."""
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def whole(name, state):
    if dist.get_rank() == 0:
        torch.save(state, f"{name}.whole.pt")


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    torch.manual_seed(0)
    # Two rows on three ranks: one rank has nothing of the last layer.
    model = torch.nn.Sequential(torch.nn.Linear(50, 70), torch.nn.Linear(70, 2))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 50)).sum().backward()
    optimizer.step()
    states, optimizers = get_state_dict(model, optimizer)
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole_states, whole_optimizers = get_state_dict(model, optimizer, options=full)

    dcp.save(states, checkpoint_id="fsdp")
    whole("fsdp", whole_states)
    lists = [torch.ones(2), {"a": torch.zeros(1)}]
    dcp.async_save({"model": states, "optim": optimizers, "step": torch.tensor(4), "epoch": 7, "lists": lists},
                   checkpoint_id="async").result()
    whole("async", {"model": whole_states, "optim": whole_optimizers, "step": torch.tensor(4), "lists": lists})

    mesh = init_device_mesh("cpu", (3,))
    values = torch.arange(28.0).reshape(4, 7)
    dcp.save({"t": distribute_tensor(values, mesh, [Shard(1)]), "u": torch.arange(3, dtype=torch.bfloat16)},
             checkpoint_id="columns")
    whole("columns", {"t": values, "u": torch.arange(3, dtype=torch.bfloat16)})

    # Large enough for several blocks, cut along its second dimension.
    large = torch.arange(3000 * 1500).reshape(3000, 1500)
    dcp.save({"large": distribute_tensor(large, mesh, [Shard(1)]), "copy": distribute_tensor(values, mesh, [Replicate()])},
             checkpoint_id="two")
    whole("two", {"large": large, "copy": values})
    dist.destroy_process_group()
