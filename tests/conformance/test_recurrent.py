"""LSTM, GRU and RNN from ONNX files, compiled, against ONNX Runtime; many cases are one program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.steps import Steps
from symbolic import imported, write

from .lowered import Compiled, close, loaded, runnable, runnable_alone
from .programs import compile_unoptimised, execute

WIDTH, MOST = 5, 9
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Case:
    """A layer. `length` or `batch` 0: dynamic. `given`: optional inputs. `weights`: whether they are known.

    `stored`: the type whose numbers the weights of the state are.
    """

    kind: str
    options: str = ""
    directions: int = 1
    hidden: int = 11
    length: int = 4
    batch: int = 2
    given: tuple[str, ...] = ()
    weights: bool = True
    layout: int = 0
    stored: str = "float32"

    def write(self, path: Path) -> Path:
        gates, hidden, sides = GATES[self.kind] * self.hidden, self.hidden, self.directions
        rng = np.random.default_rng(5)
        length, batch = self.length or "steps", self.batch or "rows"
        x = (batch, length, WIDTH) if self.layout else (length, batch, WIDTH)
        state = (batch, sides, hidden) if self.layout else (sides, batch, hidden)
        y = (batch, length, sides, hidden) if self.layout else (length, sides, batch, hidden)
        inputs = {"x": ("float", x)}
        constants = {
            "w": rng.uniform(-0.6, 0.6, (sides, gates, WIDTH)).astype("f4"),
            "r": rng.uniform(-0.6, 0.6, (sides, gates, hidden)).astype("f4"),
        }
        constants["r"] = rounded(constants["r"], self.stored)
        if "b" in self.given:
            constants["b"] = rng.uniform(-1, 1, (sides, 2 * gates)).astype("f4")
        if "p" in self.given:
            constants["p"] = rng.uniform(-1, 1, (sides, 3 * hidden)).astype("f4")
        if not self.weights:
            inputs |= {name: ("float", value.shape) for name, value in constants.items()}
        inputs |= {"lens": ("int32", (batch,))} if "lens" in self.given else {}
        inputs |= {name: ("float", state) for name in ("h", "c") if name in self.given}
        outputs = {"y": y, "end": state} | ({"memory": state} if self.kind == "LSTM" else {})
        names = ["x", "w", "r", "b", "lens", "h", "c", "p"]
        used = [n if n in (*inputs, *constants) else "" for n in names]
        arguments = ", ".join(used).rstrip(", ")
        shown = ", ".join(f"{t}[{','.join(map(str, s))}] {n}" for n, (t, s) in inputs.items())
        results = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in outputs.items())
        options = f"hidden_size={hidden}{', layout=1' if self.layout else ''}{self.options}"
        text = f"g ({shown}) => ({results}) {{ {', '.join(outputs)} = {self.kind}<{options}>({arguments}) }}"
        return write(path, text, 14, **(constants if self.weights else {}))

    def inputs(self, length: int, batch: int) -> list[Any]:
        rng = np.random.default_rng(length + 100 * batch)
        state = (batch, self.directions, self.hidden) if self.layout else (
            self.directions, batch, self.hidden
        )  # fmt: skip
        x = (batch, length, WIDTH) if self.layout else (length, batch, WIDTH)
        arrays = [rng.uniform(-2, 2, x).astype("f4")]
        if not self.weights:
            gates = GATES[self.kind] * self.hidden
            for shape in ((gates, WIDTH), (gates, self.hidden)):
                arrays.append(rng.uniform(-0.6, 0.6, (self.directions, *shape)).astype("f4"))
            if "b" in self.given:
                arrays.append(rng.uniform(-1, 1, (self.directions, 2 * gates)).astype("f4"))
        if "lens" in self.given:
            arrays.append(rng.integers(1, length + 1, batch).astype("i4"))
        arrays += [rng.uniform(-1, 1, state).astype("f4") for name in ("h", "c") if name in self.given]
        return arrays

    def sizes(self) -> list[tuple[int, int]]:
        """Lengths and batches to run."""
        lengths = [self.length] if self.length else [1, 2, 5, MOST]
        batches = [self.batch] if self.batch else [1, 3, 6]
        return list(itertools.product(lengths, batches))


def rounded(weights: npt.NDArray[Any], stored: str) -> npt.NDArray[Any]:
    """Float32 weights whose numbers are those of a type; "uint8": levels of int8 with a zero point.

    "one": one number.
    """
    if stored == "one":
        return np.full_like(weights, 0.1)
    if stored in ("float32", "float16"):
        return weights.astype(stored).astype("f4")
    if stored == "bfloat16":
        return (weights.view("u4") & 0xFFFF0000).view("f4")
    most = 7 if stored == "int4" else 127
    scale = np.abs(weights).max(-1, keepdims=True) / np.float32(most)
    levels = np.rint(weights / scale)
    if stored == "uint8":
        levels = np.abs(levels) + np.arange(levels.shape[-1]) % 100
    return (levels * scale).astype("f4")


BOTH = ', direction="bidirectional"'
STATIC = [
    Case("LSTM", BOTH, 2, given=("b", "h")),
    Case("LSTM", ', direction="reverse"', given=("b", "h", "c", "lens"), batch=3),
    Case("LSTM", given=("b", "p", "c"), hidden=16),
    Case("LSTM", ", clip=0.4", given=("b", "p")),
    Case("LSTM", ", input_forget=1", given=("b",), hidden=8),
    Case("LSTM", BOTH, 2, weights=False, given=("b",)),
    Case("LSTM", ', activations=["HardSigmoid","Softsign","ScaledTanh"], activation_alpha=[0.3,1.2], '
         'activation_beta=[0.4,0.7]', given=("b",)),
    Case("GRU", hidden=70, batch=1, given=("b",)),
    Case("GRU", ", clip=0.3, linear_before_reset=1", given=("b",), batch=5),
    Case("GRU", ", clip=0.3", given=("b", "h")),
    Case("GRU", BOTH + ', activations=["Sigmoid","Relu","HardSigmoid","LeakyRelu"]', 2),
    Case("GRU", ", linear_before_reset=1", weights=False, given=("b",)),
    Case("RNN", BOTH + ', activations=["Affine","ThresholdedRelu"], activation_alpha=[0.5,0.1], '
         'activation_beta=[0.2]', 2),
    Case("RNN", ', activations=["Elu"]', given=("b",), batch=1, hidden=1),
    Case("RNN", ', activations=["Softplus"], clip=0.5', hidden=130, length=1),
]  # fmt: skip
OPEN = [
    Case("LSTM", BOTH, 2, length=0, batch=0, given=("b", "h", "c", "lens")),
    Case("LSTM", ', direction="reverse"', length=0, given=("b", "p"), batch=7),
    Case("GRU", BOTH + ", linear_before_reset=1", 2, length=0, given=("b", "lens"), batch=4),
    Case("GRU", length=0, batch=0, given=("h",)),
    Case("GRU", BOTH, 2, length=0, batch=1, weights=False, given=("b",)),
    Case("RNN", ', direction="reverse"', length=0, batch=1, hidden=33, given=("b", "h")),
]
STORED = [
    Case("LSTM", BOTH, 2, hidden=24, length=0, given=("b", "h"), stored="int8"),
    Case("GRU", ", linear_before_reset=1", hidden=70, batch=5, given=("b",), stored="uint8"),
    Case("GRU", BOTH, 2, hidden=24, stored="int4"),
    Case("LSTM", hidden=24, batch=1, stored="float16"),
    Case("RNN", hidden=33, stored="bfloat16"),
    Case("GRU", BOTH, 2, hidden=24, stored="one"),
]
CASES = [*STATIC, *OPEN, *STORED]
HEAVY = (1, 4, 6, 8, 13, 14, 16, 19)  # what they have, others have too
NUMBERS = [pytest.param(n, marks=[pytest.mark.heavy] * (n in HEAVY)) for n in range(len(CASES))]
Program = tuple[Steps, Path, Any]


@pytest.fixture(scope="module")
def in_gate(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Program]:
    return _compiled([n for n in range(len(CASES)) if n not in HEAVY], tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Program]:
    return _compiled(HEAVY, tmp_path_factory.mktemp("recurrent"))


@pytest.fixture
def program(number: int, request: pytest.FixtureRequest) -> Program:
    """The steps of a case, the path of its file, and the library with its kernels."""
    made: dict[int, Program] = request.getfixturevalue("heavy" if number in HEAVY else "in_gate")
    return made[number]


def _compiled(numbers: Iterable[int], folder: Path) -> dict[int, Program]:
    """Cases lowered and compiled as one library."""
    functions, made = {}, {}
    for number in numbers:
        case = CASES[number]
        path = case.write(folder / f"{number}.onnx")
        dims = {"steps": (0, MOST), "rows": (1, 6)}
        used = {n: r for n, r in dims.items() if not (case.length if n == "steps" else case.batch)}
        steps = lower(simplify(imported(path, used)[0]), Lowering("m", runnable_alone("x86_64"), "pthread"))
        functions.update(steps.functions)
        made[number] = steps, path
    compile_unoptimised(functions, folder / "all.o")
    library = loaded(folder / "all.o")
    return {number: (*found, library) for number, found in made.items()}


@pytest.mark.parametrize("number", NUMBERS)
def test_layer(number: int, program: Program) -> None:
    (steps, path, library), case = program, CASES[number]
    reference = open_reference(path)
    assert "opaque" not in {kernel.family for kernel in steps.kernels}
    for length, batch in case.sizes():
        inputs = case.inputs(length, batch)
        got = execute(steps, library, inputs, {"steps": length, "rows": batch})
        for ours, theirs in zip(got, reference.run(inputs), strict=True):
            close(ours, theirs, 1e-5)


@pytest.mark.parametrize("number", NUMBERS[-len(STORED) :])
def test_weights_of_the_state_are_stored_in_their_type(number: int, program: Program) -> None:
    """As levels of int8 with a scale for each column and direction, or as 16-bit floats."""
    (steps, *_), case = program, CASES[number]
    kernel = next(kernel for kernel in steps.kernels if kernel.family == "recurrent")
    types = [arg.dtype for arg in kernel.args if arg.const and not arg.scalar]
    stored = "uint16" if "float16" in case.stored else "int8"
    assert types.count(stored) == 1, types


@pytest.mark.parametrize("number", NUMBERS[len(STATIC) : -len(STORED)])
def test_no_step_leaves_the_states(number: int, program: Program) -> None:
    (steps, _, library), case = program, CASES[number]
    inputs = case.inputs(1, case.batch or 3)
    inputs[0] = inputs[0][:0]
    got = execute(steps, library, inputs, {"steps": 0, "rows": case.batch or 3})
    assert got[0].size == 0
    names = [name for name in ("h", "c") if name in case.given]
    given = dict(zip(names, inputs[len(inputs) - len(names) :], strict=True))
    for name, end in zip(("h", "c"), got[1:], strict=False):
        np.testing.assert_array_equal(end, given.get(name, np.zeros_like(end)))


def test_placement_and_tasks_change_nothing(tmp_path: Path) -> None:
    """As the plan places the tensors, and task by task, each byte is the same."""
    case = Case("GRU", BOTH, 2, hidden=70, length=30, batch=9, given=("b", "h"))
    made = simplify(imported(case.write(tmp_path / "m.onnx"), {})[0])
    compiled = Compiled(made, runnable("x86_64"), tmp_path).load()
    inputs = case.inputs(30, 9)
    assert any(kernel.parallel for kernel in compiled.kernels.values() if kernel.family == "recurrent")
    for ours, theirs in zip(
        compiled.run(inputs), open_reference(tmp_path / "m.onnx").run(inputs), strict=True
    ):
        close(ours, theirs, 1e-5)


def test_the_code_does_not_depend_on_the_length(tmp_path: Path) -> None:
    counts = []
    for steps in (4, 4096):
        path = Case("GRU", length=steps).write(tmp_path / "m.onnx")
        made = lower(simplify(imported(path, {})[0]), Lowering("m", runnable_alone("x86_64"), "pthread"))
        counts.append((len(made.steps), len(made.kernels)))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (', activations=["Cosh", "Tanh", "Tanh"]', "activations Cosh, Tanh, Tanh: allowed are 3 of affine, "),
        (', activations=["Relu"]', "activations Relu: allowed are 3 of affine, "),
        (", activation_alpha=[0.5]", "activation_alpha or activation_beta have 1 values more than sigmoid, "),
    ],
)
def test_what_is_not_taken_is_named(options: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=rf"LSTM \(node .*\): {told}"):
        imported(Case("LSTM", options).write(tmp_path / "m.onnx"), {})
