#!/usr/bin/env python3
"""The toy trainer of PyTorch's fault-tolerance tutorial, written anew: TOTAL_EPOCHS SAVE_EVERY.

    muster run --standalone --nproc-per-node=2 --max-restarts=3 examples/pytorch/multigpu_torchrun.py 50 10

A linear model learns a fixed linear function of 2,048 random vectors. Runs on the GPU of its local rank over NCCL
where there are enough GPUs, else on the CPU over gloo or --backend. Started again, it goes on after the last saved epoch. Asked to stop, because
a node will be taken away, all workers do after the same epoch, and that is saved.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import group
import snapshot
import stop


def make_dataset(count=2048, width=20):
    random = torch.Generator().manual_seed(0)  # the same numbers in every worker and every attempt
    inputs = torch.rand(count, width, generator=random)
    return TensorDataset(inputs, inputs @ torch.rand(width, 1, generator=random))


class Trainer:
    def __init__(self, batch_size, save_every, path, backend):
        local_rank = int(os.environ["LOCAL_RANK"])
        on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        self.device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        group.join("nccl" if on_gpu else backend)
        self.rank = dist.get_rank()
        self.save_every = save_every
        self.path = path
        self.epochs_done = 0
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 1).to(self.device)
        state = snapshot.load(path)
        if state:
            model.load_state_dict(state["model"])
            self.epochs_done = state["epochs_done"]
            print(f"[rank {self.rank}] resuming after epoch {self.epochs_done} of {path}", flush=True)
        self.model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        dataset = make_dataset()
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size=batch_size, sampler=self.sampler)

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for inputs, targets in self.loader:
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self.model(inputs.to(self.device)), targets.to(self.device))
            loss.backward()
            self.optimizer.step()
        print(f"[rank {self.rank}] epoch {epoch}: {len(self.loader)} steps of {self.loader.batch_size}, "
              f"loss {loss.item():.5f}", flush=True)

    def train(self, total_epochs):
        for epoch in range(self.epochs_done, total_epochs):
            self.run_epoch(epoch)
            is_to_stop = stop.requested(self.device)
            if self.rank == 0 and (is_to_stop or (epoch + 1) % self.save_every == 0):
                snapshot.save({"model": self.model.module.state_dict(), "epochs_done": epoch + 1}, self.path)
                print(f"epoch {epoch}: snapshot saved at {self.path}", flush=True)
            if is_to_stop:
                print(f"[rank {self.rank}] asked to stop: stopping after epoch {epoch}", flush=True)
                break
        self.model = self.optimizer = None
        group.leave()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("total_epochs", type=int, help="epochs to train for")
    parser.add_argument("save_every", type=int, help="epochs between snapshots")
    parser.add_argument("--batch_size", type=int, default=32, help="vectors a step on each worker (default 32)")
    parser.add_argument("--snapshot", default="snapshot.pt", help="file to save to and to go on from")
    parser.add_argument("--backend", default="gloo", help="on CPUs: gloo (default), or muster where that is installed")
    args = parser.parse_args()
    Trainer(args.batch_size, args.save_every, args.snapshot, args.backend).train(args.total_epochs)


if __name__ == "__main__":
    main()
