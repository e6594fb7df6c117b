"""Keys that changed no step of any bucket: a glob without a subgraph is an error, others get a line."""

from __future__ import annotations

from typing import Any

import pytest
from kiln.config import load_target
from kiln.config.byoc import Byoc
from kiln.config.library_choices import LibraryChoices
from kiln.config.slice_records import PlanConfig
from kiln.errors import KilnError
from kiln.lower.schema import ExternalCode, IndexCheck, KernelRecord, LoweredBucket, LoweredCase, Step
from kiln.plan.effects import check_effects, check_libraries

SUBGRAPHS = ["openblas dense 1x16 16x8", "openblas dense 4x16 16x8", "onednn conv 1x8x8x3 3x3x3x8"]


def bucket(family: str = "", backend: str | None = None, check: bool = False, **more: Any) -> LoweredBucket:
    """A bucket with one step, and the kernel that it calls."""
    external = None if backend is None else ExternalCode(backend=backend, key="", source="")
    kernel = KernelRecord(symbol="k", args=[], parallel=False, family=family, external=external)
    index_check = IndexCheck(op="take", axis=0, wraps=False) if check else None
    step = Step(kernel="k", label="", args=[], writes=[], check=index_check)
    case = LoweredCase(name="", params="", inputs=[], outputs=[], tensors=[], kernels=[kernel], steps=[step])
    return LoweredBucket(cases=[case], threads="none", variants=[], **more)


def buckets() -> list[LoweredBucket]:
    """Two buckets, whose subgraphs have the names of their sizes; OpenBLAS computes one of them."""
    return [
        bucket(subgraphs=SUBGRAPHS[:1], backend="openblas"),
        bucket(subgraphs=SUBGRAPHS[1:]),
    ]


def of_libraries(globs_of_model: bool = True, **byoc: Any) -> None:
    section = {"backends": ["openblas", "onednn"], **byoc}
    choices = LibraryChoices(
        byoc=Byoc(**section), backends=["openblas", "onednn"], globs_of_model=globs_of_model
    )
    check_libraries("net", "x86_64", choices, buckets())


@pytest.mark.parametrize(
    "globs",
    [
        {"take": ["dense 4x*"]},
        {"take": ["dense 1x*", "onednn conv*"], "leave": ["openblas dense 4x16 16x8"]},
        {"leave": ["*"]},
        {"take": ["*"]},
    ],
)
def test_a_glob_may_match_in_any_bucket(globs: dict[str, list[str]]) -> None:
    of_libraries(**globs)


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        ({"take": ["dense 4x*", "dense 8x*"]}, "byoc.take: 'dense 8x*' matches no subgraph that a library"),
        ({"leave": ["onednn dense*"]}, "byoc.leave: 'onednn dense*' matches no subgraph that a library can "),
        (
            {"leave": ["dens 1x16 16x8"]},
            "; did you mean 'dense 1x16 16x8'?; there are: 'conv 1x8x8x3 3x3x3x8', ",
        ),
    ],
)
def test_a_glob_that_matches_no_subgraph_of_any_bucket(globs: dict[str, list[str]], message: str) -> None:
    with pytest.raises(KilnError) as raised:
        of_libraries(**globs)
    assert message in str(raised.value) and str(raised.value).startswith("model 'net': byoc.")
    of_libraries(globs_of_model=False, **globs)  # of a target, which many models share
    of_libraries(backends=["auto"], **globs)  # the stage that chooses the libraries tells it


def test_many_subgraphs_are_counted() -> None:
    many = [f"openblas dense {rows}x8 8x8" for rows in range(1, 12)]
    with pytest.raises(KilnError, match=r"'dense 6x8 8x8' and 3 more: correct or remove it$"):
        Byoc(backends=["openblas"], take=["a"]).check_globs("net", "t", ["openblas"], ["openblas"], many)
    with pytest.raises(
        KilnError, match="on target 't'; the backends support none of the model's subgraphs: "
    ):
        Byoc(backends=["openblas"], take=["a"]).check_globs("net", "t", ["openblas"], ["openblas"], [])


def test_with_auto_a_glob_may_name_a_backend_of_other_targets() -> None:
    byoc = Byoc(backends=["auto"], take=["dense*"], leave=["xnnpack conv*"])
    byoc.check_globs("net", "t", ["openblas", "xnnpack"], ["openblas"], SUBGRAPHS)
    with pytest.raises(KilnError, match="leave: 'xnnpack conv"):
        byoc.check_globs("net", "t", ["openblas", "xnnpack"], ["xnnpack"], SUBGRAPHS)
    with pytest.raises(KilnError, match="leave: 'xnnpack conv"):
        byoc.check_globs("net", "t", ["openblas"], ["openblas"], SUBGRAPHS)


def test_a_library_that_computes_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    of_libraries()
    choices = LibraryChoices(byoc=Byoc(backends=["cutlass"]), backends=["cutlass"])
    check_libraries("net", "t", choices, buckets())
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "kiln: warning: model 'net': byoc: onednn computes nothing on 'x86_64': others, or the globs, have "
        "all its subgraphs",
        "kiln: warning: model 'net': byoc: cutlass computes nothing on 't': it supports no subgraph that is "
        "left for it",
    ]


def test_keys_without_an_effect_get_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    config = PlanConfig(name="net", winograd="f2", checks="indices")
    board, gpu = load_target("armv7"), load_target("cuda_sm90")
    check_effects(config, board, [bucket(), bucket("winograd", check=True)])
    check_effects(PlanConfig(name="net", winograd="off"), board, [bucket()])
    assert capsys.readouterr().out == ""
    check_effects(config, board, [bucket()])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "kiln: warning: model 'net': winograd: f2 changes nothing on target 'armv7': it is "
    )
    assert second.endswith("checks: indices changes nothing: no operator has indices that a run computes")
    check_effects(PlanConfig(name="net", winograd="f4"), gpu, [bucket()])
    assert capsys.readouterr().out.endswith(": kernels on a GPU do not use the algorithm\n")
