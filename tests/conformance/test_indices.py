"""Indices outside of their axes: clamped and dropped, or refused where ONNX Runtime refuses them.

One graph with every operator that has indices, compiled four times: with and without checks, of fixed and of
dynamic size. Each case bends one index of one input.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kiln.config import load_target
from kiln.config.boxes import STATIC_BOX
from kiln.config.interface import Interface
from kiln.config.slice_records import PlanConfig
from kiln.emit.compile import compile_file
from kiln.emit.headers import include_flags
from kiln.emit.objects import compile_all
from kiln.emit.source import emit, runtime_sources
from kiln.errors import KilnError
from kiln.graph.pipeline import simplify
from kiln.lower.index_checks import index_checks
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.schema import LoweredBucket
from kiln.plan.stage import LowerResult, make_plan
from symbolic import Array, dynamic, imported, write

from .lowered import Compiled, runnable

TEXT = """
g (float[{n},3] x, int64[2] rows, int32[2,3] lines, int64[2,2] points, int64[2,3] to_lines,
   int64[2,1] to_rows, float[2,3] new, float[4,3] w)
=> (float[2,3] a, float[2,3] b, float[2] c, float[4,3] d, float[4,3] e, float[4,3] f)
{{
  a = Gather<axis = 0>(x, rows)
  b = GatherElements<axis = 0>(x, lines)
  c = GatherND(x, points)
  d = ScatterElements<axis = 0>(w, to_lines, new)
  e = ScatterND<reduction: string = "add">(w, to_rows, new)
  f = ScatterElements<axis = 0, reduction: string = "mul">(w, to_lines, new)
}}
"""
# By input the type, the shape, and by column the axis that the indices count along: of x where they read, and
# of w, which has a fixed size, where they write.
INDICES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "rows": ("int64", (2,), (0,)),
    "lines": ("int32", (2, 3), (0,)),
    "points": ("int64", (2, 2), (0, 1)),
    "to_lines": ("int64", (2, 3), (0,)),
    "to_rows": ("int64", (2, 1), (0,)),
}
PROGRAM = """
#include "m.h"
static _Alignas(64) unsigned char arena[1 << 16];
int32_t try_run(void *const *t, int64_t n, char *text) {
    kiln_session session;
    const kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    (void)n;
    kiln_status status = kiln_open(&session, &m, &config);
    if (status == KILN_OK)
        status = m_run(&session, SIZE t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10],
                       t[11], t[12], t[13]);
    (void)kiln_detail_text(kiln_error(&session), text, 200);
    return (int32_t)status;
}
"""
DIMS = {"n": (2, 6)}
GUARD = 64  # bytes of a pattern before and after each tensor
BAD_INDEX = 35


def model_file(folder: Path, size: object) -> Path:
    return write(folder / "m.onnx", TEXT.format(n=size), opset=18)


def lowered(path: Path, open_size: bool, checks: str | None) -> tuple[Any, Interface]:
    if open_size:
        mod, interface = imported(path, DIMS)
    else:
        mod, interface = imported(path, {})
    return lower(
        simplify(mod), Lowering("m", load_target("x86_64_v2").for_variant("v2"), "none", checks=checks)
    ), interface


def compiled(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Objects in `folder` of C and assembly."""
    flags = ["gcc", "-std=c11", "-O1", "-fPIC", f"-I{folder}", *include_flags()]
    for source in sources:
        compile_file(flags, source, folder / f"{source.stem}.o")
    return [folder / f"{source.stem}.o" for source in sources]


class Model:
    """The graph compiled into a library with the runtime and a plan; `run` gives status, text and outputs."""

    def __init__(self, folder: Path, open_size: bool, checks: str | None, runtime: Sequence[Path]) -> None:
        self.open_size = open_size
        folder.mkdir()
        path = model_file(folder, "n" if open_size else 4)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # refusals are expected
        self.reference = onnxruntime.InferenceSession(onnx.load(path).SerializeToString(), options)
        target = load_target("x86_64_v2")
        steps, interface = lowered(path, open_size, checks)
        case = {"name": "", "params": "0/", "when": None, "lifted": {}, **dict(steps.record())}
        lowered_bucket = {"cases": [case], "threads": "none", "variants": [{"name": "base", "features": []}]}
        result = LowerResult(
            LoweredBucket.model_validate(lowered_bucket),
            {f"0/{name}": value for name, value in steps.params.items()},
        )
        bucket = dynamic(DIMS) if open_size else STATIC_BOX
        plan, payload = make_plan([result], [bucket], interface, PlanConfig(name="m"), target)
        self.steps = [step.label for step in plan.buckets[0].steps]
        for name, content in emit(plan, payload).items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        (folder / "program.c").write_text(PROGRAM.replace("SIZE", "n," if open_size else ""))
        compile_all(steps.functions, target, folder / "kernels.o", plan.name, plan.kernels)
        objects = [folder / "kernels.o", *runtime, *compiled(list(folder.glob("*.[cS]")), folder)]
        subprocess.run(["gcc", "-shared", "-o", folder / "m.so", *objects], check=True)
        self.library = ctypes.CDLL(str(folder / "m.so"))

    def run(self, inputs: dict[str, Array]) -> tuple[int, str, list[Array]]:
        size = inputs["x"].shape[0]
        shapes = [(2, 3), (2, 3), (2,), (4, 3), (4, 3), (4, 3)]
        memory = []
        for value in [*inputs.values(), *(np.full(shape, np.nan, np.float32) for shape in shapes)]:
            block = np.full(value.nbytes + 2 * GUARD, 0xA5, np.uint8)
            block[GUARD : GUARD + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
            memory.append(block)
        pointers = (ctypes.c_void_p * len(memory))(*(block.ctypes.data + GUARD for block in memory))
        text = ctypes.create_string_buffer(200)
        status = self.library.try_run(pointers, ctypes.c_int64(size), text)
        for block in memory:
            assert (block[:GUARD] == 0xA5).all() and (block[-GUARD:] == 0xA5).all(), (
                "a byte outside was written"
            )
        outputs = [
            block[GUARD:-GUARD].view(np.float32).reshape(shape)
            for block, shape in zip(memory[len(inputs) :], shapes, strict=True)
        ]
        return status, text.value.decode(), outputs


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool, str | None], Model]:
    folder, made = tmp_path_factory.mktemp("indices"), dict[tuple[bool, str | None], Model]()
    runtime = compiled(runtime_sources("none", "hosted"), folder)

    def model(open_size: bool, checks: str | None) -> Model:
        key = open_size, checks
        if key not in made:
            made[key] = Model(folder / f"{len(made)}", open_size, checks, runtime)
        return made[key]

    return model


