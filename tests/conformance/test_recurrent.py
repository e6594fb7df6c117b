"""LSTM, GRU and RNN from ONNX files, through import, simplification and kernels, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.errors import KilnError
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from symbolic import imported, write

from .lowered import Compiled, close, runnable

STEPS, BATCH, WIDTH, HIDDEN = 4, 2, 5, 11
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _file(path: Path, kind: str, options: str, directions: int = 1, steps: int = STEPS) -> Path:
    """One layer with outputs of every kind; the initial state h is an input."""
    rng = np.random.default_rng(5)
    gates = GATES[kind] * HIDDEN

    def weights(*shape: int) -> Any:
        return rng.uniform(-1, 1, (directions, *shape)).astype("f4")

    last = f"float[{directions},{BATCH},{HIDDEN}]"
    outputs = {"y": f"float[{steps},{directions},{BATCH},{HIDDEN}]", "end": last}
    if kind == "LSTM":
        outputs["memory"] = last
    declared = ", ".join(f"{dtype} {name}" for name, dtype in outputs.items())
    text = (
        f"g (float[{steps},{BATCH},{WIDTH}] x, {last} h) => ({declared}) "
        f"{{ {', '.join(outputs)} = {kind}<hidden_size={HIDDEN}{options}>(x, w, r, b, , h) }}"
    )
    return write(path, text, 14, w=weights(gates, WIDTH), r=weights(gates, HIDDEN), b=weights(2 * gates))


@pytest.mark.parametrize(
    ("kind", "options", "directions"),
    [
        ("LSTM", ', direction="bidirectional"', 2),
        ("LSTM", ', direction="reverse"', 1),
        ("GRU", "", 1),
        ("GRU", ', linear_before_reset=1, direction="bidirectional"', 2),
        ("RNN", "", 1),
    ],
)
def test_layer(kind: str, options: str, directions: int, tmp_path: Path) -> None:
    path = _file(tmp_path / "m.onnx", kind, options, directions)
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (STEPS, BATCH, WIDTH)).astype("f4")
    h = rng.uniform(-1, 1, (directions, BATCH, HIDDEN)).astype("f4")
    made = simplify(imported(path, {})[0])
    compiled = Compiled(made, runnable("x86_64"), tmp_path).load()
    assert "opaque" not in compiled.families
    wanted = open_reference(path).run([x, h])
    for got, want in zip(compiled.run([x, h]), wanted, strict=True):
        close(got, want, 1e-5)


def test_all_steps_are_the_same_kernels(tmp_path: Path) -> None:
    counts = []
    for steps in (4, 9):
        made = simplify(imported(_file(tmp_path / "m.onnx", "GRU", "", steps=steps), {})[0])
        counts.append(len(Compiled(made, runnable("x86_64"), tmp_path).kernels))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("options", "steps", "told"),
    [
        (', activations=["Relu", "Tanh", "Tanh"]', 4, "activations Relu, Tanh, Tanh: allowed: sigmoid"),
        (", clip=3.0", 4, "attribute 'clip' must be left out"),
        ("", 513, "a sequence of 513 steps"),
    ],
)
def test_what_is_not_taken_is_named(options: str, steps: int, told: str, tmp_path: Path) -> None:
    path = _file(tmp_path / "m.onnx", "LSTM", options, steps=steps)
    with pytest.raises(KilnError, match=rf"LSTM \(node .*\): {told}"):
        imported(path, {})
