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
from kiln.frontend.onnx.broadcast import BROADCAST
from kiln.frontend.onnx.schema_functions import domain_of

# By name of a tensor, its element type and sizes: numbers, or texts for dynamic ones.
Types = Mapping[str, tuple[str, Sequence[int | str]]]

_OURS = str(Path(__file__).resolve().parents[2])
# Of exceptions that Python itself raises in a converter that expects other shapes.
_PYTHON = re.compile(r"values to unpack|zip\(\) argument|not in list|invalid literal|index out of range")
_LONGEST = 1000  # characters of a message of Kiln's own, whose last words are the way round
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
)  # fmt: skip


def has_rule(node: onnx.NodeProto) -> bool:
    """Whether there is a rule for the sizes of the inputs of `node`."""
    return node.op_type in _RULES and node.domain in ("", "ai.onnx")


def misfit(node: onnx.NodeProto, types: Types) -> str:
    """What is wrong with the sizes of a node's inputs; empty if nothing is known to be."""
    return _RULES[node.op_type](node, types) if has_rule(node) else ""


def wrong_type(node: onnx.NodeProto, types: Types, version: int) -> str:
    """What is wrong with the element types of a node's inputs, by ONNX's schema; empty if nothing is."""
    domain = domain_of(node)
    if not onnx.defs.has(node.op_type, version, domain):
        return ""
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    allowed = {item.type_param_str: list(item.allowed_type_strs) for item in schema.type_constraints}
    first: dict[str, str] = {}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    for index, name in enumerate(node.input):
        if name not in types or not schema.inputs:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if index >= len(schema.inputs) and formal.option != variadic:
            continue
        dtype, kind = types[name][0], formal.type_str
        known = [_plain(text) for text in allowed.get(kind, [kind])]
        if dtype not in known:
            return f"its input '{name}' is {dtype}, allowed: {', '.join(dict.fromkeys(known))}"
        other = first.setdefault(kind, name)
        if kind in allowed and formal.is_homogeneous and types[other][0] != dtype:
            return (
                f"its inputs '{other}' and '{name}' are {types[other][0]} and {dtype}, allowed: one type; "
                "insert a Cast"
            )
    return ""


def _plain(text: str) -> str:
    """tensor(float) → float32."""
    word = text.removeprefix("tensor(").removesuffix(")")
    number = onnx.TensorProto.DataType.DESCRIPTOR.values_by_name.get(word.upper())
    return word if number is None else dtype_name(number.number)


def dtype_name(number: int) -> str:
    """The name of an ONNX element type."""
    return "string" if number == onnx.TensorProto.STRING else str(helper.tensor_dtype_to_np_dtype(number))


def shown(node: onnx.NodeProto, types: Types) -> str:
    """The inputs of a node with their types and sizes, and its attributes that are integers."""
    given = [
        f"'{name}' {types[name][0]}[{', '.join(map(str, types[name][1]))}]"
        for name in dict.fromkeys(node.input)
        if name in types
    ]
    numbers = [
        f"{item.name} = {list(item.ints) if item.type == onnx.AttributeProto.INTS else item.i}"
        for item in node.attribute
        if item.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
    ]
    return ", ".join([*given, *numbers]) or "none"


def reason(error: BaseException, node: onnx.NodeProto, types: Types, version: int) -> str:
    """Why `node` cannot be converted: the message of Kiln's own `error`, or what others mean."""
    if _is_own(error):
        text = one_line(error, _LONGEST)
        inner = node.output[:1] and f"'{node.output[0]}/" in text  # a tensor that the file does not have
        return f"{text}; it has: {shown(node, types)}" if inner else text
    found = misfit(node, types) or _axis(node, types) or wrong_type(node, types, version)
    if found:
        return found
    meaning = meaning_of(str(error))
    if meaning:
        return f"{meaning}; it has: {shown(node, types)}"
    return (
        f"its inputs and attributes do not fit together, or have no conversion; it has: {shown(node, types)}"
    )


def meaning_of(text: str) -> str:
    """What a message of TVM or ONNX means; empty for others."""
    for pattern, meaning in _MEANINGS:
        hit = pattern.search(text.replace("\n", " "))
        if hit:
            return meaning.format(*hit.groups())
    return ""


