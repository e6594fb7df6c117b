"""ONNX Runtime: all graph optimisations, sequential execution, as its performance guide recommends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import Array, Interface, Run, StreamRun

DISTRIBUTIONS = ("onnxruntime",)
SOURCES = ("onnx",)


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """Reads the file as it is."""
    return source


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """A session on the CPU provider, intra-op threads only."""
    session = _session(file, threads)
    feed = {tensor["name"]: value for tensor, value in zip(interface["inputs"], inputs, strict=True)}
    return lambda: session.run(None, feed)


def load_stream(file: Path, interface: Interface, threads: int) -> StreamRun:
    """A session as of `load`, for inputs of any size."""
    session = _session(file, threads)
    names = [tensor["name"] for tensor in interface["inputs"]]
    return lambda inputs, _dims: session.run(None, dict(zip(names, inputs, strict=True)))


def _session(file: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
