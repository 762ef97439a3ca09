"""Stores and clients of both makes behind one interface, for test_store.py.

A server is "muster", "libuv" or "classic" (PyTorch's two). A client has one method a store operation; it returns what the
store said, or raises Gone, TimedOut, Empty, Unsupported or Limit, whichever make it is of. Keys are texts, values bytes,
time-outs milliseconds.
"""

import atexit
import concurrent.futures
import os
import re
import select
import subprocess
import sys
from datetime import timedelta

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it reports each wait in vain
import jobs  # noqa: E402
import torch.distributed as dist  # noqa: E402

HAS_BARRIERS = hasattr(dist.TCPStore, "barrier")  # not before PyTorch 2.12, neither clients nor servers

BINARY = os.environ.get("MUSTER_BINARY", os.path.join("build", "muster"))
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(BINARY)), "tests")
HOST = "127.0.0.1"
PATIENCE_MS = 60000

STATUS = {-4: "TimedOut", -5: "Gone", -7: "Gone", -8: "Gone", -9: "Limit", -10: "Empty", -12: "Unsupported"}


class Failure(Exception):
    pass


class Gone(Failure):
    """The connection is lost."""


class TimedOut(Failure):
    pass


class Empty(Failure):
    """The queue."""


class Unsupported(Failure):
    pass


class Limit(Failure):
    pass


# --------------------------------------------------------------------------- servers


