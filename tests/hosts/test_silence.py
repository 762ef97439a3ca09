#!/usr/bin/env python3
# A host is silent for a while, and neither dead nor alive for the others: who keeps its place, and are there ever two workers of one rank?
# waits: yes
"""A cell of the matrix is named BACKEND/CUT/HOST/WAY/WORKER/SIZE/NEWCOMER, for example c10d/20/store/both/shell/fixed/alone. On the command line
(together.py) any combination can be given, whether or not it is among the chosen ones.

CUT is the time in seconds for which the host is silent, by the default settings. Here keep-alive and hold time are shorter, and so are the
cuts (silence.SHORT); --real plays with the default settings. test_events.py has what else may happen meanwhile."""

import itertools
import os
import sys
import time
import typing

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import hosts  # noqa: E402
import jobs  # noqa: E402
import silence  # noqa: E402
import together  # noqa: E402

EVER = "ever"
AXES = {
    "backend": silence.BACKENDS,
    "cut": (5, 20, 36, 90, EVER),
    "host": ("store", "other"),
    "way": hosts.WAYS,
    "worker": silence.WORKERS,
    "size": silence.SIZES,
    "newcomer": ("alone", "newcomer"),
}

# What `make test` plays: each backend once, and what differs most.
CORNER = [
    "c10d/20/other/both/shell/fixed/newcomer",
    "static/20/other/both/shell/fixed/newcomer",
    "muster/20/other/both/c/fixed/newcomer",
    "muster3/20/store/both/shell/fixed/alone",
    "etcd-v2/20/store/in/shell/fixed/newcomer",
    "etcd-v3/20/store/both/shell/fixed/alone",
]

# What does not hold yet (together.py).
UNTIL = {
    "*/*": "until the backend holds",
}

AGREE_S = 5  # within so long after a cut the agents have agreed again
OVER_S = 15  # a job that cannot go on is over so long after the hold time
SLACK_S = 2  # a busy machine


class Cell(typing.NamedTuple):
    backend: str
    cut: object
    host: str
    way: str
    worker: str
    size: str
    newcomer: str

    @property
    def name(self):
        return "/".join(map(str, self))

    @classmethod
    def of(cls, name):
        words = name.split("/")
        if len(words) == len(AXES) and words[1] != EVER:
            words[1] = int(words[1])
        bad = [word for word, values in zip(words, AXES.values()) if word not in values]
        if len(words) != len(AXES) or bad:
            sys.exit(f"{name}: {' '.join(map(str, bad)) or 'so many words'}? A cell is {'/'.join(AXES)} of {AXES}")
        return cls(*words)

    def is_possible(self):
        """static has neither elastic jobs nor spares; whose place is free takes the spare, not the newcomer."""
        return not (self.backend == "static" and self.size != "fixed") and not (self.size == "spare" and self.newcomer == "newcomer")

    def silent(self):
        return {"store": "host0", "other": "host1"}[self.host]


def matrix():
    """Cells such that every two values of two axes meet in one. Always the same: of those that bring most new pairs, the first one."""
    names = list(AXES)
    cells = [cell for values in itertools.product(*AXES.values()) if (cell := Cell(*values)).is_possible()]

    def pairs(cell):
        return {(i, j, cell[i], cell[j]) for i in range(len(names)) for j in range(i)}

    open_pairs = set().union(*map(pairs, cells))
    chosen = []
    for name in CORNER:
        chosen.append(Cell.of(name))
        open_pairs -= pairs(chosen[-1])
    best = len(names) * (len(names) - 1) // 2
    while open_pairs:
        found = None
        most = 0
        for cell in cells:
            count = len(pairs(cell) & open_pairs)
            if count > most:
                found, most = cell, count
                if most == best:
                    break
        best = most  # there can be no better one later
        chosen.append(found)
        open_pairs -= pairs(found)
    return [cell.name for cell in chosen]


# --------------------------------------------------------------------------- what must hold


class Expected(typing.NamedTuple):
    """starts: how many workers start in all; None: any number. codes: which codes an agent may end with. seconds: see Seen."""

    starts: int | None
    codes: dict
    agreed_s: float | None = None
    flowing_s: float | None = None
    over_s: float | None = None
    silent_end_s: float | None = None


class Seen(typing.NamedTuple):
    """What came of a cell. agreed_s, flowing_s: after the end of the cut. over_s: from the beginning of the cut to the end of the last agent.
    silent_end_s: ... to the last sign of life of the silent side's workers that ran when it began."""

    starts: dict  # rank -> how many
    overlaps: list
    codes: dict
    agreed_s: float | None
    flowing_s: float | None
    over_s: float | None
    silent_end_s: float | None

    def row(self):
        def second(value):
            return "-" if value is None else f"{value:.1f}"

        starts = ",".join(f"{rank}:{count}" for rank, count in sorted(self.starts.items()))
        overlaps = ",".join(f"rank {life.rank} {life.host}+{later.host} {seconds:.1f} s" for life, later, seconds in self.overlaps) or "never"
        return (f"starts {starts}; twice {overlaps}; codes {self.codes}; agreed {second(self.agreed_s)}, flowing {second(self.flowing_s)}, "
                f"over {second(self.over_s)}, silent side ended {second(self.silent_end_s)}")  # fmt: skip


def can_go_on(cell):
    """Are there nodes enough without the silent one?"""
    return cell.size != "fixed"


