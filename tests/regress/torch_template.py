"""Many torchruns and PyTorch workers for one import of PyTorch, which takes longer than what most of them do.

    torch_template.py TORCHRUN [MODULE ...]
    torch_template.py --at SOCKET [MODULE ...]

prints the name of an abstract Unix socket, or listens at SOCKET, once PyTorch and the modules are imported, and ends when its stdin does. Who
connects is given a process of its own, forked from here: its id is said on the connection, and its exit code (negative: a
signal) when it has ended, each in a line. The connection begins with one message: a length and as much JSON, and three descriptors, which become
the process's stdin, stdout and stderr. The JSON tells what to become:

    {"arguments": [...], "environment": {...}, "folder": "..."}     the script TORCHRUN, called with these arguments
    the same with "worker": PID                                     the part of gloo_worker.py that needs PyTorch, in the name
                                                                    of the worker PID; it ends when the connection does, and
                                                                    well when told so with a byte
    {"code": "...", "environment": {...}, "folder": "..."}          python -c CODE
    {"script": [...], "environment": {...}, "folder": "..."}        python -u SCRIPT ARGUMENT...; killed when the connection ends
    {"template": TORCHRUN, "modules": [...], "environment": {...}, "folder": "..."}
                                                                    torch_template.py TORCHRUN MODULE..., in the namespaces of who asks
"""

import array
import atexit
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
F_SETSIG = 10  # Linux; Python has no name for it
path = None
if sys.argv[1] == "--at":
    path = sys.argv[2]
    del sys.argv[1]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores both for what it starts in the background
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
sys.path[0] = os.path.dirname(sys.argv[1])  # not this folder, which has modules of other names for itself


def import_all(modules):
    before = dict(os.environ)
    for module in modules:
        importlib.import_module(module)
    if dict(os.environ) != before:
        sys.exit("importing PyTorch changes the environment, which the forked ones would lack")


import_all(["torch.distributed.run", *sys.argv[2:]])
import torch.distributed.run  # noqa: E402


class Nursery:
    """Forks for whoever connects, and tells them how it ended. path: where it listens; None: its address is printed."""

    def __init__(self, path=None):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o077)  # who connects has code run
        self.listener.bind(f"{path}.new" if path else "")  # Linux finds a name
        os.umask(umask)
        self.listener.listen(64)
        if path:  # whoever sees it can connect
            os.rename(f"{path}.new", path)
        else:
            print(self.listener.getsockname()[1:].decode(), flush=True)
        self.ends, wakes = socket.socketpair()
        wakes.setblocking(False)
        self.wakes = wakes
        self.callers = {}  # by process id

    def serve(self):
        """Returns the connection in the children."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # heard through the descriptor
        signal.set_wakeup_fd(self.wakes.fileno())
        events = selectors.DefaultSelector()
        for source in (self.listener, self.ends, sys.stdin):
            events.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in events.select()]
            if self.ends in ready:
                self.ends.recv(4096)
                self.reap()
            if self.listener in ready:
                caller = self.listener.accept()[0]
                pid = os.fork()
                if pid == 0:
                    events.close()
                    self.leave()
                    return caller
                self.callers[pid] = caller
                self.say(caller, pid)
            if sys.stdin in ready:
                os._exit(0)

    def reap(self):
        while self.callers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self.callers.pop(pid) as caller:
                self.say(caller, os.waitstatus_to_exitcode(status))

    @staticmethod
    def say(caller, number):
        try:
            caller.sendall(b"%d\n" % number)
        except OSError:
            pass  # nobody waits for it any more

    def leave(self):
        """In a child: it has none of this."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self.listener, self.ends, self.wakes, *self.callers.values()):
            one.close()


def receive(caller):
    """What to become, from the connection, with the three descriptors in their places."""
    data, ancillary, _, _ = caller.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    fds = array.array("i")
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    (length,) = struct.unpack("<Q", data)
    text = b""
    while len(text) < length:
        chunk = caller.recv(length - len(text))
        if not chunk:
            os._exit(1)
        text += chunk
    for place, fd in enumerate(fds):
        os.dup2(fd, place)
        os.close(fd)
    return json.loads(text)


def join(caller):
    """The caller's namespaces and priority."""
    pid = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net", "uts", "mnt"):  # the first gives the right to join the others
        theirs = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        if os.fstat(theirs).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino and libc.setns(theirs, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {kind}")
        os.close(theirs)
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, pid), os.getpriority(os.PRIO_PROCESS, 0)))


def become(told):
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    tempfile.tempdir = None  # found out anew


def run(function):
    """The exit code of a script that does this, as the interpreter would find it."""
    try:
        function()
        return 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:  # pylint: disable=broad-except
        sys.excepthook(*sys.exc_info())
        return 1


def run_worker(arguments, pid, caller):
    sys.argv = arguments
    sys.path[0] = HERE
    import gloo_worker

    def obey():
        try:
            while caller.recv(1):
                gloo_worker.ENDS.set()
        finally:  # it resets the connection if it is killed before it has read this process's id
            os._exit(1)

    threading.Thread(target=obey, daemon=True).start()
    gloo_worker.PID = pid
    gloo_worker.work()


def run_script(arguments, caller):
    """No thread waits for the caller's end, for the script may count its threads: the kernel kills."""
    fcntl.fcntl(caller, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(caller, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(caller, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([caller], [], [], 0)[0]:  # it has ended before
        os._exit(1)
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    leave(run(lambda: runpy.run_path(arguments[0], run_name="__main__")))


def leave(code):
    """As the interpreter ends, but that it does not take down a copy of all of PyTorch, which takes half a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


gc.freeze()  # what is not looked at stays common to all
torchrun = sys.argv[1]
connection = Nursery(path).serve()
task = receive(connection)
if path:
    join(connection)
become(task)
if "template" in task:
    torchrun = task["template"]
    sys.path[0] = os.path.dirname(torchrun)
    import_all(task["modules"])
    gc.freeze()
    parent, connection = connection, Nursery().serve()
    parent.close()
    task = receive(connection)
    become(task)
if "worker" in task:
    run_worker(task["arguments"], task["worker"], connection)
if "script" in task:
    run_script(task["script"], connection)
connection.close()
if "code" in task:
    leave(run(lambda: exec(task["code"], {"__name__": "__main__"})))
faulthandler.register(signal.SIGRTMAX)  # for a test that waits for its end in vain; nobody else uses this one
sys.argv = [torchrun, *task["arguments"]]
leave(run(lambda: sys.exit(torch.distributed.run.main())))
