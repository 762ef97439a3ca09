"""What PyTorch calls at the end of `import torch`: the entry point "torch.backends".

A module of its own, which imports nothing of muster before it is called: whatever is wrong with that must not keep PyTorch from being
imported.
"""

import importlib.util
import os
import warnings


def autoload() -> None:
    """Registers the backend "muster", if this installation has it, and the hook for PyTorch's launcher, if MUSTER_LAUNCH=1 asks for it."""
    try:
        from muster import hook

        hook.autoload()
        if importlib.util.find_spec("muster._built") is not None:
            import muster.distributed  # noqa: F401
        elif os.environ.get("MUSTER_AS_GLOO", "0") not in ("", "0"):
            warnings.warn("MUSTER_AS_GLOO has no effect: muster was installed without its backend, since PyTorch was not there "
                          "(docs/pytorch.md)", stacklevel=2)
    except Exception as error:  # noqa: BLE001
        warnings.warn(f'the backend "muster" cannot be used: {error}', stacklevel=2)
