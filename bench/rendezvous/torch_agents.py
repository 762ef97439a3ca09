#!/usr/bin/env python3
"""torch_agents.py COUNT [ETCD]: COUNT of torchrun's rendezvous handlers (c10d, a TCPStore on loopback; or etcd-v2, with
the etcd at that endpoint) meet in one round.

Prints one line of JSON: seconds from the moment when all are connected until the last has its rank, and the bytes that
loopback carried meanwhile. Each handler has a connection of its own, as an agent has; they are threads of a few
processes, because COUNT processes with PyTorch in them do not fit into a machine. Run it in a network namespace of its own:
the bytes are those of the interface.
"""

import datetime
import json
import multiprocessing
import sys
import threading
import time

PROCESSES = 4
TIMEOUT_S = 600
SETTLE_S = 0.5


def loopback_bytes():
    with open("/proc/net/dev", encoding="ascii") as lines:
        for line in lines:
            name, _, counts = line.partition(":")
            if name.strip() == "lo":
                return int(counts.split()[0])
    return 0


def connect(port, etcd):
    """A store and the backend that keeps its state there."""
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

    if etcd:
        from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import create_backend

        backend, store = create_backend(RendezvousParameters("etcd-v2", etcd, f"bench{port}", 1, 1, protocol="http"))
        return store, backend
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=TIMEOUT_S))
    return store, C10dRendezvousBackend(store, "bench")


def agents(count, total, port, etcd, ready, go, results):
    """One process's share: `count` handlers."""
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    handlers = []
    for _ in range(count):
        store, backend = connect(port, etcd)
        handlers.append(
            DynamicRendezvousHandler.from_backend(
                "bench",
                store,
                backend,
                total,
                total,
                local_addr="127.0.0.1",
            )
        )
    ended = [None] * count

    def meet(index):
        go.wait()
        info = handlers[index].next_rendezvous()
        ended[index] = (time.monotonic(), info.rank, info.world_size)

    threads = [threading.Thread(target=meet, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    ready.release()
    for thread in threads:
        thread.join(TIMEOUT_S)
    results.put(ended)


def main(total, etcd):
    import torch.distributed as dist

    context = multiprocessing.get_context("fork")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ready, go, results = context.Semaphore(0), context.Event(), context.Queue()
    processes = []
    first = 0
    for index in range(min(PROCESSES, total)):
        share = (total - first) // (min(PROCESSES, total) - index)
        processes.append(
            context.Process(target=agents, args=(share, total, server.port, etcd, ready, go, results), daemon=True)
        )
        first += share
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    time.sleep(SETTLE_S)
    before, started = loopback_bytes(), time.monotonic()
    go.set()
    ended = [one for _ in processes for one in results.get(timeout=TIMEOUT_S)]
    seconds = max(one[0] for one in ended) - started
    carried = loopback_bytes() - before
    if sorted(one[1] for one in ended) != list(range(total)):
        sys.exit("the ranks are not 0 to COUNT - 1")
    print(json.dumps({"agents": total, "seconds": round(seconds, 4), "bytes": carried}), flush=True)
    for process in processes:
        process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
