#!/usr/bin/env python3
# Checkpoints as training scripts and hubs have them: what is a tensor is read as the library that wrote it reads it, what is not is left out by name.
# needs: torch safetensors numpy
"""Usage: test_ckpt_odd.py [CASE ...]; MUSTER_BINARY names the program."""
import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import uuid
import warnings

FOLDER = tempfile.TemporaryDirectory(prefix="muster-odd-")  # PyTorch leaves folders of its own where temporary files go
os.environ["TMPDIR"] = tempfile.tempdir = FOLDER.name
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import cases  # noqa: E402
import numpy  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
MODEL = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


def ckpt(*arguments, expect=0):
    done = subprocess.run([BINARY, "ckpt", *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == expect and "\x1b" not in done.stderr + done.stdout, (arguments, done)
    assert "ERROR: AddressSanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return done.stdout if expect == 0 else done.stderr


def exported(source, *options):
    ckpt("export", source, "--to", "exported.safetensors", *options)
    tensors = safetensors.torch.load_file("exported.safetensors")
    os.unlink("exported.safetensors")
    return tensors


def same(have, want, name):
    want = want.detach().contiguous()
    assert have.dtype == want.dtype and have.shape == want.shape, (name, have.dtype, have.shape, want.dtype, want.shape)
    assert bytes(have.contiguous().view(-1).view(torch.uint8).numpy()) == bytes(want.view(-1).view(torch.uint8).numpy()), name


def check(source, tensors, values, left_out):
    """Only these, beside MODEL under "model"; left_out: names and words of what it is said to be."""
    wanted = {**{f"model.{name}": tensor for name, tensor in MODEL.items()}, **tensors}
    shown = json.loads(ckpt("show", "--json", source))
    assert shown["tensors"].keys() == wanted.keys(), (source, shown["tensors"].keys(), wanted.keys())
    assert shown["values"] == values, (source, shown["values"], values)
    assert shown["left_out"].keys() == left_out.keys(), (source, shown["left_out"])
    assert all(word in shown["left_out"][name] for name, word in left_out.items()), (source, shown["left_out"])
    have = exported(source)
    for name, tensor in wanted.items():
        same(have[name], tensor, (source, name))
    have = exported(source, "--only", "model")
    assert have.keys() == {f"model.{name}" for name in MODEL}, have.keys()


# ---- what scripts save ----

class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    names: list = dataclasses.field(default_factory=lambda: ["a", {"b": (1, 2)}])


class Odd:
    """State, slots, items, arguments by name: all ways in which a pickle fills an object."""
    __slots__ = ("a",)

    def __init__(self):
        self.a = {1, 2}


class Named(dict):
    def __new__(cls, *, size=0):
        return super().__new__(cls)

    def __getnewargs_ex__(self):
        return (), {"size": 3}


class Words(list):
    pass


Point = collections.namedtuple("Point", "x y")


def number(value):
    return {}, {"odd": value}, {}


def tensor(array):
    return {"odd": torch.from_numpy(numpy.array(array, order="C"))}, {}, {}


def named(words):
    return {}, {}, {"odd": words}


def objects():
    """value; tensors, values and what is left out of it"""
    grid = numpy.arange(24, dtype=numpy.float32).reshape(2, 3, 4)
    big = numpy.arange(256, dtype=numpy.uint8)  # all bytes
    for value, wanted in [
            (numpy.float64(0.25), number(0.25)), (numpy.float32(-1.5), number(-1.5)), (numpy.float16(0.1), number(float(numpy.float16(0.1)))),
            (numpy.float16(6e-8), number(float(numpy.float16(6e-8)))), (numpy.float64("inf"), number("inf")), (numpy.float16("nan"), number("nan")),
            (numpy.int64(-(1 << 40)), number(-(1 << 40))), (numpy.int8(-3), number(-3)), (numpy.uint16(65535), number(65535)),
            (numpy.uint64(1 << 63), named("63 bits")), (numpy.bool_(True), number(1)), (numpy.complex64(1j), named("scalar")),
            (numpy.datetime64("2026-11-30"), named("scalar")), (numpy.longdouble(1), named("scalar")), (numpy.float32([2.5])[0], number(2.5)),
            (grid, tensor(grid)), (numpy.asfortranarray(grid), tensor(grid)), (grid.transpose(2, 0, 1), tensor(grid.transpose(2, 0, 1))),
            (grid[:, ::2, 1:], tensor(grid[:, ::2, 1:])), (big, tensor(big)), (big.reshape(16, 16).T, tensor(big.reshape(16, 16).T)),
            (numpy.array(3.5), tensor(numpy.array(3.5))), (numpy.zeros((0, 4), numpy.int16), tensor(numpy.zeros((0, 4), numpy.int16))),
            (numpy.array([True, False]), tensor(numpy.array([True, False]))),
            (numpy.complex64([1 + 2j]), tensor(numpy.complex64([1 + 2j]))), (grid.astype(">f4"), named("numpy")), (numpy.array(["a", "b"]), named("numpy")),
            (numpy.array([1, None]), named("numpy")), (numpy.zeros(2, [("x", "f4")]), named("numpy")), (numpy.ma.array([1, 2], mask=[0, 1]), named("numpy")),
            (numpy.matrix([[1, 2]]), named("numpy")), (numpy.dtype("f4"), named("dtype")), (numpy.zeros([1] * 9), named("numpy")),
            (numpy.random.default_rng(1), named("numpy")), (random.Random(1), named("random.Random")),
            (datetime.date(2026, 11, 29), named("datetime.date")), (datetime.datetime.now(datetime.timezone.utc), named("datetime.datetime")),
            (datetime.timedelta(1), named("datetime.timedelta")), (decimal.Decimal("1.5"), named("decimal.Decimal")),
            (fractions.Fraction(1, 3), named("fractions.Fraction")), (uuid.UUID(int=7), named("uuid.UUID")), (pathlib.PurePosixPath("/a/b"), named("PurePosixPath")),
            (collections.deque([1, torch.ones(1)], 3), named("collections.deque")), (frozenset({1}), named("")), (range(3), named("range")),
            (slice(1, 2), named("slice")), (bytearray(b"ab\xff"), named("")), (1j, named("complex")), (Ellipsis, named("")), (types.SimpleNamespace(a=1), named("SimpleNamespace")),
            (argparse.Namespace(lr=1, nested=argparse.Namespace(a=[1])), named("argparse.Namespace")), (Color.RED, named("Color|getattr")), (Settings(), named("Settings")),
            (Odd(), named("Odd")), (Named(size=3), named("Named|functools.partial")), (Words("ab"), named("Words")), (Point(1, 2), named("Point")),
            (functools.partial(print, 1), named("partial")), (print, named("print")), (ValueError("x"), named("ValueError")),
            (torch.eye(3).to_sparse(), named("sparse")), (torch.eye(3).to_sparse_csr(), named("sparse")),
            (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), named("qtensor")),
            (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), named("nested")), (torch.ones(2, device="meta"), named("meta")),
            (torch.nn.Linear(2, 2), named("Linear")), (torch.Generator(), named("Generator")), (torch.strided, named("layout")),
            (torch.ones(4).to(torch.float8_e8m0fnu), ({"odd": torch.ones(4).to(torch.float8_e8m0fnu)}, {}, {})),
            (torch.complex(torch.ones(2), torch.ones(2)).conj(), named("conjugated")),
            (torch.complex(torch.ones(2), torch.ones(2)).conj().imag, named("negated")),
            (torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.ones(1)], 0.1), lambda _: 1).state_dict()["base_lrs"], ({}, {"odd.0": 0.1}, {}))]:
        yield value, wanted


