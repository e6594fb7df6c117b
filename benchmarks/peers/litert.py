"""LiteRT with XNNPACK, its default on CPUs; ONNX files go through onnx2tf, in an environment of its own.

With the key "calibration" in the interface, a .npz file of samples, TensorFlow's converter quantises the
model: LiteRT has no int8 kernels for the operators of a QDQ file.
"""

from __future__ import annotations

import os
import shutil
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
    """A .tflite as it is; an .onnx by onnx2tf, whose result takes its images as NHWC.

    Samples to calibrate with make it an int8 model, whose inputs and outputs stay what they were.
    """
    if interface["format"] == "tflite":
        return source
    python = converter()
    if not python.exists():
        raise RuntimeError(
            f"an ONNX file needs onnx2tf: python3 -m venv {CONVERTER} && "
            f"{CONVERTER}/bin/pip install -r benchmarks/requirements-onnx2tf.txt"
        )
    shapes = [f"{t['name']}:{','.join(map(str, t['shape']))}" for t in interface["inputs"]]
    program, simplifier = str(python.absolute()), str(python.absolute().with_name("onnxsim"))
    # Images to compare layouts with, which onnx2tf would fetch from the network if it did not find them here.
    images = np.random.default_rng(0).random((20, 128, 128, 3), np.float32)
    np.save(folder / "calibration_image_sample_data_20x128x128x3_float32.npy", images)
    _run([simplifier, str(source), "fixed.onnx", "--overwrite-input-shape", *shapes], folder)
    # TFLite has no error function: without -rtpo the file would call TensorFlow for it, which is not deployed
    _run([program, "-m", "onnx2tf", "-i", "fixed.onnx", "-o", ".", "-n", "-rtpo", "Erf"], folder)
    made = folder / "fixed_float32.tflite"
    if "calibration" in interface:
        made = folder / "fixed_int8.tflite"
        quantiser = Path(__file__).with_name("litert_quantise.py")
        _run([program, str(quantiser), ".", interface["calibration"], made.name], folder)
    for leftover in set(folder.iterdir()) - {made}:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return made


def converter() -> Path:
    """The interpreter of onnx2tf's environment."""
    return Path(os.environ.get("KILN_BENCH_ONNX2TF", CONVERTER)) / "bin/python"


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise RuntimeError("onnx2tf or TensorFlow cannot convert it:")


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """An interpreter; a run sets the inputs, invokes, and takes the outputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file), num_threads=threads)
    interpreter.allocate_tensors()
    # in an order of its own, under names such as serving_default_input_ids:0
    expected = {
        detail["name"].removeprefix("serving_default_").partition(":")[0]: detail
        for detail in interpreter.get_input_details()
    }
    given = []
    for tensor, value, reference in zip(interface["inputs"], inputs, list(expected.values()), strict=True):
        detail = expected.get(tensor["name"], reference)
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
