#!/usr/bin/env python3
"""Trains a small convolutional network on MNIST with DistributedDataParallel, and survives the loss of a worker.

    muster run --standalone --nproc-per-node=2 --max-restarts=3 examples/pytorch/mnist_ddp.py
    torchrun   --standalone --nproc-per-node=2 --max-restarts=3 examples/pytorch/mnist_ddp.py

Data: the 5,000 real MNIST images of examples/data (4,000 to train on, 1,000 to test). With --data DIR, full MNIST: the
four IDX files (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; .gz or
not). torchvision.datasets.MNIST(ROOT, download=True) leaves them in ROOT/MNIST/raw.

--backend=muster adds the gradients up by Muster's process groups in place of gloo (docs/pytorch.md); nothing else differs. examples/mnist is the
same trainer in C.

Each epoch ends with a snapshot. A restarted worker group, of the same size or another, goes on from the last one: the
global batch size does not depend on the number of workers. All workers must see the snapshot's folder. Asked to stop, because a node
will be taken away, all workers do after the same epoch.
"""

import argparse
import gzip
import os
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import group
import snapshot
import stop

MEAN, DEVIATION = 0.1307, 0.3081  # of the pixels of full MNIST
DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")


class Net(nn.Module):
    """225,226 parameters. Shapes are (batch, channels, height, width)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)  # 28x28 -> 26x26
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3)  # 13x13 -> 11x11
        self.norm2 = nn.BatchNorm2d(64)
        self.dense1 = nn.Linear(1600, 128)  # 64 x 5x5
        self.dense2 = nn.Linear(128, 10)

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(images))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        x = functional.relu(self.dense1(x.flatten(1)))
        return self.dense2(x)


def as_dataset(pixels, labels):
    images = (torch.from_numpy(pixels.reshape(-1, 1, 28, 28)).float() / 255 - MEAN) / DEVIATION
    return TensorDataset(images, torch.from_numpy(labels).long())


def read_idx(folder, name, header_bytes):
    for path, opener in ((os.path.join(folder, name), open), (os.path.join(folder, name + ".gz"), gzip.open)):
        if os.path.exists(path):
            with opener(path, "rb") as file:
                return numpy.frombuffer(file.read(), numpy.uint8, offset=header_bytes).copy()
    sys.exit(f"mnist_ddp: {folder} has no {name} (or {name}.gz): see --help for where to get the four files")


def load_idx(folder):
    return tuple(as_dataset(read_idx(folder, f"{part}-images-idx3-ubyte", 16),
                            read_idx(folder, f"{part}-labels-idx1-ubyte", 8).astype(numpy.int64))
                 for part in ("train", "t10k"))


def train_epoch(model, optimizer, loader):
    """Mean loss of this worker's batches."""
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def test_accuracy(model, dataset, rank, world_size):
    """Fraction of the test images told right; each worker judges its share."""
    model.eval()
    images, labels = (tensor[rank::world_size] for tensor in dataset.tensors)
    right = torch.zeros(1)
    for start in range(0, len(labels), 500):
        right += (model.module(images[start:start + 500]).argmax(1) == labels[start:start + 500]).sum()
    dist.all_reduce(right)
    return right.item() / len(dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images a step, over all workers (default 64)")
    parser.add_argument("--lr", type=float, default=0.3, help="rate of Adadelta (default 0.3)")
    parser.add_argument("--snapshot", default="mnist_snapshot.pt", help="file to save to and to go on from")
    parser.add_argument("--data", metavar="DIR", default=DATA, help="folder with MNIST in IDX files (default: ours)")
    parser.add_argument("--backend", default="gloo", help="of torch.distributed: gloo (default), or muster where that is installed")
    args = parser.parse_args()

    group.join(args.backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    print(f"rank {rank} of {world_size}: pid {os.getpid()}, restart {attempt}", flush=True)

    train_set, test_set = load_idx(args.data)
    sampler = DistributedSampler(train_set, seed=0)
    loader = DataLoader(train_set, batch_size=max(1, args.batch // world_size), sampler=sampler)

    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    first_epoch, accuracy = 0, 0.0
    state = snapshot.load(args.snapshot)
    if state:
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, accuracy = state["epochs_done"], state["accuracy"]
    if rank == 0:
        begin = f"snapshot of epoch {first_epoch}" if state else "scratch"
        print(f"from {begin}: {len(train_set)} images to train on, {len(test_set)} to test", flush=True)

    is_to_stop = False
    for epoch in range(first_epoch, args.epochs):
        began = time.monotonic()
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader)
        accuracy = test_accuracy(model, test_set, rank, world_size)
        if rank == 0:
            snapshot.save({"epochs_done": epoch + 1, "accuracy": accuracy, "model": model.module.state_dict(),
                           "optimizer": optimizer.state_dict()}, args.snapshot)
            print(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}, test accuracy {100 * accuracy:.2f} %, "
                  f"{time.monotonic() - began:.1f} s, {world_size} worker{'s' if world_size > 1 else ''}", flush=True)
        is_to_stop = stop.requested()
        if is_to_stop:
            print(f"rank {rank}: asked to stop: stopping after epoch {epoch + 1}", flush=True)
            break
    del model, optimizer
    group.leave()
    if rank == 0 and not is_to_stop:
        print(f"final test accuracy: {100 * accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
