# needs: torch
"""Ranks of the backend "muster" that end with sends and receives posted which nobody waits for: they end at once, deliver what gloo delivers, and the
others get the right exception. And work objects that are freed while others hold their futures."""

import os
import subprocess
import sys
import tempfile
import threading

import ends
import ranks
import torch
import torch.distributed as dist
from common import cases
from torch.nn.parallel import DistributedDataParallel

from muster import errors

CORNER, MORE = 5, 15  # make soak-pytorch plays 300


def test_ends_at_random():
    for seed in range(1, (MORE if cases.wanted("more_ends") else CORNER) + 1):
        print(f"seed {seed}: {'%s, %.2f s' % ends.play(seed)}", flush=True)


# ---- what gloo delivers ----

def send_and_end(length):
    """Rank 0 ends well right after a send; rank 1 has asked for it before. Returns whether it came."""
    def function(rank, size):
        tensor = torch.full((length,), 7 if rank == 0 else 0, dtype=torch.uint8)
        if rank == 1:
            work = dist.irecv(tensor, 0)
        dist.barrier()
        if rank == 0:
            ends.works.append(dist.isend(tensor, 1))
            return 0
        try:
            work.wait()
        except RuntimeError as error:
            return str(error)
        return bool((tensor == 7).all())
    return function


def test_what_gloo_delivers_is_delivered():
    for length in ends.LENGTHS if cases.wanted("all_lengths") else (4, 300000, ends.LENGTHS[-1]):
        backends = ("gloo", "muster") if length < ends.LENGTHS[-1] else ("muster",)  # gloo's receiver hangs in every fifth of these
        came = {backend: ends.run(2, send_and_end(length), backend)[1][1] for backend in backends}
        print(f"{length} bytes: {came}", flush=True)
        assert came["muster"] is True, came


# ---- programs ----

PROGRAM = """
import os, sys, torch, torch.distributed as dist
case = sys.argv[1]
dist.init_process_group(sys.argv[2], init_method="file://" + sys.argv[3], rank=int(sys.argv[4]), world_size=2)
rank = dist.get_rank()
if case == "raise":
    if rank == 0:
        work = dist.irecv(torch.ones(4), 1)
        raise ValueError("a bug in the program")
    dist.recv(torch.ones(4), 0)
elif case == "both":
    work = dist.irecv(torch.ones(4), 1 - rank)
elif rank == 0:
    work = dist.isend(torch.ones(8 << 20), 1)
print("end", flush=True)
"""


