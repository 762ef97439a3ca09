#!/usr/bin/env python3
# A host is silent for a while, and neither dead nor alive for the others: who keeps its place, and are there ever two workers of one rank?
# waits: yes
"""A cell of the matrix is named BACKEND/CUT/HOST/WAY/WORKER/SIZE/NEWCOMER, for example c10d/20/store/both/shell/fixed/alone. On the command line
(together.py) any combination can be given, whether or not it is among the chosen ones.

CUT is the time in seconds for which the host is silent, by the default settings. Here keep-alive and hold time are shorter, and so are the
cuts (silence.SHORT); --real plays with the default settings. test_events.py has what else may happen meanwhile."""

import collections
import itertools
import os
import re
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
CORNER = [  # `whole_matrix` of tests/tiers stands for the rest
    "c10d/20/other/both/shell/fixed/newcomer",
    "static/20/other/both/shell/fixed/newcomer",
    "muster/20/other/both/c/fixed/newcomer",
    "muster3/20/store/both/shell/fixed/alone",
    "etcd-v2/20/store/in/shell/fixed/newcomer",
    "etcd-v3/20/store/both/shell/fixed/alone",
    "c10d/ever/other/both/shell/fixed/alone",
]
# What is in the matrix besides pairs: the others need the silent node, with each backend.
ALWAYS = [f"{backend}/{rest}" for backend in AXES["backend"] for rest in ("36/store/both/c/fixed/alone", "ever/store/both/shell/fixed/alone")]

# What does not hold yet (together.py).
UNTIL = {
    "c10d/[239e]*": "until c10d holds",
    "static/*": "until static holds",
    "muster/[239e]*": "until muster holds",
    "muster3/[239e]*": "until muster with several endpoints holds",
    "etcd-v2/[239e]*": "until etcd-v2 holds",
    "etcd-v3/[239e]*": "until etcd-v3 holds",
}

AGREE_S = 5  # within so long after a cut the agents have agreed again
OVER_S = 15  # a job that cannot go on is over so long after the hold time
SLACK_S = 2  # a busy machine
WAIT_TOLD_S = 7  # who waits for so long has said it


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

    def has_third(self):
        return self.size == "spare" or self.newcomer == "newcomer"

    def silent(self):
        return {"store": "host0", "other": "host1"}[self.host]


def matrix():
    """Cells such that every two values of two axes meet in one. Always the same: of those that bring most new pairs, the one whose values were
    chosen least."""
    axes = list(AXES)
    first = [Cell.of(name) for name in CORNER + ALWAYS]
    pairs = {cell: frozenset((i, j, cell[i], cell[j]) for i in range(len(axes)) for j in range(i))
             for cell in map(Cell._make, itertools.product(*AXES.values())) if cell.is_possible()}  # fmt: skip
    left, chosen, used = set().union(*pairs.values()), [], collections.Counter()
    while left or first:
        most = max(len(each & left) for each in pairs.values())
        best = first[:1] or (cell for cell, each in pairs.items() if len(each & left) == most)
        cell = min(best, key=lambda cell: sum(used[value] for value in enumerate(cell)))
        first = first[1:]
        chosen.append(cell)
        left -= pairs[cell]
        used.update(enumerate(cell))
    return [cell.name for cell in chosen]


# --------------------------------------------------------------------------- what must hold


class Expected(typing.NamedTuple):
    """starts: how many workers start in all; None: any number. codes: with which codes agents end, by name; others may end as they
    like, or not at all. says: what agents say from the beginning of the cut on. seconds: see Seen."""

    starts: int | None
    codes: dict
    says: dict
    agreed_s: float | None = None
    flowing_s: float | None = None
    over_s: float | None = None
    silent_end_s: float | None = None


class Seen(typing.NamedTuple):
    """What came of a cell. agreed_s, flowing_s: after the end of the cut. over_s: from the beginning of the cut to the end of the last agent.
    silent_end_s: ... to the last sign of life of the losing side's workers that ran when it began."""

    starts: dict  # rank -> how many
    overlaps: list
    codes: dict
    said: dict
    agreed_s: float | None
    flowing_s: float | None
    over_s: float | None
    silent_end_s: float | None

    def row(self):
        def second(value):
            return "-" if value is None else f"{value:.1f}"

        starts = ",".join(f"{rank}:{count}" for rank, count in sorted(self.starts.items()))
        overlaps = ",".join(f"rank {life.rank} {life.host}+{later.host} {seconds:.1f} s" for life, later, seconds in self.overlaps) or "never"
        codes = " ".join(f"{name}:{code}" for name, code in self.codes.items())
        return (f"starts {starts}; twice {overlaps}; codes {codes}; agreed {second(self.agreed_s)}, flowing {second(self.flowing_s)}, "
                f"over {second(self.over_s)}, losing side ended {second(self.silent_end_s)}")  # fmt: skip


MEMBERS = ("host0", "host1")
ADDRESSES = {"host0": r"host0|10\.88\.0\.1\b", "host1": r"host1|10\.88\.0\.2\b"}  # how an agent names a host


def has_one_place(backend):
    """Do all agents meet at host0 alone?"""
    return backend in ("c10d", "static", "muster")


