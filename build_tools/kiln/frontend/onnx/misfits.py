"""Why the inputs of a node do not fit together, in terms of the file: tensors, axes, sizes and types.

Libraries report such faults in their own words, some without sizes, or of tensors that the file does not
have. `reason` keeps the messages of Kiln's own converters, and explains all others.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from kiln.frontend.importer import one_line
from kiln.frontend.onnx.attributes import integer_attribute
from kiln.frontend.onnx.broadcast import BROADCAST
from kiln.frontend.size_of import plain_sizes
from kiln.onnx_domains import domain_of, is_onnx
from kiln.operators.registry import WAY

# By name of a tensor, its element type and sizes: numbers, or texts for dynamic ones.
Types = Mapping[str, tuple[str, Sequence[int | str]]]

_OWN_FOLDER = str(Path(__file__).resolve().parents[2])
# Messages of exceptions that Python itself raises in a converter that expects other shapes.
_PYTHON_MESSAGES = re.compile(
    r"values to unpack|zip\(\) argument|not in list|invalid literal|index out of range"
)
_LONGEST = 1000  # characters of a message of Kiln's own, whose last words are the remedy
_MOST_LISTED = 16  # elements of an attribute that a message shows
_SIZE = r"(?:T\.int64\()?(-?\w+)\)?"
_SHAPE = r"R\.shape\(\[(.*?)\]\)"
# What messages of TVM and ONNX mean.
_MEANINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            rf"first input shape at dim (\d+) is {_SIZE} and the second input shape at dim (\d+) is {_SIZE}"
        ),
        "sizes {1} (axis {0}) and {3} (axis {2}) do not broadcast",
    ),
    (
        re.compile(rf"Matmul requires the reduction length.*?{_SHAPE}.*?{_SHAPE}"),
        "a product of matrices of [{0}] and [{1}], whose inner sizes differ",
    ),
    (
        re.compile(rf"Reshape expects the new shape.*?{_SHAPE}.*?{_SHAPE}"),
        "a tensor of [{0}] has another number of elements than [{1}]",
    ),
    (
        re.compile(r"Dimension mismatch in unification between (\d+) and (\d+)"),
        "two axes that must be alike have the sizes {0} and {1}",
    ),
    (
        re.compile(r"ndim is (\d+) while the given number of axes is (\d+)"),
        "a tensor has {0} axes, allowed: {1}",
    ),
    (
        re.compile(r"ParseData type mismatch for tensor: (\S+)\. Expected:(\w+) Actual:(\w+)"),
        "its input '{0}' is {2}, allowed: {1}; write it in this type, or insert a Cast",
    ),
)  # fmt: skip


class UnknownSizesError(Exception):
    """The sizes of a result are not known; the message names them."""


def has_rule(node: onnx.NodeProto) -> bool:
    """Whether there is a rule for the sizes of the inputs of `node`."""
    return node.op_type in _RULES and is_onnx(node)


def size_fault(node: onnx.NodeProto, types: Types) -> str:
    """The fault of the sizes of a node's inputs, in words; empty if none is known."""
    return _RULES[node.op_type](node, types) if has_rule(node) else ""


