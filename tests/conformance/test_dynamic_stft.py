"""STFT of signals of dynamic length, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.golden.reference import open_reference
from symbolic import write

from .lowered import close
from .programs import Program

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("attributes", ["", pytest.param("<onesided = 0>", marks=pytest.mark.heavy)])
def test_stft_of_a_signal_of_any_length(attributes: str, tmp_path: Path) -> None:
    text = f"g (float[b,s,1] x) => (float[b,?,?,2] y) {{ y = STFT{attributes}(x, step, window) }}"
    weights = {"step": np.array(4), "window": RNG.normal(size=16).astype("f4")}
    path = write(tmp_path / "m.onnx", text, 17, **weights)
    program, reference = Program(path, {"b": (1, 3), "s": (16, 90)}), open_reference(path)
    for b, s in ((1, 16), (3, 90), (2, 31)):
        x = RNG.normal(size=(b, s, 1)).astype("f4")
        close(program.run([x], {"b": b, "s": s})[0], reference.run([x])[0])


def test_stft_of_a_signal_without_an_axis_of_parts(tmp_path: Path) -> None:
    """As PyTorch exports it, before weights for the frequencies of a real signal; also of a fixed length."""
    text = """g (float[b,SAMPLES] x) => (float[b,f,3] y) {
      pairs = STFT(x, step, window)
      power = ReduceSumSquare<axes=[-1], keepdims=0>(pairs)
      y = MatMul(power, mel) }"""
    weights: dict[str, Any] = {"step": np.array(4), "window": RNG.normal(size=16).astype("f4")}
    weights["mel"] = RNG.uniform(0, 0.2, (9, 3)).astype("f4")
    for samples, tried in (("s", [(1, 16), (3, 90)]), ("50", [(2, 50)])):
        path = write(tmp_path / f"{samples}.onnx", text.replace("SAMPLES", samples), 17, **weights)
        ranges = {"b": (1, 3), "s": (16, 90)}
        names = ["b", "s"] if samples == "s" else ["b"]
        program, reference = Program(path, {name: ranges[name] for name in names}), open_reference(path)
        for shape in tried:
            x = RNG.normal(size=shape).astype("f4")
            close(program.run([x], dict(zip(names, shape, strict=False)))[0], reference.run([x])[0], 1e-4)
