"""A worker that saves and loads as many bytes as checkpoint_bench.c, with torch.save and torch.distributed.checkpoint.

    torch_checkpoint.py MIB FOLDER

Every rank has its share of each tensor (a DTensor, sharded over all ranks). torch.save: each rank writes its share to a file of its own,
and syncs it. Line of rank 0, in milliseconds: torch.save, torch.load from the disk and again from the cache, DCP save, DCP load from the disk
and again.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

TENSORS = 8


def measure(call):
    dist.barrier()
    begin = time.monotonic()
    call()
    took = torch.tensor([time.monotonic() - begin], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return took.item() * 1e3


def forget_cache(folder):
    """The next read comes from the disk."""
    dist.barrier()
    for name in os.listdir(folder):
        file = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def main():
    mib, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    count = (mib << 20) // size // TENSORS // 4

    def make(fill):
        return {f"layer{i}": DTensor.from_local(fill(count), mesh, [Shard(0)]) for i in range(TENSORS)}

    state = make(lambda n: torch.arange(n, dtype=torch.float32) + rank)
    alone = {name: value.to_local() for name, value in state.items()}
    own, shared = os.path.join(folder, "alone"), os.path.join(folder, "dcp")
    os.makedirs(own, exist_ok=True)
    path = os.path.join(own, f"rank{rank}.pt")

    def save():
        with open(path, "wb") as file:
            torch.save(alone, file)
            file.flush()
            os.fsync(file.fileno())

    def load():
        assert torch.equal(torch.load(path)["layer0"][:9], alone["layer0"][:9])

    def load_shared():
        target = make(lambda n: torch.empty(n, dtype=torch.float32))
        dcp.load(target, checkpoint_id=shared)
        assert torch.equal(target["layer0"].to_local()[:9], alone["layer0"][:9])

    results = [measure(save)]
    forget_cache(own)
    results += [measure(load), measure(load)]
    results.append(measure(lambda: dcp.save(state, checkpoint_id=shared)))
    forget_cache(shared)
    results += [measure(load_shared), measure(load_shared)]
    if rank == 0:
        print(" ".join(f"{value:.1f}" for value in results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
