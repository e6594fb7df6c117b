"""The error that names all operators of a graph that cannot be imported."""

from __future__ import annotations

from pathlib import Path

import onnx

from kiln.errors import KilnError
from kiln.operators.registry import WAY


def refuse(path: Path, nodes: list[onnx.NodeProto]) -> None:
    """Raise KilnError naming every operator in `nodes`, with up to three nodes each; no-op if it is empty."""
    if not nodes:
        return
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        kind = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        kinds.setdefault(kind, []).append(node.name or f"with output {', '.join(node.output[:1]) or 'none'}")
    listed = "; ".join(
        f"{kind} (node {', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in sorted(kinds.items())
    )
    raise KilnError(f"{path}: operators that cannot be imported: {listed}; {WAY}")
