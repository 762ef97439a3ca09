"""For test_ends.py and soak: ranks that end, or go on, with sends and receives posted that nobody waits for, as forked processes that take Python
apart like a program's own end does."""

import ctypes
import dataclasses
import gc
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
import weakref

import ranks
import torch
import torch.distributed as dist

from muster import errors

# Around every length at which messages take another way.
LENGTHS = [4, 2000, 4096, 40000, 65536, 300000, 1 << 20, 5 << 20, 64 << 20]
WAYS = ["raises", "returns", "destroys", "killed", "drops"]
RAISED = 3

gc.collect()
gc.freeze()  # else each end of Python looks through all of PyTorch

works = []  # as a script's own: they go when Python takes its modules apart


def _be(rank, size, function, backend, method, pipe):
    signal.alarm(ranks.PATIENCE_S)
    weakref.finalize._registry.clear()  # folders of the parent's
    code = 0
    try:
        dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
        value = True, function(rank, size)
        code = value[1] if type(value[1]) is int else 0
    except BaseException:  # noqa: BLE001 - the test is to hear of it
        value = False, traceback.format_exc()
    with os.fdopen(pipe, "wb") as out:
        pickle.dump(value, out)
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.pythonapi.Py_Exit(code)


def run(size, function, backend="muster", method=None):
    """Per rank: what the function returned (None: it was killed), how the process ended, and when. An int that the function returns is the exit code.
    method: where the ranks meet, as init_process_group() takes it; None: in a file."""
    pids, pipes, results = [], [], []
    with tempfile.TemporaryDirectory(prefix="muster-ends-") as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _be(rank, size, function, backend, method or f"file://{os.path.join(folder, 'store')}", writer)
            os.close(writer)
            pids.append(pid)
            pipes.append(reader)
        for rank in range(size):
            with os.fdopen(pipes[rank], "rb") as pipe:
                data = pipe.read()
            good, value = pickle.loads(data) if data else (True, None)
            status = os.waitstatus_to_exitcode(os.waitpid(pids[rank], 0)[1])
            results.append((good, value, status, time.monotonic()))
    bad = [f"rank {rank}: {value}" for rank, (good, value, _, _) in enumerate(results) if not good]
    assert not bad, "\n".join(bad)
    for rank, (_, _, status, _) in enumerate(results):
        assert status != -signal.SIGALRM, f"rank {rank} has not ended"
    return results


@dataclasses.dataclass
class Letter:
    other: int  # than the victim
    bytes: int
    is_to_victim: bool
    is_asked_for: bool  # posted on both sides


class Plan:
    """An end at random, from a seed; the same on all ranks."""

    def __init__(self, seed):
        chance = random.Random(seed)
        self.seed = seed
        self.size = chance.randint(2, 4)
        self.way = chance.choice(WAYS)
        self.victim = chance.randrange(self.size)
        self.all_match = chance.random() < 0.5  # nothing but sends of the victim that are waited for
        self.pause = chance.random() * 0.02
        self.ends_well = self.way in ("returns", "destroys")
        self.letters = [Letter((self.victim + 1 + chance.randrange(self.size - 1)) % self.size,
                               LENGTHS[-1] if chance.random() < 0.08 else chance.choice(LENGTHS[:-1]),
                               not self.all_match and chance.random() < 0.5, self.all_match or chance.random() < 0.5)
                        for _ in range(chance.randint(1, 6))]

    def post(self, rank):
        """This rank's sends and receives: (letter's number, tensor, work)."""
        posted = []
        for i, letter in enumerate(self.letters):
            is_victim = rank == self.victim
            if (not is_victim and letter.other != rank) or (not letter.is_asked_for and is_victim == (i % 2 == 0)):
                continue
            peer, sends = letter.other if is_victim else self.victim, letter.is_to_victim != is_victim
            tensor = torch.full((letter.bytes,), i + 1 if sends else 0, dtype=torch.uint8)
            posted.append((i, tensor, (dist.isend if sends else dist.irecv)(tensor, peer, tag=i)))
        return posted

    def be_victim(self):
        time.sleep(self.pause)
        if self.way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.way == "destroys":
            works.clear()
            dist.destroy_process_group()
        elif self.way == "drops":
            memory = [tensor.numpy() for _, tensor, _ in works]
            works.clear()
            for one in memory:
                one.fill(0xee)
            dist.barrier()
            dist.destroy_process_group()
        return RAISED if self.way == "raises" else 0

    def be_other(self, rank):
        """Waits for what may come. Gives when the first exception came, if one did."""
        failed_at = None
        for i, tensor, work in works:
            letter = self.letters[i]
            if self.way == "drops" and (letter.is_to_victim or not letter.is_asked_for):
                continue
            try:
                work.wait()
                assert letter.is_to_victim or bool((tensor == i + 1).all()), f"letter {i} is damaged"
            except errors.MusterError as error:
                assert self.way != "drops" and not (self.ends_well and self.all_match), error
                failed_at = self._judge(error, failed_at)
        if self.way == "drops":
            works.clear()
            dist.barrier()
            dist.destroy_process_group()
        elif not self.all_match:
            try:
                dist.recv(torch.ones(1), self.victim, tag=len(self.letters))
                raise AssertionError("a message came that nobody has sent")
            except errors.MusterError as error:
                failed_at = self._judge(error, failed_at)
        return failed_at

    def _judge(self, error, failed_at):
        assert isinstance(error, errors.PeerError) or failed_at is not None, error
        assert f"rank {self.victim}" in str(error), error
        return failed_at or time.monotonic()

    def __call__(self, rank, size):
        works.extend(self.post(rank))
        dist.barrier()
        begun = time.monotonic()
        result = self.be_victim() if rank == self.victim else self.be_other(rank)
        return result if rank == self.victim else (begun, result)


def play(seed):
    """One such end. Seconds from the barrier before it to the end of the last process."""
    plan = Plan(seed)
    try:
        results = run(plan.size, plan)
        begun = max(value[0] for _, value, _, _ in results if isinstance(value, tuple))
        for rank, (_, _, status, _) in enumerate(results):
            wanted = {"killed": -signal.SIGKILL, "raises": RAISED}.get(plan.way, 0) if rank == plan.victim else 0
            assert status == wanted, f"rank {rank} ended with {status}"
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {plan.way}, victim {plan.victim} of {plan.size}: {error}") from None
    return plan.way, max(at for _, _, _, at in results) - begun
