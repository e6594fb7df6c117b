"""Drawing of the arena: steps from left to right, offsets from bottom to top, a rectangle for each tensor."""

from __future__ import annotations

from html import escape
from typing import Any

from kiln.plan.schema import PlacedTensor, PlannedBucket

WIDTH, HEIGHT = 1000, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 14, 30


def bytes_text(count: int) -> str:
    """A number of bytes with a unit: 512 B, 12.5 KiB, 3.20 MiB."""
    if count < 1024:
        return f"{count} B"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f} KiB"
    return f"{count / (1024 * 1024):.2f} MiB"


def draw(bucket: PlannedBucket, labels: list[str]) -> str:
    """SVG of the arena of one bucket of plan.json. `labels` are the steps' labels, for tooltips."""
    steps, top = len(bucket.steps), max(bucket.all_arena_bytes, 1)
    plot_width, plot_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    column = plot_width / max(steps, 1)

    def x(step: float) -> str:
        return f"{_LEFT + step * column:.2f}"

    def y(offset: float) -> str:
        return f"{_TOP + plot_height * (1 - offset / top):.2f}"

    lines = [f'<svg class="arena" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="arena over time">']
    for offset in ticks(top, powers_of_two=True):
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(offset)}" y2="{y(offset)}"/>'
        )
        lines.append(f'<text class="tick" x="{_LEFT - 6}" y="{y(offset)}" dy="4" text-anchor="end">')
        lines.append(f"{bytes_text(offset)}</text>")
    for step in ticks(max(steps - 1, 1)):
        lines.append(
            f'<text class="tick" x="{x(step + 0.5)}" y="{HEIGHT - 11}" text-anchor="middle">{step}</text>'
        )
    flat = [tensor.model_copy(update={"offset": bucket.flat_offset(tensor)}) for tensor in bucket.tensors]
    for tensor in sorted(flat, key=lambda t: (t.first, t.offset, t.name)):
        lines.append(_tensor(tensor, x, y, column, plot_height / top, labels))
    lines.append(_live(bucket, x, y))
    lines.append(f'<text class="tick" x="{_LEFT - 6}" y="{HEIGHT - 11}" text-anchor="end">step</text></svg>')
    return "".join(lines)


def _tensor(tensor: PlacedTensor, x: Any, y: Any, column: float, row: float, labels: list[str]) -> str:
    first, last, size = tensor.first, tensor.last, tensor.bytes
    width, height = (last - first + 1) * column, size * row
    maker = labels[first] if first < len(labels) else ""
    position = f"{bytes_text(size)} at {tensor.offset}, steps {first} to {last}"
    title = f"{tensor.name} ({tensor.kind}): {position}"
    text = ""
    letters = int((width - 8) / 6.2)
    if letters >= 4 and height >= 13:
        made_by = maker.split("+")[0] or tensor.name
        name = made_by if len(made_by) <= letters else made_by[: letters - 1] + "…"
        middle = tensor.offset + size / 2
        text = f'<text x="{x(first)}" dx="4" y="{y(middle)}" dy="4">{escape(name)}</text>'
    return (
        f'<g class="{escape(tensor.kind)}"><title>{escape(title)}\n{escape(maker)}</title>'
        f'<rect x="{x(first)}" y="{y(tensor.offset + size)}" '
        f'width="{width:.2f}" height="{height:.2f}" rx="1.5"/>'
        f"{text}</g>"
    )


def _live(bucket: PlannedBucket, x: Any, y: Any) -> str:
    """SVG line of the bytes alive at each step.

    Where the line reaches the top, the arena cannot be smaller.
    """
    points = []
    for step in range(len(bucket.steps)):
        live = sum(tensor.bytes for tensor in bucket.tensors if tensor.first <= step <= tensor.last)
        points += [f"{x(step)},{y(live)}", f"{x(step + 1)},{y(live)}"]
    return f'<polyline class="live" points="{" ".join(points)}"/>'


def ticks(top: int, powers_of_two: bool = False) -> list[int]:
    """At most seven round numbers from 0 up to at most `top`, evenly spaced."""
    scale, factors = 1, (2, 2, 2) if powers_of_two else (2, 2.5, 2)
    while True:
        for factor in factors:
            if top / scale <= 6:
                return list(range(0, top + 1, scale))
            scale = int(scale * factor)
