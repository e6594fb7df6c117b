"""Cost model: estimated run time of a graph with fixed sizes, summed over its operators.

The time of an operator is the sum of its arithmetic, its memory traffic and a fixed start-up time, without
overlap. Elementwise operators are assumed to be fused: their tensors cause no memory traffic. The constants
describe one core of an x86-64 server, chosen with one sentence encoder at 8 to 256 tokens: there the
estimates are 0.9 to 1.3 times the run time of ONNX Runtime, and 0.9 to 1.45 times for two convolutional
networks that were not used to choose the constants. Bucket selection depends only on the ratio of the costs
of two sizes, in which the clock cancels out. Measured times (`costs:` of the model's YAML) are better where
they are available.
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

CLOCK = 3e9  # cycles per second
UTILISATION = 0.9  # share of the peak arithmetic rate that a good kernel reaches
BYTES_PER_CYCLE = 16  # bandwidth of the caches that hold a model's tensors
DYNAMIC_RATIO = 1.25  # run time of the dynamic-shape function relative to the exact function
OPERATOR_SECONDS = 2e-7  # seconds per operator: a step of the plan, and the remainders of loops

# Operators that read at most as many elements of their first operand as they write.
_SELECTING = {"relax.take", "relax.strided_slice", "relax.split", "relax.gather_elements"}
# Operators that are fused into the preceding operator, as epilogue or in one loop.
_FUSED = {
    f"relax.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "astype", "power", "sqrt",
        "erf", "exp", "tanh", "sigmoid", "nn.relu", "nn.gelu", "nn.silu", "where", "negative",
    )
}  # fmt: skip
# Operators without code: they only rename or reshape their operand.
_FREE = {"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.shape_of"}


@dataclass(frozen=True)
class MachineFacts:
    """Speed of one core: floating-point operations per second, and bytes moved per second."""

    flops: float
    bytes: float

    @classmethod
    def of(cls, target: Target) -> MachineFacts:
        """The speed of a target's vector unit: two full-width operations per cycle, one if it is in order.

        An operation counts as two floating-point operations per lane where the unit has fused multiply-add.
        """
        lanes, vector = target.vector.bits // 32, target.vector
        flops_per_cycle = lanes * (2 if vector.fma else 1) * (1 if vector.in_order else 2)
        return cls(flops_per_cycle * CLOCK * UTILISATION, BYTES_PER_CYCLE * CLOCK)


# Used without a target: vectors of 256 bits, two multiply-adds per cycle.
GENERIC = MachineFacts(8 * 2 * 2 * CLOCK * UTILISATION, BYTES_PER_CYCLE * CLOCK)


def operator_cost(module: tvm.IRModule, machine: MachineFacts = GENERIC) -> float:
    """Estimated seconds of a run of `main`. Raises KilnError where the shape of a tensor is dynamic."""
    total = 0.0
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or operator(call) in _FREE:
                continue
            read = [_bytes(argument.ty) for argument in call.args]
            if operator(call) in _SELECTING:
                read[0] = _bytes(call.ty)
            traffic = _bytes(call.ty) + sum(read)
            if (operator(call) or "") in _FUSED:
                traffic = 0.0
            total += OPERATOR_SECONDS + _flops(call) / machine.flops + traffic / machine.bytes
    return total


def padding_cost(module: tvm.IRModule, machine: MachineFacts = GENERIC) -> float:
    """Estimated seconds to pad the inputs of `main` and to cut its outputs: one copy of each tensor."""
    main = module["main"]
    results = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    tensors = [*(parameter.ty for parameter in main.params), *results]
    return sum(OPERATOR_SECONDS + 2 * _bytes(ty) / machine.bytes for ty in tensors)


def operators(module: tvm.IRModule) -> int:
    """The number of operators of `main` that become code."""
    calls = [b.value for block in module["main"].body.blocks for b in block.bindings]
    return sum(isinstance(call, relax.Call) and operator(call) not in _FREE for call in calls)


def _flops(call: relax.Call) -> float:
    """Floating-point operations of a call.

    A matmul or convolution: two per multiply-add. Any other operator: one per element of its largest tensor.
    """
    name = operator(call) or ""
    results = _elements(call.ty)
    if name == "relax.matmul":
        return 2.0 * results * int(call.args[0].ty.shape[-1])
    if name.startswith("relax.nn.conv"):
        weight = call.args[1].ty
        layout = str(call.attrs.kernel_layout)
        outputs = int(weight.shape[layout.index("I" if "transpose" in name else "O")])
        if "transpose" in name:  # each input element is multiplied with every weight of its channel
            return 2.0 * _elements(call.args[0].ty) * _elements(weight) / outputs
        return 2.0 * results * _elements(weight) / outputs
    if name in _SELECTING:
        return float(results)
    return float(max([results, *(_elements(argument.ty) for argument in call.args)]))


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
    """Nanoseconds of a run by sizes and kind of function: implements kiln.specialize.auto.BucketCost.

    exact: cost of an exact function. padding: additional cost of padding inputs and cutting outputs; None: 0.
    open: cost of the function with dynamic shapes; None: DYNAMIC_RATIO times the exact cost.
    """

    exact: Fit
    padding: Fit | None = None
    open: Fit | None = None

    def __call__(self, sizes: Mapping[str, int], serving: str) -> float:
        if serving == "open":
            return self.exact(sizes) * DYNAMIC_RATIO if self.open is None else self.open(sizes)
        extra = self.padding(sizes) if self.padding is not None and serving == "pad" else 0.0
        return self.exact(sizes) + extra


def interpolated(samples: Mapping[str, Sequence[int]], cost: Callable[[Mapping[str, int]], float]) -> Fit:
    """Evaluate `cost` at every point of the grid `samples`, and interpolate multilinearly between them."""
    names = list(samples)
    grid = {name: sorted(set(sizes)) for name, sizes in samples.items()}
    values = {
        point: cost(dict(zip(names, point, strict=True))) for point in itertools.product(*grid.values())
    }
    return Fit(grid, values)


@dataclass(frozen=True)
class Fit:
    """A piecewise multilinear function on a grid, never below 0.

    Outside the grid the outermost piece is extrapolated. grid: sample sizes by dimension, ascending. values:
    by grid point, in the order of the dimensions.
    """

    grid: Mapping[str, Sequence[int]]
    values: Mapping[tuple[int, ...], float]

    def __call__(self, sizes: Mapping[str, int]) -> float:
        sides: list[list[tuple[int, float]]] = []
        for name, samples in self.grid.items():
            size = sizes[name]
            if len(samples) == 1:
                sides.append([(samples[0], 1.0)])
                continue
            index = min(max(int(np.searchsorted(samples, size)), 1), len(samples) - 1)
            low, high = samples[index - 1], samples[index]
            fraction = (size - low) / (high - low)
            sides.append([(low, 1.0 - fraction), (high, fraction)])
        total = 0.0
        for corner in itertools.product(*sides):
            weight = float(np.prod([part for _, part in corner]))
            total += weight * self.values[tuple(size for size, _ in corner)]
        return max(total, 0.0)
