"""Model files with flipped bytes are imported, or refused with one line: no exception, no signal, no hang."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import DimRange, ImportOptions
from tflite_files import Tensor, write

MOST_SECONDS = 60  # of one import; far beyond what any takes
FLIPS = 120  # mutations of each file

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
GRAPHS = {
    "image": """g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,2,2] y) {
        a = Conv<pads=[1,1,1,1],strides=[2,2]>(x, w) b = Relu(a)
        y = MaxPool<kernel_shape=[2,2],strides=[2,2]>(b) }""",
    "shapes": """g (float[n,4] x, int64[1,3] i) => (float[a,b,c] y) {
        s = Shape(x) k = Constant<value_ints=[2,2]>() zero = Constant<value_ints=[0]>() n0 = Gather(s, zero)
        t = Concat<axis=0>(n0, k) r = Reshape(x, t) u = Transpose<perm=[0,2,1]>(r)
        c = Constant<value_ints=[1]>() q = Squeeze(i, zero) z = Softmax<axis=-1>(u) y = Add(z, u) }""",
    "branch": """g (float[1,4] x) => (float[1,4] y) {
        c = Constant<value = bool {1}>() h = Constant<value_floats=[0.5]>()
        y = If (c) <then_branch = t () => (float[1,4] a) { a = Mul(x, h) },
                    else_branch = e () => (float[1,4] b) { b = Neg(x) }> }""",
}


def onnx_file(path: Path, name: str) -> Path:
    model = onnx.parser.parse_model(HEADER + GRAPHS[name])
    if name == "image":
        del model.graph.input[1]
        weight = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path.write_bytes(model.SerializeToString())
    return path


def tflite_file(path: Path, name: str) -> Path:
    if name == "pool":
        options: Any = schema.Pool2DOptionsT()
        options.strideH = options.strideW = options.filterHeight = options.filterWidth = 2
        image = [Tensor("x", (1, 4, 4, 2), "int8", 0.1), Tensor("y", (1, 2, 2, 2), "int8", 0.1)]
        return write(path, image, schema.BuiltinOperator.MAX_POOL_2D, options, [0], [1])
    weights = np.arange(32, dtype=np.int8).reshape(8, 4)
    bias = np.arange(8, dtype=np.int32)
    tensors = [
        Tensor("x", (1, 4), "int8", 0.1, signature=(-1, 4)),
        Tensor("w", (8, 4), "int8", 0.2, data=weights),
        Tensor("b", (8,), "int32", 0.02, data=bias),
        Tensor("y", (1, 8), "int8", 0.3, signature=(-1, 8)),
    ]
    options = schema.FullyConnectedOptionsT()
    return write(path, tensors, schema.BuiltinOperator.FULLY_CONNECTED, options, [0, 1, 2], [3])


def mutations(content: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """`count` files with one to three bytes changed; the places and values follow from the count alone."""
    choose = np.random.default_rng(7)
    for number in range(count):
        changed = bytearray(content)
        places = choose.integers(0, len(content), size=1 + number % 3)
        for index in places:
            flip = (1 << int(choose.integers(8)), 0xFF, 0x80)[number % 3]
            changed[index] ^= flip
        yield f"{number} at {sorted(map(int, places))}", bytes(changed)


def options_for(name: str, number: int) -> ImportOptions:
    """Sizes that a file with a dynamic axis needs; every other time the axis stays dynamic."""
    if name not in ("shapes", "dense"):
        return ImportOptions("m")
    segment = Segment(strategy="dynamic", min=1, max=8, multiple=1)
    if number % 2:
        segment = Segment(strategy="exact", min=3, max=3, multiple=1, size=3)
    shapes = {"x": ("n", 4)} if name == "dense" else {}
    return ImportOptions("m", shapes=shapes, dims={"n": DimRange("n", 1, 8)}, bucket={"n": segment})


def run_all(path: Path, name: str, report: int) -> None:
    """Import every mutation of the file; the last line in `report` says which one is at work."""
    content = path.read_bytes()
    counts = {"imported": 0, "refused": 0}
    for number, (place, changed) in enumerate(mutations(content, FLIPS)):
        os.write(report, f"\n{place}: ".encode())
        path.write_bytes(changed)
        signal.alarm(MOST_SECONDS)
        try:
            import_model(path, options_for(name, number))
            counts["imported"] += 1
        except KilnError as error:
            assert "\n" not in str(error)
            counts["refused"] += 1
        signal.alarm(0)
    os.write(report, f"\ndone: {counts}".encode())


@pytest.mark.parametrize("name", ["image", "shapes", "branch", "pool", "dense"])
@pytest.mark.slow
def test_flipped_bytes(tmp_path: Path, name: str) -> None:
    make = onnx_file if name in GRAPHS else tflite_file
    path = make(tmp_path / ("m.onnx" if name in GRAPHS else "m.tflite"), name)
    import_model(path, options_for(name, 0))
    report = tmp_path / "report"
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            descriptor = os.open(report, os.O_WRONLY | os.O_CREAT)
            try:
                run_all(path, name, descriptor)
                status = 0
            except BaseException as error:
                os.write(descriptor, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    last = report.read_text().splitlines()[-1]
    assert os.waitstatus_to_exitcode(status) == 0, last
    assert "'imported': 0" not in last and "'refused': 0" not in last, last
