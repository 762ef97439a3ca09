"""What the backend "muster" raises: classes that say what went wrong, and who did it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from . import MusterError as _Base


class MusterError(dist.DistBackendError, _Base):
    """A call of the backend has failed.

    The text is libmuster's sentence. `code` is its number in muster/status.h, `cause` that of what has failed the group: of a GroupError it is
    another one. `group` is the group's name, `operation` the collective that failed ("all_reduce"), and `call` its number in the group; None
    where no call was under way.
    """

    cause: int = 0
    group: str | None = None
    operation: str | None = None
    call: int | None = None


class PeerError(MusterError):
    """A rank is gone: it has died or left, or its host is lost.

    `rank` is its number in the group, `host` and `pid` where it ran, `signal` what has killed it; each is None where it is not known.
    """

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    signal: int | None = None


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


def make(code: int, sentence: str, facts: dict[str, Any], text: str | None = None) -> MusterError:
    """The exception for a code of libmuster, its sentence, and what it knows besides (struct muster_failure, without what is not known).

    text: what is to be read in place of the sentence.
    """
    kind = _CLASSES.get(code, MusterError)
    if text is None:
        # Programs look for this word, which gloo's and NCCL's messages have.
        text = f"The call's timeout was reached: {sentence}" if kind is TimeoutError else sentence
    error = kind(text, code)
    error.cause = facts.get("cause", code)
    error.group, error.operation, error.call = facts.get("group"), facts.get("operation"), facts.get("call")
    if isinstance(error, PeerError):
        error.rank, error.host, error.pid, error.signal = facts.get("rank"), facts.get("host"), facts.get("pid"), facts.get("signal")
    if isinstance(error, TimeoutError):
        error.missing = facts.get("missing", [])
    return error


def make_monitored(code: int, sentence: str, facts: dict[str, Any], rank: int, all_ranks: bool, timeout_ms: int) -> MusterError:
    """The same for monitored_barrier(), in the words by which programs know who was missing."""
    error = make(code, sentence, facts)
    if not isinstance(error, TimeoutError):
        return error
    if rank != 0:
        text = f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: {sentence}"
    else:
        names = error.missing if all_ranks else error.missing[:1]
        who = f"Rank{'s' if len(names) > 1 else ''} {', '.join(map(str, names))} failed to pass monitoredBarrier" if names else "A rank is missing"
        text = f"Rank 0 timed out in monitoredBarrier after {timeout_ms} ms. {who}: {sentence}"
    return make(code, sentence, facts, text)
