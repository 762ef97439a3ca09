"""A worker that looks into its job's store, without PyTorch: stamps `keys` with what it finds of an earlier attempt.

    keys_worker.py CHANNEL

Each attempt leaves a key with its number and rank, as a process group leaves its addresses; rank 0 looks first, before
any of its own attempt has written (they wait for it). Then waits to be told, as stamp_worker does.
"""

import os
import signal
import sys
import time

from store import StoreClient

CHANNEL = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
RANK = os.environ["RANK"]
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
WATCHED = set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))


def stamp(name, more=""):
    line = f"{name} ns={time.monotonic_ns()} pid={os.getpid()} rank={RANK} attempt={ATTEMPT}{more}\n"
    os.write(CHANNEL, line.encode())


signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
stamp("start", f" world={os.environ['WORLD_SIZE']}")
client = StoreClient(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if RANK == "0":
    stale = [key for key in client.list_keys() if key.startswith(b"/mine/")]
    stamp("keys", f" stale={len(stale)}")
    client.set(f"/looked/{ATTEMPT}", b"1")
client.wait(f"/looked/{ATTEMPT}")
client.set(f"/mine/{ATTEMPT}/{RANK}", b"address of a process that will be gone")
client.get(f"/mine/{ATTEMPT}/{RANK}")
stamp("ready")
os._exit(signal.sigwait(WATCHED) - signal.SIGRTMIN)
