"""The comparison as an SVG: for every model a bar a contender, its time over the best peer's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.compare import Match
from benchmarks.contenders import Contender
from benchmarks.tables import milliseconds

LEFT, WIDTH, BAR, GAP, TOP = 190, 560, 14, 12, 64
FULL = 2.0  # times the best peer: longer bars are cut and say so
KILN_COLOURS = ("#b3401a", "#e08a4f", "#7d2a0e")
PEER_COLOURS = ("#33566b", "#4f7a93", "#7096ab", "#93b1c1", "#b5cad5", "#d3dfe6", "#8a8fb0")


def svg(matches: Sequence[Match], contenders: Sequence[Contender], caption: str) -> str:
    """A picture of `matches`, which share a number of threads. Shorter is faster; the line: the best peer."""
    lines: list[str] = []
    y = TOP
    for match in matches:
        peer = match.fastest([c.name for c in contenders if c.target is None])
        base = match.fastest(list(match.times)) if peer is None else peer
        if base is None:
            continue
        lines.append(_text(10, y + 11, match.model, "font-weight='bold'"))
        for contender, colour in _coloured(contenders):
            times = match.times.get(contender.name)
            if times is None:
                continue
            share = times.median / match.times[base].median
            length = WIDTH * min(share, FULL) / FULL
            lines.append(
                f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR - 2}' fill='{colour}'/>"
            )
            more = f" ({share:.1f} ×, cut)" if share > FULL else ""
            label = f"{contender.name} {milliseconds(times.median)} ms{more}"
            lines.append(_text(LEFT + length + 5, y + 10, label, "font-size='10'"))
            y += BAR
        y += GAP
    middle = LEFT + WIDTH / FULL
    ends = f"x1='{middle}' x2='{middle}' y1='{TOP - 8}' y2='{y}'"
    lines.insert(0, f"<line {ends} stroke='#888' stroke-dasharray='3'/>")
    lines.append(_text(middle, TOP - 12, "best peer", "font-size='10' text-anchor='middle'"))
    lines.append(_text(10, 18, caption, "font-size='13'"))
    width, height = LEFT + WIDTH + 180, y + 8
    size = f"width='{width}' height='{height}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif' font-size='12'>"
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *lines, "</svg>\n"])


def _coloured(contenders: Sequence[Contender]) -> list[tuple[Contender, str]]:
    """Kiln in warm colours, peers in cold ones."""
    kilns = [c for c in contenders if c.target is not None]
    peers = [c for c in contenders if c.target is None]
    return [
        *((c, KILN_COLOURS[i % len(KILN_COLOURS)]) for i, c in enumerate(kilns)),
        *((c, PEER_COLOURS[i % len(PEER_COLOURS)]) for i, c in enumerate(peers)),
    ]


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {attributes}>{escape(text)}</text>"
