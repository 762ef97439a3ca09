"""The job's store, over muster/store.h."""

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Union

from ._library import MusterConnectionError, check, library

Data = Union[bytes, bytearray, memoryview, str]
_DEFAULT = -1
_Handle = ctypes.c_void_p


class _Value(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(ctypes.c_uint8)), ("len", ctypes.c_size_t)]


class _Options(ctypes.Structure):
    """struct muster_store_options."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("host", ctypes.c_char_p), ("port", ctypes.c_uint16), ("world_size", ctypes.c_uint32),
        ("is_host", ctypes.c_bool), ("bind_host", ctypes.c_char_p), ("wait_for_workers", ctypes.c_bool), ("timeout_ms", ctypes.c_int64),
    ]


_Keys = ctypes.POINTER(ctypes.c_char_p)
_int64, _size = ctypes.c_int64, ctypes.c_size_t
_Out = ctypes.POINTER(_Value)
_SIGNATURES: Dict[str, List[Any]] = {
    "open_tcp": [ctypes.POINTER(_Options), ctypes.POINTER(_Handle)],
    "open_file": [ctypes.c_char_p, ctypes.c_uint32, _int64, ctypes.POINTER(_Handle)],
    "open_env": [_int64, ctypes.POINTER(_Handle)],
    "prefix": [_Handle, ctypes.c_char_p, ctypes.POINTER(_Handle)],
    "set": [_Handle, ctypes.c_char_p, ctypes.c_char_p, _size],
    "get": [_Handle, ctypes.c_char_p, _int64, _Out],
    "add": [_Handle, ctypes.c_char_p, _int64, ctypes.POINTER(_int64)],
    "append": [_Handle, ctypes.c_char_p, ctypes.c_char_p, _size],
    "compare_set": [_Handle, ctypes.c_char_p, ctypes.c_char_p, _size, ctypes.c_char_p, _size, _Out],
    "delete": [_Handle, ctypes.c_char_p, ctypes.POINTER(ctypes.c_bool)],
    "check": [_Handle, _Keys, _size, ctypes.POINTER(ctypes.c_bool)],
    "wait": [_Handle, _Keys, _size, _int64],
    "num_keys": [_Handle, ctypes.POINTER(_int64)],
    "barrier": [_Handle, ctypes.c_char_p, ctypes.c_uint32, _int64],
}


def _call(name: str, *arguments: Any) -> None:
    function = getattr(library, "muster_store_" + name)
    if function.argtypes is None:
        function.argtypes = _SIGNATURES[name]
    check(function(*arguments))


def _bytes(value: Data) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _key(key: str) -> bytes:
    encoded = key.encode()
    if b"\0" in encoded:
        raise ValueError(f"a key with a zero byte: {key!r}")
    return encoded


def _keys(keys: Union[str, Sequence[str]]) -> Any:
    encoded = [_key(key) for key in ([keys] if isinstance(keys, str) else keys)]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _ms(timeout_s: Optional[float]) -> int:
    return _DEFAULT if timeout_s is None else max(0, int(timeout_s * 1000))


def _taken(value: _Value) -> bytes:
    try:
        return ctypes.string_at(value.data, value.len)
    finally:
        library.muster_store_value_free(ctypes.byref(value))


class Store:
    """A small map from keys (texts) to bytes, through which the processes of a job find and await each other.

    Open it with Store.open_env() in a worker, or with Store.open_tcp(). It speaks the protocol of PyTorch's TCPStore: server and other
    clients may be Muster's or PyTorch's. Values are bytes; a str that is given is encoded as UTF-8. Time-outs are seconds; None is the
    store's own. Several threads may use a store, and take turns. It is a context manager: leaving it closes the store.

    >>> with muster.Store.open_env() as store:
    ...     if os.environ["RANK"] == "0":
    ...         store.set("address", "10.0.0.1:7")
    ...     address = store.get("address")
    ...     store.barrier("ready", int(os.environ["WORLD_SIZE"]))

    Failures: MusterTimeout (a TimeoutError), MusterConnectionError (a ConnectionError), MusterInvalid (a ValueError), else MusterError.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @classmethod
    def open_env(cls, timeout_s: Optional[float] = None) -> "Store":
        """The job's store, as the launcher's variables say (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE). If no launcher serves it, rank 0
        does, and waits for all ranks. timeout_s: the store's own time-out from now on, 300 s where None."""
        handle = _Handle()
        _call("open_env", _ms(timeout_s), ctypes.byref(handle))
        return cls(handle)

    @classmethod
    def open_tcp(
        cls,
        host: str,
        port: int,
        *,
        world_size: int = 0,
        is_host: bool = False,
        bind_host: Optional[str] = None,
        wait_for_workers: bool = True,
        timeout_s: float = 300,
    ) -> "Store":
        """Connects to the store at host and port, and tries again while nobody listens, until the time-out.

        is_host: serve it from a thread of this process; with port 0 the kernel chooses, and `port` tells. bind_host: only on this address.
        world_size: count this process in, as PyTorch's clients do; a host waits until that many are, unless wait_for_workers is False.
        """
        if not 0 <= port <= 65535:
            raise ValueError(f"no port: {port}")
        options = _Options(
            ctypes.sizeof(_Options), host.encode(), port, world_size, is_host, bind_host.encode() if bind_host else None, wait_for_workers,
            _ms(timeout_s),
        )
        handle = _Handle()
        _call("open_tcp", ctypes.byref(options), ctypes.byref(handle))
        return cls(handle)

    @classmethod
    def open_file(cls, path: str, world_size: int = 0, timeout_s: Optional[float] = None) -> "Store":
        """The store whose file is `path`, in the format of PyTorch's FileStore. The last of world_size processes removes it; 0: nobody."""
        handle = _Handle()
        _call("open_file", path.encode(), world_size, _ms(timeout_s), ctypes.byref(handle))
        return cls(handle)

    def prefix(self, prefix: str) -> "Store":
        """A view in which every key has "`prefix`/" in front. It shares the connection, and is closed by itself, in any order."""
        handle = _Handle()
        _call("prefix", self._open(), _key(prefix), ctypes.byref(handle))
        return Store(handle)

    def _open(self) -> Any:
        if self._handle is None:
            raise MusterConnectionError("the store is closed", -8)
        return self._handle

    def close(self) -> None:
        """Ends this handle; the connection or the served store ends with the last one. A second close does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            library.muster_store_close.restype = None
            library.muster_store_close(handle)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is ending
            pass

    @property
    def port(self) -> int:
        """The port of the server, 0 for a file."""
        library.muster_store_port.restype = ctypes.c_uint16
        return int(library.muster_store_port(self._open()))

    def set(self, key: str, value: Data) -> None:
        """key = value. Wakes whoever waits for the key."""
        data = _bytes(value)
        _call("set", self._open(), _key(key), data, len(data))

    def get(self, key: str, timeout_s: Optional[float] = None) -> bytes:
        """Waits until the key exists, and gives its value."""
        value = _Value()
        _call("get", self._open(), _key(key), _ms(timeout_s), ctypes.byref(value))
        return _taken(value)

    def add(self, key: str, delta: int = 1) -> int:
        """Adds to the decimal number at the key (0 where it is absent), and gives the sum."""
        total = ctypes.c_int64()
        _call("add", self._open(), _key(key), delta, ctypes.byref(total))
        return total.value

    def append(self, key: str, value: Data) -> None:
        """Appends to the value, or creates it."""
        data = _bytes(value)
        _call("append", self._open(), _key(key), data, len(data))

    def compare_set(self, key: str, expected: Data, desired: Data) -> bytes:
        """Stores `desired` if the value is `expected`, or if the key is absent and `expected` is empty. Gives the value that is there now."""
        before, after = _bytes(expected), _bytes(desired)
        value = _Value()
        _call("compare_set", self._open(), _key(key), before, len(before), after, len(after), ctypes.byref(value))
        return _taken(value)

    def delete(self, key: str) -> bool:
        """Removes the key. Was it there?"""
        deleted = ctypes.c_bool()
        _call("delete", self._open(), _key(key), ctypes.byref(deleted))
        return deleted.value

    def check(self, keys: Union[str, Sequence[str]]) -> bool:
        """Do all these keys exist?"""
        names, there = _keys(keys), ctypes.c_bool()
        _call("check", self._open(), names, len(names), ctypes.byref(there))
        return there.value

    def wait(self, keys: Union[str, Sequence[str]], timeout_s: Optional[float] = None) -> None:
        """Waits until all these keys exist."""
        names = _keys(keys)
        _call("wait", self._open(), names, len(names), _ms(timeout_s))

    def num_keys(self) -> int:
        """How many keys the whole store has, its own included."""
        count = ctypes.c_int64()
        _call("num_keys", self._open(), ctypes.byref(count))
        return count.value

    def barrier(self, key: str, world_size: int, timeout_s: Optional[float] = None) -> None:
        """Waits until world_size calls have been made for this key. The count stays: take a new key for each barrier."""
        _call("barrier", self._open(), _key(key), world_size, _ms(timeout_s))
