"""A PyTorch worker: forms a gloo group, checks one all-reduce, stamps `formed`, then waits to be told.

    gloo_worker.py CHANNEL

`formed` tells how many processes that have ended by now had left a key in the store that the group met in (`stale`).

Signals as in bench's stamp_worker: SIGTERM and its like are stamped and kill it, SIGRTMIN+n makes it exit with n.
"""

import os
import signal
import sys
import threading
import time

from store import StoreClient

START_NS = time.monotonic_ns()
WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT} | set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
CHANNEL = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]


def stamp(name, when_ns, more=""):
    line = f"{name} ns={when_ns} pid={os.getpid()} rank={os.environ['RANK']} attempt={ATTEMPT}{more}\n"
    os.write(CHANNEL, line.encode())


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def look_for_the_dead():
    """Keys of dead processes in the agents' store; leaves one of its own."""
    if os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True":
        return 0
    client = StoreClient(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 60)
    pids = [int(key.rpartition(b"/")[2]) for key in client.list_keys() if key.startswith(b"/worker/")]
    client.set(f"/worker/{os.getpid()}", b"was here")
    client.check(f"/worker/{os.getpid()}")
    client.close()
    return sum(not is_alive(pid) for pid in pids)


def form():
    stale = look_for_the_dead()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    world = dist.get_world_size()
    if int(total.item()) != world * (world + 1) // 2:
        sys.exit(f"all_reduce of {world} ranks gave {total.item()}")
    stamp("formed", time.monotonic_ns(), f" world={world} stale={stale}")


def obey():
    while True:
        number = signal.sigwait(WATCHED)
        if number >= signal.SIGRTMIN:
            stamp("exit", time.monotonic_ns())
            os._exit(number - signal.SIGRTMIN)
        stamp("signal", time.monotonic_ns(), f" signo={int(number)}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    # Blocked before anything starts a thread, so that all threads inherit it; one thread waits for all signals, so that
    # the worker can be stopped while the main one is deep in the group's forming.
    for fatal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(fatal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    threading.Thread(target=obey, daemon=True).start()
    stamp("start", START_NS, f" world={os.environ['WORLD_SIZE']} group={os.environ['GROUP_RANK']}")
    form()
    stamp("ready", time.monotonic_ns())
    while True:
        signal.pause()
