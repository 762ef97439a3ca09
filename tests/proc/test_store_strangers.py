#!/usr/bin/env python3
# The store served to strangers: garbage, half messages, floods, readers who do not read. Nobody else is harmed.
"""Usage: test_store_strangers.py [NAME ...] [--seed N]; MUSTER_BINARY names the program.

Beside each attack a witness goes on working; afterwards the server holds no more descriptors than before, and not much
more memory.
"""
import contextlib
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
from store import VALIDATE, StoreClient, text  # noqa: E402

HOST = "127.0.0.1"
MIB = 1 << 20
PATIENCE_S = 60
SET, GET, WAIT = b"\x01", b"\x03", b"\x06"


def u64(number):
    return struct.pack("<Q", number)


class Server:
    def __init__(self, descriptors=4096):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [os.environ["MUSTER_BINARY"], "store", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self.log,
            preexec_fn=limit,
        )
        self.port = int(re.findall(rb"\d+", self.process.stdout.readline())[-1])
        self.witness = StoreClient(HOST, self.port, PATIENCE_S)
        self.sum = 0
        self.settle()
        self.descriptors = self.descriptor_count()

    def check_witness(self, count=50):
        for _ in range(count):
            self.sum += 1
            assert self.witness.add("/witness", 1) == self.sum

    def memory_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024

    def descriptor_count(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def log_lines(self):
        self.log.seek(0)
        return self.log.read().count(b"\n")

    def settle(self):
        """Until the server has dealt with what others did before: it serves the witness after them."""
        for _ in range(3):
            self.check_witness(1)

    def expect_descriptors(self):
        for _ in range(1000):  # each turn lets the server close some more
            if self.descriptor_count() <= self.descriptors:
                return
            self.check_witness(1)
        raise AssertionError(f"{self.descriptor_count()} descriptors, {self.descriptors} before")

    def connect(self):
        return socket.create_connection((HOST, self.port), PATIENCE_S)

    def client(self):
        """A connection after the handshake, as a plain socket."""
        plain = self.connect()
        plain.sendall(VALIDATE)
        return plain

    def end(self):
        assert self.process.poll() is None, f"the server has ended: {self.process.returncode}"
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        self.process.stdout.close()
        self.log.close()


def send_while_it_lasts(plain, data):
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        plain.sendall(data)


def expect_end(plain):
    """The server hangs up, whatever it has said before."""
    with contextlib.suppress(ConnectionResetError):
        while plain.recv(65536):
            pass
    plain.close()


def reset(plain):
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.close()


def garbage(server, rng):
    for _ in range(300):
        plain = server.connect()
        if rng.random() < 0.5:
            send_while_it_lasts(plain, VALIDATE)
        send_while_it_lasts(plain, rng.randbytes(rng.randrange(1, 3000)))
        server.check_witness(1)
        reset(plain) if rng.random() < 0.5 else plain.close()
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"SSH-2.0-x\r\n", b"\x00\x00\x00\x00\x00", b"\xff" * 99):
        plain = server.connect()
        send_while_it_lasts(plain, words)
        expect_end(plain)
    assert server.log_lines() <= 30, "strangers fill the log"


def lengths(server, rng):
    """No length is believed: the connection ends when it has arrived, and memory is not touched."""
    before = server.memory_mib()
    heads = [bytes([command]) for command in (2, 3, 4, 5, 6, 8, 9, 10, 11, 14, 15, 16, 18, 64)]
    heads += [bytes([command]) + text("k") for command in (1, 9, 2, 14, 64)]  # of the value
    heads += [b"\x0b" + u64(1), b"\x0b" + u64(1) + text("k"), b"\x0a" + u64(2) + text("k")]
    for head in heads:
        for length in (1 << 63, (1 << 64) - 1, 1 << 32, 1 << 31, (1 << 24) + 1):
            plain = server.client()
            send_while_it_lasts(plain, head + u64(length))
            expect_end(plain)
    server.check_witness()
    assert server.memory_mib() < before + 8


def half_messages(server, rng):
    """Two hundred requests of 8 MiB that never end: memory follows what has come, and goes with the connection."""
    before = server.memory_mib()
    halves = [server.client() for _ in range(200)]
    for plain in halves:
        plain.sendall(SET + text("k") + u64(8 * MIB) + bytes(64 * 1024))
    server.check_witness()
    grown = server.memory_mib() - before
    assert grown < 200 * 0.25, f"{grown:.0f} MiB for 12.5 MiB that came"
    for plain in halves:
        reset(plain)
    server.check_witness()
    assert not server.witness.check("/k")


