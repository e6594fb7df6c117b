"""Mixtures of experts of ONNX Runtime (domain com.microsoft)."""

from __future__ import annotations

from typing import Any

from .draw import Draw, Input, Maker, Node
from .quantised import MICROSOFT

_KINDS = ("relu", "gelu", "silu", "identity", "swiglu")


def _tokens(d: Draw, experts: int, width: int) -> tuple[Input, Input]:
    """The input (rows, width) or (batch, length, width), and the scores (rows, experts)."""
    leading = [d.size(1, 4)] if d.chance() else [d.number(1, 3), d.size(1, 4)]
    rows = 1
    for size in leading:
        rows *= size
    return d.data(d.values((*leading, width), scale=1.0)), d.data(d.values((rows, experts)))


def _activation(d: Draw) -> dict[str, Any]:
    """The attributes of a drawn activation."""
    kind = d.pick(_KINDS)
    fused = {"swiglu_fusion": 1, **d.some(activation_alpha=1.7, activation_beta=1.0, swiglu_limit=1.5)}
    return {"activation_type": kind, **(fused if kind == "swiglu" else {})}


def mixture(d: Draw) -> Node:
    experts, width, inner = d.number(1, 6), d.number(1, 8), d.number(1, 6)
    tokens, scores = _tokens(d, experts, width)
    activation = _activation(d)
    first = inner * (2 if activation["activation_type"] == "swiglu" else 1)
    biased = d.chance()
    return d.node(
        tokens,
        scores,
        d.either(d.values((experts, first, width), scale=0.5), data=0.2),
        d.either(d.values((experts, first)), data=0.2) if biased else None,
        d.either(d.values((experts, width, inner), scale=0.5), data=0.2),
        d.either(d.values((experts, width)), data=0.2) if biased else None,
        domain=MICROSOFT,
        k=d.number(1, experts),
        normalize_routing_weights=d.number(0, 1),
        **activation,
    )


def quantised_mixture(d: Draw) -> Node:
    bits = d.pick((2, 4, 8))
    # ONNX Runtime rounds the activations unless the blocks have 4 bits.
    block = d.pick((16, 32)) if bits == 4 and d.chance() else 0
    experts, width, inner = d.number(1, 5), 32 * d.number(1, 2), 32 * d.number(1, 2)
    tokens, scores = _tokens(d, experts, width)
    activation = _activation(d)
    first = inner * (2 if activation["activation_type"] == "swiglu" else 1)
    biased, pointed = d.chance(), d.chance()

    def packed(outputs: int, inputs: int) -> list[Input]:
        blocks = (inputs // block,) if block else ()
        scales = abs(d.values((experts, outputs, *blocks), scale=0.3 / (1 << bits)))
        return [
            d.constant(d.values((experts, outputs, inputs * bits // 8), "uint8")),
            d.constant(scales + 0.001, "float32"),
        ]

    def points(outputs: int, inputs: int) -> Input | None:
        count = inputs // block if block else outputs
        sizes = (experts, outputs, -(-count * bits // 8)) if block else (experts, -(-count * bits // 8))
        return d.constant(d.values(sizes, "uint8")) if pointed else None

    given = d.data(abs(d.values(scores.value.shape)) + 0.1) if d.chance(0.3) else None
    return d.node(
        tokens,
        scores,
        *packed(first, width),
        d.constant(d.values((experts, first))) if biased else None,
        *packed(width, inner),
        d.constant(d.values((experts, width))) if biased else None,
        None, None, None,
        points(first, width),
        points(width, inner),
        None,
        given,
        domain=MICROSOFT,
        k=d.number(1, experts),
        expert_weight_bits=bits,
        block_size=block or None,
        normalize_routing_weights=d.number(0, 1),
        **activation,
    )  # fmt: skip


MAKERS: dict[str, Maker] = {"MoE": mixture, "QMoE": quantised_mixture}
