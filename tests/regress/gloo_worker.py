"""A PyTorch worker: forms a gloo group, checks one all-reduce, stamps `formed`, then waits to be told.

    gloo_worker.py CHANNEL [--computes]

`ask` is stamped before it asks for its group; `formed` tells how many processes that have ended by now had left a key in the store that the group met in (`stale`).

With --computes it adds up numbers until one rank is told to exit with 0, which all do then, or until that fails: it exits with 1.

With MUSTER_TEST_TEMPLATE=ADDRESS it imports nothing: what needs PyTorch is done by a process that torch_template.py forks. It is
still this process that the launcher started, that takes the signals, and whose id is stamped; the other one ends with it.

Signals as in bench's stamp_worker: SIGTERM and its like are stamped and kill it, SIGRTMIN+n makes it exit with n.
"""

import faulthandler
import os
import signal
import sys
import threading
import time

import forked
from store import StoreClient

PID = os.getpid()  # the launcher's worker, wherever this runs
START_NS = time.monotonic_ns()
WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT} | set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
CHANNEL = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]


def stamp(name, when_ns, more=""):
    line = f"{name} ns={when_ns} pid={PID} rank={os.environ['RANK']} attempt={ATTEMPT}{more}\n"
    os.write(CHANNEL, line.encode())


COMPUTES = "--computes" in sys.argv
ENDS = threading.Event()
LENT = None  # the process that works for this one
IS_LENT = threading.Event()


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
    client.set(f"/worker/{PID}", b"was here")
    client.check(f"/worker/{PID}")
    client.close()
    return sum(not is_alive(pid) for pid in pids)


def form():
    stale = look_for_the_dead()
    import torch
    import torch.distributed as dist

    stamp("ask", time.monotonic_ns())
    faulthandler.dump_traceback_later(30)  # for who reads of a group that does not form
    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    world = dist.get_world_size()
    if int(total.item()) != world * (world + 1) // 2:
        sys.exit(f"all_reduce of {world} ranks gave {total.item()}")
    faulthandler.cancel_dump_traceback_later()
    stamp("formed", time.monotonic_ns(), f" world={world} group={os.environ['GROUP_RANK']} stale={stale}")


def obey():
    while True:
        number = signal.sigwait(WATCHED)
        if number == signal.SIGRTMIN and COMPUTES:
            if "MUSTER_TEST_TEMPLATE" in os.environ:
                IS_LENT.wait()  # it may be at work before this process has read its id
                LENT.tell_end()
            else:
                ENDS.set()
            continue
        if number >= signal.SIGRTMIN:
            stamp("exit", time.monotonic_ns())
            os._exit(number - signal.SIGRTMIN)
        stamp("signal", time.monotonic_ns(), f" signo={int(number)}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)


def compute():
    import torch
    import torch.distributed as dist

    ends = torch.zeros(1)
    while not ends.item():
        time.sleep(0.005)
        ends[0] = ENDS.is_set()
        try:
            dist.all_reduce(ends)
        except RuntimeError as why:
            sys.stderr.write(f"gloo_worker: {why}\n")
            os._exit(1)
    stamp("exit", time.monotonic_ns())
    os._exit(0)


def work():
    form()
    stamp("ready", time.monotonic_ns())
    if COMPUTES:
        compute()
    while True:
        signal.pause()


def lend():
    """Has another process work in the name of this one; this one ends as that one does."""
    global LENT
    environment = dict(os.environ)
    task = {"arguments": sys.argv, "environment": environment, "folder": os.getcwd(), "worker": PID}
    LENT = forked.Child(environment["MUSTER_TEST_TEMPLATE"], task, (0, 1, 2))
    IS_LENT.set()
    code = LENT.exit_code()
    if code >= 0:
        os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(PID, -code)


if __name__ == "__main__":
    # Blocked before anything starts a thread, so that all threads inherit it; one thread waits for all signals, so that
    # the worker can be stopped while the main one is deep in the group's forming.
    for fatal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(fatal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    threading.Thread(target=obey, daemon=True).start()
    stamp("start", START_NS, f" world={os.environ['WORLD_SIZE']} group={os.environ['GROUP_RANK']}")
    if "MUSTER_TEST_TEMPLATE" in os.environ:
        lend()
    work()
