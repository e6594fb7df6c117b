"""What emit-source refuses, how it chooses buckets, the params image, and values as C."""

from __future__ import annotations

import copy
import itertools
import struct
import zlib
from typing import Any

import pytest
from emitted import PAYLOAD, make_plan, setting
from kiln.emit import c_text
from kiln.emit.buckets import selection
from kiln.emit.params_image import params_image
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.plan.schema import Dimension, parse_plan
from plans import plan_of

STEP = ("buckets", 0, "steps", 0)
BAD = [
    (setting("format", 3), "plan.json: format: 3, allowed: 2"),
    (setting("name", "kiln_x"), "'kiln_x' cannot name a C symbol"),
    (setting("name", "while"), "'while' cannot name a C symbol"),
    (setting("name", "a b"), "'a b' cannot name a C symbol"),
    (setting("name", "run_step"), "the generated source uses this one itself"),
    (setting("threads", "openmp"), "threads: openmp, allowed: pthread or none"),
    (setting("model_hash", "12"), "model_hash: 12, allowed: text that matches ^[0-9a-f]{64}$"),
    (setting("params", "bytes", 80), "params.bytes: 80, allowed: 76 as in params.raw"),
    (setting("params", "storage", "tape"), "params.storage: tape, allowed: embedded, section or file"),
    (setting("inputs", 0, "dtype", "int4"), "'x:0': dtype 'int4', allowed: bfloat16, bool"),
    (setting("inputs", 0, "shape", 0, "seq"), "'x:0': dimension 'seq', allowed: batch"),
    (setting("inputs", 0, "shape", 1, -3), "'x:0': size -3, allowed 0..2147483647"),
    (setting("inputs", 0, "shape", 0, 2), "dims 'batch': on outputs only, allowed: on an input too"),
    (setting("inputs", 0, "c_name", "a-b"), "cannot name a C symbol"),
    (setting("outputs", []), "outputs: 0 entries, allowed: at least 1"),
    (setting("dims", 0, "max", 2**31), "dims[0].max: 2147483648, allowed: less than or equal to 2147483647"),
    (setting("dims", 0, "multiple", 0), "dims[0].multiple: 0, allowed: greater than or equal to 1"),
    (setting("buckets", []), "buckets: 0 entries, allowed: at least 1"),
    (setting("buckets", 1, "name", "TWO"), "buckets: a name twice"),
    (
        setting("buckets", 1, "dims", "batch", {"min": 1, "max": 8}),
        "bucket 'Some', dimension 'batch': 1..8, allowed",
    ),
    (
        setting("buckets", 1, "dims", "batch", {"min": 4, "max": 8, "multiple": 4}),
        "bucket 'Some', dimension 'batch': multiple 4, allowed: what divides 2, the dimension's own",
    ),
    (setting(*STEP, "kernel", "other"), "buckets[0].steps[0].kernel: other, allowed: one of kernels"),
    (setting(*STEP, "args", []), "buckets[0].steps[0].args: 0 arguments, allowed: 3"),
    (setting(*STEP, "extent", 0), "buckets[0].steps[0].extent: 0, allowed"),
    (setting(*STEP, "extent", "seq"), "buckets[0].steps[0].extent: dimension 'seq', allowed: batch"),
    (setting(*STEP, "args", 0, "index", 2), "buckets[0].steps[0].args[0].index: 2, allowed: 0..1"),
    (setting(*STEP, "args", 1, "offset", 65), "args[1]: bytes 65..77 of params, allowed: 0..76"),
    (setting(*STEP, "args", 1, "offset", -4), "args[1]: bytes -4..8 of params, allowed: 0..76"),
    (
        setting(*STEP, "args", 1, {"at": "params", "offset": 62, "bytes": 4}),
        "args[1].offset: 62, allowed: multiples of 4",
    ),
    (setting(*STEP, "args", 2, "bytes", 28), "args[2]: bytes 0..28 of arena, allowed: 0..24"),
    (setting(*STEP, "args", 2, {"at": "params", "offset": 0, "bytes": 4}), "args[2]: written at params"),
    (setting(*STEP, "args", 2, {"at": "dim", "expr": "batch"}), "args[2]: at dim, allowed: dim for a scalar"),
    (
        setting(*STEP, "args", 2, {"at": "heap", "offset": 0}),
        "args[2].at: heap, allowed: arena, params or state",
    ),
    (setting("kernels", 1, "args", 3, "dtype", "float32"), "scalar: float32, allowed: int32, int64"),
    (lambda plan: plan["params"].pop("storage"), "params: key 'storage' is missing"),
    (setting("kernels", 3), "kernels: 3, allowed: a valid list"),
    (setting(*STEP, "macs", "12"), "buckets[0].steps[0].macs: 12, allowed: a valid integer"),
    (setting(*STEP, "spin", 1), "buckets[0].steps[0]: unknown key 'spin'"),
    (setting(*STEP, "extent", ["^", "batch", 2]), "buckets[0].steps[0].extent: size ['^', 'batch', 2]"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_a_plan_that_cannot_be(change: Any, message: str) -> None:
    plan = copy.deepcopy(make_plan())
    change(plan)
    with pytest.raises(KilnError) as raised:
        emit(parse_plan(plan), PAYLOAD)
    assert message in str(raised.value)


def test_bucket_of_every_size() -> None:
    """The table of cells against the definition, in two dimensions, with overlaps and gaps."""
    dims = [Dimension(name=n, min=low, max=high, multiple=1) for n, low, high in (("a", 1, 9), ("b", 4, 40))]
    buckets = [
        {"name": "p", "dims": {"a": 1, "b": 4}},
        {"name": "q", "dims": {"a": {"min": 1, "max": 4}, "b": {"min": 4, "max": 20}}},
        {"name": "r", "dims": {"a": {"min": 4, "max": 9}}},
        {"name": "s", "dims": {"a": 2, "b": 40}},
    ]
    whole = {"a": {"min": 1, "max": 9}, "b": {"min": 4, "max": 40}}
    when = {"bucket": 0, "all": [{"dim": "a", "multiple": 2}]}
    buckets.insert(1, {"name": "special", "dims": whole, "when": when})
    found = selection(dims, plan_of(buckets=[{**bucket, "steps": []} for bucket in buckets]).buckets)
    assert found is not None

    def cell(lines: list[str], size: int) -> int:
        # The generated C read as Python: its blocks are marked by the indentation too.
        code = "\n".join(
            line.replace("} else {", "else:").replace(") {", "):") for line in lines if line.strip() != "}"
        )
        scope: dict[str, Any] = {}
        exec("def tree(size):\n" + code.replace(";", ""), scope)
        return int(scope["tree"](size))

    for a, b in itertools.product(range(1, 10), range(4, 41)):
        index = cell(found.axes[0].lines, a) * found.axes[1].cells + cell(found.axes[1].lines, b)
        expected = (
            0
            if (a, b) == (1, 4)
            else 2
            if a <= 4 and b <= 20
            else 3
            if a >= 4
            else 4
            if (a, b) == (2, 40)
            else -1
        )
        assert found.table[index] == expected
    assert selection(dims, plan_of(buckets=[{"name": "all", "dims": {}, "steps": []}]).buckets) is None


def test_selection_is_logarithmic() -> None:
    buckets = [{"name": f"b{n}", "dims": {"n": n}, "steps": []} for n in range(1, 65)]
    found = selection([Dimension(name="n", min=1, max=64, multiple=1)], plan_of(buckets=buckets).buckets)
    assert found is not None
    deepest = max(len(line) - len(line.lstrip()) for line in found.axes[0].lines) // 4
    assert deepest == 7  # six comparisons, then the return


def test_params_image() -> None:
    image = params_image(b"abc", bytes(range(32)))
    assert len(image) == 192
    padded = b"abc" + bytes(61)
    header = struct.unpack_from("<8sIIQII", image)
    assert header == (b"KILNPAR1", 2, 128, 3, zlib.crc32(padded), 0)
    assert image[32:64] == bytes(range(32)) and not any(image[64:128])
    assert image[128:] == padded


def test_values_as_c() -> None:
    assert c_text.string('a"b\\?é\n') == '"a\\042b\\134\\077\\303\\251\\012"'
    assert c_text.comment("a */ b\n/* c") == "a * / b / * c"
    assert [c_text.real(value) for value in (0, 1, 0.1, 1e-30)] == ["0.0f", "1.0f", "0.100000001f", "1e-30f"]
    assert [c_text.size(value) for value in (5, 2**32)] == ["5u", "4294967296ull"]
    assert c_text.free_name("new", {"new_"}) == "new__"


def _branched(parts: tuple[str, ...]) -> Any:
    """A plan whose first bucket has a control step of a choice for each of `parts`, before its own steps."""
    plan = make_plan()
    kernel = {"symbol": "kiln_branch", "args": [{"dtype": "bool", "const": True}], "parallel": False}
    plan["kernels"].append({**kernel, "ops": [], "flops": 0, "family": "branch", "check": True})
    flag = {"at": "arena", "offset": 0, "bytes": 1}
    marks = [{"number": 0, "part": part} for part in parts]
    steps = [{"kernel": "kiln_branch", "extent": 0, "label": "a mark", "args": [flag]} for _ in marks]
    steps = [{**step, "attrs": {}, "branch": mark} for step, mark in zip(steps, marks, strict=True)]
    plan["buckets"][0]["steps"] = [*steps, *plan["buckets"][0]["steps"]]
    return plan


def test_control_steps_of_branches_jump() -> None:
    code = emit(parse_plan(_branched(("first", "second", "end"))), PAYLOAD)
    text = next(str(value) for name, value in code.items() if name.endswith("_plan.c"))
    assert "!= 0 ? 0 : KILN_STEP_JUMP(2);" in text and "return KILN_STEP_JUMP(3);" in text


@pytest.mark.parametrize("parts", [("first", "end"), ("second", "first", "end"), ("first",) * 3])
def test_branches_without_their_parts_are_refused(parts: tuple[str, ...]) -> None:
    told = "steps\\[0\\].branch: 0, allowed: first, second and end, not on a GPU"
    with pytest.raises(KilnError, match=told):
        emit(parse_plan(_branched(parts)), PAYLOAD)