def check_odd(source, value, wanted):
    tensors, values, left_out = wanted
    try:
        check(source, tensors, values, {name: "" for name in left_out})
    except AssertionError as failure:
        raise AssertionError(type(value), str(value)[:80]) from failure
    shown = json.loads(ckpt("show", "--json", source))["left_out"]
    for name, words in left_out.items():
        assert any(word in shown[name] for word in words.split("|")), (type(value), shown)


def save_and_check(protocol):
    for value, wanted in objects():
        try:
            torch.save({"model": MODEL, "odd": value}, "odd.pt", pickle_protocol=protocol)
        except TypeError:  # PyTorch has no way to save it
            continue
        check_odd("odd.pt", value, wanted)


def objects_that_scripts_save():
    save_and_check(2)


def objects_of_newer_protocols():
    save_and_check(4)
    save_and_check(5)


def random_states():
    torch.save({"model": MODEL, "python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}, "random.pt")
    shown = json.loads(ckpt("show", "--json", "random.pt"))
    assert shown["left_out"].keys() == {"python.1", "python.2"}, shown["left_out"]
    have = exported("random.pt")
    same(have["torch"], torch.get_rng_state(), "torch")
    same(have["numpy.1"].view(torch.int32), torch.from_numpy(numpy.random.get_state()[1].view(numpy.int32)), "numpy")


def save_and_check_distributed(every):
    for value, wanted in list(objects())[::every]:
        if isinstance(value, (torch.Tensor, torch.nn.Module, dict)):
            continue  # which are written as tensors
        try:
            dcp.save({"model": MODEL, "odd": value}, checkpoint_id="odd")
        except Exception:  # PyTorch has no way to save it
            shutil.rmtree("odd", ignore_errors=True)
            continue
        check_odd("odd", value, wanted)
        shutil.rmtree("odd")


def objects_in_distributed_checkpoints():
    save_and_check_distributed(every=7)


def all_objects_in_distributed_checkpoints():
    save_and_check_distributed(every=1)


# ---- safetensors ----

def with_header(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def all_types_of_safetensors():
    kinds = [kind for kind in safetensors.torch._TYPES.values() if kind is not None] + [torch.float8_e8m0fnu]
    state = {str(kind)[6:]: torch.arange(24).remainder(2).to(torch.float32).to(kind).reshape(4, 6) for kind in kinds}
    safetensors.torch.save_file(state, "types.safetensors")
    shown = json.loads(ckpt("show", "--json", "types.safetensors"))
    assert {name: one["type"] for name, one in shown["tensors"].items()} == {name: name for name in state}, shown["tensors"]
    have = exported("types.safetensors")
    for name, one in state.items():
        same(have[name], one, name)
    torch.save(state, "types.pt")
    have = exported("types.pt")
    for name, one in state.items():
        same(have[name], one, name)
    assert ckpt("diff", "types.pt", "types.safetensors") == ""
    # Two elements of 4 bits are a byte: [3, 4] in the file is [3, 2] to PyTorch. 6 bits are no type of PyTorch's.
    with_header("small.safetensors", {"f4": {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]},
                                      "f6": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [6, 9]}}, bytes(range(9)))
    shown = json.loads(ckpt("show", "--json", "small.safetensors"))
    assert shown["tensors"] == {"f4": {"type": "float4_e2m1fn_x2", "shape": [3, 2], "bytes": 6, "importable": False}}, shown
    assert shown["left_out"] == {"f6": "a tensor of F6_E2M3"}, shown
    ckpt("export", "small.safetensors", "--to", "again.safetensors")
    with open("again.safetensors", "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        assert header["f4"] == {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]} and file.read() == bytes(range(6)), header
    with safetensors.safe_open("again.safetensors", "pt") as file:
        assert file.get_slice("f4").get_shape() == [3, 4]


def headers_that_the_library_reads():
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    data = struct.pack("<ff", 1, 2)
    for what, header in (("null", {"__metadata__": None, "w": entry}), ("members", {"w": {**entry, "more": {"a": [1]}}}),
                         ("empty", {"__metadata__": {}, "w": entry}), ("nine", {"w": {**entry, "shape": [1] * 8 + [2]}}),
                         ("unknown", {"w": {**entry, "dtype": "F32X"}})):
        with_header(f"{what}.safetensors", header, data)
        if what != "unknown":
            same(safetensors.torch.load_file(f"{what}.safetensors")["w"].reshape(2), torch.tensor([1.0, 2.0]), what)
        shown = json.loads(ckpt("show", "--json", f"{what}.safetensors"))
        if what in ("nine", "unknown"):
            words = "a tensor of more than 8 dimensions" if what == "nine" else "a tensor of a dtype that is not known here"
            assert shown["left_out"] == {"w": words} and shown["tensors"] == {}, (what, shown)
        else:
            same(exported(f"{what}.safetensors")["w"], torch.tensor([1.0, 2.0]), what)


# ---- folders of hubs ----

def folder(what, files):
    shutil.rmtree(what, ignore_errors=True)
    os.makedirs(what)
    for name, content in files.items():
        if name.endswith(".safetensors"):
            safetensors.torch.save_file(content, f"{what}/{name}")
        elif name.endswith(".json"):
            with open(f"{what}/{name}", "w", encoding="ascii") as file:
                json.dump(content, file)
        else:
            torch.save(content, f"{what}/{name}")
    return what


def folders_of_hubs():
    """The names that transformers and diffusers give."""
    one, two = {"a": torch.ones(2), "b": torch.zeros(3)}, {"c": torch.arange(4)}
    for stem, suffix, index in (("model", "safetensors", "model.safetensors.index.json"), ("model.fp16", "safetensors", "model.safetensors.index.fp16.json"),
                                ("diffusion_pytorch_model", "safetensors", "diffusion_pytorch_model.safetensors.index.json"),
                                ("diffusion_pytorch_model.fp16", "safetensors", "diffusion_pytorch_model.safetensors.index.fp16.json"),
                                ("pytorch_model", "bin", "pytorch_model.bin.index.json"), ("pytorch_model.fp16", "bin", "pytorch_model.bin.index.fp16.json"),
                                ("diffusion_pytorch_model", "bin", "diffusion_pytorch_model.bin.index.json")):
        names = [f"{stem}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
        table = {"metadata": {"total_size": 1}, "weight_map": {"a": names[0], "b": names[0], "c": names[1]}}
        what = folder("hub", {names[0]: one, names[1]: two, index: table, "config.json": {}})
        for source in (what, f"{what}/{index}"):
            have = exported(source)
            assert have.keys() == {"a", "b", "c"}, (source, have.keys())
            for name, tensor in {**one, **two}.items():
                same(have[name], tensor, (source, name))
        what = folder("lone", {f"{stem}.{suffix}": one, "config.json": {}})
        same(exported(what)["b"], one["b"], (stem, suffix))
        assert ckpt("verify", what).endswith("were read\n")
    # A variant beside the usual one; an index that promises too much; several of which none is the usual one.
    shutil.rmtree("exported", ignore_errors=True)
    what = folder("both", {"model.safetensors": one, "model.fp16.safetensors": two})
    assert exported(what).keys() == {"a", "b"}
    what = folder("several", {"x.safetensors": one, "y.safetensors": two})
    assert "several has several safetensors files without an index, " in ckpt("show", what, expect=1)
    what = folder("promise", {"pytorch_model.bin": one, "pytorch_model.bin.index.json": {"weight_map": {"a": "pytorch_model.bin", "z": "pytorch_model.bin"}}})
    assert "has no tensor z, which the index says is there" in ckpt("show", what, expect=1)
    assert "has neither .metadata" in ckpt("show", folder("none", {"config.json": {}}), expect=1)


TESTS = [objects_that_scripts_save, objects_of_newer_protocols, random_states, objects_in_distributed_checkpoints,
         all_objects_in_distributed_checkpoints, all_types_of_safetensors, headers_that_the_library_reads, folders_of_hubs]


def main():
    warnings.simplefilter("ignore")  # of what is deprecated, and no process group
    os.chdir(FOLDER.name)
    cases.run(TESTS)
    os.chdir("/")


main()
