"""Steps of plan.json as C: each argument an expression, its address checked against its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.emit import c_text
from kiln.errors import KilnError

INT32_MAX = 2**31 - 1


def require(good: bool, where: str, value: object, allowed: str) -> None:
    """Raise KilnError for the entry `where` of plan.json unless `good`."""
    if not good:
        raise KilnError(f"plan.json: {where}: {value}, allowed: {allowed}")


@dataclass(frozen=True)
class Port:
    """An input or output. `shape` has sizes, and -1 - k for dimension k; `greatest` has the largest sizes."""

    name: str
    c_name: str
    c_type: str
    dl_type: str
    shape: list[int]
    shown: str
    greatest: list[int]
    elements: int
    bytes: int
    quant: Mapping[str, Any] | None
    symbolic: bool


@dataclass(frozen=True)
class Step:
    """One call: the kernel, its arguments as C expressions with a comment each, and how many tasks."""

    symbol: str
    args: list[tuple[str, str]]
    extent: str
    parallel: bool
    label: str


@dataclass(frozen=True)
class StepMaker:
    """Makes steps; every address is checked against the memory that it lies in."""

    kernels: Mapping[str, dict[str, Any]]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    dims: Sequence[Mapping[str, Any]]
    params: Mapping[str, Any]
    threads: bool

    def step(self, bucket: Mapping[str, Any], number: int, at: int) -> Step:
        step = bucket["steps"][at]
        where = f"buckets[{number}].steps[{at}]"
        require(step["kernel"] in self.kernels, f"{where}.kernel", step["kernel"], "one of kernels")
        kernel = self.kernels[step["kernel"]]
        given, wanted = len(step["args"]), len(kernel["args"])
        require(given == wanted, f"{where}.args", f"{given} arguments", f"{wanted} as in kernels")
        args = [
            self._argument(arg, want, bucket, at, f"{where}.args[{i}]")
            for i, (arg, want) in enumerate(zip(step["args"], kernel["args"], strict=True))
        ]
        extent = ""
        if kernel["parallel"]:
            if isinstance(step["extent"], str):
                extent = f"(int32_t){self._dim(step['extent'], f'{where}.extent')}"
            else:
                require(0 < step["extent"] <= INT32_MAX, f"{where}.extent", step["extent"], "1..2147483647")
                extent = str(step["extent"])
        return Step(kernel["symbol"], args, extent, kernel["parallel"] and self.threads, step["label"])

    def _dim(self, name: str, where: str) -> str:
        names = [dim["name"] for dim in self.dims]
        require(name in names, where, f"dimension '{name}'", ", ".join(names) or "numbers only")
        return f"frame->dims[{names.index(name)}]"

    def _argument(
        self, arg: Mapping[str, Any], want: Mapping[str, Any], bucket: Mapping[str, Any], at: int, where: str
    ) -> tuple[str, str]:
        place = arg["at"]
        require(
            (place == "dim") == bool(want.get("scalar")),
            where,
            f"at {place}",
            "dim for a scalar, and only then",
        )
        if place == "dim":
            return self._dim(arg["name"], where), arg["name"]
        if place in ("input", "output"):
            ports = self.inputs if place == "input" else self.outputs
            require(0 <= arg["index"] < len(ports), f"{where}.index", arg["index"], f"0..{len(ports) - 1}")
            port = ports[arg["index"]]
            room, comment = port.bytes, port.name
            code = f"kiln_at_{place}(frame, {arg['index']}, {arg['offset']})"
        else:
            require(place in ("arena", "params"), f"{where}.at", place, "input, output, arena, params, dim")
            room = bucket["arena_bytes"] if place == "arena" else self.params["bytes"]
            comment = self._tensor_at(arg, bucket, at)
            code = f"kiln_at_{place}(frame, {arg['offset']})"
        read_only = place in ("input", "params")
        require(want["const"] or not read_only, where, f"written at {place}", "output and arena")
        first, last = arg["offset"], arg["offset"] + arg.get("bytes", 0)
        require(first >= 0 and last <= room, where, f"bytes {first}..{last} of {place}", f"0..{room}")
        element = c_text.element_bytes(want["dtype"], f"plan.json: {where}")
        require(first % element == 0, f"{where}.offset", first, f"multiples of {element}")
        return code, comment

    def _tensor_at(self, arg: Mapping[str, Any], bucket: Mapping[str, Any], at: int) -> str:
        """The name of what lies at this place during this step."""
        if arg["at"] == "params":
            candidates = self.params.get("tensors", [])
        else:
            candidates = [t for t in bucket.get("tensors", []) if t["first"] <= at <= t["last"]]
        return next((t["name"] for t in candidates if t["offset"] == arg["offset"]), "")
