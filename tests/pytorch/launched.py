"""What test_launched.py starts under a launcher: a script that asks for the backend in its first argument ("": for none)."""

import datetime
import os
import sys

import torch
import torch.distributed as dist

if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
    import muster.distributed  # noqa: F401

dist.init_process_group(*sys.argv[1:2] if sys.argv[1] else ())
kind = type(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))).__name__
tensor = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(tensor)
if dist.get_backend() in ("gloo", "muster"):  # PyTorch asks for the name alone
    dist.monitored_barrier()
pair = dist.new_group([0, 1])
dist.all_reduce(tensor, group=pair)
if "by class" in sys.argv[2:]:  # as torchft does: a group of its own, in a store of its own, that c10d's calls do not know
    store = dist.PrefixStore("by class", dist.distributed_c10d._get_default_store())
    own = dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), datetime.timedelta(seconds=100))
    own._set_sequence_number_for_group()
    own.options.global_ranks_in_group = [0, 1]
    assert isinstance(own, dist.ProcessGroupGloo)
    own.allreduce([tensor]).wait()
    kind += f" and {type(own).__name__}"
if "trains" in sys.argv[2:]:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
os.write(1, f"{dist.get_backend()} {kind} {int(tensor)}\n".encode())  # in one piece
dist.destroy_process_group()
if "ProcessGroupGloo" in kind:
    os._exit(0)  # gloo's threads would abort the interpreter's end now and then (examples/pytorch/group.py)
