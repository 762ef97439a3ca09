"""A PyTorch worker with all that a fork could break: numpy's and OpenMP's threads, a data loader's processes, gloo.

    preload_busy.py CHANNEL ATTEMPTS

Stamps `work` when all of that has worked, and goes on with it until it is killed; from the ATTEMPTS-th attempt on it ends well.
"""

import os
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((64,), float(index)).sqrt()


def work(turn):
    size = 200
    product = numpy.ones((size, size)) @ numpy.ones((size, size))  # OpenBLAS's threads
    total = torch.ones(1 << 18).add(turn).sum()  # OpenMP's
    weights = torch.ones(size, size, requires_grad=True)
    (weights @ weights).sum().backward()  # autograd's
    loaded = torch.cat(list(DataLoader(Numbers(), batch_size=4, num_workers=1 if turn % 4 == 0 else 0))).sum()
    assert product[0, 0] == size and total.item() == (1 << 18) * (1 + turn) and weights.grad.sum().item() > 0 and loaded.item() > 0
    summed = torch.tensor([float(turn)])
    dist.all_reduce(summed)
    assert summed.item() == turn * dist.get_world_size()


def main():
    channel = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    turn = 0
    while True:
        work(turn)
        if turn == 0:
            os.write(channel, f"work ns={time.monotonic_ns()} pid={os.getpid()} rank={os.environ['RANK']} attempt={attempt}\n".encode())
        turn += 1
        if attempt >= int(sys.argv[2]):
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
