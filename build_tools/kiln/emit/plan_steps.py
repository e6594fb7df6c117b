"""Steps of plan.json as C: each argument an expression, its address checked against its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.config import sizes
from kiln.emit import c_text
from kiln.emit.buckets import bucket_range
from kiln.emit.plan_ports import Ports, require
from kiln.emit.size_code import INT32_MAX, SizeCode

_MAX_ARGS = 64  # MAX_ARGS of gpu_cuda.c


@dataclass(frozen=True)
class Step:
    """One call: the kernel, its arguments as C expressions with a comment each, and how many tasks.

    `lines`: the statements that must stand before it. `launch`: for a GPU, blocks along x, y and z, then the
    threads of each.
    """

    symbol: str
    lines: list[str]
    args: list[tuple[str, str]]
    extent: str
    parallel: bool
    label: str
    launch: list[int]


@dataclass(frozen=True)
class StepMaker:
    """Makes steps; every address is checked against the memory that it lies in."""

    kernels: Mapping[str, dict[str, Any]]
    ports: Ports
    params: Mapping[str, Any]
    threads: bool
    gpu: bool = False

    def step(self, bucket: Mapping[str, Any], number: int, at: int) -> Step:
        step = bucket["steps"][at]
        where = f"buckets[{number}].steps[{at}]"
        require(step["kernel"] in self.kernels, f"{where}.kernel", step["kernel"], "one of kernels")
        kernel = self.kernels[step["kernel"]]
        given, wanted = len(step["args"]), len(kernel["args"])
        require(given == wanted, f"{where}.args", f"{given} arguments", f"{wanted} as in kernels")
        dims = self.ports.dims
        code = SizeCode(
            {dim["name"]: f"(int32_t)frame->dims[{index}]" for index, dim in enumerate(dims)},
            {dim["name"]: bucket_range(bucket, dim) for dim in dims},
        )
        args = [
            self._argument(arg, want, bucket, at, code, f"{where}.args[{i}]")
            for i, (arg, want) in enumerate(zip(step["args"], kernel["args"], strict=True))
        ]
        extent = ""
        if kernel["parallel"]:
            extent = code.value(step["extent"], f"{where}.extent")
            if not sizes.names(step["extent"]):
                tasks = sizes.evaluate(step["extent"], {})
                require(0 < tasks <= INT32_MAX, f"{where}.extent", tasks, "1..2147483647")
        return Step(
            kernel["symbol"], code.lines, args, extent, kernel["parallel"] and self.threads, step["label"],
            self._launch(step, args, where),
        )  # fmt: skip

    def _launch(self, step: Mapping[str, Any], args: list[Any], where: str) -> list[int]:
        """Limits are those of every GPU (CUDA C++ Programming Guide, technical specifications)."""
        if not self.gpu:
            return []
        grid, block = step["launch"]["grid"], step["launch"]["block"]
        counts = f"{grid}, {block}"
        sizes_good = len(grid) == len(block) == 3 and all(
            isinstance(n, int) and n > 0 for n in [*grid, *block]
        )
        require(sizes_good, f"{where}.launch", counts, "three numbers above 0 each")
        grid_good = grid[0] <= INT32_MAX and max(grid[1:]) <= 65535
        require(grid_good, f"{where}.launch.grid", grid, "2147483647, 65535, 65535")
        block_good = block[0] * block[1] * block[2] <= 1024 and block[2] <= 64
        require(block_good, f"{where}.launch.block", block, "1024 threads in all, 64 along z")
        require(len(args) <= _MAX_ARGS, f"{where}.args", len(args), f"at most {_MAX_ARGS} on a GPU")
        return [*grid, *block]

    def _argument(
        self, arg: Mapping[str, Any], want: Mapping[str, Any], bucket: Mapping[str, Any], at: int,
        code: SizeCode, where: str,
    ) -> tuple[str, str]:  # fmt: skip
        place = arg["at"]
        require(
            (place == "dim") == bool(want.get("scalar")),
            where,
            f"at {place}",
            "dim for a scalar, and only then",
        )
        if place == "dim":
            return code.value(arg["expr"], f"{where}.expr"), sizes.show(arg["expr"])
        if place in ("input", "output"):
            ports = self.ports.inputs if place == "input" else self.ports.outputs
            require(0 <= arg["index"] < len(ports), f"{where}.index", arg["index"], f"0..{len(ports) - 1}")
            port = ports[arg["index"]]
            room, comment = port.bytes, port.name
            address = f"kiln_at_{place}(frame, {arg['index']}, {arg['offset']})"
        else:
            require(place in ("arena", "params"), f"{where}.at", place, "input, output, arena, params, dim")
            room = bucket["arena_bytes"] if place == "arena" else self.params["bytes"]
            comment = self._tensor_at(arg, bucket, at)
            address = f"kiln_at_{place}(frame, {arg['offset']})"
        read_only = place in ("input", "params")
        require(want["const"] or not read_only, where, f"written at {place}", "output and arena")
        first, last = arg["offset"], arg["offset"] + arg.get("bytes", 0)
        require(first >= 0 and last <= room, where, f"bytes {first}..{last} of {place}", f"0..{room}")
        element = c_text.element_bytes(want["dtype"], f"plan.json: {where}")
        require(first % element == 0, f"{where}.offset", first, f"multiples of {element}")
        return address, comment

    def _tensor_at(self, arg: Mapping[str, Any], bucket: Mapping[str, Any], at: int) -> str:
        """The name of what lies at this place during this step."""
        if arg["at"] == "params":
            candidates = self.params.get("tensors", [])
        else:
            candidates = [t for t in bucket.get("tensors", []) if t["first"] <= at <= t["last"]]
        return next((t["name"] for t in candidates if t["offset"] == arg["offset"]), "")
