"""Random TFLite graphs of many operators compute what LiteRT's reference kernels compute."""

from __future__ import annotations

import pytest

from .onnx_nodes.results import HOST
from .random_graphs.agreement import agree
from .random_tflite.cases import compare_graph, made, save_graph
from .random_tflite.graph import FORMS

HOW = save_graph, compare_graph
NODES = 10
OPENED = ("float", "hybrid", "int8", "mixed")


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.heavy) for part in (1, 2))])
def test_a_sample(part: int) -> None:
    fixed = [made(number % 2, form, NODES) for number, form in enumerate(FORMS)]
    dynamic = [made(3, form, 8, is_open=True) for form in OPENED]
    products = made(33, "int16", 8, is_open=True)  # two CONV_2D and a FULLY_CONNECTED
    agree([*fixed, *dynamic, products][part::3], HOW, [HOST])


@pytest.mark.heavy
@pytest.mark.parametrize("target", [HOST, "aarch64", "armv7", "riscv64"])
def test_many(target: str) -> None:
    agree((made(seed, form, 12) for form in FORMS for seed in range(1000, 1030)), HOW, [target], 2)


@pytest.mark.heavy
def test_many_with_a_dynamic_axis() -> None:
    agree((made(seed, form, 6, True) for form in FORMS for seed in range(1000, 1030)), HOW, [HOST], 2, True)


def test_a_seed_determines_a_graph() -> None:
    a, b, c = (made(seed, "int8", NODES) for seed in (7, 7, 8))
    assert a is not None and b is not None and c is not None
    assert a.file == b.file != c.file
    assert all((x == y).all() for x, y in zip(a.outputs, b.outputs, strict=True))
