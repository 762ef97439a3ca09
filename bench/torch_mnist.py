"""A worker that trains MNIST as examples/pytorch/mnist_ddp.py does, and prints a line for each epoch.

    torch_mnist.py EPOCHS

Line of rank 0: images a second (training alone, over all workers), loss, test accuracy in percent. At the end: its peak
memory in MiB.
"""

import os
import resource
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "pytorch"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

import group  # noqa: E402
import mnist_ddp  # noqa: E402


class Alone(torch.nn.Module):
    """A model that is wrapped in nothing: one process needs no DistributedDataParallel, and is faster without."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, images):
        return self.module(images)


def main():
    epochs = int(sys.argv[1])
    group.join("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, test_set = mnist_ddp.load_idx(mnist_ddp.DATA)
    sampler = DistributedSampler(train_set, seed=0)
    loader = DataLoader(train_set, batch_size=64 // world_size, sampler=sampler)
    torch.manual_seed(0)
    model = DistributedDataParallel(mnist_ddp.Net()) if world_size > 1 else Alone(mnist_ddp.Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        dist.barrier()
        began = time.monotonic()
        loss = mnist_ddp.train_epoch(model, optimizer, loader)
        duration = time.monotonic() - began
        accuracy = 100 * mnist_ddp.test_accuracy(model, test_set, rank, world_size)
        if rank == 0:
            print(f"epoch {len(train_set) / duration:.0f} {loss:.4f} {accuracy:.2f}", flush=True)
    del model, optimizer
    group.leave()
    if rank == 0:
        print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)


if __name__ == "__main__":
    main()
