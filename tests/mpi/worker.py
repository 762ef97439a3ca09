#!/usr/bin/env python3
"""A worker that is a program of MPI: `worker.py LIBRARY WHAT`. It opens the library at run time, by the ABI of MPICH's family or of Open
MPI, and prints what MPI's world is. Both ABIs are told apart by a symbol."""
import contextlib
import ctypes
import os
import signal
import sys
import threading

FLOAT_BYTES = 4
MPICH = {"world": 0x44000000, "int": 0x4C000405, "sum": 0x58000003}
NAMES = {"world": "ompi_mpi_comm_world", "int": "ompi_mpi_int", "sum": "ompi_mpi_op_sum"}
COMM_TYPE_SHARED = {True: 1, False: 0}  # MPICH, Open MPI


class Mpi:
    def __init__(self, path):
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.is_mpich = not hasattr(self.library, "ompi_mpi_comm_world")

    def handle(self, name):
        if self.is_mpich:
            return ctypes.c_int(MPICH[name])
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, NAMES[name])))

    def call(self, name, *arguments):
        code = getattr(self.library, "MPI_" + name)(*arguments)
        if code != 0:
            sys.exit(f"MPI_{name} gives {code}")

    def number(self, name, communicator):
        number = ctypes.c_int(-1)
        self.call(name, communicator, ctypes.byref(number))
        return number.value

    def sum(self, value):
        send, receive = ctypes.c_int(value), ctypes.c_int(-1)
        self.call("Allreduce", ctypes.byref(send), ctypes.byref(receive), 1, self.handle("int"), self.handle("sum"), self.handle("world"))
        return receive.value

    def on_this_node(self):
        """Ranks that share memory with this one, as MPI sees it."""
        part = ctypes.c_int(0) if self.is_mpich else ctypes.c_void_p(0)
        info = ctypes.c_int(0x1C000000) if self.is_mpich else ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, "ompi_mpi_info_null")))
        self.call("Comm_split_type", self.handle("world"), COMM_TYPE_SHARED[self.is_mpich], 0, info, ctypes.byref(part))
        return self.number("Comm_size", part)


def leave(how, mpi, goes_on=True):
    """This rank will not come to where the others wait."""
    if how.startswith("exit"):
        os._exit(int(how[len("exit"):]))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "abort":
        mpi.library.MPI_Abort(mpi.handle("world"), 7)
    if how == "garbage":
        os.write(int(os.environ["PMI_FD"]), b"garbage\n")
    if how == "close" and mpi.is_mpich:
        with contextlib.suppress(OSError):  # MPICH has done so itself in MPI_Finalize()
            os.close(int(os.environ["PMI_FD"]))
    elif how == "close":
        os.closerange(3, 256)
    if goes_on:
        threading.Event().wait()


def await_departure(is_guilty):
    """The others begin when that rank is gone: the last end of a pipe is closed then."""
    pipe = os.path.join(os.environ["TMPDIR"], "departure")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(pipe)
    end = os.open(pipe, os.O_WRONLY if is_guilty else os.O_RDONLY)
    if not is_guilty:
        os.read(end, 1)


def meet(where, how, rank, mpi):
    """A program of which rank 1 leaves. `barrier`: another one does not come, so that it leaves from within the barrier."""
    is_guilty = rank == 1
    if where == "early":
        await_departure(is_guilty)
        where = "before"
    if is_guilty and where == "before":
        leave(how, mpi)
    mpi.call("Init", None, None)
    if where == "inside":
        mpi.call("Barrier", mpi.handle("world"))  # else the others may still be in MPI_Init(), and fail there
    if is_guilty and where == "inside":
        leave(how, mpi)
    if where == "barrier" and rank == 0:
        threading.Event().wait()
    if where == "barrier" and is_guilty:
        threading.Thread(target=leave, args=(how, mpi), daemon=True).start()
    mpi.call("Barrier", mpi.handle("world"))
    mpi.call("Finalize")
    if is_guilty and where == "finalized":
        leave(how, mpi, goes_on=False)


def main():
    library, what = sys.argv[1], sys.argv[2]
    if what == "without-mpi":
        return
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if what == "killed-before" and rank == 1 and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    mpi = Mpi(library)
    world = mpi.handle("world")
    if what.startswith("leave-"):
        _, where, how = what.split("-")
        meet(where, how, rank, mpi)
        return
    mpi.call("Init", None, None)
    if what == "killed" and rank == 1 and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if what.startswith("abort") and rank == 1:
        mpi.library.MPI_Abort(world, int(what[len("abort"):]))
    alone = what == "alone" and os.environ["WORLD_SIZE"] == "1"
    if what == "sleep" or alone or (what == "killed-guardian" and attempt == 0):
        os.write(1, b"asleep\n")
        signal.pause()
    mpi.call("Barrier", world)
    size, total, near = mpi.number("Comm_size", world), mpi.sum(rank + 1), mpi.on_this_node()
    sys.stdout.write(f"attempt {attempt}: rank {mpi.number('Comm_rank', world)} of {size}, is {rank}, sum {total}, near {near}\n")
    sys.stdout.flush()
    mpi.call("Finalize")


main()