def extent_of(name: str, axis: int, size: int) -> int:
    """The size of the axis that indices of an input count along, where x has `size` rows."""
    return (4 if name.startswith("to_") else size, 3)[axis]


def right_inputs(size: int) -> dict[str, Array]:
    rng = np.random.default_rng(size)
    inputs = {"x": rng.standard_normal((size, 3)).astype(np.float32)}
    for name, (dtype, shape, axes) in INDICES.items():
        sizes = [extent_of(name, axis, size) for axis in axes]
        inputs[name] = np.stack(
            [rng.integers(-s, s, shape[:-1] if len(axes) > 1 else shape) for s in sizes], -1
        ).reshape(shape).astype(dtype)  # fmt: skip
    # ScatterElements is not defined for two updates of one element.
    inputs["to_lines"] = np.stack([rng.permutation(4)[:2] for _ in range(3)], 1).astype(np.int64)
    inputs["new"] = rng.standard_normal((2, 3)).astype(np.float32)
    inputs["w"] = rng.standard_normal((4, 3)).astype(np.float32)
    return inputs


def bent_cases(size: int) -> list[tuple[str, int, int, int]]:
    """(input, position, axis of x, value): the least and greatest indices allowed, and those beyond."""
    cases = []
    for name, (dtype, shape, axes) in INDICES.items():
        for position in (0, int(np.prod(shape)) - 1):
            axis = axes[position % len(axes)]
            extent = extent_of(name, axis, size)
            far = [2**31 - 1, -(2**31)] if dtype == "int32" else [2**40, -(2**40), 2**32, 2**63 - 1, -(2**63)]
            for value in (-extent, extent - 1, extent, -extent - 1, *far):
                cases.append((name, position, axis, value))
    return cases


@pytest.mark.parametrize("open_size", [False, True], ids=["fixed", "dynamic"])
def test_checked_as_onnxruntime_checks(models: Callable[..., Model], open_size: bool) -> None:
    model, refused = models(open_size, "indices"), 0
    for size in (2, 4, 6) if open_size else (4,):
        assert model.run(right_inputs(size))[0] == 0
        for name, position, axis, value in bent_cases(size):
            inputs = right_inputs(size)
            inputs[name].reshape(-1)[position] = value
            status, text, outputs = model.run(inputs)
            try:
                want = model.reference.run(None, inputs)
            except Exception as error:  # its own class of exceptions
                assert "indic" in str(error) or "index" in str(error), error
                extent = extent_of(name, axis, size)
                assert (status, text) == (
                    BAD_INDEX, f"{name} axis {axis}: index {value}, allowed {-extent}..{extent - 1}"
                )  # fmt: skip
                refused += 1
                continue
            assert status == 0, (name, position, value, text)
            for index in (0, 1, 2, 4) if name == "to_lines" else range(6):
                np.testing.assert_allclose(outputs[index], want[index], rtol=1e-6)
    assert refused > 50


def _clamped(values: Array, size: int) -> Array:
    wide = values.astype(object)
    return np.clip(np.where(wide < 0, wide + size, wide), 0, size - 1).astype(np.int64)


