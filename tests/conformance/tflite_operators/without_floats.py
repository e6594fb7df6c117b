"""Quantised operators as cores without an FPU compute them: which kernels have floats, and their results."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.config import Target
from kiln.emit.objects import compile_object
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps

from ..lowered import Array, loaded, runnable_alone
from ..programs import execute
from .files import OperatorCase
from .table import PAGE

LIST = PAGE.with_name("microcontrollers.md")
_BEFORE, _AFTER = "<!-- begin of the operators with floats -->", "<!-- end of the operators with floats -->"


@dataclass(frozen=True)
class WithoutFpu:
    """A case lowered for a core without an FPU, and LiteRT's results."""

    case: OperatorCase
    steps: Steps
    expected: Sequence[Array]

    @property
    def has_floats(self) -> bool:
        """Whether a kernel computes with floats."""
        return any(re.search(r"float\d\d", func.script()) for func in self.steps.functions.values())


def _target() -> Target:
    """This machine's, computing as a core without instructions for floats."""
    target = runnable_alone("x86_64")
    return target.model_copy(update={"vector": target.vector.model_copy(update={"isa": "none"})})


def is_of_integers(case: OperatorCase) -> bool:
    """Whether a case has quantised operands, and no operand or result of floats."""
    operands = [one for one in case.operands if one is not None]
    dtypes = [str(one.array.dtype) for one in operands] + [result.dtype for result in case.results]
    return any(one.scale is not None for one in operands) and not any("float" in dtype for dtype in dtypes)


def lowered_cases(chosen: Sequence[OperatorCase], folder: Path) -> Iterator[WithoutFpu]:
    """The cases of integers that LiteRT and Kiln take."""
    for number, case in enumerate(chosen):
        if is_of_integers(case):
            try:
                path, expected = case.open(folder)
                module, _ = import_model(path, ImportOptions("m"))
            except (ValueError, KilnError):
                continue
            yield WithoutFpu(
                case, lower(simplify(module), Lowering(f"m{number}", _target(), "none")), expected
            )


def compared(chosen: Sequence[OperatorCase]) -> tuple[list[str], dict[str, list[str]]]:
    """Results that differ from LiteRT's, and the cases that have floats, by operator."""
    with tempfile.TemporaryDirectory() as name:
        made = list(lowered_cases(chosen, Path(name)))
        functions = {symbol: func for one in made for symbol, func in one.steps.functions.items()}
        compile_object(functions, _target(), Path(name) / "all.o")
        library = loaded(Path(name) / "all.o")
        differ, floats = [], dict[str, list[str]]()
        for one in made:
            difference = one.case.difference(execute(one.steps, library, one.case.inputs), one.expected)
            differ += [f"{one.case.name}: {difference}"] if difference else []
            if one.has_floats:
                floats.setdefault(one.case.operator, []).append(one.case.name.split("/")[1].split("_")[0])
    return differ, floats


def listed(floats: dict[str, list[str]]) -> str:
    """The list of docs/microcontrollers.md: each operator with the types whose cases have floats."""
    kinds = ("int8", "uint8", "int16")
    found = [
        f"{operator} ({', '.join(kind for kind in kinds if any(one.startswith(kind) for one in names))})"
        for operator, names in sorted(floats.items())
    ]
    return "\n".join(f"- {line}" for line in found)


def list_in_docs() -> str:
    """The list as the page has it."""
    return LIST.read_text(encoding="utf-8").split(_BEFORE)[1].split(_AFTER)[0].strip()


def write_list(floats: dict[str, list[str]]) -> None:
    """Replace the list of the page."""
    page = LIST.read_text(encoding="utf-8")
    before, after = page.split(_BEFORE)[0], page.split(_AFTER)[1]
    LIST.write_text(f"{before}{_BEFORE}\n{listed(floats)}\n{_AFTER}{after}", encoding="utf-8")