def type_fault(node: onnx.NodeProto, types: Types, version: int) -> str:
    """The fault of the element types of a node's inputs by ONNX's schema, in words; empty if none."""
    domain = domain_of(node)
    if not onnx.defs.has(node.op_type, version, domain):
        return ""
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    allowed = {
        constraint.type_param_str: list(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }
    first_of_kind: dict[str, str] = {}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    for index, name in enumerate(node.input):
        if name not in types or not schema.inputs:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if index >= len(schema.inputs) and formal.option != variadic:
            continue
        dtype, kind = types[name][0], formal.type_str
        dtypes = [_dtype_of_text(text) for text in allowed.get(kind, [kind])]
        if dtype not in dtypes:
            return f"its input '{name}' is {dtype}, allowed: {', '.join(dict.fromkeys(dtypes))}"
        earlier = first_of_kind.setdefault(kind, name)
        if kind in allowed and formal.is_homogeneous and types[earlier][0] != dtype:
            return (
                f"its inputs '{earlier}' and '{name}' are {types[earlier][0]} and {dtype}, allowed: "
                "one type; insert a Cast"
            )
    return ""


def _dtype_of_text(text: str) -> str:
    """tensor(float) → float32."""
    word = text.removeprefix("tensor(").removesuffix(")")
    number = onnx.TensorProto.DataType.DESCRIPTOR.values_by_name.get(word.upper())
    return word if number is None else dtype_name(number.number)


def dtype_name(number: int) -> str:
    """The name of an ONNX element type."""
    return "string" if number == onnx.TensorProto.STRING else str(helper.tensor_dtype_to_np_dtype(number))


def inputs_text(node: onnx.NodeProto, types: Types) -> str:
    """The inputs of a node with their types and sizes, and its attributes that are integers."""
    inputs = [
        f"'{name}' {types[name][0]}[{', '.join(map(str, types[name][1]))}]"
        for name in dict.fromkeys(node.input)
        if name in types
    ]
    numbers = [
        f"{item.name} = {_listed(item.ints) if item.type == onnx.AttributeProto.INTS else item.i}"
        for item in node.attribute
        if item.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
    ]
    return ", ".join([*inputs, *numbers]) or "none"


def _listed(numbers: Sequence[int]) -> str:
    """A list of integers, the first of them alone where there are many, as a tree's nodes."""
    more = f", … {len(numbers)} in all" if len(numbers) > _MOST_LISTED else ""
    return f"[{', '.join(map(str, numbers[:_MOST_LISTED]))}{more}]"


def reason(error: BaseException, node: onnx.NodeProto, types: Types, version: int) -> str:
    """Why `node` cannot be converted: the message of `error` if it is Kiln's own, else the fault."""
    if _is_own(error):
        text = plain_sizes(one_line(error, _LONGEST))
        inner = node.output[:1] and f"'{node.output[0]}/" in text  # a tensor that the file does not have
        with_inputs = f"; it has: {inputs_text(node, types)}"
        return f"{text}{with_inputs}" if inner and with_inputs not in text else text
    fault = size_fault(node, types) or _axis_fault(node, types) or type_fault(node, types, version)
    if fault:
        return fault
    if isinstance(error, UnknownSizesError):
        way = "give the dynamic sizes of its inputs one value in 'dims'"
        return f"{error}: {way}; it has: {inputs_text(node, types)}"
    meaning = meaning_of(str(error))
    if meaning:
        return f"{meaning}; it has: {inputs_text(node, types)}"
    inputs = inputs_text(node, types)
    fault = "its inputs and attributes do not fit together, or have no conversion"
    return f"{fault}; it has: {inputs}; {WAY}"


def meaning_of(text: str) -> str:
    """The meaning of a message of TVM or ONNX; empty for an unknown message."""
    for pattern, meaning in _MEANINGS:
        hit = pattern.search(text.replace("\n", " "))
        if hit:
            return meaning.format(*hit.groups())
    return ""


def _is_own(error: BaseException) -> bool:
    """Whether Kiln's own code has raised `error`, with a message for the user."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and frames[-1].filename.startswith(_OWN_FOLDER)
    return inside and type(error) is ValueError and not _PYTHON_MESSAGES.search(str(error))


def _typed_inputs(node: onnx.NodeProto, types: Types) -> list[tuple[str, Sequence[int | str]]]:
    return [(name, types[name][1]) for name in node.input if name in types]


def _message_of_two(
    first: tuple[str, int, int | str], second: tuple[str, int, int | str], allowed: str
) -> str:
    """The message for two (tensor, axis, size) that differ."""
    (a, i, x), (b, j, y) = first, second
    return f"axis {i} of '{a}' has size {x} and axis {j} of '{b}' has size {y}, allowed: {allowed}"


def _broadcast_fault(node: onnx.NodeProto, types: Types) -> str:
    inputs = _typed_inputs(node, types)
    if any(attribute.name in ("axis", "broadcast") for attribute in node.attribute):  # before operator set 7
        return ""
    if node.op_type == "PRelu" and len(inputs) == 2 and list(inputs[1][1]) == list(inputs[0][1][1:2]):
        return ""  # likewise
    for from_last in range(1, max((len(shape) for _, shape in inputs), default=0) + 1):
        wide = [
            (name, len(shape) - from_last, shape[-from_last])
            for name, shape in inputs
            if from_last <= len(shape) and isinstance(shape[-from_last], int) and shape[-from_last] != 1
        ]
        for dim in wide[1:]:
            if dim[2] != wide[0][2]:
                return _message_of_two(wide[0], dim, "the same size, or 1")
    return ""


def _inner_fault(a: tuple[str, int, int | str], b: tuple[str, int, int | str]) -> str:
    sizes = (a[2], b[2])
    if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
        return _message_of_two(a, b, "the same size")
    return ""


def _matmul_fault(node: onnx.NodeProto, types: Types) -> str:
    inputs = _typed_inputs(node, types)
    if len(inputs) < 2:
        return ""
    (a, left), (b, right) = inputs[:2]
    for name, shape in inputs[:2]:
        if not shape:
            return f"its input '{name}' has no axes, allowed: 1 and more"
    inner = max(len(right) - 2, 0)
    fault = _inner_fault((a, len(left) - 1, left[-1]), (b, inner, right[inner]))
    if fault:
        return fault
    lead: list[tuple[str, Sequence[int | str]]] = [(a, left[:-2]), (b, right[:-2])]
    return _broadcast_fault(node, {name: ("", shape) for name, shape in lead}) if a != b else ""


def _axis_fault(node: onnx.NodeProto, types: Types) -> str:
    """The fault of a node's attribute `axis`, in words; empty for an operator with an axis of its result."""
    inputs = _typed_inputs(node, types)
    if not inputs or node.op_type in ("ConcatFromSequence", "Flatten", "OneHot"):
        return ""
    rank, axis = len(inputs[0][1]), integer_attribute(node, "axis", 0)
    return (
        ""
        if -rank <= axis < max(rank, 1)
        else f"its attribute 'axis' is {axis}, allowed: {-rank}..{rank - 1}"
    )


def _gemm_fault(node: onnx.NodeProto, types: Types) -> str:
    inputs = _typed_inputs(node, types)
    if len(inputs) < 2 or node.input[0] not in types or node.input[1] not in types:
        return ""
    for name, shape in inputs[:2]:
        if len(shape) != 2:
            return f"its input '{name}' has {len(shape)} axes, allowed: 2"
    (a, left), (b, right) = inputs[:2]
    left_axis, right_axis = 1 - integer_attribute(node, "transA", 0), integer_attribute(node, "transB", 0)
    fault = _inner_fault((a, left_axis, left[left_axis]), (b, right_axis, right[right_axis]))
    if fault or len(inputs) < 3:
        return fault
    c, bias = inputs[2]
    result = [left[1 - left_axis], right[1 - right_axis]]
    if len(bias) > 2:
        return f"its input '{c}' has {len(bias)} axes, allowed: at most 2"
    for from_last in range(1, len(bias) + 1):
        size, expected = bias[-from_last], result[-from_last]
        if isinstance(size, int) and isinstance(expected, int) and size not in (1, expected):
            return f"axis {len(bias) - from_last} of '{c}' has size {size}, allowed: 1 or {expected}"
    return ""


def _concat_fault(node: onnx.NodeProto, types: Types) -> str:
    inputs = _typed_inputs(node, types)
    if not inputs:
        return ""
    first, shape = inputs[0]
    axis = integer_attribute(node, "axis", 1)
    for name, sizes in inputs[1:]:
        if len(sizes) != len(shape):
            return f"'{first}' has {len(shape)} axes and '{name}' has {len(sizes)}, allowed: the same number"
        for axis_here, (x, y) in enumerate(zip(shape, sizes, strict=True)):
            if (
                axis_here != axis % max(len(shape), 1)
                and isinstance(x, int)
                and isinstance(y, int)
                and x != y
            ):
                return _message_of_two(
                    (first, axis_here, x), (name, axis_here, y), f"the same size, as it joins axis {axis}"
                )
    return ""


def _conv_fault(node: onnx.NodeProto, types: Types) -> str:
    inputs, group = _typed_inputs(node, types), integer_attribute(node, "group", 1)
    if len(inputs) < 2 or node.input[0] not in types or node.input[1] not in types:
        return ""
    (a, data), (w, weight) = inputs[:2]
    if len(data) < 3 or len(weight) != len(data):
        return f"'{a}' has {len(data)} axes and '{w}' {len(weight)}, allowed: the same number, 3 and more"
    if len(data) > 5:
        return (
            f"its input '{a}' has {len(data)} axes, allowed: 3 to 5; sum convolutions over three axes, "
            "one for each index of the kernel's other axes"
        )
    transposed = node.op_type == "ConvTranspose"
    channels, depth = data[1], weight[0] if transposed else weight[1]
    if isinstance(channels, int) and isinstance(depth, int):
        expected = depth if transposed else depth * group
        if channels != expected:
            return (
                f"axis 1 of '{a}' has size {channels}, allowed: {expected}, by axis {int(not transposed)} of "
                f"'{w}' of size {depth} and {group} groups"
            )
    outputs = weight[1] * group if transposed and isinstance(weight[1], int) else weight[0]
    if len(inputs) > 2 and isinstance(outputs, int):
        name, bias = inputs[2]
        if len(bias) != 1 or (isinstance(bias[0], int) and bias[0] != outputs):
            return f"its input '{name}' has the shape {list(bias)}, allowed: [{outputs}]"
    return ""


def _grid_fault(node: onnx.NodeProto, types: Types) -> str:
    inputs = _typed_inputs(node, types)
    if inputs and len(inputs[0][1]) not in (4, 5):
        return f"its input '{inputs[0][0]}' has {len(inputs[0][1])} axes, allowed: 4 and 5; {WAY}"
    return ""


_RULES: dict[str, Callable[[onnx.NodeProto, Types], str]] = {
    **dict.fromkeys(sorted(BROADCAST), _broadcast_fault),
    "BitShift": _broadcast_fault,
    "Concat": _concat_fault,
    "Conv": _conv_fault,
    "ConvTranspose": _conv_fault,
    "Gemm": _gemm_fault,
    "GridSample": _grid_fault,
    "MatMul": _matmul_fault,
}


def types_of(names: Sequence[str], find: Callable[[str], Any]) -> dict[str, tuple[str, list[int | str]]]:
    """The types of tensors; `find`: by name the element type and sizes, or None."""
    types = {name: find(name) for name in names if name}
    return {name: value for name, value in types.items() if value is not None}
