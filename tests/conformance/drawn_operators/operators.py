"""All operators that are drawn, by name."""

from __future__ import annotations

from . import (
    chains,
    chosen,
    classical,
    contrib,
    contrib_attention,
    control,
    elementwise,
    experts,
    gated,
    movement,
    networks,
    products,
    quantised,
    rare,
    reductions,
    windows,
)
from .draw import Maker

MAKERS: dict[str, Maker] = {
    **elementwise.MAKERS,
    **reductions.MAKERS,
    **movement.MAKERS,
    **windows.MAKERS,
    **products.MAKERS,
    **networks.MAKERS,
    **quantised.MAKERS,
    **contrib.MAKERS,
    **contrib_attention.MAKERS,
    **gated.MAKERS,
    **experts.MAKERS,
    **chosen.MAKERS,
    **rare.MAKERS,
    **classical.MAKERS,
    **control.MAKERS,
    **chains.MAKERS,
}
