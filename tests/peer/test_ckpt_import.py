#!/usr/bin/env python3
# muster ckpt import: what real PyTorch and safetensors have saved arrives byte for byte; what they would never save does not.
# needs: torch safetensors numpy
"""Usage: test_ckpt_import.py [CASE ...] (some take files of those before them); MUSTER_BINARY names the program."""
import collections
import io
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile

FOLDER = tempfile.TemporaryDirectory(prefix="muster-import-")  # PyTorch leaves folders of its own where temporary files go
os.environ["TMPDIR"] = tempfile.tempdir = FOLDER.name
os.environ["OMP_NUM_THREADS"] = "1"  # a pool of threads would not survive a fork
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import cases  # noqa: E402
import numpy  # noqa: E402
import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
         torch.float16, torch.bfloat16, torch.float32, torch.float64]
COUNT = [0]


def ckpt(*arguments):
    done = subprocess.run([BINARY, "ckpt", *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert "\x1b" not in done.stderr + done.stdout, (arguments, done)
    assert "ERROR: AddressSanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done


def imported(source, *options):
    """Tensors, by name, and values of a snapshot of the source."""
    COUNT[0] += 1
    folder = f"snapshots-{COUNT[0]}"
    done = ckpt("import", source, "--to", folder, *options)
    assert done.returncode == 0, (source, done.stderr)
    [name] = [name for name in os.listdir(folder) if name.endswith(".json")]
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        manifest = json.load(file)
    tensors = safetensors.torch.load_file(os.path.join(folder, manifest["file"]))
    shutil.rmtree(folder)
    return tensors, manifest["values"]


def refused(source, *words):
    COUNT[0] += 1
    folder = f"snapshots-{COUNT[0]}"
    done = ckpt("import", source, "--to", folder)
    assert done.returncode == 1, (source, words, done)
    for word in words:
        assert word in done.stderr, (source, word, done.stderr)
    assert not os.path.exists(folder), (source, os.listdir(folder))


def left_out(source, want):
    done = ckpt("show", "--json", source)
    assert done.returncode == 0 and json.loads(done.stdout)["left_out"] == want, (source, done)


def same(have, want):
    want = want.detach().contiguous()
    assert have.dtype == want.dtype and have.shape == want.shape, (have.dtype, have.shape, want.dtype, want.shape)
    assert have.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == \
        want.view(-1).view(torch.uint8).numpy().tobytes()


def flat(state, prefix=""):
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, (dict, list, tuple)):
            yield from flat(value, name)
        elif isinstance(value, torch.Tensor):
            yield name, value


def check(source, state, *options):
    tensors, values = imported(source, *options)
    want = dict(flat(state))
    assert set(tensors) == set(want), set(tensors) ^ set(want)
    for name, tensor in want.items():
        same(tensors[name], tensor)
    return values


def training():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.randn(5, 30)).sum().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.25, "note": "größer",
            "flag": True, "minus": -(1 << 40)}


# ---- torch.save ----

def a_training_arrives():
    state = training()
    torch.save(state, "training.pt")
    values = check("training.pt", state)
    assert values["epoch"] == 3 and values["loss"] == 0.25 and values["note"] == "größer", values
    assert values["flag"] == 1 and values["minus"] == -(1 << 40), values
    assert values["optimizer.param_groups.0.betas.1"] == 0.999, values
    assert "optimizer.param_groups.0.foreach" not in values, values
    tensors, values = imported("training.pt", "--only", "model", "--skip", "model.1", "--step", "12")
    assert set(tensors) == {"model.0.weight", "model.0.bias", "model.2.weight", "model.2.bias"} and not values, tensors


def every_type_and_stride_arrives():
    state = {str(kind): (torch.arange(24) % 7).to(kind).reshape(2, 3, 4) for kind in TYPES}
    big = torch.randn(700, 3000)
    state.update(big=big, transposed=big.t(), row=big[3], column=big[:, 5], every=big[::3, 1::2], turned=big.reshape(
        7, 100, 60, 50).permute(3, 1, 0, 2), expanded=torch.arange(5).expand(300, 5), one=torch.ones(1).expand(2, 3, 4),
        empty=torch.zeros(0, 4), scalar=torch.tensor(2.5), list=[torch.ones(2), (torch.zeros(3),)],
        parameter=torch.nn.Parameter(torch.ones(3)), buffer=torch.nn.Buffer(torch.ones(4)), eight=torch.arange(256).reshape(
            [2] * 8), many=torch.arange(3 << 20), ordered=collections.OrderedDict(a=torch.ones(1)),
        halves=big.half().t()[5:9])
    torch.save(state, "types.pt")
    check("types.pt", state)
    torch.save(big[5:9, 2:4], "alone.pt")
    check("alone.pt", {"tensor": big[5:9, 2:4]})


