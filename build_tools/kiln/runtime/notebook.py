"""The views of a bundle and of a loaded model in a notebook: its tensors, and the report."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln.runtime.records import SizeRange, TensorInfo


def report_frame(folder: Path) -> str:
    """The report of the bundle in `folder` in a frame of its own, so that its styles change nothing outside.

    Empty where the bundle has none, as on a device.
    """
    page = folder / "report.html"
    if not page.is_file():
        return ""
    text = html.escape(page.read_text(encoding="utf-8"), quote=True)
    return (
        f'<iframe srcdoc="{text}" sandbox="allow-scripts" '
        'style="width:100%;height:40em;border:1px solid #ccc"></iframe>'
    )


def tensors_table(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], dims: Mapping[str, SizeRange]
) -> str:
    """A table of inputs and outputs with type, shape and quantisation, and of the ranges of dimensions."""
    rows = [
        (side, port.name, str(port.dtype), " × ".join(map(str, port.shape)) or "scalar", _quantised(port))
        for side, ports in (("input", inputs), ("output", outputs))
        for port in ports
    ]
    rows += [
        ("dimension", name, "", f"{size.min} to {size.max}", f"multiples of {size.multiple}")
        for name, size in dims.items()
    ]
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{title}</th>" for title in ("", "name", "type", "shape", "values"))
    return f"<table><tr>{head}</tr>{cells}</table>"


def ports_text(ports: Sequence[TensorInfo]) -> str:
    """Inputs or outputs as text: `x: float32[1, 3]`."""
    return ", ".join(f"{port.name}: {port.dtype}{list(port.shape)}" for port in ports)


def _quantised(one: TensorInfo) -> str:
    return f"{one.scale:.6g} · (stored − {one.zero_point})" if one.scale else ""
