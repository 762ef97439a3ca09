"""Jobs for the regression tests and the benchmarks: starts a launcher (muster or torchrun), hears what its workers
stamp, and leaves nothing behind.

Everything waits for events: stamps come through a FIFO, ends of launchers through their pidfd. A time-out is always the
caller's bound on something that should not take that long. Which launcher is meant is a string, "muster" or "torchrun".
"""

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import forked

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.dirname(os.path.abspath(__file__))
TAG = "MUSTER_TEST_TAG"
SKIPPED = 77  # exit code that ctest counts as "skipped"
# Bound on what takes milliseconds: far above what a crowded machine makes of it, below the time-outs that would end it in
# its place (30 s: --shutdown-timeout, last_call_timeout). Where a silence would (15 s), cases compare times themselves.
SOON_S = 25
# Set by `run`: torchruns that are not stamped, and workers of gloo_env(), come from torch_template.py. Benchmarks and soaks
# start their own.
templates_wanted = False


# As in a foreground job, however the tests were started (nohup, a background job of a script).
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


class Skip(Exception):
    """The case cannot be had on this machine; the text says what is missing."""


class Failed(AssertionError):
    """What was promised did not happen."""


def check(condition, text):
    if not condition:
        raise Failed(text)


# --------------------------------------------------------------------------- what is tested


def muster_binary():
    path = os.environ.get("MUSTER_BINARY", os.path.join(REPOSITORY, "build", "muster"))
    if not os.access(path, os.X_OK):
        raise Failed(f"no muster binary at {path}: build it, or name it in MUSTER_BINARY")
    return path


def program(name):
    """One of the C programs of bench/."""
    folder = os.environ.get("MUSTER_BENCH_BIN")
    if not folder:
        folder = os.path.join(os.path.dirname(muster_binary()), "bench")
    path = os.path.join(folder, name)
    if not os.access(path, os.X_OK):
        raise Failed(f"no {name} in {folder}: build the target bench_workers, or name the folder in MUSTER_BENCH_BIN")
    return path


def python():
    default = os.path.join(REPOSITORY, ".venv", "bin", "python")
    path = os.environ.get("MUSTER_TEST_PYTHON") or (default if os.path.exists(default) else sys.executable)
    return path


_torch = {}


def torch_version():
    """PyTorch's version in python(), or None. Asked without importing it: that takes a second."""
    if "version" not in _torch:
        code = "import importlib.metadata as m; print(m.version('torch'))"
        done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=False)
        _torch["version"] = done.stdout.strip() if done.returncode == 0 else None
    return _torch["version"]


def need_torch():
    if not torch_version():
        raise Skip(f"no PyTorch in {python()} (MUSTER_TEST_PYTHON names the interpreter that has it)")


def launcher_command(launcher):
    if launcher == "muster":
        return [muster_binary(), "run"]
    need_torch()
    script = os.path.join(os.path.dirname(python()), "torchrun")
    return [script] if os.access(script, os.X_OK) else [python(), "-m", "torch.distributed.run"]


def is_torchrun_script(launcher, command, arguments):
    """Whether the command is the script alone: neither `python -m` nor stamped."""
    return launcher == "torchrun" and len(command) == 1 + len(arguments)


# --------------------------------------------------------------------------- a world of one's own

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2


def _unshare(flags):
    return _libc.unshare(flags) == 0


def _loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = b"lo".ljust(16, b"\0")
        flags = struct.unpack("16sh", fcntl.ioctl(control, 0x8913, struct.pack("16sh", name, 0))[:18])[1]
        fcntl.ioctl(control, 0x8914, struct.pack("16sh", name, flags | 1))


