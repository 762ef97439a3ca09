"""The preload server: imports what workers need, once a node, and forks them.

Run with -c by the agent (agent_preload.c), with MODULES and then what a worker gets, [-m] NAME ARGUMENT...: so sys.path is
that of the worker. MODULES are names with commas between them; one that ends in ? may be missing. Its stdout is the
guardian's socket (guardian_preload.h has the frames). A fork becomes the worker: what a script can see of itself is what
it would see when started as usual. What cannot be forked safely is refused with a sentence, and started as usual.
"""


# Modules that go through all variables when they are imported, for those whose names begin so. PyTorch imports tqdm where it is installed.
LOOKS_FOR = {"tqdm.utils": "TQDM_"}


class Refused(Exception):
    """Why there can be no forks of this process, or not this one."""


def thread_count():
    import os

    return len(os.listdir("/proc/self/task"))


def file_count():
    import os

    return len(os.listdir("/proc/self/fd"))


def open_files():
    """By number: what is open, besides the descriptor that looks."""
    import os

    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass
    return found


class Imports:
    """What modules do to this process while they are imported: threads, descriptors, and which variables they read and change."""

    def __init__(self):
        self.under_way = ["the interpreter"]  # modules, each imported by the one before it
        self.threads = thread_count()
        self.files = open_files()
        self.file_count = file_count()
        self.blamed_threads = []  # modules
        self.blamed_files = {}  # descriptor: (module, what)
        self.variables = {}  # name: module that has read it
        self.before = {}  # the variables when the imports begin
        self.changes = {}  # name: what an import has given it, or None

    def watched(self, usual):
        """A loader's method that creates or runs a module."""

        def method(loader, what):
            self.look()
            self.under_way.append(getattr(what, "name", None) or what.__name__)  # of a specification, or of a module
            try:
                return usual(loader, what)
            finally:
                self.look()
                self.under_way.pop()

        return method

    def look(self):
        threads, count = thread_count(), file_count()
        if threads > self.threads:
            self.blamed_threads.append(self.under_way[-1])
        self.threads = threads
        if count != self.file_count:
            files = open_files()
            for number, what in files.items():
                if self.files.get(number) != what:
                    self.blamed_files[number] = (self.under_way[-1], what)
            self.files, self.file_count = files, count

    def read(self, key):
        import sys

        name = key.decode(errors="surrogateescape") if isinstance(key, bytes) else key
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        module = frame.f_globals.get("__name__") or "?"
        if name.startswith(LOOKS_FOR.get(module, "")):
            self.variables.setdefault(name, module)

    def run(self, names):
        """Imports; returns what could be imported."""
        import importlib.machinery
        import os
        import sys

        done = []
        self.before = dict(os.environb)
        machinery = importlib.machinery
        places = [(machinery.SourceFileLoader, "exec_module"), (machinery.SourcelessFileLoader, "exec_module"),
                  (machinery.ExtensionFileLoader, "exec_module"), (machinery.ExtensionFileLoader, "create_module"),
                  (type(os.environ), "__getitem__")]
        before = [(place, name, name in vars(place), getattr(place, name)) for place, name in places]
        usual = type(os.environ).__getitem__

        def recording(environment, key):
            self.read(key)
            return usual(environment, key)

        for place, name, _, method in before[:-1]:
            setattr(place, name, self.watched(method))
        type(os.environ).__getitem__ = recording
        try:
            for name in names:
                try:
                    importlib.import_module(name.rstrip("?"))
                    done.append(name.rstrip("?"))
                except BaseException as problem:  # the worker may do without, or say it better; SystemExit, too
                    if not (name.endswith("?") and isinstance(problem, ModuleNotFoundError)):
                        said = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
                        print(f"muster: --preload: {name.rstrip('?')} cannot be imported: {said}", file=sys.stderr)
        finally:
            for place, name, is_own, method in before:
                if is_own:
                    setattr(place, name, method)
                else:
                    delattr(place, name)
        after = dict(os.environb)
        self.changes = {name: after.get(name) for name in self.before.keys() | after.keys() if self.before.get(name) != after.get(name)}
        self.look()
        return done


def loaded(part):
    """The shared libraries in memory whose name has this part."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and part in path[0].rpartition("/")[2] and path[0] not in found:
                found.append(path[0])
    return found


def pool_threads():
    """Of OpenBLAS, which ends its threads before a fork, and starts them again in the child."""
    import ctypes

    count = 0
    for path in loaded("openblas"):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads", "openblas_get_num_threads64_",
                     "openblas_get_num_threads"):
            if hasattr(library, name):
                count += max(getattr(library, name)() - 1, 0)
                break
    return count


def thread_names():
    """Of Python's own, with the module of what they run."""
    import sys
    import threading

    names = []
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            target = getattr(thread, "_target", None) or type(thread)
            module = getattr(target, "__module__", None)
            names.append(f"{thread.name} of {module}" if module in sys.modules else thread.name)
    return names


