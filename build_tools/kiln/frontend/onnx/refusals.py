"""The error that names all operators of a graph that cannot be imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.defs

from kiln.errors import KilnError
from kiln.frontend.onnx.attributes import name_in_errors
from kiln.onnx_domains import is_onnx
from kiln.operators.registry import WAY

_OF_THE_EXAMPLE = (
    "an exporter that traces writes sizes of its example into the file; export with dynamo=True, compute the "
    "size from an input's shape in the model, or fix it in 'dims'"
)
# Domains of operators that ONNX Runtime's optimiser writes for the processor that it runs on.
_OF_ONE_MACHINE = ("com.microsoft.nchwc.", "com.ms.internal.")
# Domains of operators that quantisers write for formats of their own, such as levels of any number of bits.
_OF_QUANTISERS = ("qonnx.", "onnx.brevitas.", "finn.", "com.amd.quark.", "com.vai.")
_RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)


def other_sizes(multiples: Mapping[str, int]) -> str:
    """The way round for a size that holds for some sizes of the dimensions only.

    `multiples`: by dimension, the multiple with which it holds; empty if there is none.
    """
    if not multiples:
        return _OF_THE_EXAMPLE
    listed = " and ".join(f"{name} a multiple of {step}" for name, step in multiples.items())
    keys = ", ".join(f"{name}: {{…, multiple: {step}}}" for name, step in multiples.items())
    ranges = ",".join(f"{name}:LEAST..GREATEST:{step}" for name, step in multiples.items())
    fixed = f"it fits with {listed}: 'dims: {{{keys}}}' in the model's YAML, or dims={ranges}"
    return f"{fixed}; or {_OF_THE_EXAMPLE}"


def one_dimension(first: str, second: str) -> str:
    """The way round for two sizes that must be equal, if they are two dimensions of inputs; else empty.

    `first`, `second`: the sizes as errors show them. Tools that convert other formats name the dynamic sizes
    of each input for themselves.
    """
    if first == second or not (first.isidentifier() and second.isidentifier()):
        return ""
    return (
        f"if they are the same size in every run, let the inputs have one dimension: '{first}' in place of "
        f"'{second}', with 'inputs: {{INPUT: {{shape: [{first}, …]}}}}' in the model's YAML"
    )


def draws(node: onnx.NodeProto) -> bool:
    """Whether the operator draws random numbers, also one whose function body calls such an operator."""
    return is_onnx(node) and node.op_type in _RANDOM


def refuse(path: Path, nodes: list[onnx.NodeProto]) -> None:
    """Raise KilnError naming every operator in `nodes`, with up to three nodes each; no-op if it is empty."""
    if not nodes:
        return
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        kind = f"{node.domain}.{node.op_type}" if not is_onnx(node) else node.op_type
        kinds.setdefault(kind, []).append(name_in_errors(node))
    listed = "; ".join(
        f"{kind} (node {', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in sorted(kinds.items())
    )
    drawn = next((node for node in nodes if draws(node) and node.output), None)
    way = WAY
    not_of_onnx = sorted(kind for kind in kinds if "." not in kind and not onnx.defs.has(kind))
    if not_of_onnx:
        verb = "is not an operator" if len(not_of_onnx) == 1 else "are not operators"
        way = (
            f"{', '.join(not_of_onnx)} {verb} of ONNX: the exporter has left what it could not convert, and "
            f"may say how to avoid it; or {WAY}"
        )
    if any(kind.startswith(_OF_ONE_MACHINE) for kind in kinds):
        way = (
            "ONNX Runtime has optimised the file for one processor: build the file from before, or one "
            "that it saved with graph_optimization_level = ORT_ENABLE_EXTENDED"
        )
    if any(kind.startswith(_OF_QUANTISERS) for kind in kinds):
        way = (
            "the quantiser has written operators of its own: let it write integers of 2 to 16 bits as "
            f"QuantizeLinear and DequantizeLinear (QDQ or QCDQ); or {WAY}"
        )
    if drawn is not None:
        way = (
            "random numbers cannot be compared with a reference's: make them an input, in the model's "
            f"YAML 'cut: {{inputs: [{drawn.output[0]}]}}'"
        )
    raise KilnError(f"{path}: operators that cannot be imported: {listed}; {way}")