def isolate(hostname="localhost", mounts=False):
    """Moves this process into a network of its own with nothing but loopback, and a host name that resolves: no name
    server can delay anything, and no port can be taken by a stranger. Returns None, or why it could not be had."""
    if os.environ.get("MUSTER_TEST_NO_NAMESPACE"):
        return "MUSTER_TEST_NO_NAMESPACE is set"
    flags = CLONE_NEWNET | CLONE_NEWUTS | (CLONE_NEWNS if mounts else 0)
    user, group = os.getuid(), os.getgid()
    if not _unshare(flags):
        if not _unshare(flags | CLONE_NEWUSER):
            return f"unshare: {os.strerror(ctypes.get_errno())}"
        for path, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{path}", "w", encoding="ascii") as out:
                out.write(text)
    _loopback_up()
    socket.sethostname(hostname)
    if mounts:
        _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    return None


def bind_mount(source, target):
    """Shows `source` in the place of `target` to this process and what it starts; isolate(mounts=True) first."""
    if _libc.mount(source.encode(), target.encode(), None, MS_BIND, None) != 0:
        raise Skip(f"mount {target}: {os.strerror(ctypes.get_errno())}")


_given_ports = set()


def free_port():
    """A port that nobody has now, and that this process has not been given before: the kernel may choose one a second time
    before it is used. Within isolate() nobody else will take it either."""
    while True:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
            port = probe.getsockname()[1]
        if port not in _given_ports:
            _given_ports.add(port)
            return port


# --------------------------------------------------------------------------- processes


def _environ_has(pid, text):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return text in environ.read()
    return False


def process_state(pid):
    """The state letter of /proc/PID/stat, None when there is no such process."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0].decode()
    return None


def stop(pid):
    """SIGSTOP, and waits until all threads are stopped: on a busy machine they run on for a while. Polls: nobody but the
    parent is told. ProcessLookupError: it has ended."""
    os.kill(pid, signal.SIGSTOP)
    while alive(pid):
        try:
            states = {process_state(f"{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")}
        except FileNotFoundError:
            break
        if not states - {"T", None}:
            return
        time.sleep(0.001)
    raise ProcessLookupError(pid)


def parent(pid):
    """The parent's process id, 0 when there is no such process."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    return 0


def alive(pid):
    return process_state(pid) not in (None, "Z", "X")


def die_with_parent():
    """For Popen's preexec_fn: the process is killed when the thread that starts it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def put_before_all_others(pids):
    """From now on these processes, and those they fork, run whenever they can, however busy the machine is. For what is promised
    about a few milliseconds. Returns whether the system permits it."""
    try:
        for pid in pids:
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):  # a thread that has ended
                    os.sched_setscheduler(int(task), os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


def executable(pid):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return ""


class Stamp:
    """One line of a channel: a name, a time and the rest as attributes (numbers where they are numbers)."""

    def __init__(self, line):
        name, *pairs = line.split()
        self.name = name
        self.fields = {}
        for pair in pairs:
            key, _, value = pair.partition("=")
            self.fields[key] = int(value) if value.lstrip("-").isdigit() else value

    def __getattr__(self, key):
        try:
            return self.fields[key]
        except KeyError:
            raise AttributeError(key) from None

    def __repr__(self):
        return f"{self.name} {self.fields}"


class Channel:
    """The FIFO into which workers stamp. Keeps all stamps in order; wait() blocks until a condition on them holds."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, 1031, 1 << 20)  # F_SETPIPE_SZ: many workers may stamp before we look
        self.stamps = []
        self.rest = b""

    def _read(self):
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.fd, 65536):
                *lines, self.rest = (self.rest + chunk).split(b"\n")
                self.stamps.extend(Stamp(line.decode()) for line in lines if line.strip())

    def select(self, name, since=0, **fields):
        """Stamps from index `since` on with that name and those fields."""
        self._read()
        return [
            s
            for s in self.stamps[since:]
            if s.name == name and all(s.fields.get(key) == value for key, value in fields.items())
        ]

    def mark(self):
        self._read()
        return len(self.stamps)

    def wait(self, count, name, timeout_s, since=0, **fields):
        """Waits until `count` such stamps are there and returns them; None when `timeout_s` has passed."""
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        while True:
            found = self.select(name, since, **fields)
            if len(found) >= count:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            poller.poll(left * 1000)

    def expect(self, count, name, timeout_s, since=0, **fields):
        found = self.wait(count, name, timeout_s, since, **fields)
        if found is None:
            seen = [repr(s) for s in self.stamps[-20:]]
            raise Failed(f"no {count} x '{name}' {fields or ''} within {timeout_s} s; last stamps: {seen}")
        return found

    def close(self):
        os.close(self.fd)


