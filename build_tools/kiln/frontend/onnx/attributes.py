"""Range checks of ONNX attributes, before any library computes with them.

ONNX's checker verifies the type and presence of attributes but not their range: a stride of 0 passes, and
crashes ONNX's own shape inference with a division by zero (SIGFPE). The ranges are from the operators'
specifications, with 2**31 - 1 as the greatest amount. Limits that depend on the shape of an input (of an
axis, of the number of strides) are left to shape inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from kiln.errors import KilnError
from kiln.onnx_domains import domain_of, is_onnx

MOST_NESTING = 12  # depth of nested graphs; the run time of onnxsim doubles with each level
_GREATEST = (1 << 31) - 1
Bounds = tuple[int, int]

_COUNT: Bounds = (1, _GREATEST)
_AMOUNT: Bounds = (0, _GREATEST)
_OFFSET: Bounds = (-_GREATEST, _GREATEST)
_FLAG: Bounds = (0, 1)
_AXIS: Bounds = (-64, 63)

# Ranges by attribute name, for all operators without an entry in _OWN_NUMBERS.
_NUMBERS: dict[str, Bounds] = {
    "align_corners": _FLAG,
    "allowzero": _FLAG,
    "antialias": _FLAG,
    "axes": _AXIS,
    "axis": _AXIS,
    "batch_axis": _AXIS,
    "batch_dims": (0, 63),
    "block_size": _AMOUNT,
    "blocksize": _COUNT,
    "ceil_mode": _FLAG,
    "center_point_box": _FLAG,
    "count_include_pad": _FLAG,
    "dilations": _COUNT,
    "exclude_outside": _FLAG,
    "exclusive": _FLAG,
    "fmod": _FLAG,
    "group": _COUNT,
    "hidden_size": _COUNT,
    "input_forget": _FLAG,
    "keepdims": _FLAG,
    "kernel_shape": _COUNT,
    "kv_num_heads": _COUNT,
    "largest": _FLAG,
    "layout": _FLAG,
    "linear_before_reset": _FLAG,
    "noop_with_empty_axes": _FLAG,
    "num_groups": _COUNT,
    "num_heads": _AMOUNT,
    "num_outputs": _COUNT,
    "offset_group": _COUNT,
    "output_height": _COUNT,
    "output_padding": _AMOUNT,
    "output_shape": _COUNT,
    "output_width": _COUNT,
    "p": _COUNT,
    "pads": _AMOUNT,
    "perm": (0, 63),
    "pooled_shape": _COUNT,
    "q_num_heads": _COUNT,
    "reverse": _FLAG,
    "sampling_ratio": _AMOUNT,
    "select_last_index": _FLAG,
    "size": _COUNT,
    "sorted": _FLAG,
    "spatial": _FLAG,
    "split": _AMOUNT,
    "storage_order": _FLAG,
    "strides": _COUNT,
    "time_axis": _FLAG,
    "transA": _FLAG,
    "transB": _FLAG,
    "upper": _FLAG,
}
_OWN_NUMBERS: dict[tuple[str, str], Bounds] = {
    ("LpNormalization", "p"): (1, 2),
    ("Pad", "pads"): _OFFSET,  # a negative amount cuts
    ("Pad", "paddings"): _OFFSET,
    ("TopK", "k"): _COUNT,
}

_AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_TEXTS: dict[tuple[str, str], Sequence[str]] = {
    **{
        (name, "auto_pad"): _AUTO_PAD
        for name in (
            "AveragePool",
            "Conv",
            "ConvInteger",
            "ConvTranspose",
            "LpPool",
            "MaxPool",
            "QLinearConv",
        )
    },
    **{(name, "direction"): _DIRECTIONS for name in ("GRU", "LSTM", "RNN")},
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("bilinear", "linear", "nearest", "bicubic", "cubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("Resize", "coordinate_transformation_mode"): (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
        "tf_half_pixel_for_nn",
    ),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", ""),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("ScatterElements", "reduction"): ("none", "add", "mul", "min", "max"),
    ("ScatterND", "reduction"): ("none", "add", "mul", "min", "max"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
}
_TYPED = {("Cast", "to"), ("ConstantOfShape", "dtype"), ("EyeLike", "dtype")}


def integer_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """The attribute `name` of a node, an integer; `default` where the node has none of this name."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def graphs(path: Path, model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph of `model` and all graphs nested in its nodes, outer graphs first.

    Raises KilnError where graphs are nested deeper than MOST_NESTING.
    """
    return with_nested_graphs(path, model.graph)


def set_nodes(body: Any, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of `body`, a graph or a function, by `nodes`, some of which may be its own."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del body.node[:]
    body.node.extend(copies)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that are attributes of `node`, such as a loop's body; not those inside these."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def with_nested_graphs(path: Path, body: Any) -> Iterator[Any]:
    """`body`, a graph or a function, and all graphs nested in its nodes; raises KilnError as `graphs`."""
    waiting = [(body, 0)]
    while waiting:
        graph, depth = waiting.pop()
        yield graph
        for node in graph.node:
            inner = list(graphs_in(node))
            if inner and depth == MOST_NESTING:
                raise KilnError(
                    f"{path}: {describe(node)}: its graph is nested {depth + 1} deep, allowed: "
                    f"at most {MOST_NESTING} graphs inside one another"
                )
            waiting.extend((graph_inside, depth + 1) for graph_inside in inner)


def check_names(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError if a name is not valid UTF-8; protobuf returns such a name as bytes, not as str."""
    for graph in graphs(path, model):
        names = [value.name for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)]
        for value in (*graph.input, *graph.output):
            names += [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for node in graph.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [attribute.name for attribute in node.attribute]
        for name in names:
            if not isinstance(name, str):
                raise KilnError(f"{path}: the name {name!r} is not text in UTF-8: the file is damaged")


def check_attributes(path: Path, model: onnx.ModelProto) -> None:
    """Raise KilnError, naming the node, for the first attribute with a value that is not allowed."""
    for graph in graphs(path, model):
        for node in graph.node:
            if is_onnx(node):
                for attribute in node.attribute:
                    _check_value(path, node, attribute)
                    # ONNX 1.23 ends the process where more outputs than parts are to get a shape.
                    if attribute.name == "num_outputs" and attribute.i != len(node.output):
                        outputs = len(node.output)
                        raise _not_allowed(
                            path, node, attribute.name, str(attribute.i), f"{outputs}, its outputs"
                        )


def check_counts(path: Path, nodes: Iterable[onnx.NodeProto], versions: Mapping[str, int]) -> None:
    """Raise KilnError for a node with a number of inputs or outputs that its operator does not allow.

    Also raised for a required attribute that is missing. `versions`: by domain, of the operator sets.
    """
    for node in nodes:
        domain = domain_of(node)
        version = versions.get(domain, 1)
        if not onnx.defs.has(node.op_type, version, domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        for role, names, least, most in (
            ("inputs", node.input, schema.min_input, schema.max_input),
            ("outputs", node.output, schema.min_output, schema.max_output),
        ):
            if not least <= len(names) <= most:
                allowed = str(least) if least == most else f"{least}..{most}"
                if most >= _GREATEST:
                    allowed = f"{least} and more"
                raise KilnError(
                    f"{path}: {describe(node)} has {len(names)} {role}, allowed in operator set {version}: "
                    f"{allowed}"
                )
        given_names = {attribute_proto.name for attribute_proto in node.attribute}
        for name, attribute in schema.attributes.items():
            if attribute.required and name not in given_names:
                raise KilnError(f"{path}: {describe(node)} has no attribute '{name}', which it must have")


def describe(node: onnx.NodeProto) -> str:
    """A node's name for errors, such as `Conv (node conv1)`; its first output stands for a missing name."""
    return f"{node.op_type} (node {name_in_errors(node)})"


def name_in_errors(node: onnx.NodeProto) -> str:
    """A node's name for errors; its first output stands for a missing one: `with output y`."""
    return node.name or f"with output {', '.join(node.output[:1]) or 'none'}"


def _check_value(path: Path, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    """Raise KilnError if the value of one attribute is not allowed."""
    key = (node.op_type, attribute.name)
    bounds = _OWN_NUMBERS.get(key, _NUMBERS.get(attribute.name))
    if attribute.type == onnx.AttributeProto.STRING and key in _TEXTS:
        text = attribute.s.decode(errors="replace")
        if text not in _TEXTS[key]:
            raise _not_allowed(path, node, attribute.name, f"'{text}'", ", ".join(filter(None, _TEXTS[key])))
    elif key in _TYPED:
        types = [number for name, number in onnx.TensorProto.DataType.items() if name != "UNDEFINED"]
        if attribute.i not in types:
            raise _not_allowed(path, node, attribute.name, str(attribute.i), f"{min(types)}..{max(types)}")
    elif bounds is not None and attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
        values = list(attribute.ints) if attribute.type == onnx.AttributeProto.INTS else [attribute.i]
        wrong = [value for value in values if not bounds[0] <= value <= bounds[1]]
        if wrong:
            raise _not_allowed(path, node, attribute.name, str(wrong[0]), f"{bounds[0]}..{bounds[1]}")


def _not_allowed(path: Path, node: onnx.NodeProto, name: str, value: str, allowed: str) -> KilnError:
    return KilnError(f"{path}: {describe(node)}: attribute '{name}' is {value}, allowed: {allowed}")
