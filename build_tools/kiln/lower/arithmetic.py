"""Marks of the steps of a quantised model: integers or floats, for the plan and for `quantised: strict`.

A step is of integers if every tensor that it reads or writes, other than parameters, has an integer type;
rescaling in registers is part of it, but on cores without instructions for floats, where a library would
compute them, every float counts. Other steps are of floats. A step of floats is *between* integers if its
floats come from a quantised tensor and a quantised tensor is computed from them: it is where an integer graph
leaves integers. Models without quantised tensors get no marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm

from kiln.errors import KilnError
from kiln.lower.schema import Step
from kiln.lower.steps import Steps

_NO_NODES: Mapping[str, Sequence[str]] = {}
_CONVERSIONS = frozenset({"quantize", "dequantize", "astype", "reshape", "permute_dims"})
_FLOAT = re.compile(r"\bfloat\d")
QUANTISED = ("int8", "uint8", "int16", "uint16")


def mark(steps: Steps, has_floats: bool = True) -> Steps:
    """`steps` with the mark `integer`, `float` or `between` on each step of a quantised model.

    has_floats: whether the cores have instructions for floats.
    """
    reads = [[name for name in step.tensors if name not in step.writes] for step in steps.steps]
    dtypes = {name: _dtype(steps, name) for step in steps.steps for name in step.tensors}
    quantised = {steps.root(name).name for name, dtype in dtypes.items() if dtype in QUANTISED}
    if not quantised:
        return steps
    from_levels = _reached(steps, reads, quantised, forwards=True)
    to_levels = _reached(steps, reads, quantised, forwards=False)
    in_registers = frozenset[str]() if has_floats else _kernels_of_floats(steps)
    marked: list[Step] = []
    for step in steps.steps:
        floats = {steps.root(name).name for name in step.tensors if _is_float(dtypes[name])}
        is_between = floats & from_levels & to_levels or (not floats and step.kernel in in_registers)
        kind = "between" if is_between else "float" if floats else "integer"
        marked.append(step.model_copy(update={"arithmetic": kind}))
    return replace(steps, steps=marked)


def _kernels_of_floats(steps: Steps) -> frozenset[str]:
    """The kernels whose code has floats."""
    return frozenset(symbol for symbol, func in steps.functions.items() if _FLOAT.search(func.script()))


def _dtype(steps: Steps, name: str) -> str:
    """The data type of a tensor; empty for a parameter, since weights may be of any type."""
    tensor = steps.tensors[name]
    return "" if tensor.kind in ("param", "workspace") else tensor.dtype


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _reached(steps: Steps, reads: list[list[str]], quantised: set[str], forwards: bool) -> set[str]:
    """Float tensors that quantised tensors lead to; without `forwards`, those that lead to quantised ones."""
    tensors: set[str] = set()
    order = list(zip(steps.steps, reads, strict=True))
    for step, sources in order if forwards else reversed(order):
        near, far = (sources, step.writes) if forwards else (step.writes, sources)
        names = {steps.root(name).name for name in near}
        if names & (quantised | tensors):
            float_roots = {steps.root(name).name for name in far if _is_float(_dtype(steps, name))}
            tensors |= float_roots
    return tensors


def nodes_of(mod: tvm.IRModule) -> Mapping[str, Sequence[str]]:
    """The first nodes of the file for each operator, by its name; empty where the importer names none."""
    attributes = mod["main"].attrs or {}
    nodes: dict[str, list[str]] = json.loads(str(attributes.get("kiln.nodes", "{}")))
    return nodes


def require_integers(steps: Steps, model: str, nodes: Mapping[str, Sequence[str]] = _NO_NODES) -> None:
    """Raise KilnError naming the steps of floats between integers; `steps` as from `mark`.

    nodes: by operator, the nodes of the file that became it, the first ones.
    """
    wrong = [(index, step) for index, step in enumerate(steps.steps) if step.arithmetic == "between"]
    if not wrong:
        return
    named = "; ".join(
        f"step {index} ({step.label}, {_floats(steps, step)}{_origins(steps, step, nodes)})"
        for index, step in wrong[:5]
    )
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    raise KilnError(
        f"{model}: quantised: strict: {len(wrong)} of {len(steps.steps)} steps compute on floats between "
        f"quantised tensors: {named}{more}; quantise the operators around them too, or remove the key"
    )


def _origins(steps: Steps, step: Step, nodes: Mapping[str, Sequence[str]]) -> str:
    """Text about the file's nodes that a step may be made of; empty if the file names none.

    Conversions and moves are not named: the step's own operators are what is not quantised.
    """
    kernels = [kernel for kernel in steps.kernels if kernel.symbol == step.kernel]
    names = dict.fromkeys(operator.name for kernel in kernels for operator in kernel.ops)
    nodes_of_operators = [nodes[name] for name in names if name in nodes and name not in _CONVERSIONS]
    origins = list(dict.fromkeys(node for listed in nodes_of_operators for node in listed))
    if not origins:
        return ""
    if len(origins) == 1:
        return f", in the file: {origins[0]}"
    return f", of such operators the file's first are: {', '.join(origins)}"


def require_quantised(marked: bool, model: str) -> None:
    """Raise KilnError unless some step was `marked`: `strict` needs a model with quantised tensors."""
    if not marked:
        raise KilnError(
            f"{model}: quantised: strict: the model has no quantised tensor: quantise it (kiln quantise), or "
            "remove the key"
        )


def _floats(steps: Steps, step: Step) -> str:
    """The tensors of floats of a step: `float32 (1, 8, 8)`."""
    names = [name for name in step.tensors if _is_float(_dtype(steps, name))]
    if not names:
        return "floats in registers, which the core has no instructions for"
    tensor = steps.tensors[names[-1]]
    return f"{tensor.dtype} ({', '.join(str(size) for size in tensor.shape)})"
