"""Operators on drawn ranks, sizes, attributes and operator sets against ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from .drawn_operators.case import DrawnCase, cases_of, compare_case, described, fixed_case, load_case
from .drawn_operators.draw import Input, Node
from .drawn_operators.empty import empty_cases
from .drawn_operators.narrow_floats import narrow_cases
from .drawn_operators.operators import MAKERS
from .onnx_nodes.results import PASS, REFUSED
from .onnx_nodes.worker import run_all

# By operator, seeds of cases that once were wrong, crashed or were refused without need.
SAMPLE: dict[str, tuple[int, ...]] = {
    "AffineGrid": (5,),  # sizes of the run
    "ArgMax": (2,),  # an axis from the end in an early operator set
    "CausalConvWithState": (1,),
    "CDist": (1,),
    "Celu": (2, 101),  # an early operator set; a scalar
    "Chain": (101, 104, 111),
    "CenterCropPad": (1,),  # sizes of the run along a dynamic axis
    "Clip": (2,),  # integers without limits
    # Attributes that calls leave to functions; a loop that never runs; one without a first condition.
    "Control": (5, 51, 120),
    "CropAndResize": (0, 1),  # nearest and bilinear
    "DeformConv": (3,),
    "EmbedLayerNormalization": (11,),  # positions of a dynamic length
    "FusedConv": (3,),
    "FusedGemm": (1,),
    "GatherBlockQuantized": (1, 2),
    "GroupQueryAttention": (5,),  # pasts of different lengths
    "GroupNormalization": (6,),  # a scale for each group
    "Hardmax": (3,),
    "Inverse": (3,),
    "LabelEncoder": (20,),  # a default that is a tensor, of values that are a list
    "LayerNormalization": (0, 105),  # float64; the deviation of one element
    "LinearAttention": (2,),
    "LpPool": (2,),  # windows that end after all elements
    "MatMulBnb4": (1, 2),
    "MatMulInteger16": (1,),
    "MaxPool": (3,),  # ceil_mode along a dynamic axis
    "MoE": (31,),
    "MRotaryEmbedding": (1,),
    "NGramRepeatBlock": (1, 2),
    "Pad": (1, 3),  # a mode that cuts and pads; wrapped around an axis that is shorter
    "QMoE": (1,),
    "Resize": (7,),  # the rounding of operator set 10
    "RoiAlign": (1, 105),  # the default of an early operator set; a dynamic number of images
    "Sign": (104,),  # of integers without a sign
    "Sin": (105,),  # float64
    "Slice": (0, 3, 10, 6001),  # … backwards from before the axis, along fixed axes of a dynamic tensor
    "SimplifiedLayerNormalization": (5,),  # over all axes
    "STFT": (3,),  # a window of the run, a dynamic signal
    "Tile": (5,),
    "TopK": (7, 30),  # k as an input and as an attribute of early operator sets
    "UnfoldTensor": (2,),
    "WindowedAttention": (12, 27),  # a cache with as many positions as the window, and with more
}
# … of tensors without elements, among them a result whose size is counted.
EMPTY = {
    "BatchNormalization": 0,
    "DepthToSpace": 0,
    "Flatten": 1,
    "ReverseSequence": 0,
    "SpaceToDepth": 1,
    "TopK": 3,
}
# What a message of a refusal must not contain: it would be text of a library, without a way round.
_FOREIGN = re.compile(r"Check failed|R\.Tensor|T\.\w+\(|do not fit together|cannot find variable|'NoneType'")


def run(cases: Sequence[DrawnCase], jobs: int = 1, refusals: bool = False) -> None:
    """Fail for a case that does not agree; `refusals`: a refusal in terms of the file is none."""
    by_name = {case.name: case for case in cases}
    wrong = [
        f"{result.outcome} {result.name}: {result.detail}\n  {described(by_name[result.name])}"
        for result in run_all(cases, jobs, load_case, compare_case)
        if result.outcome != PASS
        and not (refusals and result.outcome == REFUSED and not _FOREIGN.search(result.detail))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.heavy) for part in (1, 2))])
def test_a_sample_of_drawn_operators(part: int) -> None:
    cases = [case for name, seeds in SAMPLE.items() for case in cases_of(name, MAKERS[name], seeds)]
    assert len(cases) == sum(map(len, SAMPLE.values())), "the reference takes all of them"
    run(cases[part::3])


def test_tensors_without_elements() -> None:
    cases = [case for name, seed in EMPTY.items() for case in empty_cases(name, MAKERS[name], [seed])]
    assert len(cases) == len(EMPTY), "the reference takes all of them"
    run(cases)


@pytest.mark.heavy
def test_narrow_floats() -> None:
    chosen = {"GroupQueryAttention": ("float16", 1), "Conv": ("bfloat16", 0), "MatMul": ("bfloat16", 3)}
    cases = [
        case
        for name, (kind, seed) in chosen.items()
        for case in narrow_cases(cases_of, kind, name, MAKERS[name], [seed])
    ]
    assert len(cases) == len(chosen), "the reference takes all of them"
    run(cases)


def _named(array: Any) -> Any:
    """An array in the name of a case: its elements, or its shape where they are many."""
    return array.tolist() if array.size <= 8 else array.shape


def made(
    name: str, *inputs: Any, expected: Any = None, opset: int = 18, data: int = 1, **attributes: Any
) -> DrawnCase:
    """A node with given inputs, the first `data` as data; None: omitted. expected: one or several results."""
    given = [
        None if value is None else Input(np.asarray(value), number >= data)
        for number, value in enumerate(inputs)
    ]
    domain = attributes.pop("domain", "")
    results = expected if expected is None or isinstance(expected, list) else [expected]
    node = Node(name, given, attributes, len(results or [0]), opset, domain)
    others = [_named(np.asarray(one)) for one in inputs[2:]]
    case = fixed_case(f"{name}/{np.asarray(inputs[0]).dtype} {attributes} {others}", node, results)
    assert case is not None, "the reference takes it"
    return case


def test_nodes_that_no_seed_draws() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 4)).astype("f4")
    columns = [np.abs(rng.normal(size=3)) + 0.5 for _ in range(4)]
    scale, bias, mean, variance = (column.reshape(1, 3, 1) for column in columns)
    normal = ((x - mean) / np.sqrt(variance + 1e-5) * scale + bias).astype("f4")
    flags, rows = np.array([[True, False], [False, False]]), np.array([[0], [1], [0]])
    picture = rng.normal(size=(1, 1, 3, 10)).astype("f4")
    cases = [made("BatchNormalization", x, *columns, expected=normal)]
    for reduction in ("add", "mul"):
        updates = np.array([[True, True], [True, False], [False, True]])
        cases.append(made("ScatterND", flags, rows, updates, reduction=reduction))
    for size in (1 / 3, 0.7, 0.1):  # 10 * 0.1 is one element, 9 / 3 ends where an element begins
        for how in ("asymmetric", "half_pixel"):
            scales = np.array([1, 1, 1, size], "f4")
            cases.append(made("Resize", picture, None, scales, nearest_mode="floor",
                              coordinate_transformation_mode=how))  # fmt: skip
    small = np.array([1, 1, 1, 0.1], "f4")
    cases.append(made("Resize", picture[..., :7], None, small))  # no element is left
    one_column = np.array([1, 1, 4, 1])  # an axis of one element has the first as its place
    how = "pytorch_half_pixel"
    for mode, antialias in (("cubic", 0), ("linear", 1)):
        cases.append(made("Resize", picture, None, None, one_column, mode=mode, antialias=antialias,
                          coordinate_transformation_mode=how))  # fmt: skip
    huge = np.float64([[[1e300, -1e300, 1, 2]]])  # none of float32
    places = np.interp(np.arange(8) / 2 - 0.25, np.arange(4), huge[0, 0]).reshape(1, 1, 8)
    for mode, expected in (("nearest", np.repeat(huge, 2, -1)), ("linear", places)):
        cases.append(made("Resize", huge, None, np.array([1, 1, 2], "f4"), expected=expected, mode=mode))
    for mode in ("reflect", "wrap", "edge"):  # what is cut off is not repeated, also by amounts of the run
        cases.append(made("Pad", x, np.array([0, -1, -2, 1, 1, 1]), mode=mode, opset=21, data=2))
    for axis, pads, at in ((2, [-4, 6], 3), (-1, [6, -5], 0)):  # none is left: copies of the nearest one
        nearest, given = np.repeat(x[..., at : at + 1], 4 + sum(pads), -1), (np.array(pads), None)
        cases.append(made("Pad", x, *given, np.array([axis]), expected=nearest, mode="edge", opset=21))
    none = [x[:, :0], np.zeros((2, 0, 4), "i8")]
    cases.append(made("TopK", x, np.array([0]), expected=none, axis=1))
    taps = rng.normal(size=(3, 2, 3)).astype("f4")
    moved = np.zeros((2, 2, 18), "f4")  # elements after the result take the place of pads
    for step, tap in np.ndindex(4, 3):
        moved[..., 2 * step + 4 * tap] += x[..., step] @ taps[..., tap]
    window = {"pads": [1, 2], "strides": [2], "output_padding": [3], "dilations": [4]}
    cases.append(made("ConvTranspose", x, taps, expected=moved[..., 1:16], **window))
    long = np.uint64([0, 3, 20, 2**63, 2**64 - 1])  # bounds that int64 has not
    cases.append(made("Clip", long, np.uint64(4), expected=np.maximum(long, np.uint64(4))))
    beyond = np.float32([1.5, -1.5, 127.9, 128, -129, 255.9, 256, 300, 32768, -32769, 65536, 2e9, -2e9, 0])
    for kind in ("INT8", "UINT8", "INT16", "UINT16", "INT32"):  # the low bits of an int32
        cases.append(made("Cast", beyond, to=getattr(TensorProto, kind)))
    run(cases)


def test_types_and_ranks_that_no_seed_draws() -> None:
    """Cases that ONNX Runtime does not compute."""
    rng = np.random.default_rng(4)
    x, low = rng.normal(size=(2, 3, 4)) * 1e100, rng.normal(size=(3, 4))  # float32 has no squares of x
    columns = [rng.normal(size=3) for _ in range(4)]
    mean = x.mean((0, 2), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2), keepdims=True)
    normal = (x - mean) / np.sqrt(variance)
    normal = normal * columns[0].reshape(1, 3, 1) + columns[1].reshape(1, 3, 1)
    running = [mean.reshape(3) * 0.1, variance.reshape(3) * 0.1]
    cases = [made("BatchNormalization", x, *columns, expected=[normal, *running], training_mode=1)]
    for name, alpha, gamma in (("Elu", 1.5, 1.0), ("Selu", 1.25, 0.5)):
        curve = gamma * np.where(low > 0, low, alpha * (np.exp(low) - 1))
        given = {"alpha": alpha} | ({"gamma": gamma} if name == "Selu" else {})
        cases.append(made(name, low, expected=curve, **given))
    for shape, size, dtype in (((2, 5), 3, "f4"), ((1, 4, 2), 4, "f4"), ((1, 3, 1, 2, 2), 7, "f8")):
        data = rng.normal(size=shape).astype(dtype)
        before, count = (size - 1) // 2, shape[1]
        parts = [data[:, max(0, at - before) : at - before + size] ** 2 for at in range(count)]
        sums = np.stack([part.sum(1) for part in parts], 1)
        cases.append(made("LRN", data, size=size, alpha=0.5, expected=data / (1 + 0.5 / size * sums) ** 0.75))
    columns_of_image = rng.integers(0, 2, (1, 4, 3)).astype(bool)
    image = np.zeros((1, 2, 4), bool)
    for step, tap in np.ndindex(3, 2):
        image[:, :, step + tap] |= columns_of_image[:, tap::2, step]
    cases.append(made("Col2Im", columns_of_image, np.array([4]), np.array([2]), expected=image))
    cropped = np.pad(low[1:2], ((0, 0), (1, 1)))
    cases.append(made("CenterCropPad", low, np.array([1, 6], "i4"), expected=cropped))
    run(cases)


def evaluated(name: str, *inputs: Any, **attributes: Any) -> Any:
    """The result of a node by ONNX's evaluator; None: an omitted input."""
    names = ["" if value is None else f"x{number}" for number, value in enumerate(inputs)]
    node = helper.make_node(name, names, ["y"], **attributes)
    feeds = {at: value for at, value in zip(names, inputs, strict=True) if at}
    return ReferenceEvaluator(node).run(None, feeds)[0]


