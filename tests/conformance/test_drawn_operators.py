"""Operators on drawn ranks, sizes, attributes and operator sets against ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from .drawn_operators.case import DrawnCase, cases_of, compare_case, described, load_case
from .drawn_operators.operators import MAKERS
from .onnx_nodes.results import PASS, REFUSED
from .onnx_nodes.worker import run_all

# By operator, seeds of cases that once were wrong, crashed or were refused without need.
SAMPLE: dict[str, tuple[int, ...]] = {
    "ArgMax": (2,),  # an axis from the end in an early operator set
    "Celu": (2,),  # a function body of an earlier operator set
    "CenterCropPad": (1,),  # sizes of the run along an open axis
    "Clip": (2,),  # integers without limits
    "DeformConv": (3,),
    "Hardmax": (3,),
    "LayerNormalization": (0,),  # float64
    "LpPool": (2,),  # windows that end behind all elements
    "Pad": (1, 3),  # a mode that cuts and pads; wrapped around an axis that is shorter
    "RoiAlign": (1,),  # the default of an early operator set
    "Slice": (0, 3, 10),
    "Tile": (5,),
}
# What a message of a refusal must not contain: it would be text of a library, without a way round.
_FOREIGN = re.compile(r"Check failed|R\.Tensor|T\.\w+\(|do not fit together|cannot find variable|'NoneType'")


def run(cases: Sequence[DrawnCase], jobs: int = 1, refusals: bool = False) -> None:
    """Fail for a case that does not agree; `refusals`: a refusal in terms of the file is none."""
    by_name = {case.name: case for case in cases}
    wrong = [
        f"{result.outcome} {result.name}: {result.detail}\n  {described(by_name[result.name])}"
        for result in run_all(cases, jobs, load_case, compare_case)
        if result.outcome != PASS
        and not (refusals and result.outcome == REFUSED and not _FOREIGN.search(result.detail))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_sample_of_drawn_operators() -> None:
    cases = [case for name, seeds in SAMPLE.items() for case in cases_of(name, MAKERS[name], seeds)]
    assert len(cases) == sum(map(len, SAMPLE.values())), "the reference takes all of them"
    run(cases)


@pytest.mark.heavy
def test_all_drawn_operators() -> None:
    cases = [case for name, maker in MAKERS.items() for case in cases_of(name, maker, range(8))]
    assert len(cases) > 1000
    run(cases, jobs=2, refusals=True)
