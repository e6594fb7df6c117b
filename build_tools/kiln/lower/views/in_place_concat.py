"""In-place concat: each producer writes into its slice of the concat's result, so no copy kernel runs.

The result is allocated when its first operand is computed, and each operand is a view of it, as in
in_place_padding.py. An operand that has no producer, such as an input of the model, is copied into its slice.
This saves reading and writing the tensor once. Since the result lives longer, a concat is done in place only
where that does not raise the peak: the most bytes alive at any step, in the order of the model's steps.

Applies to images (four axes) of static shape, where at least half of the bytes are written in place and where
fusion would not have merged the concat into a kernel that does more than copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from kiln.graph.bindings import operator, variables
from kiln.lower.views.in_place_padding import OPAQUE, used_otherwise
from kiln.opinfo.attach import OpInfo, of
from kiln.tir.fused import Fused, NotSimple
from kiln.tir.symbols import is_dynamic
from kiln.tir.view import TensorView

# A group with one of these operators computes whole rows, or reads its operands as flat memory.
_NOT_INSIDE = (
    "matmul", "reshape", "einsum", "nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm",
)  # fmt: skip
# Operators that FuseOps does not fuse with a concat that they read.
_READERS = ("nn.conv2d", "nn.pad", "nn.max_pool2d", "nn.avg_pool2d", "concat")
# NaN equals no padding value, so that an operand is never taken for the inside of a padded tensor.
_NO_BORDER = math.nan


@dataclass(frozen=True)
class InPlaceConcat:
    """A concat without a kernel.

    `views`: place of each operand of the call in the result. `direct`: whether the operand's producer writes
    there; otherwise it is copied. `place`: place of the result itself, which may be stored in a padded
    tensor.
    """

    views: tuple[TensorView, ...]
    direct: tuple[bool, ...]
    place: TensorView


def _is_concat(ops: Sequence[OpInfo]) -> bool:
    return len(ops) == 1 and ops[0]["name"] == "concat"


def _is_joinable(ops: Sequence[OpInfo], call: relax.Call) -> bool:
    """Whether a call is a concat of images that it reads once each."""
    return _is_concat(ops) and _is_image(call) and _order(ops[0], call) is not None


def _order(op: OpInfo, call: relax.Call) -> list[int] | None:
    """The positions in `call` of the operands of the concat `op`; None where it reads one of them twice.

    Fusion may call a function with its operands in another order, or with an operand once.
    """
    order = [item.get("param", -1) for item in op["args"]]
    return order if sorted(order) == list(range(len(call.args[1].fields))) else None


def _calls(mod: tvm.IRModule) -> list[Any]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [binding for binding in bindings if operator(binding.value) == "relax.call_tir"]


def _is_image(call: relax.Call) -> bool:
    """Whether a call has one result, a tensor of four axes, and all tensors are of static shape."""
    types = [call.ty, *(operand.ty for operand in call.args[1].fields)]
    return all(_sizes(ty) is not None for ty in types) and len(call.ty.shape) == 4


def keep_concats_separate(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark as opaque the concats of images for which fusion would gain nothing.

    These are read by convolutions, pools, paddings or concats only, and at least half of their operands, in
    bytes, are computed by kernels that no concat is fused with. Resizing and slicing are fused with a concat.
    """
    calls = _calls(mod)
    producers = {binding.var: binding.value for binding in calls}
    readers: dict[Any, list[str]] = {}
    for binding in calls:
        for item in binding.value.args[1].fields:
            readers.setdefault(item, []).append(binding.value.args[0].name_hint)
    ops = {v.name_hint: of(func) for v, func in mod.functions_items() if isinstance(func, PrimFunc)}

    def fuses(name: str) -> bool:
        return any(op["name"] not in _READERS for op in ops[name])

    def is_separate(operand: Any) -> bool:
        """Whether a separate kernel computes `operand`, up to elementwise operators fused after it."""
        while (call := producers.get(operand)) is not None:
            kind = ops[call.args[0].name_hint][-1]["kind"]
            if kind not in ("elementwise", "broadcast"):
                return str(kind) != "injective"
            operand = next((item for item in call.args[1].fields if item in producers), None)
        return False

    def worthwhile(call: relax.Call) -> bool:
        sizes = [(_bytes(operand.ty), is_separate(operand)) for operand in call.args[1].fields]
        return 2 * sum(size for size, separate in sizes if separate) >= sum(size for size, _ in sizes)

    refused = {
        binding.value.args[0].name_hint
        for binding in calls
        if not _is_image(binding.value)
        or any(fuses(name) for name in readers.get(binding.var, []))
        or (_is_concat(ops[binding.value.args[0].name_hint]) and not worthwhile(binding.value))
    }
    for variable, func in list(mod.functions_items()):
        name = variable.name_hint
        if isinstance(func, PrimFunc) and _is_concat(ops[name]) and name not in refused:
            mod.update_func(variable, func.with_attr("op_pattern", OPAQUE))
    return mod


