"""LiteRT with XNNPACK, its default on CPUs. An ONNX file goes through onnx2tf, which has its own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

DISTRIBUTIONS = ("ai-edge-litert",)
SOURCES = ("onnx", "tflite")
CONVERTER = Path("build/bench/onnx2tf")


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """A .tflite as it is; an .onnx by onnx2tf, whose result takes its images as NHWC."""
    if interface["format"] == "tflite":
        return source
    python = Path(os.environ.get("KILN_BENCH_ONNX2TF", CONVERTER)) / "bin/python"
    if not python.exists():
        raise RuntimeError(
            f"an ONNX file needs onnx2tf: python3 -m venv {CONVERTER} && "
            f"{CONVERTER}/bin/pip install -r benchmarks/requirements-onnx2tf.txt"
        )
    made = folder / f"{source.stem}_float32.tflite"
    # -ois fixes a batch that the file leaves open; -n keeps the converter quiet
    shapes = [f"{t['name']}:{','.join(map(str, t['shape']))}" for t in interface["inputs"]]
    command = [str(python), "-m", "onnx2tf", "-i", str(source), "-o", str(folder), "-ois", *shapes, "-n"]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0 or not made.is_file():
        raise RuntimeError(f"onnx2tf refuses {source}, exit status {done.returncode}")
    return made


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """An interpreter; a run sets the inputs, invokes, and takes the outputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file), num_threads=threads)
    interpreter.allocate_tensors()
    wanted = interpreter.get_input_details()
    given = []
    for detail, value in zip(wanted, inputs, strict=True):
        if tuple(detail["shape"]) != value.shape:
            value = np.moveaxis(value, 1, -1)  # the converted model is NHWC
        given.append((detail["index"], np.ascontiguousarray(value)))
    indices = [detail["index"] for detail in interpreter.get_output_details()]

    def run() -> list[Any]:
        for index, value in given:
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in indices]

    return run
