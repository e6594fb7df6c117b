"""The buckets of a model, their names, and errors about buckets that cannot exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_model
from kiln.config.boxes import Box
from kiln.config.buckets import boxes, is_static, listed
from kiln.errors import KilnError

TEXT = """\
source: {kind: file, path: net.onnx}
format: onnx
inputs: {x: {shape: [batch, seq]}}
"""
ONE = "dims: {batch: {min: 1, max: 1}, seq: "


def _boxes(folder: Path, rest: str) -> list[Box]:
    path = folder / "net.yaml"
    path.write_text(TEXT + rest, encoding="utf-8")
    return boxes(load_model(path))


def _shown(found: list[Box]) -> list[str]:
    return [
        " ".join([box.name, *(f"{p.strategy}:{p.min}..{p.max}" for p in box.dims.values())]) for box in found
    ]


def test_the_product_of_the_dimensions_and_one_general_function(tmp_path: Path) -> None:
    found = _boxes(
        tmp_path,
        "dims:\n"
        "  batch: {min: 1, max: 4, buckets: [1]}\n"
        "  seq: {min: 1, max: 512, buckets: [{exact: 16}, {pad: 64}, {pad: 128}, {range: [129, 512]}]}\n",
    )
    assert _shown(found) == [
        "batch1_seq16 exact:1..1 exact:16..16",
        "batch1_seq_pad64 exact:1..1 pad:1..64",
        "batch1_seq_pad128 exact:1..1 pad:65..128",
        "batch1_seq129_512 exact:1..1 range:129..512",
        "dynamic dynamic:1..4 dynamic:1..512",
    ]
    assert found[1].dims["seq"].size == 64
    assert found[3].dims["seq"].size is None


def test_no_general_function_where_the_buckets_hold_everything(tmp_path: Path) -> None:
    found = _boxes(
        tmp_path,
        "dims:\n  batch: {min: 1, max: 2, buckets: [1, 2]}\n"
        "  seq: {min: 32, max: 128, multiple: 32, buckets: [32, {pad: 128}]}\n",
    )
    assert [box.name for box in found] == [
        "batch1_seq32", "batch2_seq32", "batch1_seq_pad128", "batch2_seq_pad128"
    ]  # fmt: skip
    assert found[2].dims["seq"].min == 32


def test_fallback_error_leaves_holes(tmp_path: Path) -> None:
    dims = "dims:\n  batch: {min: 1, max: 8, buckets: [1, 4], fallback: error}\n"
    found = _boxes(tmp_path, dims + "  seq: {min: 1, max: 9}\n")
    assert [box.name for box in found] == ["batch1", "batch4"]
    assert found[0].dims["seq"].strategy == "dynamic"


def test_combinations_can_be_listed(tmp_path: Path) -> None:
    found = _boxes(
        tmp_path,
        "dims: {batch: {min: 1, max: 8}, seq: {min: 1, max: 64}}\n"
        "buckets: [{batch: 1, seq: 16}, {seq: {pad: 64}}]\n",
    )
    assert _shown(found) == [
        "batch1_seq16 exact:1..1 exact:16..16",
        "seq_pad64 dynamic:1..8 pad:1..64",
        "dynamic dynamic:1..8 dynamic:1..64",
    ]


def test_a_model_without_dynamic_dimensions_is_static(tmp_path: Path) -> None:
    (only,) = _boxes(tmp_path, "dims: {batch: {min: 1, max: 1}, seq: {min: 8, max: 8}}\n")
    assert only.name == "static" and is_static(only)


def test_what_the_stages_get(tmp_path: Path) -> None:
    found = _boxes(tmp_path, "dims: {batch: {min: 2, max: 2}, seq: {min: 1, max: 8, buckets: [4]}}\n")
    as_listed = listed(load_model(tmp_path / "net.yaml"), found).model_dump()
    assert as_listed["dims"][1] == {"name": "seq", "min": 1, "max": 8, "multiple": 1}
    assert as_listed["fallback"] == "dynamic"
    assert as_listed["buckets"][0] == {
        "name": "seq4",
        "dims": {
            "batch": {"strategy": "exact", "min": 2, "max": 2, "multiple": 1, "size": 2},
            "seq": {"strategy": "exact", "min": 4, "max": 4, "multiple": 1, "size": 4},
        },
    }


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("dims: {batch: {min: 8, max: 1}, seq: {min: 1, max: 8}}", "min 8 is above max 1"),
        (
            "dims: {batch: {min: 1, max: 8, buckets: [9]}, seq: {min: 1, max: 8}}",
            "net.yaml:4: key 'dims.batch.buckets.0': bucket 9 is outside the range 1..8",
        ),
        (
            ONE + "{min: 1, max: 64, buckets: [{range: [1, 32]}, {range: [32, 64]}]}}",
            "'dims.seq.buckets.1': bucket {range: [32, 64]} overlaps the one that takes sizes up to 32",
        ),
        (
            "dims: {batch: {min: 1, max: 1}, seq: {min: 1, max: 64, buckets: [{range: [1, 32]}, {pad: 16}]}}",
            "bucket {pad: 16} overlaps the one that takes sizes up to 32",
        ),
        (
            ONE + "{min: 1, max: 4, buckets: [{pad: 2}, {exact: 1}, {exact: 2}]}}",
            "bucket {pad: 2} is unreachable: exact ones hold all its sizes",
        ),
        (
            "dims: {batch: {min: 1, max: 1}, seq: {min: 32, max: 96, multiple: 32, buckets: [48]}}",
            "bucket 48: 48 is not a multiple of 32",
        ),
        (ONE + "{min: 1, max: 8, buckets: [2, 2]}}", "bucket 2 is there twice"),
        ("dims: {batch: {min: 1, max: 8}}", "dimension 'seq' has no range in 'dims'"),
        (
            "dims: {batch: {min: 1, max: 8}, seq: {min: 1, max: 8}}\nbuckets: [{sec: 4}]",
            "net.yaml:5: key 'buckets.0.sec': no dimension of this name; did you mean 'seq'?",
        ),
        (
            "dims: {batch: {min: 1, max: 8}, seq: {min: 1, max: 8, buckets: [4]}}\nbuckets: [{seq: 4}]",
            "dims.seq.buckets lists sizes too: one place only",
        ),
        (
            "dims: {batch: {min: 1, max: 8}, seq: {min: 1, max: 8}}\nbuckets: [{seq: 9}]",
            "'buckets.0.seq': bucket 9 is outside the range 1..8",
        ),
        (
            "dims: {batch: {min: 1, max: 8, buckets: automatic}, seq: {min: 1, max: 8}}",
            "'automatic' is not allowed, allowed: a list of buckets, auto",
        ),
        (ONE + "{min: 1, max: 8, buckets: auto}}", "auto needs the sizes that came in"),
        (
            "dims: {batch: {min: 1, max: 8, traffic: t.csv}, seq: {min: 1, max: 8}}",
            "only goes with buckets: auto",
        ),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, rest: str, says: str) -> None:
    with pytest.raises(KilnError) as error:
        _boxes(tmp_path, rest + "\n")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many(tmp_path: Path) -> None:
    sizes = ", ".join(str(n) for n in range(1, 10))
    dim = f"{{min: 1, max: 16, buckets: [{sizes}]}}"
    with pytest.raises(KilnError, match="82 buckets, at most 64"):
        _boxes(tmp_path, f"dims: {{batch: {dim}, seq: {dim}}}\n")