def shared_storages_arrive():
    base = torch.randn(100)
    state = {"a": base, "b": base[10:20], "c": base.view(10, 10).t()}
    torch.save(state, "shared.pt")
    check("shared.pt", state)


def odd_values_are_left_out():
    torch.save({"w": torch.ones(1), "none": None, "bytes": b"x", "set": {1}, "size": torch.Size([2]), "kind": torch.int8,
                "device": torch.device("cpu"), "big": 1 << 90, "long": list(range(1000)), "nan": float("nan"),
                "counter": collections.Counter([1, 1]), "default": collections.defaultdict(int, a=1), (1, 2): 3,
                "text": "a\0b", "\x1b[2J": "\x1b"}, "odd.pt")
    _, values = imported("odd.pt")
    assert set(values) == {"nan", "default.a", "\x1b[2J"} and values["default.a"] == 1, values
    assert "long: list of 1000" in ckpt("show", "odd.pt").stdout
    shown = json.loads(ckpt("show", "odd.pt", "--json").stdout)
    assert shown["tensors"]["w"] == {"type": "float32", "shape": [1], "bytes": 4, "importable": True}, shown
    assert "big" in shown["left_out"] and shown["kind"] == "torch.save file", shown


def other_types_are_named():
    torch.save({"a": torch.ones(1), "b": torch.tensor([True]), "c": torch.ones(1, dtype=torch.complex64),
                "d": torch.ones(2).to(torch.float8_e4m3fn)}, "other.pt")
    refused("other.pt", "b (bool), c (complex64), d (float8_e4m3fn)", "--skip")
    tensors, _ = imported("other.pt", "--skip", "b", "--skip", "c", "--skip=d")
    assert set(tensors) == {"a"}


def what_pytorch_saves_and_we_do_not_read():
    torch.save({"w": torch.ones(3)}, "legacy.pt", _use_new_zipfile_serialization=False)
    refused("legacy.pt", "legacy.pt", "old format", "torch.save(torch.load(")
    torch.save({"w": torch.complex(torch.ones(3), torch.ones(3)).conj()}, "conjugated.pt")
    left_out("conjugated.pt", {"w": "w is a negated or conjugated view; save a copy: tensor.resolve_neg().resolve_conj()"})
    torch.save(torch.nn.Linear(2, 2), "module.pt")
    left_out("module.pt", {"value": "torch.nn.modules.linear.Linear"})
    torch.save({"w": torch.ones([1] * 9)}, "nine.pt")
    left_out("nine.pt", {"w": "w has more than 8 dimensions"})


def checksums_are_compared():
    torch.save({"w": torch.arange(100000), "v": torch.ones(2)}, "sum.pt")
    with open("sum.pt", "rb") as file:
        data = bytearray(file.read())
    at = data.index(struct.pack("<qqq", 50000, 50001, 50002))
    data[at] ^= 1
    with open("damaged.pt", "wb") as file:
        file.write(data)
    refused("damaged.pt", "tensor w", "damaged.pt is damaged")
    torch.serialization.set_crc32_options(False)
    torch.save({"w": torch.arange(100000)}, "without.pt")
    torch.serialization.set_crc32_options(True)
    check("without.pt", {"w": torch.arange(100000)})


# ---- hostile torch.save files ----

