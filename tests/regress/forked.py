"""Processes that have imported PyTorch already: torch_template.py forks them for others, which ask for them."""

import array
import json
import os
import signal
import socket
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES = "MUSTER_TEST_TEMPLATES"  # tools/run-tests: where the one of all tests listens
# A template whose import these change, or that finds other modules, imports PyTorch itself.
OWN = ("PYTHONPATH", "MUSTER_AS_GLOO")


class Child:
    """Does `task` with the three descriptors `stdio`. It need not be this process's child, and hears when this one ends."""

    def __init__(self, address, task, stdio):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(address if address.startswith("/") else b"\0" + address.encode())
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


class Template:
    """A process from which others are forked, in the namespaces of this one; `address` is for Child. It ends with this process, which holds its
    stdin. Where it can, the template of all tests forks it, so that it need not import PyTorch."""

    def __init__(self, python, torchrun, modules, env):
        out, stdout = os.pipe()
        stdin, self.stdin = os.pipe()
        if not self._is_forked(torchrun, modules, env, (stdin, stdout, 2)):
            import subprocess  # workers import this module, and not that

            self.process = subprocess.Popen([python, os.path.join(HERE, "torch_template.py"), torchrun, *modules], env=env, cwd="/",
                                            stdin=stdin, stdout=stdout)
        os.close(stdin)
        os.close(stdout)
        with os.fdopen(out, encoding="utf-8") as lines:
            self.address = lines.readline().strip()

    def _is_forked(self, torchrun, modules, env, stdio):
        if TEMPLATES not in env or any(name in env for name in OWN):
            return False
        task = {"template": torchrun, "modules": list(modules), "environment": env, "folder": "/"}
        try:
            self.child = Child(env[TEMPLATES], task, stdio)
        except OSError:  # still on its way, or gone
            return False
        return True
