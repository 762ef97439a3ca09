"""A Python worker that writes down how it was started, stamps `start`, and waits to be told.

    preload_facts.py CHANNEL FOLDER [ARGUMENT...]

One JSON file a process, FOLDER/PID: what a script can see of its start. SIGRTMIN+n makes it exit with n; SIGUSR1 makes
it raise an exception.
"""

import json
import os
import random
import resource
import signal
import sys
import time

WATCHED = set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1)) | {signal.SIGUSR1}


def of_status(*names):
    with open("/proc/self/status", encoding="ascii") as text:
        return {line.split(":")[0]: line.split()[1] for line in text if line.split(":")[0] in names}


def of_process(name):
    with open(f"/proc/self/{name}", "rb") as text:
        return [item.decode(errors="surrogateescape") for item in text.read().split(b"\0")]


def facts():
    main = sys.modules["__main__"]
    return {
        "name": __name__,
        "file": __file__,
        "path": sys.path,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "names": sorted(vars(main)),
        "doc": __doc__,
        "loader": type(__loader__).__name__,
        "spec": str(__spec__).partition(" at 0x")[0],
        "package": __package__,
        "environment": {name: text for name, text in os.environ.items() if name != "PWD"},
        "imported": "decimal" in sys.modules,
        "session_leader": os.getsid(0) == os.getpid(),
        "group_leader": os.getpgid(0) == os.getpid(),
        "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
        "affinity": sorted(os.sched_getaffinity(0)),
        "cwd": os.getcwd(),
        "excepthook": sys.excepthook.__name__,
        "status": of_status("SigBlk", "SigIgn", "SigCgt", "Umask", "Threads"),
        "command": of_process("cmdline"),
        "environ": sorted(item.partition("=")[0] for item in of_process("environ")),
        "streams": [(stream.encoding, stream.errors, stream.line_buffering) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "parent": os.path.basename(os.readlink(f"/proc/{os.getppid()}/exe")),
        "limits": [resource.getrlimit(which) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE)],
        "modules": sorted(name for name in ("multiprocessing", "threading", "logging") if name in sys.modules),
        "random": random.random(),
    }


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    path = os.path.join(sys.argv[2], str(os.getpid()))
    seen = facts()
    with open(path, "w", encoding="utf-8") as out:
        json.dump(seen, out)
    print(f"stdout of rank {os.environ['RANK']}")
    print(f"stderr of rank {os.environ['RANK']}", file=sys.stderr)
    line = f"start ns={time.monotonic_ns()} pid={os.getpid()} rank={os.environ['RANK']}"
    line += f" attempt={os.environ['TORCHELASTIC_RESTART_COUNT']} world={os.environ['WORLD_SIZE']}\n"
    channel = os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC)
    os.write(channel, line.encode())
    number = signal.sigwait(WATCHED)
    if number == signal.SIGUSR1:
        raise ValueError("as asked")
    os._exit(number - signal.SIGRTMIN)


if __name__ == "__main__":
    main()
