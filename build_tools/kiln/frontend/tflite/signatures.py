"""Signatures of a TFLite file: each names a graph of the file, with its inputs and outputs.

A bundle computes one graph. LiteRT's `Interpreter.invoke` runs the first one, so a file whose signatures name
several graphs does not define which of them is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tflite

from kiln.config.check import choices
from kiln.errors import KilnError
from kiln.frontend.tflite.files import packed, text_of, unpacked


def check_one(path: Path, model: tflite.Model) -> None:
    """Raise KilnError, with the names, for a file whose signatures name more than one graph."""
    signatures = [model.SignatureDefs(number) for number in range(model.SignatureDefsLength())]
    if len({signature.SubgraphIndex() for signature in signatures}) > 1:
        names = [text_of(signature.SignatureKey()) for signature in signatures]
        raise KilnError(
            f"{path}: the file has {len(signatures)} signatures: {', '.join(names)}; choose one in the "
            f"model's YAML: 'cut: {{signature: {names[0]}}}'"
        )


def with_signature(path: Path, content: bytes, name: str) -> bytes:
    """The file with the graph of signature `name` first, and without the graphs that it does not need.

    Raises KilnError for a damaged file, and for a name that the file does not have.
    """
    _, model = unpacked(path, content)
    signature_of_name = {text_of(entry.signatureKey): entry for entry in model.signatureDefs or []}
    if name not in signature_of_name:
        names_known = choices(name, signature_of_name) if signature_of_name else ", it has none"
        raise KilnError(f"{path}: cut.signature: the file has no signature '{name}'{names_known}")
    signature = signature_of_name[name]
    if not 0 <= signature.subgraphIndex < len(model.subgraphs):
        raise KilnError(f"{path}: not a complete TFLite model: signature '{name}' has no graph")
    order = _needed(path, model, signature.subgraphIndex)
    new = {old: number for number, old in enumerate(order)}
    model.subgraphs = [model.subgraphs[old] for old in order]
    for graph in model.subgraphs:
        for options, field, old in _references(graph):
            setattr(
                options, field, new[old] if isinstance(old, int) else [new[int(number)] for number in old]
            )
    signature.subgraphIndex, model.signatureDefs = 0, [signature]
    return packed(model)


def _needed(path: Path, model: Any, first: int) -> list[int]:
    """The numbers of graph `first` and of the graphs that its operators refer to, in order of discovery."""
    order = [first]
    for number in order:  # grows in the loop
        for _, _, old in _references(model.subgraphs[number]):
            for graph_number in [old] if isinstance(old, int) else [int(number) for number in old]:
                if not 0 <= graph_number < len(model.subgraphs):
                    raise KilnError(
                        f"{path}: not a complete TFLite model: an operator has graph {graph_number}"
                    )
                if graph_number not in order:
                    order.append(graph_number)
    return order


def _references(graph: Any) -> Iterator[tuple[Any, str, Any]]:
    """The options of a graph's operators that are numbers of graphs: the table, the field, its value."""
    for op in graph.operators or []:
        for options in (op.builtinOptions, op.builtinOptions2):
            for field, value in vars(options).items() if options is not None else ():
                if "subgraph" in field.lower() and value is not None:
                    yield options, field, value
