"""The backend "muster" of torch.distributed: init_process_group("muster").

Importing this module registers it. With the package installed PyTorch imports it by itself, so that a program need not name it.

MUSTER_AS_GLOO=1 in the environment makes it stand in for gloo: a program that asks for gloo by name or by class, or that names no backend on a
machine without GPUs, gets groups of this backend under the name gloo.
"""

from __future__ import annotations

import atexit
import datetime
import importlib
import importlib.machinery
import os
import re
import warnings

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

__all__ = ["register", "stand_in_for_gloo"]

_DEFAULT = datetime.timedelta(minutes=30)


def _load():
    """The extension that was compiled for this PyTorch. A package has one for each minor version that it knows: _torch_2_13 and so on."""
    builds = "pip install --force-reinstall --no-cache-dir --no-build-isolation ./python, in Muster's sources, builds it"
    form = r"_torch_(\d+)_(\d+)" + re.escape(importlib.machinery.EXTENSION_SUFFIXES[0])
    found = [re.fullmatch(form, name) for name in os.listdir(os.path.dirname(os.path.abspath(__file__)))]
    known = sorted((int(one[1]), int(one[2])) for one in found if one)
    if not known:
        raise ImportError(f"muster was installed without its backend for PyTorch: {builds} for the PyTorch that is there")
    wanted = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if wanted not in known:
        versions = ", ".join(f"{major}.{minor}" for major, minor in known)
        raise ImportError(f"muster's backend was compiled for PyTorch {versions}, and this is {torch.__version__}: {builds} for this one")
    try:
        return importlib.import_module(f"muster._torch_{wanted[0]}_{wanted[1]}")
    except ImportError as error:
        raise ImportError(f"muster's backend for PyTorch {wanted[0]}.{wanted[1]} does not fit {torch.__version__} ({error}): {builds} anew") from error


_process_group = _load()

from . import errors  # noqa: E402 - after PyTorch is known to fit


def _create(given, options=None):
    """For register_backend(): makes this rank's part of a group. Blocks until all ranks of it have come."""
    timeout = getattr(options, "_timeout", None) or given.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=float(timeout))
    return _process_group.create(given.store, given.group_rank, given.group_size, timeout, given.group_id)


_monitored_barrier = c10d.monitored_barrier


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier(), which takes groups of gloo alone, for groups of this backend as well."""
    if c10d._rank_not_in_group(group) or dist.get_backend(group) != "muster":
        return _monitored_barrier(group, timeout, wait_all_ranks)
    if timeout is None:
        timeout = c10d._get_default_timeout(dist.Backend("gloo"))
    elif not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    return (group or c10d._get_default_group()).monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


class _StandIn(type):
    """Of a class that makes groups of this backend, and that both kinds of groups are instances of."""

    def __call__(cls, store, rank, size, timeout=None, **_):
        return _process_group.create(store, rank, size, timeout or _DEFAULT, "gloo")

    def __instancecheck__(cls, instance):
        return isinstance(instance, (cls._gloo, _process_group.ProcessGroupMuster))

    def __getattr__(cls, name):
        return getattr(cls._gloo, name)


def stand_in_for_gloo() -> None:
    """From now on groups of this process that ask for gloo are groups of this backend. All ranks must do so."""
    gloo = getattr(c10d, "ProcessGroupGloo", None)
    if gloo is None or isinstance(gloo, _StandIn):
        return
    stand_in = _StandIn("ProcessGroupGloo", (), {"_gloo": gloo, "__module__": c10d.__name__})
    c10d.ProcessGroupGloo = stand_in  # for init_process_group() and new_group()
    dist.ProcessGroupGloo = stand_in  # for programs that make groups by the class, as torchft does


def register() -> None:
    """Makes "muster" known to torch.distributed. May be called again."""
    if "MUSTER" in dist.Backend._plugins:
        return
    _process_group.set_errors(errors.make, errors.make_monitored)
    atexit.register(_process_group.end_python)
    dist.Backend.register_backend("muster", _create, extended_api=True, devices=["cpu"])
    dist.monitored_barrier = c10d.monitored_barrier = monitored_barrier
    if os.environ.get("MUSTER_AS_GLOO", "0") not in ("", "0"):
        stand_in_for_gloo()
    if os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "0") not in ("", "0") and not hasattr(c10d, "_torchcomms_handles_backend"):
        warnings.warn("TORCH_DISTRIBUTED_USE_TORCHCOMMS is set: PyTorch then takes no backend from a package, and not this one either",
                      stacklevel=2)


register()
