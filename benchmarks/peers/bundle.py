"""Kiln itself: the shared library of a bundle, called through ctypes as the peers are called from Python."""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

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
    )


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """A bundle needs no conversion; `file` of `load` is its folder."""
    return source


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """An open session and the typed entry point `<model>_run`, with a pool when there are two threads."""
    manifest = json.loads((file / "manifest.json").read_text())
    name = manifest["name"]
    library = ctypes.CDLL(str(file / "lib" / f"lib{name}.so"))
    arena_bytes = max(bucket["arena_bytes"] for bucket in manifest["buckets"])
    arena = mmap.mmap(-1, max(arena_bytes, 1))  # a page's alignment is more than any model asks for
    session = ctypes.create_string_buffer(SESSION_BYTES)
    pool = (ctypes.c_uint64 * (POOL_BYTES // 8))()
    config = _Config(arena=ctypes.addressof(ctypes.c_char.from_buffer(arena)), arena_bytes=arena_bytes)
    if threads > 1:
        _check(library, library.kiln_pool_open(pool, ctypes.c_int32(threads)), "kiln_pool_open")
        config.pool = ctypes.addressof(pool)
    if manifest["params"]["storage"] == "file":
        params, size = ctypes.c_void_p(), ctypes.c_size_t()
        path = str(file / "params.bin").encode()
        _check(
            library,
            library.kiln_map_params(path, ctypes.byref(params), ctypes.byref(size)),
            "kiln_map_params",
        )
        config.params, config.params_bytes = params, size
    model = ctypes.byref(ctypes.c_char.in_dll(library, name))
    _check(library, library.kiln_open(session, model, ctypes.byref(config)), "kiln_open")

    outputs = [np.empty(tensor["shape"], tensor["dtype"]) for tensor in interface["outputs"]]
    function = getattr(library, f"{name}_run")
    tensors = [np.ascontiguousarray(value) for value in inputs]
    pointers = [ctypes.c_void_p(value.ctypes.data) for value in (*tensors, *outputs)]
    keep = (library, arena, pool, config, tensors)

    def run() -> list[Any]:
        status = function(session, *pointers)
        if status:
            _check(keep[0], status, f"{name}_run")
        return outputs

    return run


def _check(library: Any, status: int, what: str) -> None:
    if status:
        library.kiln_status_name.restype = ctypes.c_char_p
        raise RuntimeError(f"{what}: {library.kiln_status_name(status).decode()}")