_template = []


def torch_template(env):
    """The address of the process from which torchruns and PyTorch workers are forked (torch_template.py); started when first needed."""
    if not _template:
        lasting = {key: value for key, value in env.items() if key not in (TAG, "TMPDIR", "PWD")}
        _template.append(forked.Template(python(), launcher_command("torchrun")[0], (), lasting))
        check(_template[0].address, "torch_template.py does not start")
    return _template[0].address


def gloo_env(scratch):
    """The environment of a launcher whose workers are gloo_worker.py."""
    return scratch.env(**({"MUSTER_TEST_TEMPLATE": torch_template(scratch.env())} if templates_wanted else {}))


class Forked:
    """Popen, as far as it is needed here, of a process that does not import PyTorch once more."""

    def __init__(self, env, task, stdio):
        self.returncode = None
        self.child = forked.Child(torch_template(env), task, stdio)
        self.pid = self.child.pid

    def poll(self):
        if self.returncode is None and select.select([self.child.socket], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self):
        if self.returncode is None:
            self.returncode = self.child.exit_code()
        return self.returncode

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class ForkedTorchrun(Forked):
    def __init__(self, command, env, cwd, stdio):
        super().__init__(env, {"arguments": command[1:], "environment": env, "folder": cwd}, stdio)


class ForkedPython(Forked):
    """`python -c CODE` with pipes for stdin and stdout."""

    def __init__(self, code):
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        environment = dict(os.environ)
        super().__init__(environment, {"code": code, "environment": environment, "folder": os.getcwd()}, (theirs_in, theirs_out, 2))
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin = os.fdopen(ours_in, "w")
        self.stdout = os.fdopen(ours_out, "r")


class Process:
    """A launcher (or any command) with its output in files. Kill, wait and read it through this."""

    def __init__(self, scratch, name, command, env, stdout=None, stdin=None, from_template=False):
        self.name = name
        self.command = command
        self.out_path = scratch.path(f"{name}.out")
        self.err_path = scratch.path(f"{name}.err")
        self.started_ns = time.monotonic_ns()
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            if from_template:
                with open(os.devnull, "rb") as nothing:
                    self.popen = ForkedTorchrun(command, env, scratch.root, (nothing, out, err))
            else:
                self.popen = subprocess.Popen(
                    command,
                    stdin=stdin if stdin is not None else subprocess.DEVNULL,
                    stdout=stdout if stdout is not None else out,
                    stderr=err,
                    env=env,
                    cwd=scratch.root,
                )
        self.pid = self.popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.ended_ns = None
        self.signalled = False  # by signal(): its exit code says nothing about the job

    def wait(self, timeout_s):
        """The exit code (negative for a signal), or None if it still runs after `timeout_s`."""
        if self.popen.returncode is None:
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            if not poller.poll(max(0, timeout_s) * 1000):
                return None
            self.ended_ns = time.monotonic_ns()
            self.popen.wait()
        return self.popen.returncode

    def expect(self, timeout_s, *codes):
        if self.name.startswith("torchrun"):
            timeout_s *= 4  # it loads PyTorch in every process: a minute of a busy core
        code = self.wait(timeout_s)
        if code is None and isinstance(self.popen, ForkedTorchrun):
            self.show_stacks()
        check(code is not None, f"{self.name} still runs after {timeout_s} s\n{self.tail()}")
        check(not codes or code in codes, f"{self.name} ended with {code}, expected {codes}\n{self.tail()}")
        return code

    def show_stacks(self):
        """Where it hangs: a torchrun that torch_template.py forked writes its threads' stacks into its stderr."""
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as status:
            print("".join(line for line in status if line.startswith(("State", "Sig", "Shd"))), flush=True)
        self.signal(signal.SIGRTMAX)
        deadline = time.monotonic() + SOON_S
        while "most recent call first" not in self.err() and time.monotonic() < deadline:
            time.sleep(0.01)
        print(self.err(), flush=True)

    def wait_line(self, pattern, timeout_s, times=1):
        """Waits until lines of its stderr match `pattern` so often. Polls: a file tells nobody."""
        deadline = time.monotonic() + timeout_s
        while len(re.findall(pattern, self.err())) < times:
            ended = self.wait(0.01) is not None and len(re.findall(pattern, self.err())) < times
            if ended or time.monotonic() > deadline:
                raise Failed(f"{self.name} did not say {pattern}\n{self.tail()}")

    def signal(self, number):
        now = time.monotonic_ns()
        os.kill(self.pid, number)
        self.signalled = True
        return now

    def out(self):
        with open(self.out_path, encoding="utf-8", errors="replace") as text:
            return text.read()

    def err(self):
        with open(self.err_path, encoding="utf-8", errors="replace") as text:
            return text.read()

    def tail(self):
        lines = (self.err() + self.out()).splitlines()[-25:]
        return "\n".join(f"    | {line}" for line in [" ".join(self.command)[:400]] + lines)

    def close(self):
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.popen.wait()
        os.close(self.pidfd)


