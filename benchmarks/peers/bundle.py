"""Kiln itself: a bundle in this process, called as the peers are called from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kiln
import numpy as np

from benchmarks.peers import Array, Interface, Run, StreamRun

DISTRIBUTIONS: Sequence[str] = ()
SOURCES = ("onnx", "tflite")


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """A bundle needs no conversion; `file` of `load` is its folder."""
    return source


def load(
    file: Path, interface: Interface, inputs: Sequence[Array], threads: int, variant: str | None = None
) -> Run:
    """A run bound to the inputs' memory, of `variant` if given; returns outputs in the model's order."""
    network = kiln.load(file, threads, variant=variant)
    names = [info.name for info in network.inputs]
    arrays = [np.ascontiguousarray(value) for value in inputs]
    bound = network.bind(dict(zip(names, arrays, strict=True)))
    outputs = list(bound.outputs.values())

    def run() -> list[Any]:
        bound.run()
        return outputs

    return run


def load_stream(file: Path, interface: Interface, threads: int) -> StreamRun:
    """A call whose inputs have other sizes each time; outputs are new arrays."""
    network = kiln.load(file, threads)

    def run(inputs: Sequence[Array], dims: dict[str, int]) -> list[Any]:
        result = network(*inputs)
        return list(result) if isinstance(result, tuple) else [result]

    return run
