#!/usr/bin/env python3
# A state in memory that makes the program fail is given up after three failures in a row, and the job goes on from its
# snapshot. Deaths from outside are no such failures.
import os
import re
import tempfile

from preempted import MUSTER, job

WORKER = [os.path.join(os.path.dirname(MUSTER), "bench", "poisoned_worker")]
OPTIONS = ["--max-restarts=9", "--restart-backoff=0"]
BACKENDS = (("standalone", 1), ("c10d", 2), ("muster", 2))


def run(backend, nodes, *words):
    with tempfile.TemporaryDirectory() as folder:
        options = [*OPTIONS, f"--log-dir={folder}/logs"]  # with files that tell who failed because of another
        with job(backend, nodes, ["--no-python", *WORKER, folder, *words], options) as agents:
            for agent in agents:
                agent.end(0)
            return "".join(agent.text for agent in agents)


def sources(text, rank):
    """Where the rank's attempts have gone on from."""
    found = re.findall(rf"rank {rank}, attempt \d+: from step (\d+) (in memory|of the snapshot|of nothing)", text)
    return [(int(step), what) for step, what in found]


def a_poisoned_step_is_given_up():
    for backend, nodes in BACKENDS:
        text = run(backend, nodes)
        for rank in range(2 * nodes):
            first, *kept, last = sources(text, rank)
            assert first == (0, "of nothing") and last == (5, "of the snapshot"), (backend, text)
            # A node whose ranks have failed because of it may take that for a change of members, and start them once more.
            assert len(kept) >= 2 and set(kept) == {(7, "in memory")}, (backend, text)
            assert re.search(f"rank {rank}: done, weight 0.0", text), (backend, text)
        assert text.count("the program has failed 3 times in a row after step 7: the state of that step in memory is given up") == 1, text


def a_step_is_not_given_up_for_kills():
    for backend, nodes in BACKENDS:
        text = run(backend, nodes, "kill")
        for rank in range(2 * nodes):
            first, *kept = sources(text, rank)
            assert first == (0, "of nothing") and len(kept) >= 5 and set(kept) == {(7, "in memory")}, (backend, text)
        assert "given up" not in text, (backend, text)


for case in (a_poisoned_step_is_given_up, a_step_is_not_given_up_for_kills):
    case()
    print(f"ok {case.__name__}", flush=True)