class Scratch:
    """A folder, a channel and the processes of one case. Leaving it kills every process that was started in it,
    however far it has wandered (each carries the scratch's tag in its environment), and removes the folder."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="muster-test-")
        self.tag = f"{TAG}={os.path.basename(self.root)}".encode()
        os.mkdir(self.path("tmp"))
        self.channel = Channel(self.path("channel"))
        self.processes = []
        self.mounts = []
        self.closed = False
        atexit.register(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def small_file_system(self, options):
        """The path of a file system in memory that is small in the way that mount's options say."""
        path = self.path("small")
        os.mkdir(path)
        if _libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, options.encode()) != 0:
            raise Skip("tmpfs cannot be mounted")
        self.mounts.append(path)
        return path

    def env(self, **more):
        """The environment for a launcher: ours without what a launcher or a test run may have left in it."""
        unwanted = ("PET_", "TORCHELASTIC_", "MASTER_", "MUSTER_TEST_TAG", "LD_PRELOAD")
        single = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "PYTHON_EXEC", "CUDA_VISIBLE_DEVICES"}
        single.add("PYTHONUNBUFFERED")  # it hides the damage that torchrun's --tee does
        env = {k: v for k, v in os.environ.items() if not k.startswith(unwanted) and k not in single}
        env[TAG] = os.path.basename(self.root)
        env["TMPDIR"] = self.path("tmp")
        env["PWD"] = self.root
        env.setdefault("MUSTER_RESTART_BACKOFF", "0")  # restarts are many here; the pauses have cases of their own
        env["PATH"] = os.path.dirname(python()) + os.pathsep + env.get("PATH", os.defpath)
        env.update({key: str(value) for key, value in more.items()})
        return {key: value for key, value in env.items() if value != ""}

    def start(self, name, command, env=None, stdout=None, stdin=None, from_template=False):
        process = Process(self, name, command, env or self.env(), stdout, stdin, from_template)
        self.processes.append(process)
        return process

    def run(self, launcher, *arguments, name=None, env=None, stamped=False, stdout=None, inside=()):
        """Starts `launcher` with the arguments. stamped: its exec is stamped on the channel as well. inside: what the command
        begins with (Hub.inside())."""
        command = [*inside, *launcher_command(launcher), *(str(a) for a in arguments)]
        if stamped:
            command = [program("launch"), self.channel.path] + command
        from_template = templates_wanted and is_torchrun_script(launcher, command, arguments) and stdout is None
        return self.start(name or f"{launcher}{len(self.processes)}", command, env, stdout, from_template=from_template)

    def run_to_end(self, launcher, *arguments, code=None, name=None, env=None):
        """The same for a job that ends by itself (with `code`, if it is given). A torchrun comes from torch_template.py."""
        command = launcher_command(launcher) + [str(a) for a in arguments]
        from_template = is_torchrun_script(launcher, command, arguments)
        process = self.start(name or f"{launcher}{len(self.processes)}", command, env, from_template=from_template)
        process.expect(60, *([] if code is None else [code]))
        return process

    def pids(self):
        """Every living process of this scratch."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid() and _environ_has(entry, self.tag) and alive(entry):
                found.append(int(entry))
        return found

    def expect_nobody(self, within_s=SOON_S, but=()):
        """Waits until no process of this scratch is left, `but` those. Polls: processes that are nobody's child
        tell nobody when they end."""
        deadline = time.monotonic() + within_s
        while left := [pid for pid in self.pids() if pid not in but]:
            if time.monotonic() > deadline:
                names = [f"{pid} ({process_state(pid)} {command_line(pid)})" for pid in left]
                raise Failed(f"still alive after {within_s} s: {', '.join(names)}")
            time.sleep(0.002)

    def close(self):
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        for process in self.processes:
            process.close()
        for _ in range(200):
            left = self.pids()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.channel.close()
        for path in self.mounts:
            _libc.umount2(path.encode(), MNT_DETACH)
        shutil.rmtree(self.root, ignore_errors=True)


def command_line(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as text:
            return text.read().replace(b"\0", b" ").decode(errors="replace")[:120]
    return "?"


def memory_pss_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as text:
        return next(int(line.split()[1]) for line in text if line.startswith("Pss:"))


def memory_anonymous_kib(pid):
    """What the process has for itself alone, whoever shares its files. Growth is measured by it."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as text:
        return next(int(line.split()[1]) for line in text if line.startswith("Anonymous:"))


