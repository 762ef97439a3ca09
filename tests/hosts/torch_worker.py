"""A worker of PyTorch for silence.py: as hosts_worker.c, with a group of this backend. torch_worker.py CHANNEL FOLDER gloo|muster"""

import datetime
import os
import socket
import sys
import threading
import time

CHANNEL = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
FOLDER, BACKEND = sys.argv[2:]
HOST = socket.gethostname()
PATIENCE = datetime.timedelta(seconds=900)
calls = 0


def stamp(name):
    said = {"rank": os.environ["RANK"], "world": os.environ["WORLD_SIZE"], "host": HOST, "attempt": os.environ["TORCHELASTIC_RESTART_COUNT"],
            "calls": calls}  # fmt: skip
    pairs = " ".join(f"{key}={value}" for key, value in said.items())
    os.write(CHANNEL, f"{name} ns={time.monotonic_ns()} pid={os.getpid()} {pairs}\n".encode())


def tick():
    while True:
        time.sleep(0.1)
        stamp("tick")


def work(torch, dist):
    global calls
    all_end = torch.zeros(1)
    while not all_end.item():
        time.sleep(0.01)
        try:
            os.unlink(f"{FOLDER}/fail.{HOST}")
            os._exit(3)
        except FileNotFoundError:
            pass
        all_end[0] = os.path.exists(f"{FOLDER}/end")
        dist.all_reduce(all_end)
        calls += 1


def main():
    stamp("start")
    threading.Thread(target=tick, daemon=True).start()
    import torch
    import torch.distributed as dist

    if BACKEND == "muster":
        import muster.distributed  # noqa: F401 - it registers the backend
    dist.init_process_group(BACKEND, timeout=PATIENCE)
    try:
        work(torch, dist)
    except RuntimeError as why:
        sys.stderr.write(f"torch_worker: {why}\n")
        os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
