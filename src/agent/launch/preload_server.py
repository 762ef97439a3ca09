"""The preload server: imports what workers need, once a node, and forks them.

Run with -c by the agent (agent_preload.c), with MODULES, WORLD, and then what a worker gets, [-m] NAME ARGUMENT...: so
sys.path is that of the worker. MODULES are names with commas between them; one that ends in ? may be missing. WORLD are the
variables that only a worker has. Its stdout is the guardian's socket (guardian_preload.h has the frames). A fork becomes the
worker: what a script can see of itself is what it would see when started as usual. A module that cannot be forked safely is
left out with a sentence (preload_imports.py); a worker that cannot be a fork is started as usual.
"""


class Order:
    """A worker that is wanted: command line, environment, processors, three descriptors, and one that it is given (PMI_FD says which, to
    MPI's libraries)."""

    HEAD = "=8I"

    def __init__(self, body, fds):
        """Takes its own of `fds`."""
        import struct

        _, argv_count, envp_count, cpus_bytes, _, _, has_given, _ = struct.unpack_from(self.HEAD, body)
        at = struct.calcsize(self.HEAD)
        mask = int.from_bytes(body[at : at + cpus_bytes], "little")
        self.cpus = [number for number in range(mask.bit_length()) if mask >> number & 1]
        strings = body[at + cpus_bytes :].split(b"\0")
        self.argv = strings[:argv_count]
        self.variables = dict(item.split(b"=", 1) for item in strings[argv_count : argv_count + envp_count] if item.find(b"=") > 0)
        self.stdout, self.stderr, self.life = fds[:3]
        self.given = fds[3] if has_given else None
        del fds[: 4 if has_given else 3]

    def close(self):
        import os

        for fd in (self.stdout, self.stderr, self.life, self.given):
            if fd is not None:
                os.close(fd)

    def give(self):
        """Keeps what the worker is given, under the number that it has here."""
        import os

        if self.given is not None:
            os.set_inheritable(self.given, True)
            if b"PMI_FD" in self.variables:
                self.variables[b"PMI_FD"] = str(self.given).encode()
            self.given = None

    def refuse(self, why):
        import os

        try:
            os.write(self.life, b"N" + why.encode(errors="replace")[:900])
        except OSError:  # the guardian has no use for it any more
            pass

    def refuse_other_environment(self, imports):
        """Compared with what the imports found, for they may have changed it since."""
        import os

        for name, (_, module) in imports.variables.items():
            here, there = imports.before.get(os.fsencode(name)), self.variables.get(os.fsencode(name))
            if name == "OMP_NUM_THREADS":
                here, there = here or None, there or None
            if here != there and name != "LC_CTYPE":
                raise Refused(f"{module} reads {name} when it is imported, and its value differs in the worker")


class Channel:
    """The guardian's socket: frames of kind and length, with descriptors."""

    ORDER, READY, REFUSED, IMPORTING, LEFT_OUT = 1, 2, 3, 4, 5
    IMPORTING_S = 1  # not more often is it said what is being imported

    def __init__(self, fd):
        import socket

        self.socket = socket.socket(fileno=fd)
        self.bytes, self.fds = b"", []
        self.told = float("-inf")

    def tell_import(self, module):
        import time

        now = time.monotonic()
        if now - self.told >= self.IMPORTING_S:
            self.told = now
            self.send(self.IMPORTING, module)

    def send(self, kind, text):
        import struct

        body = text.encode(errors="replace")[:900]
        self.socket.sendall(struct.pack("=II", kind, len(body)) + body)

    def receive(self, flags):
        """False at the end."""
        import array
        import socket

        data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(32 * 4), flags)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
                self.fds += fds
        self.bytes += data
        return bool(data)

    def orders(self):
        """All that are there; waits for the first. None at the end."""
        import socket
        import struct

        found, flags = [], 0
        while True:
            try:
                if not self.receive(flags):
                    return None
            except BlockingIOError:
                return found
            while len(self.bytes) >= 8:
                _, length = struct.unpack_from("=II", self.bytes)
                if len(self.bytes) < 8 + length:
                    break
                found.append(Order(self.bytes[8 : 8 + length], self.fds))
                self.bytes = self.bytes[8 + length :]
            flags = socket.MSG_DONTWAIT if found and not self.bytes else 0


