#!/usr/bin/env python3
"""A worker that speaks PMIx itself: `pmix_worker.py LIBRARY WHAT`. Each rank puts a number and asks for those of all others. `lazy`: the fence
between brings nothing, so that what another node's rank has put is asked for there. `some`: only odd ranks meet in the fence."""
import ctypes
import os
import sys

INT, GLOBAL, WILDCARD = 6, 3, 2**32 - 2


class Process(ctypes.Structure):
    _fields_ = [("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("data", ctypes.c_int64 * 3)]


def main():
    pmix, what = ctypes.CDLL(sys.argv[1]), sys.argv[2]

    def call(name, *arguments):
        status = getattr(pmix, "PMIx_" + name)(*arguments)
        if status != 0:
            sys.exit(f"PMIx_{name} gives {status}")

    own, size = Process(), int(os.environ["WORLD_SIZE"])
    call("Init", ctypes.byref(own), None, 0)
    assert own.rank == int(os.environ["RANK"]), own.rank
    call("Put", ctypes.c_uint8(GLOBAL), b"muster-test", ctypes.byref(Value(INT, (7 * own.rank, 0, 0))))
    call("Commit")
    meeting = list(range(1, size, 2)) if what == "some" else list(range(size))
    for _ in range(4):
        if own.rank in meeting:
            ranks = (Process * len(meeting))(*[Process(own.space, rank) for rank in meeting])
            call("Fence", ranks, len(meeting), None, 0)
    total = 0
    for rank in meeting:
        out = ctypes.POINTER(Value)()
        call("Get", ctypes.byref(Process(own.space, rank)), b"muster-test", None, ctypes.c_size_t(0), ctypes.byref(out))
        total += out.contents.data[0] & 0xFFFFFFFF
    everybody = Process(own.space, WILDCARD)
    call("Fence", ctypes.byref(everybody), 1, None, 0)
    os.write(1, f"pmix: rank {own.rank} has {total}\n".encode())
    call("Finalize", None, 0)


main()
