# needs: torch
"""What the other ranks get from the backend "muster" when one is killed, late, stops the group, or makes another call: exceptions of a class
of its own, with who, where and in which call, through every path of PyTorch; Ctrl-C; and how survivors go on."""

import datetime
import os
import signal
import socket
import threading
import time

import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from muster import errors

SHORT = datetime.timedelta(seconds=1)


def caught(call, kind):
    try:
        call()
    except kind as error:
        assert isinstance(error, errors.MusterError) and isinstance(error, dist.DistBackendError), type(error)
        return error
    raise AssertionError("no exception came")


def know_all(rank):
    """All ranks' process ids. Rank 1 then waits for its end."""
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return pids


def in_a_blocking_call(_):
    dist.all_reduce(torch.ones(3))


def in_a_work(_):
    dist.all_reduce(torch.ones(3), async_op=True).wait()


def in_a_future(_):
    dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()


def in_a_future_of_a_work_that_has_failed(_):
    work = dist.all_reduce(torch.ones(3), async_op=True)
    try:
        work.wait()
    except errors.PeerError:
        work.get_future().wait()  # the future fails, not the asking for it
        raise AssertionError("the future of a failed call has a value") from None


def in_a_message(_):
    dist.recv(torch.ones(3), 1)


def in_an_isend(_):
    dist.irecv(torch.ones(3), 1).wait()


def in_a_coalesced_call(_):
    with dist._coalescing_manager():
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(2))


def in_backward(model):
    while True:  # the death may come after this rank's part of a step
        model(torch.ones(2, 4)).sum().backward()


WAYS = [in_a_blocking_call, in_a_work, in_a_future, in_a_future_of_a_work_that_has_failed, in_a_message, in_an_isend, in_a_coalesced_call, in_backward]


def lose_rank_1(way):
    def function(rank, size):
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        pids = know_all(rank)
        error = caught(lambda: way(model), errors.PeerError)
        assert (error.rank, error.pid, error.host) == (1, pids[1], socket.gethostname()), vars(error)
        assert f"rank 1 (pid {pids[1]} on host" in str(error) and "signal 9" in str(error), error
        if way is in_a_blocking_call:
            assert error.operation == "all_reduce" and error.call is not None, vars(error)
        assert error.signal in (signal.SIGKILL, None) and error.cause == error.code, vars(error)
        again = caught(lambda: dist.barrier(), errors.GroupError)
        assert str(pids[1]) in str(again) and again.cause == error.code, again
    return function


def test_a_dead_rank_is_named_in_every_call():
    for way in WAYS:
        with ranks.start(3, lose_rank_1(way)) as running:
            assert running.result(1) is None
            running.result(0)
            running.result(2)


def late_by(seconds):
    def function(rank, size):
        dist.barrier()
        if rank == 1:
            time.sleep(3 * seconds)
            return
        error = caught(lambda: dist.all_reduce(torch.ones(1)), errors.TimeoutError)
        assert error.missing == [1] and error.operation == "all_reduce" and error.call == 2, vars(error)
    return function


def test_facts_become_attributes():
    """Nothing is read out of sentences."""
    late = errors.make(-4, "rank 7 (pid 7 on host x) did not come", {"cause": -4, "group": "g", "operation": "barrier", "call": 2, "missing": [1, 3]})
    assert (late.missing, late.operation, late.call, late.group, late.cause) == ([1, 3], "barrier", 2, "g", -4), vars(late)
    gone = errors.make(-15, "rank 7 (pid 7 on host x) is gone", {"cause": -15, "rank": 1, "host": "a", "missing": []})
    assert (gone.rank, gone.host, gone.pid, gone.signal, gone.operation) == (1, "a", None, None, None), vars(gone)
    other = errors.make(-2, "no memory for a group", {"cause": -2, "missing": []})
    assert type(other) is errors.MusterError and other.code == -2 and other.operation is None


def test_a_late_rank_is_listed():
    """On a busy machine a rank that is well may not be in time either. Then all try again with more time."""
    for seconds in (1, 4, 16):
        try:
            ranks.run(3, late_by(seconds), timeout=datetime.timedelta(seconds=seconds))
            return
        except AssertionError:
            if seconds == 16:
                raise


def differ(rank, size):
    if rank == 1:
        error = caught(lambda: dist.broadcast(torch.ones(2), 0), errors.MusterError)
    else:
        error = caught(lambda: dist.all_reduce(torch.ones(4)), errors.MusterError)
    assert "broadcast of 2 float32" in str(error) and "all_reduce of 4 float32" in str(error), error


def test_other_calls_are_both_named():
    ranks.run(3, differ)


def press_keys(rank, size):
    """Rank 0 is interrupted in each way to wait; the others hear of it."""
    group = dist.new_group()
    for turn, call in enumerate((lambda: dist.barrier(group), lambda: dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(),
                                 lambda: dist.recv(torch.ones(1), 1, group=group))):
        group = dist.new_group()
        dist.barrier()
        if rank == 0:
            begun = time.monotonic()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                call()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("Ctrl-C was not answered")
            print(f"interrupted after {time.monotonic() - begun - 0.3:.3f} s", flush=True)
            assert "interrupted" in str(caught(lambda: dist.barrier(group), errors.GroupError))
        dist.barrier()
        if rank == 1:
            assert "interrupted" in str(caught(lambda: dist.barrier(group), errors.MusterError)), turn


def test_ctrl_c_ends_a_call():
    ranks.run(2, press_keys)


def stop_all(rank, size):
    dist.barrier()
    if rank == 0:
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).abort()
    error = caught(lambda: dist.barrier(), errors.MusterError)
    assert "aborted group" in str(error) or rank == 0, error


def test_abort_ends_all_ranks():
    ranks.run(3, stop_all)


def go_on(rank, size):
    know_all(rank)
    caught(lambda: dist.all_reduce(torch.ones(1)), errors.PeerError)
    smaller = dist.shrink_group([1])
    assert dist.get_world_size(smaller) == 2
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=smaller)
    assert int(tensor) == 2


def test_survivors_shrink():
    with ranks.start(3, go_on) as running:
        running.result(0)
        running.result(2)


def wait_in_vain(rank, size):
    if rank == 0:
        try:
            dist.init_process_group("muster", init_method=f"file://{os.environ['PLACE']}", rank=0, world_size=2, timeout=SHORT)
        except (RuntimeError, dist.DistError) as error:
            assert "rank" in str(error) or "exist" in str(error), error
        else:
            raise AssertionError("a group of two was made by one")


def test_a_rank_that_never_comes():
    place = f"/tmp/muster-nobody-{os.getpid()}"
    os.environ["PLACE"] = place
    try:
        ranks.run(1, wait_in_vain, backend=None)
    finally:
        if os.path.exists(place):
            os.unlink(place)


def test_groups_leave_nothing_behind():
    """Neither in the process nor in the store, which this process may serve, and whose keys it remembers. `soak --groups` makes 10,000."""
    count, first, per_group_bytes = 160, 40, 256
    for (early, late), (empty_early, empty_late) in zip(ranks.run(2, ranks.make_groups(count, "muster", first)),
                                                        ranks.run(2, ranks.make_groups(count, "fake", first))):
        assert late["threads"] == early["threads"] and late["descriptors"] <= early["descriptors"], (early, late)
        grown, empty = late["heap_bytes"] - early["heap_bytes"], empty_late["heap_bytes"] - empty_early["heap_bytes"]
        assert grown < max(empty, 0) + per_group_bytes * (count - first), (grown, empty)


if __name__ == "__main__":
    ranks.main(globals())
