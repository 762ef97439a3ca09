# needs: torch
"""Every call of the backend "muster" against what PyTorch computes without it: all element types and reductions, blocking and not,
contiguous tensors and others, equal and unequal sizes, sub-groups, objects, sparse tensors."""

import datetime
import itertools
import tempfile
import warnings

import ranks
import torch
import torch.distributed as dist

import muster.distributed

SIZE = 3
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
REDUCED = FLOATS + INTEGERS
MOVED = REDUCED + [torch.bool, torch.complex64, torch.float8_e4m3fn]


def values(rank, dtype, shape=(4, 3)):
    """Small numbers, other ones on every rank: sums are exact in every type."""
    count = 1
    for one in shape:
        count *= one
    whole = (torch.arange(count) * 7 + rank * 5) % 4
    return whole.reshape(shape).to(dtype)


def strange(tensor):
    """The same values, not one after the other in memory."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def forms(rank, dtype):
    plain = values(rank, dtype)
    yield plain.clone()
    yield strange(plain)
    yield plain.t().contiguous().t()  # dense, in another order
    yield plain.flatten()[:0]
    yield plain.flatten()[0]


def mixed(rank, size):
    """Ranks whose tensors have other strides: elements meet by their place in the tensor, not in memory."""
    one = values(rank, torch.float32)
    one = one.t().contiguous().t() if rank == 1 else one
    dist.all_reduce(one)
    equal(one, sum(values(other, torch.float32) for other in range(size)))


def test_strides_may_differ():
    ranks.run(SIZE, mixed)


def finish(work):
    if work is not None:
        assert work.wait()


def equal(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    same = torch.equal(found.view(torch.uint8) if found.dtype == torch.float8_e4m3fn else found,
                       expected.view(torch.uint8) if found.dtype == torch.float8_e4m3fn else expected)
    assert same, (found, expected)


REDUCTIONS = {
    dist.ReduceOp.SUM: lambda all_: sum(all_[1:], all_[0]),
    dist.ReduceOp.PRODUCT: lambda all_: all_[0] * all_[1] * all_[2],
    dist.ReduceOp.MIN: lambda all_: torch.stack(all_).amin(0),
    dist.ReduceOp.MAX: lambda all_: torch.stack(all_).amax(0),
}
BITS = {
    dist.ReduceOp.BAND: lambda all_: all_[0] & all_[1] & all_[2],
    dist.ReduceOp.BOR: lambda all_: all_[0] | all_[1] | all_[2],
    dist.ReduceOp.BXOR: lambda all_: all_[0] ^ all_[1] ^ all_[2],
}


def expected_of(form, dtype, reduce):
    return reduce([list(forms(rank, dtype))[form] for rank in range(SIZE)])


def reductions(rank, size):
    for dtype, later in itertools.product(REDUCED, (False, True)):
        kinds = REDUCTIONS | (BITS if dtype in INTEGERS else {})
        for operation, reduce in kinds.items():
            for form, tensor in enumerate(forms(rank, dtype)):
                expected = expected_of(form, dtype, reduce)
                one = tensor.clone() if tensor.is_contiguous() else tensor
                finish(dist.all_reduce(one, operation, async_op=later))
                equal(one, expected)
                other = list(forms(rank, dtype))[form]
                finish(dist.reduce(other, 1, operation, async_op=later))
                equal(other, expected if rank == 1 else list(forms(rank, dtype))[form])
        sums = REDUCTIONS[dist.ReduceOp.SUM]([values(one, dtype, (size * 2, 3)) for one in range(size)])
        out = torch.empty(2, 3, dtype=dtype)
        finish(ranks.reduce_scatter_single(out, values(rank, dtype, (size * 2, 3)), async_op=later))
        equal(out, sums[2 * rank:2 * rank + 2])
        wide = strange(torch.empty(2, 3, dtype=dtype))
        finish(dist.reduce_scatter(wide, list(strange(values(rank, dtype, (size * 2, 3))).split(2)), async_op=later))
        equal(wide, sums[2 * rank:2 * rank + 2])
        parts = list(values(rank, dtype, (6, 3)).split([1, 2, 3]))  # unequal
        wide = torch.empty(rank + 1, 3, dtype=dtype)
        finish(dist.reduce_scatter(wide, parts, async_op=later))
        sums = REDUCTIONS[dist.ReduceOp.SUM]([values(one, dtype, (6, 3)) for one in range(size)])
        equal(wide, sums.split([1, 2, 3])[rank])
    for dtype in FLOATS:
        mean = values(rank, dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        exact = sum(values(one, torch.float64) for one in range(size)) / size
        assert torch.allclose(mean.double(), exact, atol=0.01), (mean, exact)
        scaled = values(rank, dtype)
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
        equal(scaled, (sum(values(one, torch.float64) for one in range(size)) / 2).to(dtype))
    truth = torch.tensor([rank == 0, True, False])
    for operation, told in ((dist.ReduceOp.SUM, [True, True, False]), (dist.ReduceOp.PRODUCT, [False, True, False]),
                            (dist.ReduceOp.MIN, [False, True, False]), (dist.ReduceOp.MAX, [True, True, False]),
                            (dist.ReduceOp.BAND, [False, True, False]), (dist.ReduceOp.BOR, [True, True, False])):
        one = truth.clone()
        dist.all_reduce(one, operation)
        equal(one, torch.tensor(told))
    whole = torch.complex(values(rank, torch.float32), values(rank + 1, torch.float32))
    dist.all_reduce(whole)
    equal(whole, sum(torch.complex(values(one, torch.float32), values(one + 1, torch.float32)) for one in range(size)))


def test_reductions():
    ranks.run(SIZE, reductions)


def movements(rank, size):
    for dtype, later in itertools.product(MOVED, (False, True)):
        for form in range(3):
            tensor = list(forms(rank, dtype))[form] if dtype != torch.float8_e4m3fn else values(rank, dtype)
            from_1 = list(forms(1, dtype))[form] if dtype != torch.float8_e4m3fn else values(1, dtype)
            all_ = [list(forms(one, dtype))[form] if dtype != torch.float8_e4m3fn else values(one, dtype) for one in range(size)]
            copy = tensor.clone() if tensor.is_contiguous() else tensor
            finish(dist.broadcast(copy, 1, async_op=later))
            equal(copy, from_1)
            tensor = list(forms(rank, dtype))[form] if dtype != torch.float8_e4m3fn else values(rank, dtype)
            found = [torch.empty_like(tensor) for _ in range(size)]
            finish(dist.all_gather(found, tensor, async_op=later))
            for one, expected in zip(found, all_):
                equal(one, expected)
            found = [torch.empty_like(tensor) for _ in range(size)] if rank == 2 else None
            finish(dist.gather(tensor, found, 2, async_op=later))
            for one, expected in zip(found or [], all_):
                equal(one, expected)
            part = torch.empty_like(tensor)
            finish(dist.scatter(part, [one.clone() for one in all_] if rank == 0 else None, 0, async_op=later))
            equal(part, all_[rank])
        whole = torch.empty(size * 4, 3, dtype=dtype)
        finish(ranks.all_gather_single(whole, values(rank, dtype), async_op=later))
        for one in range(size):
            equal(whole[4 * one:4 * one + 4], values(one, dtype))
        unequal = [torch.empty(one + 1, 3, dtype=dtype) for one in range(size)]
        finish(dist.all_gather(unequal, values(rank, dtype, (rank + 1, 3)), async_op=later))
        for one in range(size):
            equal(unequal[one], values(one, dtype, (one + 1, 3)))
        out = torch.empty(size, 3, dtype=dtype)
        finish(dist.all_to_all_single(out, values(rank, dtype, (size, 3)), async_op=later))
        for one in range(size):
            equal(out[one], values(one, dtype, (size, 3))[rank])
        sends, receives = [1, 2, 3], [rank + 1] * size  # rank r gets r + 1 rows from everybody
        out = torch.empty(sum(receives), 2, dtype=dtype)
        finish(dist.all_to_all_single(out, values(rank, dtype, (6, 2)), receives, sends, async_op=later))
        for one in range(size):
            equal(out.split(receives)[one], values(one, dtype, (6, 2)).split(sends)[rank])
        outs = [torch.empty(rank + 1, 2, dtype=dtype) for _ in range(size)]
        finish(dist.all_to_all(outs, list(values(rank, dtype, (6, 2)).split(sends)), async_op=later))
        for one in range(size):
            equal(outs[one], values(one, dtype, (6, 2)).split(sends)[rank])


def test_movements():
    ranks.run(SIZE, movements)


def gathered_into_one(rank, size):
    for dtype, later in itertools.product(MOVED, (False, True)):
        whole = [values(one, dtype) for one in range(size)]
        stacked = torch.empty(size, 4, 3, dtype=dtype)
        finish(dist.gather_single(values(rank, dtype), stacked if rank == 2 else None, dst=2, async_op=later))
        wide = strange(torch.empty(size * 4, 3, dtype=dtype))
        one = strange(values(rank, dtype))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the old name is on its way out
            finish(dist.gather_into_tensor(one, wide if rank == 0 else None, async_op=later))
        for other, expected in enumerate(whole):
            if rank == 2:
                equal(stacked[other], expected)
            if rank == 0:
                equal(wide[4 * other:4 * other + 4].contiguous(), expected)
    pair = dist.new_group([0, 2])
    if rank != 1:
        into = torch.empty(2, dtype=torch.int64) if rank == 2 else None
        dist.gather_single(torch.tensor([rank]), into, group=pair, group_dst=1)
        assert into is None or into.tolist() == [0, 2]
    if rank == 0:
        try:
            dist.gather_single(torch.ones(2), torch.empty(2))
        except (RuntimeError, ValueError) as error:
            assert "the output has 2 elements, 3 times 2 are needed" in str(error), error
        else:
            raise AssertionError("an output that is too small was taken")
    dist.barrier()


def test_gather_into_one_tensor():
    if not hasattr(dist, "gather_single"):
        print(f"SKIP: PyTorch {torch.__version__} has no gather_single (2.14 and later have it)", flush=True)
        return
    ranks.run(SIZE, gathered_into_one)


def messages(rank, size):
    for dtype in MOVED:
        for form in range(2):
            tensor = list(forms(rank, dtype))[form] if dtype != torch.float8_e4m3fn else values(rank, dtype)
            before = (rank - 1) % size
            into = torch.empty_like(tensor)
            works = [dist.isend(tensor, (rank + 1) % size, tag=3), dist.irecv(into, before, tag=3)]
            for work in works:
                work.wait()
            equal(into, list(forms(before, dtype))[form] if dtype != torch.float8_e4m3fn else values(before, dtype))
            into = torch.empty_like(tensor)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, (rank + 1) % size),
                                            dist.P2POp(dist.irecv, into, before)])
            for work in works:
                work.wait()
            equal(into, list(forms(before, dtype))[form] if dtype != torch.float8_e4m3fn else values(before, dtype))
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            number = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(number)
            assert int(number) == source
            seen.add(source)
        assert seen == {1, 2}
    else:
        dist.send(torch.tensor([rank]), 0)
    large = torch.full((1 << 20,), float(rank))
    if rank == 0:
        dist.send(large, 1)
    elif rank == 1:
        into = torch.empty(1 << 20)
        work = dist.irecv(into, 0)
        while not work.is_completed():
            pass
        assert work.is_success() and bool((into == 0).all())
    dropped = dist.isend(torch.tensor([1]), (rank + 1) % size, tag=9)
    into = torch.empty(1, dtype=torch.int64)
    dist.recv(into, (rank - 1) % size, tag=9)
    del dropped  # nobody waits for it


def test_messages():
    ranks.run(SIZE, messages)


def others(rank, size):
    dist.barrier()
    assert dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
    assert [one["rank"] for one in objects] == list(range(size))
    box = [{"from": rank}]
    dist.broadcast_object_list(box, src=2)
    assert box == [{"from": 2}]
    mine = [None]
    dist.scatter_object_list(mine, [[one] for one in range(size)] if rank == 0 else None, src=0)
    assert mine == [[rank]]
    gathered = [None] * size if rank == 1 else None
    dist.gather_object((rank,), gathered, dst=1)
    assert gathered is None or gathered == [(0,), (1,), (2,)]

    tensors = [torch.full((n,), float(rank + n)) for n in (1, 4, 2)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for n, tensor in zip((1, 4, 2), tensors):
        assert bool((tensor == sum(one + n for one in range(size))).all()), tensor
    lists = [torch.empty(size * n) for n in (1, 2)]
    with dist._coalescing_manager():
        for n, into in zip((1, 2), lists):
            ranks.all_gather_single(into, torch.full((n,), float(rank)))
    for n, into in zip((1, 2), lists):
        assert into.tolist() == [float(one) for one in range(size) for _ in range(n)]

    index = torch.tensor([[0, rank + 1], [1, rank]])
    sparse = torch.sparse_coo_tensor(index, torch.tensor([1.0, float(rank)]), (5, 4))
    expected = sum(torch.sparse_coo_tensor(torch.tensor([[0, one + 1], [1, one]]), torch.tensor([1.0, float(one)]), (5, 4)).to_dense()
                   for one in range(size))
    dist.all_reduce(sparse)
    equal(sparse.to_dense(), expected)

    pair = dist.new_group([0, 2])
    if rank != 1:
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=pair)
        assert int(tensor) == 2 and dist.get_backend(pair) == "muster"
    alone = dist.new_group([rank], use_local_synchronization=True)
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=alone)
    assert int(tensor) == rank

    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2.0 * size] * 2
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.get_future().wait()[0].tolist() == [float(size)] * 2  # of one that is done
    assert work.is_completed() and work.is_success()
    for wrong in (lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND),
                  lambda: ranks.all_gather_single(torch.empty(1), torch.empty(1)),
                  lambda: dist.all_reduce(torch.ones(1, dtype=torch.float8_e4m3fn)),
                  lambda: dist.all_to_all_single(torch.empty(2), torch.empty(2), [1, 1], [1, 1])):
        try:
            wrong()
        except (RuntimeError, TypeError, ValueError) as error:
            assert str(error), error
        else:
            raise AssertionError("a wrong call was taken")
    dist.barrier()  # none of these has failed the group


def test_others():
    ranks.run(SIZE, others)


def split_in_two(rank, size):
    """A parent whose options stay its own, and children that work, wait and end by themselves."""
    world = dist.distributed_c10d._get_default_group()
    before = world._get_backend(torch.device("cpu")).options
    timeout, name = before._timeout, before.group_name
    child = dist.split_group(split_ranks=[[0, 3], [2, 1]], timeout=datetime.timedelta(seconds=77))
    members = [0, 3] if rank in (0, 3) else [2, 1]
    assert dist.get_process_group_ranks(child) == members and dist.get_backend(child) == "muster"
    options = child._get_backend(torch.device("cpu")).options
    assert options._timeout == datetime.timedelta(seconds=77) and options.group_name not in ("", name), options
    after = world._get_backend(torch.device("cpu")).options
    assert after._timeout == timeout and after.group_name == name, "a child's options are its parent's"
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, group=child)
    assert int(tensor) == sum(members)
    alone = dist.split_group(child, [[1]])  # of the child's ranks: one is left out
    if rank == members[1]:
        dist.all_reduce(tensor, group=alone)
        assert int(tensor) == sum(members) and dist.get_world_size(alone) == 1
        dist.destroy_process_group(alone)
    else:
        assert alone is dist.GroupMember.NON_GROUP_MEMBER
    dist.destroy_process_group(child)
    dist.barrier()


def refused(rank, size):
    try:
        dist.split_group(split_ranks=[[0], [1]])
    except RuntimeError as error:
        return str(error)
    return None


def test_split_group():
    """PyTorch before 2.15 refuses it for groups of CPUs, whatever their backend."""
    words = ranks.run(2, refused)[0]
    if words is None:
        ranks.run(4, split_in_two)
    else:
        assert "No device associated with the default pg" in words, words
        print(f"SKIP: PyTorch {torch.__version__} splits no group of CPUs: {words}", flush=True)


def beside_another(rank, size):
    """In place of gloo, and another backend for another device."""
    gloo = dist.ProcessGroupGloo
    dist.Backend.register_backend("other", lambda given, _: gloo(given.store, given.group_rank, given.group_size, given.timeout), extended_api=True,
                                  devices=["cuda"])
    muster.distributed.stand_in_for_gloo()
    found = []
    with tempfile.TemporaryDirectory(prefix="muster-beside-") as folder:
        for backend in ("cpu:gloo,cuda:other", "gloo", None):
            dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=size)
            group = dist.distributed_c10d._get_default_group()
            found.append([type(group._get_backend(torch.device(one))).__name__ for one in ("cpu", "cuda")[:2 if backend and ":" in backend else 1]])
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
    return found


def test_beside_another_backend():
    assert ranks.run(1, beside_another, backend=None) == [[["ProcessGroupMuster", "ProcessGroupGloo"], ["ProcessGroupMuster"], ["ProcessGroupMuster"]]]


def futures(rank, size):
    """Of a call that has been waited for, the future is complete: a callback runs at once, in this thread."""
    tensor, late = torch.ones(1000), 0
    for asked_first in (True, False) * 2000:
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future() if asked_first else None
        work.wait()
        late += not (future or work.get_future()).done()
    inside = []
    work = dist.all_reduce(tensor, async_op=True)
    work.get_future().then(lambda _: inside.append(work.wait()))  # by whichever thread it is: it does not wait for itself
    work.wait()
    return late, inside


def test_futures_are_complete_when_waiting_ends():
    for late, inside in ranks.run(2, futures):
        assert late == 0 and inside == [True], (late, inside)


def noted(rank, size):
    """torch.compile notes calls that a graph waits for; whoever waits himself takes them away."""
    from torch.distributed import _functional_collectives

    with _functional_collectives.allow_inflight_collective_as_graph_input_ctx():
        work = dist.all_reduce(torch.ones(1), async_op=True)
        before = torch._C._distributed_c10d._get_work_registry_size()
        work.wait()
        return before, torch._C._distributed_c10d._get_work_registry_size()


def test_waiting_takes_the_note_for_graphs_away():
    found = ranks.run(2, noted)
    assert found == [(1, 0)] * 2, found


def again(rank, size):
    """A second life of the default group, at the same store."""
    for turn in range(3):
        tensor = torch.tensor([rank + turn])
        dist.all_reduce(tensor)
        assert int(tensor) == 3 + 3 * turn
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        dist.init_process_group("muster", store=store, rank=rank, world_size=size)


def test_groups_that_end_and_begin_again():
    ranks.run(SIZE, again)


def profiled(rank, size):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0, async_op=True).wait()
    names = {event.name for event in profile.events()}
    assert {"muster:all_reduce", "muster:broadcast"} <= names, names


def test_profiling_titles():
    ranks.run(SIZE, profiled)


if __name__ == "__main__":
    ranks.main(globals())
