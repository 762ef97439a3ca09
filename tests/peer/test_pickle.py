#!/usr/bin/env python3
# Random rendezvous states: pickled by PyTorch, read and written again by Muster, loaded by PyTorch. Nothing may change.
# needs: torch
"""Usage: test_pickle.py [SEED]; MUSTER_BINARY names the program, pickle_peer lies in tests/ beside it."""
import base64
import os
import pickle
import random
import subprocess
import sys
from datetime import datetime, timedelta, timezone

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cases  # noqa: E402
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState  # noqa: E402

PARTS = {"some_states": 75, "more_states": 225}


def random_time(rng):
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=rng.randrange(-(10**16), 10**16))


def random_node(rng):
    addr = rng.choice(["localhost", "10.0.0.1", "fd00::1", "host", "h\u00f6st", "\U0001f600", "x" * 200])
    pid = rng.choice([0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**62, rng.randrange(2**22)])
    return _NodeDesc(f"{addr}{rng.randrange(50)}", pid, rng.choice([0, 0, 0, 1, 300, 70000]))


def random_state(rng):
    state = _RendezvousState()
    state.round = rng.choice([0, 1, 255, 256, 65536, 2**40])
    state.complete = rng.random() < 0.5
    state.closed = rng.random() < 0.2
    state.deadline = random_time(rng) if rng.random() < 0.5 else None
    for i in range(rng.choice([0, 1, 2, 3, 10, 50, 50, 50, 1500])):
        node = random_node(rng)
        where = rng.randrange(5)
        if where < 3:
            state.participants[node] = i if state.complete else 0
        elif where == 3:
            state.wait_list.add(node)
        else:
            state.redundancy_list.add(node)
        if rng.random() < 0.9:  # sometimes an equal node that is another object
            twin = _NodeDesc(node.addr, node.pid, node.local_id) if rng.random() < 0.3 else node
            state.last_heartbeats[twin] = random_time(rng)
    return state


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    states = [random_state(rng) for name, count in PARTS.items() if cases.wanted(name) for _ in range(count)]
    lines = [base64.b64encode(pickle.dumps(state, protocol=rng.choice([4, 5]))) for state in states]
    lines.append(base64.b64encode(pickle.dumps(subprocess.Popen)))
    program = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "tests", "pickle_peer")
    done = subprocess.run([program], input=b"\n".join(lines) + b"\n", stdout=subprocess.PIPE, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(states) + 1, len(answers)
    for number, (state, answer) in enumerate(zip(states, answers)):
        assert not answer.startswith(b"error"), (number, answer)
        back = pickle.loads(base64.b64decode(answer))
        assert type(back) is _RendezvousState
        assert back.__dict__ == state.__dict__, f"state {number} changed"
        assert all(when.tzinfo is not None for when in back.last_heartbeats.values())
    assert answers[-1].startswith(b"error"), answers[-1]
    print(f"{len(states)} states came back unchanged; a foreign class was refused")


main()
