"""TFLite files with windows along axes of dynamic or open sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from kiln.errors import KilnError
from kiln.frontend.tflite.files import packed
from kiln.golden.reference import open_reference
from symbolic import imported, runner
from tflite_files import Tensor, flattened, pool, write


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


@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_windows_that_the_least_size_does_not_hold(tmp_path: Path, kind: str) -> None:
    """LiteRT's kernels may end in a signal there."""
    path = pool(tmp_path / "m.tflite", (1, -1, 6, 3))
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    code = getattr(schema.BuiltinOperator, kind)
    model.operatorCodes[0].builtinCode = model.operatorCodes[0].deprecatedBuiltinCode = code
    model.subgraphs[0].operators[0].builtinOptions.padding = schema.Padding.VALID
    path.write_bytes(packed(model))
    with pytest.raises(KilnError, match=rf"the windows of {kind} \(output y\) are larger than its input"):
        imported(path, {"side": (2, 9)}, {"x": [1, "side", 6, 3]})


def strided(path: Path, padding: int, stride: int) -> Path:
    """Windows of 3 x 3 with a stride along an axis that the file marks as dynamic, as a vector."""
    path = flattened(pool(path, (1, -1, 6, 3)), 1)
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    options = model.subgraphs[0].operators[0].builtinOptions
    options.padding, options.strideH = padding, stride
    path.write_bytes(packed(model))
    return path


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows_with_a_stride_along_a_dynamic_axis(tmp_path: Path, padding: str) -> None:
    """Sizes that are multiples of the stride: the number of windows grows by one from each to the next."""
    path = strided(tmp_path / "m.tflite", getattr(schema.Padding, padding), 4)
    module, interface = imported(path, {"side": (4, 24, 4)}, {"x": [1, "side", 6, 3]})
    assert "side" in str(interface.outputs[0].shape)
    run = runner(module)
    for size in (8, 12, 24):
        x = np.random.default_rng(size).normal(size=(1, size, 6, 3)).astype(np.float32)
        (expected,) = open_reference(path, "auto", [x.shape]).run([x])
        np.testing.assert_array_equal(run([x], {"side": size})[0], expected)


@pytest.mark.parametrize(
    ("padding", "least", "greatest", "stride"),
    [("VALID", 3, 30, 9), ("VALID", 3, 30, 2), ("SAME", 3, 18, 6), ("SAME", 5, 9, 6), ("SAME", 3, 9, 2)],
)
def test_windows_with_a_stride_need_multiples_of_it(
    tmp_path: Path, padding: str, least: int, greatest: int, stride: int
) -> None:
    """Also where the sizes that are compared first have as many windows, or no padding."""
    path = strided(tmp_path / "m.tflite", getattr(schema.Padding, padding), stride)
    with pytest.raises(KilnError, match=r"with windows of a stride, give the dimension a 'multiple' that"):
        imported(path, {"side": (least, greatest)}, {"x": [1, "side", 6, 3]})


@pytest.mark.parametrize(("place", "least"), [(-2, 2), (0, 1), (-1, 1), (2, 3)])
def test_an_element_along_a_dynamic_axis(tmp_path: Path, place: int, least: int) -> None:
    """Sizes at which it does not exist are refused: the result was never written."""
    options = schema.StridedSliceOptionsT()
    options.shrinkAxisMask = 2
    limits = [(0, place), (99, place + 1 if place + 1 else 99), (1, 1)]
    constants = [Tensor(f"n{n}", (2,), "int32", data=np.int32(pair)) for n, pair in enumerate(limits)]
    tensors = [Tensor("x", (3, 4), signature=(3, -1)), *constants, Tensor("y", (3,))]
    path = write(
        tmp_path / "m.tflite", tensors, schema.BuiltinOperator.STRIDED_SLICE, options, [0, 1, 2, 3], [4]
    )
    run = runner(imported(path, {"n": (least, 6)}, {"x": [3, "n"]})[0])
    for size in (least, 6):
        x = np.random.default_rng(size).normal(size=(3, size)).astype(np.float32)
        np.testing.assert_array_equal(run([x], {"n": size})[0], x[:, place])
    if least > 1:
        with pytest.raises(KilnError, match="takes along axis 1 does not exist at the least size"):
            imported(path, {"n": (least - 1, 6)}, {"x": [3, "n"]})