def drops(server, rng):
    """A byte at a time, from two hundred at once: everybody gets all answers."""
    words = VALIDATE + b"\x0dnonce"[:5] + SET + text("/slow") + text("v") + GET + text("/slow") + b"\x07"
    slow = [server.connect() for _ in range(200)]
    for plain in slow:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(words)):
        for plain in slow:
            plain.send(words[at : at + 1])
        server.check_witness(1)
    for plain in slow:
        answer = b""
        while len(answer) < 4 + 9 + 8:
            answer += plain.recv(100)
        assert answer[:13] == b"nonc" + text("v"), answer
        plain.close()


def readers_who_do_not_read(server, rng):
    """Sixteen ask for 64 MiB each and read nothing: the server stops reading them. Then they read it all."""
    count, ask = 64, GET + text("/large")
    server.witness.set("/large", b"L" * MIB)
    server.settle()
    before = server.memory_mib()
    greedy = [server.client() for _ in range(16)]
    for plain in greedy:
        plain.sendall(ask * count)
    server.check_witness()
    grown = server.memory_mib() - before
    assert grown < 16 * 4, f"{grown:.0f} MiB held for readers who do not read"
    for plain in greedy[8:]:
        reset(plain)
    for plain in greedy[:8]:
        left = count * (8 + MIB)
        while left:
            got = len(plain.recv(min(left, MIB)))
            assert got, "the server hung up"
            left -= got
        plain.close()
    server.witness.set("/large", b"")


def floods(server, rng):
    """A hundred connections send requests as fast as they can, some of them larger than a read, and read nothing."""
    before = server.memory_mib()
    block = (SET + text("/flood") + text(b"f" * 100)) * 500 + (GET + text("/flood")) * 2000 + b"\x11" * 500
    senders = [server.client() for _ in range(100)]
    for plain in senders:
        plain.setblocking(False)
    for _ in range(20):
        for plain in select.select([], senders, [], 0)[1]:
            plain.send(block)
        server.check_witness(5)
    grown = server.memory_mib() - before
    assert grown < 100, f"{grown:.0f} MiB for readers who do not read"
    for plain in senders:
        reset(plain)


def waiters_who_go(server, rng):
    before = server.memory_mib()
    for turn in range(3):
        waiters = [server.client() for _ in range(500)]
        for plain in waiters:
            plain.sendall(WAIT + u64(100) + b"".join(text(f"/never/{rng.randrange(200)}") for _ in range(100)))
        server.check_witness()
        for plain in waiters[: 250 * turn]:
            reset(plain)
        for key in range(200):
            server.witness.set(f"/never/{key}", b"v")
        for plain in waiters[250 * turn :]:
            assert plain.recv(2) == b"\x00"
            plain.close()
        for key in range(200):
            server.witness.socket.sendall(b"\x08" + text(f"/never/{key}"))
            server.witness._number()
    server.expect_descriptors()
    assert server.memory_mib() < before + 40


def comings_and_goings(server, rng):
    for _ in range(3000):
        plain = server.connect()
        how = rng.randrange(4)
        if how == 0:
            send_while_it_lasts(plain, VALIDATE + WAIT)
        elif how == 1:
            send_while_it_lasts(plain, VALIDATE + b"\x07" * 100)
        reset(plain) if how % 2 else plain.close()
    server.check_witness()


def no_descriptor_left(_, rng):
    """More connections than descriptors: who is there goes on, who comes is turned away, and may come again later."""
    server = Server(descriptors=64)
    many = [server.connect() for _ in range(200)]
    served = 0
    for plain in many:
        send_while_it_lasts(plain, VALIDATE + b"\x0dping")
        with contextlib.suppress(ConnectionResetError):
            served += plain.recv(4) == b"ping"
    assert 20 < served < 64, served
    server.check_witness()
    for plain in many:
        plain.close()
    server.expect_descriptors()
    StoreClient(HOST, server.port, PATIENCE_S).close()
    assert server.log_lines() <= 60, "clients that are turned away fill the log"
    server.end()


CASES = [
    garbage,
    lengths,
    half_messages,
    drops,
    readers_who_do_not_read,
    floods,
    waiters_who_go,
    comings_and_goings,
    no_descriptor_left,
]


def main():
    arguments = sys.argv[1:]
    seed = random.SystemRandom().randrange(2**32)
    if "--seed" in arguments:
        at = arguments.index("--seed")
        seed = int(arguments[at + 1])
        del arguments[at : at + 2]
    print(f"seed {seed}", flush=True)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limit[1]), limit[1]))
    server = Server()
    for case in CASES:
        if arguments and case.__name__ not in arguments:
            continue
        print(f"{case.__name__} ({server.memory_mib():.1f} MiB)", flush=True)
        case(server, random.Random(seed))
        server.expect_descriptors()
        server.check_witness()
    print(f"at the end {server.memory_mib():.1f} MiB, {server.log_lines()} lines of log")
    server.end()


main()
