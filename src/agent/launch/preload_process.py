"""What can be seen of the preload server's process beside Python, and how it starts over.

Part of the server's program: CMake puts preload_process.py, preload_files.py, preload_generators.py, preload_imports.py and
preload_server.py together.
"""


def thread_ids():
    import os

    return set(os.listdir("/proc/self/task"))


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


def folder_now():
    import os

    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def children():
    import os

    found = []
    for task in thread_ids():
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as text:
                found += text.read().split()
        except OSError:  # the thread has ended
            pass
    return [int(pid) for pid in found if os.path.exists(f"/proc/{pid}")]


def shared_memory():
    """Memory that forks would share and separate starts would not: writable maps of what has no name, or of /dev/shm. A lock of
    multiprocessing is one, and a Value."""
    found = {}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            address, access, _, _, _, *path = line.rstrip("\n").split(None, 5)
            path = path[0] if path else ""
            if access[3] == "s" and access[1] == "w" and (path.endswith(" (deleted)") or not path.startswith("/") or path.startswith(("/dev/", "/SYSV"))):
                found[address.partition("-")[0]] = path
    return found


def timers():
    """What a fork does not inherit, and what would end the server."""
    import signal

    found = [name for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if signal.getitimer(getattr(signal, name))[0] > 0]
    try:
        with open("/proc/self/timers", encoding="ascii") as text:
            found += [line.strip() for line in text if line.startswith("ID:")]
    except OSError:  # this kernel does not tell
        pass
    return found


def locked_memory():
    with open("/proc/self/status", encoding="ascii", errors="replace") as text:
        return [line.split()[1] for line in text if line.startswith("VmLck:")] != ["0"]


def cuda_is_initialized():
    import sys

    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return getattr(cuda, "is_initialized", bool)()


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

    threading = sys.modules.get("threading")
    names = []
    for thread in threading.enumerate() if threading else ():
        if thread is not threading.main_thread():
            target = getattr(thread, "_target", None) or type(thread)
            module = getattr(target, "__module__", None)
            names.append(f"{thread.name} of {module}" if module in sys.modules else thread.name)
    return names


class Start:
    """How this process was before the imports, to start over without some of them."""

    def __init__(self):
        import os
        import resource
        import signal

        with open("/proc/self/cmdline", "rb") as text:
            self.command = text.read().split(b"\0")[:-1]  # interpreter, -u, -c, this program, the modules...
        self.files = open_files()
        self.streams = {number: os.dup(number) for number in (0, 2) if number in self.files}
        self.folder, self.variables = folder_now(), dict(os.environb)
        self.umask = os.umask(0)
        os.umask(self.umask)
        self.limits = {which: resource.getrlimit(which) for name, which in vars(resource).items() if name.startswith("RLIMIT_")}
        self.cpus = os.sched_getaffinity(0)
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self.ignored = self.ignored_now()

    def close(self):
        """There will be no other start."""
        import os

        for copy in self.streams.values():
            os.close(copy)

    @staticmethod
    def ignored_now():
        import signal

        return {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN}

    def over(self, names, channel):
        """The same command, with these modules. What exec() keeps is as it was."""
        import os
        import resource
        import signal
        import sys

        for which in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"):
            signal.setitimer(getattr(signal, which), 0)
        for number in self.ignored_now() - self.ignored:
            signal.signal(number, signal.SIG_DFL)
        os.umask(self.umask)
        os.sched_setaffinity(0, self.cpus)
        for which, (soft, _) in self.limits.items():
            hard = resource.getrlimit(which)[1]
            resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY or 0 <= soft <= hard else hard, hard))
        if self.folder:
            os.chdir(self.folder)
        for number, copy in self.streams.items():
            os.dup2(copy, number)
        for number in open_files():
            if number > 2 and number not in self.files and number != channel:  # which exec() closes
                os.close(number)
        os.dup2(channel, 1)
        end_children()
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        self.command[4] = ",".join(names).encode()
        os.execve(sys.executable, self.command, self.variables)


def end_children():
    """Those of multiprocessing end by themselves, since their pipes are closed, and clear away what they keep."""
    import os
    import signal
    import time

    def signal_all(number):
        for pid in children():
            try:
                os.kill(pid, number)
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                pass

    signal_all(signal.SIGTERM)
    end = time.monotonic() + 2
    while children() and time.monotonic() < end:
        signal_all(0)
        time.sleep(0.01)
    signal_all(signal.SIGKILL)
    while children():
        signal_all(0)
        time.sleep(0.01)
