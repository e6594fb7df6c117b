"""Why steps of a quantised model compute on floats."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.lower.schema import KernelRecord
from kiln.plan.schema import ExpressionArgument, PlannedBucket, PlannedStep
from kiln.report.origins import short

_NORMS = frozenset({"layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"})
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_PRODUCTS = frozenset(
    {
        "matmul",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv1d_transpose",
        "conv2d_transpose",
        "conv3d_transpose",
    }
)
_CONVERSIONS = frozenset(
    {"quantize", "dequantize", "reshape", "permute_dims", "expand_dims", "squeeze", "astype"}
)


def reason(step: PlannedStep, kernel: KernelRecord) -> str:
    """Why `step` computes on floats, as a clause; empty for a step of integers or without a mark."""
    if step.arithmetic in (None, "integer"):
        return ""
    names = {short(op.name) for op in kernel.ops}
    if names & _NORMS:
        return "sums of squares and roots of a normalisation need more than 8 bits"
    if names & _SOFTMAX:
        return "exponentials need more than 8 bits"
    if names <= _CONVERSIONS:
        return "they convert between floats and integers, for neighbouring steps or for the caller"
    reads = _reads(step, kernel)
    if step.arithmetic == "between" and not any("float" in declared.dtype for declared in kernel.args):
        return "the core has no instructions for the floats between their quantise and dequantise"
    if names & _PRODUCTS and all("float" in dtype for dtype in reads):
        return "operands of the product are not quantised"
    if names & _PRODUCTS:
        return "sums of integers, whose result is read as floats or added to floats"
    return "no quantise and dequantise enclose them in the model"


def _reads(step: PlannedStep, kernel: KernelRecord) -> list[str]:
    """Types of the tensors, other than parameters, that a step reads."""
    pairs = zip(step.args, kernel.args, strict=True)
    tensors = [
        (argument, declared) for argument, declared in pairs if not isinstance(argument, ExpressionArgument)
    ]
    return [declared.dtype for argument, declared in tensors if declared.const and argument.at != "params"]


def lines(bucket: PlannedBucket, kernels: Mapping[str, KernelRecord]) -> list[str]:
    """Lines with the number of steps on integers, and the other steps by reason; none for a float model."""
    numbers: dict[str, list[str]] = {}
    for index, step in enumerate(bucket.steps):
        why = reason(step, kernels[step.kernel])
        if why:
            numbers.setdefault(why, []).append(str(index))
    integer_steps = sum(step.arithmetic == "integer" for step in bucket.steps)
    if not integer_steps and not numbers:
        return []
    return [
        f"{integer_steps} of {len(bucket.steps)} steps compute on integers",
        *(
            f"floats in step{'s' if len(numbers_of_steps) > 1 else ''} {', '.join(numbers_of_steps)}: {why}"
            for why, numbers_of_steps in numbers.items()
        ),
    ]