def thread_count(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as text:
        return next(int(line.split()[1]) for line in text if line.startswith("Threads:"))


def descriptor_limit(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard) if hard > 0 else count, hard))


def worker(scratch, *options):
    """Arguments that make a launcher run the stamping worker."""
    return ["--no-python", program("stamp_worker"), scratch.channel.path, *options]


def tell_exit(pid, code):
    """Has a stamping worker exit with `code` (0..28)."""
    now = time.monotonic_ns()
    os.kill(pid, signal.SIGRTMIN + code)
    return now


def ports_of(pid):
    """The TCP ports of IPv4 and IPv6 that this process listens at."""
    sockets = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for fields in map(str.split, lines.readlines()[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def wait_port(port, process, timeout_s, address=None):
    """Waits until something listens on the port (of any address of loopback, or of this IPv4 one) in the network of `process`.
    Polls /proc: connecting would be an event there."""
    deadline = time.monotonic() + timeout_s
    wanted = address and f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}"
    while time.monotonic() < deadline:
        for table in ("tcp", "tcp6"):
            # An OSError: it has ended, which is told below.
            with contextlib.suppress(OSError), open(f"/proc/{process.pid}/net/{table}", encoding="ascii") as lines:
                for line in lines:
                    parts = line.split()
                    if len(parts) > 3 and parts[3] == "0A":
                        host, _, number = parts[1].rpartition(":")
                        if int(number, 16) == port and wanted in (None, host):
                            return
        if process.wait(0.005) is not None:
            raise Failed(f"{process.name} ended before port {port} was open\n{process.tail()}")
    raise Failed(f"{process.name} does not listen on {port} after {timeout_s} s\n{process.tail()}")


def wait_file(path, process, timeout_s):
    """Waits until the file exists."""
    deadline = time.monotonic() + timeout_s
    while not os.path.exists(path):
        if process.wait(0.005) is not None:
            raise Failed(f"{process.name} ended before there was {path}\n{process.tail()}")
        check(time.monotonic() < deadline, f"there is no {path} after {timeout_s} s\n{process.tail()}")


def exit_on_signals():
    """Ctrl-C and SIGTERM end the program through its clean-ups."""

    def leave(number, _frame):
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
