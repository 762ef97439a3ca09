"""libmuster: found, checked against this module, and loaded once. What its calls refuse becomes an exception.

Where it is looked for: MUSTER_LIBRARY; beside this file, where the wheel has it; in build/ of a checkout.
"""

import ctypes
import os
import platform
import re
import subprocess
import sysconfig
from typing import Optional

from ._version import __version__

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKOUT = os.path.dirname(os.path.dirname(HERE))
IN_CHECKOUT = os.path.isfile(os.path.join(CHECKOUT, "include", "muster", "version.h"))
BUILD = f"make -C {CHECKOUT}" if IN_CHECKOUT else "pip install --force-reinstall --no-deps muster-launch"

OK, ENOMEM = 0, -2


class MusterError(RuntimeError):
    """A call of Muster failed. `code` is its negative status (muster/status.h), the text says what went wrong."""

    def __init__(self, message: str, code: int = -3) -> None:
        super().__init__(message)
        self.code = code


class MusterTimeout(MusterError, TimeoutError):
    """A wait ended without what it waited for."""


class MusterConnectionError(MusterError, ConnectionError):
    """The connection to a server broke, or was closed."""


class MusterNotFound(MusterError, LookupError):
    """What was asked for is not there."""


class MusterCorrupt(MusterError, ValueError):
    """A file is damaged."""


class MusterInvalid(MusterError, ValueError):
    """An argument, or a variable of the environment, is wrong."""


# By status (include/muster/status.h); all others are a plain MusterError.
_KINDS = {
    -1: MusterInvalid,
    -4: MusterTimeout,
    -5: MusterConnectionError,
    -6: MusterConnectionError,
    -7: MusterConnectionError,
    -8: MusterConnectionError,
    -10: MusterNotFound,
    -13: MusterCorrupt,
}


def _find() -> str:
    candidates = [os.path.join(HERE, "libmuster.so")]
    if IN_CHECKOUT:
        candidates.append(os.path.join(CHECKOUT, "build", "libmuster.so"))
    if os.environ.get("MUSTER_LIBRARY"):
        candidates = [os.environ["MUSTER_LIBRARY"]]
    for path in candidates:
        if os.path.isfile(path):
            return path
    raise ImportError(f"muster {__version__}: there is no {candidates[-1]}; build it: {BUILD}")


def _load() -> ctypes.CDLL:
    path = _find()
    try:
        loaded = ctypes.CDLL(path, use_errno=True)
        loaded.muster_version_text.restype = ctypes.c_char_p
    except (OSError, AttributeError) as why:
        raise ImportError(f"muster {__version__}: {path} is no libmuster for this machine ({platform.machine()}): {why}; build it: {BUILD}") from None
    there = loaded.muster_version_text().decode()
    if there != __version__:
        raise ImportError(f"muster {__version__}: {path} is libmuster {there}; build one that fits: {BUILD}")
    loaded.muster_strerror.restype = ctypes.c_char_p
    loaded.muster_detail.restype = ctypes.c_char_p
    return loaded


library = _load()


def check(code: int) -> None:
    """Raises what a call of the library has refused."""
    if code != OK:
        detail = library.muster_detail().decode("utf-8", "replace") or library.muster_strerror(code).decode()
        if code == ENOMEM:
            raise MemoryError(detail)
        raise _KINDS.get(code, MusterError)(detail, code)


def _installed_program() -> Optional[str]:
    """Where pip has put it, as the package's record says."""
    import importlib.metadata

    try:
        distribution = importlib.metadata.distribution("muster-launch")
    except importlib.metadata.PackageNotFoundError:
        return None
    if not os.path.samefile(str(distribution.locate_file("")), os.path.dirname(HERE)):
        return None  # another copy of this package
    for file in distribution.files or []:
        if file.name == "muster" and ".." in file.parts:
            found = os.path.realpath(str(distribution.locate_file(file)))
            return found if os.access(found, os.X_OK) else None
    return None


_program: Optional[str] = None


def program() -> str:
    """The path of the program `muster` that belongs to this module: MUSTER_BINARY, pip's, that of the checkout, or one in PATH."""
    global _program
    if _program is None:
        candidates = [os.environ["MUSTER_BINARY"]] if os.environ.get("MUSTER_BINARY") else [
            _installed_program(),
            os.path.join(CHECKOUT, "build", "muster") if IN_CHECKOUT else None,
            os.path.join(sysconfig.get_path("scripts"), "muster"),
            *(os.path.join(folder, "muster") for folder in os.environ.get("PATH", "").split(os.pathsep) if folder),
        ]
        found = next((path for path in candidates if path and os.path.isfile(path) and os.access(path, os.X_OK)), None)
        if found is None:
            raise MusterError(f"the program muster is not found; build it: {BUILD}")
        try:
            said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        except OSError as why:
            raise MusterError(f"{found} is no program for this machine ({platform.machine()}): {why.strerror}; build it: {BUILD}") from None
        there = re.search(r"\d+\.\d+\.\d+", said)
        if there is None or there.group(0) != __version__:
            other = there.group(0) if there else "(of no version)"
            raise MusterError(f"{found} is muster {other}, and this module is {__version__}; build one that fits: {BUILD}")
        _program = found
    return _program
