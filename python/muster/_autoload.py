"""What PyTorch calls at the end of `import torch` (the entry point "torch.backends")."""

from __future__ import annotations

import warnings


def autoload() -> None:
    """Registers the backend. A backend that does not fit must not keep PyTorch from being imported."""
    try:
        from . import distributed  # noqa: F401
    except Exception as error:  # noqa: BLE001
        warnings.warn(f'the backend "muster" cannot be used: {error}', stacklevel=2)
