"""Special cases of a bucket: the C conditions on sizes and on the content of inputs that select them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiln.emit import c_text
from kiln.emit.plan_ports import PortsCode, require
from kiln.lower.schema import SizeInRange, SizeIsMultiple
from kiln.plan.schema import InputContent, ParameterBytes, Parameters, PlannedBucket, PlannedCase


@dataclass(frozen=True)
class CaseCode:
    """Bucket `bucket` runs in place of `general` if `condition`, a C expression, is true.

    Both are indices of buckets; `shown` is the condition in words.
    """

    bucket: int
    general: int
    condition: str
    shown: str


def special_cases(
    buckets: Sequence[PlannedBucket], ports: PortsCode, params: Parameters, on_gpu: bool
) -> list[CaseCode]:
    """Special cases in the order in which they are tested. Raises KilnError for an invalid one.

    `on_gpu`: inputs may be in a GPU's memory, where the host cannot read them; a condition on the content of
    such an input is false.
    """
    return [
        _case(buckets, number, bucket.when, ports, params, on_gpu)
        for number, bucket in enumerate(buckets)
        if bucket.when is not None
    ]


def _case(
    buckets: Sequence[PlannedBucket],
    number: int,
    planned: PlannedCase,
    ports: PortsCode,
    params: Parameters,
    on_gpu: bool,
) -> CaseCode:
    bucket = buckets[number]
    where = f"buckets[{number}].when"
    general = planned.bucket
    good = 0 <= general < number and buckets[general].when is None
    require(good, f"{where}.bucket", general, "an earlier bucket that is not a special case")
    require(bucket.dims == buckets[general].dims, f"buckets[{number}].dims", "other sizes",
            f"those of bucket '{buckets[general].name}'")  # fmt: skip
    arena_bytes = buckets[general].arena_bytes
    require(bucket.arena_bytes <= arena_bytes, f"buckets[{number}].arena_bytes", bucket.arena_bytes,
            f"at most the {arena_bytes} of bucket '{buckets[general].name}'")  # fmt: skip
    conditions = []
    for index, entry in enumerate(planned.all):
        label = f"{where}.all[{index}]"
        if isinstance(entry, InputContent):
            conditions.append(_content(entry, label, ports, params, on_gpu))
        else:
            conditions.append(_size(entry, label, ports))
    condition = " && ".join(code for code, _ in conditions)
    return CaseCode(number, general, condition, " and ".join(words for _, words in conditions))


def _size(condition: SizeInRange | SizeIsMultiple, where: str, ports: PortsCode) -> tuple[str, str]:
    """A condition on a dimension, in C and in words. Raises KilnError for an invalid one."""
    names = [dim.name for dim in ports.dims]
    name = condition.dim
    require(name in names, f"{where}.dim", name, ", ".join(names) or "none: all sizes are fixed")
    size = f"frame->dims[{names.index(name)}]"
    if isinstance(condition, SizeIsMultiple):
        return f"{size} % {condition.multiple} == 0", f"{name} is a multiple of {condition.multiple}"
    low, high = condition.min, condition.max
    require(low <= high, f"{where}: range", f"{low}..{high}", "min <= max")
    if low == high:
        return f"{size} == {low}", f"{name} is {low}"
    return f"{size} >= {low} && {size} <= {high}", f"{name} is {low}..{high}"


def _content(
    condition: InputContent, where: str, ports: PortsCode, params: Parameters, on_gpu: bool
) -> tuple[str, str]:
    """A condition on an input's elements, in C and in words. Raises KilnError for an invalid one."""
    inputs, index, value = ports.inputs, condition.input, condition.value
    require(0 <= index < len(inputs), f"{where}.input", index, f"0..{len(inputs) - 1}")
    about = f"frame, &input_tensors[{index}], {index}"
    if isinstance(value, ParameterBytes):
        offset, size, room = value.offset, value.bytes, params.bytes
        good = offset >= 0 and size > 0 and offset + size <= room
        require(good, f"{where}.value", f"bytes {offset}..{offset + size} of params", f"some in 0..{room}")
        expression, shown = f"kiln_input_equals({about}, {offset}, {size})", "is the expected one"
    else:
        element = ", ".join(str(byte) for byte in c_text.element(inputs[index].dtype, value == "ones"))
        expression = f"kiln_input_filled({about}, (const unsigned char[]){{{element}}})"
        shown = f"is all {value}"
    if on_gpu:
        expression = f"frame->inputs[{index}].device.device_type != kDLCUDA && {expression}"
    return expression, f"{inputs[index].name} {shown}"
