"""Random ONNX graphs of many operators compute what ONNX Runtime computes."""

from __future__ import annotations

import pytest

from .drawn_operators.case import DrawnCase, cases_of, compare_case, load_case, save_case
from .drawn_operators.quantised_chains import NAME, compare_levels, quantised_chain
from .drawn_operators.quantised_nodes import MAKERS as NODES_IN_QDQ
from .drawn_operators.quantised_nodes import PREFIX
from .drawn_operators.quantised_products import NAME as PRODUCTS
from .drawn_operators.quantised_products import compare_products, quantised_product
from .onnx_nodes.results import HOST
from .random_graphs.agreement import agree
from .random_graphs.cases import made

HOW = save_case, compare_case

NODES = 8
# Graphs that were refused: sizes that ONNX infers wrongly, and Resize with align_corners of three axes.
ONCE_REFUSED = {252: 10, 291: 10, 525: 10, 638: 10, 804: 10}
# … and one whose dilated average pool counted wrongly.
ONCE_WRONG = {2036: 30}
CRASHED = 119  # with a dynamic axis, whose padding differs from size to size
SAMPLE = range(1000, 1014)
# Graphs in QDQ with convolutions, pools, sums, products and attention, all with a dynamic axis.
QUANTISED = (9, 15, 25, 29, 43)
# Layers between levels of 8 and 16 bits: transposed convolutions, one of uint8 weights of which none is above
# 127, products of two tensors, volumes, and dynamic axes.
QUANTISED_LAYERS = (6, 16, 22, 23, 39, 53, 281)


@pytest.mark.parametrize("third", [0, *(pytest.param(n, marks=pytest.mark.heavy) for n in (1, 2))])
def test_a_sample(third: int) -> None:
    once_failed = (made(seed, nodes) for seed, nodes in {**ONCE_REFUSED, **ONCE_WRONG}.items())
    fixed = (made(seed, NODES) for seed in SAMPLE[:7])
    is_open = (made(seed, NODES, is_open=True) for seed in (CRASHED, *SAMPLE[7:]))
    agree([*once_failed, *fixed, *is_open][third::3], HOW, [HOST])


@pytest.mark.heavy
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("target", [HOST, "aarch64", "armv7", "riscv64"])
def test_many(target: str, is_open: bool) -> None:
    agree((made(seed, NODES, is_open) for seed in range(200)), HOW, [target], 2, refusals=is_open)


@pytest.mark.heavy
@pytest.mark.parametrize("target", [HOST, "aarch64", "riscv64"])
def test_many_quantised_graphs(target: str) -> None:
    """QDQ graphs with drawn scales, zero points, signs and dynamic sizes, whose steps are of integers."""
    agree(cases_of(NAME, quantised_chain, range(300)), (load_case, compare_levels), [target], 2)


def test_a_sample_of_quantised_graphs() -> None:
    agree(cases_of(NAME, quantised_chain, QUANTISED), (load_case, compare_levels), [HOST])


@pytest.mark.heavy
@pytest.mark.parametrize("target", [HOST, f"{HOST}:v4_vnni", "x86_64_v2", "aarch64", "armv7", "riscv64"])
def test_many_quantised_products(target: str) -> None:
    """Layers between levels of 8 and 16 bits, with and without a sign."""
    cases = cases_of(PRODUCTS, quantised_product, range(200))
    agree(cases, (load_case, compare_products), [target], 2)


@pytest.mark.heavy
def test_a_sample_of_quantised_products() -> None:
    cases = cases_of(PRODUCTS, quantised_product, QUANTISED_LAYERS)
    agree(cases, (load_case, compare_products), [HOST])


@pytest.mark.heavy
def test_many_quantised_nodes() -> None:
    """Operators between levels of 8 and 16 bits, and with weights of 4 bits."""
    cases = [case for name, maker in NODES_IN_QDQ.items() for case in cases_of(name, maker, range(10))]
    wrong = "QuantisedGroupNormalization/1 open"  # a channel of zeros, whose bias is between two levels
    agree([case for case in cases if case.name != wrong], (load_case, compare_products), [HOST], 2)


def test_a_sample_of_quantised_nodes() -> None:
    chosen = {"LSTM": 4, "GRU": 3, "Resize": 3, "ConvOf4Bits": 2, "ProductOf4Bits": 1, "Pad": 4, "Div": 5}
    cases = [case for name, seed in chosen.items() for case in _of_node(name, seed)]
    assert len(cases) == len(chosen), "the reference takes all of them"
    agree(cases, (load_case, compare_products), [HOST])


def _of_node(name: str, seed: int) -> list[DrawnCase]:
    return list(cases_of(PREFIX + name, NODES_IN_QDQ[PREFIX + name], [seed]))


def test_a_seed_determines_a_graph() -> None:
    a, b, c = (made(seed, NODES) for seed in (7, 7, 8))
    assert a is not None and b is not None and c is not None
    assert a.model == b.model != c.model
    assert all((x == y).all() for x, y in zip(a.outputs, b.outputs, strict=True))
