"""What the backend "muster" raises: classes that say what went wrong, and who did it."""

from __future__ import annotations

import re

import torch.distributed as dist

from . import MusterError as _Base

# libmuster's sentences, as its tests hold them: "... rank 1 (root rank 5) (pid 7 on host a) ...", "these ranks did not come: 1-3, 5; ...".
_WHO = re.compile(r"\brank (\d+)(?: \(root rank \d+\))? \(pid (\d+) on host ([^)\s]+)\)")
_MISSING = re.compile(r"these ranks did not come: ([\d, -]+)")
_OPERATION = re.compile(r"(?:^|: )([a-z_]+)(?: of [^:]*)? \(call \d+ of group ")


class MusterError(dist.DistBackendError, _Base):
    """A call of the backend has failed.

    The text is libmuster's sentence. `code` is its number in muster/status.h, `operation` the collective that failed ("all_reduce"), or
    None where no call was under way.
    """

    operation: str | None = None


class PeerError(MusterError):
    """A rank is gone: it has died or left, or its host is lost.

    `rank` is its number in the group, `host` and `pid` where it ran; each is None where it is not known.
    """

    rank: int | None = None
    host: str | None = None
    pid: int | None = None


class TimeoutError(MusterError):  # noqa: A001 - it is only seen as muster.errors.TimeoutError
    """Not all ranks came in time, or some got stuck in the call. `missing`: their numbers in the group; empty where that is not known."""

    missing: list[int]


class MismatchError(MusterError):
    """Ranks made different calls; the text names both."""


class AbortedError(MusterError):
    """The group was aborted, here or by another rank."""


class GroupError(MusterError):
    """The group had failed before this call; the text says by what."""


_CLASSES: dict[int, type[MusterError]] = {
    -4: TimeoutError, -14: GroupError, -15: PeerError, -16: MismatchError, -17: AbortedError,
}


def _numbers(text: str) -> list[int]:
    """The numbers of "1-3, 5"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def make(code: int, sentence: str, text: str | None = None) -> MusterError:
    """The exception for a code of libmuster and its sentence. text: what is to be read in place of the sentence."""
    kind = _CLASSES.get(code, MusterError)
    if text is None:
        # Programs look for this word, which gloo's and NCCL's messages have.
        text = f"The call's timeout was reached: {sentence}" if kind is TimeoutError else sentence
    error = kind(text, code)
    operation = _OPERATION.search(sentence)
    error.operation = operation.group(1) if operation else None
    if isinstance(error, PeerError):
        who = _WHO.search(sentence)
        if who:
            error.rank, error.pid, error.host = int(who.group(1)), int(who.group(2)), who.group(3)
    if isinstance(error, TimeoutError):
        missing = _MISSING.search(sentence)
        error.missing = _numbers(missing.group(1)) if missing else sorted({int(who.group(1)) for who in _WHO.finditer(sentence)})
    return error


def make_monitored(code: int, sentence: str, rank: int, all_ranks: bool, timeout_ms: int) -> MusterError:
    """The same for monitored_barrier(), in the words by which programs know who was missing."""
    error = make(code, sentence)
    if not isinstance(error, TimeoutError):
        return error
    if rank != 0:
        text = f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: {sentence}"
    else:
        names = error.missing if all_ranks else error.missing[:1]
        who = f"Rank{'s' if len(names) > 1 else ''} {', '.join(map(str, names))} failed to pass monitoredBarrier" if names else "A rank is missing"
        text = f"Rank 0 timed out in monitoredBarrier after {timeout_ms} ms. {who}: {sentence}"
    return make(code, sentence, text)