def entries_of(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write_zip(path, entries, compression=zipfile.ZIP_STORED):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore") # of names that are there twice
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, data in entries:
                archive.writestr(name, data)


def hostile(what, entries, *words, **options):
    write_zip(f"{what}.pt", entries, **options)
    refused(f"{what}.pt", f"{what}.pt", *words)


def hostile_zips():
    torch.save({"w": torch.arange(4)}, "good.pt")
    good = entries_of("good.pt")
    rest = list(good.items())
    write_zip("python.pt", rest)
    check("python.pt", {"w": torch.arange(4)})
    hostile("compressed", rest, "good/data.pkl is compressed", compression=zipfile.ZIP_DEFLATED)
    hostile("parent", [*rest, ("good/../x", b"")], "leaves the archive")
    hostile("absolute", [*rest, ("/etc/passwd", b"")], "absolute")
    hostile("escape", [*rest, ("good/\x1b", b"")], "cannot be shown")
    hostile("twice", [*rest, ("good/data/0", b"12345678")], "good/data/0 is there twice")
    hostile("pickles", [*rest, ("evil/data.pkl", b"")], "two entries data.pkl")
    hostile("nothing", [("x/y", b"")], "no entry data.pkl")
    hostile("big", [(n, b"big" if n.endswith("byteorder") else d) for n, d in rest], "byte order is \"big\"")
    hostile("missing", [(n, d) for n, d in rest if not n.endswith("data/0")], "w has a storage that is not in")
    hostile("short", [(n, d[:-8] if n.endswith("data/0") else d) for n, d in rest], "another size")
    with open("python.pt", "rb") as file:
        data = file.read()
    central = data.index(b"PK\1\2")
    end = data.index(b"PK\5\6")
    places = []
    while data[central:central + 4] == b"PK\1\2":
        places.append(central)
        central += 46 + sum(struct.unpack_from("<HHH", data, central + 28))

    def patched(what, at, value, *words):
        with open(f"{what}.pt", "wb") as file:
            file.write(data[:at] + value + data[at + len(value):])
        refused(f"{what}.pt", f"{what}.pt", *words)
    patched("encrypted", places[1] + 8, b"\1\0", "is encrypted")
    patched("local", 30, b"G", "is described in two ways")
    patched("overlapping", places[1] + 42, data[places[0] + 42:places[0] + 46], "is described in two ways")
    patched("larger", places[-1] + 20, struct.pack("<II", 1 << 20, 1 << 20), "is larger than the archive")
    patched("overlap", places[0] + 20, struct.pack("<II", 400, 400), "overlaps another")
    patched("behind", places[0] + 42, struct.pack("<I", end), "begins behind the directory")
    patched("count", end + 8, b"\1\0\1\0", "directory is damaged")
    patched("entries", end + 8, b"\xff\0\xff\0", "says that it has 255 entries")
    patched("far", end + 16, b"\xff\xff\xff\x7f", "leaves the archive")
    for cut in range(0, len(data), 37):
        with open("cut.pt", "wb") as file:
            file.write(data[:cut])
        refused("cut.pt", "cut.pt")
    with open("good.pt", "rb") as file:
        data = file.read()
    for cut in (1, 21, 22, 41, 42, 98):
        with open("cut.pt", "wb") as file:
            file.write(data[:-cut])
        refused("cut.pt", "cut.pt")
    with open("more.pt", "wb") as file:
        file.write(data + b"x")
    refused("more.pt", "has more behind its end")


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def with_pickle(what, data, *words):
    write_zip(f"{what}.pt", [("x/data.pkl", data), ("x/byteorder", b"little"), ("x/data/0", bytes(32))])
    refused(f"{what}.pt", f"{what}.pt", *words)


def tensor_pickle(storage="(X\7\0\0\0storagectorch\nLongStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ", offset=b"K\0", size=b"K\4\x85",
                  stride=b"K\1\x85"):
    return (b"\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" + storage.encode("latin-1") + offset + size + stride +
            b"\x89}tRs.")


def hostile_pickles():
    for protocol in range(2, 6):
        torch.save({"w": torch.ones(2), "evil": Evil(), "more": [Evil(), {"more": Evil()}]}, "evil.pt", pickle_protocol=protocol)
        left_out("evil.pt", {name: "posix.system" for name in ("evil", "more.0", "more.1.more")})
        same(imported("evil.pt")[0]["w"], torch.ones(2))
        assert not os.path.exists("executed")
    with_pickle("protocol0", pickle.dumps({"a": 1}, 0), "opcode 0x64")
    with_pickle("opcode", b"\x80\2I1\n.", "opcode 0x49")
    with_pickle("ends", b"\x80\2}", "ends early")
    with_pickle("deep", b"\x80\2" + b"]" * 200 + b"a" * 199 + b".", "nested more than 64 deep")
    laughs = b"".join(b"]q%c(h%ch%ce" % (i, i - 1, i - 1) for i in range(1, 60)) # each list has the one before twice
    with_pickle("laughs", b"\x80\2(]q\0" + laughs + b"t.", "more than 65536 values")
    with_pickle("itself", b"\x80\2]q\0h\0a.", "nested more than 64 deep")
    with_pickle("stack", b"\x80\2" + b"N" * 100 + b".", "does not end with one value")
    write_zip("good2.pt", [("x/data.pkl", tensor_pickle()), ("x/byteorder", b"little"), ("x/data/0", bytes(32))])
    check("good2.pt", {"w": torch.zeros(4, dtype=torch.int64)})
    with_pickle("outside", tensor_pickle(offset=b"K\1"), "w leaves its storage")
    with_pickle("negative", tensor_pickle(offset=b"J\xff\xff\xff\xff"), "w is no tensor")
    with_pickle("large", tensor_pickle(size=b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x85"), "w leaves its storage")
    with_pickle("wraps", tensor_pickle(size=b"K\3\x85", stride=b"\x8a\x08\0\0\0\0\0\0\0\x40\x85"), "w leaves its storage")
    with_pickle("product", tensor_pickle(size=b"\x8a\x05\0\0\0\0\x7f\x8a\x05\0\0\0\0\x7f\x86", stride=b"K\0K\0\x86"), "2^56")
    with_pickle("strides", tensor_pickle(stride=b"K\1K\1\x86"), "w has no shape and strides")
    with_pickle("key", tensor_pickle(storage="(X\7\0\0\0storagectorch\nLongStorage\nX\4\0\0\0../0X\3\0\0\0cpuK\4tQ"),
                "not in the zip archive")
    with_pickle("bomb", tensor_pickle(size=b"\x8a\5\0\0\0\0\1\x85", stride=b"K\0\x85"), "expanded too far")
    with_pickle("storage", tensor_pickle(storage="K\1"), "w has no storage")
    with_pickle("count", tensor_pickle(storage="(X\7\0\0\0storagectorch\nLongStorage\nX\1\0\0\0000X\3\0\0\0cpuK\5tQ"), "another size")


def numpy_pickle(count, what, value):
    """A list that has one object of numpy's so many times."""
    dtype = b"cnumpy\ndtype\nX\2\0\0\0u1\x85R(K\3X\1\0\0\0<tb"
    thing = {"scalar": b"cnumpy.core.multiarray\nscalar\n" + dtype + value + b"\x86R",
             "array": b"cnumpy.core.numeric\n_frombuffer\n(" + value + dtype + b"J\0\0\x10\0\x85X\1\0\0\0CtR"}[what]
    return b"\x80\2](" + thing + b"q\0" + b"h\0" * (count - 1) + b"e."


def hostile_numbers():
    """What is of a wrong size costs little, however often it is there."""
    large = b"B" + struct.pack("<I", 16 << 20) + bytes(16 << 20)
    text = b"c_codecs\nencode\nX" + struct.pack("<I", (1 << 20) + 1) + bytes(1 + (1 << 20)) + b"X\6\0\0\0latin1\x86R"
    for what, name in ("scalar", "multiarray.scalar"), ("array", "numeric._frombuffer"):
        write_zip("numbers.pt", [("x/data.pkl", numpy_pickle(500, what, large)), ("x/byteorder", b"little")])
        left_out("numbers.pt", {str(i): f"numpy.core.{name}" for i in range(500)})
    with_pickle("texts", numpy_pickle(4200, "array", text), "more than 4194304 values")
    left = numpy_pickle(2, "array", b"B" + struct.pack("<I", 1 << 20) + bytes(1 << 20))
    write_zip("numbers.pt", [("x/data.pkl", left), ("x/byteorder", b"little")])
    same(imported("numbers.pt")[0]["1"], torch.zeros(1 << 20, dtype=torch.uint8))


# ---- distributed checkpoints ----

def save_distributed():
    """By three ranks. They are forks of this process, which has imported PyTorch."""
    import ckpt_save

    sys.stdout.flush()
    pids = []
    for rank in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            signal.alarm(200)
            try:
                ckpt_save.main(rank, os.path.abspath("ranks"))
                os._exit(0)
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                os._exit(1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * 3, codes


def distributed_checkpoints_arrive():
    save_distributed()
    for name in ("fsdp", "async", "columns", "two"):
        want = torch.load(f"{name}.whole.pt")
        values = check(name, want)
        if name == "async":
            assert values["epoch"] == 7 and values["optim.param_groups.0.betas.0"] == 0.9, values


def one_process():
    state = training()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore") # no process group
        dcp.save(state, checkpoint_id="alone")
    assert check("alone", state)["note"] == "größer"


def enumerations_of_an_older_python():
    """Python 3.11.0 to 3.11.3 names a member by its class, its name and getattr."""
    encoding = dcp.metadata._MEM_FORMAT_ENCODING
    usual = encoding.__reduce_ex__
    encoding.__reduce_ex__ = lambda self, protocol: (getattr, (type(self), self.name))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore") # no process group
            dcp.save({"w": torch.arange(3.0)}, checkpoint_id="older")
    finally:
        encoding.__reduce_ex__ = usual
    with open("older/.metadata", "rb") as file:
        assert b"getattr" in file.read()
    check("older", {"w": torch.arange(3.0)})


def rewritten(what, change, *words, good="columns", succeeds=False):
    """A checkpoint with changed metadata."""
    shutil.copytree(good, what)
    with open(f"{what}/.metadata", "rb") as file:
        metadata = pickle.load(file)
    change(metadata)
    with open(f"{what}/.metadata", "wb") as file:
        pickle.dump(metadata, file)
    if succeeds:
        assert imported(what)[0].keys() == imported(good)[0].keys(), what
    else:
        refused(what, f"{what}/.metadata", *words)


def places(metadata, name):
    return [(index, place) for index, place in metadata.storage_data.items() if index.fqn == name]


def hostile_checkpoints():
    def set_path(path):
        return lambda metadata: setattr(places(metadata, "t")[1][1], "relative_path", path)
    rewritten("dcp-parent", set_path("../columns/__0_0.distcp"), "no single name")
    rewritten("dcp-absolute", set_path("/etc/passwd"), "no single name")
    rewritten("dcp-absent", set_path("__9_0.distcp"), "__9_0.distcp is not there")
    os.makedirs("dcp-link", exist_ok=True)
    shutil.rmtree("dcp-link")
    shutil.copytree("columns", "dcp-link")
    os.rename("dcp-link/__1_0.distcp", "elsewhere")
    os.symlink("../elsewhere", "dcp-link/__1_0.distcp")
    refused("dcp-link", "__1_0.distcp is a link")

    def grow(metadata):
        places(metadata, "t")[0][1].length = 1 << 40
    rewritten("dcp-outside", grow, "t is said to be at bytes", "which is shorter")

    def lose(metadata):
        del metadata.storage_data[places(metadata, "t")[1][0]]
    rewritten("dcp-lost", lose, "tensor t has a chunk that is in no file")

    def forget(metadata):
        index = places(metadata, "t")[1][0]
        del metadata.storage_data[index]
        metadata.state_dict_metadata["t"].chunks.pop(1)
    rewritten("dcp-hole", forget, "tensor t:", "elements are nowhere")

    def overlap(metadata):
        entry = metadata.state_dict_metadata["t"]
        index, place = places(metadata, "t")[1]
        del metadata.storage_data[index]
        metadata.storage_data[MetadataIndex("t", torch.Size([0, 1]))] = place
        entry.chunks[1] = ChunkStorageMetadata(torch.Size([0, 1]), entry.chunks[1].sizes)
    rewritten("dcp-overlap", overlap, "tensor t: two parts overlap")

    def leave(metadata):
        metadata.state_dict_metadata["t"].size = torch.Size([4, 5])
    rewritten("dcp-leaves", leave, "tensor t: a part leaves the tensor")

    def type_(metadata):
        metadata.state_dict_metadata["t"].properties.dtype = torch.int32
    rewritten("dcp-type", type_, "tensor t: ", "has another type or shape")

    def swap(metadata):
        (_, first), (_, second) = places(metadata, "t")[0], places(metadata, "u")[0]
        first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    rewritten("dcp-swapped", swap, "tensor t: ", "has another type or shape")

    def extra(metadata):
        place = places(metadata, "t")[0][1]
        metadata.storage_data[MetadataIndex("v", torch.Size([0]))] = type(place)(place.relative_path, place.length, 0)
    rewritten("dcp-extra", extra, "are of no tensor")

    def again(metadata):
        metadata.storage_data[MetadataIndex("v", torch.Size([0]))] = places(metadata, "t")[0][1]
    rewritten("dcp-again", again, "where something else is")

    def many(metadata):
        entry = metadata.state_dict_metadata["t"]
        entry.chunks = [entry.chunks[0]] * 20000
    rewritten("dcp-many", many, "tensor t has more than 16384 chunks")

    def attributes(metadata):
        for number in range(100):
            setattr(places(metadata, "t")[0][1], f"a{number}", number)
    rewritten("dcp-attributes", attributes, "not where something lies")

    def transform(metadata):
        places(metadata, "t")[0][1].transform_descriptors = ["zstd"]
    rewritten("dcp-extension", transform, "with an extension")

    def evil(metadata):
        metadata.planner_data = Evil()
    rewritten("dcp-evil", evil, succeeds=True)
    assert not os.path.exists("executed")
    shutil.copytree("columns", "dcp-damaged")
    with open("dcp-damaged/__0_0.distcp", "r+b") as file:
        file.write(b"XXXX")
    refused("dcp-damaged", "tensor t: dcp-damaged/__0_0.distcp at byte 0", "described in two ways")
    os.makedirs("dcp-empty")
    refused("dcp-empty", "dcp-empty has neither .metadata")
    shutil.copytree("columns", "dcp-cut")
    os.truncate("dcp-cut/.metadata", 100)
    refused("dcp-cut", "dcp-cut/.metadata", "ends early")


# ---- safetensors ----

def safetensors_arrive():
    state = {str(kind): (torch.arange(24) % 5).to(kind).reshape(4, 6) for kind in TYPES}
    safetensors.torch.save_file(state, "one.safetensors")
    check("one.safetensors", state)
    os.makedirs("hub")
    os.makedirs("blobs")
    names = list(state)
    weight_map = {}
    for number, part in enumerate((names[:5], names[5:])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        safetensors.torch.save_file({name: state[name] for name in part}, f"blobs/{number}")
        os.symlink(f"../blobs/{number}", f"hub/{file}") # as the cache of huggingface_hub does
        weight_map.update({name: file for name in part})

    def index(weights):
        with open("hub/model.safetensors.index.json", "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": 1}, "weight_map": weights}, file)
    index(weight_map)
    check("hub", state)
    check("hub/model.safetensors.index.json", state)
    for path in ("../one.safetensors", "/etc/passwd", "..", "", "a\\b", "x/y"):
        index({**weight_map, names[0]: path})
        refused("hub", "model.safetensors.index.json", "no single name")
    index({**weight_map, "more": weight_map[names[0]]})
    refused("hub", "has no tensor more")
    index({**weight_map, names[0]: "absent.safetensors"})
    refused("hub", "absent.safetensors is not there")
    index({**weight_map, names[0]: 1})
    refused("hub", "no file for " + names[0])
    index([])
    refused("hub", "no weight_map")
    with open("hub/model.safetensors.index.json", "w", encoding="utf-8") as file:
        file.write("{")
    refused("hub", "is not JSON")


def parts_of_ranks_are_no_whole_tensors():
    metadata = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [0]}})}
    safetensors.torch.save_file({"w": torch.ones(2)}, "part.safetensors", metadata=metadata)
    refused("part.safetensors", "parts that a rank has saved")
    os.makedirs("alone-ranks")
    with open("alone-ranks/__0.metadata", "wb"):
        pass
    refused("alone-ranks", "use_collectives=False")


