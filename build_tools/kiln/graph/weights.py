"""weights: stage that rounds the float32 weights of a simplified graph, so that they need fewer bits.

Rounded are constants of at least LEAST bytes: right operands of matmuls, weights of convolutions, and tables
whose rows are looked up. Weights that are stored in fewer bits already stay as they are; so do other
constants, such as biases. Kernels for the rounded values come from their values (params/encodings.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from kiln.config.interface import Interface
from kiln.config.records import read
from kiln.config.slice_records import WeightsConfig
from kiln.config.weights import Weights
from kiln.errors import KilnError
from kiln.files import atomic_dir
from kiln.graph.bindings import Array, CallRewriter, const, constant, operator, rewrite_calls
from kiln.params import store
from kiln.params.compress import compressed
from kiln.params.encodings import find
from kiln.stages.model import WeightsStage

# Smaller weights stay float32.
LEAST = 4096
_DEFAULT_BLOCK = 64
_SHORTEST_BLOCK = 16


def run(args: WeightsStage) -> None:
    """Write the module with rounded weights, and a copy of interface.json, into the folder `args.out`."""
    config = read(WeightsConfig, args.config)
    weights = config.weights
    counted = read(Interface, args.source / "interface.json").counted
    if counted:
        raise KilnError(
            f"model '{config.name}': weights: {weights.type}: the size of tensor '{counted[0].tensor}' "
            "is counted in the run, and errors of rounded weights are measured with sizes known before; "
            "remove the key"
        )
    rounding = _Rounding(weights)
    module = rounding.module(store.load(args.source))
    if not rounding.count:
        raise KilnError(
            f"model '{config.name}': weights: {weights.type}: nothing to compress: no matmul, convolution "
            f"or table has float32 weights of at least {LEAST} bytes; remove the key"
        )
    before, after = rounding.elements * 4, rounding.elements * {"int4": 0.5, "int8": 1}.get(weights.type, 2)
    print(f"{config.name}: {rounding.count} weights as {weights.type}: {before:,} → {int(after):,} bytes")
    with atomic_dir(args.out) as folder:
        store.save(module, folder)
        shutil.copyfile(args.source / "interface.json", folder / "interface.json")


class _Rounding:
    """Rounds weights; `count` weights with `elements` numbers together have been rounded so far."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.count = self.elements = 0
        self._known: dict[tuple[bytes, tuple[int, ...], str], Any] = {}

    def module(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The module with rounded weights."""
        rules: dict[str, Callable[[CallRewriter, Any], Any]] = {
            "relax.matmul": lambda _, call: self._replaced(call, 1, "columns"),
            "relax.nn.conv2d": lambda _, call: self._replaced(call, 1, "columns"),
            "relax.take": lambda _, call: self._replaced(call, 0, "rows"),
        }
        return rewrite_calls(mod, rules)

    def _replaced(self, call: tvm.ir.Call, position: int, scaled: str) -> Any:
        """`call` with rounded weights, or None; `scaled`: whether each column or each row has a scale."""
        value = constant(call.args[position])
        if value is None or str(value.dtype) != "float32" or value.nbytes < LEAST or value.ndim < 2:
            return None
        key = (store.digest(value).encode(), value.shape, scaled)
        if key not in self._known:
            self._known[key] = self._rounded(value, scaled, call)
        rounded = self._known[key]
        if rounded is None:
            return None
        arguments = list(call.args)
        arguments[position] = rounded
        return tvm.relax.Call(call.op, arguments, call.attrs, call.ty_args)

    def _rounded(self, value: Array, scaled: str, call: Any) -> Any:
        """The constant that replaces `value`; None where it stays."""
        if not np.isfinite(value).all() or find(value) is not None:
            return None
        matrix = value.reshape(-1, value.shape[-1])
        block = self._block(value, scaled, call)
        if block == 0:
            return None
        rounded = compressed(
            np.ascontiguousarray(matrix.T) if scaled == "rows" else matrix, self.weights.type, block
        )
        if rounded is None:
            return None
        self.count, self.elements = self.count + 1, self.elements + value.size
        rounded = rounded.T if scaled == "rows" else rounded
        return const(np.ascontiguousarray(rounded).reshape(value.shape), "float32")

    def _block(self, value: Array, scaled: str, call: Any) -> int | None:
        """Length of the blocks of a weight; None: whole columns or rows; 0: the weight stays."""
        if self.weights.type in ("fp16", "bf16"):
            return None
        block = self.weights.block or (_DEFAULT_BLOCK if self.weights.type == "int4" else None)
        if operator(call) != "relax.nn.conv2d":
            return (
                block
                if scaled == "rows" or value.ndim == 2 or block is None
                else _divisor(value.shape[-2], block)
            )
        if str(call.attrs.kernel_layout) != "HWIO" or int(call.attrs.groups) == value.shape[3]:
            return 0  # depthwise: few numbers, whose rounding costs the most accuracy
        if block is None:
            return None
        # Kernels read blocks of the channels of one position.
        return block if value.shape[:2] == (1, 1) else _divisor(value.shape[2], block)


def _divisor(whole: int, most: int) -> int:
    """The greatest divisor of `whole` from _SHORTEST_BLOCK to `most`; 0: none."""
    return next((size for size in range(min(most, whole), _SHORTEST_BLOCK - 1, -1) if whole % size == 0), 0)
