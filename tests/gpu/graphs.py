"""Parts of the graphs and functions that tests of GPU kernels lower."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tvm
from relaxed import const
from tvm import relax, te


def few_bits(random: np.random.Generator, *shape: int) -> npt.NDArray[Any]:
    """Float32 numbers that float16, bfloat16 and tf32 hold as well."""
    return random.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def clip(x: Any, low: float, high: float) -> Any:
    """The Relax expression of `x` limited to [low, high], as a maximum of a minimum."""
    return relax.op.maximum(relax.op.minimum(x, const(high)), const(low))


def with_inputs_alone(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, whose parameters are all inputs of the model, marked as `simplify` does it."""
    main = mod["main"]
    return tvm.IRModule({"main": main.with_attr("num_input", len(main.params))}, attrs=mod.attrs)


def placeholders(*shapes: tuple[int, ...]) -> list[Any]:
    """Operands of a tensor expression: float32 tensors of these shapes."""
    return [te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes)]
