"""Subgraphs of a model that a library can compute, each as subjects to be timed.

A subgraph is timed alone, at its greatest sizes: once with Kiln's own kernels, and once with each library
that supports it. In the network its input is already where the layer before wrote it. So two steps are not
timed: a copy of the input, which a library needs only for the caller's tensors, and its padding, which the
kernel before writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from kiln.byoc.backend import Backend, Code
from kiln.byoc.match import Match
from kiln.byoc.partition import Choose, Partition
from kiln.byoc.passes import Passes, facts_of
from kiln.config import Target
from kiln.config.precisions import is_narrow
from kiln.lower.cases import cases_of
from kiln.lower.schema import ExternalCode
from kiln.lower.steps import LoweredTensor, Steps
from kiln.params import store
from kiln.plan.lifetimes import root_of
from kiln.tir.symbols import SymbolRanges, variables
from kiln.tir.tuning_records import HEURISTICS, TuningRecord
from kiln.tune.subject import Call, Memory, Subject

# Labels of steps between a subgraph's input and its kernels that do not exist in a network.
_MOVES = ("copy", "pad")
# Operators before and after a subgraph with 16-bit tensors that `module_of` adds, and their conversions.
BETWEEN = ("negative", "max", "astype", "copy")


@dataclass
class Subgraph:
    """A subgraph: its key, its number of occurrences in the model, and the backends that support it."""

    key: str
    module: tvm.IRModule
    count: int = 0
    backends: list[Backend] = field(default_factory=list)


@dataclass(frozen=True)
class LibraryRecord(TuningRecord):
    """A TuningRecord that means: the backend computes the subgraph, not Kiln's own kernels."""

    backend: str = ""


def subgraphs_of(
    sources: Iterable[Path],
    backends: Sequence[Backend],
    target: Target,
    threads: str,
    allowed: Any,
    precision: str = "fp32",
) -> dict[str, Subgraph]:
    """The subgraphs of all buckets of a model, by key.

    `allowed` is called with backend, match and code, and returns whether the backend may compute the match.
    `precision`: the model's, on a GPU; inputs and outputs of subgraphs have its type.
    """
    subgraphs: dict[str, Subgraph] = {}
    for source in sources:
        for case in cases_of(store.load(source)):
            counts: dict[str, int] = {}
            for backend in backends:
                for match in _matches(case.module, backend, target, threads, allowed, precision):
                    subgraph = subgraphs.get(match.key)
                    if subgraph is None:
                        module = module_of(match, _ranges(case.module), precision)
                        subgraph = subgraphs[match.key] = Subgraph(match.key, module)
                    if backend not in subgraph.backends:
                        subgraph.backends.append(backend)
                    if subgraph.backends[0] is backend:
                        counts[match.key] = counts.get(match.key, 0) + 1
            for key, count in counts.items():
                subgraphs[key].count = max(subgraphs[key].count, count)
    return subgraphs


def _matches(
    mod: tvm.IRModule, backend: Backend, target: Target, threads: str, allowed: Any, precision: str
) -> list[Match]:
    matches: list[Match] = []

    def note(_backend: Backend, match: Match, code: Code) -> bool:
        if allowed(backend, match, code):
            matches.append(match)
        return False

    Partition(facts_of(target, threads, precision), note).graph(backend)(mod)
    return matches


def _ranges(mod: tvm.IRModule) -> Mapping[str, tuple[int, int]]:
    """The least and the greatest value of each dynamic dimension, by its name."""
    dims = json.loads(str((mod["main"].attrs or {}).get("kiln.dims", "{}")))
    return {name: (int(dim["min"]), int(dim["max"])) for name, dim in dims.items()}


