"""ncnn: converted by pnnx, as its wiki recommends; float32 arithmetic and storage."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Array, Interface, Run

DISTRIBUTIONS = ("ncnn", "pnnx")
SOURCES = ("onnx",)
SHORT = {"float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32", "int8": "i8", "uint8": "u8"}


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """The .param of the pair .param and .bin. pnnx writes next to its input, so it gets a copy."""
    spec = importlib.util.find_spec("pnnx")  # importing it would need PyTorch; the program in it does not
    if spec is None or spec.origin is None:
        raise RuntimeError("pnnx is not installed")
    program = Path(spec.origin).with_name("pnnx")
    copy = folder / "model.onnx"
    shutil.copyfile(source, copy)
    shapes = [
        "[" + ",".join(map(str, tensor["shape"])) + "]" + SHORT[tensor["dtype"]]
        for tensor in interface["inputs"]
    ]
    command = [str(program), copy.name, "inputshape=" + ",".join(shapes), "fp16=0"]
    done = subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False)
    param_file = folder / "model.ncnn.param"
    if not param_file.is_file():
        raise RuntimeError(f"pnnx refuses it, exit status {done.returncode}:")
    for leftover in {*folder.glob("model.*"), *folder.glob("model_*")} - {
        param_file,
        param_file.with_suffix(".bin"),
    }:
        os.unlink(leftover)
    return param_file


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """A net; every run makes an extractor, which is how ncnn is used. Matrices have no batch axis."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_vulkan_compute = False
    net.opt.lightmode = True
    net.opt.use_bf16_storage = False
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    if net.load_param(str(file)) or net.load_model(str(file.with_suffix(".bin"))):
        raise RuntimeError("ncnn cannot load what pnnx made of it:")
    names, outputs = net.input_names(), net.output_names()
    arrays = [np.ascontiguousarray(value[0]) for value in inputs]  # ncnn.Mat does not keep them alive
    matrices = list(zip(names, [ncnn.Mat(value) for value in arrays], arrays, strict=True))

    def run() -> list[Any]:
        extractor = net.create_extractor()
        for name, matrix, _ in matrices:
            extractor.input(name, matrix)
        return [extractor.extract(name)[1] for name in outputs]

    return run
