"""Reads what libmuster's programs have saved: snapshots, and sharded checkpoints, as numpy arrays (docs/snapshots.md).

>>> found = muster.snapshot.load("snapshots")
>>> found.step, found.values["epoch"], found.tensors["embedding"].shape
(1200, 3, (65, 384))

Everything is checked against its checksums. What is damaged is never loaded: the next older snapshot is taken, and `note` says so.
bfloat16 has no type in numpy: it comes as ml_dtypes.bfloat16 where that package is installed, else as float32 with the same values.
"""

import ctypes
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, Union

from ._library import MusterCorrupt, MusterError, MusterNotFound, check, library

if TYPE_CHECKING:
    import numpy

__all__ = ["Snapshot", "find", "load"]

_DIMS_MAX, _NOTE_MAX, _STEP_MAX = 8, 1024, (1 << 63) - 1
# Numbers of enum muster_type (include/muster/types.h), by name, and the names in safetensors files.
_TYPES = {"int8": 0, "uint8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "bfloat16": 6, "float32": 7, "float64": 8,
          "uint16": 9, "uint32": 10, "uint64": 11}
_SAFETENSORS = {"I8": "int8", "U8": "uint8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
                "F32": "float32", "F64": "float64", "U16": "uint16", "U32": "uint32", "U64": "uint64"}

Value = Union[int, float, str]
_Described = Tuple[str, List[int]]  # type and shape of a tensor


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("dim_count", ctypes.c_uint32),
                ("shape", ctypes.c_uint64 * _DIMS_MAX), ("data", ctypes.c_void_p)]


class _State(ctypes.Structure):
    """struct muster_snapshot_state."""

    _fields_ = [("size", ctypes.c_size_t), ("tensors", ctypes.POINTER(_Tensor)), ("tensor_bytes", ctypes.c_size_t),
                ("tensor_count", ctypes.c_size_t), ("values", ctypes.c_void_p), ("value_count", ctypes.c_size_t)]


class _CheckpointState(ctypes.Structure):
    """struct muster_checkpoint_state."""

    _fields_ = [("size", ctypes.c_size_t), ("tensors", ctypes.POINTER(_Tensor)), ("tensor_bytes", ctypes.c_size_t),
                ("tensor_count", ctypes.c_size_t), ("chunks", ctypes.c_void_p), ("chunk_bytes", ctypes.c_size_t),
                ("chunk_count", ctypes.c_size_t), ("values", ctypes.c_void_p), ("value_count", ctypes.c_size_t)]


class _Chunk(ctypes.Structure):
    _fields_ = [("tensor", ctypes.c_size_t), ("first", ctypes.c_uint64), ("count", ctypes.c_uint64), ("data", ctypes.c_void_p)]


class _LoadOptions(ctypes.Structure):
    """struct muster_checkpoint_load_options."""

    _fields_ = [("size", ctypes.c_size_t), ("step_max", ctypes.c_int64), ("visible_ms", ctypes.c_int64), ("renames", ctypes.c_void_p),
                ("rename_count", ctypes.c_size_t), ("progress", ctypes.c_void_p), ("progress_context", ctypes.c_void_p)]


class _FoundSnapshot(ctypes.Structure):
    _fields_ = [("step", ctypes.c_int64), ("id", ctypes.c_uint64), ("passed_over", ctypes.c_uint32), ("note", ctypes.c_char * _NOTE_MAX)]


class _FoundCheckpoint(ctypes.Structure):
    _fields_ = [("step", ctypes.c_int64), ("id", ctypes.c_uint64), ("part_count", ctypes.c_uint32), ("passed_over", ctypes.c_uint32),
                ("note", ctypes.c_char * _NOTE_MAX)]


