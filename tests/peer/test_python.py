#!/usr/bin/env python3
# The module muster: its store beside PyTorch's, error records, snapshots and checkpoints as numpy arrays, status, and the stop path.
# needs: torch numpy
"""Usage: test_python.py [CASE ...]; MUSTER_BINARY names the program. libmuster.so lies beside it, snapshot_peer in tests/."""
import json
import os
import subprocess
import sys
import tempfile
import threading

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.abspath(os.environ["MUSTER_BINARY"])
BUILD = os.path.dirname(BINARY)
os.environ["MUSTER_LIBRARY"] = os.path.join(BUILD, "libmuster.so")
sys.path[:0] = [os.path.join(TOP, "python"), os.path.join(TOP, "tests", "regress"), os.path.join(TOP, "tests")]

import cases  # noqa: E402
import jobs  # noqa: E402
import muster  # noqa: E402

PEER = os.path.join(BUILD, "tests", "snapshot_peer")
TENSORS = ["layer.weight:7:7x3", "layer.bias:8:3", "narrow:6:5", "one:4:", "none:7:0x4", "bytes:1:11"]
TYPES = {"7": "float32", "8": "float64", "6": "float32", "4": "int64", "1": "uint8"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.join(TOP, "python"), "OMP_NUM_THREADS": "1"}


def check(right, text):
    if not right:
        sys.exit(text)


def raises(kind, call, *arguments):
    try:
        got = call(*arguments)
    except kind as why:
        return why
    return sys.exit(f"{call} gave {got} instead of {kind.__name__}")


# ---------------------------------------------------------------------------


def the_store_beside_pytorchs():
    from torch.distributed import TCPStore

    with muster.Store.open_tcp("127.0.0.1", 0, is_host=True, bind_host="127.0.0.1", timeout_s=60) as store:
        theirs = TCPStore("127.0.0.1", store.port, is_master=False)
        store.set("text", "\u00fc")
        store.set("bytes", b"a\0b")
        check(theirs.get("text") == "\u00fc".encode() and theirs.get("bytes") == b"a\0b", "what PyTorch's client reads")
        theirs.set("theirs", "v")
        check(store.get("theirs") == b"v" and store.check(["theirs", "text"]) and not store.check("missing"), "what PyTorch's has set")
        check(store.add("n", 3) == 3 and theirs.add("n", 4) == 7 and store.add("n", -8) == -1, "sums")
        check(store.compare_set("c", "", "1") == b"1" and store.compare_set("c", "2", "3") == b"1", "compare_set")
        store.append("text", "x")
        check(store.get("text") == "\u00fcx".encode(), "append")
        check(store.delete("c") and not store.delete("c"), "delete")
        below = store.prefix("p")
        below.set("k", b"1")
        check(theirs.get("p/k") == b"1" and below.num_keys() >= 5, "a prefix")
        below.close()

        late = threading.Thread(target=lambda: theirs.set("late", "now"))
        late.start()
        store.wait(["late", "text"])
        check(store.get("late") == b"now", "a wait")
        late.join()

        with muster.Store.open_tcp("127.0.0.1", store.port) as other:
            meeting = threading.Thread(target=other.barrier, args=("b", 2, 60))
            meeting.start()
            store.barrier("b", 2, 60)
            meeting.join()

        why = raises(TimeoutError, store.get, "never", 0.01)
        check(isinstance(why, muster.MusterTimeout) and why.code == -4 and "never" in str(why), str(why))
        raises(ValueError, store.set, "zero\0byte", b"")
        raises(muster.MusterError, store.set, "k" * 9000, b"")
    raises(ConnectionError, store.get, "text")
    store.close()
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    check("MASTER_ADDR" in str(raises(ValueError, muster.Store.open_env)), "the variable that is missing")


# The line is written at once: print() writes each word apart where Python does not buffer, and the other rank's may come between.
WORKER = """
import os, muster
with muster.Store.open_env() as store:
    store.set("rank" + os.environ["RANK"], os.environ["RANK"])
    store.wait(["rank0", "rank1"])
    other = store.get("rank" + str(1 - int(os.environ["RANK"]))).decode()
    os.write(1, f"{os.environ['RANK']} {other} {muster.stop_requested()}\\n".encode())
"""


def run(*arguments, **variables):
    return subprocess.run([BINARY, "run", "--standalone", *arguments], env={**ENVIRONMENT, **variables}, capture_output=True, text=True,
                          timeout=120, check=False)


def the_jobs_store_from_the_environment():
    done = run("--nproc-per-node=2", "--no-python", sys.executable, "-c", WORKER)
    check(sorted(done.stdout.split("\n"))[1:] == ["0 1 False", "1 0 False"], f"{done}")


# ---------------------------------------------------------------------------


def the_stop_path():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUSTER_STOP_PATH"] = os.path.join(folder, "stop")
        check(not muster.stop_requested(), "nobody has asked")
        with open(os.environ["MUSTER_STOP_PATH"], "w", encoding="ascii"):
            pass
        check(muster.stop_requested(), "the launcher has asked")
        del os.environ["MUSTER_STOP_PATH"]
    check(not muster.stop_requested(), "there is no launcher")


FAILS = """
import sys, muster
@muster.record
def main(how):
    "doc"
    if how == "exit": sys.exit(3)
    if how == "well": sys.exit(0)
    if how == "error": muster.record_error("words of its own"); sys.exit(4)
    if how == "crash":
        import ctypes; ctypes.string_at(0)
    raise ValueError("bad \\ud800 value")
assert main.__name__ == "main" and main.__doc__ == "doc"
main(sys.argv[1])
"""


