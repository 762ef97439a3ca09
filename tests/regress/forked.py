"""A process that torch_template.py forks for another one, which asks for it."""

import array
import json
import signal
import socket
import struct


class Child:
    """Does `task` with the three descriptors `stdio`. It need not be this process's child, and hears when this one ends."""

    def __init__(self, address, task, stdio):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(b"\0" + address.encode())
        text = json.dumps(task).encode()
        fds = array.array("i", [one if isinstance(one, int) else one.fileno() for one in stdio])
        self.socket.sendmsg([struct.pack("<Q", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        self.socket.sendall(text)
        self.lines = self.socket.makefile("r")
        self.pid = int(self.lines.readline())

    def exit_code(self):
        """Waits for its end; negative for a signal."""
        return int(self.lines.readline() or -signal.SIGKILL)

    def tell_end(self):
        """A worker is to end well."""
        self.socket.sendall(b"e")
