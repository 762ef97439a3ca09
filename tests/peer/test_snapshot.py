#!/usr/bin/env python3
# Snapshots and checkpoints, and the safetensors package: what Muster saves Python reads, what Python saves Muster reads.
# needs: safetensors
"""Usage: test_snapshot.py [SEED]; MUSTER_BINARY names the program, snapshot_peer lies in tests/ beside it."""
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

import safetensors

CASES = 60
WORLDS = [1, 2, 5]  # ranks that save a checkpoint
# The names of the safetensors package and the file format, the values of enum muster_type, and bytes of an element.
TYPES = [("int8", "I8", 0, 1), ("uint8", "U8", 1, 1), ("int16", "I16", 2, 2), ("int32", "I32", 3, 4),
         ("uint16", "U16", 9, 2), ("uint32", "U32", 10, 4), ("uint64", "U64", 11, 8),
         ("int64", "I64", 4, 8), ("float16", "F16", 5, 2), ("bfloat16", "BF16", 6, 2), ("float32", "F32", 7, 4),
         ("float64", "F64", 8, 8)]
PEER = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "tests", "snapshot_peer")


def random_tensors(rng):
    names = rng.sample(["w", "fc.weight", "fc.bias", "größe", 'a "quoted" one', "x" * 255, "b/c", "été", "\U0001f600", "0"],
                       rng.randrange(1, 10))
    for name in names:
        shape = [rng.choice([0, 1, 1, 2, 3, 5, 17]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 8]))]
        yield name, rng.choice(TYPES), shape


def size_of(tensor):
    _, (_, _, _, size), shape = tensor
    for extent in shape:
        size *= extent
    return size


def arguments(tensors):
    return [f"{name}:{kind[2]}:{'x'.join(map(str, shape))}" for name, kind, shape in tensors]


def only(folder, suffix):
    found = [name for name in os.listdir(folder) if name.endswith(suffix)]
    assert len(found) == 1, found
    return os.path.join(folder, found[0])


def from_c(tensors, folder):
    subprocess.run([PEER, "save", folder, *arguments(tensors)], check=True)
    with open(only(folder, ".safetensors"), "rb") as file:
        data = file.read()
    read = dict(safetensors.deserialize(data))
    assert len(read) == len(tensors), read.keys()
    for index, (name, kind, shape) in enumerate(tensors):
        there = read[name]
        wanted = bytes((index + at) % 256 for at in range(size_of((name, kind, shape))))
        assert there["dtype"] == kind[1] and there["shape"] == shape and bytes(there["data"]) == wanted, (name, there)
    with open(only(folder, ".json"), encoding="utf-8") as file:
        manifest = json.load(file)
    assert manifest["step"] == 7 and manifest["bytes"] == len(data), manifest
    assert manifest["values"] == {"epoch": 3, "accuracy": 0.9375, "note": "from C"}, manifest
    assert set(manifest["tensors"]) == {name for name, _, _ in tensors}
    check_sums(manifest, data)


def check_sums(manifest, data):
    try:
        import xxhash
    except ImportError:
        return
    assert manifest["xxh3"] == xxhash.xxh3_64(data).hexdigest()
    for name, there in safetensors.deserialize(data):
        assert manifest["tensors"][name] == xxhash.xxh3_64(bytes(there["data"])).hexdigest()


def serialize(tensors, contents, metadata):
    """The file as the package writes it; what the package takes has changed with its version 0.8."""
    keep = {name: ctypes.create_string_buffer(data, max(len(data), 1)) for name, data in contents.items()}
    if hasattr(safetensors, "TensorSpec"):
        table = {name: safetensors.TensorSpec(dtype=kind[0], shape=shape, data_ptr=ctypes.addressof(keep[name]),
                                              data_len=len(contents[name])) for name, kind, shape in tensors}
    else:
        table = {name: {"dtype": kind[0], "shape": shape, "data": contents[name]} for name, kind, shape in tensors}
    return bytes(safetensors.serialize(table, metadata))


def from_python(tensors, folder, rng):
    contents = {name: rng.randbytes(size_of((name, kind, shape))) for name, kind, shape in tensors}
    path = os.path.join(folder, "python.safetensors")
    with open(path, "wb") as file:
        file.write(serialize(tensors, contents, {"format": "pt"} if rng.random() < 0.5 else None))
    done = subprocess.run([PEER, "load", path, *arguments(tensors)], stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode().split("\n")[:-1]
    assert lines == [contents[name].hex() for name, _, _ in tensors]
    # Each cut is refused: by the header's length, or by what the header promises.
    with open(path, "r+b") as file:
        file.truncate(rng.randrange(os.path.getsize(path)))
    done = subprocess.run([PEER, "load", path, *arguments(tensors)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"data is damaged" in done.stderr, done


def from_ranks(tensors, folder, size):
    """As docs/formats/checkpoint.md says: the parts, their names sorted, give the tensors."""
    subprocess.run([os.environ["MUSTER_BINARY"], "run", "--standalone", f"--nproc-per-node={size}", "--no-python",
                    PEER, "checkpoint", folder, *arguments(tensors)], check=True)
    with open(os.path.join(folder, "checkpoint-7.json"), encoding="utf-8") as file:
        record = json.load(file)
    stem = os.path.join(folder, f"checkpoint-7-{record['token']}")
    with open(stem + ".json", encoding="utf-8") as file:
        listed = json.load(file)["tensors"]
    described = {}
    for tensor in listed: # (type, shape, is it even?); an empty type is that of the tensor before
        kind = tensor[1] or kind
        described[tensor[0]] = kind, tensor[2], len(tensor) == 3
    ranges = {name: [] for name in described}
    assert record["parts"] == size and len(os.listdir(folder)) == size + 2, os.listdir(folder)
    for part in range(size):
        with open(f"{stem}-{part}.safetensors", "rb") as file:
            for name, there in safetensors.deserialize(file.read()):
                if name != "xxh3":
                    tensor, _, bounds = name.rpartition("[")
                    ranges[tensor].append((int(bounds.split(":")[0]), there["dtype"], bytes(there["data"])))
    for index, (name, kind, shape) in enumerate(tensors):
        wanted = bytes((index + at) % 256 for at in range(size_of((name, kind, shape))))
        assert b"".join(data for _, _, data in sorted(ranges[name])) == wanted, name
        assert all(dtype == kind[1] for _, dtype, _ in ranges[name])
        assert described[name] == (kind[0], list(shape), index % 2 == 0 or 0 in shape), (name, described[name])


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    for _ in range(CASES):
        tensors = list(random_tensors(rng))
        with tempfile.TemporaryDirectory(prefix="muster-snapshot-") as folder:
            from_c(tensors, os.path.join(folder, "snapshots"))
            from_python(tensors, folder, rng)
    for size in WORLDS:
        with tempfile.TemporaryDirectory(prefix="muster-checkpoint-") as folder:
            from_ranks(list(random_tensors(rng)), folder, size)
    print(f"{CASES} sets of tensors were read in both directions")


main()
