"""A worker's membership of the default process group, from its beginning to an orderly end.

A group that outlives the script aborts it now and then, after all its work is done: gloo's threads may drop their last tensor while the
interpreter ends ("terminate called without an active exception"; PyTorch 2.13). They end with the group, and that ends with
whatever holds it: the model that DistributedDataParallel wraps, its optimizer, and torch._dynamo if a group was there when it was imported.
"""

import gc

import torch._dynamo  # noqa: F401  DistributedDataParallel would import it later
import torch.distributed as dist


def join(backend):
    dist.init_process_group(backend)


def leave(mesh=None):
    """To be called when the model and its optimizer are gone; nobody leaves while another worker still uses the group.

    mesh: of FSDP2, if there is one. The caches of DTensor keep it to the end of the process, and it would keep the group.
    """
    gc.collect()  # models that hold themselves in a circle
    if mesh is not None:
        getattr(mesh, "_pg_registry", {}).clear()  # meshes of PyTorch 2.10 hold names of groups alone
    dist.barrier()
    dist.destroy_process_group()
