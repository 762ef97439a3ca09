"""Muster in Python: a launcher for distributed training that takes torchrun's command line, and what its workers share with it.

    $ muster run --standalone --nproc-per-node=4 --max-restarts=3 train.py     (or: python -m muster run ...)

In a worker:

    @muster.record                       an exception of main() is in the launcher's failure report, and in torchelastic's error file
    def main(): ...

    store = muster.Store.open_env()      the job's store: a map from keys to bytes that all ranks share
    store.set("address", b"10.0.0.1:7")
    store.get("address")                 waits until somebody has set it

    if muster.stop_requested(): ...      this node will be taken away: agree, save, end

Around a job:

    muster.launch(config, function)(1, 2)      what PyTorch's elastic_launch does, by Muster: {rank: returned value}
    muster.hook.install()                      programs that call PyTorch's launcher in their own process get Muster; so does
                                               MUSTER_LAUNCH=1 in the environment, without a change of the program
    muster.status("node0:29400")               how a job does now, as `muster status --json` tells it
    muster.snapshot.load("snapshots").tensors  what libmuster's programs have saved, as numpy arrays

Failures are muster.MusterError, or one of its kinds. Nothing here imports PyTorch unless it is asked for something of PyTorch's. The
pages are docs/python.md and docs/worker-contract.md.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

from ._library import (
    MusterConnectionError,
    MusterCorrupt,
    MusterError,
    MusterInvalid,
    MusterNotFound,
    MusterTimeout,
    program,
)
from ._stop import stop_requested
from ._version import __version__

if TYPE_CHECKING:
    from . import hook, integrations, snapshot
    from ._launch import launch
    from ._record import record, record_error
    from ._status import status
    from ._store import Store

__all__ = [
    "MusterConnectionError", "MusterCorrupt", "MusterError", "MusterInvalid", "MusterNotFound", "MusterTimeout", "Store", "__version__",
    "hook", "integrations", "launch", "program", "record", "record_error", "snapshot", "status", "stop_requested",
]

# Where the rest is, loaded when it is first used: `import torch` may import this module, and is not to wait for it.
_PLACES = {"Store": "_store", "launch": "_launch", "record": "_record", "record_error": "_record", "status": "_status"}
_MODULES = ("hook", "integrations", "snapshot")


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module("." + _PLACES[name], __name__), name)
    elif name in _MODULES:
        value = importlib.import_module("." + name, __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(__all__))
