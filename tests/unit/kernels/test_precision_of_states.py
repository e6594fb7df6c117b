"""The measured error of rounded weights in a model whose runs leave values for the next one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from kiln.config.interface import StateRecord
from kiln.config.measured_errors import OutputError
from kiln.golden.schema import GoldenEntry, GoldenTensor
from kiln.params import store
from kiln.precision.stage import _errors_of_vectors
from relaxed import module
from tvm import relax

LIMITS = {"absolute": 1e-6, "relative": 0.0, "levels": 1, "outputs": {}}


def test_runs_of_a_sequence_hand_the_state_on(tmp_path: Path) -> None:
    """h = h + x from 0.5 on, y = 2 h: two sequences of two runs, the second of which starts anew."""

    def body(x: relax.Expr, h: relax.Expr) -> list[relax.Expr]:
        total = relax.op.add(h, x)
        return [relax.op.multiply(total, relax.const(2.0, "float32")), total]

    mod = module([((3,), "float32"), ((3,), "float32")], body)
    store.save(mod, tmp_path)
    vectors = []
    for number, (run, x, y) in enumerate([(0, 1.0, 3.0), (1, 2.0, 7.0), (0, 3.0, 7.0), (1, 0.0, 7.0)]):
        for name, value in (("x", x), ("y", y)):
            np.full(3, value, "<f4").tofile(tmp_path / f"{name}{number}.bin")
        x_entry, y_entry = (
            GoldenTensor(file=f"{name}{number}.bin", name=name, dtype="float32", shape=[3]) for name in "xy"
        )
        vectors.append(GoldenEntry(name=f"v{number}", run=run, inputs=[x_entry], outputs=[y_entry]))
    states = [StateRecord(name="h", dtype="float32", shape=[3], initial=0.5, input=1, output=1)]
    rows = _errors_of_vectors(tmp_path, "fp32", tmp_path, vectors, LIMITS, Counter(), states)
    unit = rows[0].outputs[0].unit
    same = OutputError(name="y", error=0.0, limit=1e-6, unit=unit, passed=True)
    assert [row.outputs for row in rows] == [[same]] * 4
