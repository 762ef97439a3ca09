#!/usr/bin/env python3
# System calls that a container's seccomp profile refuses: the launcher ends, and says which call it was.
# timeout: 120
"""Run as root, or where a process may filter its own calls."""
import ctypes
import os
import platform
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402

NUMBERS = {"x86_64": {"prctl": 157, "signalfd4": 289, "epoll_create1": 291, "accept4": 288},
           "aarch64": {"prctl": 167, "signalfd4": 74, "epoll_create1": 20, "accept4": 242}}
PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, FILTER = 22, 36, 38, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
EPERM, ALLOW = 0x00050001, 0x7FFF0000
libc = ctypes.CDLL(None, use_errno=True)


def refuse(call):
    """From now on, and for children. Of prctl the one option that the guardian needs."""
    argument = [(LOAD, 0, 0, 16), (JUMP_IF_EQUAL, 0, 1, PR_SET_CHILD_SUBREAPER)] if call == "prctl" else []
    rules = [(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, len(argument) + 1, NUMBERS[platform.machine()][call]), *argument, (RETURN, 0, 0, EPERM),
             (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("H6xQ", len(rules), ctypes.addressof(code)))
    for option, value, address in ((PR_SET_NO_NEW_PRIVS, 1, None), (PR_SET_SECCOMP, FILTER, program)):
        if libc.prctl(option, value, address, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no filter")


def expect(call, words):
    done = subprocess.run([jobs.muster_binary(), "run", "--standalone", "--rdzv-conf=read_timeout=3", "--no-python", "true"], text=True,
                          capture_output=True, check=False, timeout=jobs.SOON_S * 2, preexec_fn=lambda: refuse(call))
    jobs.check(done.returncode == 1 and words in done.stderr, f"{call}: {done.returncode}\n{done.stderr}")


def the_guardians_calls_are_named():
    expect("prctl", "the guardian process cannot start: prctl(PR_SET_CHILD_SUBREAPER): Operation not permitted")
    expect("signalfd4", "the guardian process cannot start: signalfd4: Operation not permitted")


def the_stores_calls_are_named():
    expect("accept4", "a connection cannot be taken: accept4: Operation not permitted")


if __name__ == "__main__":
    if platform.machine() not in NUMBERS:
        print(f"SKIPPED: the numbers of calls of {platform.machine()} are not known here")
        sys.exit(jobs.SKIPPED)
    cases.run([the_guardians_calls_are_named, the_stores_calls_are_named])
