"""Steps of plan.json as C: each argument becomes an expression; every address is checked for bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.config import sizes
from kiln.emit import c_text
from kiln.emit.buckets import bucket_range
from kiln.emit.plan_ports import Ports, require
from kiln.emit.size_code import INT32_MAX, SizeCode, size_bounds

_MAX_ARGS = 64  # MAX_ARGS of gpu_cuda.c
# Greatest number of blocks of a grid, and of threads of a block, along x, y and z.
_GRID, _BLOCK = (INT32_MAX, 65535, 65535), (1024, 1024, 64)


@dataclass(frozen=True)
class Step:
    """One call of a kernel.

    `lines`: C statements that must precede the call. `args`: (C expression, comment) of each argument.
    `extent`: C expression of the number of tasks. `result`: C type that the kernel returns.
    `launch`: on a GPU, blocks along x, y and z, then threads of a block along x, y and z.
    `open`: whether, on a GPU, the launch depends on dynamic dimensions. `library`: on a GPU, the backend
    whose library computes the step; empty for a launch.
    `check`: C initialiser of the kiln_index_check of a step that checks indices; else empty.
    """

    symbol: str
    lines: list[str]
    args: list[tuple[str, str]]
    extent: str
    parallel: bool
    label: str
    launch: list[str]
    open: bool
    result: str
    library: str
    check: str


@dataclass(frozen=True)
class StepMaker:
    """Translates steps of plan.json to C; checks every address against the memory that it points into."""

    kernels: Mapping[str, dict[str, Any]]
    ports: Ports
    params: Mapping[str, Any]
    threads: bool
    gpu: bool = False

    def step(self, bucket: Mapping[str, Any], number: int, at: int) -> Step:
        """Step `at` of `bucket`, which is bucket `number` of the plan. Raises KilnError if invalid."""
        step = bucket["steps"][at]
        where = f"buckets[{number}].steps[{at}]"
        require(step["kernel"] in self.kernels, f"{where}.kernel", step["kernel"], "one of kernels")
        kernel = self.kernels[step["kernel"]]
        given, wanted = len(step["args"]), len(kernel["args"])
        require(given == wanted, f"{where}.args", f"{given} arguments", f"{wanted} as in kernels")
        dims = self.ports.dims
        code = SizeCode(
            {dim["name"]: f"(int32_t)frame->dims[{index}]" for index, dim in enumerate(dims)},
            box := {dim["name"]: bucket_range(bucket, dim) for dim in dims},
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
        # Values that a CUDA graph fixes when it is recorded: scalar arguments and the grid.
        exprs = [arg["expr"] for arg in step["args"] if arg["at"] == "dim"] if self.gpu else []
        exprs += step["launch"]["grid"] if "launch" in step else []
        return Step(
            kernel["symbol"], code.lines, args, extent, kernel["parallel"] and self.threads, step["label"],
            self._launch(step, args, code, box, where), any(sizes.names(expr) for expr in exprs),
            kernel["result"], kernel["backend"] if self.gpu and "launch" not in step else "",
            self._check(step, at, where) if kernel["check"] else "",
        )  # fmt: skip

    def _check(self, step: Mapping[str, Any], at: int, where: str) -> str:
        """C initialiser of kiln_index_check, which names the input or the operator that reads the indices."""
        about = step["check"]
        known = isinstance(about["axis"], int) and isinstance(about["op"], str)
        require(known and not self.gpu, f"{where}.check", about, "op and axis, not on a GPU")
        indices = step["args"][0]
        name = f"indices of {about['op']}"
        if indices["at"] == "input":
            name = self.ports.inputs[indices["index"]].name
        return f"{{{c_text.string(name)}, {at}, {about['axis']}, {int(about['wraps'])}}}"

    def _launch(
        self, step: Mapping[str, Any], args: list[Any], code: SizeCode, box: Mapping[str, Any], where: str
    ) -> list[str]:
        """C expressions of the grid, then of the block; empty for a step that is not a launch.

        The limits are common to all GPUs (CUDA C++ Programming Guide, technical specifications). Raises
        KilnError for a launch that exceeds them.
        """
        if not self.gpu or ("launch" not in step and self.kernels[step["kernel"]]["backend"]):
            return []
        grid, block = step["launch"]["grid"], step["launch"]["block"]
        for extents, most, name in ((grid, _GRID, "grid"), (block, _BLOCK, "block")):
            place = f"{where}.launch.{name}"
            require(len(extents) == 3, place, len(extents), "3 numbers")
            for expr, limit in zip(extents, most, strict=True):
                low, high = size_bounds(expr, box, place)
                require(1 <= low <= high <= limit, place, f"{low}..{high}", f"1..{limit}")
        threads = block[0] * block[1] * block[2]
        require(threads <= _BLOCK[0], f"{where}.launch.block", f"{threads} threads", f"at most {_BLOCK[0]}")
        require(len(args) <= _MAX_ARGS, f"{where}.args", len(args), f"at most {_MAX_ARGS} on a GPU")
        return [code.value(expr, f"{where}.launch") for expr in [*grid, *block]]

    def _argument(
        self, arg: Mapping[str, Any], want: Mapping[str, Any], bucket: Mapping[str, Any], at: int,
        code: SizeCode, where: str,
    ) -> tuple[str, str]:  # fmt: skip
        """C expression and comment of one argument. Raises KilnError for an address outside its memory."""
        place = arg["at"]
        require(
            (place == "dim") == bool(want.get("scalar")),
            where,
            f"at {place}",
            "dim for a scalar, and only then",
        )
        if place == "dim":
            value = code.value(arg["expr"], f"{where}.expr")
            # On a GPU every argument is as wide as a pointer; a kernel reads as many bytes as it needs.
            wide = f"(const void *)(intptr_t)({value})"
            return wide if self.gpu else value, sizes.show(arg["expr"])
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
        """Name of the tensor that `arg` points to during step `at`; empty if the plan has no name for it."""
        if arg["at"] == "params":
            candidates = self.params.get("tensors", [])
        else:
            candidates = [t for t in bucket.get("tensors", []) if t["first"] <= at <= t["last"]]
        return next((t["name"] for t in candidates if t["offset"] == arg["offset"]), "")
