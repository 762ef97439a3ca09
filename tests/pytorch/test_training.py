# needs: torch
"""Training on the backend "muster" beside gloo, from the same weights on the same data: DDP, with accumulation and uneven inputs; FSDP2 and
HSDP; a DTensor product; checkpoints of torch.distributed.checkpoint that go from one to the other. Losses are equal to rounding, and two runs
on muster have the same bits. MUSTER_TEST_STEPS: steps of each run (40)."""

import os
import tempfile

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("MUSTER_TEST_STEPS", "40"))


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 20), nn.Tanh(), nn.Linear(20, 4))


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 16, generator=generator)
    return inputs, inputs[:, :4].sin() + 0.1 * rank


def train(model, optimizer, rank, accumulate=1, steps=STEPS):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            inputs, targets = batch(step * accumulate + part, rank)
            loss = nn.functional.mse_loss(model(inputs).float(), targets)  # PyTorch 2.10 has no gradient for two types
            if part + 1 < accumulate:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def ddp(rank, size):
    model = DistributedDataParallel(network())
    return train(model, adam(model), rank)


def accumulated(rank, size):
    model = DistributedDataParallel(network())
    return train(model, adam(model), rank, accumulate=3, steps=STEPS // 3)


def uneven(rank, size):
    model = DistributedDataParallel(network())
    optimizer = adam(model)
    with model.join():
        return train(model, optimizer, rank, steps=STEPS - STEPS // 10 * rank)


def fsdp(rank, size):
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return train(model, adam(model), rank)


def fsdp_in_our_memory(rank, size):
    model = network()
    fully_shard(model[0])
    fully_shard(model)
    model.set_allocate_memory_from_process_group_for_comm(True)
    model[0].set_allocate_memory_from_process_group_for_comm(True)
    return train(model, adam(model), rank)


def fsdp_mixed(rank, size):
    model = network()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy)
    return train(model, adam(model), rank, steps=min(30, STEPS))


def hsdp(rank, size):
    model = network()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    return train(model, adam(model), rank)


def product(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    left, right = torch.randn(12, 8), torch.randn(8, 20)
    whole = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    assert torch.allclose(whole.full_tensor(), left @ right, atol=1e-5)
    columns = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(right, mesh, [Shard(1)])
    return whole.full_tensor().flatten().tolist() + columns.full_tensor().flatten().tolist()


def compare(function, size, tolerance=1e-5):
    first, second = ranks.run(size, function), ranks.run(size, function)
    assert first == second, "two runs on muster differ"
    peer = ranks.run(size, function, backend="gloo")
    for ours, theirs in zip(first, peer):
        assert len(ours) == len(theirs)
        worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs))
        assert worst < tolerance, (function.__name__, worst)
    print(f"{function.__name__}: {size} ranks, last loss {first[0][-1]:.6f}", flush=True)


def test_ddp():
    compare(ddp, 2)


def test_ddp_of_four():
    compare(ddp, 4)


def test_accumulation():
    compare(accumulated, 2)


def test_uneven_inputs():
    compare(uneven, 2)


def test_fsdp2():
    compare(fsdp, 2)


def test_fsdp2_of_three():
    compare(fsdp, 3)


def test_fsdp2_in_mixed_precision():
    compare(fsdp_mixed, 2, tolerance=1e-3)


def ours_alone(function, size):
    first, second = ranks.run(size, function), ranks.run(size, fsdp)
    for a, b in zip(first, second):
        assert max(abs(x - y) for x, y in zip(a, b)) < 1e-5


def test_fsdp2_in_memory_of_the_group():
    ours_alone(fsdp_in_our_memory, 2)


def test_hsdp():
    compare(hsdp, 4)


def test_dtensor():
    compare(product, 2)


def test_dtensor_of_four():
    compare(product, 4)


def save(rank, size):
    model = network()
    fully_shard(model)
    train(model, adam(model), rank, steps=5)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=os.environ["FOLDER"])
    return [p.full_tensor().sum().item() for p in model.parameters()]


def load(rank, size):
    model = network()
    fully_shard(model)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=os.environ["FOLDER"])
    set_model_state_dict(model, state["model"])
    return [p.full_tensor().sum().item() for p in model.parameters()]


def saved_by_one(saver, loader):
    with tempfile.TemporaryDirectory(prefix="muster-dcp-") as folder:
        os.environ["FOLDER"] = folder
        saved = ranks.run(2, save, backend=saver)
        loaded = ranks.run(3 if loader == "muster" else 2, load, backend=loader)
        assert all(abs(a - b) < 1e-5 for a, b in zip(saved[0], loaded[0])), (saved, loaded)


def test_checkpoints_go_to_gloo():
    saved_by_one("muster", "gloo")


def test_checkpoints_come_from_gloo():
    saved_by_one("gloo", "muster")


def test_checkpoints_stay_here():
    saved_by_one("muster", "muster")


if __name__ == "__main__":
    ranks.main(globals())
