"""What is measured of a store server, alone: operations a second under bench's own client, and idle connections."""

import os
import re
import select
import socket
import subprocess
import time

import jobs
from measures import Experiment, Promise, Row
from store import StoreClient

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATIONS = ("get", "set", "add", "check", "compare_set", "multi_get")
LOADS = ((1, 1), (64, 1), (64, 16))  # connections, requests in flight on each
CLASSIC_OPERATIONS = ("get", "set", "multi_get")  # against PyTorch's older server, too
TORCH_CLIENTS = 64
LARGE_MIB = 16
IDLE_CONNECTIONS = 1000
SERVER = {"muster": "muster store --port 0", "torchrun": "TCPStore(is_master=True) (bench/torch_store.py)"}


class Server:
    """A store server in the foreground; the port is the last number of the first line it prints."""

    def __init__(self, launcher, scratch, peer=()):
        if launcher == "muster":
            command = [jobs.muster_binary(), "store", "--port", "0"]
        else:
            jobs.need_torch()
            command = [jobs.python(), os.path.join(HERE, "torch_store.py"), *peer]
        ours, theirs = os.pipe()
        self.process = scratch.start(f"store-{launcher}", command, stdin=subprocess.PIPE, stdout=theirs)
        os.close(theirs)
        jobs.check(select.select([ours], [], [], 60)[0], "the store server says nothing")
        line = os.read(ours, 4096).decode().splitlines()
        os.close(ours)
        numbers = re.findall(r"\d+", line[0] if line else "")
        jobs.check(numbers, f"the store server printed no port: {line}\n{self.process.tail()}")
        self.port = int(numbers[-1])
        self.pid = self.process.pid

    def cpu_s(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(server, operation, clients, seconds, depth=1):
    """One run of bench's client: {operations, ns, p50_ns, p99_ns}, and the server's CPU microseconds an operation."""
    before = server.cpu_s()
    command = [jobs.program("store_load"), str(server.port), operation, str(clients), str(seconds), str(depth)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 30)
    jobs.check(done.returncode == 0, f"{' '.join(command)}: {done.stderr}")
    said = {key: int(value) for key, value in (pair.split("=") for pair in done.stdout.split())}
    said["cpu_us"] = (server.cpu_s() - before) * 1e6 / said["operations"]
    return said


def throughput(clients, depth):
    def measure(launcher, bench):
        values, cpu = {}, []
        with jobs.Scratch() as scratch:
            server = Server(launcher, scratch)
            for operation in OPERATIONS:
                bench.wait_for_quiet()
                said = load(server, operation, clients, 0.3 if bench.quick else 1, depth)
                values[f"store_{operation}_{clients}_{depth}"] = said["operations"] / (said["ns"] / 1e9) / 1000
                cpu.append(said["cpu_us"])
        values[f"store_cpu_{clients}_{depth}"] = sum(cpu) / len(cpu)
        return values

    return measure


def classic(launcher, bench):
    """The same against the server that PyTorch's use_libuv=False chooses."""
    values = {}
    with jobs.Scratch() as scratch:
        server = Server(launcher, scratch, ["classic"])
        for operation in CLASSIC_OPERATIONS:
            bench.wait_for_quiet()
            said = load(server, operation, 64, 0.3 if bench.quick else 1)
            values[f"store_classic_{operation}"] = said["operations"] / (said["ns"] / 1e9) / 1000
            values[f"store_classic_cpu_{operation}"] = said["cpu_us"]
    return values


def torch_clients(launcher, bench):
    """PyTorch's own clients, each in a process: they, not the server, are most of the work."""
    command = [jobs.python(), os.path.join(HERE, "torch_clients.py")]
    with jobs.Scratch() as scratch:
        server = Server(launcher, scratch)
        bench.wait_for_quiet()
        command += [str(server.port), str(TORCH_CLIENTS), "1" if bench.quick else "3"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        jobs.check(done.returncode == 0, f"{' '.join(command)}: {done.stderr}")
        said = {key: int(value) for key, value in (pair.split("=") for pair in done.stdout.split())}
    return {"store_torch_clients": said["operations"] / (said["ns"] / 1e9) / 1000}


def large_messages(launcher, bench):
    """Values of 1 MiB in one MULTI_SET, and all of them back in one MULTI_GET."""
    value = b"L" * (1 << 20)
    keys = [f"/large/{number}".encode() for number in range(LARGE_MIB)]
    with jobs.Scratch() as scratch:
        server = Server(launcher, scratch)
        client = StoreClient("127.0.0.1", server.port, 120)
        bench.wait_for_quiet()
        started = time.monotonic_ns()
        client.multi_set(keys, [value] * LARGE_MIB)
        jobs.check(client.multi_get(keys) == [value] * LARGE_MIB, "the values have changed")
        elapsed = time.monotonic_ns() - started
        client.close()
    return {"store_large": elapsed / 1e6}


def idle_memory(launcher, bench):
    jobs.descriptor_limit(IDLE_CONNECTIONS + 200)
    with jobs.Scratch() as scratch:
        server = Server(launcher, scratch)
        before = jobs.memory_anonymous_kib(server.pid)
        connections = []
        for number in range(IDLE_CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", server.port), 20)
            connection.sendall(b"\x00\xce\xf7\x85\x3c")
            connection.sendall(b"\x0d" + number.to_bytes(4, "little"))
            jobs.check(connection.recv(4) == number.to_bytes(4, "little"), "PING was not answered")
            connections.append(connection)
        time.sleep(0.2)
        after, whole = jobs.memory_anonymous_kib(server.pid), jobs.memory_pss_kib(server.pid)
        for connection in connections:
            connection.close()
        return {"store_idle": (after - before) / 1024, "store_total": whole / 1024}


def rows(clients, depth):
    name = f"{clients} client{'s' * (clients > 1)}" + (f", {depth} requests in flight each" if depth > 1 else "")
    for operation in OPERATIONS:
        of_ten = " of 10 keys" if operation == "multi_get" else ""
        yield Row(f"store_{operation}_{clients}_{depth}", f"store: {operation}{of_ten}, {name}", "k/s", True)
    yield Row(f"store_cpu_{clients}_{depth}", f"store: server's CPU per operation, mean of the six, {name}", "us")


EXPERIMENTS = [
    *(
        Experiment(
            throughput(clients, depth),
            list(rows(clients, depth)),
            f"{{server}}; store_load PORT OPERATION {clients} 1 {depth}",
        )
        for clients, depth in LOADS
    ),
    Experiment(
        classic,
        [
            row
            for operation in CLASSIC_OPERATIONS
            for row in (
                Row(f"store_classic_{operation}", f"store, against PyTorch's classic server: {operation}, 64 clients", "k/s", True),
                Row(f"store_classic_cpu_{operation}", f"the same, server's CPU per {operation}", "us"),
            )
        ],
        "{server} classic; store_load PORT get|set|multi_get 64 1",
        runs=3,
    ),
    Experiment(
        torch_clients,
        [Row("store_torch_clients", f"store: set, get, add, check by {TORCH_CLIENTS} PyTorch clients", "k/s", True)],
        f"{{server}}; bench/torch_clients.py PORT {TORCH_CLIENTS} 3",
        runs=3,
        torch_workers=True,
    ),
    Experiment(
        large_messages,
        [Row("store_large", f"store: {LARGE_MIB} MiB in one multi_set and back in one multi_get", "ms")],
        "{server}; tests/regress/store.py: multi_set, multi_get",
        runs=3,
    ),
    Experiment(
        idle_memory,
        [
            Row("store_idle", "store: growth by 1,000 idle connections (anonymous memory)", "MiB"),
            Row("store_total", "store: whole server with 1,000 idle connections (PSS)", "MiB"),
        ],
        "{server}; 1,000 x connect, VALIDATE, PING",
        runs=2,
    ),
]

PROMISES = [
    Promise(
        f"store: operations a second at {clients} clients, {depth} in flight on each, mean of the six",
        [f"store_{operation}_{clients}_{depth}" for operation in OPERATIONS],
        2,
        is_ratio=True,
        higher_is_better=True,
    )
    for clients, depth in LOADS
    if clients == 64
] + [Promise("store: whole server with 1,000 idle connections (PSS)", ["store_total"], 10, "MiB")]
