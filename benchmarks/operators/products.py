"""Matmuls, attention, recurrent layers, and operators in float16."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx

from benchmarks.operators.case import Case, sizes_text


def products() -> Iterator[Case]:
    """Yield the cases."""
    for rows, depth, columns in [
        (1, 512, 1000), (1, 2048, 513), (1, 4096, 17), (17, 256, 256), (3, 1000, 333), (200, 300, 1),
        (1000, 64, 3), (500, 3, 500), (128, 17, 130), (64, 8192, 10), (7, 768, 3072), (33, 100, 1001),
        (256, 1, 256), (256, 2, 300), (100, 8, 100), (1000, 300, 5), (1000, 128, 17), (1, 300, 4000),
        (5000, 4, 1), (2, 64, 64), (1, 1000, 1), (24, 36, 65), (400, 255, 6),
    ]:  # fmt: skip
        case = Case(f"gemm {sizes_text(rows, depth, columns)}")
        operands = case.input([rows, depth]), case.weight(depth, columns)
        case.node("Add", case.node("MatMul", *operands), case.weight(columns))
        yield case
    for rows, depth, columns in [(1, 700, 300), (50, 260, 130), (300, 64, 300), (4, 1000, 1000)]:
        for left, right in [(0, 1), (1, 0), (1, 1)]:
            case = Case(f"gemm_run {sizes_text(rows, depth, columns)} transposed {left}{right}")
            a = case.input([depth, rows] if left else [rows, depth])
            b = case.input([columns, depth] if right else [depth, columns])
            case.node("Gemm", a, b, transA=left, transB=right)
            yield case
    for batch, rows, depth, columns in [
        ([8], 64, 64, 64), ([12], 197, 64, 197), ([3, 4], 10, 33, 17), ([40], 1, 64, 100),
        ([40], 100, 50, 1), ([5], 3, 3, 2000), ([16], 31, 100, 77), ([2], 500, 80, 500),
        ([64], 8, 16, 8), ([32], 20, 5, 20), ([16, 4], 49, 32, 49), ([100], 4, 4, 4), ([2], 1000, 3, 3),
        ([6], 1, 200, 200), ([10], 50, 50, 7), ([12], 64, 64, 1),
    ]:  # fmt: skip
        case = Case(f"matmul_run {sizes_text(*batch, rows, depth, columns)}")
        case.node("MatMul", case.input([*batch, rows, depth]), case.input([*batch, depth, columns]))
        yield case
    case = Case("matmul_run 8x100x64x100 one operand for all")
    case.node("MatMul", case.input([8, 100, 64]), case.input([64, 100]))
    yield case
    case = Case("matmul_run 300x300 by vector")
    case.node("MatMul", case.input([300, 300]), case.input([300]))
    yield case


def stored() -> Iterator[Case]:
    """Products with weights of fewer bits: a twin in float32, 16-bit floats, and levels with scales."""
    for rows, depth, columns in [
        (1, 768, 768), (1, 4096, 2048), (2, 1024, 1000), (4, 1024, 3072), (12, 768, 1024), (28, 768, 1024),
    ]:  # fmt: skip
        for kind in ("float32", "float16", "bfloat16", "int8", "int4"):
            case = Case(f"stored {kind} {sizes_text(rows, depth, columns)}")
            case.node("MatMul", case.input([rows, depth]), _stored_weight(case, kind, depth, columns))
            yield case


def _stored_weight(case: Case, kind: str, depth: int, columns: int) -> str:
    """Add weights [depth, columns] of type `kind`; return the name of their float32."""
    if kind == "float32":
        return case.weight(depth, columns)
    if kind in ("float16", "bfloat16"):
        values = (case.indices(1000, depth, columns) / 4000 - 0.125).astype("float32")
        dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
        return case.node("Cast", case.constant(values.astype(dtype)), to=onnx.TensorProto.FLOAT)
    most, block = (7, 32) if kind == "int4" else (127, depth)
    levels = case.indices(2 * most + 1, depth // block, block, columns) - most
    scales = (case.indices(50, depth // block, 1, columns) + 50).astype("float32") / (100 * 10 * most)
    whole = case.node("Cast", case.constant(levels, "int8"), to=onnx.TensorProto.FLOAT)
    product = case.node("Mul", whole, case.constant(scales))
    return case.node("Reshape", product, case.constant([depth, columns], "int64"))


def contractions() -> Iterator[Case]:
    """Yield the cases."""
    table: list[tuple[str, list[list[int]]]] = [
        ("bhid,bhjd->bhij", [[1, 4, 60, 32], [1, 4, 60, 32]]),
        ("bhid,bjhd->bhij", [[1, 4, 60, 32], [1, 70, 4, 32]]),
        ("bqhd,bkhd->bhqk", [[1, 64, 4, 32], [1, 64, 4, 32]]),
        ("nct,ncp->ntp", [[2, 64, 100], [2, 64, 50]]),
        ("bij,bjk,bk->bi", [[4, 50, 60], [4, 60, 40], [4, 40]]),
        ("bchw,cd->bdhw", [[1, 32, 20, 20], [32, 48]]),
        ("i,j->ij", [[300], [200]]),
        ("bi,bi->b", [[200, 100], [200, 100]]),
        ("bikc,bjkc->bijc", [[1, 24, 24, 16], [1, 24, 24, 16]]),
        ("abc,abd->cd", [[10, 30, 20], [10, 30, 40]]),
    ]
    for equation, shapes in table:
        case = Case(f"einsum {equation} {sizes_text(*shapes[0])}")
        case.node("Einsum", *[case.input(shape) for shape in shapes], equation=equation)
        yield case


def attention() -> Iterator[Case]:
    """Yield the cases."""
    for heads, shared, rows, keys, depth, masked in [
        (8, 8, 64, 64, 64, True), (8, 2, 128, 128, 64, True), (9, 3, 100, 100, 64, True),
        (4, 4, 300, 300, 32, False), (14, 2, 64, 200, 64, True), (6, 1, 256, 256, 48, True),
        (8, 2, 1, 300, 64, True), (12, 12, 50, 50, 64, False),
    ]:  # fmt: skip
        name = f"attention {heads} heads {shared} shared {sizes_text(rows, keys, depth)}"
        case = Case(name + (" mask" if masked else ""))
        query = case.input([1, heads, rows, depth])
        key, value = case.input([1, shared, keys, depth]), case.input([1, shared, keys, depth])
        if shared != heads:
            for_all = case.constant([1, shared, heads // shared, keys, depth], "int64")
            shape_of_heads = case.constant([1, heads, keys, depth], "int64")
            axis = case.constant([2], "int64")
            key, value = (
                case.node(
                    "Reshape", case.node("Expand", case.node("Unsqueeze", one, axis), for_all), shape_of_heads
                )
                for one in (key, value)
            )
        scores = case.node("MatMul", query, case.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = case.node("Mul", scores, case.constant(depth**-0.5, "float32"))
        if masked:
            scores = case.node("Add", scores, case.input([1, 1, rows, keys]))
        case.node("MatMul", case.node("Softmax", scores, axis=-1), value)
        yield case


def recurrent() -> Iterator[Case]:
    """Yield the cases."""
    for kind, gates in [("LSTM", 4), ("GRU", 3), ("RNN", 1)]:
        for steps, batch, inputs, units, directions in [
            (50, 1, 80, 128, 1), (20, 8, 40, 64, 2), (1, 1, 64, 256, 1), (16, 32, 32, 64, 1),
        ]:  # fmt: skip
            case = Case(f"recurrent {kind} {sizes_text(steps, batch, inputs, units)} directions {directions}")
            weights = [
                case.weight(directions, gates * units, inputs),
                case.weight(directions, gates * units, units),
                case.weight(directions, 2 * gates * units),
            ]
            direction = "bidirectional" if directions == 2 else "forward"
            extra = {"linear_before_reset": 1} if kind == "GRU" else {}
            x = case.input([steps, batch, inputs])
            case.node(kind, x, *weights, hidden_size=units, direction=direction, **extra)
            yield case


def half() -> Iterator[Case]:
    """Yield the cases."""
    case = Case("half conv 1x64x28x28 to 64 kernel 3")
    x = case.input([1, 64, 28, 28], "float16")
    weight = case.constant(case.indices(100, 64, 64, 3, 3) / 500 - 0.1, "float16")
    case.node("Relu", case.node("Conv", x, weight, pads=[1, 1, 1, 1]))
    yield case
    case = Case("half gemm 50x256x512")
    weight = case.constant(case.indices(100, 256, 512) / 500 - 0.1, "float16")
    case.node("Relu", case.node("MatMul", case.input([50, 256], "float16"), weight))
    yield case
    case = Case("half attention 8x64x64x64")
    q, k, v = (case.input([8, 64, 64], "float16") for _ in range(3))
    scores = case.node("MatMul", q, case.node("Transpose", k, perm=[0, 2, 1]))
    case.node("MatMul", case.node("Softmax", scores), v)
    yield case
    case = Case("half layer_norm 100x768")
    x, scale = case.input([100, 768], "float16"), case.constant(np.ones(768), "float16")
    case.node("LayerNormalization", x, scale, scale)
    yield case
    case = Case("half elementwise 100x1000")
    x = case.input([100, 1000], "float16")
    case.node("Mul", x, case.node("Sigmoid", x))
    yield case