def names_that_are_alike():
    """A key with a dot, and two keys; names that they would be told apart by."""
    torch.save({"a.b": torch.ones(1), "a": {"b": torch.zeros(2)}, "a.b (2)": torch.ones(3), "v.w": 1, "v": {"w": 2}}, "double.pt")
    tensors, values = imported("double.pt")
    assert {name: tensor.numel() for name, tensor in tensors.items()} == {"a.b": 1, "a.b (2)": 2, "a.b (2) (2)": 3}, tensors
    assert values == {"v.w": 1, "v.w (2)": 2}, values
    torch.save({"a\nstep 3": torch.ones(1), "text": "one\ntwo", "set\n": {1}}, "lines.pt")
    lines = ckpt("show", "lines.pt").stdout.splitlines()
    assert lines == ["a?step 3: float32 [1], 4 bytes", 'text: "one?two"', "set?: __builtin__.set (cannot be imported)",
                     "torch.save file: 1 tensor, 4 bytes"], lines


def names_that_cannot_be():
    torch.save({"x" * 300: torch.ones(1)}, "name.pt")
    refused("name.pt", "longer than 255 bytes")
    for name, key in (("long-name", "x" * 2000), ("nameless", ""), ("zeros", "a\0b")):
        state = {"model": {key: torch.ones(1), "w": torch.ones(2)}}
        torch.save(state, f"{name}.pt")
        done = ckpt("show", f"{name}.pt")
        assert "model: something under a key that is empty or too long, or has zeros in it (cannot be imported)" in done.stdout, done
        assert set(imported(f"{name}.pt")[0]) == {"model.w"}
    torch.save({str(i): i for i in range(2000)}, "values.pt")
    refused("values.pt", "1024")


