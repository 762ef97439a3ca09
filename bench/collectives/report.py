"""What a run of bench/collectives says: tables with ratios, and what is promised of them."""

import os
import statistics

KIB, MIB = 1024, 1024 * 1024
NOISE = 0.05  # a median this much above the peer's is not told from it


class Results:
    """samples[(ranks, transport, operation, bytes)][peer] = [microseconds, one a round]"""

    def __init__(self):
        self.samples = {}
        self.versions = {}
        self.distances_ns = []
        self.missing = {}
        self.turns = self.turns_in_noise = 0

    def add(self, ranks, transport, operation, size, peer, microseconds):
        self.samples.setdefault((ranks, transport, operation, size), {}).setdefault(peer, []).append(microseconds)

    def median(self, key, peer):
        samples = self.samples.get(key, {}).get(peer)
        return statistics.median(samples) if samples else None

    def ratio(self, key, peer, other):
        """How many times longer `peer` takes than `other`: the median of the rounds' own ratios, since the machine
        changes between rounds more than within one."""
        ours, theirs = (self.samples.get(key, {}).get(name, []) for name in (peer, other))
        pairs = [a / b for a, b in zip(ours, theirs) if b > 0]
        return statistics.median(pairs) if pairs else None

    def as_json(self):
        rows = [
            {"ranks": r, "transport": t, "operation": o, "bytes": b, "us": peers}
            for (r, t, o, b), peers in sorted(self.samples.items())
        ]
        return {
            "versions": self.versions,
            "distances_ns": self.distances_ns,
            "load": os.getloadavg(),
            "in_noise": [self.turns_in_noise, self.turns],
            "not_measured": self.missing,
            "rows": rows,
        }


def parse_size(text):
    """Bytes of "4", "64K" or "1M"."""
    return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)


def size_text(size):
    for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B" if size else "-"


def figure(value):
    """Three significant digits."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def cell(results, key, peer, other):
    """Microseconds; in brackets how many times as long as `other` it takes, bold where muster is slower than noise."""
    text, ratio = figure(results.median(key, peer)), results.ratio(key, peer, other)
    if ratio is None or peer == other:
        return text
    is_slower = peer.startswith("muster") and ratio > 1 + NOISE
    return f"**{text} ({figure(ratio)})**" if is_slower else f"{text} ({figure(ratio)})"


def matrix(results, ranks, transport, peer, other):
    """A row per size, a column per operation; a barrier has no size and stands in the first row."""
    keys = [key for key in results.samples if key[:2] == (ranks, transport) and peer in results.samples[key]]
    operations = list(dict.fromkeys(key[2] for key in keys))
    sizes = sorted({key[3] for key in keys if key[3] > 0}) or [0]
    lines = ["| size | " + " | ".join(operations) + " |", "|" + "---|" * (len(operations) + 1)]
    for size in sizes:
        cells = []
        for operation in operations:
            has_size = operation != "barrier"
            key = (ranks, transport, operation, size if has_size else 0)
            cells.append(cell(results, key, peer, other) if has_size or size == sizes[0] else "")
        lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) if keys else ""


COLUMNS = [  # peer, the one it is compared with, title
    ("muster", "Open MPI", "muster, us (times Open MPI's)"),
    ("muster_alloc", "Open MPI", "muster with buffers from `muster_alloc()`, us (times Open MPI's)"),
    ("Open MPI", "Open MPI", "Open MPI, us"),
    ("gloo", "muster", "PyTorch's gloo, us (times muster's)"),
]


def tables(results, ranks, transport):
    """A matrix per peer."""
    parts = []
    for peer, other, title in COLUMNS:
        text = matrix(results, ranks, transport, peer, other)
        parts += [f"{title}:", text] if text else []
    return parts


class Promise:
    """`kept(ratio)` of peer / other, in every measured case of `cases(operation, bytes)`."""

    def __init__(self, text, ranks, transport, peer, other, kept, cases):
        self.text = text
        self.ranks = ranks
        self.transport = transport
        self.peer = peer
        self.other = other
        self.kept = kept
        self.cases = cases


def no_slower(ratio):
    return ratio <= 1 + NOISE


def everywhere(_operation, _size):
    return True


# What moves so little that the peers differ by their overhead, not by the memory's speed, is left out of "3 times".
PROMISES = [
    Promise("2 ranks, private buffers: no slower than Open MPI", 2, "shm", "muster", "Open MPI", no_slower, everywhere),
    Promise(
        "2 ranks, muster_alloc(), from 1 MiB on: 3 times faster than Open MPI",
        2,
        "shm",
        "muster_alloc",
        "Open MPI",
        lambda ratio: ratio <= 1 / 3,
        lambda operation, size: size >= MIB,
    ),
    Promise(
        "2 ranks, all_reduce up to 64 KiB: 100 times faster than gloo",
        2,
        "shm",
        "muster",
        "gloo",
        lambda ratio: ratio <= 1 / 100,
        lambda operation, size: operation == "all_reduce" and size <= 64 * KIB,
    ),
    Promise(
        "2 ranks, all_reduce of 1 MiB: 10 times faster than gloo",
        2,
        "shm",
        "muster",
        "gloo",
        lambda ratio: ratio <= 1 / 10,
        lambda operation, size: operation == "all_reduce" and size == MIB,
    ),
    Promise("4 ranks, private buffers: no slower than Open MPI", 4, "shm", "muster", "Open MPI", no_slower, everywhere),
    *(
        Promise(
            f"{ranks} ranks over TCP, up to 64 KiB: no slower than Open MPI",
            ranks,
            "tcp",
            "muster",
            "Open MPI",
            no_slower,
            lambda operation, size: size <= 64 * KIB,
        )
        for ranks in (2, 4)
    ),
    *(
        Promise(
            f"{ranks} ranks over TCP, from 64 MiB on: 1.5 times faster than gloo",
            ranks,
            "tcp",
            "muster",
            "gloo",
            lambda ratio: ratio <= 1 / 1.5,
            lambda operation, size: size >= 64 * MIB,
        )
        for ranks in (2, 4)
    ),
]


def promises(results):
    """One line a promise: in how many of the measured cases it is kept, and which break it."""
    lines = ["| promise | kept in | not kept: times as long as the peer |", "|---|---|---|"]
    for promise in PROMISES:
        ratios = {
            key: results.ratio(key, promise.peer, promise.other)
            for key in results.samples
            if key[:2] == (promise.ranks, promise.transport) and promise.cases(*key[2:])
        }
        ratios = {key: ratio for key, ratio in ratios.items() if ratio is not None}
        if not ratios:
            continue
        broken = {key: ratio for key, ratio in ratios.items() if not promise.kept(ratio)}
        worst = "; ".join(f"{key[2]} {size_text(key[3])} {figure(ratio)}" for key, ratio in broken.items())
        lines.append(f"| {promise.text} | {len(ratios) - len(broken)} of {len(ratios)} | {worst or '-'} |")
    return "\n".join(lines) if len(lines) > 2 else "No promise was measured."


def distance_text(results):
    if not results.distances_ns:
        return "the distance of the processors was not measured"
    low, middle, high = min(results.distances_ns), statistics.median(results.distances_ns), max(results.distances_ns)
    return f"a word took {figure(low)} to {figure(high)} ns (median {figure(middle)}) between the two processors"