@pytest.mark.parametrize("open_size", [False, True], ids=["fixed", "dynamic"])
def test_unchecked_are_clamped_where_they_read_and_dropped_where_they_write(
    models: Callable[..., Model], open_size: bool
) -> None:
    model = models(open_size, None)
    assert not [label for label in model.steps if label.startswith("indices of")]
    for size in (2, 4, 6) if open_size else (4,):
        for name, position, _, value in bent_cases(size):
            inputs = right_inputs(size)
            inputs[name].reshape(-1)[position] = value
            status, text, outputs = model.run(inputs)
            assert (status, text) == (0, "session: no error")
            x, new, w = inputs["x"], inputs["new"], inputs["w"]
            np.testing.assert_array_equal(outputs[0], x[_clamped(inputs["rows"], size)])
            lines = _clamped(inputs["lines"], size)
            np.testing.assert_array_equal(outputs[1], np.take_along_axis(x, lines, 0))
            points = inputs["points"]
            at = _clamped(points[:, 0], size), _clamped(points[:, 1], 3)
            np.testing.assert_array_equal(outputs[2], x[at])
            put, added = w.copy(), w.copy()
            for row in range(2):
                for column in range(3):
                    place = int(inputs["to_lines"][row, column])
                    if -4 <= place < 4:
                        put[place, column] = new[row, column]
                place = int(inputs["to_rows"][row, 0])
                if -4 <= place < 4:
                    added[place] += new[row]
            if name != "to_lines" or not -4 <= value < 4:
                np.testing.assert_array_equal(outputs[3], put)
            np.testing.assert_allclose(outputs[4], added, rtol=1e-6)


def test_computed_indices_are_checked_before_they_are_read(tmp_path: Path) -> None:
    text = "g (float[4,3] x, float[n,4] s) => (float[n,3] y) { a = ArgMax<axis = 1, keepdims = 0>(s)"
    text += " b = Add(a, one) y = Gather<axis = 0>(x, b) }"
    path = write(tmp_path / "m.onnx", text, one=np.array([1]))
    mod, _ = imported(path, DIMS)
    steps = lower(
        simplify(mod), Lowering("m", load_target("x86_64_v2").for_variant("v2"), "none", checks="indices")
    )
    labels = [step.label for step in steps.steps]
    assert labels[-3:] == ["indices of take", "less+add+where", "take"], labels
    check = steps.steps[labels.index("indices of take")]
    assert steps.root(check.args[0]).kind == "activation" and check.writes == check.args[:1]


@pytest.mark.parametrize("operator", ["Gather<axis = 0>", "GatherND", "ScatterND"])
def test_a_constant_index_outside_is_refused_when_the_model_is_imported(
    operator: str, tmp_path: Path
) -> None:
    shape, more = ("4", ", new") if operator == "ScatterND" else ("1", "")
    text = f"g (float[4,3] x, float[1,3] new) => (float[{shape},3] y) {{ y = {operator}(x, i{more}) }}"
    for index, good in ((3, True), (-4, True), (4, False), (-5, False)):
        values = np.array([index] if "axis" in operator else [[index]], np.int64)
        path = write(tmp_path / "m.onnx", text, i=values)
        if good:
            imported(path, {})
        else:
            with pytest.raises(KilnError, match=rf"it selects index {index} .*allowed: -4\.\.3"):
                imported(path, {})


def test_an_axis_that_may_be_empty_is_always_checked(tmp_path: Path) -> None:
    text = "g (float[n,3] x, int64[2] i) => (float[2,3] y) { y = Gather<axis = 0>(x, i) }"
    path = write(tmp_path / "m.onnx", text)
    for least, labels in ((0, 1), (1, 0)):
        mod, _ = imported(path, {"n": (least, 6)})
        steps = lower(simplify(mod), Lowering("m", load_target("x86_64_v2").for_variant("v2"), "none"))
        assert [step.label for step in steps.steps].count("indices of take") == labels
    mod, _ = imported(path, {"n": (1, 6)})
    with pytest.raises(KilnError, match="operator 'take': its indices have to be checked"):
        index_checks("m", True, gpu=True)(simplify(mod))


@pytest.mark.parametrize("name", ["RoiAlign", "MaxRoiPool"])
def test_a_region_of_no_picture_is_taken_from_the_nearest(name: str, tmp_path: Path) -> None:
    text = "g (float[2,3,8,8] x, float[4,4] r, int64[4] b) => (float[4,3,2,2] y) { y = RoiAlign"
    text += "<output_height = 2, output_width = 2>(x, r, b) }"
    if name == "MaxRoiPool":
        text = "g (float[2,3,8,8] x, float[4,5] r) => (float[4,3,2,2] y) { y = MaxRoiPool"
        text += "<pooled_shape = [2, 2]>(x, r) }"
    mod, _ = imported(write(tmp_path / "m.onnx", text, opset=16), {})
    compiled = Compiled(simplify(mod), runnable("x86_64_v2"), tmp_path).load()
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    corners = np.array([[0, 0, 7, 7], [1, 2, 6, 5], [2, 2, 4, 4], [0, 3, 5, 7]], np.float32)

    def run(*pictures: int) -> Array:
        column = np.array(pictures, np.int64)
        joined = np.concatenate([column[:, None].astype(np.float32), corners], 1)
        result: Array = compiled.separate([x, corners, column] if name == "RoiAlign" else [x, joined])[0]
        return result

    np.testing.assert_array_equal(run(2**20, -1, 2, -(2**20)), run(1, 0, 1, 0))
    assert not np.array_equal(run(0, 0, 0, 0), run(1, 1, 1, 1))