class Server:
    """A server in a process of its own, so that it can be killed."""

    def __init__(self, kind):
        self.kind = kind
        if kind == "muster":
            command = [BINARY, "store", "--port", "0"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        else:
            code = (
                "import sys\nfrom torch.distributed import TCPStore\n"
                f"store = TCPStore('{HOST}', 0, is_master=True, wait_for_workers=False, use_libuv={kind == 'libuv'})\n"
                "print(store.port, flush=True)\nsys.stdin.read()\n"
            )
            self.process = jobs.ForkedPython(code)
        atexit.register(self.kill)
        self.port = int(re.findall(r"\d+", self.process.stdout.readline())[-1])

    @property
    def has_queues(self):
        return self.kind != "classic"

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


# --------------------------------------------------------------------------- PyTorch's client


class TorchClient:
    """torch.distributed's TCPStore, FileStore or a PrefixStore on one of them."""

    make = "torch"

    def __init__(self, store):
        self.store = store
        self.thread = concurrent.futures.ThreadPoolExecutor(1)

    @classmethod
    def connect(cls, port, prefixes=(), world_size=None, use_libuv=True, timeout_ms=PATIENCE_MS):
        store = dist.TCPStore(
            HOST, port, world_size, False, timedelta(milliseconds=timeout_ms), use_libuv=use_libuv
        )
        for prefix in prefixes:
            store = dist.PrefixStore(prefix, store)
        return cls(store)

    @classmethod
    def open_file(cls, path, world_size):
        return cls(dist.FileStore(path, world_size))

    def call(self, name, *arguments):
        try:
            return getattr(self.store, name)(*arguments)
        except dist.QueueEmptyError as why:
            raise Empty(str(why)) from why
        except NotImplementedError as why:
            raise Unsupported(str(why)) from why
        except dist.DistNetworkError as why:
            raise Gone(str(why)) from why
        except dist.DistStoreError as why:
            raise TimedOut(str(why)) from why
        except RuntimeError as why:
            if "imeout" in str(why):
                raise TimedOut(str(why)) from why
            raise Gone(str(why)) from why

    def start(self, name, *arguments):
        """The same call from another thread; result() of what it returns waits for it."""
        return self.thread.submit(getattr(self, name), *arguments)

    def limited(self, timeout_ms, name, *arguments):
        """A call without a time-out of its own."""
        before = self.store.timeout
        self.store.set_timeout(timedelta(milliseconds=max(timeout_ms, 1)))
        try:
            return self.call(name, *arguments)
        finally:
            self.store.set_timeout(before)

    def set(self, key, value):
        self.call("set", key, value)

    def get(self, key, timeout_ms=PATIENCE_MS):
        return self.limited(timeout_ms, "get", key)

    def add(self, key, delta):
        return self.call("add", key, delta)

    def append(self, key, value):
        self.call("append", key, value)

    def compare_set(self, key, expected, desired):
        return self.call("compare_set", key, expected, desired)

    def delete_key(self, key):
        return bool(self.call("delete_key", key))

    def check(self, keys):
        return self.call("check", keys)

    def wait(self, keys, timeout_ms=PATIENCE_MS):
        self.call("wait", keys, timedelta(milliseconds=timeout_ms))

    def num_keys(self):
        return self.call("num_keys")

    def list_keys(self):
        return sorted(self.call("list_keys"))

    def multi_get(self, keys, timeout_ms=PATIENCE_MS):
        return self.limited(timeout_ms, "multi_get", keys)

    def multi_set(self, keys, values):
        self.call("multi_set", keys, values)

    def queue_push(self, key, value):
        self.call("queue_push", key, value)

    def queue_pop(self, key, timeout_ms=PATIENCE_MS):
        return self.limited(timeout_ms, "queue_pop", key, timeout_ms > 0)

    def queue_len(self, key):
        return self.call("queue_len", key)

    def barrier(self, key, world_size, timeout_ms=PATIENCE_MS):
        self.call("barrier", key, world_size, timedelta(milliseconds=timeout_ms))

    def settle(self):
        self.num_keys()

    def close(self):
        self.thread.shutdown()
        self.store = None


# --------------------------------------------------------------------------- Muster's clients


def encode(value):
    if len(value) > 64 and value == value[:1] * len(value):
        return f"*{len(value)}:{value[:1].hex()}"
    return "=" + value.hex()


def decode(word):
    if word[0] == "*":
        count, _, byte = word[1:].partition(":")
        return bytes.fromhex(byte) * int(count)
    return bytes.fromhex(word[1:])


class Answer:
    """Of a call that has been sent: the program answers in order."""

    def __init__(self, client, convert):
        self.client = client
        self.convert = convert

    def result(self):
        return self.convert(self.client.read())


class MusterClient:
    """A program that holds Muster's client: store_peer (muster/store.h) or agent_store_peer (the agent's)."""

    make = "muster"

    def __init__(self, program, *arguments):
        self.program = program
        command = [os.path.join(PROGRAMS, program), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.close)

    @classmethod
    def connect(cls, port, prefixes=(), world_size=0, timeout_ms=PATIENCE_MS):
        client = cls("store_peer", "tcp", HOST, port, world_size, timeout_ms, *prefixes)
        client.read()
        return client

    @classmethod
    def connect_agent(cls, port):
        client = cls("agent_store_peer", HOST, port, PATIENCE_MS)
        client.server_is_muster = client.read() == ["1"]
        return client

    @classmethod
    def open_file(cls, path, world_size):
        client = cls("store_peer", "file", path, 0, world_size, PATIENCE_MS)
        client.read()
        return client

    def read(self):
        ready, _, _ = select.select([self.process.stdout], [], [], 2 * PATIENCE_MS / 1000)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise AssertionError(f"{self.program} has said nothing: exit status {self.process.poll()}")
        code, _, rest = line.rstrip("\n").partition("\t")
        if code != "0":
            raise globals().get(STATUS.get(int(code), ""), Failure)(rest)
        return rest.split("\t") if rest else []

    def send(self, *words):
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def start(self, name, *arguments):
        words, convert = getattr(self, "_" + name)(*arguments)
        self.send(name, *words)
        return Answer(self, convert)

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(type(self), "_" + name):
            raise AttributeError(name)
        return lambda *arguments: self.start(name, *arguments).result()

    # Each gives the words of the call, and how to read those of the answer.

    def _set(self, key, value):
        return (key, encode(value)), lambda words: None

    def _get(self, key, timeout_ms=PATIENCE_MS):
        return (key, timeout_ms), lambda words: decode(words[0])

    def _find(self, key):
        return (key,), lambda words: decode(words[0])

    def _add(self, key, delta):
        return (key, delta), lambda words: int(words[0])

    def _append(self, key, value):
        return (key, encode(value)), lambda words: None

    def _compare_set(self, key, expected, desired):
        return (key, encode(expected), encode(desired)), lambda words: decode(words[0])

    def _delete_key(self, key):
        return (key,), lambda words: words[0] != "0"

    def _check(self, keys):
        return keys, lambda words: words[0] == "1"

    def _wait(self, keys, timeout_ms=PATIENCE_MS):
        return (timeout_ms, *keys), lambda words: None

    def _num_keys(self):
        return (), lambda words: int(words[0])

    def _list_keys(self):
        return (), sorted

    def _multi_get(self, keys, timeout_ms=PATIENCE_MS):
        return (timeout_ms, *keys), lambda words: [decode(word) for word in words]

    def _multi_set(self, keys, values):
        return [word for key, value in zip(keys, values) for word in (key, encode(value))], lambda words: None

    def _queue_push(self, key, value):
        return (key, encode(value)), lambda words: None

    def _queue_pop(self, key, timeout_ms=PATIENCE_MS):
        return (key, timeout_ms), lambda words: decode(words[0])

    def _queue_len(self, key):
        return (key,), lambda words: int(words[0])

    def _barrier(self, key, world_size, timeout_ms=PATIENCE_MS):
        return (key, world_size, timeout_ms), lambda words: None

    def _watch(self, key, known):
        return (key, encode(known)), lambda words: decode(words[0])

    def _add_init(self):
        return (), lambda words: int(words[0])

    def _get_init(self):
        return (), lambda words: decode(words[0])

    def settle(self):
        self.check(["settle"])

    def close(self):
        if not self.process.stdin.closed:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