def ends_of(case, backend):
    """Exit codes and stderr of two ranks that are programs of their own."""
    with tempfile.TemporaryDirectory(prefix="muster-ends-") as folder:
        script, store = os.path.join(folder, "script.py"), os.path.join(folder, "store")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        environment = dict(os.environ, PYTHONPATH=ranks.PACKAGE)
        running = [subprocess.Popen([sys.executable, script, case, backend, store, str(rank)], env=environment, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            texts = [one.communicate(timeout=ranks.PATIENCE_S)[1] for one in running]
        finally:
            for one in running:
                one.kill()
    return [one.returncode for one in running], texts


def check_program(case, backend):
    codes, texts = ends_of(case, backend)
    assert [code != 0 for code in codes] == [case == "raise"] * 2, (codes, texts)
    if case == "raise":
        assert "ValueError: a bug in the program" in texts[0], texts
        assert backend != "muster" or "PeerError: receive of 16 uint8 from rank 0" in texts[1], texts


def test_a_program_that_raises():
    check_program("raise", "muster")


def test_programs_beside_gloo():
    for case in ("raise", "both", "send"):
        for backend in ("gloo", "muster"):
            check_program(case, backend)


# ---- futures ----

def hold_a_future(rank, size):
    """The work objects go, the futures stay, and what hangs on them runs: of a receive, of a send, of a collective."""
    seen, called = [], threading.Event()
    tensor = torch.full((1000,), float(rank))

    def note(future):
        seen.append(future.value()[0].sum().item())
        if len(seen) == 2:
            called.set()

    received = torch.zeros(1000)
    work = dist.irecv(received, 1 - rank)
    futures = [work.get_future().then(note)]
    del work
    futures.append(dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(note))
    futures.append(dist.isend(tensor, 1 - rank).get_future())
    assert called.wait(ranks.PATIENCE_S), seen
    for future in futures:
        future.wait()
    assert sorted(seen) == sorted([1000.0 * (1 - rank), 1000.0 * size]), seen
    dist.barrier()


def test_futures_outlive_their_works():
    ranks.run(2, hold_a_future)


def lose_a_future(rank, size):
    """The other side ends: the future fails, and what hangs on it runs."""
    if rank == 1:
        dist.barrier()
        return
    work = dist.irecv(torch.zeros(4), 1)
    future = work.get_future()
    del work
    failed = future.then(lambda done: done.wait())
    dist.barrier()
    try:
        failed.wait()
    except RuntimeError as error:
        assert "has left" in str(error) or "rank 1" in str(error), error
    else:
        raise AssertionError("the future of a message that never came has a value")


def test_futures_fail_with_the_other_side():
    ranks.run(2, lose_a_future)


def train_with_messages(rank, size):
    """A hook of DDP's that averages by messages, and keeps nothing but a future."""
    def hook(_, bucket):
        own, other = bucket.buffer(), torch.empty_like(bucket.buffer())
        dist.isend(own, 1 - rank)  # nobody waits for it, nor keeps it
        return dist.irecv(other, 1 - rank).get_future().then(lambda future: (own + future.value()[0]) / 2)

    model = DistributedDataParallel(torch.nn.Linear(300, 300, bias=False))
    model.register_comm_hook(None, hook)
    for step in range(5):
        model.zero_grad()
        (model(torch.full((1, 300), float(rank + step)))).sum().backward()
        grad = model.module.weight.grad
        assert bool((grad == 0.5 + step).all()), grad


def test_a_hook_of_messages():
    ends.run(2, train_with_messages)  # the last send goes at the end of the program


def look_while_another_waits(rank, size):
    """One thread waits for a message, another one asks whether it is done, with Python's lock."""
    if rank == 1:
        dist.barrier()
        dist.send(torch.ones(4), 0)
        return
    work, ended = dist.irecv(torch.zeros(4), 1), threading.Event()

    def look():
        while not ended.is_set():
            work.is_completed()
    looker = threading.Thread(target=look)
    looker.start()
    threading.Timer(0.4, dist.barrier).start()  # longer than a wait goes without asking Python for signals
    work.wait()
    ended.set()
    looker.join()
    assert work.is_completed()


def test_a_look_while_another_thread_waits():
    ranks.run(2, look_while_another_waits)


def drop_under_a_group(rank, size):
    """What is dropped in a group that is destroyed is in nobody's way, and the others go on."""
    group = dist.new_group()
    dist.irecv(torch.ones(4), 1 - rank, group=group)
    dist.isend(torch.ones(8 << 20), 1 - rank, group=group)
    dist.destroy_process_group(group)
    dist.barrier()
    tensor = torch.tensor([rank])
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
        assert int(tensor) == 0
    dist.barrier()


def test_a_group_is_destroyed_with_messages():
    ranks.run(2, drop_under_a_group)


def send_to_one_that_has_left(rank, size):
    group = dist.new_group()
    if rank == 1:
        dist.destroy_process_group(group)
        dist.barrier()
        return
    dist.barrier()
    try:
        dist.send(torch.ones(8 << 20), 1, group=group)
    except errors.PeerError as error:
        assert error.rank == 1 and "has left" in str(error), error
    else:
        raise AssertionError("a send to nobody has ended well")


def test_a_send_to_one_that_has_left():
    ranks.run(2, send_to_one_that_has_left)


if __name__ == "__main__":
    ranks.main(globals())
