#!/usr/bin/env python3
"""Trains the GPT of gpt.py on the characters of a text, with DistributedDataParallel or FSDP2, and survives the loss of a worker.

    python3 examples/pytorch/gpt_train.py --steps=500
    muster run --standalone --nproc-per-node=2 --max-restarts=3 examples/pytorch/gpt_train.py --sharding=fsdp --snapshot=gpt.pt
    torchrun   --standalone --nproc-per-node=2 --max-restarts=3 examples/pytorch/gpt_train.py --sharding=fsdp --snapshot=gpt.pt

examples/gpt is the same trainer in C. Its options have the same names and defaults here, its batches and schedule are the same, and so are
the lines that it prints. From the same weights (--weights) and without dropout both have the same loss.

All workers must see the snapshot. It holds whole tensors. So a job goes on from it with any number of workers and any --sharding.
Asked to stop, because a node will be taken away, all workers do after the same step, and that is saved.
"""

import argparse
import math
import os
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import gpt
import gpt_text
import group
import snapshot
import stop

TEXT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "macbeth.txt")
WHOLE = whole.StateDictOptions(full_state_dict=True, cpu_offload=True)  # tensors as one process would have them


def sharded(model, sharding, mesh):
    """The model, copied to the workers or spread over them; all have the whole of it until then."""
    if sharding == "ddp":
        return DistributedDataParallel(model)
    if sharding == "fsdp":
        for block in model.transformer["h"]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def learning_rate(options, step):
    """Of the step that comes after `step` others: it rises to the full rate, and then falls along a cosine to a tenth of it."""
    if step < options.warm_up:
        return options.lr * (1 + (options.warm_up - 1) * step / options.warm_up) / options.warm_up
    left = options.steps - options.warm_up
    done = min((step - options.warm_up) / left, 1) if left > 0 else 1
    return options.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def memory_now_mib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