def find_joins(
    mod: tvm.IRModule, ops: Mapping[str, list[OpInfo]], padded: Mapping[Any, TensorView]
) -> dict[Any, InPlaceConcat]:
    """The concats of `main` that are done in place, by variable; `padded`: views inside padded tensors."""
    calls = _calls(mod)

    def ops_of(call: relax.Call) -> list[OpInfo]:
        return ops.get(call.args[0].name_hint, [])

    concats = [binding for binding in calls if _is_joinable(ops_of(binding.value), binding.value)]
    if not concats:
        return {}
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    producers = {binding.var: binding.value for binding in calls}
    blocked = used_otherwise(mod["main"], bindings)
    readers: dict[Any, list[tuple[Any, int]]] = {}
    for binding in calls:
        for position, item in enumerate(binding.value.args[1].fields):
            readers.setdefault(item, []).append((binding.value, position))

    def can_be_view(operand: Any) -> bool:
        """Whether the producer of `operand` can write into the result, and all readers can read there."""
        producer = producers.get(operand)
        if producer is None or operand in blocked or operand in padded or _is_concat(ops_of(producer)):
            return False
        if not _is_simple(mod, ops_of(producer), producer) or operand in parents:
            return False
        # A convolution addresses its first operand by the operand's shape, which differs from the parent's.
        return all(
            _is_concat(ops_of(call))
            or (
                _is_simple(mod, ops_of(call), call)
                and not (ops_of(call)[0]["name"] == "nn.conv2d" and _is_first(ops_of(call)[0], position))
            )
            for call, position in readers[operand]
        )

    joins: dict[Any, InPlaceConcat] = {}
    parents: dict[Any, Any] = {}
    lifetimes = _Lifetimes(bindings, mod["main"], padded)
    peak = lifetimes.peak(parents)
    for binding in concats:
        call = binding.value
        operands = list(call.args[1].fields)
        direct = tuple(operands.count(item) == 1 and can_be_view(item) for item in operands)
        sizes = [math.prod(int(size) for size in operand.ty.shape) for operand in operands]
        inside = [item for item, is_direct in zip(operands, direct, strict=True) if is_direct]
        written = sum(size for size, is_direct in zip(sizes, direct, strict=True) if is_direct)
        if 2 * written < sum(sizes) or not inside:
            continue
        with_concat = {**parents, **dict.fromkeys(inside, binding.var)}
        peak_with_concat = lifetimes.peak(with_concat)
        if peak_with_concat > peak:
            continue
        parents, peak = with_concat, peak_with_concat
        joins[binding.var] = _join(ops_of(call)[0], call, direct, padded.get(binding.var))
    return joins


def _is_first(op: OpInfo, position: int) -> bool:
    """Whether the operand at `position` of a call is the first of `op`."""
    return bool(op["args"][:1] == [{"param": position}])


def _join(op: OpInfo, call: relax.Call, direct: tuple[bool, ...], outer: TensorView | None) -> InPlaceConcat:
    """The `InPlaceConcat` of `call`; `outer`: place of the result inside a padded tensor."""
    axis, length = int(op["attrs"]["axis"]) % 4, [int(size) for size in call.ty.shape]
    view = TensorView((0,) * 4, (0,) * 4, 0.0) if outer is None else outer
    views: dict[int, TensorView] = {}
    first = 0
    for position in _order(op, call) or ():
        size = int(call.args[1].fields[position].ty.shape[axis])
        remaining = length[axis] - first - size
        origin = tuple(gap + (first if number == axis else 0) for number, gap in enumerate(view.before))
        after = tuple(gap + (remaining if number == axis else 0) for number, gap in enumerate(view.after))
        views[position] = TensorView(origin, after, _NO_BORDER)
        first += size
    return InPlaceConcat(tuple(views[position] for position in sorted(views)), direct, view)


