"""TFLite files whose inputs have open sizes, with others in their place that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from symbolic import imported
from tflite_files import Tensor, write


@pytest.mark.parametrize("open_axis", [True, False])
def test_a_size_that_holds_no_window_is_asked_for(tmp_path: Path, open_axis: bool) -> None:
    """The file has 1 where any size may be, as in sound of any length."""
    options = schema.Pool2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.VALID, 1, 1
    options.filterHeight, options.filterWidth = 3, 1
    signature = (1, -1, 1, 1) if open_axis else None
    tensors = [Tensor(name, (1, 1, 1, 1), signature=signature) for name in ("x", "y")]
    path = write(tmp_path / "m.tflite", tensors, schema.BuiltinOperator.MAX_POOL_2D, options, [0], [1])
    with pytest.raises(KilnError) as caught:
        imported(path, {})
    asked = "leaves sizes of 'x' open, and LiteRT cannot compute with those that it has instead: give others"
    assert (asked in str(caught.value)) == open_axis
