"""What test_launched.py starts to see programs end in untidy ways: groups die with calls under way, a rank is gone while another one has calls
under way, and nobody destroys the default group."""

import gc
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("muster")
for turn in range(60):
    group = dist.new_group()
    for _ in range(5):
        dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    if turn % 3 == 0:
        dist.barrier(group)
    dist.destroy_process_group(group)  # the progress thread may be the last to use it
    del group
gc.collect()
dist.barrier()
os.write(1, b"at the end\n")
if dist.get_rank() == 0 and sys.argv[1] == "abruptly":
    os._exit(0)
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(50)]
if sys.argv[1] == "with messages":
    works.append(dist.isend(torch.ones(4), 1 - dist.get_rank()))
