"""The contenders, one module each. To add one: a module, its packages in requirements.txt, its name below.

A module has
  DISTRIBUTIONS  names on PyPI, the first of which is the one whose version is printed
  SOURCES        formats of model files it can be given: "onnx", "tflite"
  convert        (source, interface, folder) -> the file to load; called once, outside any measurement
  load           (file, interface, inputs, threads) -> a function that runs once and returns the outputs
and, where it can take inputs of changing sizes,
  load_stream    (file, interface, threads) -> a function (inputs, dims) that runs once

`interface` is the golden vector's description of inputs and outputs (name, dtype, shape), with the key
"format" of the source. `inputs` are arrays in the layout of the source file. What a framework wants prepared
(another layout, its own tensor type) is prepared by `load`, outside the time that is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Interface = dict[str, Any]
Run = Callable[[], Sequence[Any]]
StreamRun = Callable[[Sequence[Array], dict[str, int]], Sequence[Any]]

# Peers that take inputs of other sizes without being loaded again: they have `load_stream`.
STREAMING = ("onnxruntime", "openvino")
PEERS = ("onnxruntime", "openvino", "litert", "ncnn", "mnn", "executorch", "iree")
# Peers with an environment of their own: peer → folder in build/bench, and requirements-<folder>.txt.
ENVIRONMENTS = {"executorch": "executorch"}
KILN = "bundle"


class Peer(Protocol):
    """The interface of every module of this folder."""

    DISTRIBUTIONS: Sequence[str]
    SOURCES: Sequence[str]

    def convert(self, source: Path, interface: Interface, folder: Path) -> Path: ...

    def load(self, file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run: ...


def load_peer(name: str) -> Peer:
    """The module of the peer `name`; it imports its framework only inside `convert` and `load`."""
    return cast(Peer, importlib.import_module(f"benchmarks.peers.{name}"))
