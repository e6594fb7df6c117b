"""A small sentence encoder with both axes of its input dynamic, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kiln.golden.reference import open_reference
from sentence_encoder import WORDS, encoder

from .lowered import close
from .programs import Program


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Any]:
    path = encoder(tmp_path_factory.mktemp("encoder") / "m.onnx")
    return Program(path, {"batch": (1, 3), "seq": (5, 40)}), open_reference(path)


@pytest.mark.parametrize("batch, seq", [(1, 5), (3, 17), (2, 40)])
def test_a_sentence_encoder(built: tuple[Program, Any], batch: int, seq: int) -> None:
    program, reference = built
    rng = np.random.default_rng(seq)
    ids = rng.integers(0, WORDS, (batch, seq))
    mask = (np.arange(seq)[None] < rng.integers(1, seq + 1, (batch, 1))).astype("int64")
    (ours,) = program.run([ids, mask], {"batch": batch, "seq": seq})
    (theirs,) = reference.run([ids, mask])
    close(ours, theirs, 1e-5)
