"""The peer of the collectives benchmark on PyTorch's gloo backend: the loop of timing.c, in Python (see peer.h).

    gloo_peer.py [--seconds S] [--in-place] OPERATION[,...] SIZE[,...]

gloo's all_reduce and reduce work in place whatever is asked for; its sums are of zeros, as elsewhere.
"""

import argparse
import json
import statistics
import time

import report
import torch
import torch.distributed as dist

OPERATIONS = "all_reduce broadcast reduce all_gather gather scatter reduce_scatter all_to_all barrier sendrecv".split()
DIVIDED = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
BATCHES_MIN, BATCHES_MAX, BATCH_S, WARM_UP_S = 5, 400, 0.001, 0.02


class Case:
    """One operation on buffers of one size; call() runs it once."""

    def __init__(self, operation, size_bytes):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        count = size_bytes // 4 // (self.world if operation in DIVIDED else 1)
        self.count = 0 if operation == "barrier" else max(1, count)
        blocks = self.world if operation in DIVIDED else 1
        self.send = torch.zeros(self.count * blocks)
        self.receive = torch.zeros(self.count * blocks)
        self.call = getattr(self, operation)
        self.send_parts = list(self.send.chunk(blocks)) if self.count else []
        self.receive_parts = list(self.receive.chunk(blocks)) if self.count else []

    def all_reduce(self):
        dist.all_reduce(self.send)

    def broadcast(self):
        dist.broadcast(self.send, 0)

    def reduce(self):
        dist.reduce(self.send, 0)

    def all_gather(self):
        dist.all_gather(self.receive_parts, self.send_parts[0])

    def gather(self):
        dist.gather(self.send_parts[0], self.receive_parts if self.rank == 0 else None)

    def scatter(self):
        dist.scatter(self.receive_parts[0], self.send_parts if self.rank == 0 else None)

    def reduce_scatter(self):
        dist.reduce_scatter_tensor(self.receive_parts[0], self.send)

    def all_to_all(self):
        dist.all_to_all_single(self.receive, self.send)

    def barrier(self):
        dist.barrier()

    def sendrecv(self):
        other = self.rank ^ 1
        if other >= self.world:
            return
        if self.rank < other:
            dist.send(self.send, other)
            dist.recv(self.receive, other)
        else:
            dist.recv(self.receive, other)
            dist.send(self.send, other)


def largest(value):
    box = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return box.item()


def batch_s(call, iterations):
    from_s = time.perf_counter()
    for _ in range(iterations):
        call()
    return time.perf_counter() - from_s


def measure(operation, size_bytes, seconds):
    case = Case(operation, size_bytes)
    iterations, elapsed = 1, largest(batch_s(case.call, 1))
    while elapsed < WARM_UP_S:
        iterations *= 4
        elapsed = largest(batch_s(case.call, iterations))
    call_s = elapsed / iterations
    iterations = max(1, int(BATCH_S / call_s))
    batches = min(BATCHES_MAX, max(BATCHES_MIN, int(seconds / (call_s * iterations))))
    times = sorted(batch_s(case.call, iterations) / iterations for _ in range(batches))
    scale = 5e5 if operation == "sendrecv" else 1e6  # there and back
    figures = {
        "us": scale * largest(times[batches // 2]),
        "mean_us": scale * largest(statistics.fmean(times)),
        "least_us": scale * largest(times[0]),
    }
    if case.rank == 0:
        head = {"operation": operation, "bytes": 0 if operation == "barrier" else size_bytes}
        print(json.dumps({**head, **figures, "calls": batches * iterations}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("operations")
    parser.add_argument("sizes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(json.dumps({"version": f"PyTorch {torch.__version__} gloo", "ranks": dist.get_world_size()}), flush=True)
    wanted = OPERATIONS if options.operations == "all" else options.operations.split(",")
    sizes = [report.parse_size(text) for text in options.sizes.split(",")]
    for operation in OPERATIONS:
        for size_bytes in (sizes if operation != "barrier" else sizes[:1]) if operation in wanted else []:
            measure(operation, size_bytes, options.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
