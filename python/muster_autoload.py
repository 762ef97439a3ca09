"""What PyTorch calls: at the end of `import torch` the entry point "torch.backends", and from 2.14 on that of "torch.distributed.backends" when a
program asks for the backend "muster".

A module of its own, which imports nothing of muster before it is called: whatever is wrong with that must not keep PyTorch from being
imported.
"""

import glob
import os
import sys
import warnings


def _explain(sentence: str) -> None:
    """From now on init_process_group("muster") raises this."""
    try:
        import torch.distributed as dist

        def create(*_: object) -> None:
            raise RuntimeError(sentence)

        dist.Backend.register_backend("muster", create, extended_api=True, devices=["cpu"])
    except Exception:  # noqa: BLE001 - a PyTorch without torch.distributed, or a program that has registered its own
        pass


def _be_without(sentence: str, was_built: bool) -> None:
    wish = os.environ.get("MUSTER_AS_GLOO", "0")
    if wish == "require":
        sys.exit(f"MUSTER_AS_GLOO=require: {sentence}")
    if wish not in ("", "0"):
        warnings.warn(f"MUSTER_AS_GLOO has no effect, and this rank is on gloo: {sentence}", stacklevel=3)
    elif was_built:
        warnings.warn(f'the backend "muster" cannot be used: {sentence}', stacklevel=3)
    _explain(sentence)


def autoload() -> None:
    """Registers the backend "muster", if this installation has it, and the hook for PyTorch's launcher, if MUSTER_LAUNCH=1 asks for it. Without a
    backend that fits, whoever asks for it is told what to run."""
    try:
        from muster import hook

        hook.autoload()
    except Exception as error:  # noqa: BLE001
        warnings.warn(f"MUSTER_LAUNCH has no effect: {error}", stacklevel=2)
    try:
        import muster.distributed  # noqa: F401
    except Exception as error:  # noqa: BLE001
        here = os.path.dirname(os.path.abspath(__file__))
        _be_without(str(error), bool(glob.glob(os.path.join(glob.escape(here), "muster", "_torch_*"))))


def register() -> None:
    """For PyTorch's Backend: registers "muster", or raises what to do."""
    import muster.distributed  # noqa: F401