class Trainer:
    def __init__(self, options, mesh):
        self.options = options
        self.mesh = mesh
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.share = options.batch // self.world_size
        self.step, self.losses = 0, []  # of all steps since the beginning
        self.seconds = []
        state = snapshot.load(options.snapshot) if options.snapshot else None
        if options.sample_only:
            self.alphabet, self.shape = state["alphabet"], state["shape"]
        else:
            self.text = gpt_text.Text(options.data, options.block_size)
            self.alphabet = self.text.alphabet
            self.shape = {"vocabulary": len(self.alphabet), "context": options.block_size, "layers": options.n_layer,
                          "heads": options.n_head, "width": options.n_embd, "tied": options.tied}
        self.make(state)

    def make(self, state):
        options = self.options
        torch.manual_seed(options.seed)
        model = gpt.Gpt(**self.shape, embedding_dropout=options.embd_pdrop, attention_dropout=options.attn_pdrop,
                        residual_dropout=options.resid_pdrop)
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        if options.weights and not state:
            gpt.load_weights(model, options.weights)
        self.model = sharded(model, options.sharding, self.mesh)
        plain = self.model.module if options.sharding == "ddp" else self.model
        self.optimizer = torch.optim.AdamW(plain.parameter_groups(options.weight_decay), lr=options.lr,
                                           betas=(options.beta1, options.beta2))
        if state:
            if state["shape"] != self.shape or state["alphabet"] != self.alphabet:
                sys.exit(f"gpt_train: {options.snapshot} is of another model ({state['shape']}) or another text")
            whole.set_model_state_dict(self.model, state["model"], options=WHOLE)
            whole.set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"], options=WHOLE)
            self.step, self.losses = state["step"], state["losses"]

    def save(self):
        if not self.options.snapshot:
            return
        state = {"step": self.step, "losses": self.losses, "shape": self.shape, "alphabet": self.alphabet,
                 "model": whole.get_model_state_dict(self.model, options=WHOLE),  # of all workers; whole on rank 0
                 "optimizer": whole.get_optimizer_state_dict(self.model, self.optimizer, options=WHOLE)}
        if self.rank == 0:
            snapshot.save(state, self.options.snapshot)

    def mean(self, number):
        """Over all workers."""
        if self.world_size == 1:
            return number
        total = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.world_size

    def loss(self, part, step):
        """Of this worker's share of a batch."""
        tokens, targets = self.text.batch(part, self.options.seed, step, self.rank * self.share, self.share)
        return functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())

    def train_step(self):
        """Loss before the step, and the norm of the gradients before clipping."""
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self.options, self.step)
        torch.manual_seed(gpt_text.mix(self.options.seed, gpt_text.DROPOUT, self.step, self.rank))  # a resumed step drops the same
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss(gpt_text.TRAIN, self.step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)
        norm = norm.full_tensor() if self.options.sharding == "fsdp" else norm
        self.optimizer.step()
        self.step += 1
        self.losses.append(self.mean(loss.item()))
        return self.losses[-1], norm.item()

    @torch.no_grad()
    def evaluate(self):
        """Mean loss over some sequences of the text that nobody trains on, always the same ones."""
        self.model.eval()
        return statistics.fmean(self.mean(self.loss(gpt_text.TEST, i).item()) for i in range(8))

    def report(self, loss, norm):
        seconds = self.seconds[-1]
        left = int(seconds * (self.options.steps - self.step))
        tokens = self.options.batch * self.options.block_size
        self.say(f"step {self.step}/{self.options.steps}: loss {loss:.4f}, norm {norm:.3f}, {1e3 * seconds:.1f} ms, "
                 f"{tokens / seconds:.0f} tokens/s, {memory_now_mib():.0f} MiB, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} to go")

    def say(self, line):
        if self.rank == 0:
            print(line, flush=True)

    def is_due(self, period):
        return self.step == self.options.steps or (period > 0 and self.step % period == 0)

    def train(self):
        """False: it was asked to stop before the end."""
        begin = f"the snapshot of step {self.step}" if self.step else "scratch"
        self.say(f"from {begin}: {len(self.text.tokens)} characters, {len(self.alphabet)} of them distinct; "
                 f"{self.parameter_count} parameters")
        while self.step < self.options.steps:
            began = time.monotonic()
            loss, norm = self.train_step()
            self.seconds.append(time.monotonic() - began)
            if self.is_due(self.options.report_every):
                self.report(loss, norm)
            if self.is_due(self.options.evaluate_every):
                self.say(f"step {self.step}: test loss {self.evaluate():.4f}")
            is_to_stop = stop.requested()
            if is_to_stop or self.is_due(self.options.save_every):
                self.save()
            if is_to_stop:
                print(f"rank {self.rank}: asked to stop: stopping after step {self.step}", flush=True)
                return False
        if self.seconds:
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self.say(f"median step: {1e3 * statistics.median(self.seconds):.1f} ms, peak memory {peak_mib:.1f} MiB")
        return True

    def write_sample(self):
        """All workers ask the model, whose parameters may be spread; rank 0 writes."""
        options = self.options
        self.model.eval()
        for byte in gpt_text.sample(self.model, self.shape["context"], self.alphabet, options.prompt.encode(), options.sample,
                                    options.temperature, options.seed):
            if self.rank == 0:
                sys.stdout.buffer.write(bytes([byte]))
                sys.stdout.buffer.flush()
        self.say("")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_argument_group("the model (defaults: minGPT's gpt-mini)")
    model.add_argument("--n-layer", type=int, default=6, help="blocks (6)")
    model.add_argument("--n-head", type=int, default=6, help="heads of each (6)")
    model.add_argument("--n-embd", type=int, default=192, help="width of a token's vector, a multiple of the heads (192)")
    model.add_argument("--block-size", type=int, default=128, help="characters that the model sees (128)")
    model.add_argument("--tied", action="store_true", help="the head shares its weight with the embedding, as in GPT-2")
    for name, place in (("embd", "after the embedding"), ("resid", "before each addition"), ("attn", "of the attention")):
        model.add_argument(f"--{name}-pdrop", type=float, default=0.1, help=f"dropout {place} (0.1)")
    model.add_argument("--dropout", type=float, help="all three")
    training = parser.add_argument_group("training")
    training.add_argument("--sharding", choices=("none", "ddp", "fsdp"), help="ddp: each worker has the whole model; fsdp: a share "
                          "of each tensor (ddp; none without a launcher)")
    training.add_argument("--backend", default="gloo", help="of torch.distributed, for the CPU (gloo); muster where that is installed")
    training.add_argument("--data", default=TEXT, help="the text (Macbeth, in examples/data)")
    training.add_argument("--batch", type=int, default=16, help="sequences a step, over all workers (16)")
    training.add_argument("--steps", type=int, default=1000, help="(1000)")
    training.add_argument("--lr", type=float, default=5e-4, help="highest learning rate (0.0005); it falls along a cosine to a tenth")
    training.add_argument("--warm-up", type=int, default=100, help="steps in which the rate rises (100)")
    training.add_argument("--weight-decay", type=float, default=0.1, help="of the matrices of linear layers (0.1)")
    training.add_argument("--beta1", type=float, default=0.9, help="of AdamW (0.9)")
    training.add_argument("--beta2", type=float, default=0.95, help="of AdamW (0.95)")
    training.add_argument("--clip", type=float, default=1.0, help="limit of the norm of all gradients (1)")
    training.add_argument("--seed", type=int, default=0, help="of first weights, batches, dropout and samples (0)")
    training.add_argument("--weights", metavar="FILE", help="first weights: a safetensors file, such as the C program's snapshots have")
    training.add_argument("--snapshot", metavar="FILE", help="file to save to and to go on from")
    for name, every in (("report", 10), ("evaluate", 200), ("save", 200)):
        training.add_argument(f"--{name}-every", type=int, default=every, help=f"steps between two ({every}); 0: at the end alone")
    text = parser.add_argument_group("text")
    text.add_argument("--sample", type=int, default=500, help="characters to write at the end (500)")
    text.add_argument("--sample-only", action="store_true", help="write text alone, with the model in --snapshot")
    text.add_argument("--prompt", default="", help="what it begins with")
    text.add_argument("--temperature", type=float, default=1.0, help="below 1: more of what is likely; 0: nothing else (1)")
    options = parser.parse_args()
    check(parser, options)
    return options