def _is_own(error: BaseException) -> bool:
    """Whether Kiln has raised `error` to say what is wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = bool(frames) and frames[-1].filename.startswith(_OURS)
    return inside and type(error) is ValueError and not _PYTHON.search(str(error))


def _given(node: onnx.NodeProto, types: Types) -> list[tuple[str, Sequence[int | str]]]:
    return [(name, types[name][1]) for name in node.input if name in types]


def _differ(one: tuple[str, int, int | str], other: tuple[str, int, int | str], allowed: str) -> str:
    """The message for two (tensor, axis, size) that differ."""
    (a, i, x), (b, j, y) = one, other
    return f"axis {i} of '{a}' has size {x} and axis {j} of '{b}' has size {y}, allowed: {allowed}"


def _broadcast(node: onnx.NodeProto, types: Types) -> str:
    given = _given(node, types)
    if any(item.name in ("axis", "broadcast") for item in node.attribute):  # before operator set 7
        return ""
    if node.op_type == "PRelu" and len(given) == 2 and list(given[1][1]) == list(given[0][1][1:2]):
        return ""  # likewise
    for place in range(1, max((len(shape) for _, shape in given), default=0) + 1):
        wide = [
            (name, len(shape) - place, shape[-place])
            for name, shape in given
            if place <= len(shape) and isinstance(shape[-place], int) and shape[-place] != 1
        ]
        for one in wide[1:]:
            if one[2] != wide[0][2]:
                return _differ(wide[0], one, "the same size, or 1")
    return ""


def _product(a: tuple[str, int, int | str], b: tuple[str, int, int | str]) -> str:
    sizes = (a[2], b[2])
    if all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[1]:
        return _differ(a, b, "the same size")
    return ""


def _matmul(node: onnx.NodeProto, types: Types) -> str:
    given = _given(node, types)
    if len(given) < 2:
        return ""
    (a, left), (b, right) = given[:2]
    for name, shape in given[:2]:
        if not shape:
            return f"its input '{name}' has no axes, allowed: 1 and more"
    inner = max(len(right) - 2, 0)
    found = _product((a, len(left) - 1, left[-1]), (b, inner, right[inner]))
    if found:
        return found
    lead: list[tuple[str, Sequence[int | str]]] = [(a, left[:-2]), (b, right[:-2])]
    return _broadcast(node, {name: ("", shape) for name, shape in lead}) if a != b else ""


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(item.i) for item in node.attribute if item.name == name), default)


def _axis(node: onnx.NodeProto, types: Types) -> str:
    """What is wrong with a node's axis; of some operators, it is one of the result."""
    given = _given(node, types)
    if not given or node.op_type in ("ConcatFromSequence", "Flatten", "OneHot"):
        return ""
    rank, axis = len(given[0][1]), _attribute(node, "axis", 0)
    return (
        ""
        if -rank <= axis < max(rank, 1)
        else f"its attribute 'axis' is {axis}, allowed: {-rank}..{rank - 1}"
    )


def _gemm(node: onnx.NodeProto, types: Types) -> str:
    given = _given(node, types)
    if len(given) < 2 or node.input[0] not in types or node.input[1] not in types:
        return ""
    for name, shape in given[:2]:
        if len(shape) != 2:
            return f"its input '{name}' has {len(shape)} axes, allowed: 2"
    (a, left), (b, right) = given[:2]
    left_axis, right_axis = 1 - _attribute(node, "transA", 0), _attribute(node, "transB", 0)
    found = _product((a, left_axis, left[left_axis]), (b, right_axis, right[right_axis]))
    if found or len(given) < 3:
        return found
    c, bias = given[2]
    result = [left[1 - left_axis], right[1 - right_axis]]
    if len(bias) > 2:
        return f"its input '{c}' has {len(bias)} axes, allowed: at most 2"
    for place in range(1, len(bias) + 1):
        size, wanted = bias[-place], result[-place]
        if isinstance(size, int) and isinstance(wanted, int) and size not in (1, wanted):
            return f"axis {len(bias) - place} of '{c}' has size {size}, allowed: 1 or {wanted}"
    return ""


def _concat(node: onnx.NodeProto, types: Types) -> str:
    given = _given(node, types)
    if not given:
        return ""
    first, shape = given[0]
    axis = _attribute(node, "axis", 1)
    for name, other in given[1:]:
        if len(other) != len(shape):
            return f"'{first}' has {len(shape)} axes and '{name}' has {len(other)}, allowed: the same number"
        for place, (x, y) in enumerate(zip(shape, other, strict=True)):
            if place != axis % max(len(shape), 1) and isinstance(x, int) and isinstance(y, int) and x != y:
                return _differ((first, place, x), (name, place, y), f"the same size, as it joins axis {axis}")
    return ""


def _conv(node: onnx.NodeProto, types: Types) -> str:
    given, group = _given(node, types), _attribute(node, "group", 1)
    if len(given) < 2 or node.input[0] not in types or node.input[1] not in types:
        return ""
    (a, data), (w, weight) = given[:2]
    if len(data) < 3 or len(weight) != len(data):
        return f"'{a}' has {len(data)} axes and '{w}' {len(weight)}, allowed: the same number, 3 and more"
    transposed = node.op_type == "ConvTranspose"
    channels, depth = data[1], weight[0] if transposed else weight[1]
    if isinstance(channels, int) and isinstance(depth, int):
        wanted = depth if transposed else depth * group
        if channels != wanted:
            return (
                f"axis 1 of '{a}' has size {channels}, allowed: {wanted}, by axis {int(not transposed)} of "
                f"'{w}' of size {depth} and {group} groups"
            )
    made = weight[1] * group if transposed and isinstance(weight[1], int) else weight[0]
    if len(given) > 2 and isinstance(made, int):
        name, bias = given[2]
        if len(bias) != 1 or (isinstance(bias[0], int) and bias[0] != made):
            return f"its input '{name}' has the shape {list(bias)}, allowed: [{made}]"
    return ""


_RULES: dict[str, Callable[[onnx.NodeProto, Types], str]] = {
    **dict.fromkeys(sorted(BROADCAST), _broadcast),
    "BitShift": _broadcast,
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
}


def types_of(names: Sequence[str], find: Callable[[str], Any]) -> dict[str, tuple[str, list[int | str]]]:
    """The types of tensors; `find`: by name the element type and sizes, or None."""
    found = {name: find(name) for name in names if name}
    return {name: value for name, value in found.items() if value is not None}
