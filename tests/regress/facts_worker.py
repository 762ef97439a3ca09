"""A worker that writes what it can see of how it was started: facts_worker.py FOLDER [arguments...]

One JSON file a rank: environment as given to exec, arguments, session, descriptors, signals, limits. Used to compare what
two launchers do; says nothing about which of them it was.
"""

import json
import os
import resource
import sys


def status():
    with open("/proc/self/status", encoding="ascii") as text:
        return dict(line.rstrip("\n").split(":\t", 1) for line in text if ":\t" in line)


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]
        except OSError:
            pass  # the descriptor that listed the folder
    return found


def environment():
    with open("/proc/self/environ", "rb") as text:
        pairs = text.read().decode(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


# 32 and 33 are the C library's own. Its posix_spawn(), which make uses, leaves them ignored; whether that reaches a worker
# depends on whether a program in between had threads.
C_LIBRARY_SIGNALS = 1 << 31 | 1 << 32


def facts():
    said = status()
    return {
        "environment": environment(),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "session_leader": os.getsid(0) == os.getpid(),
        "group_leader": os.getpgid(0) == os.getpid(),
        "parent_is_launcher": os.getppid() != 1,
        "descriptors": descriptors(),
        "cwd": os.getcwd(),
        "umask": said["Umask"].strip(),
        "blocked": said["SigBlk"].strip(),
        "ignored": f"{int(said['SigIgn'], 16) & ~C_LIBRARY_SIGNALS:016x}",
        "nice": os.nice(0),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_NOFILE", "RLIMIT_CORE")},
        "affinity": sorted(os.sched_getaffinity(0)),
        "terminal": [os.isatty(fd) for fd in (0, 1, 2)],
        "flags": {"unbuffered": sys.flags.unbuffered if hasattr(sys.flags, "unbuffered") else None},
    }


if __name__ == "__main__":
    path = os.path.join(sys.argv[1], os.environ.get("RANK", "none"))
    with open(path + ".tmp", "w", encoding="utf-8") as out:
        json.dump(facts(), out)
    os.rename(path + ".tmp", path)