def check(parser, options):
    world_size = int(os.environ.get("WORLD_SIZE", "0"))  # 0: no launcher
    options.sharding = options.sharding or ("ddp" if world_size else "none")
    if options.dropout is not None:
        options.embd_pdrop = options.resid_pdrop = options.attn_pdrop = options.dropout
    if options.n_embd % options.n_head:
        parser.error("--n-embd is not a multiple of --n-head")
    if options.sharding == "none" and world_size > 1:
        parser.error("--sharding=none is for one process")
    if options.sharding != "none" and not world_size:
        parser.error(f"--sharding={options.sharding} needs a launcher (muster run)")
    if options.batch % max(world_size, 1):
        parser.error(f"--batch={options.batch} is not a multiple of the {world_size} workers")
    if options.sample_only and not (options.snapshot and os.path.exists(options.snapshot)):
        parser.error("--sample-only needs --snapshot: a file with a trained model")


def main():
    options = read_options()
    if options.sharding != "none":
        group.join(options.backend)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        print(f"rank {dist.get_rank()} of {dist.get_world_size()}: pid {os.getpid()}, restart {attempt}", flush=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if options.sharding == "fsdp" else None
    trainer = Trainer(options, mesh)
    is_done = options.sample_only or trainer.train()
    if is_done and options.sample > 0:
        trainer.write_sample()
    del trainer
    if options.sharding != "none":
        group.leave(mesh)


if __name__ == "__main__":
    main()
