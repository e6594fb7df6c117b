"""Steps of the user's own operators whose body is C: one call of a function compiled for each variant."""

from __future__ import annotations

from typing import Any

from tvm import relax

from kiln.errors import KilnError
from kiln.lower.fused_steps import GroupLowering
from kiln.lower.schema import (
    ExternalCode,
    KernelArgument,
    KernelRecord,
    OperatorRecord,
    OwnFunction,
    SizeArgument,
    Step,
    StepCall,
)
from kiln.lower.step_kernels import Build
from kiln.lower.steps import SIZE_PARAMETER
from kiln.operators.c_body import PREFIX, OwnCall
from kiln.tir.symbols import simplify

FAMILY = "own operator"


def is_own(call: relax.Call) -> bool:
    """Whether a `call_dps_packed` is a call of a user's C function."""
    return str(call.args[0].global_symbol).startswith(PREFIX)


def own_of(call: relax.Call) -> OwnCall:
    """The user's function that `call` calls."""
    return OwnCall.parse(str(call.args[0].global_symbol))


def add_own(
    groups: GroupLowering, call: relax.Call, inputs: list[str], numbers: list[Any], on_gpu: bool
) -> Any:
    """Add the step of `call`; returns the tensor name of its result, or a list of names.

    inputs: names of tensors; numbers: dynamic sizes. Raises KilnError where kernels run on a GPU.
    """
    operator, steps, dims = own_of(call), groups.steps, groups.dims
    if on_gpu:
        raise KilnError(
            f"{dims.model}: operator '{operator.operator}' is C for a CPU ({operator.file}), the target's "
            "kernels run on a GPU: give it a body in Relax or TIR"
        )
    several = isinstance(call.ty, relax.TupleType)
    types = list(call.ty.fields) if several else [call.ty]
    outputs = [steps.new(str(ty.dtype), dims.shape(ty)).name for ty in types]
    scratch = [steps.new("uint8", [operator.scratch], "workspace").name] if operator.scratch else []
    sizes = [SizeArgument(dim=dims.size(simplify(number))) for number in numbers]
    given: list[str | SizeArgument] = [*inputs, *outputs, *scratch, *sizes]
    arguments = [KernelArgument(dtype=steps.tensors[name].dtype, const=True) for name in inputs]
    arguments += [KernelArgument(dtype=steps.tensors[name].dtype) for name in [*outputs, *scratch]]
    arguments += [SIZE_PARAMETER for _ in sizes]
    calls = {}
    for build in groups.builds:
        symbol = _kernel(groups, operator, build, arguments)
        calls[build.name] = StepCall(kernel=symbol, extent=0, args=given)
    first = calls[groups.builds[0].name]
    variants = {name: variant_call for name, variant_call in calls.items() if variant_call != first}
    steps.steps.append(
        Step(
            kernel=first.kernel,
            args=given,
            writes=outputs,
            label=operator.operator,
            variants=variants,
            macs=0,
        )
    )
    return outputs if several else outputs[0]


def _kernel(groups: GroupLowering, operator: OwnCall, build: Build, arguments: list[KernelArgument]) -> str:
    """The symbol of the function for one variant; its record is added where there is none."""
    symbol = f"{operator.symbol}_{build.name}" if build.name else operator.symbol
    if not groups.steps.has_kernel(symbol):
        groups.steps.kernels.append(
            KernelRecord(
                symbol=symbol,
                args=arguments,
                parallel=False,
                family=FAMILY,
                ops=[OperatorRecord(name=operator.operator, kind="opaque", attrs={})],
                external=ExternalCode(
                    backend=FAMILY,
                    key=f"{operator.operator} of {operator.file}",
                    source=operator.source.replace(operator.symbol, symbol),
                    own=OwnFunction(
                        file=operator.file, function=operator.function, declared=operator.declared
                    ),
                ),
                variant=build.name or None,
            )
        )
    return symbol
