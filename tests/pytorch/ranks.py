"""For tests of the backend: functions that run as the ranks of a group, in processes forked from one that has imported PyTorch."""

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings

from common import BUILD, NEEDS_DYNAMO, PACKAGE, TOP, main  # noqa: F401 - also for those who import this

sys.path.insert(0, PACKAGE)
os.environ["OMP_NUM_THREADS"] = "1"  # a pool of threads would not survive a fork
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:  # PyTorch makes a folder when it is imported; it goes with this process, not with a worker that is killed
    _CACHE = tempfile.TemporaryDirectory(prefix="muster-ranks-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = _CACHE.name

warnings.simplefilter("ignore")  # PyTorch's own
for kind in (FutureWarning, DeprecationWarning):  # but what is here, or in the package, uses no name that goes; c10d's calls pass c10d_logger
    warnings.filterwarnings("error", category=kind, module=r"__main__$|ranks$|ends$|muster|torch\.distributed\.c10d_logger$")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import muster.distributed  # noqa: E402,F401

if NEEDS_DYNAMO:
    import torch._dynamo  # noqa: F401

PATIENCE_S = 110

# The names that PyTorch has for these from 2.13 on; before, it has the older ones alone.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Ranks:
    """Ranks that run."""

    def __init__(self, pids, pipes):
        self.pids, self.pipes, self.ended = pids, pipes, {}

    def kill(self, rank, number=signal.SIGKILL):
        os.kill(self.pids[rank], number)

    def result(self, rank):
        """What the rank's function returned; its traceback as an error. None: it was killed."""
        if rank not in self.ended:
            with os.fdopen(self.pipes[rank], "rb") as pipe:
                data = pipe.read()
            os.waitpid(self.pids[rank], 0)
            self.ended[rank] = pickle.loads(data) if data else (True, None)
        good, value = self.ended[rank]
        if not good:
            raise AssertionError(f"rank {rank}: {value}")
        return value


def _be(rank, size, function, backend, where, timeout, pipe):
    signal.alarm(PATIENCE_S)
    try:
        if backend:
            dist.init_process_group(backend, init_method=f"file://{where}", rank=rank, world_size=size, timeout=timeout)
        value = True, function(rank, size)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - the test is to hear of it
        value = False, traceback.format_exc()
    with os.fdopen(pipe, "wb") as out:
        pickle.dump(value, out)


@contextlib.contextmanager
def start(size, function, backend="muster", timeout=None):
    """Ranks that run function(rank, size) in a group of `backend` (None: they make it themselves)."""
    pids, pipes = [], []
    with tempfile.TemporaryDirectory(prefix="muster-ranks-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _be(rank, size, function, backend, os.path.join(folder, "store"), timeout, writer)
                sys.stdout.flush()
                os._exit(0)
            os.close(writer)
            pids.append(pid)
            pipes.append(reader)
        ranks = Ranks(pids, pipes)
        try:
            yield ranks
            for rank in range(size):
                ranks.result(rank)
        finally:
            for rank in range(size):
                if rank not in ranks.ended:
                    os.kill(pids[rank], signal.SIGKILL)
                    os.waitpid(pids[rank], 0)


def run(size, function, backend="muster", timeout=None):
    """The results of all ranks, in their order."""
    with start(size, function, backend, timeout) as ranks:
        return [ranks.result(rank) for rank in range(size)]


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                                                     "keepcost")]


def kept():
    """What this process holds: memory, threads, descriptors."""
    gc.collect()
    with open("/proc/self/status", encoding="ascii") as file:
        facts = dict(line.split(":", 1) for line in file)
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Heap
    heap = mallinfo2()
    return {"resident_kib": int(facts["VmRSS"].split()[0]), "heap_bytes": heap.uordblks + heap.hblkhd, "threads": int(facts["Threads"]),
            "descriptors": len(os.listdir("/proc/self/fd"))}


def make_groups(count, backend, first):
    """A function of ranks that makes, uses and frees groups; it returns what was kept after `first` of them and after all."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 - PyTorch's empty backend

    def function(rank, size):
        # From 2.15 on PyTorch records the last 2,000 calls of the groups of every backend, gloo's too: 250 KB that are not ours.
        os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
        early = None
        for turn in range(count):
            group = dist.new_group(backend=backend)
            dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
            dist.destroy_process_group(group)
            if turn == first:
                dist.barrier()
                early = kept()
        dist.barrier()
        return early, kept()
    return function