def module_of(match: Match, ranges: Mapping[str, tuple[int, int]], precision: str = "fp32") -> tvm.IRModule:
    """A module with only the subgraph of one match; dynamic dimensions have their greatest sizes.

    With a `precision` of 16 bits operators of BETWEEN are its neighbours: tensors between kernels have that
    type, the caller's tensors do not.
    """

    def greatest_size(size: Any) -> int:
        if isinstance(size, int):
            return size
        return SymbolRanges({variable: ranges[variable.name] for variable in variables(size)}).greatest(size)

    replacements: list[tuple[Any, Any]] = []
    for name, operand in match.operands.items():
        if operand.value is None and not any(operand.expr.same_as(expr) for expr, _ in replacements):
            shape = [greatest_size(size) for size in operand.shape]
            replacements.append((operand.expr, relax.Var(name, relax.TensorType(shape, operand.dtype))))
    builder = relax.BlockBuilder()
    with builder.function("main", [param for _, param in replacements]):
        with builder.dataflow():
            if is_narrow(precision):
                replacements = [(old, builder.emit(relax.op.negative(new))) for old, new in replacements]
            for var, call in match.calls:
                args = [_with_replacements(arg, replacements) for arg in call.args]
                replacements.append((var, builder.emit(relax.Call(call.op, args, call.attrs))))
            result = replacements[-1][1]
            if is_narrow(precision):
                result = builder.emit(relax.op.max(result, -1))
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return builder.get()


def _with_replacements(arg: Any, replacements: Sequence[tuple[Any, Any]]) -> Any:
    """An argument of a call with expressions replaced, old by new, also inside a tuple, as an einsum has."""
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_with_replacements(field, replacements) for field in arg.fields])
    return next((new for old, new in replacements if old.same_as(arg)), arg)


def passes_for(
    backend: Backend, target: Target, threads: str, precision: str = "fp32", rank: int = 0,
    choose: Choose = lambda *_: True,
) -> Passes:  # fmt: skip
    """Passes that give a backend every subgraph that it supports and `choose` allows (see Partition)."""
    return Passes([backend], Partition(facts_of(target, threads, precision, rank), choose))


class SubgraphSubject(Subject):
    """A subgraph as a subject: computed by Kiln's own kernels, or by the library of `backend`."""

    def __init__(self, name: str, key: str, steps: Steps, backend: str | None = None) -> None:
        self.name, self.key = name, key
        self.choice = HEURISTICS if backend is None else LibraryRecord(backend=backend)
        self.functions = {
            f"{name}_{symbol}": func.with_attr("global_symbol", f"{name}_{symbol}")
            for symbol, func in steps.functions.items()
        }
        self.content = frozenset(kernel.symbol for kernel in steps.kernels)
        tensors = {name: tensor.record(steps.box) for name, tensor in steps.tensors.items()}
        moves = [step for step in steps.steps if step.label in _MOVES and step.writes != steps.outputs]
        timed_steps = [step for step in steps.steps if step not in moves]
        inputs = {root_of(tensors, written) for step in moves for written in step.writes}
        largest = max(steps.params, key=lambda param: steps.params[param].nbytes, default=None)
        kinds = {steps.outputs[0]: "OUTPUT", **({largest: "WEIGHTS"} if largest is not None else {})}
        owners = [tensor for tensor in steps.tensors.values() if tensor.alias is None]
        self.memory = [
            Memory(
                tensor.name,
                tensors[tensor.name].bytes,
                kinds.get(tensor.name, "INPUT" if _is_input(tensor, inputs) else "SCRATCH"),
            )
            for tensor in owners
        ]
        index_by_name = {memory.name: index for index, memory in enumerate(self.memory)}

        def index_of(argument: str) -> int:
            return index_by_name[root_of(tensors, argument)]

        kernels = {kernel.symbol: kernel for kernel in steps.kernels}
        self.calls = [
            Call(
                f"{name}_{step.kernel}",
                tuple(index_of(argument) for argument in step.tensors),
                int(step.extent) if kernels[step.kernel].parallel else None,
            )
            for step in timed_steps
        ]
        external = [
            (step, code) for step in timed_steps if (code := kernels[step.kernel].external) is not None
        ]
        self.externals = {
            f"{name}_{step.kernel}": _renamed(code, step.kernel, name) for step, code in external
        }
        self.opened = [
            Call(
                f"{name}_{step.kernel}_open",
                tuple(index_of(str(step.args[position])) for position in code.opens),
                None,
            )
            for step, code in external
            if code.opens is not None
        ]


def _is_input(tensor: LoweredTensor, inputs: set[str]) -> bool:
    return tensor.kind in ("input", "param") or tensor.name in inputs


def _renamed(code: ExternalCode, symbol: str, name: str) -> ExternalCode:
    """`code`, whose function is `symbol`, with the prefix `name` added to that symbol."""
    return code.model_copy(update={"source": code.source.replace(symbol, f"{name}_{symbol}")})