def refuse_unsafe(imports):
    """A fork has the calling thread alone: locks that others hold stay locked for ever. It shares what is open."""
    import os
    import sys

    if imports.threads > 1 + pool_threads():
        module = imports.blamed_threads[0] if imports.blamed_threads else "?"
        names = thread_names()
        raise Refused(f"the import of {module} starts a thread{' (' + ', '.join(names) + ')' if names else ''}, and a process with threads "
                      "cannot be forked safely")
    children = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as text:
            children += text.read().split()
    if children:
        raise Refused(f"an import has started a process ({children[0]}), which forks would share")
    for module, what in imports.blamed_files.values():
        if what.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")):
            raise Refused(f"the import of {module} opens the device {what}, which forks cannot use")
        if what.startswith(("socket:", "pipe:", "anon_inode:")) and what in open_files().values():
            raise Refused(f"the import of {module} opens a connection ({what}), which forks would share")
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        raise Refused("an import initialises CUDA, which forks cannot use")


def stamps():
    """Of the files of all modules: which, and how they are now."""
    import os
    import sys

    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):
            try:
                seen = os.stat(path)
            except OSError:
                continue
            found[path] = (name, seen.st_mtime_ns, seen.st_size, seen.st_ino)
    return found


def changed(before):
    """A module whose file is not what it was, with its path; or None."""
    import os

    for path, (name, *was) in before.items():
        try:
            seen = os.stat(path)
        except OSError:
            return name, path
        if [seen.st_mtime_ns, seen.st_size, seen.st_ino] != was:
            return name, path
    return None


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

        for name, module in imports.variables.items():
            here, there = imports.before.get(os.fsencode(name)), self.variables.get(os.fsencode(name))
            if name == "OMP_NUM_THREADS":
                here, there = here or None, there or None
            if here != there and name != "LC_CTYPE":
                raise Refused(f"{module} reads {name} when it is imported, and its value differs in the worker")


class Channel:
    """The guardian's socket: frames of kind and length, with descriptors."""

    ORDER, READY, REFUSED = 1, 2, 3

    def __init__(self, fd):
        import socket

        self.socket = socket.socket(fileno=fd)
        self.bytes, self.fds = b"", []

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


def fork_all(channel, orders, guardian):
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
                await_start(order, own_pid, guardian)
                return order
        os._exit(0)
    os.waitpid(between, 0)
    return None


def await_start(order, between, guardian):
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


def take_over(order, changes):
    """Streams, processors, environment with what the imports have changed in it, and the random numbers of modules that have drawn
    their seed."""
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
    for name, value in changes.items():
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value
    show_command(order.argv, order.variables)
    random = sys.modules.get("numpy.random")  # Python's own does it by itself
    if random is not None:
        random.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def memory_mb():
    with open("/proc/self/smaps_rollup", encoding="ascii") as text:
        for line in text:
            if line.startswith("Rss:"):
                return int(line.split()[1]) // 1024
    return 0


def serve(names):
    """Imports and forks. Returns in a worker, with its command line."""
    import gc
    import os
    import socket
    import sys
    import time

    guardian = os.getppid()
    if os.environ.get("OMP_NUM_THREADS") == "":
        del os.environ["OMP_NUM_THREADS"]  # as workers of muster.launch do, before their libraries see it
    channel = Channel(os.dup(1))
    os.dup2(2, 1)  # what imports print is not for the guardian
    began = time.monotonic()
    imports = Imports()
    done = imports.run(names)
    try:
        refuse_unsafe(imports)
    except Refused as why:
        channel.send(Channel.REFUSED, str(why))
        os._exit(0)
    files = stamps()
    getattr(gc, "freeze", int)()  # the collector's marks would copy the pages that forks share
    channel.send(Channel.READY, f"{', '.join(done) or 'nothing'} in {time.monotonic() - began:.2f} s, {memory_mb()} MB")
    while True:
        orders = channel.orders()
        if orders is None:
            os._exit(0)
        stale = changed(files)
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
        mine = fork_all(channel, wanted, guardian) if wanted else None
        if mine is not None:
            take_over(mine, imports.changes)
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

    modules, arguments = sys.argv[1], sys.argv[2:]
    folder = show_start(arguments, "")
    command = serve([name for name in map(str.strip, modules.split(",")) if name])
    arguments = command[2:]  # after the interpreter and -u
    show_start(arguments, folder)
    own_file = sys._getframe().f_code.co_filename

    def show(kind, problem, trace):
        while trace and trace.tb_frame.f_code.co_filename == own_file:
            trace = trace.tb_next
        sys.__excepthook__(kind, problem.with_traceback(trace), trace)

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
