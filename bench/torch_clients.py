"""Load on a TCPStore server from PyTorch's own clients, each in a process of its own.

    torch_clients.py PORT CLIENTS SECONDS

Each client repeats set, get, add, check, as fast as the answers come. Prints one line like store_load: operations,
nanoseconds.
"""

import os
import sys
import time

from torch.distributed import TCPStore


def work(port, number, seconds, ready, start):
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    key, counter, value = f"client{number}", f"counter{number}", "v" * 64
    os.write(ready, b"r")
    os.read(start, 1)  # ends when the parent closes its side
    end = time.monotonic() + seconds
    calls = 0
    while time.monotonic() < end:
        for _ in range(10):
            store.set(key, value)
            store.get(key)
            store.add(counter, 1)
            store.check([key])
        calls += 40
    return calls


def main():
    port, clients, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    ready, say_ready = os.pipe()
    hear_start, start = os.pipe()
    results, say_result = os.pipe()
    for number in range(clients):
        if os.fork() == 0:
            os.close(start)
            calls = work(port, number, seconds, say_ready, hear_start)
            os.write(say_result, f"{calls}\n".encode())
            os._exit(0)
    os.close(say_ready)
    os.close(say_result)
    count = 0
    while count < clients:
        got = os.read(ready, clients)
        if not got:
            sys.exit("a client could not connect")
        count += len(got)
    started = time.monotonic_ns()
    os.close(start)
    with os.fdopen(results) as lines:
        said = [int(line) for line in lines]
    elapsed = time.monotonic_ns() - started
    if len(said) != clients:
        sys.exit(f"{clients - len(said)} clients have failed")
    print(f"operations={sum(said)} ns={elapsed}")


main()
