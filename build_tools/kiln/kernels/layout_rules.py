"""How the attributes of each operator change when its tensors lie in another way.

A rule gets a Site: the operator, and the layouts (kernels/axes.py) in which its operands are there already.
It answers with the layouts in which it wants them, the one of its result, and its attributes then; or with
None: the function then keeps the layouts that it was made for. Attributes that name axes are renamed;
letters (NHWC) get their new order; strides, dilation and padding of convolutions and pools belong to the
letters H and W, wherever those are, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.kernels.axes import Layout
from kiln.kernels.opattrs import BROADCAST, OpInfo

Attrs = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """An operator in a function. A scalar operand that is part of the code has rank 0."""

    op: OpInfo
    layouts: Sequence[Layout]
    shapes: Sequence[Sequence[Any]]
    out_shape: Sequence[Any]
    wanted: Sequence[
        str
    ]  # by the caller, for a convolution (data, kernel, result) or a product (a, b, result)

    @property
    def attrs(self) -> Attrs:
        return dict(self.op["attrs"])


@dataclass(frozen=True)
class Ruling:
    """What a rule answers."""

    layouts: Sequence[Layout]
    out: Layout
    attrs: Attrs


Rule = Callable[[Site], Ruling | None]


def _unary(site: Site) -> Ruling:
    return Ruling(site.layouts, site.layouts[0], site.attrs)


def _broadcast(site: Site) -> Ruling | None:
    """All operands as the first that is not as it was, each with the axes that it has."""
    along = site.attrs.get("broadcast_axes")
    rank = len(site.out_shape)
    if along is None:
        return None
    full = [layout for layout, shape in zip(site.layouts, site.shapes, strict=True) if len(shape) == rank]
    # A split axis of size 1 would not be there to split: the first of full size decides.
    lead = next((layout for layout in full if not layout.is_same), Layout.same(rank))
    layouts, axes = [], []
    for own, shape in zip(along, site.shapes, strict=True):
        missing = [axis for axis in range(rank) if axis not in own]
        parts = lead.without(missing).parts
        ones = {axis for axis, size in enumerate(shape) if _is_one(size)}
        layout = Layout(tuple(part for part in parts if not (part[1] and part[0] in ones)))
        layouts.append(layout)
        axes.append([lead.parts.index((own[axis], size)) for axis, size in layout.parts])
    if any(_is_one(site.out_shape[axis]) for axis in lead.split):
        return None
    return Ruling(layouts, lead, {**site.attrs, "broadcast_axes": axes})


def _is_one(size: Any) -> bool:
    return str(size) == "1"


def _lettered(keys: Sequence[str]) -> Rule:
    """One tensor in, one out, both by the layout of the same letters."""

    def rule(site: Site) -> Ruling | None:
        layout, attrs = site.layouts[0], site.attrs
        if len(site.shapes) != 1 or any(axis in layout.split for axis in _spatial(attrs["layout"])):
            return None
        had = attrs["layout"]
        for key in keys:
            attrs[key] = layout.name(attrs.get(key) or had)
        return Ruling([layout], layout, attrs) if had.isupper() else None

    return rule


def _spatial(letters: str) -> list[int]:
    return [index for index, letter in enumerate(letters) if letter in "DHW"]


def _named(keys: tuple[str, str, str]) -> Rule:
    """Two tensors in, one out, each with letters of its own; they lie as the caller wants them."""

    def rule(site: Site) -> Ruling | None:
        attrs = site.attrs
        had = [str(attrs.get(key) or attrs.get(keys[0]) or "") for key in keys]
        shapes = [*site.shapes, site.out_shape]
        if len(shapes) != 3 or not all(had):
            return None
        if site.wanted:
            data, kernel, *rest = site.wanted
            wanted = [data, kernel, rest[0] if rest else _result(keys[2], data, had[2])]
            found = [Layout.parse(*entry) for entry in zip(had, wanted, shapes, strict=True)]
        else:
            found = [Layout.same(len(shape)) for shape in shapes]
        a, b, out = found
        if a is None or b is None or out is None:
            return None
        attrs |= {k: layout.name(letters) for k, layout, letters in zip(keys, (a, b, out), had, strict=True)}
        return Ruling([a, b], out, attrs)

    return rule


def _result(key: str, data: str, had: str) -> str:
    """The result's layout where the caller names none: a convolution's like its data, else as it was."""
    same = {letter for letter in data if letter.isupper()} == set(had)
    return data if same else had


def _axes(key: str) -> Rule:
    """The result lies as the first operand, of which `key` names axes that may not be split."""

    def rule(site: Site) -> Ruling | None:
        layout, attrs = site.layouts[0], site.attrs
        moved = _moved(layout, attrs.get(key))
        if moved is None:
            return None
        rest = [Layout.same(len(shape)) for shape in site.shapes[1:]]
        return Ruling([layout, *rest], layout, {**attrs, key: moved})

    return rule


def _moved(layout: Layout, axes: Any) -> Any:
    """Axes, or one, by their new numbers; None where they are unknown or one is split."""
    listed = axes if isinstance(axes, list) else [axes]
    if any(not isinstance(axis, int) or axis % layout.rank in layout.split for axis in listed):
        return None
    moved = [layout.at(axis) for axis in listed]
    return moved if isinstance(axes, list) else moved[0]


def _quantised(site: Site) -> Ruling | None:
    """Scale and zero point are scalars, or run along one axis."""
    found = _axes("axis")(site)
    if found is None and all(len(shape) == 0 for shape in site.shapes[1:]):
        layout = site.layouts[0]  # the axis has no meaning then
        return Ruling(
            [layout, *site.layouts[1:]], layout, {**site.attrs, "axis": layout.at(site.attrs["axis"])}
        )
    return found


def _reduction(site: Site) -> Ruling | None:
    """A split axis is summed in both parts; kept as an axis of size 1 it would not be split: no rule then."""
    layout, attrs = site.layouts[0], site.attrs
    if attrs.get("axis") is None:
        out = Layout.same(len(site.out_shape))
        kept = bool(attrs["keepdims"]) and (layout.split or not layout.is_same)
        return None if kept else Ruling([layout], out, attrs)
    axes = attrs["axis"] if isinstance(attrs["axis"], list) else [attrs["axis"]]
    reduced = [axis % layout.rank for axis in axes]
    if attrs["keepdims"] and any(axis in layout.split for axis in reduced):
        return None
    attrs["axis"] = [place for axis in reduced for place in layout.places(axis)]
    return Ruling([layout], layout if attrs["keepdims"] else layout.without(reduced), attrs)


def _concat(site: Site) -> Ruling | None:
    """All parts as the first that is not as it was."""
    lead = next((layout for layout in site.layouts if not layout.is_same), site.layouts[0])
    moved = _moved(lead, site.attrs.get("axis"))
    if moved is None:
        return None
    return Ruling([lead] * len(site.shapes), lead, {**site.attrs, "axis": moved})


def _pad(site: Site) -> Ruling | None:
    layout, attrs = site.layouts[0], site.attrs
    widths = attrs["pad_width"]
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in range(layout.rank)]
    if len(site.shapes) != 1 or any(any(pairs[axis]) for axis in layout.split):
        return None
    attrs["pad_width"] = [width for axis, size in layout.parts for width in ([0, 0] if size else pairs[axis])]
    return Ruling([layout], layout, attrs)


def _transpose(site: Site) -> Ruling | None:
    """The result lies as it did: a transpose is where a layout ends."""
    layout, attrs = site.layouts[0], site.attrs
    if layout.split:
        return None
    axes = attrs["axes"] or list(range(layout.rank))[::-1]
    return Ruling([layout], Layout.same(layout.rank), {**attrs, "axes": [layout.at(axis) for axis in axes]})


_UNARY = (
    "abs", "acos", "asin", "astype", "atan", "ceil", "clip", "cos", "erf", "exp", "floor", "log",
    "logical_not", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip
_REDUCTIONS = ("max", "mean", "min", "prod", "std", "sum", "variance")
_CONVOLUTION = ("data_layout", "kernel_layout", "out_layout")

RULES: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(sorted(BROADCAST), _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "nn.conv1d": _named(_CONVOLUTION),
    "nn.conv2d": _named(_CONVOLUTION),
    "nn.conv3d": _named(_CONVOLUTION),
    "matmul": _named(("a_layout", "b_layout", "out_layout")),
    "nn.max_pool2d": _lettered(("layout", "out_layout")),
    "nn.avg_pool2d": _lettered(("layout", "out_layout")),
    "nn.adaptive_avg_pool2d": _lettered(("layout", "out_layout")),
    "image.resize2d": _lettered(("layout",)),
    "nn.softmax": _axes("axis"),
    "nn.log_softmax": _axes("axis"),
    "nn.layer_norm": _axes("axes"),
    "nn.rms_norm": _axes("axes"),
    "quantize": _quantised,
    "dequantize": _quantised,
    "strided_slice": _axes("axes"),
    "cumsum": _axes("axis"),
    "concat": _concat,
    "nn.pad": _pad,
    "permute_dims": _transpose,
}
