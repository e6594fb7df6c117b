"""Special cases of a bucket: the C conditions on sizes and on the content of inputs that select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.emit import c_text
from kiln.emit.plan_ports import Ports, require
from kiln.emit.size_code import INT32_MAX


@dataclass(frozen=True)
class Case:
    """Bucket `bucket` runs in place of `general` if `condition`, a C expression, is true.

    Both are indices of buckets; `shown` is the condition in words.
    """

    bucket: int
    general: int
    condition: str
    shown: str


def special_cases(
    buckets: Sequence[Mapping[str, Any]], ports: Ports, params: Mapping[str, Any], on_gpu: bool
) -> list[Case]:
    """Special cases in the order in which they are tested. Raises KilnError for an invalid one.

    `on_gpu`: inputs may be in a GPU's memory, where the host cannot read them; a condition on the content of
    such an input is false.
    """
    return [
        _case(buckets, number, ports, params, on_gpu)
        for number, bucket in enumerate(buckets)
        if bucket.get("when") is not None
    ]


def _case(
    buckets: Sequence[Mapping[str, Any]],
    number: int,
    ports: Ports,
    params: Mapping[str, Any],
    on_gpu: bool,
) -> Case:
    bucket, when = buckets[number], buckets[number]["when"]
    where = f"buckets[{number}].when"
    general = when["bucket"]
    good = 0 <= general < number and buckets[general].get("when") is None
    require(good, f"{where}.bucket", general, "an earlier bucket that is not a special case")
    require(bucket["dims"] == buckets[general]["dims"], f"buckets[{number}].dims", "other sizes",
            f"those of bucket '{buckets[general]['name']}'")  # fmt: skip
    most = buckets[general]["arena_bytes"]
    require(bucket["arena_bytes"] <= most, f"buckets[{number}].arena_bytes", bucket["arena_bytes"],
            f"at most the {most} of bucket '{buckets[general]['name']}'")  # fmt: skip
    require(len(when["all"]) > 0, f"{where}.all", "no condition", "one and more")
    conditions = []
    for index, entry in enumerate(when["all"]):
        place = f"{where}.all[{index}]"
        if "dim" in entry:
            conditions.append(_size(entry, place, ports))
        else:
            conditions.append(_content(entry, place, ports, params, on_gpu))
    condition = " && ".join(code for code, _ in conditions)
    return Case(number, general, condition, " and ".join(words for _, words in conditions))


def _size(condition: Mapping[str, Any], where: str, ports: Ports) -> tuple[str, str]:
    """A condition on a dimension, in C and in words. Raises KilnError for an invalid one."""
    names = [dim["name"] for dim in ports.dims]
    name = condition["dim"]
    require(name in names, f"{where}.dim", name, ", ".join(names) or "none: all sizes are fixed")
    size = f"frame->dims[{names.index(name)}]"
    if "multiple" in condition:
        factor = condition["multiple"]
        require(1 <= factor <= INT32_MAX, f"{where}.multiple", factor, f"1..{INT32_MAX}")
        return f"{size} % {factor} == 0", f"{name} is a multiple of {factor}"
    low, high = condition["min"], condition["max"]
    require(
        0 <= low <= high <= INT32_MAX, f"{where}: range", f"{low}..{high}", f"0 <= min <= max <= {INT32_MAX}"
    )
    if low == high:
        return f"{size} == {low}", f"{name} is {low}"
    return f"{size} >= {low} && {size} <= {high}", f"{name} is {low}..{high}"


def _content(
    condition: Mapping[str, Any], where: str, ports: Ports, params: Mapping[str, Any], on_gpu: bool
) -> tuple[str, str]:
    """A condition on an input's elements, in C and in words. Raises KilnError for an invalid one."""
    inputs, index, value = ports.inputs, condition["input"], condition["value"]
    require(0 <= index < len(inputs), f"{where}.input", index, f"0..{len(inputs) - 1}")
    about = f"frame, &input_tensors[{index}], {index}"
    if isinstance(value, Mapping):
        offset, size, room = value["offset"], value["bytes"], params["bytes"]
        good = offset >= 0 and size > 0 and offset + size <= room
        require(good, f"{where}.value", f"bytes {offset}..{offset + size} of params", f"some in 0..{room}")
        made, shown = f"kiln_input_equals({about}, {offset}, {size})", "is the expected one"
    else:
        require(value in ("zeros", "ones"), f"{where}.value", value, "zeros, ones, bytes of params")
        element = ", ".join(str(byte) for byte in c_text.element(inputs[index].dtype, value == "ones"))
        made = f"kiln_input_filled({about}, (const unsigned char[]){{{element}}})"
        shown = f"is all {value}"
    if on_gpu:
        made = f"frame->inputs[{index}].device.device_type != kDLCUDA && {made}"
    return made, f"{inputs[index].name} {shown}"
