"""Kiln itself: the shared library of a bundle, called through ctypes as the peers are called from Python."""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run, StreamRun

DISTRIBUTIONS: Sequence[str] = ()
SOURCES = ("onnx", "tflite")
SESSION_BYTES = 4096  # more than sizeof(kiln_session)
POOL_BYTES = 192 * 8  # kiln_pool, as kiln.h has it


class _Config(ctypes.Structure):
    """kiln_config of kiln.h."""

    _fields_ = (
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_size_t),
        ("params", ctypes.c_void_p),
        ("params_bytes", ctypes.c_size_t),
        ("pool", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("on_step", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
        ("gpu", ctypes.c_int32),
    )


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """A bundle needs no conversion; `file` of `load` is its folder."""
    return source


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """An open session and the typed entry point `<model>_run`, with a pool when there are two threads."""
    bundle = _Bundle(file, threads)
    outputs = [np.empty(tensor["shape"], tensor["dtype"]) for tensor in interface["outputs"]]
    tensors = [np.ascontiguousarray(value) for value in inputs]
    dims = interface.get("dims") or {}
    arguments: list[Any] = [ctypes.c_int64(dims[name]) for name in bundle.dims]
    arguments += [ctypes.c_void_p(value.ctypes.data) for value in (*tensors, *outputs)]
    keep = tensors

    def run() -> list[Any]:
        bundle.run(arguments)
        return outputs if keep else []

    return run


def load_stream(file: Path, interface: Interface, threads: int) -> StreamRun:
    """The same entry point, its sizes given anew each time; outputs go into buffers of the greatest size."""
    bundle = _Bundle(file, threads)
    outputs = [
        np.empty(port["bytes"], np.uint8)
        for port in json.loads((file / "manifest.json").read_text())["outputs"]
    ]
    pointers = [ctypes.c_void_p(value.ctypes.data) for value in outputs]

    def run(inputs: Sequence[Array], dims: dict[str, int]) -> list[Any]:
        sizes = [ctypes.c_int64(dims[name]) for name in bundle.dims]
        given = [ctypes.c_void_p(value.ctypes.data) for value in inputs]
        bundle.run([*sizes, *given, *pointers])
        return outputs

    return run


class _Bundle:
    """The library of a bundle, and a session that is open; `dims`: the sizes that its entry point takes."""

    def __init__(self, file: Path, threads: int) -> None:
        manifest = json.loads((file / "manifest.json").read_text())
        self.name = manifest["name"]
        self.dims = [dim["name"] for dim in manifest.get("dims", []) if dim["min"] != dim["max"]]
        self.output_bytes = [port["bytes"] for port in manifest["outputs"]]
        self.library = library = ctypes.CDLL(str(file / "lib" / f"lib{self.name}.so"))
        arena_bytes = max(bucket["arena_bytes"] for bucket in manifest["buckets"])
        self.arena = mmap.mmap(-1, max(arena_bytes, 1))  # a page's alignment is more than any model asks for
        self.session = ctypes.create_string_buffer(SESSION_BYTES)
        self.pool = (ctypes.c_uint64 * (POOL_BYTES // 8))()
        arena = ctypes.addressof(ctypes.c_char.from_buffer(self.arena))
        self.config = config = _Config(arena=arena, arena_bytes=arena_bytes)
        if threads > 1:
            _check(library, library.kiln_pool_open(self.pool, ctypes.c_int32(threads)), "kiln_pool_open")
            config.pool = ctypes.addressof(self.pool)
        if manifest["params"]["storage"] == "file":
            params, size = ctypes.c_void_p(), ctypes.c_size_t()
            path = str(file / "params.bin").encode()
            _check(
                library,
                library.kiln_map_params(path, ctypes.byref(params), ctypes.byref(size)),
                "kiln_map_params",
            )
            config.params, config.params_bytes = params, size
        model = ctypes.byref(ctypes.c_char.in_dll(library, self.name))
        opened = library.kiln_open(self.session, model, ctypes.byref(config))
        _check(library, opened, "kiln_open", self.session)
        self._function = getattr(library, f"{self.name}_run")

    def run(self, arguments: Sequence[Any]) -> None:
        """Call `<model>_run` with its sizes and tensors."""
        status = self._function(self.session, *arguments)
        if status:
            _check(self.library, status, f"{self.name}_run", self.session)


def _check(library: Any, status: int, what: str, session: Any = None) -> None:
    """Raise RuntimeError for a status other than 0, with the session's own text where there is a session."""
    if not status:
        return
    library.kiln_status_name.restype = ctypes.c_char_p
    message = f"{what}: {library.kiln_status_name(status).decode()}"
    if session is not None:
        text = ctypes.create_string_buffer(400)
        library.kiln_error.restype = ctypes.c_void_p
        library.kiln_detail_text(
            ctypes.c_void_p(library.kiln_error(session)), text, ctypes.c_size_t(len(text))
        )
        message += f": {text.value.decode(errors='replace')}"
    raise RuntimeError(message)