@dataclass
class Snapshot:
    """What was found. kind: "snapshot" (one file) or "checkpoint" (a part of each rank). id: the checksum of the content, or of the save.
    values: the small values of the program's state. note: a sentence for each newer one that cannot be used, or "". tensors: by name;
    empty after find()."""

    folder: str
    kind: str
    step: int
    id: str
    values: Dict[str, Value]
    shapes: Dict[str, Tuple[int, ...]]
    note: str = ""
    tensors: "Dict[str, numpy.ndarray[Any, Any]]" = field(default_factory=dict, repr=False)


def _read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as why:
        raise MusterCorrupt(f"{path}: {why}", -13) from None


def _find_one(kind: str, folder: str, step_max: int) -> Any:
    found: Any = _FoundSnapshot() if kind == "snapshot" else _FoundCheckpoint()
    function = getattr(library, f"muster_{kind}_find_sized")
    function.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t]
    try:
        check(function(os.fsencode(folder), step_max, ctypes.byref(found), ctypes.sizeof(found)))
    except MusterNotFound:
        return None
    return found


def _describe_snapshot(folder: str, step: int) -> Tuple[Dict[str, Value], Dict[str, _Described]]:
    manifest = _read_json(os.path.join(folder, f"step-{step}.json"))
    path = os.path.join(folder, manifest["file"])
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError) as why:
        raise MusterCorrupt(f"{path}: {why}", -13) from None
    tensors = {name: (_SAFETENSORS[entry["dtype"]], entry["shape"]) for name, entry in header.items() if name in manifest["tensors"]}
    return manifest["values"], tensors


def _describe_checkpoint(folder: str, step: int) -> Tuple[Dict[str, Value], Dict[str, _Described]]:
    record = _read_json(os.path.join(folder, f"checkpoint-{step}.json"))
    described = _read_json(os.path.join(folder, f"checkpoint-{step}-{record['token']}.json"))
    tensors, kind = {}, ""
    for name, written, shape, *_ in described["tensors"]:
        kind = written or kind  # an empty type is that of the tensor before
        tensors[name] = (kind, shape)
    return described["values"], tensors


def _choose(folder: str, step: Optional[int]) -> Tuple[str, Any]:
    step_max = _STEP_MAX if step is None else step
    damage: Optional[MusterError] = None
    chosen: Optional[Tuple[str, Any]] = None
    for kind in ("snapshot", "checkpoint"):
        try:
            found = _find_one(kind, folder, step_max)
        except MusterCorrupt as why:
            damage = damage or why
            continue
        if found is not None and (chosen is None or found.step > chosen[1].step):
            chosen = (kind, found)
    if chosen is not None and (step is None or chosen[1].step == step):
        return chosen
    if damage is not None:
        raise damage
    raise MusterNotFound(f"{folder}: there is no snapshot and no checkpoint" + ("" if step is None else f" of step {step} that is whole"), -10)


def find(folder: str, step: Optional[int] = None) -> Snapshot:
    """The newest whole snapshot or checkpoint of the folder, or that of `step`, without its tensors.

    A snapshot is read to be sure of it, of a checkpoint the record alone. MusterNotFound: there is none. MusterCorrupt: none is whole.
    """
    kind, found = _choose(folder, step)
    values, tensors = (_describe_snapshot if kind == "snapshot" else _describe_checkpoint)(folder, found.step)
    shapes = {name: tuple(shape) for name, (_, shape) in tensors.items()}
    return Snapshot(folder, kind, found.step, f"{found.id:016x}", values, shapes, found.note.decode("utf-8", "replace"))


def _arrays(described: Dict[str, _Described]) -> "Dict[str, numpy.ndarray[Any, Any]]":
    import numpy

    return {name: numpy.empty(shape, "uint16" if kind == "bfloat16" else kind) for name, (kind, shape) in described.items()}


def _tensors(described: Dict[str, _Described], arrays: Any) -> Any:
    listed = (_Tensor * max(len(described), 1))()
    for tensor, (name, (kind, shape)) in zip(listed, described.items()):
        tensor.name, tensor.type, tensor.dim_count, tensor.data = name.encode(), _TYPES[kind], len(shape), arrays[name].ctypes.data
        tensor.shape[: len(shape)] = shape
    return listed


