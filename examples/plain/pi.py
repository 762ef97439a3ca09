#!/usr/bin/env python3
"""Integrates pi on several workers with nothing but Python's own library, and survives the loss of a worker.

    muster run --standalone --nproc-per-node=2 --max-restarts=3 examples/plain/pi.py

What any program needs to run under a launcher: RANK and WORLD_SIZE say which part of the work is its own, and a snapshot,
replaced in one step, says where to go on after a restart.
"""

import argparse
import json
import os
import time


def strip(first, last, points):
    """Integral of 4 / (1 + x^2) from `first` to `last` by the midpoint rule."""
    width = (last - first) / points
    return width * sum(4.0 / (1.0 + (first + (i + 0.5) * width) ** 2) for i in range(points))


def load(path):
    if not os.path.exists(path):
        return {"blocks_done": 0, "sum": 0.0}
    with open(path, encoding="ascii") as file:
        return json.load(file)


def save(state, path):
    """Written aside, flushed, renamed: at any moment the file is a whole snapshot, or absent."""
    aside = path + ".tmp"
    with open(aside, "w", encoding="ascii") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(aside, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10, help="blocks of work a worker (default 10)")
    parser.add_argument("--points", type=int, default=2_000_000, help="points a block (default 2,000,000)")
    parser.add_argument("--snapshot", default="pi_snapshot", help="start of the snapshots' names")
    args = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    print(f"rank {rank} of {world_size}: pid {os.getpid()}, restart {attempt}", flush=True)
    # Another number of workers divides the work differently: its snapshots have names of their own.
    path = f"{args.snapshot}.{rank}-of-{world_size}.json"
    state = load(path)
    if state["blocks_done"] > 0:
        print(f"rank {rank} goes on from snapshot of block {state['blocks_done']}", flush=True)

    while state["blocks_done"] < args.blocks:
        began = time.monotonic()
        block = state["blocks_done"] * world_size + rank
        block_count = args.blocks * world_size
        state["sum"] += strip(block / block_count, (block + 1) / block_count, args.points)
        state["blocks_done"] += 1
        save(state, path)
        print(f"block {state['blocks_done']}/{args.blocks} of rank {rank}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"final part of rank {rank}: {state['sum']:.15f}", flush=True)


if __name__ == "__main__":
    main()
