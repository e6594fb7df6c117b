"""The option `dims`, which gives ranges of dimensions on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.scons.given_dims import with_dims

MODEL = "minilm_l6"  # of dimensions batch, and seq, which has buckets


def test_ranges_replace_those_of_the_model() -> None:
    model = load_model(MODEL)
    changed = with_dims(model, "Seq:3..17, batch:1")
    assert {name: (dim.min, dim.max, dim.buckets) for name, dim in changed.dims.items()} == {
        "batch": (1, 1, []), "seq": (3, 17, []),
    }  # fmt: skip
    assert changed.model_copy(update={"dims": model.dims}) == model
    assert with_dims(model, "batch:2").dims["seq"] == model.dims["seq"]


def test_a_file_without_ranges_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    bare = load_model(tmp_path / "net.onnx")
    assert with_dims(bare, "n:0..4").dims["n"].min == 0
    assert with_dims(bare, "n:32..96:32").dims["n"].multiple == 32


@pytest.mark.parametrize("given, told", [
    ("seq", "option 'dims': 'seq', expected NAME:SIZE, NAME:LEAST..GREATEST or NAME:LEAST..GREATEST:MULT"),
    ("seq:1..", "'seq:1..', expected NAME:SIZE"), ("seq:4:4", "'seq:4:4', expected NAME"),
    ("seq:5..8:4", "min 5 is not a multiple of 4"), ("seq:-1", "'seq:-1', expected NAME"),
    ("?:1", "'?:1', expected NAME"), ("seq:1,", "'', expected NAME"),
    ("seq:1,Seq:2", "option 'dims': 'seq' is given twice"),
    ("seq:9..3", "option 'dims': 'seq:9..3', expected a greatest size from 9 to 2147483647"),
    ("seq:0", "'seq:0', expected a greatest size from 1 to"), (f"seq:{1 << 31}", "expected a greatest size"),
])  # fmt: skip
def test_what_is_refused(given: str, told: str) -> None:
    with pytest.raises(KilnError) as error:
        with_dims(load_model(MODEL), given)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_fault_names_the_key_that_the_range_does_not_fit() -> None:
    keys = {"special_cases": [{"dim": "seq", "exact": 50}], "buckets": None}
    model = load_model(MODEL)
    model = model.model_validate({**model.model_dump(exclude_unset=True), **keys})
    with pytest.raises(
        KilnError, match=r"special_cases\[0\]: no size of dims\.seq meets this: allowed 1\.\.20"
    ):
        with_dims(model, "seq:1..20")