def expected(cell, times):
    """The table: what must hold in which cell. Two workers of one rank must never be."""
    members = {"host0": (0,), "host1": (0,)}
    others = {"host2": (0, 1)} if cell.newcomer == "newcomer" or cell.size == "spare" else {}  # not needed, or too late
    cut_s = None if cell.cut == EVER else times.cuts[cell.cut]
    time_s = times.silence_s if can_go_on(cell) else times.hold_s
    if cut_s is not None and (cut_s < time_s if can_go_on(cell) else cut_s <= time_s):
        return Expected(2, {**members, **others}, agreed_s=AGREE_S, flowing_s=AGREE_S)
    any_code = {name: (0, 1) for name in (*members, *others)}
    if cell.cut != EVER:
        return Expected(None, any_code)
    end_s = time_s * 7 / 8 + SLACK_S
    if not can_go_on(cell) and cell.newcomer == "alone":
        return Expected(2, dict.fromkeys(members, (1,)), over_s=times.hold_s + OVER_S, silent_end_s=end_s)
    return Expected(None, any_code, silent_end_s=end_s)


def judge(what, seen):
    """Sentences about what does not hold."""
    wrong = [f"two workers of one rank for {seconds:.1f} s: {life} and {later}" for life, later, seconds in seen.overlaps]
    if what.starts is not None and sum(seen.starts.values()) != what.starts:
        wrong.append(f"workers have started {sum(seen.starts.values())} times, not {what.starts}")
    wrong += [f"{name} ended with {seen.codes.get(name)}, not {' or '.join(map(str, codes))}" for name, codes in what.codes.items()
              if seen.codes.get(name) not in codes]  # fmt: skip
    for name in ("agreed_s", "flowing_s", "over_s", "silent_end_s"):
        limit, value = getattr(what, name), getattr(seen, name)
        if limit is not None and (value is None or value > limit):
            wrong.append(f"{name} is {value}, beyond {limit}")
    return wrong


# --------------------------------------------------------------------------- a cell is played


def seconds_between(begin_ns, end_ns):
    return None if end_ns is None else (end_ns - begin_ns) / silence.SECOND_NS


def losing_host(cell):
    """Whose workers have to end: those that no beat is answered any more. Who cannot reach the store's host; with several places to meet, who is cut off."""
    return "host1" if cell.backend in ("c10d", "static", "muster") else cell.silent()


def play_cell(cell, times):
    names = ["host0", "host1", "host2"]
    with hosts.Network(names) as network, jobs.Scratch() as scratch:
        job = silence.Job(network, scratch, cell.backend, cell.size, cell.worker, times)
        job.begin()
        cut_ns = time.monotonic_ns()
        network.cut(cell.silent(), way=cell.way)
        cut_s = times.cuts.get(cell.cut)
        if cell.newcomer == "newcomer":
            early_s = min(times.interval_s, (cut_s or times.hold_s) / 2)
            job.pass_time(early_s)
            job.start("host2", node_rank=cell.silent().removeprefix("host"))
            job.pass_time((cut_s or early_s) - early_s)
        elif cut_s:
            job.pass_time(cut_s)
        agreed_s = flowing_s = None
        if cut_s:
            agreed_s, flowing_s = heal(job, cell, times)
            job.tell("end")
            job.until(job.ended, PATIENCE_OVER_S + times.shutdown_s)
        else:
            for_ever(job, cell, times)
        starts = {rank: sum(life.rank == rank for life in job.lives) for rank in {life.rank for life in job.lives}}
        ends = [agent.ended_ns for agent in job.agents.values()]
        mine = [life.last_ns for life in job.lives if life.host == losing_host(cell) and life.start_ns < cut_ns]
        seen = Seen(starts, job.overlaps(), job.codes(), agreed_s, flowing_s, seconds_between(cut_ns, max(ends)) if all(ends) else None,
                    seconds_between(cut_ns, max(mine)))  # fmt: skip
        print(f"{cell.name}: {seen.row()}", flush=True)
        wrong = judge(expected(cell, times), seen)
        jobs.check(not wrong, "; ".join(wrong) + "\n" + job.told())


PATIENCE_OVER_S = 40  # for what should take AGREE_S, so that it is told how long it takes


def heal(job, cell, times):
    """The end of the cut; until the agents have agreed, the workers talk, and no late verdict has come."""
    healed_ns = time.monotonic_ns()
    job.network.heal()
    agreed_ns = flowing_ns = None

    def well():
        nonlocal agreed_ns, flowing_ns
        agreed_ns = agreed_ns or job.agreed(healed_ns)
        flowing_ns = flowing_ns or job.runs(healed_ns)
        return agreed_ns and flowing_ns

    job.until(well, PATIENCE_OVER_S)
    job.pass_time(times.interval_s * (times.attempts + 1))  # who is thought dead is told within a silence
    return seconds_between(healed_ns, agreed_ns), seconds_between(healed_ns, flowing_ns)


def for_ever(job, cell, times):
    """The cut lasts. A job that cannot go on ends by itself; else those who go on are told to end."""
    if not can_go_on(cell) and cell.newcomer == "alone":
        job.until(job.ended, times.hold_s + OVER_S + PATIENCE_OVER_S)
        return
    silent = cell.silent()
    gone_on_s = times.hold_s + times.shutdown_s + OVER_S
    job.until(lambda: any(life.host == "host2" or (life.world == 1 and life.host != silent) for life in job.living()), gone_on_s)
    job.until(lambda: not any(life.host == losing_host(cell) for life in job.living() if life.start_ns), times.hold_s)
    job.pass_time(times.silence_s)
    job.tell("end")
    job.until(lambda: job.ended([name for name in job.agents if name != silent]), PATIENCE_OVER_S)


if __name__ == "__main__":
    sys.exit(together.main(__file__, CORNER, matrix, lambda name, times: play_cell(Cell.of(name), times), UNTIL))