def error_records_that_pytorch_reads():
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    with tempfile.TemporaryDirectory() as folder:
        for how, code, words in (("raise", 1, "ValueError: bad"), ("exit", 3, None), ("well", 0, None), ("error", 4, "words of its own"),
                                 ("crash", -11, "SIGSEGV")):
            path = os.path.join(folder, how, "error.json")
            done = subprocess.run([sys.executable, "-c", FAILS, how], env={**ENVIRONMENT, "TORCHELASTIC_ERROR_FILE": path}, check=False,
                                  capture_output=True, text=True, timeout=60)
            if how == "crash" and not os.path.exists(path):  # the library makes no folders
                os.makedirs(os.path.dirname(path), exist_ok=True)
                done = subprocess.run([sys.executable, "-c", FAILS, how], env={**ENVIRONMENT, "TORCHELASTIC_ERROR_FILE": path}, check=False,
                                      capture_output=True, text=True, timeout=60)
            check(done.returncode == code, f"{how}: {done}")
            check(os.path.exists(path) == (words is not None), f"{how}: an error file")
            if words:
                failure = ProcessFailure(0, 1, code, path)
                text = failure.message["message"] if isinstance(failure.message, dict) else failure.message
                check(words in text and failure.timestamp > 1.7e9, f"{how}: {failure}")
                check(os.listdir(os.path.dirname(path)) == ["error.json"], f"{how}: {os.listdir(os.path.dirname(path))}")
        done = run("--nproc-per-node=1", "--no-python", sys.executable, "-c", FAILS, "raise", TMPDIR=folder)
        check(done.returncode == 1 and "ValueError: bad" in done.stderr, f"{done}")
    done = subprocess.run([sys.executable, "-c", FAILS, "raise"], env=ENVIRONMENT, check=False, capture_output=True, timeout=60)
    check(done.returncode == 1, "without a launcher")


# ---------------------------------------------------------------------------


def save(folder, kind, step):
    command = [BINARY, "run", "--standalone", "--nproc-per-node=3", "--no-python"] if kind == "checkpoint" else []
    subprocess.run([*command, PEER, kind, folder, *TENSORS], check=True, env={**ENVIRONMENT, "STEP": str(step)})


def expected():
    import numpy

    for index, text in enumerate(TENSORS):
        name, number, shape = text.split(":")
        sizes = [int(size) for size in shape.split("x")] if shape else []
        kind = "uint16" if number == "6" else TYPES[number]
        count = int(numpy.prod(sizes)) * numpy.dtype(kind).itemsize
        array = numpy.frombuffer(bytes((index + i) % 256 for i in range(count)), kind).reshape(sizes)
        yield name, (array.astype("uint32") << 16).view("float32") if number == "6" else array


def same_state(found):
    import numpy

    wanted = dict(expected())
    check(set(found.tensors) == set(wanted) == set(found.shapes), f"{found}")
    for name, array in wanted.items():
        got = found.tensors[name].astype("float32") if name == "narrow" else found.tensors[name]
        check(got.shape == array.shape == found.shapes[name], f"{name}: {got.shape}")
        check(got.dtype == array.dtype and numpy.array_equal(got.view("uint8") if got.ndim else got, array.view("uint8") if array.ndim else array),
              f"{name}: {got} instead of {array}")


def flip(path):
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


def saved_states_as_arrays():
    for kind, ending in (("save", "step-{}-"), ("checkpoint", "checkpoint-{}-")):
        with tempfile.TemporaryDirectory() as top:
            folder = os.path.join(top, "states")
            raises(LookupError, muster.snapshot.find, folder)
            save(folder, kind, 7)
            save(folder, kind, 9)
            found = muster.snapshot.load(folder)
            check((found.step, found.kind, found.note) == (9, "snapshot" if kind == "save" else kind, ""), f"{found}")
            same_state(found)
            check(muster.snapshot.find(folder).tensors == {} and muster.snapshot.find(folder).id == found.id, "find")
            check(muster.snapshot.load(folder, 7).step == 7, "by step")
            check(list(muster.snapshot.load(folder, names=["one"]).tensors) == ["one"], "by name")
            raises(LookupError, lambda: muster.snapshot.load(folder, names=["nothing"]))
            raises(LookupError, muster.snapshot.load, folder, 8)
            parts = [name for name in os.listdir(folder) if name.startswith(ending.format(9)) and name.endswith(".safetensors")]
            flip(os.path.join(folder, sorted(parts)[0]))
            older = muster.snapshot.load(folder)
            check(older.step == 7 and older.note, f"{older}")
            same_state(older)
            raises(muster.MusterError, muster.snapshot.load, folder, 9)


# ---------------------------------------------------------------------------


def the_status_of_a_job():
    why = raises(muster.MusterError, muster.status, "127.0.0.1:9")
    check("127.0.0.1" in str(why), str(why))
    with tempfile.TemporaryDirectory() as folder:
        fifo = os.path.join(folder, "end")
        os.mkfifo(fifo)
        port = jobs.free_port()
        job = subprocess.Popen([BINARY, "run", "--nnodes=1", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job7",
                                "--no-python", "sh", "-c", f"read line < {fifo}"], env=ENVIRONMENT)
        try:
            with open(fifo, "w", encoding="ascii") as end:  # opens when the worker reads
                found = muster.status(f"127.0.0.1:{port}")
                check((found["run_id"], found["phase"], found["workers"]) == ("job7", "running", 1), json.dumps(found))
                end.write("\n")
            check(job.wait(60) == 0, "the job")
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait()


def main():
    jobs.isolate()  # no other test is given the port that one has found free
    cases.run([the_store_beside_pytorchs, the_jobs_store_from_the_environment, the_stop_path, error_records_that_pytorch_reads,
               saved_states_as_arrays, the_status_of_a_job])


main()
