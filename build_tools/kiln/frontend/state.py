"""State of a model: inputs that are fed from outputs of the run before, which no caller sees.

The imported function keeps them as its last inputs and its last outputs, in the order of `Imported.states`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from kiln.config import sizes
from kiln.config.check import choices
from kiln.config.interface import StateRecord
from kiln.errors import KilnError
from kiln.frontend.interface import Port
from kiln.frontend.options import ImportOptions
from kiln.params.states import initial_value

# Attribute of `main`: how many values are kept.
STATES = "kiln.states"
# A number, or nested lists of numbers of the value's shape.
Content = int | float | bool | list[Any]


@dataclass(frozen=True)
class StatePort:
    """A value that a run leaves for the next one.

    input, output: positions of the input and the output in the model's file; None: the file itself keeps the
    value, as TFLite's resource variables. initial: its value before the first run.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    initial: Content
    input: int | None = None
    output: int | None = None

    def record(self) -> StateRecord:
        """The entry of interface.json."""
        return StateRecord(
            name=self.name,
            dtype=self.dtype,
            shape=list(self.shape),
            initial=self.initial,
            input=self.input,
            output=self.output,
        )


def kept(inputs: Sequence[Port], outputs: Sequence[Port], options: ImportOptions) -> list[StatePort]:
    """The values that the key `state` of the model describes.

    Raises KilnError for a name that the model does not have, and where type or sizes of the input and the
    output differ, or are not known at build time.
    """
    by_input = {port.name: (index, port) for index, port in enumerate(inputs)}
    by_output = {port.name: (index, port) for index, port in enumerate(outputs)}
    ports = []
    for name, entry in options.state.items():
        if name not in by_input:
            raise KilnError(f"state.{name}: the model has no such input{choices(name, by_input)}")
        if entry.output not in by_output:
            raise KilnError(
                f"state.{name}: the model has no output '{entry.output}'{choices(entry.output, by_output)}"
            )
        (source, input_port), (result, output_port) = by_input[name], by_output[entry.output]
        shapes = [_sizes(name, port, options) for port in (input_port, output_port)]
        if input_port.dtype != output_port.dtype or shapes[0] != shapes[1]:
            raise KilnError(
                f"state.{name}: the input is {input_port.dtype}{list(shapes[0])}, but output "
                f"'{output_port.name}' is {output_port.dtype}{list(shapes[1])}, allowed: the same "
                "type and sizes"
            )
        initial = _stored(entry.initial, input_port)
        port = StatePort(name, input_port.dtype, shapes[0], initial, source, result)
        _check_initial(port)
        ports.append(port)
    if ports and len({port.output for port in ports}) == len(outputs):
        raise KilnError(
            "state: every output feeds an input: no output is left that a run returns; "
            "leave out the entry of an output that the program reads itself"
        )
    return ports


def _stored(initial: Content, port: Port) -> Content:
    """A first value as it is stored: numbers of bfloat16 are held as their bits."""
    if port.element != "bfloat16":
        return initial
    codes: Content = np.asarray(initial, np.float32).astype(ml_dtypes.bfloat16).view(port.dtype).tolist()
    return codes


def _sizes(state: str, port: Port, options: ImportOptions) -> tuple[int, ...]:
    """The sizes of `port`. Raises KilnError for a size that differs from run to run."""
    fixed = {dim.name: dim.minimum for dim in options.dims.values() if dim.minimum == dim.maximum}
    fixed_shape = []
    for axis, size in enumerate(port.shape):
        opened = sorted(sizes.names(size) - fixed.keys())
        if opened:
            raise KilnError(
                f"state.{state}: '{port.name}' axis {axis} is {sizes.show(size)}, allowed: a fixed size, as "
                f"the value stays in memory from run to run; give dims.{opened[0]} equal min and max"
            )
        fixed_shape.append(sizes.evaluate(size, fixed))
    return tuple(fixed_shape)


def _check_initial(port: StatePort) -> None:
    """Raise KilnError for a first value that does not fit type or shape."""
    value = np.asarray(port.initial)
    if value.dtype.kind not in "biuf":
        raise KilnError(f"state.{port.name}.initial: lists of different lengths, allowed: a list per axis")
    if value.ndim and value.shape != port.shape:
        raise KilnError(
            f"state.{port.name}.initial: {list(value.shape)} numbers, allowed: one, or {list(port.shape)}"
        )
    stored = initial_value(port.record())
    wide = np.dtype(port.dtype).kind in "biu"
    if wide and not np.array_equal(stored.astype(np.float64), np.broadcast_to(value, port.shape)):
        raise KilnError(f"state.{port.name}.initial: {port.initial}, allowed: values of type {port.dtype}")


def states_last(module: tvm.IRModule, states: Sequence[StatePort]) -> tvm.IRModule:
    """`module` whose `main` takes and returns the values of `states` after all others.

    Their positions are those of `StatePort`. An output that feeds two inputs is returned twice.
    """
    main = module["main"]
    count = int(main.attrs["num_input"])
    fed = [port.input for port in states if port.input is not None]
    order = [index for index in range(count) if index not in fed] + fed
    params = [main.params[index] for index in order] + list(main.params[count:])
    several = isinstance(main.ret_ty, relax.TupleType)
    state_outputs = [port.output for port in states if port.output is not None]
    returned = [
        index for index in range(len(main.ret_ty.fields) if several else 1) if index not in state_outputs
    ]
    builder, bindings = relax.BlockBuilder(), []
    results: list[Any] = []
    for index in [*returned, *state_outputs]:
        output = relax.TupleGetItem(main.body.body, index) if several else main.body.body
        results.append(relax.Var(f"output{len(results)}", builder.normalize(output).ty))
        bindings.append(relax.VarBinding(results[-1], output))
    result = builder.normalize(relax.Tuple(results))
    outputs = relax.Var("outputs", result.ty)
    bindings.append(relax.VarBinding(outputs, result))
    body = relax.SeqExpr([*main.body.blocks, relax.BindingBlock(bindings)], outputs)
    function = relax.Function(params, body, result.ty, main.is_pure, main.attrs)
    module["main"] = function.with_attr(STATES, len(states))
    module = relax.transform.ConvertToDataflow(1)(module)
    module = relax.transform.CanonicalizeBindings()(module)
    return relax.transform.DeadCodeElimination(["main"])(module)


def without(ports: Sequence[Port], positions: Sequence[int | None]) -> list[Port]:
    """`ports` but for those at `positions`."""
    return [port for index, port in enumerate(ports) if index not in positions]