def fork():
    """Without the warning of Python 3.12 and later about threads: those that are allowed have handlers for a fork."""
    import os
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def fork_all(channel, orders, guardian, kept_files):
    """Returns the order that this process is the worker of. The server returns None."""
    import os

    between = fork()
    if between == 0:
        own_pid = os.getpid()
        for order in orders:
            try:
                child = fork()
            except OSError as problem:
                order.refuse(f"it cannot be forked: {problem}")
                continue
            if child == 0:
                channel.socket.close()
                for other in orders:
                    if other is not order:
                        other.close()
                await_start(order, own_pid, guardian, kept_files)
                return order
        os._exit(0)
    os.waitpid(between, 0)
    return None


def await_start(order, between, guardian, kept_files):
    """Becomes the guardian's child when the process between has ended, and goes on when the guardian knows it."""
    import ctypes
    import os
    import signal
    import struct
    import time

    os.setsid()
    while os.getppid() == between:
        time.sleep(0.0002)
    set_death_signal, kill_signal = ctypes.CDLL(None).prctl, int(signal.SIGKILL)
    set_death_signal(1, kill_signal, 0, 0, 0)
    if os.getppid() != guardian:  # it has died: nobody waits for this worker
        os._exit(0)
    try:
        for file in kept_files:
            file.open_again()
    except OSError as problem:
        order.refuse(f"{file.path}, which {file.module} keeps open, cannot be opened again: {problem.strerror}")
        os._exit(0)
    try:
        os.write(order.life, b"P" + struct.pack("=i", os.getpid()))
        goes = os.read(order.life, 1) == b"G"
    except OSError:
        goes = False
    if not goes:
        os._exit(0)


def show_command(argv, variables):
    """In ps and /proc: the worker's command line and environment in place of the server's, where the kernel lets us."""
    import ctypes

    class Map(ctypes.Structure):
        names = ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start", "arg_end", "env_start",
                 "env_end", "auxv")
        _fields_ = [(name, ctypes.c_uint64) for name in names] + [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]

    with open("/proc/self/stat", "rb") as text:
        fields = text.read().rpartition(b")")[2].split()  # from the third on
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    arguments = b"".join(item + b"\0" for item in argv)
    environment = b"".join(name + b"=" + value + b"\0" for name, value in variables.items())
    memory = ctypes.create_string_buffer(arguments + environment)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # it stays
    start = ctypes.addressof(memory)
    layout = Map(int(fields[23]), int(fields[24]), int(fields[42]), int(fields[43]), int(fields[44]), libc.sbrk(0), int(fields[25]), start,
                 start + len(arguments), start + len(arguments), start + len(arguments) + len(environment), 0, 0, 0xFFFFFFFF)
    libc.prctl(35, 14, ctypes.byref(layout), ctypes.sizeof(layout), 0)


def take_over(order, imports):
    """Streams, processors, environment with what the imports have changed in it, and random numbers."""
    import os
    import sys

    os.dup2(order.stdout, 1)
    os.dup2(order.stderr, 2)
    order.give()
    order.close()
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    coerced = {b"LC_CTYPE": os.environb[b"LC_CTYPE"]} if b"LC_CTYPE" in os.environb else {}  # by the interpreter, PEP 538
    os.environ.clear()
    os.environb.update({**coerced, **order.variables})
    for name, value in imports.changes.items():
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value
    show_command(order.argv, order.variables)
    imports.generators.draw_anew()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def memory_mb():
    with open("/proc/self/smaps_rollup", encoding="ascii") as text:
        for line in text:
            if line.startswith("Rss:"):
                return int(line.split()[1]) // 1024
    return 0