def losing_host(cell):
    """Whose workers have to end: a host whose beats nobody answers. That is who cannot reach the only place to meet; where there are several, who is cut off."""
    return "host1" if has_one_place(cell.backend) else cell.silent()


def going_on(cell):
    """The hosts that form a world without the silent one."""
    others = [host for host in MEMBERS if host != losing_host(cell)]
    third = ["host2"] if cell.has_third() and not (has_one_place(cell.backend) and cell.silent() == "host0") else []
    if cell.size == "elastic":
        return others + third
    return others + third if third else []


def early_s(cell, times):
    """When a newcomer comes, in the cut."""
    return min(times.interval_s, times.cuts.get(cell.cut, times.hold_s) / 2)


def expected(cell, times):
    """The table: what must hold in which cell. Two workers of one rank must never be."""
    cut_s = None if cell.cut == EVER else times.cuts[cell.cut]
    needs_all = cell.size == "fixed"
    time_s = times.hold_s if needs_all else times.silence_s  # for which the place is kept
    third = {"host2": (0, 1)} if cell.has_third() else {}  # not needed, or too late
    all_well = {**dict.fromkeys(MEMBERS, (0,)), **third}
    if cut_s is not None and (cut_s <= time_s if needs_all else cut_s < time_s):
        says = {"host2": "wait"} if cell.newcomer == "newcomer" and cut_s - early_s(cell, times) > WAIT_TOLD_S else {}
        return Expected(2, all_well, says, agreed_s=AGREE_S, flowing_s=AGREE_S)
    if cut_s is not None:  # the others have gone on, and the silent one comes back as a member or a spare, if it still finds them
        return Expected(None, dict.fromkeys(going_on(cell), (0,)), {})
    end_s = time_s * 7 / 8 + SLACK_S
    if needs_all and cell.newcomer == "alone":
        loser = losing_host(cell)
        winner = next(host for host in MEMBERS if host != loser)
        says = {winner: ADDRESSES[loser], loser: ADDRESSES[winner] if has_one_place(cell.backend) else "coordinator|etcd|" + ADDRESSES[winner]}
        return Expected(2, dict.fromkeys(MEMBERS, (1,)), says, over_s=times.hold_s + OVER_S, silent_end_s=end_s)
    return Expected(None, dict.fromkeys(going_on(cell), (0,)), {}, silent_end_s=end_s)


def judge(what, seen):
    """Sentences about what does not hold."""
    wrong = [f"two workers of one rank for {seconds:.1f} s: {life} and {later}" for life, later, seconds in seen.overlaps]
    if what.starts is not None and sum(seen.starts.values()) != what.starts:
        wrong.append(f"workers have started {sum(seen.starts.values())} times, not {what.starts}")
    wrong += [f"{name} ended with {seen.codes.get(name)}, not {' or '.join(map(str, codes))}" for name, codes in what.codes.items()
              if seen.codes.get(name) not in codes]  # fmt: skip
    wrong += [f"{name} does not say {words}" for name, words in what.says.items() if not re.search(words, seen.said.get(name, ""))]
    for name in ("agreed_s", "flowing_s", "over_s", "silent_end_s"):
        limit, value = getattr(what, name), getattr(seen, name)
        if limit is not None and (value is None or value > limit):
            wrong.append(f"{name} is {value}, beyond {limit}")
    return wrong


# --------------------------------------------------------------------------- a cell is played


def seconds_between(begin_ns, end_ns):
    return None if end_ns is None else (end_ns - begin_ns) / silence.SECOND_NS


def play_cell(cell, times):
    names = ["host0", "host1", "host2"]
    with hosts.Network(names) as network, jobs.Scratch() as scratch:
        job = silence.Job(network, scratch, cell.backend, cell.size, cell.worker, times)
        job.begin()
        before = {name: len(agent.err()) for name, agent in job.agents.items()}
        cut_ns = time.monotonic_ns()
        network.cut(cell.silent(), way=cell.way)
        cut_s = times.cuts.get(cell.cut)
        if cell.newcomer == "newcomer":
            job.pass_time(early_s(cell, times))
            job.start("host2", node_rank=cell.silent().removeprefix("host"))
            job.pass_time(cut_s - early_s(cell, times) if cut_s else 0)
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
        said = {name: agent.err()[before.get(name, 0) :] for name, agent in job.agents.items()}
        seen = Seen(starts, job.overlaps(), job.codes(), said, agreed_s, flowing_s, seconds_between(cut_ns, max(ends)) if all(ends) else None,
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
    if cell.size == "fixed" and cell.newcomer == "alone":
        job.until(job.ended, times.hold_s + OVER_S + SLACK_S)
        return
    silent = cell.silent()
    gone_on_s = times.hold_s + times.shutdown_s + OVER_S
    job.until(lambda: any(life.host == "host2" or (life.world == 1 and life.host != silent) for life in job.living()), gone_on_s)
    job.until(lambda: not any(life.host == losing_host(cell) for life in job.living()), times.hold_s)
    job.pass_time(times.silence_s)
    job.tell("end")
    job.until(lambda: job.ended(going_on(cell)), PATIENCE_OVER_S)


if __name__ == "__main__":
    sys.exit(together.main(__file__, CORNER, matrix, lambda name, times: play_cell(Cell.of(name), times), UNTIL))
