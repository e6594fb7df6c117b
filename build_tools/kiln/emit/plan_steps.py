"""Steps of plan.json as C: each argument becomes an expression; every address is checked to be in bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kiln.config import sizes
from kiln.config.records import INT32_MAX
from kiln.emit import c_text
from kiln.emit.buckets import bucket_range
from kiln.emit.plan_ports import PortsCode, require
from kiln.emit.size_code import SizeCode, size_bounds
from kiln.errors import KilnError
from kiln.lower.schema import BranchMark, KernelArgument, LoopMark
from kiln.plan.schema import (
    ExpressionArgument,
    MemoryArgument,
    Parameters,
    PlacedState,
    PlacedTensor,
    PlannedBucket,
    PlannedStep,
    PortArgument,
    StepArgument,
    StoredTensor,
)

_MAX_ARGS = 64  # MAX_ARGS of gpu_cuda.c
# Greatest number of blocks of a grid, and of threads of a block, along x, y and z.
_GRID, _BLOCK = (INT32_MAX, 65535, 65535), (1024, 1024, 64)


@dataclass(frozen=True)
class StepCode:
    """One call of a kernel.

    `lines`: C statements that must precede the call. `args`: (C expression, comment) of each argument.
    `extent`: C expression of the number of tasks. `result`: C type that the kernel returns.
    `launch`: on a GPU, blocks along x, y and z, then threads of a block along x, y and z.
    `open`: whether, on a GPU, the launch depends on dynamic dimensions. `library`: on a GPU, the backend
    whose library computes the step; empty for a launch.
    `check`: C values of the fields of the kiln_index_check of a step that checks indices, or of the
    kiln_counted of one that counts; else empty. `counts`: whether it is the latter.
    `jump`: C expression of what a control step of a loop or branch returns; else empty.
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
    check: list[str]
    counts: bool
    jump: str = ""


@dataclass(frozen=True)
class KernelCode:
    """A kernel as C.

    `types`, `result`: C types of its parameters, without the range of tasks, and of its result. `backend`:
    the library that computes it; else empty. `ops`: its operators, for a comment. On a GPU `module`: number
    of the module that contains it, 0 for those compiled from CUDA C; `dynamic_bytes`: its dynamic shared
    memory; `waits`: 1 if it waits itself for the launches before it (kiln.kernels.gpu.early_launch).
    """

    symbol: str
    types: list[str]
    args: list[KernelArgument]
    parallel: bool
    result: str
    check: bool
    backend: str
    ops: str
    dynamic_bytes: int = 0
    module: int = 0
    waits: int = 0