def other_sources():
    refused("absent", "absent is not there")
    with open("text", "w", encoding="utf-8") as file:
        file.write("a text")
    refused("text", "text is neither a torch.save file nor a safetensors file")
    with open("empty", "w", encoding="utf-8"):
        pass
    refused("empty", "empty is neither")
    os.mkfifo("fifo")
    refused("fifo", "fifo is no regular file")


# ---- the command ----

def lines_that_are_not_understood():
    for arguments, word in [([], "a verb is needed"), (["exprot"], "'exprot' is not known"), (["import"], "a source and a folder"),
                            (["import", "a"], "a source and a folder"), (["import", "a", "--to"], "needs a value"),
                            (["import", "a", "b", "--to", "c"], "'b' is one too many"), (["show"], "a source is needed"),
                            (["import", "a", "--to", "c", "--step", "-1"], "--step -1"), (["show", "a", "--x"], "'--x'"),
                            (["import", "a", "--to", "c", "--only"], "--only needs a name")]:
        done = ckpt(*arguments)
        assert done.returncode == 2 and word in done.stderr, (arguments, done)
    for arguments in (["--help"], ["import", "--help"], ["show", "-h"]):
        done = ckpt(*arguments)
        assert done.returncode == 0 and done.stdout.startswith("usage: muster ckpt"), done


