"""Special cases of a bucket: whether an input holds what they were built for, as C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.emit import c_text
from kiln.emit.plan_ports import Port, require


@dataclass(frozen=True)
class Case:
    """Bucket `bucket` runs in place of `general` where `condition`, a C expression, holds."""

    bucket: int
    general: int
    condition: str
    shown: str


def special_cases(
    buckets: Sequence[Mapping[str, Any]], inputs: Sequence[Port], params: Mapping[str, Any], on_gpu: bool
) -> list[Case]:
    """The cases in the order in which they are asked. Raises KilnError for one that cannot be.

    `on_gpu`: inputs may lie in a GPU's memory, which cannot be looked at: then they are nothing special.
    """
    return [
        _case(buckets, number, inputs, params, on_gpu)
        for number, bucket in enumerate(buckets)
        if bucket.get("when") is not None
    ]


def _case(
    buckets: Sequence[Mapping[str, Any]],
    number: int,
    inputs: Sequence[Port],
    params: Mapping[str, Any],
    on_gpu: bool,
) -> Case:
    bucket, when = buckets[number], buckets[number]["when"]
    where = f"buckets[{number}].when"
    general, index, value = when["bucket"], when["input"], when["value"]
    good = 0 <= general < number and buckets[general].get("when") is None
    require(good, f"{where}.bucket", general, "a bucket before this one that is no special case itself")
    require(bucket["dims"] == buckets[general]["dims"], f"buckets[{number}].dims", "other sizes",
            f"those of bucket '{buckets[general]['name']}'")  # fmt: skip
    most = buckets[general]["arena_bytes"]
    require(bucket["arena_bytes"] <= most, f"buckets[{number}].arena_bytes", bucket["arena_bytes"],
            f"at most the {most} of bucket '{buckets[general]['name']}'")  # fmt: skip
    require(0 <= index < len(inputs), f"{where}.input", index, f"0..{len(inputs) - 1}")
    about = f"frame, &input_tensors[{index}], {index}"
    if isinstance(value, Mapping):
        offset, size, room = value["offset"], value["bytes"], params["bytes"]
        good = offset >= 0 and size > 0 and offset + size <= room
        require(good, f"{where}.value", f"bytes {offset}..{offset + size} of params", f"some in 0..{room}")
        condition, shown = f"kiln_input_equals({about}, {offset}, {size})", "is the expected one"
    else:
        require(value in ("zeros", "ones"), f"{where}.value", value, "zeros, ones, bytes of params")
        element = ", ".join(str(byte) for byte in c_text.element(inputs[index].dtype, value == "ones"))
        condition = f"kiln_input_filled({about}, (const unsigned char[]){{{element}}})"
        shown = f"is all {value}"
    if on_gpu:
        condition = f"frame->inputs[{index}].device.device_type != kDLCUDA && {condition}"
    return Case(number, general, condition, f"{inputs[index].name} {shown}")