def test_recurrent_layers_of_float64() -> None:
    rng = np.random.default_rng(5)
    x, size = rng.normal(size=(3, 2, 4)), 1e100  # float32 has no such numbers
    w, r = rng.normal(size=(1, 5, 4)), rng.normal(size=(1, 5, 5)) * 0.5
    h, steps = np.zeros((2, 5)), []
    for step in x * size:
        h = np.maximum(step @ w[0].T + h @ r[0].T, 0)
        steps.append(h)
    more = {"hidden_size": 5, "activations": ["Relu"]}
    cases = [made("RNN", x * size, w, r, expected=np.stack(steps)[:, None], opset=22, **more)]
    w, r = rng.normal(size=(1, 20, 4)), rng.normal(size=(1, 20, 5))
    cases.append(
        made("LSTM", x, w, r, expected=evaluated("LSTM", x, w, r, hidden_size=5), opset=22, hidden_size=5)
    )
    w, r = rng.normal(size=(1, 15, 4)), rng.normal(size=(1, 15, 5))
    cases.append(
        made("GRU", x, w, r, expected=evaluated("GRU", x, w, r, hidden_size=5), opset=22, hidden_size=5)
    )
    run(cases)


def test_integers_between_elements() -> None:
    """Resize and GridSample of integers."""
    rng = np.random.default_rng(6)
    sizes, small = np.array([1, 2, 12, 14]), np.array([1, 2, 3, 5])
    x = rng.integers(0, 256, (1, 2, 6, 7))
    cases = []
    for dtype, mode in (("int16", "cubic"), ("uint8", "cubic"), ("int64", "linear"), ("uint32", "linear")):
        given = (x.astype(dtype), None, None, sizes)
        cases.append(made("Resize", *given, expected=evaluated("Resize", *given, mode=mode), mode=mode))
    for dtype, mode in (("uint8", "linear"), ("int32", "cubic")):  # of ONNX Runtime
        cases.append(made("Resize", x.astype(dtype), None, None, small, mode=mode, antialias=1))
    grid = rng.uniform(-1.2, 1.2, (1, 4, 5, 2)).astype("f4")
    for dtype in ("uint8", "int32", "bool"):
        given = x > 128 if dtype == "bool" else x.astype(dtype)
        samples = evaluated("GridSample", given.astype("f8"), grid).astype(dtype)
        cases.append(made("GridSample", given, grid, expected=samples, opset=20, data=2))
    run(cases)


def test_sizes_of_the_run_that_no_seed_draws() -> None:
    rng = np.random.default_rng(7)
    signal = rng.normal(size=(1, 10, 1)).astype("f4")
    cases = [made("NonZero", np.float32(3))]  # one axis, as in ONNX Runtime
    for length, one_sided in ((7, 0), (12, 1)):
        cases.append(made("DFT", signal, np.int64(length), data=2, axis=1, onesided=one_sided))
    blocks = rng.normal(size=(1, 8, 6)).astype("f4")
    cases.append(made("Col2Im", blocks, np.array([4, 3]), np.array([2, 2]), data=2))
    whole = np.int8([-9, -2, 0, 1, 2, 9])
    cases.append(made("Erf", whole, expected=np.int8([-1, 0, 0, 0, 0, 1]), opset=9))
    run(cases)


@pytest.mark.heavy
def test_all_drawn_operators() -> None:
    cases = [case for name, maker in MAKERS.items() for case in cases_of(name, maker, range(8))]
    assert len(cases) > 1000
    run(cases, jobs=2, refusals=True)