def leave_out(names, start, channel, imports):
    """Starts over without what forks cannot have, and says why. Returns if there is nothing of that kind."""
    import os

    found = imports.unsafe()
    blamed = {item for (item, _), _ in found}
    rest = [name for name in names if name not in blamed]
    said = []
    for (item, module), why in {blame: why for blame, why in reversed(found)}.items():  # the first of each module's
        said.append(f"the import of {module} {why}" + (f"; {item.rstrip('?')} is left out" if rest and item else ""))
    if not found:
        return
    imports.remove_temporary()
    if None in blamed or not rest:
        raise Refused("; ".join(said))
    for sentence in said:
        channel.send(Channel.LEFT_OUT, sentence)
    try:
        start.over(rest, channel.socket.fileno())
    except OSError as problem:
        raise Refused(f"{said[0]}, and the server cannot start over: {problem}") from None


def serve(names, world):
    """Imports and forks. Returns in a worker, with its command line."""
    import gc
    import os
    import sys
    import time

    guardian = os.getppid()
    if os.environ.get("OMP_NUM_THREADS") == "":
        del os.environ["OMP_NUM_THREADS"]  # as workers of muster.launch do, before their libraries see it
    start = Start()
    channel = Channel(os.dup(1))
    os.dup2(2, 1)  # what imports print is not for the guardian
    began = time.monotonic()
    imports = Imports(world, channel.tell_import)
    done = imports.run(names)
    try:
        leave_out(names, start, channel, imports)
    except Refused as why:
        channel.send(Channel.REFUSED, str(why))
        os._exit(0)
    start.close()
    files = stamps()
    for file in imports.kept_files:
        file.unlock()
    imports.generators.find()
    getattr(gc, "freeze", int)()  # the collector's marks would copy the pages that forks share
    channel.send(Channel.READY, f"{', '.join(done) or 'nothing'} in {time.monotonic() - began:.2f} s, {memory_mb()} MB")
    while True:
        orders = channel.orders()
        if orders is None:
            os._exit(0)
        stale = changed(files, imports.kept_files)
        wanted = []
        for order in orders:
            try:
                if stale is not None:
                    raise Refused(f"{stale[0]} ({stale[1]}) has changed since it was imported")
                order.refuse_other_environment(imports)
                wanted.append(order)
            except Refused as why:
                order.refuse(str(why))
        if stale is not None:
            os._exit(0)  # the next server imports anew
        mine = fork_all(channel, wanted, guardian, imports.kept_files) if wanted else None
        if mine is not None:
            take_over(mine, imports)
            return [os.fsdecode(item) for item in mine.argv]
        for order in orders:
            order.close()


def show_start(arguments, before):
    """What a program can read of its start; modules may read it when they are imported. Returns the folder that is searched first."""
    import os
    import sys

    is_module = arguments[0] == "-m"
    folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(arguments[0]))
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)) and before in sys.path:
        sys.path[sys.path.index(before)] = folder
    sys.argv = arguments[1:] if is_module else list(arguments)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], "-u", *arguments]
    if not is_module:
        path = os.path.abspath(arguments[0]) if sys.version_info >= (3, 9) else arguments[0]
        sys.modules["__main__"].__dict__["__file__"] = path
    return folder


def become_worker():
    """The whole life of this process. Imports in functions: the names of this program must not be the script's."""
    import importlib.machinery
    import os
    import pkgutil
    import runpy
    import sys

    modules, world, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    folder = show_start(arguments, "")
    command = serve(list(dict.fromkeys(name for name in map(str.strip, modules.split(",")) if name)), world.split(","))
    arguments = command[2:]  # after the interpreter and -u
    show_start(arguments, folder)
    own_file, hook = sys._getframe().f_code.co_filename, sys.excepthook

    def show(kind, problem, trace):
        while trace and trace.tb_frame.f_code.co_filename == own_file:
            trace = trace.tb_next
        hook(kind, problem.with_traceback(trace), trace)  # a module's, if one has set it

    sys.excepthook = show
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    if arguments[0] == "-m":
        runpy._run_module_as_main(arguments[1])
        return
    script = arguments[0]
    if script.endswith(".pyc") or not os.path.isfile(script) or pkgutil.get_importer(script) is not None:
        os.execv(sys.executable, [sys.executable, "-u", *arguments])
    path = main["__file__"]
    main.update(__doc__=None, __cached__=None)
    main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    with open(path, "rb") as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, main)


become_worker()
