"""Parameters: in order of use, equal ones once, 64-byte aligned; and what plan.json says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from kiln.config import load_target
from kiln.config.boxes import STATIC_BOX
from kiln.config.interface import Interface
from kiln.config.slice_records import PlanConfig
from kiln.lower.schema import LoweredBucket, Step, TensorRecord
from kiln.plan.params import ParameterStore
from kiln.plan.schema import Plan, StoredTensor, TransformTotal
from kiln.plan.stage import LowerResult, make_plan


def entry(name: str, value: Any = None, alias: str | None = None, kind: Any = "param") -> TensorRecord:
    shape, dtype = (list(value.shape), str(value.dtype)) if value is not None else ([4], "float32")
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return TensorRecord(name=name, bytes=size, kind=kind, alias=alias, dtype=dtype, shape=shape)


VALUES = {
    "late": np.arange(5, dtype="int8"),
    "first": np.arange(40, dtype="float32"),
    "twin": np.arange(40, dtype="float32").reshape(4, 10),
    "unused": np.ones(99, "float32"),
    "scalar": np.array(7, "int64"),
}
TENSORS = {
    **{name: entry(name, value) for name, value in VALUES.items()},
    "view": entry("view", VALUES["first"].reshape(40, 1), alias="first"),
    "x": entry("x", kind="input"),
    "y": entry("y", kind="activation"),
}
STEPS = [
    Step(kernel="a", label="a", args=["x", "view", "y"], writes=["y"]),
    Step(kernel="b", label="b", args=["y", "twin", "late", "y"], writes=["y"]),
    Step(kernel="c", label="c", args=["y", "first", "scalar", "y"], writes=["y"]),
]


def lay_out(values: dict[str, Any]) -> tuple[list[StoredTensor], dict[str, int], bytes]:
    store = ParameterStore()
    offsets = store.place(TENSORS, STEPS, values)
    return store.stored, offsets, store.content()


def test_layout() -> None:
    stored, offsets, payload = lay_out(VALUES)
    assert [item.name for item in stored] == ["first", "late", "scalar"]
    assert all(offset % 64 == 0 for offset in offsets.values())
    assert [item.offset for item in stored] == sorted(item.offset for item in stored)
    assert offsets["twin"] == offsets["first"]
    assert "unused" not in offsets
    for name, offset in offsets.items():
        size = VALUES[name].nbytes
        assert payload[offset : offset + size] == VALUES[name].tobytes()
    assert len(payload) % 64 == 0
    assert len(payload) == 192 + 64 + 64
    assert (stored[0].name, stored[0].bytes, stored[0].dtype, stored[0].shape) == (
        "first",
        160,
        "float32",
        [40],
    )


def test_what_lies_between_is_zero() -> None:
    stored, _, payload = lay_out(VALUES)
    used = np.zeros(len(payload), bool)
    for item in stored:
        used[item.offset : item.offset + item.bytes] = True
    assert not any(byte for byte, taken in zip(payload, used, strict=True) if not taken)


def test_the_same_input_gives_the_same_bytes() -> None:
    again = {name: value.copy() for name, value in reversed(VALUES.items())}
    assert lay_out(again) == lay_out(VALUES)


def test_no_parameters() -> None:
    assert lay_out({}) == ([], {}, b"")


def _plan(params: dict[str, Any], compared: Any = None) -> tuple[Plan, bytes]:
    port = {"name": "p", "c_name": "p", "dtype": "float32", "shape": [4]}
    interface = Interface.model_validate({"inputs": [port], "outputs": [port], "dims": []})
    case: dict[str, Any] = {
        "name": "",
        "params": "0/",
        "when": None,
        "lifted": {"first": {"bytes": 160, "sha256": "a"}, "twin": {"bytes": 160, "sha256": "a"}},
        "inputs": ["x"],
        "outputs": ["y"],
        "tensors": list(TENSORS.values()),
        "kernels": [],
        "steps": STEPS,
    }
    values = {f"0/{name}": value for name, value in VALUES.items()}
    cases = [case]
    if compared is not None:
        when = {"all": [{"input": 0, "value": {"param": "c.value"}}]}
        cases += [{**case, "name": "c", "params": "1/", "when": when}]
        values |= {f"1/{name}": value for name, value in {**VALUES, "c.value": compared}.items()}
    bucket = {"cases": cases, "threads": "none", "variants": [{"name": "base", "features": ["neon"]}]}
    lowered = LowerResult(LoweredBucket.model_validate(bucket), values)
    config = PlanConfig.model_validate({"name": "m", "params": params})
    return make_plan([lowered], [STATIC_BOX], interface, config, load_target("aarch64"))


def test_plan_json() -> None:
    plan, payload = _plan({"storage": "section"})
    assert (plan.name, plan.target, plan.threads) == ("m", "aarch64", "none")
    assert plan.params.bytes == len(payload)
    assert (plan.params.storage, plan.params.section) == ("section", ".kiln_params")
    assert plan.inputs[0].bytes == 16
    bucket = plan.buckets[0]
    assert bucket.arena_bytes == bucket.lower_bound_bytes == 0
    first = bucket.steps[0].args
    assert [argument.at for argument in first] == ["input", "params", "output"]
    assert first[1].offset == 0


def test_what_lifting_saved() -> None:
    lifted = _plan({})[0].params.lifted
    assert (lifted.lifted_bytes, lifted.distinct_bytes, lifted.stored_bytes) == (320, 160, 173)
    assert lifted.transforms["as it is"] == TransformTotal(tensors=1, bytes_before=160, bytes_after=160)


def test_storage_is_the_targets_unless_the_model_says_otherwise() -> None:
    assert _plan({})[0].params.storage == load_target("aarch64").params_storage
    params = _plan({"storage": "file"})[0].params
    assert (params.storage, params.section, params.align) == ("file", None, 64)


def test_a_tensor_that_no_step_reads_is_stored_to_compare_an_input_with() -> None:
    """The tensor of a special case is stored for the comparison, although all its readers were folded."""
    plan, payload = _plan({}, np.zeros(300, "float32"))
    (when,) = plan.buckets[1].when.all
    assert when.value.bytes == 1200
    stored = next(item for item in plan.params.tensors if item.name == "c.value")
    assert when.value.offset == stored.offset
    assert payload[stored.offset :][:1200] == bytes(1200)