@dataclass(frozen=True)
class StepMaker:
    """Translates steps of plan.json to C; checks every address against the memory that it points into."""

    kernels: Mapping[str, KernelCode]
    ports: PortsCode
    params: Parameters
    threads: bool
    gpu: bool = False
    states: Sequence[PlacedState] = ()
    state_bytes: int = 0

    def step(self, bucket: PlannedBucket, number: int, at: int) -> StepCode:
        """Step `at` of `bucket`, which is bucket `number` of the plan. Raises KilnError if invalid."""
        step = bucket.steps[at]
        where = f"buckets[{number}].steps[{at}]"
        require(step.kernel in self.kernels, f"{where}.kernel", step.kernel, "one of kernels")
        kernel = self.kernels[step.kernel]
        count, expected = len(step.args), len(kernel.args)
        require(count == expected, f"{where}.args", f"{count} arguments", f"{expected} as in kernels")
        box = {dim.name: bucket_range(bucket, dim) for dim in self.ports.dims} | self.ports.ranges
        code = SizeCode({name: f"(int32_t)frame->dims[{index}]" for index, name in enumerate(box)}, box)
        args = [
            self._argument(arg, want, bucket, at, code, f"{where}.args[{i}]")
            for i, (arg, want) in enumerate(zip(step.args, kernel.args, strict=True))
        ]
        extent = ""
        if kernel.parallel:
            extent = code.value(step.extent, f"{where}.extent")
            if not sizes.names(step.extent):
                tasks = sizes.evaluate(step.extent, {})
                require(0 < tasks <= INT32_MAX, f"{where}.extent", tasks, "1..2147483647")
        # Values that a CUDA graph fixes when it is recorded: scalar arguments and the grid.
        exprs = [arg.expr for arg in step.args if isinstance(arg, ExpressionArgument)] if self.gpu else []
        exprs += step.launch.grid if step.launch is not None else []
        return StepCode(
            kernel.symbol, code.lines, args, extent, kernel.parallel and self.threads, step.label,
            self._launch(step, args, code, box, where), any(sizes.names(expr) for expr in exprs),
            kernel.result, kernel.backend if self.gpu and step.launch is None else "",
            self._check(step, at, where) if kernel.check and not (step.loop or step.branch) else [],
            kernel.check and step.counts is not None, self._control(bucket, step, args, where),
        )  # fmt: skip

    def _control(
        self, bucket: PlannedBucket, step: PlannedStep, args: list[tuple[str, str]], where: str
    ) -> str:
        """C expression of the value that a control step returns; empty for other steps."""
        if step.loop is not None:
            return self._jump(bucket, step.loop, args[0][0], where)
        return "" if step.branch is None else self._branch(bucket, step.branch, args[0][0], where)

    def _branch(self, bucket: PlannedBucket, mark: BranchMark, condition: str, where: str) -> str:
        """C expression of the value that a branch's control step returns: 0, or the next step's number."""
        equal_steps = [
            (step.branch.part, index)
            for index, step in enumerate(bucket.steps)
            if step.branch is not None and step.branch.number == mark.number
        ]
        good = [branch_part for branch_part, _ in equal_steps] == ["first", "second", "end"]
        require(good and not self.gpu, f"{where}.branch", mark.number, "first, second and end, not on a GPU")
        _, (_, second), (_, end) = equal_steps
        if mark.part == "first":
            return f"*(const uint8_t *){condition} != 0 ? 0 : KILN_STEP_JUMP({second + 1})"
        return f"KILN_STEP_JUMP({end + 1})" if mark.part == "second" else "0"

    def _jump(self, bucket: PlannedBucket, mark: LoopMark, condition: str, where: str) -> str:
        """C expression of the value that a loop's control step returns: 0, or the number of the next step."""
        equal_steps = [
            (step.loop.ends, index)
            for index, step in enumerate(bucket.steps)
            if step.loop is not None and step.loop.number == mark.number
        ]
        good = [ends for ends, _ in equal_steps] == [False, True]
        require(good and not self.gpu, f"{where}.loop", mark.number, "a begin and then an end, not on a GPU")
        (_, first), (_, last) = equal_steps
        if mark.ends:
            return f"KILN_STEP_JUMP({first})"
        return f"*(const uint8_t *){condition} != 0 ? 0 : KILN_STEP_JUMP({last + 1})"

    def _check(self, step: PlannedStep, index: int, where: str) -> list[str]:
        """C values of kiln_counted, or of kiln_index_check, which names the step that reads the indices."""
        if step.counts is not None and not self.gpu:
            names = [*(dim.name for dim in self.ports.dims), *(dim.name for dim in self.ports.counted)]
            dim, name = step.counts.dim, c_text.string(step.counts.tensor)
            require(dim in self.ports.ranges, f"{where}.counts", dim, "a counted dimension")
            derive = "derive_sizes" if self.ports.derived else "NULL"
            return [name, str(index), str(names.index(dim)), derive]
        if step.check is None or self.gpu:
            raise KilnError(f"plan.json: {where}.check: {step.check}, allowed: op and axis, not on a GPU")
        name, indices = f"indices of {step.check.op}", step.args[0]
        if isinstance(indices, PortArgument) and indices.at == "input":
            name = self.ports.inputs[indices.index].name
        return [c_text.string(name), str(index), str(step.check.axis), str(int(step.check.wraps))]

    def _launch(
        self, step: PlannedStep, args: list[tuple[str, str]], code: SizeCode,
        box: Mapping[str, tuple[int, int]], where: str,
    ) -> list[str]:  # fmt: skip
        """C expressions of the grid, then of the block; empty for a step that is not a launch.

        The limits are common to all GPUs (CUDA C++ Programming Guide, technical specifications). Raises
        KilnError for a launch that exceeds them.
        """
        if not self.gpu or (step.launch is None and self.kernels[step.kernel].backend):
            return []
        if step.launch is None:
            raise KilnError(f"plan.json: {where}: key 'launch' is missing")
        grid, block = step.launch.grid, step.launch.block
        for extents, limits, name in ((grid, _GRID, "grid"), (block, _BLOCK, "block")):
            label = f"{where}.launch.{name}"
            for expr, limit in zip(extents, limits, strict=True):
                low, high = size_bounds(expr, box, label)
                require(1 <= low <= high <= limit, label, f"{low}..{high}", f"1..{limit}")
        threads = block[0] * block[1] * block[2]
        require(threads <= _BLOCK[0], f"{where}.launch.block", f"{threads} threads", f"at most {_BLOCK[0]}")
        require(len(args) <= _MAX_ARGS, f"{where}.args", len(args), f"at most {_MAX_ARGS} on a GPU")
        return [code.value(expr, f"{where}.launch") for expr in [*grid, *block]]

    def _argument(
        self, arg: StepArgument, want: KernelArgument, bucket: PlannedBucket, index: int, code: SizeCode,
        where: str,
    ) -> tuple[str, str]:  # fmt: skip
        """C expression and comment of one argument. Raises KilnError for an address outside its memory."""
        memory = arg.at
        require((memory == "dim") == want.scalar, where, f"at {memory}", "dim for a scalar, and only then")
        if isinstance(arg, ExpressionArgument):
            value = code.value(arg.expr, f"{where}.expr")
            # On a GPU every argument is as wide as a pointer; a kernel reads as many bytes as it needs.
            wide = f"(const void *)(intptr_t)({value})"
            return wide if self.gpu else value, sizes.show(arg.expr)
        if isinstance(arg, PortArgument):
            ports = self.ports.inputs if memory == "input" else self.ports.outputs
            require(0 <= arg.index < len(ports), f"{where}.index", arg.index, f"0..{len(ports) - 1}")
            port = ports[arg.index]
            room, comment = port.bytes, port.name
            address = f"kiln_at_{memory}(frame, {arg.index}, {arg.offset})"
        else:
            room, comment = self._room(arg, bucket, where), self._tensor_at(arg, bucket, index)
            address = self._address(arg)
        read_only = memory in ("input", "params")
        require(want.const or not read_only, where, f"written at {memory}", "output, arena and state")
        first, last = arg.offset, arg.offset + arg.bytes
        require(first >= 0 and last <= room, where, f"bytes {first}..{last} of {memory}", f"0..{room}")
        element = c_text.element_bytes(want.dtype, f"plan.json: {where}")
        require(first % element == 0, f"{where}.offset", first, f"multiples of {element}")
        return address, comment

    def _room(self, arg: MemoryArgument, bucket: PlannedBucket, where: str) -> int:
        """Bytes of the memory that `arg` points into. Raises KilnError for an unknown region."""
        if arg.at != "arena":
            return self.params.bytes if arg.at == "params" else self.state_bytes
        sizes_of = (bucket.arena_bytes, *bucket.more_arenas)
        require(arg.region < len(sizes_of), f"{where}.region", arg.region, f"0..{len(sizes_of) - 1}")
        return sizes_of[arg.region]

    def _address(self, arg: MemoryArgument) -> str:
        """C expression of the first byte of `arg`."""
        if arg.at == "arena" and arg.region > 0:
            return f"kiln_at_region(frame, {arg.region}, {arg.offset})"
        begin = 0
        for number, stored_part in enumerate(self.params.parts if arg.at == "params" else ()):
            if number > 0 and begin <= arg.offset < begin + stored_part.bytes:
                return f"kiln_at_part(params_of_{stored_part.name}, {arg.offset - begin})"
            begin += stored_part.bytes
        return f"kiln_at_{arg.at}(frame, {arg.offset})"

    def _tensor_at(self, arg: MemoryArgument, bucket: PlannedBucket, index: int) -> str:
        """Name of the tensor that `arg` points to during step `index`; empty if the plan has none."""
        candidates: Iterable[StoredTensor | PlacedTensor | PlacedState] = self.params.tensors
        if arg.at == "state":
            candidates = self.states
        if arg.at == "arena":
            candidates = (
                tensor
                for tensor in bucket.tensors
                if tensor.first <= index <= tensor.last and tensor.region == arg.region
            )
        return next((tensor.name for tensor in candidates if tensor.offset == arg.offset), "")