def a_step_is_kept():
    assert ckpt("import", "good.pt", "--to", "stepped", "--step", "5").returncode == 0
    assert ckpt("import", "stepped", "--to", "stepped-too").returncode == 0  # of a source that has one
    assert "step-5.json" in os.listdir("stepped-too"), os.listdir("stepped-too")
    assert ckpt("import", "stepped", "--to", "stepped-too", "--step", "6").returncode == 0
    assert "step-6.json" in os.listdir("stepped-too"), os.listdir("stepped-too")


def other_snapshots_stay():
    for step in range(5):
        assert ckpt("import", "good.pt", "--to", "kept", "--step", str(step)).returncode == 0
    assert len(os.listdir("kept")) == 10, os.listdir("kept")


def an_interrupt_leaves_nothing():
    # A source that is long, so that the program is stopped in the middle.
    torch.save({"w": torch.zeros(64 << 20, dtype=torch.uint8).expand(64, 64 << 20)}, "long.pt")
    process = subprocess.Popen([BINARY, "ckpt", "import", "long.pt", "--to", "interrupted"], stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) # ignored in the background
    while not os.path.exists("interrupted") or not any(name.endswith(".tmp") for name in os.listdir("interrupted")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, process.returncode
    assert not os.path.exists("interrupted"), os.listdir("interrupted")


def memory_is_bounded():
    """Four times as much data takes no more memory."""
    peaks = []
    for count in (16, 64):
        torch.save({f"w{i}": torch.zeros(1 << 18) for i in range(count)}, "peak.pt")
        code = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", code, BINARY, "ckpt", "import", "peak.pt", "--to", f"peak-{count}"],
                              capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 4096, peaks # KiB; the data grew by 48 MiB


TESTS = [a_training_arrives, every_type_and_stride_arrives, shared_storages_arrive, odd_values_are_left_out,
         other_types_are_named, what_pytorch_saves_and_we_do_not_read, checksums_are_compared, hostile_zips,
         hostile_pickles, hostile_numbers, one_process, enumerations_of_an_older_python, distributed_checkpoints_arrive,
         hostile_checkpoints, safetensors_arrive, parts_of_ranks_are_no_whole_tensors, names_that_are_alike, names_that_cannot_be, other_sources, lines_that_are_not_understood,
         a_step_is_kept, other_snapshots_stay, an_interrupt_leaves_nothing, memory_is_bounded]


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        cases.run(TESTS)
        os.chdir("/")


main()