def _readable(kind: str, array: Any) -> Any:
    if kind != "bfloat16":
        return array
    import numpy

    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return (array.astype(numpy.uint32) << 16).view(numpy.float32)
    return array.view(ml_dtypes.bfloat16)


def _load_snapshot(folder: str, found: Any, described: Dict[str, _Described], arrays: Any) -> None:
    listed = _tensors(described, arrays)
    state = _State(ctypes.sizeof(_State), listed, ctypes.sizeof(_Tensor), len(described), None, 0)
    library.muster_snapshot_load.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(_State)]
    check(library.muster_snapshot_load(os.fsencode(folder), found.step, found.id, ctypes.byref(state)))


def _load_checkpoint(folder: str, found: Any, described: Dict[str, _Described], arrays: Any) -> None:
    """By a group of this process alone: a checkpoint is loaded by any number of ranks."""
    import tempfile

    listed = _tensors(described, arrays)
    state = _CheckpointState(ctypes.sizeof(_CheckpointState), listed, ctypes.sizeof(_Tensor), len(described), None, ctypes.sizeof(_Chunk), 0,
                             None, 0)
    options = _LoadOptions(ctypes.sizeof(_LoadOptions), found.step, 0, None, 0, None, None)
    group, loaded = ctypes.c_void_p(), _FoundCheckpoint()
    library.muster_group_create_file.argtypes = [ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]
    library.muster_checkpoint_load_newest_sized.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                                                            ctypes.c_size_t]
    library.muster_group_free.argtypes, library.muster_group_free.restype = [ctypes.c_void_p], None
    with tempfile.TemporaryDirectory(prefix="muster-") as meeting:
        check(library.muster_group_create_file(os.fsencode(os.path.join(meeting, "store")), 0, 1, None, ctypes.byref(group)))
        try:
            check(library.muster_checkpoint_load_newest_sized(group, os.fsencode(folder), ctypes.byref(state), ctypes.byref(options),
                                                              ctypes.byref(loaded), ctypes.sizeof(loaded)))
        finally:
            library.muster_group_free(group)
    if loaded.id != found.id:
        raise MusterCorrupt(f"{folder}: checkpoint {found.step} cannot be used: {loaded.note.decode('utf-8', 'replace').strip()}", -13)


def load(folder: str, step: Optional[int] = None, names: Optional[Iterable[str]] = None) -> Snapshot:
    """The newest whole snapshot or checkpoint of the folder, or that of `step`, with its tensors as numpy arrays.

    names: these tensors alone. MusterNotFound: there is none, or no such tensor. MusterCorrupt: none is whole. Needs numpy.
    """
    kind, found = _choose(folder, step)
    notes = [found.note.decode("utf-8", "replace")]
    while True:
        values, all_tensors = (_describe_snapshot if kind == "snapshot" else _describe_checkpoint)(folder, found.step)
        wanted = list(all_tensors) if names is None else list(names)
        missing = [name for name in wanted if name not in all_tensors]
        if missing:
            raise MusterNotFound(f"{folder}: {kind} {found.step} has no tensor {missing[0]!r}", -10)
        described = {name: all_tensors[name] for name in wanted}
        arrays = _arrays(described)
        try:
            (_load_snapshot if kind == "snapshot" else _load_checkpoint)(folder, found, described, arrays)
            break
        except MusterCorrupt as why:  # of a checkpoint, damage shows here: the next older one
            if step is not None or kind == "snapshot" or found.step == 0:
                raise
            notes.append(str(why))
            older = _find_one(kind, folder, found.step - 1)
            if older is None:
                raise
            found = older
    tensors = {name: _readable(described[name][0], array) for name, array in arrays.items()}
    shapes = {name: tuple(shape) for name, (_, shape) in all_tensors.items()}
    note = "\n".join(line.strip() for line in notes if line.strip())
    return Snapshot(folder, kind, found.step, f"{found.id:016x}", values, shapes, note, tensors)
