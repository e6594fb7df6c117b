"""Programs whose dynamic sizes PyTorch's exporter fixed are refused; PyTorch's objects have stubs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kiln.errors import KilnError
from kiln.frontend.torch.fixed_sizes import check_elements, check_sizes, dynamic_axes, widen_pairs


@dataclass(frozen=True)
class Size:
    """A dynamic size, as PyTorch's SymInt."""

    name: str
    value: int | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def node(self) -> Any:
        return SimpleNamespace(maybe_as_int=lambda: self.value)


@dataclass(frozen=True)
class Equation:
    """An equation of one size: its remainder by `divisor` is 0."""

    size: Size
    divisor: int
    rel_op = "=="

    @property
    def free_symbols(self) -> set[Size]:
        return {self.size}

    def subs(self, size: Size, number: int) -> bool:
        return size != self.size or number % self.divisor == 0

    def __str__(self) -> str:
        return f"Eq(Mod({self.size}, {self.divisor}), 0)"


N = Size("n")


def program(shape: Sequence[Any], guards: Sequence[Equation] = (), most: int = 9) -> Any:
    """An ExportedProgram with an input `x` of `shape`, whose size n is in 2..`most`."""
    limits = SimpleNamespace(is_int=True, lower=2, upper=most)
    environment = SimpleNamespace(
        guards=[SimpleNamespace(expr=guard) for guard in guards], var_to_range={N: limits}
    )
    tensor = SimpleNamespace(shape=tuple(shape), fake_mode=SimpleNamespace(shape_env=environment))
    nodes = [SimpleNamespace(name="x", meta={"val": tensor}), SimpleNamespace(name="k", meta={"val": 3})]
    return SimpleNamespace(graph=SimpleNamespace(find_nodes=lambda op: nodes if op == "placeholder" else []))


AXES = {"x": [0]}


def test_dynamic_sizes_that_are_kept() -> None:
    assert dynamic_axes(program([N, 3])) == AXES
    assert dynamic_axes(program([2, Size("s", 3)])) == {"x": []}
    check_sizes(Path("m.pt2"), AXES, program([N, 3]))
    check_sizes(Path("m.pt2"), {"x": []}, program([2, 3]))
    check_sizes(Path("m.pt2"), AXES, None)
    check_sizes(Path("m.pt2"), AXES, program([N, 3], [Equation(N, 1)]))


def test_an_input_without_elements_is_refused() -> None:
    given = program([N, 0, 3])
    given.graph_signature = SimpleNamespace(user_inputs=["k"])
    check_elements(Path("m.pt2"), given)
    given.graph_signature.user_inputs.append("x")
    with pytest.raises(
        KilnError, match=r"input 'x' has no elements, its shape is .*, 0, 3\]; export the module"
    ):
        check_elements(Path("m.pt2"), given)


@pytest.mark.parametrize("size", [4, Size("4", 4)])
def test_a_size_that_is_fixed_is_refused(size: Any) -> None:
    with pytest.raises(KilnError, match="fixed axis 0 of input 'x' at 4: an operator is converted for one"):
        check_sizes(Path("m.pt2"), AXES, program([size, 3]))


@pytest.mark.parametrize("most", [9, 1 << 50])
def test_a_condition_on_a_size_is_refused(most: int) -> None:
    exported = program([N, 3], [Equation(N, 2)], most)
    with pytest.raises(KilnError, match=r"sizes with Eq\(Mod\(n, 2\), 0\), and n may be 3; export"):
        check_sizes(Path("m.pt2"), AXES, exported)


@dataclass(frozen=True)
class Limits:
    lower: int
    upper: int
    is_int: bool = True


def test_a_range_up_to_two_has_room_while_it_is_converted() -> None:
    """PyTorch takes dynamic sizes for at least 2, and would fix one of 0..2 at 2."""
    pair, row = Size("pair"), Size("row")
    ranges = {pair: Limits(0, 2), row: Limits(0, 5)}
    environment = SimpleNamespace(var_to_range=dict(ranges), guards=[])
    tensor = SimpleNamespace(shape=(pair, row), fake_mode=SimpleNamespace(shape_env=environment))
    nodes = [SimpleNamespace(name="x", meta={"val": tensor})]
    graph = SimpleNamespace(find_nodes=lambda op: nodes)
    widen_pairs(SimpleNamespace(graph=graph, range_constraints=ranges))
    assert ranges == environment.var_to_range == {pair: Limits(0, 3), row: Limits(0, 5)}
