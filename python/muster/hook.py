"""Programs that call PyTorch's launcher inside their own process get Muster: accelerate launch, fabric run, torchtune, elastic_launch.

All of them end in torch.distributed.launcher.api.launch_agent. install() puts muster.launch in its place, at once or as soon as that module is
imported; uninstall() puts it back. With MUSTER_LAUNCH=1 in the environment a program that imports torch gets it without a change.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any, Optional, Sequence

__all__ = ["autoload", "install", "installed", "uninstall"]

_TARGET = "torch.distributed.launcher.api"
# Modules that have the function under its name.
_HOLDERS = (_TARGET, "torch.distributed.launcher")
_finder: Optional["_Finder"] = None


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then the replacement."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if _finder is not None:
            _replace(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of PyTorch's launcher, so that nothing of it is imported for its sake."""

    def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None) -> Any:
        if fullname != _TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _replace(module: ModuleType) -> None:
    from . import _launch

    if module.launch_agent is not _launch.launch_agent:
        _launch._original = module.launch_agent
        module.launch_agent = _launch.launch_agent  # type: ignore[attr-defined]


def install() -> None:
    """From now on, what calls PyTorch's launcher in this process gets Muster. A second call does nothing. PyTorch is not imported."""
    global _finder
    if _finder is None:
        _finder = _Finder()
        sys.meta_path.insert(0, _finder)
        for name in _HOLDERS:
            if name in sys.modules and hasattr(sys.modules[name], "launch_agent"):
                _replace(sys.modules[name])


def uninstall() -> None:
    """PyTorch's launcher is in its place again."""
    global _finder
    if _finder is None:
        return
    sys.meta_path.remove(_finder)
    _finder = None
    launch = sys.modules.get(f"{__package__}._launch")
    for name in _HOLDERS:
        module = sys.modules.get(name)
        if launch is not None and module is not None and getattr(module, "launch_agent", None) is launch.launch_agent:
            module.launch_agent = launch._original  # type: ignore[attr-defined]


def installed() -> bool:
    """Does PyTorch's launcher run jobs by Muster in this process?"""
    return _finder is not None


def autoload() -> None:
    """install(), if the environment has MUSTER_LAUNCH=1: what the entry point of the group torch.backends calls in each `import torch`."""
    if os.environ.get("MUSTER_LAUNCH") == "1":
        install()
