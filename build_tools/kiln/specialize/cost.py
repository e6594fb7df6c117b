"""What a graph of fixed sizes costs, estimated from its operators.

An operator takes its arithmetic, its memory traffic and a fixed time to be started, one after the other, as
if nothing overlapped. Elementwise operators are taken to be fused: their tensors are not moved. The
constants are those of one core of an x86-64 server, chosen with one sentence encoder at 8 to 256 tokens:
estimates are 0.9 to 1.3 times what ONNX Runtime takes there, 0.9 to 1.45 times in two convolutional networks
that they were not chosen with. What decides about buckets is how the cost of one size compares with that of
another, in which the clock cancels out; measured times (`costs:`) are better where there are any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx

from kiln.config.target import Target
from kiln.errors import KilnError
from kiln.graph.bindings import operator

CLOCK = 3e9  # cycles in a second
UTILISATION = 0.9  # of the peak that a good kernel reaches
BYTES_PER_CYCLE = 16  # from the caches that a model's tensors lie in
OPEN = 1.25  # what a function of open sizes takes over one made for the size
START = 2e-7  # seconds: a step of the plan, and the ends of loops

# Operators that read no more of their first operand than they write.
_PICKING = {"relax.take", "relax.strided_slice", "relax.split", "relax.gather_elements"}
# Operators that become the epilogue of the one before, or a loop with it.
_FUSED = {
    f"relax.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "astype", "power", "sqrt",
        "erf", "exp", "tanh", "sigmoid", "nn.relu", "nn.gelu", "nn.silu", "where", "negative",
    )
}  # fmt: skip
# Operators that only give their operand another name or shape.
_FREE = {"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.shape_of"}


@dataclass(frozen=True)
class MachineFacts:
    """Floating-point operations and bytes in a second, on one core."""

    flops: float
    bytes: float

    @classmethod
    def of(cls, target: Target) -> MachineFacts:
        """From a vector unit: two multiply-adds of full width in a cycle, one where it is in order."""
        lanes, vector = target.vector.bits // 32, target.vector
        each = lanes * (2 if vector.fma else 1) * (1 if vector.in_order else 2)
        return cls(each * CLOCK * UTILISATION, BYTES_PER_CYCLE * CLOCK)


# Without a target: 256 bits, two multiply-adds in a cycle.
GENERIC = MachineFacts(8 * 2 * 2 * CLOCK * UTILISATION, BYTES_PER_CYCLE * CLOCK)


def operator_cost(module: tvm.IRModule, machine: MachineFacts = GENERIC) -> float:
    """Seconds that `main` takes. Raises KilnError where the size of a tensor is not known."""
    total = 0.0
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or operator(call) in _FREE:
                continue
            read = [_bytes(argument.ty) for argument in call.args]
            if operator(call) in _PICKING:
                read[0] = _bytes(call.ty)
            moved = _bytes(call.ty) + sum(read)
            if (operator(call) or "") in _FUSED:
                moved = 0.0
            total += START + _flops(call) / machine.flops + moved / machine.bytes
    return total


def padding_cost(module: tvm.IRModule, machine: MachineFacts = GENERIC) -> float:
    """Seconds that it takes to fill the inputs of `main` up and to cut its outputs: a copy of each."""
    main = module["main"]
    results = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    tensors = [*(parameter.ty for parameter in main.params), *results]
    return sum(START + 2 * _bytes(ty) / machine.bytes for ty in tensors)


def operators(module: tvm.IRModule) -> int:
    """The number of operators that become code."""
    calls = [b.value for block in module["main"].body.blocks for b in block.bindings]
    return sum(isinstance(call, relax.Call) and operator(call) not in _FREE for call in calls)


def _flops(call: relax.Call) -> float:
    """Twice the multiply-adds of a product or convolution; one operation an element otherwise."""
    name = operator(call) or ""
    made = _elements(call.ty)
    if name == "relax.matmul":
        return 2.0 * made * int(call.args[0].ty.shape[-1])
    if name.startswith("relax.nn.conv"):
        weight = call.args[1].ty
        layout = str(call.attrs.kernel_layout)
        outputs = int(weight.shape[layout.index("I" if "transpose" in name else "O")])
        if "transpose" in name:  # each input element meets the whole filter of its channel
            return 2.0 * _elements(call.args[0].ty) * _elements(weight) / outputs
        return 2.0 * made * _elements(weight) / outputs
    if name in _PICKING:
        return float(made)
    return float(max([made, *(_elements(argument.ty) for argument in call.args)]))


def _elements(ty: tvm.ir.Type) -> int:
    if isinstance(ty, relax.TupleType):
        return sum(_elements(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0
    if ty.shape is None or any(not isinstance(size, tirx.IntImm) for size in ty.shape):
        raise KilnError(f"no cost without sizes: {ty}")
    return int(np.prod([int(size) for size in ty.shape], dtype=np.int64))


def _bytes(ty: tvm.ir.Type) -> float:
    if isinstance(ty, relax.TupleType):
        return sum(_bytes(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0.0
    return _elements(ty) * max(1, int(tvm.DataType(str(ty.dtype)).bits) // 8)


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of a run by sizes and kind of function (kiln.specialize.auto.Cost).

    exact: of a function made for the sizes. padding: what filling up and cutting adds; None: nothing.
    open: of the function of open sizes; None: OPEN times that of the exact one.
    """

    exact: Fit
    padding: Fit | None = None
    open: Fit | None = None

    def __call__(self, sizes: Mapping[str, int], serving: str) -> float:
        if serving == "open":
            return self.exact(sizes) * OPEN if self.open is None else self.open(sizes)
        extra = self.padding(sizes) if self.padding is not None and serving == "pad" else 0.0
        return self.exact(sizes) + extra


def interpolated(samples: Mapping[str, Sequence[int]], cost: Callable[[Mapping[str, int]], float]) -> Fit:
    """A cost for all sizes from those at a grid of samples: linear in each dimension between them."""
    names = list(samples)
    grid = {name: sorted(set(sizes)) for name, sizes in samples.items()}
    values = {
        point: cost(dict(zip(names, point, strict=True))) for point in itertools.product(*grid.values())
    }
    return Fit(grid, values)


@dataclass(frozen=True)
class Fit:
    """Piecewise linear in each dimension; outside of the samples the outermost piece goes on."""

    grid: Mapping[str, Sequence[int]]
    values: Mapping[tuple[int, ...], float]

    def __call__(self, sizes: Mapping[str, int]) -> float:
        sides: list[list[tuple[int, float]]] = []
        for name, samples in self.grid.items():
            size = sizes[name]
            if len(samples) == 1:
                sides.append([(samples[0], 1.0)])
                continue
            at = min(max(int(np.searchsorted(samples, size)), 1), len(samples) - 1)
            low, high = samples[at - 1], samples[at]
            share = (size - low) / (high - low)
            sides.append([(low, 1.0 - share), (high, share)])
        total = 0.0
        for corner in itertools.product(*sides):
            weight = float(np.prod([part for _, part in corner]))
            total += weight * self.values[tuple(size for size, _ in corner)]
        return max(total, 0.0)
