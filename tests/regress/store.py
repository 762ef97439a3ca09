"""A client of the TCPStore wire protocol in plain Python, for tests that ask a store what it holds."""

import contextlib
import socket
import struct

VALIDATE = b"\x00\xce\xf7\x85\x3c"


def text(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<Q", len(data)) + data


class StoreClient:
    """One connection. Calls block; keys are sent as given (PyTorch's client puts a "/" before the user's)."""

    def __init__(self, host, port, timeout_s=10):
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(VALIDATE)
        self.socket.sendall(b"\x0d\x01\x02\x03\x04")
        if self._take(4) != b"\x01\x02\x03\x04":
            raise ConnectionError("the peer did not answer PING: not a TCPStore")

    def _take(self, count):
        data = bytearray()
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                raise ConnectionError("the store hung up")
            data += chunk
        return bytes(data)

    def _number(self):
        return struct.unpack("<q", self._take(8))[0]

    def set(self, key, value):
        self.socket.sendall(b"\x01" + text(key) + text(value))

    def get(self, key):
        self.socket.sendall(b"\x03" + text(key))
        return self._take(self._number())

    def add(self, key, delta):
        self.socket.sendall(b"\x04" + text(key) + struct.pack("<q", delta))
        return self._number()

    def check(self, *keys):
        self.socket.sendall(b"\x05" + struct.pack("<Q", len(keys)) + b"".join(text(k) for k in keys))
        return self._take(1) == b"\x00"

    def wait(self, *keys):
        self.socket.sendall(b"\x06" + struct.pack("<Q", len(keys)) + b"".join(text(k) for k in keys))
        self._take(1)

    def multi_set(self, keys, values):
        pairs = b"".join(text(key) + text(value) for key, value in zip(keys, values))
        self.socket.sendall(b"\x0b" + struct.pack("<Q", len(keys)) + pairs)

    def multi_get(self, keys):
        self.socket.sendall(b"\x0a" + struct.pack("<Q", len(keys)) + b"".join(text(key) for key in keys))
        return [self._take(self._number()) for _ in keys]

    def key_count(self):
        self.socket.sendall(b"\x07")
        return self._number()

    def list_keys(self):
        self.socket.sendall(b"\x11")
        return [self._take(self._number()) for _ in range(self._number())]

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()