def _is_simple(mod: tvm.IRModule, ops: Sequence[OpInfo], call: relax.Call) -> bool:
    """Whether a group's code can use views: loop nests that compute one image (four axes)."""
    if not ops or any(op["name"] in _NOT_INSIDE for op in ops):
        return False
    try:
        fused = Fused(mod[call.args[0]])
    except NotSimple:
        return False
    return len(fused.outputs) == 1 and len(fused.outputs[0].shape) == 4


class _Lifetimes:
    """The tensors that the bindings of `main` make and read, from which the need for memory follows.

    `padded`: views inside padded tensors.
    """

    def __init__(self, bindings: Sequence[Any], main: Any, padded: Mapping[Any, TensorView]) -> None:
        self._owner: dict[Any, Any] = {}  # tensor → the tensor that it is stored in, in any case
        self._steps: list[tuple[Any, list[Any]]] = []  # variable, and the variables that its value reads
        self._bytes: dict[Any, int] = {}
        for binding in bindings:
            source = _source(binding, padded)
            if source is not None:
                self._owner[binding.var] = source
            self._steps.append((binding.var, variables(binding.value)))
            view = padded.get(binding.var)
            self._bytes[binding.var] = _bytes(
                binding.var.ty, None if view is None else _full(binding.var, view)
            )
        self._results = variables(main.body.body)

    def peak(self, inside: Mapping[Any, Any]) -> int:
        """The most bytes alive at any step. `inside`: tensor → the tensor that it is stored in, too."""
        owner = {**self._owner, **inside}
        first: dict[Any, int] = {}
        last: dict[Any, int] = {}

        def root(variable: relax.Var) -> Any:
            while variable in owner:
                variable = owner[variable]
            return variable

        for step, (variable, read) in enumerate(self._steps):
            last.update((tensor, step) for tensor in map(root, read) if tensor in first)
            tensor = root(variable)
            first.setdefault(tensor, step)
            last[tensor] = step
        last.update((tensor, len(self._steps)) for tensor in map(root, self._results) if tensor in first)
        change = [0] * (len(self._steps) + 2)
        for tensor, start in first.items():
            change[start] += self._bytes.get(tensor, 0)
            change[last[tensor] + 1] -= self._bytes.get(tensor, 0)
        return max(itertools.accumulate(change))


def _source(binding: Any, padded: Mapping[Any, TensorView]) -> Any:
    """The tensor in whose memory `binding` makes its result; None for a tensor of its own.

    That is the operand of a reshape, and of an in-place padding, whose producer has filled its parent.
    """
    name = operator(binding.value)
    if name == "relax.reshape":
        return binding.value.args[0]
    if name == "relax.call_tir":
        (source, *other_operands) = binding.value.args[1].fields or [None]
        view = None if other_operands else padded.get(source)
        if view is not None and _sizes(binding.var.ty) == _full(source, view.with_pixel_gap(0)):
            return source
    return None


def _sizes(ty: Any) -> tuple[int, ...] | None:
    """The shape of a tensor of type `ty`; None for a dynamic or unknown shape, and for other types."""
    shape = getattr(ty, "shape", None)
    if shape is None or any(is_dynamic(extent) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _full(variable: relax.Var, view: TensorView) -> tuple[int, ...] | None:
    """The shape of the padded tensor that `variable` is stored in as `view`; None for dynamic shapes."""
    shape = _sizes(variable.ty)
    return None if shape is None else tuple(int(size) for size in view.parent_shape(shape))


def _bytes(ty: Any, full: tuple[int, ...] | None = None) -> int:
    """Bytes of a tensor of type `ty`, or of shape `full` where given; 0 for dynamic shapes."""
    if isinstance(ty, relax.TupleType):
        return sum(_bytes(field) for field in ty.fields)
    shape = full or _sizes(ty)
    if shape is None:
        return 0
    return math.prod(shape) * ((int(tvm.DataType(str(ty.dtype)).bits) + 7) // 8)
