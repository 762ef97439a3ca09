"""Error records of a worker in torchelastic's format (docs/worker-contract.md, "Error file"), without PyTorch."""

import functools
import json
import os
import time
import traceback
from typing import Any, Callable, Optional, TypeVar, overload

from ._library import check, library

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MESSAGE_MAX = 1 << 18  # a launcher reads a MiB, and escapes may take six bytes for one


def _write(record: Any) -> None:
    """Whole or not at all: under a name that nobody guesses, then renamed. A record that cannot be written never hides the error that it is about."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    aside = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(aside, "x", encoding="ascii") as file:
            json.dump(record, file)
        os.replace(aside, path)
    except OSError:
        try:
            os.unlink(aside)
        except OSError:
            pass


def _record(message: str, callstack: str) -> None:
    extra = {"py_callstack": callstack[-_MESSAGE_MAX:], "timestamp": str(int(time.time()))}
    _write({"message": {"message": message[:_MESSAGE_MAX], "extraInfo": extra}})


def record_error(message: str) -> None:
    """Writes an error record with this message and the caller's stack. It does not end the process: call it where the program is about to
    exit with a failure. A later record replaces it. Without a launcher it does nothing."""
    _record(message, "".join(traceback.format_stack()[:-1]) + message)


def _pass_on(failure: Any) -> bool:
    """A launcher in this process has failed (PyTorch's ChildFailedError): its root cause is the cause of this process as well."""
    path = getattr(failure, "error_file", "")
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not target or not os.path.isfile(path):
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return False
    if isinstance(found.get("message"), dict):
        found["message"]["errorCode"] = failure.exitcode
    if not (os.path.exists(target) and os.path.samefile(path, target)):
        _write(found)
    return True


@overload
def record(function: _Function) -> _Function: ...
@overload
def record(function: None = None) -> Callable[[_Function], _Function]: ...


def record(function: Optional[Callable[..., Any]] = None) -> Any:
    """Decorator of a worker's main function: what it raises is written to the error file that the launcher names, and raised again.

    The launcher (`muster run`, or torchrun) then shows the traceback of the rank that failed first in its report. Crashes (SIGSEGV and
    its like) leave a record with a backtrace as well. Without a launcher nothing is written. As with PyTorch's @record, exit code 0 of
    sys.exit() is a return, and of a launcher that failed inside this process the root cause is passed on.

    >>> @muster.record
    ... def main():
    ...     train()
    """
    if function is None:
        return record

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        check(library.muster_record_start())
        try:
            return function(*args, **kwargs)
        except SystemExit as end:
            if end.code in (0, None):
                return None
            raise
        except Exception as why:
            first = getattr(why, "get_first_failure", None)
            if first is None or not _pass_on(first()[1]):
                _record(f"{type(why).__name__}: {why}", traceback.format_exc())
            raise

    return recorded
